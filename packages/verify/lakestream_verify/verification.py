"""Verification of a stream of a running server, by the node that leads it.

Belongs here: asking every replica (running.py) for its findings and digests as of one entry, comparing them, and the
answer to the client. The files of all replicas are collected at the same moment. If one of them has a checkpoint or a
sealed segment beyond the last entry of another, that is repeated, as neither could be recovered as of the same entry.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.meta.node import MetaNode
from lakestream.meta.replica import Replica
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream_verify.audit_trail import AuditTrail as AuditTrail  # found here by the server
from lakestream_verify.digests import RANGE, Comparison, RangeDigest, RowDigest, differing
from lakestream_verify.log.findings import Finding, FindingKind
from lakestream_verify.running import (
    BUSY,
    CLOSE,
    MAX_FINDINGS,
    OPEN,
    POLL,
    REFILL,
    ROWS,
    RUN,
    Close,
    Poll,
    Polled,
    Refill,
    VerifyCall,
    VerifyOpened,
    VerifyRun,
)

if TYPE_CHECKING:
    from lakestream.server.verification import VerifyApi

CALL_NS = 10_000_000_000
"""Longest wait for an answer of a node (10 s)."""
ROWS_NS = 60_000_000_000
"""Longest wait for the digests of the messages in one range (60 s)."""
POLL_NS = 100_000_000
"""Interval of asking the nodes for what they have found (0.1 s)."""
COLLECT_TRIES = 10
COLLECT_AGAIN_NS = 200_000_000
PROGRESS_NS = 1_000_000_000
"""Interval of messages about the progress (1 s)."""
MOST_ASKED = 64
"""Maximum number of requests under way that a node answers; further ones fail (503)."""
MAX_RANGES = 20
"""Maximum number of ranges that differ and are compared message by message; the others are findings as a whole."""


class VerifyOptions(msgspec.Struct, frozen=True):
    """The body of a request. `progress`: send a message each second; `lake`: compare with the lake; `rows`: name each
    message that differs; `repair`: refill a replica that differs from the others."""

    progress: bool = False
    lake: bool = True
    rows: bool = False
    repair: bool = False


_OPTIONS = msgspec.json.Decoder(VerifyOptions)


def begin(api: VerifyApi, name: str, reply: bytes, body: bytes) -> None:
    """Begin the verification that a client requests, if this node leads the stream. Raise ApiError."""
    node, verifier = api.engine.node, api.verifier
    stream = node.asked_here(api.engine.account, name)
    if stream is None:
        return
    try:
        options = _OPTIONS.decode(body or b"{}")
    except DECODE_ERRORS as error:
        raise ApiError(400, 10025, str(error)) from None
    asked, uid = verifier.asked, stream.uid
    replica = node.replicas.by_uid.get(uid)
    if replica is None or stream.closed:
        raise api_error(10059)
    if not verifier.most:
        raise ApiError(503, 0, "this server verifies nothing on request (max_verifications: 0)")
    if uid in asked:
        raise ApiError(503, 0, f"stream {name} is being verified already; try again later")
    if len(asked) >= MOST_ASKED:
        raise ApiError(503, 0, f"{MOST_ASKED} streams are being verified already; try again later")

    def done(outcome: dict[str, Any] | ApiError) -> None:
        asked.pop(uid, None)
        fields = {"error": outcome.as_dict()} if isinstance(outcome, ApiError) else {"done": True, **outcome}
        api.answer(name, reply, fields)

    def tell() -> None:
        """Tell the client how far it is; end a verification that nobody waits for any more."""
        if asked.get(uid) is not verification:
            return
        if not api.answer(name, reply, {"nodes": verification.progress()}):
            verification.cancel()
            return
        api.engine.clock.call_later(PROGRESS_NS, tell)

    verification = asked[uid] = Verification(node, replica, options, done)
    if options.progress:
        api.engine.clock.call_later(PROGRESS_NS, tell)
    verification.begin()


class _Side:
    """One replica."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.opened = VerifyOpened()
        self.wrong = self.uncompared = ""
        self.done = False
        self.bytes = 0
        self.findings: list[Finding] = []
        self.more = 0
        self.ranges: dict[int, RangeDigest] = {}
        self.count = 0
        self.state: dict[str, str] = {}


class Verification:
    """One verification. `done` is called once, with the fields of the answer, or with an error."""

    def __init__(
        self,
        node: MetaNode,
        replica: Replica,
        options: VerifyOptions,
        done: Callable[[dict[str, Any] | ApiError], None],
    ) -> None:
        self._node, self._replica, self._options, self._done = node, replica, options, done
        self._clock, self._calls = node.shared.clock, node.peers
        self._run = ""
        self._sides: dict[str, _Side] = {}
        self._exact = True
        self._through: dict[str, int] = {}
        self._repairs: list[dict[str, str]] = []
        self._findings: list[Finding] = []
        self._cancelled = self._ended = False
        self._directory = ""

    def begin(self) -> None:
        """Ask all members for their files."""
        self._open(COLLECT_TRIES)

    def cancel(self) -> None:
        """End it soon."""
        self._cancelled = True

    def progress(self) -> dict[str, Any]:
        """Return the bytes of logs that every node has verified, and those it has."""
        sides = self._sides.values()
        return {side.node: {"bytes": side.bytes, "total": side.opened.bytes} for side in sides if not side.wrong}

    # ------------------------------------------------------------------ the files of all replicas
    def _each(self, method: str, bodies: Mapping[str, Any], then: Callable[[dict[str, bytes | str]], None]) -> None:
        """Call a method of several nodes; call `then` with their answers, or the errors as texts."""
        waiting, answers = set(bodies), dict[str, bytes | str]()

        def answered(node: str, body: bytes | None, why: str) -> None:
            answers[node] = body if body is not None else why
            waiting.discard(node)
            if not waiting:
                finish()

        def finish() -> None:
            try:
                then(answers)
            except Exception as error:  # of another release, or a bug: the stream can be verified again
                self._node.shared.log.exception(f"stream {self._replica.name}: verification failed", error)
                self._fail(ApiError(500, 0, "verification failed; the log of the server says why"))

        for node, body in bodies.items():
            wait = ROWS_NS if method in (ROWS, CLOSE) else CALL_NS
            self._calls.call(node, method, msgspec.msgpack.encode(body), partial(answered, node), wait)
        if not bodies:
            finish()

    def _fail(self, error: ApiError) -> None:
        if not self._ended:
            self._end(error)

    def _end(self, outcome: dict[str, Any] | ApiError) -> None:
        self._ended = True
        self._done(outcome)

    def _open(self, tries: int) -> None:
        replica = self._replica
        if replica.closed or not replica.leading or replica.stream is None:
            self._end(api_error(10059 if replica.closed else 10008))
            return
        self._run = secrets.token_hex(8)
        # Below the store directory it is the same on every node.
        self._directory = replica.stream.store.directory.replace(self._node.shared.stores.root, "jetstream", 1)
        self._sides = {name: _Side(name) for name in replica.membership.members}
        asked = VerifyCall(self._run, replica.uid)

        def opened(answers: dict[str, bytes | str]) -> None:
            for name, answer in answers.items():
                side = self._sides[name]
                side.opened = _OPENED.decode(answer) if isinstance(answer, bytes) else VerifyOpened(answer)
                side.wrong = side.opened.wrong
            self._opened(tries)

        self._each(OPEN, dict.fromkeys(self._sides, asked), opened)

    def _opened(self, tries: int) -> None:
        busy = [side.node for side in self._sides.values() if side.wrong == BUSY]
        if busy:
            what = f"{', '.join(busy)} verifies as many streams as max_verifications allows; try again later"
            self._close(lambda: self._end(ApiError(503, 0, what)))
            return
        mine = self._sides[self._node.me]
        if mine.wrong:
            self._close(lambda: self._end(ApiError(503, 0, f"the stream cannot be verified: {mine.wrong}")))
            return
        open_ = [side for side in self._sides.values() if not side.wrong]
        index, floor = min(side.opened.index for side in open_), max(side.opened.floor for side in open_)
        self._exact = floor <= index
        if not self._exact and tries:
            again = partial(self._open, tries - 1)
            self._close(lambda: (self._clock.call_later(COLLECT_AGAIN_NS, again), None)[1])
            return
        local = max(side.opened.local_floor for side in open_)
        bodies = {}
        for side in open_:
            through = self._through[side.node] = index if self._exact else side.opened.index
            lake = self._options.lake and side is mine
            bodies[side.node] = VerifyRun(self._run, through, local, lake, self._options.rows)
        self._each(RUN, bodies, self._begun)

    def _begun(self, answers: dict[str, bytes | str]) -> None:
        for name, answer in answers.items():
            if answer != b"+":
                self._sides[name].wrong = answer if isinstance(answer, str) else "it did not begin"
        self._poll()

    def _poll(self) -> None:
        if self._cancelled:
            self._close(lambda: self._end(ApiError(503, 0, "nobody waits for the answer any more")))
            return
        waiting = [side for side in self._sides.values() if not side.wrong and not side.done]
        if not waiting:
            self._compare()
            return
        self._each(POLL, {side.node: Poll(self._run, side.count) for side in waiting}, self._polled)

    def _polled(self, answers: dict[str, bytes | str]) -> None:
        more = False
        for name, answer in answers.items():
            side = self._sides[name]
            polled = _POLLED.decode(answer) if isinstance(answer, bytes) else Polled(answer)
            side.wrong, side.bytes, side.done = polled.wrong, polled.bytes, polled.done
            side.count += len(polled.ranges)
            side.ranges.update((each.number, each) for each in polled.ranges)
            more = more or bool(polled.ranges)
            if polled.done:
                side.findings, side.more = polled.findings, polled.more
                side.state, side.uncompared = polled.state, polled.uncompared
        self._clock.call_later(0 if more else POLL_NS, self._poll)

    # ------------------------------------------------------------------ comparison
    def _compare(self) -> None:
        mine = self._sides[self._node.me]
        if mine.wrong:
            error = api_error(10059) if self._replica.closed else ApiError(503, 0, f"verification failed: {mine.wrong}")
            self._close(lambda: self._end(error))
            return
        for side in self._sides.values():
            self._findings += side.findings
        compared = {side.node: side for side in self._sides.values() if not side.wrong and not side.uncompared}
        comparison = Comparison(
            dict.fromkeys(compared, self._directory),
            len(self._replica.membership.voters),
            self._exact,
            self._options.rows,
        )
        if len(compared) < 2:
            self._compared(comparison)
            return
        self._add(comparison.states({node: side.state for node, side in compared.items()}))
        numbers = differing({node: side.ranges for node, side in compared.items()})
        for number in numbers[MAX_RANGES:]:
            self._add(self._whole(comparison, list(compared), number))
        self._narrow(comparison, list(compared), numbers[:MAX_RANGES])

    def _narrow(self, comparison: Comparison, nodes: list[str], numbers: list[int]) -> None:
        """Compare one range after the other, message by message."""
        if not numbers or self._cancelled:
            self._compared(comparison)
            return

        def rows(answers: dict[str, bytes | str]) -> None:
            found: dict[str, dict[int, RowDigest]] = {}
            for node, answer in answers.items():
                if answer and isinstance(answer, bytes):
                    found[node] = {each.seq: each for each in _ROWS.decode(answer)}
            if len(found) == len(nodes):
                self._add(comparison.ranges(found))
            else:
                self._add(self._whole(comparison, nodes, numbers[0]))
            self._narrow(comparison, nodes, numbers[1:])

        self._each(ROWS, {node: VerifyCall(self._run, "", numbers[0]) for node in nodes}, rows)

    def _whole(self, comparison: Comparison, nodes: list[str], number: int) -> Iterator[Finding]:
        """Yield the findings about a range that is not compared message by message."""
        values = {node: self._sides[node].ranges.get(number) for node in nodes}
        return comparison.whole_range(number * RANGE + 1, (number + 1) * RANGE, values)

    def _add(self, findings: Iterable[Finding]) -> None:
        name, account = self._replica.name, self._replica.account
        for each in findings:
            if len(self._findings) < MAX_FINDINGS:
                self._findings.append(msgspec.structs.replace(each, stream=name, account=account))

    # ------------------------------------------------------------------ repair and answer
    def _compared(self, comparison: Comparison) -> None:
        odd = list(comparison.odd)
        if self._options.repair and (odd or comparison.unclear):
            self._refill(comparison, odd)
        else:
            self._finish()

    def _refill(self, comparison: Comparison, odd: list[str]) -> None:
        """Let the one replica that differs be filled again from the others, if those are a majority without damage."""
        # What the lake has was staged by any of them: it says nothing of the replica that is compared with it.
        others = (FindingKind.REPLICA, FindingKind.STAGED, FindingKind.TABLE)
        damaged = {each.node for each in self._findings if not each.harmless and each.kind not in others}
        voters = self._replica.membership.voters
        fit = (side.node for side in self._sides.values() if not side.wrong and not side.uncompared)
        agreeing = [node for node in fit if node in voters and node not in odd and node not in damaged]
        why = ""
        if comparison.unclear or len(odd) != 1:
            why = "several replicas differ, or no majority agrees: nothing is done; compare them with a backup"
        elif 2 * len(agreeing) <= len(voters):
            why = "the replicas that agree are not a majority without damage: nothing is done"
        if why:
            self._repairs.append({"node": ", ".join(odd), "refused": why})
            self._finish()
            return
        (node,) = odd
        what = next(each.what for each in self._findings if each.kind is FindingKind.REPLICA and each.node == node)
        refill = Refill(self._replica.uid, agreeing, what)
        if node == self._node.me:  # another node leads afterwards: the answer first
            self._repairs.append({"node": node, "done": "its files are set aside, and the others send everything"})
            self._finish(lambda: self._each(REFILL, {node: refill}, lambda answers: None))
            return

        def refilled(answers: dict[str, bytes | str]) -> None:
            answer = answers[node]
            refused = answer.decode() if isinstance(answer, bytes) else answer
            done = "its files are set aside, and the others send everything"
            self._repairs.append({"node": node, "refused": refused} if refused else {"node": node, "done": done})
            self._finish()

        self._each(REFILL, {node: refill}, refilled)

    def _finish(self, then: Callable[[], None] = lambda: None) -> None:
        sides = sorted(self._sides.values(), key=lambda side: side.node)
        uncompared = [side for side in sides if side.wrong or side.uncompared]
        fields = {
            "ok": all(each.harmless for each in self._findings),
            "complete": not uncompared,
            "index": min(self._through.values()),
            "exact": self._exact,
            "nodes": [
                {"node": side.node, "bytes": side.bytes, "error": side.wrong or side.uncompared} for side in sides
            ],
            "findings": [msgspec.to_builtins(each) for each in self._findings[:MAX_FINDINGS]],
            "more": sum(side.more for side in sides) + max(0, len(self._findings) - MAX_FINDINGS),
            "repairs": self._repairs,
        }

        def closed() -> None:
            self._end(fields)
            then()

        self._close(closed)

    def _close(self, then: Callable[[], None]) -> None:
        """End it on every node, with the findings about each of them by comparison."""
        bodies = {}
        for side in self._sides.values():
            if not side.opened.wrong:
                mine = [each for each in self._findings if each.kind is FindingKind.REPLICA and each.node == side.node]
                bodies[side.node] = Close(self._run, mine)
        self._each(CLOSE, bodies, lambda answers: then())


_OPENED = msgspec.msgpack.Decoder(VerifyOpened)
_POLLED = msgspec.msgpack.Decoder(Polled)
_ROWS = msgspec.msgpack.Decoder(list[RowDigest])
