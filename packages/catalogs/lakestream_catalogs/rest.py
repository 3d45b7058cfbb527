"""Iceberg REST catalogs of others: Polaris, Lakekeeper, Nessie and services with the same protocol.

Belongs here: the requests that register an Iceberg table by its metadata file. The catalog passes the metadata on, so
the entry has nothing of its own: the lake and the table are among the properties that the metadata has.

A catalog that cannot overwrite a registration gets the entry anew: between two requests the table has none.

The token is in `LAKESTREAM_ICEBERG_TOKEN`, or in the file that the address or `LAKESTREAM_ICEBERG_TOKEN_FILE` names.
The file is read for each connection. `id:secret` is exchanged for a token. Without any, requests have none.

Source: Apache Iceberg, open-api/rest-catalog-open-api.yaml.
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
from lakestream.lake.table.schema import LAKE_PROPERTY, TABLE_PROPERTY
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream_catalogs.catalog import REQUEST_SECONDS, Catalog, CatalogAway, CatalogRefused
from lakestream_catalogs.entries import POINTER_PROPERTY, CatalogEntry, Table
from lakestream_catalogs.tokens import token_of

TOKEN, TOKEN_FILE = "LAKESTREAM_ICEBERG_TOKEN", "LAKESTREAM_ICEBERG_TOKEN_FILE"
SCOPE = "PRINCIPAL_ROLE:ALL"
"""Scope of a token: Polaris demands it, others ignore it."""
MAX_ANSWER = 64 * 1024 * 1024
"""Maximum length of an answer in bytes; a longer one is an error."""
_NO_OVERWRITE = (406, 409, 501)
"""Statuses of catalogs that do not know how to overwrite a registration: not supported, it exists already."""
_NO_FILE = "NotFoundException"
"""Type of the error about a metadata file that is gone, whatever its status."""
_FORM, _JSON = "application/x-www-form-urlencoded", "application/json"


class _Answer(msgspec.Struct):
    """Answer to a request: its status, and the object in it."""

    status: int
    content: dict[str, Any]

    @property
    def kind(self) -> str:
        """Return the type of its error; "" without one."""
        error = self.content.get("error")
        return str(error.get("type", "")) if isinstance(error, dict) else ""

    @property
    def reason(self) -> str:
        """Return what went wrong, in one line."""
        error = self.content.get("error")
        text = error.get("message") if isinstance(error, dict) else self.content.get("error_description") or error
        return str(text or f"HTTP {self.status}").splitlines()[0]


class IcebergRestCatalog(Catalog):
    """An Iceberg REST catalog. Its namespaces of one level are the databases.

    Args:
        address: its address.
        environ: the environment, `os.environ` when not given.

    Raises:
        CatalogAway: it does not answer, or refuses the token.
    """

    def __init__(self, address: CatalogAddress, environ: Mapping[str, str] | None = None) -> None:
        self._address, self._base = str(address), f"{address.path}/v1"
        host = address.hosts[0]
        if address.secure:
            context = ssl.create_default_context()
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, timeout=REQUEST_SECONDS, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(host, timeout=REQUEST_SECONDS)
        self._headers = {"Accept": _JSON}
        token = token_of(address, os.environ if environ is None else environ, TOKEN, TOKEN_FILE)
        if ":" in token:
            token = self._exchanged(token)
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        query = f"?{urlencode({'warehouse': address.catalog})}" if address.catalog else ""
        told = self._ask("GET", f"/config{query}", None, "tell its configuration").content
        prefix = {**(told.get("defaults") or {}), **(told.get("overrides") or {})}.get("prefix", "")
        self._base += f"/{prefix}" if prefix else ""

    def databases(self) -> list[str]:
        """Return the names of all namespaces of one level."""
        found = self._all("/namespaces", "namespaces", "list namespaces")
        return [each[0] for each in found if len(each) == 1]

    def create_database(self, database: str, comment: str) -> None:
        """Create a namespace, unless it exists."""
        made = {"namespace": [database], "properties": {"comment": comment}}
        self._ask("POST", "/namespaces", made, f"create namespace {database}", 409)

    def entries(self, database: str) -> list[CatalogEntry]:
        """Return all entries of a namespace."""
        place = f"/namespaces/{quote(database, safe='')}/tables"
        names = [each["name"] for each in self._all(place, "identifiers", f"list namespace {database}")]
        found: list[CatalogEntry] = []
        for name in names:
            try:
                entry = self.entry(database, name)
            except CatalogRefused:  # nobody can tell whose it is
                entry = CatalogEntry(name, "")
            found += [entry] if entry is not None else []
        return found

    def entry(self, database: str, name: str) -> CatalogEntry | None:
        """Return one entry; None if it is gone. Raises CatalogRefused if the file that it names is."""
        path = f"{_table(database, name)}?snapshots=refs"
        answer = self._ask("GET", path, None, f"read {database}.{name}", 404)
        if answer.status == 404:
            return None
        metadata = answer.content.get("metadata") or {}
        stated = metadata.get("properties") or {}
        properties = {each: stated[each] for each in (LAKE_PROPERTY, TABLE_PROPERTY) if each in stated}
        properties[POINTER_PROPERTY] = answer.content.get("metadata-location") or ""
        return CatalogEntry(name, metadata.get("location") or "", properties=properties)

    def render(self, table: Table, name: str) -> CatalogEntry:
        """Return the entry that a table should have."""
        return CatalogEntry(name, table.path, properties={TABLE_PROPERTY: table.key, POINTER_PROPERTY: table.pointer})

    def create(self, database: str, entry: CatalogEntry, table: Table) -> None:
        """Create an entry."""
        self._register(database, entry, False)

    def alter(self, database: str, entry: CatalogEntry, table: Table) -> None:
        """Change an entry."""
        if not self._register(database, entry, True):
            self.drop(database, entry.name)
            self._register(database, entry, False)

    def drop(self, database: str, name: str) -> None:
        """Drop an entry, unless it is gone. The files stay."""
        self._ask("DELETE", f"{_table(database, name)}?purgeRequested=false", None, f"drop {database}.{name}", 404)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _register(self, database: str, entry: CatalogEntry, overwrite: bool) -> bool:
        """Register a metadata file. Return False if the catalog does not overwrite a registration."""
        made: dict[str, Any] = {"name": entry.name, "metadata-location": entry.properties[POINTER_PROPERTY]}
        path = f"/namespaces/{quote(database, safe='')}/register"
        if overwrite:
            made["overwrite"] = True
        accepted = _NO_OVERWRITE if overwrite else ()
        answer = self._ask("POST", path, made, f"register {database}.{entry.name}", *accepted)
        return answer.status // 100 == 2

    def _exchanged(self, credential: str) -> str:
        """Return the token for an id and a secret, as clients with a `credential` ask for it."""
        name, _, secret = credential.partition(":")
        asked = {"grant_type": "client_credentials", "client_id": name, "client_secret": secret, "scope": SCOPE}
        content = urlencode(asked).encode()
        answer = self._sent("POST", "/oauth/tokens", content, _FORM)
        if answer.status // 100 != 2:
            raise self._away(answer)
        return str(answer.content.get("access_token", ""))

    def _all(self, path: str, key: str, what: str) -> Iterator[Any]:
        """Yield all objects of a list, page by page."""
        after = ""
        while True:
            query = f"?{urlencode({'pageToken': after})}" if after else ""
            page = self._ask("GET", path + query, None, what).content
            yield from page.get(key) or ()
            after = page.get("next-page-token") or ""
            if not (after and page.get(key)):
                return

    def _ask(self, method: str, path: str, body: Any, what: str, *accepted: int) -> _Answer:
        """Make a request and return its answer; `accepted` has statuses of errors that are one.

        Raises:
            CatalogAway: no answer, a refused token, or an error of the server.
            CatalogRefused: the request is refused.
        """
        answer = self._sent(method, path, None if body is None else msgspec.json.encode(body), _JSON)
        if answer.status // 100 == 2 or answer.status in accepted:
            return answer
        if answer.kind == _NO_FILE:
            raise CatalogRefused(self._address, what, answer.reason)
        if answer.status in (401, 403, 429) or answer.status // 100 == 5:
            raise self._away(answer)
        raise CatalogRefused(self._address, what, answer.reason)

    def _sent(self, method: str, path: str, content: bytes | None, kind: str) -> _Answer:
        headers = self._headers if content is None else {**self._headers, "Content-Type": kind}
        try:
            self._connection.request(method, self._base + path, content, headers)
            answer = self._connection.getresponse()
            text = answer.read(MAX_ANSWER + 1)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            reason = str(error) or type(error).__name__
            raise CatalogAway(self._address, reason, "look at the catalog and at the way to it") from None
        if len(text) > MAX_ANSWER:
            self._connection.close()
            raise CatalogAway(self._address, f"an answer has more than {MAX_ANSWER} bytes", "use another catalog")
        try:
            found = msgspec.json.decode(text) if text else {}
        except DECODE_ERRORS:
            found = {}
        return _Answer(answer.status, found if isinstance(found, dict) else {})

    def _away(self, answer: _Answer) -> CatalogAway:
        remedy = "look at its log"
        if answer.status in (400, 401, 403):
            remedy = f"look at the token in {TOKEN} or {TOKEN_FILE} and at its rights"
        return CatalogAway(self._address, answer.reason, remedy)


def _table(database: str, name: str) -> str:
    return f"/namespaces/{quote(database, safe='')}/tables/{quote(name, safe='')}"
