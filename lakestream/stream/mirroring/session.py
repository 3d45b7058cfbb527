"""Reading another stream in order, as mirrors and sources do.

Belongs here: one session with an origin, wherever that is: its consumer is asked for through the API, by whatever
prefix leads there, and messages come to a subject of our own (docs/internals/streams.md#mirrors-and-sources). The
session keeps them in order, answers flow control once they are safe, notices silence and gaps, and begins again. What
becomes of a message is its `Taker`'s.
"""

from __future__ import annotations

import functools
import logging
import random
import secrets
import string
from collections import deque
from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

import msgspec

from lakestream.ports import Bus, ClientInfo, Clock, Delivery, Subscribed, Timer
from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.domain_subjects import LINK_QUEUE
from lakestream.stream.core.proposer import NOT_NOW
from lakestream.stream.mirroring.origin import Origin, Start
from lakestream.stream.mirroring.runs import Run, run_of

FIRST_NS = 100_000_000
"""A session begins this long (100 ms) after it was asked for, and up to as much again, so that many do not at once."""
ANSWER_NS = 5_000_000_000
"""How long to wait for the answer to a request for a consumer (5 s)."""
SILENCE_NS = 3_500_000_000
"""Heartbeats come every second; an origin that says nothing for so long (3.5 s) is asked anew."""
LOOK_NS = 500_000_000
"""How often to look whether it is silent (0.5 s)."""
SHORTEST_PAUSE_NS, LONGEST_PAUSE_NS = 500_000_000, 120_000_000_000
"""Pause after an attempt that failed: 0.5 s at first, twice as long each time, at most 2 min."""
MAX_WAITING = 100_000
"""Messages that may wait, for the answer that says where they begin or until they can be taken; with more the attempt
is given up."""
RETRY_NS = 5_000_000
"""How soon a message is offered again that could not be taken for a moment (5 ms)."""
MOST_STALLED = 3
"""So many heartbeats one after the other that say that the origin waits for flow control, while everything it asked was
answered: its answers do not arrive."""
LAST_SEQ, LAST_TIME_NS = 1 << 62, 1 << 63
"""No sequence and no time of a message is so high; who says so is no origin."""
PATIENCE = 400
"""Offers of one message before it is left to the next attempt (2 s)."""
REFUSED_PAUSE_NS = 2_000_000_000
"""Pause after a message that can not be stored (2 s): how long that lasts has nothing to do with the origin."""

ANOTHER_STREAM = 10225
"""The error of an origin whose identity is not the one that was told."""

LAST_CONSUMER, LAST_STREAM, STALLED = b"Nats-Last-Consumer", b"Nats-Last-Stream", b"Nats-Consumer-Stalled"
_LETTERS = string.digits + string.ascii_letters
_CONTROL, _ACK = b"NATS/1.0 ", b"$JS.ACK."
_logger = logging.getLogger(__name__)


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message of the origin: its sequence and time there, and how many come after it."""

    seq: int
    time_ns: int
    subject: bytes
    header: bytes
    payload: bytes
    pending: int


class Taker(Protocol):
    """What uses a session."""

    def start(self) -> Start:
        """Where the origin is to be read from."""

    def opened(self, before: int, identity: str, pending: int) -> bool:
        """The origin will send what it has after sequence `before`, so far `pending` messages; False: it is not the one
        that was meant, begin again."""

    def renewed(self) -> None:
        """The origin that was known is gone, another stream has its name."""

    def take(self, message: Received) -> ApiError | None:
        """Take a message, in order; or why not: it comes again later, soon when that is `NOT_NOW`."""

    def take_run(self, run: Run) -> int:
        """Take messages that came together; returns how many, from the first on. The others come again by `take`."""

    def when_safe(self, then: Callable[[], None]) -> None:
        """Call `then` once everything taken is committed; never, when that can not be said any more."""


_Seq = Annotated[int, msgspec.Meta(ge=0, lt=LAST_SEQ)]


class _Place(msgspec.Struct, frozen=True):
    consumer_seq: _Seq = 0
    stream_seq: _Seq = 0


class _Failure(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Config(msgspec.Struct, frozen=True):
    ack_policy: str = ""


class _Answer(msgspec.Struct, frozen=True):
    """What is read of the answer to CONSUMER.CREATE, or CONSUMER.RESET (which says where the consumer begins again)."""

    name: str = ""
    delivered: _Place = _Place()
    reset_seq: _Seq = 0
    num_pending: int = 0
    config: _Config = _Config()
    error: _Failure | None = None


_answer = msgspec.json.Decoder(_Answer)


class Session:
    """Reads one origin for as long as it runs. Everything is in the event loop. `name`: for whom."""

    def __init__(self, name: str, origin: Origin, bus: Bus, clock: Clock, taker: Taker) -> None:
        self._name = name
        self._origin, self._bus, self._clock, self._taker = origin, bus, clock, taker
        self.lag = 0
        """How many messages the origin has that did not come yet."""
        self.error: ApiError | None = None
        """Why there is no consumer; None while there is one, or before the first answer."""
        self._last_ns = 0
        """When the origin was last heard from."""
        self._running = self._open = False
        self._fails = 0
        self._subscribed: list[Subscribed] = []
        self._timer: Timer | None = None
        self._link: Subscribed | None = None
        """Tells when a remote server with the origin can be reached."""
        self._delivered = (0, 0)
        """(consumer sequence, stream sequence) of what came last."""
        self._came_some = False
        self._unsafe = False
        """Whether an answer waits for what came to be committed."""
        self._waiting: deque[tuple[bytes, bytes, bytes, bytes]] = deque()
        """What came and is not looked at yet, in order."""
        self._offers = 0
        """How often the first of them was offered."""
        self._stalled = 0
        """Heartbeats since the last message that say that the origin waits for us."""
        self._round = 0
        """Attempts so far: what was asked for in an earlier one is not answered any more."""

    def active_ns(self) -> int:
        """How long ago the origin was last heard from; -1: never."""
        return max(self._clock.steady() - self._last_ns, 0) if self._last_ns else -1

    # ------------------------------------------------------------------ life
    def begin(self) -> None:
        """Read, from soon on."""
        self._running = True
        if self._origin.link:
            self._link = self._bus.watch_interest(self._origin.link, LINK_QUEUE, self._reachable)
        self._wait(FIRST_NS + random.randrange(FIRST_NS), self._attempt)

    def end(self, remove: bool = False) -> None:
        """Read no more. `remove`: nor will anybody else; what the origin keeps for it may go."""
        self._close()
        self._running = False
        if self._link is not None:
            self._link.cancel()
            self._link = None
        if remove and not self._origin.prepared:
            self._bus.publish(self._origin.removal(), b"$JSC.R." + _token(), b"", b"")

    def _close(self) -> None:
        """End the attempt that is under way."""
        self._round += 1
        self._open = False
        self._waiting.clear()
        self._unsafe = False
        self._offers = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for subscription in self._subscribed:
            subscription.cancel()
        self._subscribed = []

    def _reachable(self, now: bool) -> None:
        """There is a link to the origin's server, or none any more. With a new one nothing goes on where it was."""
        if now and self._running:
            self._close()
            self._fails = 0
            self._wait(random.randrange(FIRST_NS), self._attempt)

    def _wait(self, delay_ns: int, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_later(delay_ns, then)

    def _again(self, error: ApiError | None = None, pause: int = 0) -> None:
        """This attempt has come to nothing, or to its end: make another after a pause."""
        if not self._running:
            return
        self._close()
        self.error = error or self.error
        if not pause:
            pause = min(SHORTEST_PAUSE_NS << min(self._fails, 16), LONGEST_PAUSE_NS)
            self._fails += 1
        self._wait(pause + random.randrange(pause // 4), self._attempt)

    # ------------------------------------------------------------------ asking for a consumer
    def _attempt(self) -> None:
        if not self._running:
            return
        self._close()
        origin, bus = self._origin, self._bus
        deliver, reply = origin.deliver_to(_token()), b"$JSC.R." + _token()
        messages = bus.subscribe(deliver, self._came, many=self._came_together)
        self._subscribed = [messages, bus.subscribe(reply, self._answered)]
        if own := origin.linked_to(_token()):
            self._subscribed.append(bus.subscribe(own, self._came, many=self._came_together))
            deliver = own
        subject, header, body = origin.request(self._taker.start(), deliver)
        self._wait(ANSWER_NS, self._again)
        attempt = self._round
        heard = bus.publish(subject, reply, header, dumps(body) if body else b"")
        if not heard and attempt == self._round:
            self._again()  # nobody serves there, yet

    def _answered(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        if self._open or not self._running:
            return
        try:
            answer = _answer.decode(payload) if payload else _Answer()
        except msgspec.DecodeError:
            answer = _Answer()
        if answer.error is not None:
            failed = answer.error
            if failed.err_code == ANOTHER_STREAM:
                self._taker.renewed()
                self._again()
                return
            self._again(ApiError(failed.code, failed.err_code, failed.description))
            return
        if not answer.name:  # nobody serves there (503), or it is no answer
            self._again()
            return
        if self._origin.prepared and answer.config.ack_policy != "flow_control":
            self._again(self._origin.needs_flow_control())
            return
        identity = headers.get(header, b"Nats-Stream-Identity") or b""
        # A prepared consumer counts anew, and may have sent something before.
        begins, before = (answer.delivered.consumer_seq, answer.delivered.stream_seq)
        if self._origin.prepared:
            # What the answer says was delivered may be of after the reset, and on its way.
            begins, before = 0, answer.reset_seq - 1 if answer.reset_seq else before
        self._delivered = (begins, before)
        if not self._taker.opened(before, identity.decode("utf-8", "replace"), answer.num_pending):
            self._again()
            return
        self._came_some, self._stalled = False, 0
        self._open, self.error, self._last_ns = True, None, self._clock.steady()
        self.lag = answer.num_pending
        self._wait(LOOK_NS, self._look)
        self._drain()

    def _look(self) -> None:
        """Whether the origin still speaks."""
        if self._clock.steady() - self._last_ns > SILENCE_NS:
            self._again()
        else:
            self._wait(LOOK_NS, self._look)

    # ------------------------------------------------------------------ messages
    def _came(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        if not self._running:
            return
        if self._open:
            self._last_ns = self._clock.steady()
        if not self._open or self._waiting:
            self._waiting.append((subject, reply, header, payload))
            if len(self._waiting) > MAX_WAITING:
                self._again()
        elif self._looked_at(subject, reply, header, payload) is NOT_NOW:
            self._waiting.append((subject, reply, header, payload))
            self._clock.call_later(RETRY_NS, functools.partial(self._offer, self._round))

    def _came_together(self, messages: Sequence[Delivery], first: int) -> int:
        """Take the plain messages that `messages` have from place `first` on, all at once; returns how many."""
        if not self._open or self._waiting:
            return 0
        run = run_of(messages, first, self._delivered[0] + 1, LAST_SEQ)
        if run is None:
            return 0
        try:
            taken = self._taker.take_run(run)
        except Exception:
            self._again(pause=REFUSED_PAUSE_NS)
            raise
        if taken:
            self._last_ns, self._came_some = self._clock.steady(), True
            self._delivered = (self._delivered[0] + taken, run.seqs[taken - 1])
            self.lag = run.pending[taken - 1]
            self._fails = self._stalled = 0
            self.error = None
        return taken

    def _offer(self, attempt: int) -> None:
        """Look again at what waits, unless that was of an earlier attempt."""
        if not self._open or attempt != self._round:
            return
        self._offers += 1
        if self._offers > PATIENCE:
            self._again()
        else:
            self._drain()

    def _drain(self) -> None:
        waiting = self._waiting
        while self._open and waiting:
            if self._looked_at(*waiting[0]) is NOT_NOW:
                self._clock.call_later(RETRY_NS, functools.partial(self._offer, self._round))
                return
            if waiting:  # it is still this attempt
                waiting.popleft()
                self._offers = 0

    def _looked_at(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> ApiError | None:
        """Do what something that came asks for; `NOT_NOW` where it has to be offered again."""
        # A stored message can look like a control message; its reply says that it is none.
        if header.startswith(_CONTROL) and not payload and not reply.startswith(_ACK):
            self._control(reply, header)
            return None
        # $JS.ACK[.<domain>.<account>].<stream>.<consumer>.<deliveries>.<seq>.<consumer seq>.<time>.<pending>[.<random>]
        tokens = reply.split(b".")
        at = {9: 5, 11: 7, 12: 7}.get(len(tokens), 0)
        if not at or tokens[1] != b"ACK":
            return None
        try:
            seq, consumer_seq, time_ns, pending = map(int, tokens[at : at + 4])
        except ValueError:  # of somebody who is no origin
            return None
        if not (0 < seq < LAST_SEQ and 0 <= time_ns < LAST_TIME_NS):
            return None
        expected = self._delivered[0] + 1
        if consumer_seq != expected:
            if not self._origin.prepared or (self._came_some and consumer_seq != 1):
                self._again()  # something got lost on the way
                return None
            if consumer_seq != 1:
                return None  # from before it was told where to begin
        self._came_some = True
        try:
            refused = self._taker.take(Received(seq, time_ns, subject, header, payload, pending))
        except Exception:
            self._again(pause=REFUSED_PAUSE_NS)
            raise
        if refused is NOT_NOW:
            return refused
        if refused is not None:
            _logger.warning("%s: message %d of %s is not taken: %s", self._name, seq, self._origin.key, refused)
            self._again(pause=REFUSED_PAUSE_NS)
            return None
        self._delivered = (consumer_seq, seq)
        self.lag = pending
        self._fails = self._stalled = 0
        if self.error is not None:
            self.error = None
        return None

    def _control(self, reply: bytes, header: bytes) -> None:
        """A heartbeat, a flow control request, or the end."""
        if not header.startswith(b"NATS/1.0 100"):
            self._again()  # the consumer is gone
            return
        if reply:
            self._confirm(reply)
            return
        last = headers.get(header, LAST_CONSUMER)
        known = self._came_some or not self._origin.prepared
        if known and last is not None and last.isdigit() and int(last) != self._delivered[0]:
            self._again()
            return
        self._fails = 0
        stalled = headers.get(header, STALLED)
        self._stalled = self._stalled + 1 if stalled and not self._unsafe else 0
        if self._stalled == MOST_STALLED:
            self.error = api_error(10228)
            _logger.warning("%s: answers to flow control do not reach %s", self._name, self._origin.key)
        if stalled:
            self._confirm(stalled)

    def _confirm(self, to: bytes) -> None:
        """Answer a flow control request once what came before it is safe: so no more comes than can be stored, and
        an origin that waits for acks lets nothing go that is not stored here."""
        attempt, (consumer_seq, seq) = self._round, self._delivered
        block = headers.build([(LAST_CONSUMER, b"%d" % consumer_seq), (LAST_STREAM, b"%d" % seq)])

        def safe() -> None:
            if self._open and self._round == attempt:
                self._unsafe = False
                self._bus.publish(to, b"", block, b"")

        self._unsafe = True
        self._taker.when_safe(safe)


def _token() -> bytes:
    """A name that nobody else has."""
    return "".join(secrets.choice(_LETTERS) for _ in range(8)).encode()
