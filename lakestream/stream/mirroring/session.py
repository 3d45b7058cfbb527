"""Sessions: reading an origin in order, for a mirror or a source.

Belongs here: one session with an origin, wherever that is: a consumer is requested through the origin's API, and its
messages come to a subject of the session's own (docs/internals/streams.md#mirrors-and-sources). The session keeps them
in order, answers flow control once they are stored, notices silence and gaps, and begins again. Storing messages is its
`Taker`'s.
"""

from __future__ import annotations

import functools
import logging
import random
import secrets
import string
from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

import msgspec

from lakestream.ports import Bus, ClientInfo, Clock, Messages, Single, Subscribed, Timer, singly
from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.protocol.deliveries import FirstDeliveries
from lakestream.protocol.domain_subjects import LINK_QUEUE
from lakestream.stream.core.batch import Run
from lakestream.stream.core.proposer import NOT_NOW
from lakestream.stream.mirroring.origin import Origin, OriginStart
from lakestream.stream.mirroring.runs import CONTROL, MAX_SEQ, run_of, runs_in

FIRST_NS = 100_000_000
"""A session begins after this long (100 ms) and up to twice that, so that many do not begin at once."""
ANSWER_NS = 5_000_000_000
"""Time to wait for the answer to a request for a consumer (5 s)."""
SILENCE_NS = 3_500_000_000
"""Silence of an origin after which the session begins again (3.5 s). Heartbeats come every second."""
LOOK_NS = 500_000_000
"""Interval of checks for silence (0.5 s)."""
SHORTEST_PAUSE_NS, LONGEST_PAUSE_NS = 500_000_000, 120_000_000_000
"""Pause after a failed attempt: 0.5 s at first, then twice as long each time, at most 2 min."""
MAX_WAITING = 100_000
"""Maximum number of messages that wait for the answer that says where they begin, or until they can be stored; above it
the attempt ends."""
RETRY_NS = 5_000_000
"""Pause before a message that could not be stored at once is offered again (5 ms)."""
MOST_STALLED = 3
"""Consecutive heartbeats that report unanswered flow control although every request was answered, after which an error
is shown: the answers do not reach the origin."""
PATIENCE = 400
"""Offers of one message before the session begins again (2 s)."""
REFUSED_PAUSE_NS = 2_000_000_000
"""Pause after a message that can not be stored (2 s)."""

ANOTHER_STREAM = 10225
"""Error code of an origin with another identity than the requested one."""

FLOW_CONTROL = "flow_control"
"""Ack policy under which the answers to flow control requests are the acks."""
LAST_CONSUMER, LAST_STREAM, STALLED = b"Nats-Last-Consumer", b"Nats-Last-Stream", b"Nats-Consumer-Stalled"
_LETTERS = string.digits + string.ascii_letters
_ACK = b"$JS.ACK."
_logger = logging.getLogger(__name__)


class Taker(Protocol):
    """Stores what a session brings."""

    def start(self) -> OriginStart:
        """Return where to begin reading the origin."""

    def opened(self, before: int, identity: str, pending: int) -> bool:
        """Note that the origin sends its messages after sequence `before`, so far `pending` of them.

        Return False to begin again: it is another stream.
        """

    def renewed(self) -> None:
        """Note that another stream has the origin's name now."""

    def take(self, run: Run) -> tuple[int, ApiError | None]:
        """Store messages as the origin has them. Return how many, from the first on, and why not the next one: it comes
        again later, after `NOT_NOW` soon."""


class Commits(Protocol):
    """Tells when what was taken is committed; a stream's pipeline."""

    def when_safe(self, then: Callable[[], None]) -> None:
        """Call `then` once every message taken so far is committed."""


_Seq = Annotated[int, msgspec.Meta(ge=0, lt=MAX_SEQ)]


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
    """The used fields of the answer to CONSUMER.CREATE, or to CONSUMER.RESET, which has `reset_seq`."""

    name: str = ""
    delivered: _Place = _Place()
    ack_floor: _Place = _Place()
    reset_seq: _Seq = 0
    num_pending: int = 0
    config: _Config = _Config()
    error: _Failure | None = None

    @property
    def before(self) -> int:
        """Return the sequence after which the consumer sends what the origin has; 0: its first message tells.

        Messages that were sent before the answer was made count as delivered in it. They are not stored yet: neither
        `delivered` nor, without acks, the ack floor says then where the consumer began.
        """
        if self.reset_seq:
            return self.reset_seq - 1
        if not self.delivered.consumer_seq:
            return self.delivered.stream_seq
        return self.ack_floor.stream_seq if self.config.ack_policy == FLOW_CONTROL else 0


_answer = JsonDecoder(_Answer)


class OriginSession:
    """Reads one origin from `begin` to `end`, in the event loop."""

    def __init__(self, origin: Origin, taker: Taker, bus: Bus, clock: Clock, pipeline: Commits) -> None:
        self._origin, self._taker = origin, taker
        self._bus, self._clock, self._pipeline = bus, clock, pipeline
        self.lag = 0
        """Number of messages that the origin has and that did not come yet."""
        self.error: ApiError | None = None
        """Error for INFO: why there is no consumer; None while there is one, or before the first answer."""
        self._last_ns = 0
        """Time of the last message or heartbeat of the origin."""
        self._running = self._open = False
        self._fails = 0
        self._subscribed: list[Subscribed] = []
        self._timer: Timer | None = None
        self._link: Subscribed | None = None
        """Watches whether the origin's remote server can be reached."""
        self._delivered = (0, 0)
        """(consumer sequence, stream sequence) of the last message."""
        self._came_some = False
        self._unsafe = False
        """True while a flow control answer waits until messages are committed."""
        self._waiting: list[Single] = []
        """Messages that are not processed yet, in order."""
        self._offers = 0
        """Number of times that the first of them was offered to the taker."""
        self._stalled = 0
        """Heartbeats since the last message that report unanswered flow control."""
        self._round = 0
        """Number of attempts: callbacks of an earlier one do nothing."""

    def active_ns(self) -> int:
        """Return the time since the last message or heartbeat in ns, -1 if there was none."""
        return max(self._clock.steady() - self._last_ns, 0) if self._last_ns else -1

    # ------------------------------------------------------------------ life
    def begin(self) -> None:
        """Begin to read soon."""
        self._running = True
        if self._origin.link:
            self._link = self._bus.watch_interest(self._origin.link, LINK_QUEUE, self._reachable)
        self._wait(FIRST_NS + random.randrange(FIRST_NS), self._attempt)

    def end(self, remove: bool = False) -> None:
        """End the session. `remove`: for good, and delete the origin's consumer."""
        self._close()
        self._running = False
        if self._link is not None:
            self._link.cancel()
            self._link = None
        if remove and not self._origin.prepared:
            self._bus.send(Single(self._origin.removal(), b"$JSC.R." + _token()))

    def _close(self) -> None:
        """End the present attempt."""
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
        """Begin again when there is a new link to the origin's server."""
        if now and self._running:
            self._close()
            self._fails = 0
            self._wait(random.randrange(FIRST_NS), self._attempt)

    def _wait(self, delay_ns: int, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_later(delay_ns, then)

    def _again(self, error: ApiError | None = None, pause: int = 0) -> None:
        """End this attempt and make another after a pause."""
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
        """Request a consumer once everything taken so far is committed: it begins behind that, and an origin whose
        messages acks remove may take what is before it for acked."""
        if not self._running:
            return
        self._close()
        request = functools.partial(self._ask, self._round)
        self._pipeline.when_safe(lambda: self._clock.call_soon(request))

    def _ask(self, attempt: int) -> None:
        if attempt != self._round:
            return
        origin, bus = self._origin, self._bus
        deliver, reply = origin.deliver_to(_token()), b"$JSC.R." + _token()
        messages = bus.subscribe(deliver, self._take)
        self._subscribed = [messages, bus.subscribe(reply, singly(self._answered))]
        if own := origin.linked_to(_token()):
            self._subscribed.append(bus.subscribe(own, self._take))
            deliver = own
        subject, header, body = origin.request(self._taker.start(), deliver)
        self._wait(ANSWER_NS, self._again)
        heard = bus.send(Single(subject, reply, header, dumps(body) if body else b""))
        if not heard and attempt == self._round:
            self._again()  # no server answers there yet

    def _answered(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        if self._open or not self._running:
            return
        try:
            answer = _answer.decode(payload) if payload else _Answer()
        except DECODE_ERRORS:
            answer = _Answer()
        if answer.error is not None:
            failed = answer.error
            if failed.err_code == ANOTHER_STREAM:
                self._taker.renewed()
                self._again()
                return
            self._again(ApiError(failed.code, failed.err_code, failed.description))
            return
        if not answer.name:  # no responders (503), or no answer at all
            self._again()
            return
        if self._origin.prepared and answer.config.ack_policy != FLOW_CONTROL:
            self._again(self._origin.needs_flow_control())
            return
        identity = headers.get(header, b"Nats-Stream-Identity") or b""
        # A new consumer counts from 1, and one that existed counts anew.
        self._delivered = (0, answer.before)
        if not self._taker.opened(answer.before, identity.decode("utf-8", "replace"), answer.num_pending):
            self._again()
            return
        self._came_some, self._stalled = False, 0
        self._open, self.error, self._last_ns = True, None, self._clock.steady()
        self.lag = answer.num_pending
        self._wait(LOOK_NS, self._look)
        self._drain()

    def _look(self) -> None:
        """Begin again if the origin was silent for too long."""
        if self._clock.steady() - self._last_ns > SILENCE_NS:
            self._again()
        else:
            self._wait(LOOK_NS, self._look)

    # ------------------------------------------------------------------ messages
    def _take(self, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        end = messages.stop(begin, end)
        if not self._running:
            return end
        held = bool(self._waiting)
        if self._open:
            self._last_ns = self._clock.steady()
            if not held and isinstance(messages, FirstDeliveries):
                for found in runs_in(messages, begin, end):
                    begin += (taken := self._store(*found))
                    if not self._open:
                        return end
                    if taken < len(found[1]):
                        held = True
                        self._clock.call_later(RETRY_NS, functools.partial(self._offer, self._round))
                        break
        if begin < end:  # of columns, asking for single messages makes all of them
            self._waiting += messages.messages(begin, end)
        if len(self._waiting) > MAX_WAITING:
            self._again()
        elif self._open and not held:
            self._drain()
        return end

    def _offer(self, attempt: int) -> None:
        """Process what waits, unless it is of an earlier attempt."""
        if not self._open or attempt != self._round:
            return
        self._offers += 1
        if self._offers > PATIENCE:
            self._again()
        else:
            self._drain()

    def _drain(self) -> None:
        """Process what waits, until a message has to be offered again."""
        waiting, done = self._waiting, 0
        try:
            while self._open and done < len(waiting):
                taken = self._process(waiting, done)
                if not taken:
                    self._clock.call_later(RETRY_NS, functools.partial(self._offer, self._round))
                    return
                done, self._offers = done + taken, 0
        finally:
            del waiting[:done]

    def _process(self, messages: Sequence[Single], first: int) -> int:
        """Process messages from a place on; return their number, 0 if the first has to be offered again."""
        one = messages[first]
        # A stored message can look like a control message, but has an ack subject as its reply.
        if one.header.startswith(CONTROL) and not one.payload and not one.reply.startswith(_ACK):
            self._control(one.reply, one.header)
            return 1
        found = run_of(messages, first)
        if found is None:  # not sent by an origin
            return 1
        return self._store(*found)

    def _store(self, consumer_seq: int, run: Run) -> int:
        """Have a run taken; return how many of its messages are done, 0 if the first has to be offered again."""
        if consumer_seq != self._delivered[0] + 1:
            if not self._origin.prepared or (self._came_some and consumer_seq != 1):
                self._again()  # a message was lost
                return len(run)
            if consumer_seq != 1:
                return len(run)  # sent before the reset
        self._came_some = True
        try:
            taken, refused = self._taker.take(run)
        except Exception:
            self._again(pause=REFUSED_PAUSE_NS)
            raise
        if taken:
            self._delivered = (consumer_seq + taken - 1, run.seqs[taken - 1])
            self.lag = run.pending[taken - 1]
            self._fails = self._stalled = 0
            self.error = None
        if refused is not None and refused is not NOT_NOW:
            text = "stream %s: message %d of %s is not stored: %s; it is requested again in 2s"
            _logger.warning(text, self._origin.stream, run.seqs[taken], self._origin.key, refused)
            self._again(pause=REFUSED_PAUSE_NS)
            return len(run)
        return taken

    def _control(self, reply: bytes, header: bytes) -> None:
        """Process a heartbeat, a flow control request, or the consumer's end."""
        if not header.startswith(b"NATS/1.0 100"):
            self._again()  # the consumer was deleted
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
            text = (
                "stream %s: stalled: answers to flow control do not reach its origin %s; "
                "permit, export and import $JS.FC.%s.> on the way to it, then the stream goes on by itself"
            )
            _logger.warning(text, self._origin.stream, self._origin.source.name, self._origin.source.name)
        if stalled:
            self._confirm(stalled)

    def _confirm(self, to: bytes) -> None:
        """Answer a flow control request once what came before it is committed: so no more comes than can be stored, and
        an origin that waits for acks removes nothing that is not stored here."""
        attempt, (consumer_seq, seq) = self._round, self._delivered
        block = headers.build([(LAST_CONSUMER, b"%d" % consumer_seq), (LAST_STREAM, b"%d" % seq)])

        def safe() -> None:
            if self._open and self._round == attempt:
                self._unsafe = False
                self._bus.send(Single(to, header=block))

        self._unsafe = True
        self._pipeline.when_safe(safe)


def _token() -> bytes:
    """Return a unique token."""
    return "".join(secrets.choice(_LETTERS) for _ in range(8)).encode()
