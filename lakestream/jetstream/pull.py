"""Pull consumers: requests that wait for messages.

Belongs here: reading MSG.NEXT requests (ADR-13), their queue, how messages are dealt to them one by one in turn, and
every status that ends one (api.md §8, consumers.md §5).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from lakestream.jetstream import jsonio
from lakestream.jetstream.consumer_config import ConsumerConfig
from lakestream.jetstream.consumer_state import Ledger
from lakestream.jetstream.durations import format_duration
from lakestream.jetstream.json_syntax import JsonError
from lakestream.jetstream.jsonio import Duration, Int, Int64
from lakestream.jetstream.outlet import heartbeat, size_of, status, status_pending
from lakestream.jetstream.ports import Bus, Clock, Delivery, Timer

EXPIRE_CHECK_NS = 1_000_000_000
"""A full queue is searched for dead requests at most this often (1 s)."""

MAX_PRIORITY = 9

_INTEGER = re.compile(rb"^[+-]?\d{1,18}$")
_NO_MESSAGES = status(b"404 No Messages")
_DELETED = status(b"409 Consumer Deleted")


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


_fast = msgspec.json.Decoder(NextRequest)
_ONE = NextRequest()


class BadRequest(Exception):
    """A pull request that can not be served; the text follows `Bad Request - `."""


def parse_next(body: bytes) -> NextRequest:
    """Read a pull request: nothing, a number, or JSON; any other text asks for one message. Raises BadRequest."""
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
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            request = jsonio.parse(body, NextRequest, " ", strict=False)
        except JsonError as error:
            raise BadRequest(str(error).replace("struct field  .", "struct field .")) from None
    if request.idle_heartbeat > 0 and request.idle_heartbeat * 2 > request.expires:
        raise BadRequest("heartbeat value too large")
    # No consumer has a priority policy here (consumer_rules), so what belongs to one is out of place.
    if request.id:
        raise BadRequest("Not a Pinned Client Priority consumer")
    if request.min_pending or request.min_ack_pending:
        raise BadRequest("Not a Overflow Priority consumer")
    if not 0 <= request.priority <= MAX_PRIORITY:
        raise BadRequest(f"Priority must be between 0 and {MAX_PRIORITY}")
    return request


class Waiting:
    """One request in the queue."""

    __slots__ = ("beat_at", "bytes_left", "delivered", "expires_at", "heartbeat", "left", "limited", "no_wait", "reply")

    def __init__(self, reply: bytes, request: NextRequest, now: int) -> None:
        self.reply = reply
        self.left = max(request.batch, 1)
        self.limited = request.max_bytes > 0
        self.bytes_left = max(request.max_bytes, 0)
        self.no_wait = request.no_wait
        # A negative time is over before it began, and the request is told so when its turn comes.
        self.expires_at = now + request.expires if request.expires else 0
        self.heartbeat = max(request.idle_heartbeat, 0)
        self.beat_at = now + self.heartbeat if self.heartbeat else 0
        self.delivered = 0


class PullOutlet:
    """The queue of pull requests of one consumer.

    Args:
        available: how many messages could be delivered at once (new ones and redeliveries).
        wake: asks the consumer to look for messages soon.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        ledger: Ledger,
        bus: Bus,
        clock: Clock,
        available: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._config, self._ledger, self._bus, self._clock = config, ledger, bus, clock
        self._available, self._wake = available, wake
        self._queue: deque[Waiting] = deque()
        self._parked: list[Waiting] = []
        """Requests of receivers that are behind with reading; they come back when they have drained."""
        self._timer: Timer | None = None
        self._timer_due = 0
        self._checked_ns = 0
        self.last_active_ns = clock.now()

    def __len__(self) -> int:
        return len(self._queue) + len(self._parked)

    @property
    def wanting(self) -> bool:
        """See `Outlet.wanting`."""
        return bool(self._queue)

    # ------------------------------------------------------------------ requests
    def request(self, reply: bytes, body: bytes) -> None:
        """Take a pull request, or refuse it with a status."""
        now = self.last_active_ns = self._clock.now()
        try:
            request = parse_next(body)
        except BadRequest as error:
            self._say(reply, status(b"400 Bad Request - " + str(error).encode()))
            return
        refusal = self._refusal(request)
        if refusal:
            self._say(reply, status(refusal))
            return
        if len(self) >= self._config.max_waiting and now - self._checked_ns > EXPIRE_CHECK_NS:
            self._checked_ns = now
            self._sweep(now)
        if request.no_wait:
            refusal = self._no_wait_refusal(request)
            if refusal:
                self._say(reply, status(refusal))
                return
        if len(self) >= self._config.max_waiting:
            if request.idle_heartbeat <= 0:
                self._say(reply, status(b"409 Exceeded MaxWaiting"))
            return
        waiting = Waiting(reply, request, now)
        self._queue.append(waiting)
        self._arm(waiting)
        self._wake()

    def _refusal(self, request: NextRequest) -> bytes:
        config = self._config
        if 0 < config.max_batch < request.batch:
            return b"409 Exceeded MaxRequestBatch of %d" % config.max_batch
        if 0 < config.max_expires < request.expires:
            return b"409 Exceeded MaxRequestExpires of %b" % format_duration(config.max_expires).encode()
        if 0 < config.max_bytes < request.max_bytes:
            return b"409 Exceeded MaxRequestMaxBytes of %d" % config.max_bytes
        return b""

    def _no_wait_refusal(self, request: NextRequest) -> bytes:
        available = self._available()
        if not available:
            return b"" if request.expires else b"404 No Messages"
        self._sweep(self._clock.now())
        wanted = sum(waiting.left for waiting in (*self._queue, *self._parked))
        return b"408 Requests Pending" if available < wanted else b""

    # ------------------------------------------------------------------ dealing
    def capacity(self) -> int:
        """See `Outlet.capacity`."""
        return sum(waiting.left for waiting in self._queue)

    def send(self, messages: Sequence[Delivery]) -> int:
        """Deal messages to the requests in turn, one each; a request that is alone takes all it can."""
        taken, total = 0, len(messages)
        while taken < total:
            waiting = self._head()
            if waiting is None:
                break
            count = min(waiting.left, total - taken) if len(self._queue) == 1 else 1
            if waiting.limited:
                count = self._fitting(waiting, messages, taken, count)
                if not count:
                    continue
            block = messages if count == total else messages[taken : taken + count]
            if not self._bus.deliver(waiting.reply, block):
                self._queue.popleft()  # nobody listens any more
                continue
            taken += count
            self._served(waiting, count)
        if taken:
            self.last_active_ns = self._clock.now()
        return taken

    def _head(self) -> Waiting | None:
        """The request whose turn it is; those that can not be served now step aside."""
        now = self._clock.now()
        while self._queue:
            waiting = self._queue[0]
            if waiting.expires_at and waiting.expires_at <= now:
                self._queue.popleft()
                self._time_out(waiting)
            elif not self._bus.writable(waiting.reply):
                self._queue.popleft()
                self._park(waiting)
            else:
                return waiting
        return None

    def _park(self, waiting: Waiting) -> None:
        self._parked.append(waiting)

        def drained() -> None:
            if waiting in self._parked:
                self._parked.remove(waiting)
                self._queue.appendleft(waiting)
                self._wake()

        self._bus.when_writable(waiting.reply, drained)

    def _fitting(self, waiting: Waiting, messages: Sequence[Delivery], first: int, count: int) -> int:
        """How many of the messages fit into what is left of max_bytes; ends the request when not even one does."""
        left = waiting.bytes_left
        fitting = 0
        for message in messages[first : first + count]:
            left -= size_of(message)
            if left < 0:
                break
            fitting += 1
            waiting.bytes_left = left
        if not fitting:
            self._queue.popleft()
            text = b"409 Message Size Exceeds MaxBytes"
            self._say(waiting.reply, status_pending(text, waiting.left, waiting.bytes_left))
        return fitting

    def _served(self, waiting: Waiting, count: int) -> None:
        waiting.left -= count
        waiting.delivered += count
        if waiting.heartbeat:
            waiting.beat_at = self._clock.now() + waiting.heartbeat
        if waiting.left > 0:
            if len(self._queue) > 1:
                self._queue.rotate(-1)
            return
        self._queue.popleft()
        if waiting.bytes_left:
            self._say(waiting.reply, status_pending(b"409 Batch Completed", 0, waiting.bytes_left))

    def caught_up(self) -> None:
        """End the requests that do not wait for more."""
        if not any(waiting.no_wait for waiting in self._queue):
            return
        kept: deque[Waiting] = deque()
        for waiting in self._queue:
            if waiting.no_wait and (waiting.delivered or not waiting.expires_at):
                self._say(waiting.reply, _NO_MESSAGES)
            else:
                kept.append(waiting)
        self._queue = kept

    # ------------------------------------------------------------------ time
    def _arm(self, waiting: Waiting) -> None:
        due = min((at for at in (waiting.expires_at, waiting.beat_at) if at), default=0)
        if not due:
            return
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._clock.call_later(max(due - self._clock.now(), 0), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._clock.now()
        self._sweep(now)
        for waiting in (*self._queue, *self._parked):
            if waiting.beat_at and waiting.beat_at <= now:
                self._say(waiting.reply, heartbeat(self._ledger))
                waiting.beat_at = now + waiting.heartbeat
            self._arm(waiting)

    def _sweep(self, now: int) -> None:
        """Drop requests whose time is over or whose requester has gone."""

        def alive(waiting: Waiting) -> bool:
            if waiting.expires_at and waiting.expires_at <= now:
                self._time_out(waiting)
                return False
            return self._bus.interest(waiting.reply)

        self._queue = deque([waiting for waiting in self._queue if alive(waiting)])
        self._parked = [waiting for waiting in self._parked if alive(waiting)]

    def _time_out(self, waiting: Waiting) -> None:
        self.last_active_ns = self._clock.now()
        self._say(waiting.reply, status_pending(b"408 Request Timeout", waiting.left, waiting.bytes_left))

    def _say(self, reply: bytes, header: bytes) -> None:
        self._bus.publish(reply, b"", header, b"")

    # ------------------------------------------------------------------ life
    def interested(self) -> bool:
        """Whether somebody still waits for messages."""
        self._sweep(self._clock.now())
        return len(self) > 0

    def update(self, config: ConsumerConfig) -> None:
        """See `Outlet.update`."""
        self._config = config

    def start(self) -> None:
        """See `Outlet.start`."""

    def stop(self) -> None:
        """See `Outlet.stop`."""
        self._queue.clear()
        self._parked.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def shut_down(self) -> None:
        """See `Outlet.shut_down`."""
        for waiting in (*self._queue, *self._parked):
            self._say(waiting.reply, status_pending(b"409 Server Shutdown", waiting.left, waiting.bytes_left))
        self.stop()

    def yielded(self) -> None:
        """See `Outlet.yielded`."""
        for waiting in (*self._queue, *self._parked):
            self._say(waiting.reply, status_pending(b"409 Leadership Change", waiting.left, waiting.bytes_left))
        self.stop()

    def deleted(self) -> None:
        """See `Outlet.deleted`."""
        for waiting in (*self._queue, *self._parked):
            self._say(waiting.reply, _DELETED)
        self.stop()
