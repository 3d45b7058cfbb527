"""Pull requests: reading and checking one, and its state and times while it waits.

Belongs here: the body of MSG.NEXT (ADR-13, ADR-42) with its rules, what is left of a waiting request, and the one timer
for the expiry and heartbeats of all. The queue is pull.py's, priority policies are priority.py's.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Callable, Sequence

import msgspec

from lakestream.ports import Clock, Timer
from lakestream.protocol.api import jsonio
from lakestream.protocol.api.json_syntax import JsonError
from lakestream.protocol.api.jsonio import Duration, Int, Int64
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.protocol.durations import format_duration
from lakestream.stream.consumer.config import ConsumerConfig

MAX_PRIORITY = 9

_INTEGER = re.compile(rb"^[+-]?\d{1,18}$")


class NextRequest(msgspec.Struct, frozen=True):
    """The JSON body of MSG.NEXT. Durations in ns, `max_bytes` in bytes."""

    batch: Int = 1
    expires: Duration = 0
    max_bytes: Int = 0
    no_wait: bool = False
    idle_heartbeat: Duration = 0
    group: str = ""
    id: str = ""
    min_pending: Int64 = 0
    min_ack_pending: Int64 = 0
    priority: Int = 0


_fast = JsonDecoder(NextRequest)
_ONE = NextRequest()


class BadRequest(Exception):
    """Raised for a pull request that can not be served; the text follows `Bad Request - `."""


def parse_next(body: bytes) -> NextRequest:
    """Parse a pull request: empty, a number, or JSON; any other text asks for one message. Raise BadRequest."""
    body = body.strip()
    if not body:
        return _ONE
    if body[:1] == b"{":
        return _parse_object(body)
    if _INTEGER.match(body):
        return NextRequest(batch=int(body))
    return _ONE


def _parse_object(body: bytes) -> NextRequest:
    try:
        request = _fast.decode(body)
    except DECODE_ERRORS:
        try:
            request = jsonio.parse(body, NextRequest, " ", strict=False)
        except JsonError as error:
            raise BadRequest(str(error).replace("struct field  .", "struct field .")) from None
    if request.idle_heartbeat > 0 and request.idle_heartbeat * 2 > request.expires:
        raise BadRequest("heartbeat value too large")
    return request


def check_fields(request: NextRequest, policy: str) -> None:
    """Raise BadRequest for fields that only policy overflow allows."""
    if (request.min_pending or request.min_ack_pending) and policy != "overflow":
        raise BadRequest("Not a Overflow Priority consumer")


def check_caps(request: NextRequest, config: ConsumerConfig) -> bytes:
    """Return the status that refuses a request for more than the consumer allows, b"" if it is allowed."""
    if 0 < config.max_batch < request.batch:
        return b"409 Exceeded MaxRequestBatch of %d" % config.max_batch
    if 0 < config.max_expires < request.expires:
        return b"409 Exceeded MaxRequestExpires of %b" % format_duration(config.max_expires).encode()
    if 0 < config.max_bytes < request.max_bytes:
        return b"409 Exceeded MaxRequestMaxBytes of %d" % config.max_bytes
    return b""


def check_group(request: NextRequest, body: bytes, config: ConsumerConfig) -> None:
    """Raise BadRequest for a JSON body without a group of the consumer, or with a wrong pin or priority.

    As in nats-server the other forms of body are not checked: such a request belongs to no group. The order of the
    checks is nats-server's: after the caps.
    """
    if request.id and config.priority_policy != "pinned_client":
        raise BadRequest("Not a Pinned Client Priority consumer")
    if not 0 <= request.priority <= MAX_PRIORITY:
        raise BadRequest(f"Priority must be between 0 and {MAX_PRIORITY}")
    if config.priority_policy in ("", "none") or body.lstrip()[:1] != b"{":
        return
    if not request.group:
        raise BadRequest("Priority Group missing")
    if request.group not in config.priority_groups:
        raise BadRequest("Invalid Priority Group")


class WaitingPull:
    """A waiting pull request."""

    __slots__ = (
        "beat_at",
        "bytes_left",
        "delivered",
        "ended",
        "expires_at",
        "grouped",
        "heartbeat",
        "left",
        "limited",
        "min_ack_pending",
        "min_pending",
        "no_wait",
        "pin",
        "priority",
        "reply",
    )

    def __init__(self, reply: bytes, request: NextRequest, now: int) -> None:
        self.reply = reply
        self.ended = False
        self.left = max(request.batch, 1)
        self.limited = request.max_bytes > 0
        self.bytes_left = max(request.max_bytes, 0)
        self.no_wait = request.no_wait
        # A request with a negative time has expired already; its client is told when the request comes to the head.
        self.expires_at = now + request.expires if request.expires else 0
        self.heartbeat = max(request.idle_heartbeat, 0)
        self.beat_at = now + self.heartbeat if self.heartbeat else 0
        self.delivered = 0
        self.grouped = bool(request.group)
        self.pin = request.id
        self.min_pending, self.min_ack_pending = request.min_pending, request.min_ack_pending
        self.priority = request.priority

    @property
    def due(self) -> int:
        """Return its next time, of expiry or heartbeat (ns); 0: it has none."""
        return min((at for at in (self.expires_at, self.beat_at) if at), default=0)


class RequestTimer:
    """One timer for the expiry and heartbeats of all waiting requests of a consumer.

    Args:
        due: called with the requests that have not ended and whose time has come, and the present time (ns). It may
            set the requests' next times.
    """

    def __init__(self, clock: Clock, due: Callable[[Sequence[WaitingPull], int], None]) -> None:
        self._clock, self._call = clock, due
        self._heap: list[tuple[int, int, WaitingPull]] = []
        self._numbers = itertools.count()
        self._timer: Timer | None = None
        self._timer_due = 0

    def watch(self, waiting: WaitingPull) -> None:
        """Call at the request's next time. A time that is moved on later is noticed when the earlier one has passed."""
        due = waiting.due
        if due:
            heapq.heappush(self._heap, (due, next(self._numbers), waiting))
            self._arm(due)

    def stop(self) -> None:
        """Cancel the timer and drop all requests."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due: int) -> None:
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._clock.call_later(max(due - self._clock.steady(), 0), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now, heap = self._clock.steady(), self._heap
        came: list[WaitingPull] = []
        while heap and (heap[0][0] <= now or heap[0][2].ended):
            _, _, waiting = heapq.heappop(heap)
            if not waiting.ended:
                came.append(waiting)
        if due := [waiting for waiting in came if waiting.due <= now]:
            self._call(due, now)
        for waiting in came:
            if not waiting.ended:
                self.watch(waiting)
        if heap:
            self._arm(heap[0][0])
