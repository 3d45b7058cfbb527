"""Pull consumers: the queue of waiting requests as a delivery target.

Belongs here: queueing requests, distributing messages to them one by one in turn, and every status that ends a request
(docs/internals/api.md#statuses, docs/internals/consumers.md#pull-requests). A single request is pull_request.py's, the
choice among them under a priority policy is priority.py's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from lakestream.ports import Bus, Clock, MessageBlock, Single
from lakestream.stream.consumer.advisories import ConsumerAdvisories
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.consumer.ledger import Ledger
from lakestream.stream.consumer.priority import PriorityVerdict, RoundRobin, policy_of
from lakestream.stream.consumer.pull_request import (
    BadRequest,
    NextRequest,
    RequestTimer,
    WaitingPull,
    check_caps,
    check_fields,
    check_group,
    parse_next,
)
from lakestream.stream.consumer.target import DeliveryTarget, heartbeat, status, status_pending

EXPIRE_CHECK_NS = 1_000_000_000
"""A full queue is searched for dead requests at most this often (1 s)."""

_NO_MESSAGES = status(b"404 No Messages")
_INTERNAL = status(b"500 Internal Server Error")
_DELETED = status(b"409 Consumer Deleted")
_NEW_LEADER = status(b"409 Leadership Change")


class PullTarget(DeliveryTarget):
    """The queue of pull requests of one consumer.

    Args:
        available: returns how many messages could be delivered at once (new ones and redeliveries).
        pending: returns how many of them are new.
        blocked: returns True while none of them may be sent: too many acks are pending, or deliveries are paused.
        wake: called when the consumer should look for messages.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        ledger: Ledger,
        bus: Bus,
        clock: Clock,
        available: Callable[[], int],
        pending: Callable[[], int],
        blocked: Callable[[], bool],
        wake: Callable[[], None],
        advisories: ConsumerAdvisories,
    ) -> None:
        self._config, self._ledger, self._bus, self._clock = config, ledger, bus, clock
        self._available, self._pending, self._blocked = available, pending, blocked
        self._wake, self._advisories = wake, advisories
        self.policy: RoundRobin = policy_of(config, advisories, clock, wake)
        self._queue: deque[WaitingPull] = deque()
        self._parked: dict[WaitingPull, None] = {}
        """Requests whose connection has too many unsent bytes; they come back when it has drained."""
        self._timer = RequestTimer(clock, self._times_came)
        self._checked_ns = 0
        self._last_active_ns = clock.steady()

    def __len__(self) -> int:
        return len(self._queue) + len(self._parked)

    @property
    def wanting(self) -> bool:
        return bool(self._queue)

    def last_used_ns(self, now: int) -> int:
        self._sweep(now)
        return now if len(self) else self._last_active_ns

    # ------------------------------------------------------------------ requests
    def request(self, reply: bytes, body: bytes) -> None:
        """Queue a pull request, or refuse it with a status."""
        now = self._last_active_ns = self._clock.steady()
        try:
            request = parse_next(body)
            check_fields(request, self._config.priority_policy)
            refusal = check_caps(request, self._config)
            if not refusal:
                check_group(request, body, self._config)
                refusal = self.policy.arrived(request)
        except BadRequest as error:
            refusal = b"400 Bad Request - " + str(error).encode()
        except Exception:  # the last resort: the client gets an answer, and the bus logs the error
            self._send_status(reply, _INTERNAL)
            raise
        if refusal:
            self._send_status(reply, status(refusal))
        else:
            self._take(reply, request, now)

    def _take(self, reply: bytes, request: NextRequest, now: int) -> None:
        if len(self) >= self._config.max_waiting and now - self._checked_ns > EXPIRE_CHECK_NS:
            self._checked_ns = now
            self._sweep(now)
        if request.no_wait:
            refusal = self._no_wait_refusal(request)
            if refusal:
                self._send_status(reply, status(refusal))
                return
        if len(self) >= self._config.max_waiting:
            if request.idle_heartbeat <= 0:
                self._send_status(reply, status(b"409 Exceeded MaxWaiting"))
            return
        waiting = WaitingPull(reply, request, now)
        self.policy.place(self._queue, waiting)
        self._timer.watch(waiting)
        self._wake()

    def _no_wait_refusal(self, request: NextRequest) -> bytes:
        available = self._available()
        if not available:
            return b"" if request.expires else b"404 No Messages"
        self._sweep(self._clock.steady())
        wanted = sum(waiting.left for waiting in (*self._queue, *self._parked))
        return b"408 Requests Pending" if available < wanted else b""

    # ------------------------------------------------------------------ sending
    def capacity(self) -> int:
        policy = self.policy
        if not policy.gated:
            return sum(waiting.left for waiting in self._queue)
        pending, unacked = self._pending(), len(self._ledger.pending)
        passed = PriorityVerdict.PASS
        return sum(one.left for one in self._queue if policy.verdict(one, pending, unacked) is not passed)

    def held_back(self) -> None:
        """End the requests that do not wait."""
        if self._queue:
            self.caught_up()

    def send(self, messages: MessageBlock, again: bool = False) -> int:
        """Send messages to the requests in turn, one each; a request that is alone takes all it can."""
        taken, total, policy = 0, len(messages), self.policy
        while taken < total:
            waiting = self._admitted(0 if again else taken) if policy.gated else self._head()
            if waiting is None:
                break
            count = min(waiting.left, total - taken) if policy.alone(self._queue) else 1
            if waiting.limited:
                count = self._fitting(waiting, messages, taken, count)
                if not count:
                    continue
            block = messages if count == total else messages[taken : taken + count]
            if policy.gated:
                block = policy.headed(waiting, block)
            block.to = waiting.reply
            if not self._bus.send(block):
                self._queue.popleft().ended = True  # no subscriber is left
                continue
            taken += count
            self._served(waiting, count)
        if taken:
            self._last_active_ns = self._clock.steady()
        return taken

    def _head(self) -> WaitingPull | None:
        """Return the request at the head, without those that have expired or whose connection can not be written to."""
        now = self._clock.steady()
        while self._queue:
            waiting = self._queue[0]
            if waiting.expires_at and waiting.expires_at <= now:
                self._queue.popleft().ended = True
                self._time_out(waiting)
            elif not self._bus.writable(waiting.reply):
                self._queue.popleft()
                self._park(waiting)
            else:
                return waiting
        return None

    def _admitted(self, sent: int) -> WaitingPull | None:
        """Return the next request that may have a message under the policy; requests passed over move to the end.

        `sent`: new messages that were sent and are still counted as pending.
        """
        pending = self._pending() - sent
        unacked = len(self._ledger.pending) + (sent if self._config.ack_policy != "none" else 0)
        passed = 0
        while passed < len(self._queue):
            waiting = self._head()
            if waiting is None:
                return None
            verdict = self.policy.verdict(waiting, pending, unacked)
            if verdict is PriorityVerdict.PASS:
                self._queue.rotate(-1)
                passed += 1
                continue
            if verdict is PriorityVerdict.SERVE and self._bus.interest(waiting.reply):
                return waiting
            self._queue.popleft().ended = True
            if verdict is PriorityVerdict.END:
                text = b"423 Nats-Wrong-Pin-Id"
                self._send_status(waiting.reply, status_pending(text, waiting.left, waiting.bytes_left))
        return None

    def _park(self, waiting: WaitingPull) -> None:
        self._parked[waiting] = None

        def drained() -> None:
            if waiting in self._parked:
                del self._parked[waiting]
                self.policy.place(self._queue, waiting, first=True)
                self._wake()

        self._bus.when_writable(waiting.reply, drained)

    def _fitting(self, waiting: WaitingPull, messages: MessageBlock, first: int, count: int) -> int:
        """Return how many of the messages fit into what is left of max_bytes; end the request if not even one does."""
        left = waiting.bytes_left
        fitting = 0
        for size in messages[first : first + count].sizes():
            left -= size
            if left < 0:
                break
            fitting += 1
            waiting.bytes_left = left
        if not fitting:
            self._queue.popleft().ended = True
            text = b"409 Message Size Exceeds MaxBytes"
            self._send_status(waiting.reply, status_pending(text, waiting.left, waiting.bytes_left))
        return fitting

    def _served(self, waiting: WaitingPull, count: int) -> None:
        waiting.left -= count
        waiting.delivered += count
        if waiting.heartbeat:
            waiting.beat_at = self._clock.steady() + waiting.heartbeat
        if waiting.left > 0:
            if len(self._queue) > 1:
                self._queue.popleft()
                self.policy.place(self._queue, waiting)
            return
        self._queue.popleft().ended = True
        if waiting.bytes_left:
            self._send_status(waiting.reply, status_pending(b"409 Batch Completed", 0, waiting.bytes_left))

    def caught_up(self) -> None:
        """End the requests that do not wait for more. One that has expired is told so, by its timer."""
        self._end_hasty(_NO_MESSAGES)

    def unreadable(self, why: str) -> None:
        self._end_hasty(status(b"500 " + why.replace("\r", " ").replace("\n", " ").encode()))

    def _end_hasty(self, block: bytes) -> None:
        if not any(waiting.no_wait for waiting in self._queue):
            return
        kept: deque[WaitingPull] = deque()
        now = self._clock.steady()
        for waiting in self._queue:
            over = waiting.delivered and waiting.expires_at > now
            if waiting.no_wait and (over or not waiting.expires_at):
                waiting.ended = True
                self._send_status(waiting.reply, block)
            else:
                kept.append(waiting)
        self._queue = kept

    # ------------------------------------------------------------------ time
    def _times_came(self, due: Sequence[WaitingPull], now: int) -> None:
        """Take the time of some requests: while no message may be sent it is also the time at which those that do not
        wait are ended, as in nats-server."""
        if self._blocked():
            self.caught_up()
        for waiting in due:
            if not waiting.ended:
                self._time_came(waiting, now)

    def _time_came(self, waiting: WaitingPull, now: int) -> None:
        """End a request that has expired or lost its subscriber, else send its heartbeat."""
        expired = bool(waiting.expires_at) and waiting.expires_at <= now
        if expired or not self._bus.interest(waiting.reply):
            waiting.ended = True
            if waiting in self._parked:
                del self._parked[waiting]
            else:
                self._queue.remove(waiting)
            if expired:
                self._time_out(waiting)
        elif waiting.beat_at and waiting.beat_at <= now:
            self._send_status(waiting.reply, heartbeat(self._ledger))
            waiting.beat_at = now + waiting.heartbeat

    def _sweep(self, now: int) -> None:
        """Drop requests that have expired or whose subscriber has gone."""

        def alive(waiting: WaitingPull) -> bool:
            if waiting.expires_at and waiting.expires_at <= now:
                waiting.ended = True
                self._time_out(waiting)
            elif not self._bus.interest(waiting.reply):
                waiting.ended = True
            return not waiting.ended

        self._queue = deque([waiting for waiting in self._queue if alive(waiting)])
        self._parked = dict.fromkeys(waiting for waiting in self._parked if alive(waiting))

    def _time_out(self, waiting: WaitingPull) -> None:
        self._last_active_ns = self._clock.steady()
        self._send_status(waiting.reply, status_pending(b"408 Request Timeout", waiting.left, waiting.bytes_left))

    def _send_status(self, reply: bytes, header: bytes) -> None:
        self._bus.send(Single(reply, header=header))

    # ------------------------------------------------------------------ life
    def update(self, config: ConsumerConfig) -> None:
        """Take a changed configuration; waiting requests stay, under another policy too."""
        same = config.priority_policy == self._config.priority_policy
        self._config = config
        if same:
            self.policy.update(config)
            return
        self.policy.stop()
        self.policy = policy_of(config, self._advisories, self._clock, self._wake)
        waiting, self._queue = self._queue, deque()
        for one in waiting:
            self.policy.place(self._queue, one)

    def stop(self) -> None:
        self.policy.stop()
        self._queue.clear()
        self._parked.clear()
        self._timer.stop()

    def shut_down(self) -> None:
        for waiting in (*self._queue, *self._parked):
            self._send_status(waiting.reply, status_pending(b"409 Server Shutdown", waiting.left, waiting.bytes_left))
        self.stop()

    def yielded(self) -> None:
        for waiting in (*self._queue, *self._parked):
            self._send_status(waiting.reply, _NEW_LEADER)
        self.stop()

    def deleted(self) -> None:
        for waiting in (*self._queue, *self._parked):
            self._send_status(waiting.reply, _DELETED)
        self.stop()
