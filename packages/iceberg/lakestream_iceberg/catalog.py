"""The Iceberg REST catalog of a lake, read-only.

Belongs here: routes and answers. HTTP itself is in lakestream/http, logins are in lakestream_client. Files are read in
threads.

A login sees one namespace, which is its account: `lakestream` is the default account. Its tables are the streams that
have an Iceberg table and that the user may read. Metadata is passed on as the compactor wrote it; clients read the
files themselves, in an object store with credentials for the table where the catalog vends them.

Source: Apache Iceberg, open-api/rest-catalog-open-api.yaml.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote, unquote_plus

import msgspec

from lakestream.http.exchange import Headers, HttpAnswer, HttpHandler, HttpOutput, HttpRequest
from lakestream.lake.errors import LakeError
from lakestream.lake.storage import paths
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import masks
from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream_client.http_users import TOKEN_S, HttpUser, HttpUsers, Rejected, basic_login
from lakestream_iceberg import metadata
from lakestream_iceberg.vending import Vended, Vending
from lakestream_spark.write import iceberg_files
from lakestream_spark.write.iceberg_files import TableMetadata

DEFAULT_NAMESPACE = "lakestream"
"""Namespace of the default account; of others it is the account's name."""
ENDPOINTS = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
)
CREDENTIALS = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials"
"""Endpoint of a catalog that vends credentials."""
VENDED = "vended-credentials"
"""Word of the field `X-Iceberg-Access-Delegation` with which a client asks for credentials."""
MAX_BODY = 64 << 10
"""Bytes of a request's body (64 KiB)."""
_JSON = "application/json"
_log = logging.getLogger("lakestream.iceberg")


class _Refused(Exception):
    """Raised for a request that gets an error of the protocol."""

    def __init__(self, status: int, kind: str, text: str, headers: Headers = ()) -> None:
        super().__init__(text)
        self.status, self.kind, self.headers = status, kind, headers


class RestCatalog(HttpHandler):
    """The catalog.

    Args:
        storage: the lake.
        users: logs the clients in.
        vending: gets credentials for a table's files; None: clients have their own.
    """

    def __init__(self, storage: Storage, users: HttpUsers, vending: Vending | None = None) -> None:
        self._storage, self._users, self._vending = storage, users, vending

    def refuse(self, request: HttpRequest) -> HttpAnswer | int:
        return MAX_BODY

    def invalid(self, status: int, reason: str) -> HttpAnswer:
        return _error(_Refused(status, "BadRequestException", HTTPStatus(status).phrase))

    def failed(self, path: str, error: BaseException) -> HttpAnswer:
        _log.error("%s", path, exc_info=error)
        return _error(_Refused(500, "InternalServerError", "internal error"))

    async def answer(self, request: HttpRequest, output: HttpOutput) -> HttpAnswer:
        """Answer a request. Details of failures go to the log."""
        try:
            return await self._answered(request)
        except _Refused as refused:
            return _error(refused)
        except (LakeError, OSError) as error:
            _log.error("%s %s: %s", request.method, request.path, error)
            return _error(_Refused(503, "ServiceUnavailableException", "try again", (("Retry-After", "1"),)))

    async def _answered(self, request: HttpRequest) -> HttpAnswer:
        parts = [unquote(part) for part in request.path.strip("/").split("/")]
        query = dict(parse_qsl(request.query))
        if parts[:1] != ["v1"]:
            raise _Refused(404, "NotFoundException", "not found: the catalog's paths begin with /v1")
        if parts[1:] == ["oauth", "tokens"]:
            return await self._token(request)
        if parts[1:] == ["config"]:
            endpoints = ENDPOINTS if self._vending is None else (*ENDPOINTS, CREDENTIALS)
            return _json({"defaults": {}, "overrides": {}, "endpoints": endpoints})
        user = await self._user(request)
        if parts[-1:] == ["metrics"] and request.method == "POST":
            return HttpAnswer(204, _JSON, b"")  # reports of scans, which nobody keeps
        if request.method not in ("GET", "HEAD"):
            raise _Refused(406, "UnsupportedOperationException", "the catalog is read-only: streams fill the tables")
        own = DEFAULT_NAMESPACE if user.account == GLOBAL_ACCOUNT else user.account
        match parts[1:]:
            case ["namespaces"]:
                return _json({"namespaces": [] if query.get("parent") else [[own]]})
            case ["namespaces", namespace, *rest] if namespace == own:
                return await self._in_namespace(request, user, own, rest, query)
            case ["namespaces", namespace, *_]:
                raise _Refused(404, "NoSuchNamespaceException", f"namespace {namespace} does not exist")
        raise _Refused(404, "NotFoundException", "not found")

    async def _in_namespace(
        self, request: HttpRequest, user: HttpUser, own: str, rest: list[str], query: Mapping[str, str]
    ) -> HttpAnswer:
        match rest:
            case []:
                return _json({"namespace": [own], "properties": {"lakestream.account": user.account}})
            case ["tables"]:
                found = await asyncio.to_thread(lambda: list(metadata.named(self._storage, user.account)))
                tables = [{"namespace": [own], "name": name} for name, stream in found if user.may_read(stream)]
                return _json({"identifiers": tables})
            case ["tables", table]:
                return await self._table(request, user, table, query)
            case ["tables", table, "credentials"] if self._vending is not None:
                _, path = await self._found(user, table)
                vended = await asyncio.to_thread(self._vending.credentials, path)
                return _json({"storage-credentials": _credentials(vended)})
        raise _Refused(404, "NotFoundException", "not found")

    async def _found(self, user: HttpUser, name: str) -> tuple[TableMetadata, str]:
        """Return the newest metadata of a stream's table that the user may read, and the table's path."""
        found, path = None, paths.table(self._storage.root, name, user.account)
        if user.may_read(await asyncio.to_thread(metadata.stream_of, self._storage, path, name)):
            found = await asyncio.to_thread(iceberg_files.newest, self._storage, path)
        if found is None:
            raise _Refused(404, "NoSuchTableException", f"table {name} does not exist")
        if (await asyncio.to_thread(masks.of_table, self._storage, path)).fields:
            text = f"table {name} is not given to readers of files: its stream masks fields (lakestream.mask)"
            raise _Refused(403, "ForbiddenException", text)
        return found, path

    async def _table(self, request: HttpRequest, user: HttpUser, name: str, query: Mapping[str, str]) -> HttpAnswer:
        found, path = await self._found(user, name)
        wanted = query.get("snapshots", "all")
        number = found.location.rpartition("/v")[2].partition(".")[0]
        body: dict[str, Any] = {"metadata-location": found.location, "config": {}}
        version = f"{number}-{found.tag}-{wanted}"
        if self._vending is not None and VENDED in request.headers.get("x-iceberg-access-delegation", ""):
            vended = await asyncio.to_thread(self._vending.credentials, path)
            body |= {"config": vended.config, "storage-credentials": _credentials(vended)}
            version += f"-{vended.expires_ms}"
        tag = ("ETag", f'"{version}"')
        if request.headers.get("if-none-match") == tag[1]:
            return HttpAnswer(304, _JSON, b"", (tag,))
        body["metadata"] = msgspec.Raw(found.referenced() if wanted == "refs" else found.content)
        return _json(body)._replace(headers=(tag, ("Cache-Control", "private, no-cache")))

    async def _token(self, request: HttpRequest) -> HttpAnswer:
        """Exchange user and password for a token, as clients with a `credential` ask for it.

        Both are in the body or, by RFC 6749 (section 2.3.1), in the field `authorization`.
        """
        asked = dict(parse_qsl(request.body.decode("utf-8", "replace"), keep_blank_values=True))
        if request.method != "POST" or asked.get("grant_type") != "client_credentials":
            return _oauth("unsupported_grant_type", "send grant_type=client_credentials")
        try:
            if "client_id" in asked:
                token = await self._users.issue(asked["client_id"], asked.get("client_secret", ""))
            else:
                user, password = basic_login(request.headers.get("authorization", ""))
                token = await self._users.issue(unquote_plus(user), unquote_plus(password))
        except Rejected:
            return _oauth("invalid_client", "the server rejects user and password", 401)
        return _json({"access_token": token, "token_type": "bearer", "expires_in": TOKEN_S})

    async def _user(self, request: HttpRequest) -> HttpUser:
        try:
            return await self._users.find(request.headers.get("authorization", ""))
        except Rejected:
            text = "the NATS server rejects the login: give user:password as credential, or a token"
            raise _Refused(401, "NotAuthorizedException", text, (("WWW-Authenticate", "Bearer"),)) from None


def _credentials(vended: Vended) -> list[dict[str, Any]]:
    return [{"prefix": vended.prefix, "config": vended.config}]


def _json(value: object) -> HttpAnswer:
    return HttpAnswer(200, _JSON, msgspec.json.encode(value))


def _error(refused: _Refused) -> HttpAnswer:
    error = {"message": str(refused), "type": refused.kind, "code": refused.status}
    return HttpAnswer(refused.status, _JSON, msgspec.json.encode({"error": error}), refused.headers)


def _oauth(kind: str, text: str, status: int = 400) -> HttpAnswer:
    return HttpAnswer(status, _JSON, msgspec.json.encode({"error": kind, "error_description": text}))
