"""Requests between nodes, each with one response.

Belongs here: `Calls` (raft/group/ports.py) over one channel of `Transport`: numbering, timeouts, and the failure of
requests to a node that is lost. Methods are registered by their servers.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec

from lakestream.logging import Logger
from lakestream.ports import Clock, Timer
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.raft.group.ports import Channel, Method, Transport

MAX_WAITING = 65_536
"""Calls of this node that wait for a response; further ones fail at once."""

Done = Callable[[bytes | None, str], None]
Handler = Callable[[str, bytes], None]


class _Ask(msgspec.Struct, array_like=True, tag="q", gc=False):
    """A request; `number` 0: no response expected."""

    number: int
    method: str
    body: bytes


class _Answered(msgspec.Struct, array_like=True, tag="a", gc=False):
    number: int
    body: bytes


class _Failed(msgspec.Struct, array_like=True, tag="f", gc=False):
    number: int
    why: str


class _Waiting(msgspec.Struct, eq=False, gc=False):
    node: str
    done: Done
    timer: Timer


class PeerCalls:
    """`Calls` over the connections of this node.

    Args:
        peers: the other nodes.
        clock: the event loop's turn and timers.
        log: for failures of methods; their caller gets an error too.
    """

    def __init__(self, peers: Transport, clock: Clock, log: Logger) -> None:
        self._peers = peers
        self._clock = clock
        self._log = log
        self.before: Callable[[str], None] = lambda node: None
        """Called with a node's name before anything is sent to it, to send what must precede it (routing announces new
        inboxes, and forwards what clients published before)."""
        self.behind: Callable[[str, bytes, Handler], None] = lambda node, payload, handler: handler(node, payload)
        """Called with what comes from a node: it is handled behind all that came before (routing learns of new inboxes
        over several turns)."""
        self._methods: dict[str, Method] = {}
        self._waiting: dict[int, _Waiting] = {}
        # Random first number: a response to a call from before a restart must not match a new call.
        self._number = secrets.randbits(48)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoder = msgspec.msgpack.Decoder(_Ask | _Answered | _Failed)
        peers.receive(Channel.CALL, lambda node, payload: self.behind(node, payload, self._received))
        peers.watch(self._changed)

    # ------------------------------------------------------------------ Calls
    def serve(self, method: str, handler: Method) -> None:
        self._methods[method] = handler

    def call(self, node: str, method: str, body: bytes, done: Done, timeout_ns: int) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._clock.call_soon(lambda: done(None, f"more than {MAX_WAITING} calls wait for their answers"))
            return
        self._number = number = self._number + 1
        timer = self._clock.call_later(timeout_ns, lambda: self._fail(number, f"{node} did not answer in time"))
        self._waiting[number] = _Waiting(node, done, timer)
        if node == self._peers.me:
            self._clock.call_soon(lambda: self._run(node, number, method, body))
        elif not self._peers.alive(node) or not self._send(node, _Ask(number, method, body)):
            # Calls to a silent node fail at once; those in progress failed when it fell silent (`_changed`).
            self._clock.call_soon(lambda: self._fail(number, f"{node} is not connected, or silent"))

    def tell(self, node: str, method: str, body: bytes) -> bool:
        if node == self._peers.me:
            self._clock.call_soon(lambda: self._run(node, 0, method, body))
            return True
        return self._send(node, _Ask(0, method, body))

    @property
    def waiting(self) -> int:
        """Return the number of calls without a response."""
        return len(self._waiting)

    # ------------------------------------------------------------------ in
    def _received(self, node: str, payload: bytes) -> None:
        try:
            record = self._decoder.decode(payload)
        except DECODE_ERRORS as error:
            self._log.exception(f"a call of {node} that cannot be read", error)
            return
        match record:
            case _Ask():
                self._run(node, record.number, record.method, record.body)
            case _Answered():
                self._finish(node, record.number, record.body, "")
            case _Failed():
                self._finish(node, record.number, None, record.why)

    def _run(self, node: str, number: int, method: str, body: bytes) -> None:
        """Serve one request. Invariant: at most one answer leaves for it."""
        open_ = True

        def answer(result: bytes) -> None:
            nonlocal open_
            if open_:
                open_ = False
                self._answer(node, number, _Answered(number, result))

        handler = self._methods.get(method)
        if handler is None:
            self._answer(node, number, _Failed(number, f"{self._peers.me} does not serve {method!r}"))
            return
        try:
            handler(node, body, answer)
        except Exception as error:
            self._log.exception(f"call {method!r} of {node} failed", error)
            if open_:
                open_ = False
                self._answer(node, number, _Failed(number, f"{type(error).__name__}: {error}"))

    def _answer(self, node: str, number: int, record: _Answered | _Failed) -> None:
        if not number:
            return
        if node == self._peers.me:
            body, why = (record.body, "") if isinstance(record, _Answered) else (None, record.why)
            self._clock.call_soon(lambda: self._finish(node, number, body, why))
            return
        # If the response cannot be sent, the call fails by its timeout or with the connection.
        self._send(node, record)

    # ------------------------------------------------------------------ out
    def _send(self, node: str, record: _Ask | _Answered | _Failed) -> bool:
        self.before(node)
        return self._peers.send(node, Channel.CALL, self._encode(record))

    def _finish(self, node: str, number: int, body: bytes | None, why: str) -> None:
        waiting = self._waiting.get(number)
        if waiting is None or waiting.node != node:
            return  # too late, or from another node
        del self._waiting[number]
        waiting.timer.cancel()
        waiting.done(body, why)

    def _fail(self, number: int, why: str) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.timer.cancel()
            waiting.done(None, why)

    def _changed(self, node: str, up: bool) -> None:
        """Fail the calls to a node that is lost at once."""
        if up:
            return
        for number in [number for number, waiting in self._waiting.items() if waiting.node == node]:
            self._fail(number, f"{node} is gone")
