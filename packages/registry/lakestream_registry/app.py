"""Confluent's Schema Registry API over HTTP: the application of `lakestream registry serve`.

Belongs here: routes, parameters, and the permissions of the user. HTTP itself is in lakestream/http, logins are in
lakestream_client, and registry.py decides.

Users are those of the NATS server. A request needs the permission to publish to the subject by which the server's own
API does the same: `$LAKE.API.SCHEMA.ADD.<name>`, CHECK, GET, DELETE, LIST; for settings `$LAKE.API.SCHEMA.CONFIG`, of a
subject `….CONFIG.<name>`.

Source: Confluent's documentation, "Schema Registry API Reference".
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec

from lakestream import __version__
from lakestream.http.exchange import Headers, HttpAnswer, HttpHandler, HttpOutput, HttpRequest
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.schema_api import PREFIX
from lakestream.schemas.schema import Schema
from lakestream_client.http_users import HttpUser, HttpUsers, Rejected
from lakestream_registry import errors
from lakestream_registry.definitions import posted_of, shown
from lakestream_registry.errors import RegistryError
from lakestream_registry.registry import Registry
from lakestream_registry.settings import DEFAULT_LEVEL, DEFAULT_MODE
from lakestream_registry.subjects import DEFAULT_CONTEXT, name_of, subject_of

MAX_BODY = 1 << 20
"""Bytes of a request's body (1 MiB)."""
_JSON = "application/vnd.schemaregistry.v1+json"
_log = logging.getLogger("lakestream.registry")


class Query:
    """The parameters of a request."""

    def __init__(self, text: str) -> None:
        self._values = {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True).items()}

    def text(self, name: str) -> str:
        """Return a parameter; "" for none."""
        return self._values.get(name, "")

    def flag(self, name: str) -> bool:
        """Return True if a parameter is true."""
        return self._values.get(name, "").lower() == "true"

    def page(self, found: Sequence[Any]) -> list[Any]:
        """Return the part of a list that `offset` and `limit` ask for."""
        offset, limit = self._number("offset", 0), self._number("limit", -1)
        return list(found[offset:] if limit < 0 else found[offset : offset + limit])

    def _number(self, name: str, default: int) -> int:
        text = self._values.get(name, "")
        return int(text) if text.isascii() and text.isdecimal() else default


class RegistryApp(HttpHandler):
    """The application.

    Args:
        registry: of the account.
        account: its name.
        users: logs the clients in.
    """

    def __init__(self, registry: Registry, account: str, users: HttpUsers) -> None:
        self._registry, self._account, self._users = registry, account, users

    def refuse(self, request: HttpRequest) -> HttpAnswer | int:
        return MAX_BODY

    def invalid(self, status: int, reason: str) -> HttpAnswer:
        return _answer(status, {"error_code": status, "message": HTTPStatus(status).phrase})

    def failed(self, path: str, error: BaseException) -> HttpAnswer:
        _log.error("%s", path, exc_info=error)
        return _answer(500, {"error_code": 500, "message": "Internal Server Error"})

    async def answer(self, request: HttpRequest, output: HttpOutput) -> HttpAnswer:
        """Answer a request."""
        try:
            user = await self._users.find(request.headers.get("authorization", ""))
            if user.account != self._account:
                raise Rejected
        except Rejected:
            text = {"error_code": 401, "message": "Unauthorized"}
            return _answer(401, text, (("WWW-Authenticate", 'Basic realm="lakestream"'),))
        except OSError as error:
            return _error(errors.unavailable(str(error)))
        parts = [unquote(part) for part in request.path.strip("/").split("/")]
        try:
            found = await _Call(self._registry, user, request, Query(request.query)).run(parts)
        except RegistryError as error:
            return _error(error)
        if isinstance(found, bytes):
            return HttpAnswer(200, _JSON, found)
        return _answer(200, found)


class _Call:
    """One request of one user."""

    def __init__(self, registry: Registry, user: HttpUser, request: HttpRequest, query: Query) -> None:
        self._registry, self._user, self._request, self._query = registry, user, request, query
        self._methods: Mapping[str, Callable[[list[str]], Awaitable[Any] | None]] = {
            "": self._root,
            "subjects": self._subjects,
            "schemas": self._schemas,
            "compatibility": self._compatibility,
            "config": self._config,
            "mode": self._mode,
            "contexts": self._contexts,
            "v1": self._metadata,
        }

    async def run(self, parts: list[str]) -> Any:
        """Return the body of the answer. Raises RegistryError."""
        found = self._methods.get(parts[0])
        done = found(parts[1:]) if found is not None else None
        if done is None:
            raise RegistryError(404, "HTTP 404 Not Found")
        await self._registry.refresh()
        return await done

    def _allow(self, verb: str, subject: str | None = None) -> None:
        to = f"{PREFIX}{verb}" if subject is None else f"{PREFIX}{verb}.{name_of(subject)}"
        if not self._user.may_publish(to):
            raise errors.forbidden(to)

    def _sees(self, name: str) -> bool:
        return self._user.may_publish(f"{PREFIX}GET.{name}")

    @property
    def _method(self) -> str:
        return "GET" if self._request.method == "HEAD" else self._request.method

    # ------------------------------------------------------------------ subjects
    def _subjects(self, parts: list[str]) -> Awaitable[Any] | None:
        match self._method, parts:
            case "GET", []:
                return self._list()
            case "POST", [subject]:
                return self._lookup(subject)
            case "DELETE", [subject]:
                return self._delete(subject)
            case "GET", [subject, "versions"]:
                return self._versions(subject)
            case "POST", [subject, "versions"]:
                return self._register(subject)
            case "GET", [subject, "metadata"]:
                return self._with_metadata(subject)
            case "GET", [subject, "versions", version]:
                return self._version(subject, version)
            case "GET", [subject, "versions", version, "schema"]:
                return self._version_text(subject, version)
            case "GET", [subject, "versions", version, "referencedby"]:
                return self._referenced_by(subject, version)
            case "DELETE", [subject, "versions", version]:
                return self._delete_version(subject, version)
        return None

    async def _list(self) -> Any:
        self._allow("LIST")
        prefix = self._query.text("subjectPrefix").removeprefix(":*:").removeprefix(DEFAULT_CONTEXT)
        names = self._registry.names(self._query.flag("deleted") or self._query.flag("deletedOnly"))
        if self._query.flag("deletedOnly"):
            names = [name for name in names if not self._registry.versions(name)]
        found = [subject_of(name) for name in names if self._sees(name)]
        return self._query.page([subject for subject in found if subject.startswith(prefix)])

    async def _versions(self, subject: str) -> Any:
        self._allow("GET", subject)
        found = self._registry.versions(
            name_of(subject), self._query.flag("deleted") or self._query.flag("deletedOnly")
        )
        if self._query.flag("deletedOnly"):
            found = [each for each in found if self._registry.is_deleted(each)]
        if not found:
            raise errors.no_subject(subject)
        return self._query.page([each.version for each in found])

    async def _version(self, subject: str, version: str) -> Any:
        self._allow("GET", subject)
        return self._entry(self._registry.version(subject, version, self._query.flag("deleted")))

    def _entry(self, schema: Schema) -> dict[str, Any]:
        subject = subject_of(schema.name)
        found = {"subject": subject, "version": schema.version, "id": schema.id}
        if self._registry.is_deleted(schema):
            found["deleted"] = True
        return found | shown(schema, self._query.text("format"))

    async def _version_text(self, subject: str, version: str) -> Any:
        self._allow("GET", subject)
        found = self._registry.version(subject, version, self._query.flag("deleted"))
        return str(shown(found, self._query.text("format"))["schema"]).encode()

    async def _with_metadata(self, subject: str) -> Any:
        """Answer with the latest version whose metadata has some properties (`key`, `value`)."""
        self._allow("GET", subject)
        wanted = parse_qs(self._request.query)
        pairs = list(zip(wanted.get("key", ()), wanted.get("value", ()), strict=False))
        found = self._registry.versions(name_of(subject), self._query.flag("deleted"))
        if not found:
            raise errors.no_subject(subject)
        for each in reversed(found):
            properties = (shown(each).get("metadata") or {}).get("properties") or {}
            if all(properties.get(key) == value for key, value in pairs):
                return self._entry(each)
        raise errors.no_schema()

    async def _referenced_by(self, subject: str, version: str) -> Any:
        self._allow("GET", subject)
        found = self._registry.version(subject, version, deleted=True)
        users = self._registry.users_of(subject, found.version)
        return self._query.page(sorted({each.id for each in users if self._sees(each.name)}))

    async def _register(self, subject: str) -> Any:
        self._allow("ADD", subject)
        found = await self._registry.register(subject, posted_of(self._request.body), self._query.flag("normalize"))
        return {"id": found.id}

    async def _lookup(self, subject: str) -> Any:
        self._allow("GET", subject)
        posted = posted_of(self._request.body)
        deleted, normalized = self._query.flag("deleted"), self._query.flag("normalize")
        return self._entry(await self._registry.lookup(subject, posted, normalized, deleted))

    async def _delete(self, subject: str) -> Any:
        self._allow("DELETE", subject)
        return await self._registry.delete(subject, self._query.flag("permanent"))

    async def _delete_version(self, subject: str, version: str) -> Any:
        self._allow("DELETE", subject)
        return await self._registry.delete_version(subject, version, self._query.flag("permanent"))

    # ------------------------------------------------------------------ schemas by id
    def _schemas(self, parts: list[str]) -> Awaitable[Any] | None:
        match self._method, parts:
            case "GET", []:
                return self._every_schema()
            case "GET", ["types"]:
                return self._types()
            case "GET", ["ids", number]:
                return self._by_id(number)
            case "GET", ["ids", number, "schema"]:
                return self._text_by_id(number)
            case "GET", ["ids", number, "subjects"]:
                return self._places(number, versions=False)
            case "GET", ["ids", number, "versions"]:
                return self._places(number, versions=True)
        return None

    async def _every_schema(self) -> Any:
        self._allow("LIST")
        prefix = self._query.text("subjectPrefix").removeprefix(":*:").removeprefix(DEFAULT_CONTEXT)
        found = []
        for name in self._registry.names(self._query.flag("deleted")):
            if self._sees(name) and subject_of(name).startswith(prefix):
                versions = self._registry.versions(name, self._query.flag("deleted"))
                found += versions[-1:] if self._query.flag("latestOnly") else versions
        return [self._entry(each) for each in self._query.page(found)]

    async def _types(self) -> Any:
        return ["JSON", "PROTOBUF", "AVRO"]

    def _with_id(self, text: str, deleted: bool = True) -> list[Schema]:
        if not (text.isascii() and text.isdecimal()):
            raise RegistryError(404, "HTTP 404 Not Found")
        found = [each for each in self._registry.with_id(int(text), deleted) if self._sees(each.name)]
        if not found:
            raise errors.no_schema(int(text))
        return found

    async def _by_id(self, number: str) -> Any:
        found = shown(self._with_id(number)[0], self._query.text("format"))
        return found | ({"maxId": self._registry.highest_id} if self._query.flag("fetchMaxId") else {})

    async def _text_by_id(self, number: str) -> Any:
        return str(shown(self._with_id(number)[0], self._query.text("format"))["schema"]).encode()

    async def _places(self, number: str, versions: bool) -> Any:
        self._with_id(number)
        try:
            found = self._with_id(number, self._query.flag("deleted"))
        except RegistryError:
            return []
        if versions:
            return self._query.page([{"subject": subject_of(each.name), "version": each.version} for each in found])
        return self._query.page(list(dict.fromkeys(subject_of(each.name) for each in found)))

    # ------------------------------------------------------------------ compatibility
    def _compatibility(self, parts: list[str]) -> Awaitable[Any] | None:
        match self._method, parts:
            case "POST", ["subjects", subject, "versions"]:
                return self._compare(subject, None)
            case "POST", ["subjects", subject, "versions", version]:
                return self._compare(subject, version)
        return None

    async def _compare(self, subject: str, version: str | None) -> Any:
        self._allow("CHECK", subject)
        found = await self._registry.conflicts(subject, version, posted_of(self._request.body))
        answer: dict[str, Any] = {"is_compatible": not found}
        return answer | ({"messages": found} if self._query.flag("verbose") else {})

    # ------------------------------------------------------------------ settings
    def _config(self, parts: list[str]) -> Awaitable[Any] | None:
        subject = parts[0] if parts else None
        if len(parts) > 1:
            return None
        match self._method:
            case "GET":
                return self._get_config(subject)
            case "PUT":
                return self._set_config(subject)
            case "DELETE":
                return self._delete_setting(subject, "compatibilityLevel")
        return None

    async def _get_config(self, subject: str | None) -> Any:
        if subject is None:
            self._allow("LIST")
            return {"compatibilityLevel": self._registry.global_entry.level or DEFAULT_LEVEL}
        self._allow("GET", subject)
        own = self._registry.own(subject).level
        if not own and not self._query.flag("defaultToGlobal"):
            raise errors.no_setting(subject, "compatibility")
        return {"compatibilityLevel": own or self._registry.level(name_of(subject))}

    async def _set_config(self, subject: str | None) -> Any:
        self._allow("CONFIG", subject)
        body = self._body()
        level = body.get("compatibility", body.get("compatibilityLevel"))
        await self._registry.set_level(subject, str(level).upper())
        return {"compatibility": str(level).upper()}

    def _mode(self, parts: list[str]) -> Awaitable[Any] | None:
        subject = parts[0] if parts else None
        if len(parts) > 1:
            return None
        match self._method:
            case "GET":
                return self._get_mode(subject)
            case "PUT":
                return self._set_mode(subject)
            case "DELETE" if subject is not None:
                return self._delete_setting(subject, "mode")
        return None

    async def _get_mode(self, subject: str | None) -> Any:
        if subject is None:
            self._allow("LIST")
            return {"mode": self._registry.global_entry.mode or DEFAULT_MODE}
        self._allow("GET", subject)
        own = self._registry.own(subject).mode
        if not own and not self._query.flag("defaultToGlobal"):
            raise errors.no_setting(subject, "mode")
        return {"mode": own or self._registry.mode(name_of(subject))}

    async def _set_mode(self, subject: str | None) -> Any:
        self._allow("CONFIG", subject)
        mode = str(self._body().get("mode")).upper()
        await self._registry.set_mode(subject, mode, self._query.flag("force"))
        return {"mode": mode}

    async def _delete_setting(self, subject: str | None, name: str) -> Any:
        self._allow("CONFIG", subject)
        own = self._registry.own(subject)
        before = own.mode if name == "mode" else own.level
        if not before and subject is not None:
            raise errors.no_subject(subject)
        if name == "mode":
            await self._registry.set_mode(subject, "")
        else:
            await self._registry.set_level(subject, "")
        return {name: before or DEFAULT_LEVEL}

    def _body(self) -> dict[str, Any]:
        try:
            found = msgspec.json.decode(self._request.body)
        except DECODE_ERRORS as error:
            raise RegistryError(400, f"the body is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise RegistryError(400, "the body is not a JSON object")
        return found

    # ------------------------------------------------------------------ the rest
    def _root(self, parts: list[str]) -> Awaitable[Any] | None:
        return self._nothing() if self._method == "GET" else None

    async def _nothing(self) -> Any:
        return {}

    def _contexts(self, parts: list[str]) -> Awaitable[Any] | None:
        return self._only_context() if self._method == "GET" and not parts else None

    async def _only_context(self) -> Any:
        return ["."]

    def _metadata(self, parts: list[str]) -> Awaitable[Any] | None:
        if self._method == "GET" and parts in (["metadata", "version"], ["metadata", "id"]):
            return self._about(parts[1])
        return None

    async def _about(self, what: str) -> Any:
        if what == "version":
            return {"version": f"lakestream {__version__}", "commitId": ""}
        return {"scope": {"path": [], "clusters": {"schema-registry-cluster": self._user.account}}}


def _answer(status: int, value: Any, more: Headers = ()) -> HttpAnswer:
    return HttpAnswer(status, _JSON, msgspec.json.encode(value), more)


def _error(error: RegistryError) -> HttpAnswer:
    return _answer(error.status, {"error_code": error.code, "message": str(error)})
