"""Unity Catalog, over its REST API 2.1.

Belongs here: the requests to Unity Catalog (the open-source server, and services with the same API), and the layout of
an entry: an external Delta table. The API cannot change the columns of a table, so an entry that differs is dropped
and created again.

The token is in `LAKESTREAM_UNITY_TOKEN`, or in the file that the address or `LAKESTREAM_UNITY_TOKEN_FILE` names; the
file is read for each connection. Without any, requests have none.
"""

from __future__ import annotations

import http.client
import os
import ssl
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from lakestream.lake.catalogs.address import CatalogAddress
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream_catalogs.catalog import REQUEST_SECONDS, Catalog, CatalogAway, CatalogRefused
from lakestream_catalogs.entries import CatalogEntry, CatalogField, Table, cut
from lakestream_catalogs.tokens import token_of
from lakestream_catalogs.types import NoType, sql_type, unity_name

BASE = "/api/2.1/unity-catalog"
TOKEN, TOKEN_FILE = "LAKESTREAM_UNITY_TOKEN", "LAKESTREAM_UNITY_TOKEN_FILE"
MAX_COMMENT = 1024
PAGE = 50
"""Number of tables in one answer; the API allows no more."""
MAX_ANSWER = 64 * 1024 * 1024
"""Maximum length of an answer in bytes; a longer one is an error."""


class UnityCatalog(Catalog):
    """A catalog of Unity Catalog. Its schemas are the databases.

    Args:
        address: its address.
        environ: the environment, `os.environ` when not given.
    """

    def __init__(self, address: CatalogAddress, environ: Mapping[str, str] | None = None) -> None:
        self._address, self._catalog = str(address), address.catalog
        self._headers = {"Accept": "application/json"}
        if token := token_of(address, os.environ if environ is None else environ, TOKEN, TOKEN_FILE):
            self._headers["Authorization"] = f"Bearer {token}"
        if address.secure:
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                address.hosts[0], timeout=REQUEST_SECONDS, context=ssl.create_default_context()
            )
        else:
            self._connection = http.client.HTTPConnection(address.hosts[0], timeout=REQUEST_SECONDS)

    def databases(self) -> list[str]:
        """Return the names of all schemas."""
        return [each["name"] for each in self._all("schemas", catalog_name=self._catalog)]

    def create_database(self, database: str, comment: str) -> None:
        """Create a schema, unless it exists. The catalog has to exist."""
        made = {"name": database, "catalog_name": self._catalog, "comment": comment}
        self._ask("POST", "/schemas", made, f"create schema {database}", "ALREADY_EXISTS")

    def entries(self, database: str) -> list[CatalogEntry]:
        """Return all entries of a schema."""
        found = self._all("tables", catalog_name=self._catalog, schema_name=database, max_results=str(PAGE))
        return [_entry(each) for each in found]

    def render(self, table: Table, name: str) -> CatalogEntry:
        """Return the entry that a table should have."""
        location = f"file://{quote(table.path)}" if "://" not in table.path else table.path
        columns = tuple(
            CatalogField(each["name"], each["type_text"], each.get("comment", "")) for each in _columns(table)
        )
        return CatalogEntry(name, location, cut(table.comment, MAX_COMMENT), columns, dict(table.properties))

    def create(self, database: str, entry: CatalogEntry, table: Table) -> None:
        """Create an entry."""
        made = {
            "name": entry.name,
            "catalog_name": self._catalog,
            "schema_name": database,
            "table_type": "EXTERNAL",
            "data_source_format": "DELTA",
            "columns": _columns(table),
            "storage_location": entry.location,
            "comment": entry.comment,
            "properties": entry.properties,
        }
        self._ask("POST", "/tables", made, f"create {database}.{entry.name}")

    def alter(self, database: str, entry: CatalogEntry, table: Table) -> None:
        """Replace an entry."""
        self.drop(database, entry.name)
        self.create(database, entry, table)

    def drop(self, database: str, name: str) -> None:
        """Drop an entry, unless it is gone."""
        path = f"/tables/{quote(f'{self._catalog}.{database}.{name}', safe='')}"
        self._ask("DELETE", path, None, f"drop {database}.{name}", "NOT_FOUND")

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _all(self, kind: str, **arguments: str) -> Iterator[dict[str, Any]]:
        """Yield all objects of a kind, page by page."""
        after = ""
        while True:
            query = urlencode({**arguments, **({"page_token": after} if after else {})})
            page = self._ask("GET", f"/{kind}?{query}", None, f"list {kind}")
            yield from page.get(kind) or ()
            after = page.get("next_page_token") or ""
            if not (after and page.get(kind)):
                return

    def _ask(self, method: str, path: str, body: Any, what: str, accepted: str = "") -> dict[str, Any]:
        """Make a request and return its answer, {} for an error whose code ends in `accepted`.

        Raises:
            CatalogAway: no answer, a refused token, or an error of the server.
            CatalogRefused: the request is refused.
        """
        content = None if body is None else msgspec.json.encode(body)
        headers = self._headers if content is None else {**self._headers, "Content-Type": "application/json"}
        try:
            self._connection.request(method, BASE + path, content, headers)
            answer = self._connection.getresponse()
            text = answer.read(MAX_ANSWER + 1)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise CatalogAway(
                self._address, str(error) or type(error).__name__, "look at Unity Catalog and at the way to it"
            ) from None
        if len(text) > MAX_ANSWER:
            self._connection.close()
            raise CatalogAway(self._address, f"an answer has more than {MAX_ANSWER} bytes", "use another catalog")
        return self._answer(answer.status, text, what, accepted)

    def _answer(self, status: int, text: bytes, what: str, accepted: str) -> dict[str, Any]:
        try:
            found = msgspec.json.decode(text) if text else {}
        except DECODE_ERRORS:
            found = None
        reason = f"HTTP {status}"
        if isinstance(found, dict):
            if status // 100 == 2:
                return found
            # The status of "already exists" is 400 or 409 by release; the code says so in all of them.
            if accepted and str(found.get("error_code")).endswith(accepted):
                return {}
            reason = str(found.get("message") or found.get("error_code") or reason).splitlines()[0]
        if status in (401, 403):
            remedy = f"look at the token in {TOKEN} or {TOKEN_FILE} and at its rights"
            raise CatalogAway(self._address, reason, remedy)
        if status // 100 == 2 or status // 100 == 5 or status == 429:
            raise CatalogAway(self._address, reason, "look at its log")
        raise CatalogRefused(self._address, what, reason)


def _columns(table: Table) -> list[dict[str, Any]]:
    """Return columns as ColumnInfo of the API. One without a type there is left out."""
    found: list[dict[str, Any]] = []
    for column in table.columns:
        try:
            (name, precision, scale), text = unity_name(column.type), sql_type(column.type)
        except NoType:
            continue
        metadata = {"comment": column.comment} if column.comment else {}
        field = {"name": column.name, "type": column.type, "nullable": column.nullable, "metadata": metadata}
        info: dict[str, Any] = {
            "name": column.name,
            "type_text": text,
            "type_json": msgspec.json.encode(field).decode(),
            "type_name": name,
            "type_precision": precision,
            "type_scale": scale,
            "position": len(found),
            "nullable": column.nullable,
        }
        if column.comment:
            info["comment"] = cut(column.comment, MAX_COMMENT)
        if column.name in table.partitioned_by:
            info["partition_index"] = table.partitioned_by.index(column.name)
        found.append(info)
    return found


def _entry(table: dict[str, Any]) -> CatalogEntry:
    columns = sorted(table.get("columns") or (), key=lambda each: each.get("position", 0))
    fields = tuple(CatalogField(each["name"], each.get("type_text", ""), each.get("comment") or "") for each in columns)
    location, comment = table.get("storage_location") or "", table.get("comment") or ""
    return CatalogEntry(table["name"], location, comment, fields, dict(table.get("properties") or {}))
