"""`$LAKE.API.SCHEMA.>`: requests of an account's clients to its schema registry.

Belongs here: ADD, CHECK, LIST, GET, DIFF and DELETE (protocol/schema_api.py). All nodes receive a request, and the
leader of the bucket's stream answers it. Without a bucket the meta leader does: there are no schemas then, and ADD
creates the bucket.

A registration is written only if the bucket has not changed since it was read (Nats-Expected-Last-Sequence), or it is
begun again: so no version and no id is given twice, whichever nodes believe to lead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from lakestream.account.engine import Engine
from lakestream.account.schemas.bucket import STREAM, SUBJECTS, RegisteredSchemas, stream_config
from lakestream.account.schemas.calls import CallUnanswered, ask
from lakestream.ports import ClientInfo, Single
from lakestream.protocol import headers, schema_api
from lakestream.protocol.api.errors import ApiError, api_error, for_clients
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.protocol.gotime import format_time
from lakestream.protocol.schema_api import PREFIX, Definition, ListPage, Lookup, SchemaDeletion, Versions
from lakestream.schemas import naming
from lakestream.schemas.codec import codec_of
from lakestream.schemas.errors import BadSchema
from lakestream.schemas.naming import SCHEMA_KEY
from lakestream.schemas.schema import Schema, check_name, parse_reference
from lakestream.stream.awaiting import in_thread
from lakestream_schemas.compatibility import Incompatibility, differences
from lakestream_schemas.differences import Difference
from lakestream_schemas.registry import registration

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream


T = TypeVar("T")

MAX_WAITING = 64
"""Maximum number of an account's requests that wait for the one in progress; further ones fail (503)."""
ATTEMPTS = 8
"""Maximum number of attempts to write a registration while others write to the bucket."""
READ_MSGS, READ_BYTES = 1_000, 8 << 20
"""Size of one read of the bucket."""
EXPORT_WAIT_S = 2.0
"""Maximum time for which a registration waits until the lake has it (2 s)."""
REPLICAS = 3
"""Replicas of the bucket in a cluster of so many servers or more; with fewer it has one."""
_AGAIN = headers.build([(b"Lakestream-Schema-Bucket", b"created")])
"""Header block of a registration that is sent again, after its bucket was created."""
_WRONG_LAST_SEQUENCE = (10071, 10164)


class PubAck(msgspec.Struct, frozen=True):
    """The used fields of a pub ack."""

    seq: int = 0
    error: dict[str, Any] | None = None


_PUB_ACK = JsonDecoder(PubAck)
_DEFINITION, _PAGE = JsonDecoder(Definition), JsonDecoder(ListPage)
_LOOKUP = JsonDecoder(Lookup)
_VERSIONS, _DELETION = JsonDecoder(Versions), JsonDecoder(SchemaDeletion)


class SchemaCopies(Protocol):
    """Copies registered schemas to where programs find them without a server."""

    def put(self, account: str, schema: Schema, done: Callable[[], None]) -> None:
        """Copy a version; call `done` once it is there. It may be there already."""


class SchemaApi:
    """Serves the requests of one account.

    Args:
        export: gets all versions from the node that leads the bucket's stream.
    """

    def __init__(self, engine: Engine, export: SchemaCopies | None = None) -> None:
        self._engine, self._export = engine, export
        self._bus, self._clock, self._io = engine.bus, engine.clock, engine.io.lane(background=True)
        self._state = RegisteredSchemas(engine.log.warn)
        self._uid = ""
        self._applied = 0
        """Number of messages in the state."""
        self._exporting: dict[int, asyncio.Event] = {}
        """Versions by id that are being exported."""
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._handlers: dict[str, Callable[[Stream | None, str, bytes], Awaitable[dict[str, Any]]]] = {
            "ADD": self._add,
            "CHECK": self._check,
            "LIST": self._list,
            "GET": self._get,
            "DIFF": self._diff,
            "DELETE": self._delete,
        }

    def look(self) -> None:
        """Export what others have written to the bucket, and what was registered before this node led it."""
        stream = self._found()
        if stream is None or not stream.leading:
            return
        if not self._turn.locked() and (stream.uid, stream.store.last_seq) != (self._uid, self._state.last_seq):
            self._clock.spawn(self._catch_up(stream))

    async def _catch_up(self, stream: Stream) -> None:
        async with self._turn:
            await self._read(stream)

    # ------------------------------------------------------------------ taking requests
    def asked(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        """Serve a request; its subject begins with `PREFIX`."""
        if not reply:
            return
        verb, _, name = subject.decode("utf-8", "replace").removeprefix(PREFIX).partition(".")
        kind = verb.lower() if verb in self._handlers else "request"
        stream, assignment = self._found(), self._engine.node.find(self._engine.account, STREAM)
        if stream is None or not stream.leading:
            if not self._engine.node.meta.leading:
                return
            if assignment is not None:
                if not self._engine.node.stream_leader(assignment.uid):
                    error = api_error(20005, err="the bucket has no leader now; try again")
                    self._answer(reply, kind, {"error": error.as_dict()})
                return
        if self._waiting >= MAX_WAITING:
            error = api_error(20005, err=f"{MAX_WAITING} requests wait already; try again later")
            self._answer(reply, kind, {"error": error.as_dict()})
            return
        self._clock.spawn(self._serve(verb, name, reply, header, body, kind))

    def _found(self) -> Stream | None:
        return self._engine.streams.get(STREAM)

    async def _serve(self, verb: str, name: str, reply: bytes, header: bytes, body: bytes, kind: str) -> None:
        self._waiting += 1
        try:
            async with self._turn:
                fields = await self._fields(verb, name, reply, header, body)
        except ApiError as error:
            fields = {"error": error.as_dict()}
        except BadSchema as error:
            fields = {"error": api_error(20002, err=error).as_dict()}
        except CallUnanswered as error:
            fields = {"error": api_error(20005, err=error).as_dict()}
        except Exception as error:
            self._answer(reply, kind, {"error": ApiError(500, 0, for_clients(error)).as_dict()})
            raise  # it is logged
        finally:
            self._waiting -= 1
        if fields is not None:
            self._answer(reply, kind, fields)

    async def _fields(self, verb: str, name: str, reply: bytes, header: bytes, body: bytes) -> dict[str, Any] | None:
        """Return the answer; None if another node gives it."""
        handler = self._handlers.get(verb)
        if handler is None:
            raise ApiError(404, 0, f"unknown request; {PREFIX} has {', '.join(self._handlers)}")
        if len(body) > schema_api.MAX_BODY:
            raise api_error(20002, err=f"the request is larger than {schema_api.MAX_BODY} bytes")
        stream = self._found()
        if stream is None and verb == "ADD" and not _decoded(body, _DEFINITION).dry_run:
            check_name(name)
            if header == _AGAIN:
                raise api_error(20005, err="the bucket of schemas was removed again")
            await self._create()
            self._bus.send(Single(f"{PREFIX}ADD.{name}".encode(), reply, _AGAIN, body))
            return None
        if stream is not None:
            await self._read(stream)
        else:
            self._state.clear()
        return await handler(stream, name, body)

    def _answer(self, reply: bytes, kind: str, fields: dict[str, Any]) -> None:
        self._bus.send(
            Single(reply, payload=dumps({"type": f"{schema_api.TYPE_PREFIX}schema_{kind}_response", **fields}))
        )

    # ------------------------------------------------------------------ the bucket
    async def _create(self) -> None:
        """Create the bucket. Raise ApiError."""
        replicas = REPLICAS if len(self._engine.node.others()) + 1 >= REPLICAS else 1
        config = dumps(stream_config(replicas))
        answer = msgspec.json.decode(await self._ask(f"$JS.API.STREAM.CREATE.{STREAM}", config))
        if (error := answer.get("error")) is not None and error.get("err_code") != 10058:
            raise api_error(20005, err=f"the bucket cannot be created: {error.get('description')}")

    async def _read(self, stream: Stream) -> None:
        """Apply what the bucket has beyond the state. Read all of it if messages were removed, too."""
        if stream.uid != self._uid:
            self._forget(stream.uid)
        await self._read_on(stream)
        if self._applied != stream.store.msgs:
            self._forget(stream.uid)
            await self._read_on(stream)

    def _forget(self, uid: str) -> None:
        self._state.clear()
        self._uid, self._applied = uid, 0

    async def _read_on(self, stream: Stream) -> None:
        state, through = self._state, stream.store.last_seq
        while state.last_seq < through:
            records = await stream.reader.fetch_run(state.last_seq + 1, READ_MSGS, READ_BYTES)
            for record in records:
                schema = state.apply(record.seq, record.subject, record.header, record.data)
                if schema is not None and self._export is not None:
                    self._export.put(self._engine.account, schema, self._exported(schema))
            self._applied += len(records)
            if not records:
                state.last_seq = through  # its last messages were removed

    def _exported(self, schema: Schema) -> Callable[[], None]:
        """Return what is called once a version is exported."""
        self._exporting[schema.id] = waiting = asyncio.Event()

        def done() -> None:
            waiting.set()
            if self._exporting.get(schema.id) is waiting:
                del self._exporting[schema.id]

        return done

    async def _wait_for_export(self, schema: Schema) -> None:
        waiting = self._exporting.get(schema.id)
        if waiting is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(waiting.wait(), EXPORT_WAIT_S)

    async def _ask(self, subject: str, body: bytes, header: bytes = b"") -> bytes:
        return await ask(self._bus, self._clock, subject.encode(), body, header)

    async def _write(self, stream: Stream, name: str, document: bytes, lines: list[tuple[bytes, bytes]]) -> int:
        """Write a message of the bucket if it is as it was read; return its sequence, 0 if the bucket has changed."""
        expected = b"%d" % stream.store.last_seq
        header = headers.build([*lines, (b"Nats-Expected-Last-Sequence", expected)])
        ack = _PUB_ACK.decode(await self._ask(f"{SUBJECTS}{name}", document, header))
        if ack.error is None:
            return ack.seq
        if ack.error.get("err_code") in _WRONG_LAST_SEQUENCE:
            return 0
        raise api_error(20005, err=f"the bucket takes nothing: {ack.error.get('description')}")

    # ------------------------------------------------------------------ requests
    async def _add(self, stream: Stream | None, name: str, body: bytes) -> dict[str, Any]:
        asked = _decoded(body, _DEFINITION)
        if asked.dry_run or stream is None:
            return await self._check(stream, name, body)
        for _ in range(ATTEMPTS):
            found = registration.existing(self._state, name, asked)
            if found is not None:
                return {**_shown(found), "created_version": False}
            ready = await self._prepared(name, asked)
            if ready.conflicts:
                shown = [_conflict(each) for each in ready.conflicts]
                error = api_error(20003, err=ready.conflicts[0])
                return {"error": error.as_dict(), "conflicts": shown}
            number = self._state.id_for(ready.schema, stream.store.last_seq)
            document = registration.numbered(ready.schema, number, self._state)
            if self._state.last_seq == stream.store.last_seq and await self._write(stream, name, document, []):
                await self._read(stream)
                registered = self._state.find(name, ready.schema.version)
                if registered is not None:
                    await self._wait_for_export(registered)
                    return {**_shown(registered), "created_version": True}
            await self._read(stream)
        raise api_error(20005, err=f"the bucket changed {ATTEMPTS} times meanwhile; try again")

    async def _prepared(self, name: str, asked: Definition) -> registration.PreparedVersion:
        schema = registration.candidate(self._state, name, asked, self._clock.now())
        versions = self._state.versions(name)
        return await in_thread(self._io, lambda: registration.prepare(schema, versions))

    async def _check(self, stream: Stream | None, name: str, body: bytes) -> dict[str, Any]:
        asked = _decoded(body, _DEFINITION)
        check_name(name)
        found = registration.existing(self._state, name, asked)
        if found is not None:
            return {**_shown(found), "compatible": True, "exists": True, "conflicts": []}
        ready = await self._prepared(name, asked)
        conflicts = [_conflict(each) for each in ready.conflicts]
        return {**_shown(ready.schema), "compatible": not conflicts, "exists": False, "conflicts": conflicts}

    async def _list(self, stream: Stream | None, name: str, body: bytes) -> dict[str, Any]:
        offset = max(0, _decoded(body, _PAGE).offset)
        names = self._state.names()
        shown = []
        for each in names[offset : offset + schema_api.LIST_LIMIT]:
            versions = self._state.versions(each)
            shown.append({**_shown(versions[-1]), "versions": [schema.version for schema in versions]})
        page = {"total": len(names), "offset": offset, "limit": schema_api.LIST_LIMIT}
        return page | {"revision": self._state.revision, "schemas": shown}

    async def _get(self, stream: Stream | None, name: str, body: bytes) -> dict[str, Any]:
        found = self._named(name)
        if _decoded(body, _LOOKUP).check:
            await in_thread(self._io, lambda: codec_of(found))
        latest = self._state.find(found.name)
        return {**_shown(found), "text": found.text, "latest": latest is found}

    def _named(self, text: str) -> Schema:
        """Return the schema `<name>`, `<name>@3` or `<name>.3`. Raise ApiError 20001."""
        asked = parse_reference(text)
        found = self._state.find(asked.name, asked.version)
        if found is None and asked.version is None:
            name, _, last = text.rpartition(".")
            if name and last.isascii() and last.isdecimal() and len(last) < 4:
                found = self._state.find(name, int(last))
        if found is None:
            raise api_error(20001, reference=asked)
        return found

    async def _diff(self, stream: Stream | None, name: str, body: bytes) -> dict[str, Any]:
        asked = _decoded(body, _VERSIONS)
        new = self._version(name, asked.new)
        before = [each.version for each in self._state.versions(name) if each.version < new.version]
        if not asked.old and not before:
            raise api_error(20001, reference=f"a version before {new.reference}")
        old = self._version(name, asked.old or before[-1])

        def compare() -> tuple[list[Difference], list[Difference]]:
            return differences(old, new), differences(new, old)

        backward, forward = await in_thread(self._io, compare)
        return {
            "old": _shown(old),
            "new": _shown(new),
            "backward": [_difference(each) for each in backward],
            "forward": [_difference(each) for each in forward],
        }

    def _version(self, name: str, version: int) -> Schema:
        found = self._state.find(name, version or None)
        if found is None:
            raise api_error(20001, reference=f"{name}@{version or 'latest'}")
        return found

    async def _delete(self, stream: Stream | None, name: str, body: bytes) -> dict[str, Any]:
        asked = _decoded(body, _DELETION)
        for _ in range(ATTEMPTS):
            if stream is None or self._state.find(name) is None:
                raise api_error(20001, reference=name)
            if not asked.force and (users := self._users(name)):
                raise api_error(20004, err=f"{', '.join(users)}: {SCHEMA_KEY} names {name}; see force")
            if await self._write(stream, name, b"", [(b"KV-Operation", b"DEL")]):
                await self._read(stream)
                return {"success": True}
            await self._read(stream)
        raise api_error(20005, err=f"the bucket changed {ATTEMPTS} times meanwhile; try again")

    def _users(self, name: str) -> Sequence[str]:
        """Return the streams that name a schema."""
        node, found = self._engine.node, []
        for assignment in node.assignments(self._engine.account):
            text = node.config_of(assignment).metadata.get(SCHEMA_KEY, "")
            try:
                references = naming.parse(text).references() if text else ()
            except BadSchema:
                continue
            if any(each.name == name for each in references):
                found.append(assignment.name)
        return found


def _decoded(body: bytes, decoder: JsonDecoder[T]) -> T:
    """Return the body of a request, an empty one as `{}`. Raise ApiError 10025."""
    try:
        return decoder.decode(body.strip() or b"{}")
    except DECODE_ERRORS as error:
        raise api_error(10025, err=error) from None


def _shown(schema: Schema) -> dict[str, Any]:
    """Return the fields of a version in answers."""
    shown: dict[str, Any] = {"name": schema.name, "version": schema.version, "format": schema.format}
    shown |= {"compatibility": schema.compatibility, "id": schema.id}
    if schema.message:
        shown["message"] = schema.message
    return shown | {"created": format_time(schema.created_ns)}


def _difference(difference: Difference) -> dict[str, Any]:
    shown = {"field": difference.field, "rule": difference.rule, "text": difference.text}
    return shown | {"compatible": difference.is_compatible}


def _conflict(conflict: Incompatibility) -> dict[str, Any]:
    return {"version": conflict.version, "mode": conflict.mode, **_difference(conflict.difference)}
