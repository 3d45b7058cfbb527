"""Filling a new stream with the entries of an archive.

Belongs here: creating, filling and showing that stream, in a cluster of any size. The node that received the backup
calls other nodes:

    begin    meta leader: check, place, assign the stream to be restored by the calling node
    put      stream leader: log the entry; a node that does not lead says so, and the next one is called
    finish   meta leader: mark the stream as restored. Every node shows it from then on

Until then no node shows, lists or serves the stream. If the restoring node fails or restarts, the stream is removed: no
stream is ever partly restored.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from lakestream.account.engine import Engine
from lakestream.log.format.frame import Kind
from lakestream.meta.assignments import AbandonStream, RestoredStream
from lakestream.meta.node import CALL_TIMEOUT_NS, CallFailed, decode_failure, encode_failure
from lakestream.meta.ports import of_account
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.decoding import PackDecoder
from lakestream.stream.assembly import Stream
from lakestream.stream.awaiting import pause, told
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import Restored, encode

ASSIGN, PUT, SHOW = "restore.assign", "restore.put", "restore.show"
"""The calls: to the meta leader (ASSIGN), and to the stream's leader."""
LEADER_WAIT_NS = 10_000_000_000
"""Longest wait of a restore for a leader of its stream (10 s)."""
LEADER_LOOK_NS = 20_000_000


class AssignAsked(msgspec.Struct, frozen=True):
    """The body of `ASSIGN`: the stream's configuration as JSON, and the node that restores it."""

    uid: str
    config: bytes
    node: str


_ASSIGN_ASKED = PackDecoder(AssignAsked)


class RestorePart(msgspec.Struct, frozen=True):
    """An entry for the stream's log. `count`: number of messages in it."""

    kind: int
    body: bytes
    count: int = 0


class PutAsked(msgspec.Struct, frozen=True):
    """The body of `PUT`."""

    uid: str
    part: RestorePart


_PUT_ASKED = PackDecoder(PutAsked)


class RestoreAnswer(msgspec.Struct, frozen=True):
    """The answer to `PUT` and `SHOW`. `elsewhere`: the node does not lead the stream and has done nothing."""

    elsewhere: bool = False
    failed: CallFailed | None = None
    shown: bytes = b""


_ANSWER = PackDecoder(RestoreAnswer)


class RestoreTargets:
    """Serves the calls of nodes that restore streams, this one included.

    Args:
        assign: proposes the assignment of a stream that a node restores, on the meta leader; calls `done` with the
            error, if any.
        show: returns StreamInfo of a stream that this node leads.
    """

    def __init__(
        self,
        engine: Engine,
        assign: Callable[[AssignAsked, Callable[[ApiError | None], None]], None],
        show: Callable[[Stream], dict[str, Any]],
    ) -> None:
        self.engine, self.node = engine, engine.node
        self._assign, self._show = assign, show
        for method, handler in ((ASSIGN, self._assign_asked), (PUT, self._put_asked), (SHOW, self._show_asked)):
            engine.node.peers.serve(of_account(method, engine.account), handler)

    # ------------------------------------------------------------------ calls of the node that restores
    def _assign_asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        def done(error: ApiError | None) -> None:
            answer(encode_failure(error))

        try:
            self._assign(_ASSIGN_ASKED.decode(body), done)
        except ApiError as error:
            done(error)

    def _leading(self, uid: str) -> Stream | None:
        replica = self.node.replicas.by_uid.get(uid)
        stream = replica.stream if replica is not None else None
        return stream if stream is not None and stream.leading and stream.applier.created else None

    def _put_asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        asked = _PUT_ASKED.decode(body)
        stream = self._leading(asked.uid)
        if stream is None:
            answer(msgspec.msgpack.encode(RestoreAnswer(elsewhere=True)))
            return

        def done(error: ApiError | None) -> None:
            answer(msgspec.msgpack.encode(RestoreAnswer(failed=CallFailed.of(error))))

        stream.pipeline.propose_foreign(Kind(asked.part.kind), asked.part.body, asked.part.count, done)

    def _show_asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        stream = self._leading(body.decode())
        if stream is None or not stream.pipeline.serving:
            answer(msgspec.msgpack.encode(RestoreAnswer(elsewhere=True)))
        else:
            answer(msgspec.msgpack.encode(RestoreAnswer(shown=dumps(self._show(stream)))))


class RestoreTarget:
    """A stream that this node restores. Every method may raise ApiError."""

    def __init__(self, restores: RestoreTargets, config: StreamConfig) -> None:
        self._restores, self._config = restores, config
        self._engine, self._node = restores.engine, restores.node
        self._uid = secrets.token_hex(8)
        self._leader = ""

    async def begin(self) -> None:
        """Create the stream; it is not shown yet."""
        leader = self._node.meta_leader()
        if not leader:
            raise api_error(10008)
        self._node.restoring.add(self._uid)
        asked = AssignAsked(self._uid, msgspec.json.encode(self._config), self._node.me)
        try:
            error = decode_failure(await self._call(leader, ASSIGN, msgspec.msgpack.encode(asked)))
            if error is not None:
                raise error
        except BaseException:
            self._node.restoring.discard(self._uid)  # if the stream was assigned all the same, it is abandoned
            raise

    async def put(self, part: RestorePart) -> None:
        """Log the next entry; return once it is committed and applied."""
        await self._ask_leader(PUT, msgspec.msgpack.encode(PutAsked(self._uid, part)))

    async def finish(self) -> dict[str, Any]:
        """Mark the stream as restored; return its StreamInfo."""
        await self.put(RestorePart(Kind.OPERATION, encode(Restored())))
        error = await told(functools.partial(self._node.propose, RestoredStream(self._uid)))
        if error is not None:
            raise error
        self._node.restoring.discard(self._uid)
        shown: dict[str, Any] = msgspec.json.decode((await self._ask_leader(SHOW, self._uid.encode())).shown)
        return shown

    async def abandon(self) -> None:
        """Remove the partly restored stream. One already marked as restored stays, even if that answer was lost."""
        self._node.restoring.discard(self._uid)
        await told(functools.partial(self._node.propose, AbandonStream(self._uid)))

    async def _call(self, node: str, method: str, body: bytes) -> bytes | None:
        def ask(done: Callable[[bytes | None], None]) -> None:
            self._node.peers.call(
                node, of_account(method, self._engine.account), body, lambda got, why: done(got), CALL_TIMEOUT_NS
            )

        return await told(ask)

    async def _ask_leader(self, method: str, body: bytes) -> RestoreAnswer:
        """Call the stream's leader. Raise ApiError; 10008 also when the outcome is unknown."""
        clock, node = self._engine.clock, self._node
        until = clock.steady() + LEADER_WAIT_NS
        while clock.steady() < until:
            assignment = node.meta.state.by_uid.get(self._uid)
            peers = assignment.peers if assignment is not None else ()
            for peer in sorted(peers, key=lambda name: name != self._leader):
                if not node.peers.alive(peer):
                    continue
                got = await self._call(peer, method, body)
                if got is None:
                    raise api_error(10008)
                answer = _ANSWER.decode(got)
                if answer.failed is not None:
                    raise answer.failed.error()
                if not answer.elsewhere:
                    self._leader = peer
                    return answer
            await pause(clock, LEADER_LOOK_NS)
        raise api_error(10008)
