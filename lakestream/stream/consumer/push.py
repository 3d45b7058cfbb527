"""Push consumers: the deliver subject as a delivery target.

Belongs here: interest in the deliver subject, idle heartbeats, flow control and the rate limit (ADR-15 and
docs/internals/consumers.md#push-consumers). Which messages are sent is decided elsewhere.
"""

from __future__ import annotations

import secrets
import string
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate

from lakestream.ports import Bus, Clock, ListedMessages, MessageBlock, Single, Subscribed, Timer
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.consumer.ledger import Ledger
from lakestream.stream.consumer.target import DeliveryTarget, heartbeat, status

WINDOW_BYTES = 32 << 20
"""The largest flow control window (32 MiB); it begins at a sixteenth and doubles with each answer."""

FIRST_WINDOW_BYTES = WINDOW_BYTES // 16

BURST_BYTES = 1 << 20
"""Bytes that a rate-limited consumer may send at once after a pause, unless its stream has a max_msg_size (1 MiB)."""

_ALPHABET = string.digits + string.ascii_letters
_FLOW_CONTROL = status(b"100 FlowControl Request")


class PushTarget(DeliveryTarget):
    """The deliver subject of one consumer.

    Args:
        prefix: `$JS.FC.<stream>.<consumer>.`, the beginning of the reply subjects of flow control requests.
        wake: called when the consumer should look for messages.
        interest_changed: called when the first subscriber has come or the last one has gone.
        max_msg_size: returns that of the stream; not above 0: it has none.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        ledger: Ledger,
        bus: Bus,
        clock: Clock,
        prefix: bytes,
        wake: Callable[[], None],
        interest_changed: Callable[[], None],
        max_msg_size: Callable[[], int],
    ) -> None:
        self._config, self._ledger, self._bus, self._clock = config, ledger, bus, clock
        self._prefix, self._wake, self._interest_changed = prefix, wake, interest_changed
        self._subject = config.deliver_subject.encode()
        self._acked = config.ack_policy == "flow_control"
        """True if the answers to flow control requests are the acks."""
        self._watch: Subscribed | None = None
        self._blocked = False
        self._beat: Timer | None = None
        self._last_sent_ns = 0
        self._stalled = b""
        """The reply subject of the flow control request without an answer."""
        self._stalled_bytes = 0
        self._outstanding = 0
        self._window = FIRST_WINDOW_BYTES
        self._max_msg_size = max_msg_size
        self._tokens = float(self._burst)
        self._tokens_ns = clock.steady()
        self._pace: Timer | None = None

    @property
    def wanting(self) -> bool:
        return self.bound

    # ------------------------------------------------------------------ life
    def start(self) -> None:
        """Watch for subscribers."""
        group = self._config.deliver_group.encode()
        self._watch = self._bus.watch_interest(self._subject, group, self._changed)
        self._changed(self._bus.bound(self._subject, group), first=True)

    def _changed(self, active: bool, first: bool = False) -> None:
        if active == self.bound and not first:
            return
        self.bound = active
        if active:
            self._last_sent_ns = self._clock.steady()
            self._arm_heartbeat(self._config.idle_heartbeat)
            self._wake()
        else:
            if not self._acked:
                # For a new subscriber no bytes are outstanding.
                self._stalled, self._stalled_bytes, self._outstanding = b"", 0, 0
                self._window = FIRST_WINDOW_BYTES
            self._cancel(self._beat)
            self._beat = None
        self._interest_changed()

    def update(self, config: ConsumerConfig) -> None:
        """Take a changed configuration, perhaps with another deliver subject."""
        self.stop()
        self._config = config
        self._subject = config.deliver_subject.encode()
        self.start()

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._cancel(self._beat)
        self._cancel(self._pace)
        self._beat = self._pace = None
        self.bound = False

    @staticmethod
    def _cancel(timer: Timer | None) -> None:
        if timer is not None:
            timer.cancel()

    # ------------------------------------------------------------------ sending
    def capacity(self) -> int:
        if not self.bound or self._blocked or self._pace is not None:
            return 0
        if self._config.flow_control and self._outstanding > self._window:
            return 0
        if not self._bus.writable(self._subject):
            self._blocked = True
            self._bus.when_writable(self._subject, self._drained)
            return 0
        return 1 << 30

    def _drained(self) -> None:
        self._blocked = False
        self._wake()

    def send(self, messages: MessageBlock, again: bool = False) -> int:
        """Send as many messages as the rate limit and the flow control window allow."""
        if self._config.rate_limit_bps:
            messages = self._affordable(messages)
        taken, asking, request = len(messages), 0, b""
        if self._config.flow_control:
            taken, asking, request = self._windowed(messages)
        if not taken:
            return 0
        if self._acked and not self._stalled and self._is_full(taken):
            asking, request = taken, self._request(self._outstanding)
        if not self._deliver(messages, asking, taken, request):
            self._changed(False)
            return 0
        self._last_sent_ns = self._clock.steady()
        return taken

    def _deliver(self, messages: MessageBlock, asking: int, taken: int, request: bytes) -> bool:
        """Send the first `taken` messages, with a flow control request (b"": none) behind `asking` of them. Return
        False without a subscriber."""
        send, subject = self._bus.send, self._subject
        messages.to = subject
        first = asking if request else taken
        if not send(messages if first == len(messages) else messages[:first]):
            return False
        if request:
            send(ListedMessages([Single(subject, request, _FLOW_CONTROL)], to=subject))
            if asking < taken:
                send(messages[asking:taken])
        return True

    # ------------------------------------------------------------------ rate limit
    @property
    def _burst(self) -> int:
        most = self._max_msg_size()
        return most if most > 0 else BURST_BYTES

    def _affordable(self, messages: MessageBlock) -> MessageBlock:
        """Return the messages that the rate limit allows now; a timer wakes the consumer for the rest."""
        now, rate, burst = self._clock.steady(), self._config.rate_limit_bps / 8, self._burst
        earned = (now - self._tokens_ns) * rate / 1e9
        # A message larger than the bucket is sent once the bucket is full, and leaves it negative.
        self._tokens, self._tokens_ns = min(self._tokens + earned, float(burst)), now
        for at, cost in enumerate(messages.sizes()):
            if self._tokens < min(cost, burst):
                wait = (min(cost, burst) - self._tokens) / rate * 1e9
                self._pace = self._clock.call_later(int(wait) + 1, self._paced)
                return messages[:at]
            self._tokens -= cost
        return messages

    def _paced(self) -> None:
        self._pace = None
        self._wake()

    # ------------------------------------------------------------------ flow control
    def _windowed(self, messages: MessageBlock) -> tuple[int, int, bytes]:
        """Return how many messages the window admits, and behind how many of them a request (b"": none) is sent because
        half of the window is outstanding."""
        sizes = list(accumulate(messages.sizes(), initial=self._outstanding))
        if sizes[-1] <= self._window // 2 and not self._stalled:
            self._outstanding = sizes[-1]
            return len(messages), 0, b""
        taken = bisect_right(sizes, self._window, 0, len(messages))
        asking, request = 0, b""
        if taken and not self._stalled:
            at = max(bisect_right(sizes, self._window // 2), 1)
            if at <= taken:
                asking, request = at, self._request(sizes[at])
        if taken and self._stalled:
            # Of messages that are larger than the window the request covers what is beyond it.
            for at in range(max(bisect_left(sizes, self._window + self._stalled_bytes), asking + 1), taken + 1):
                if sizes[at] - self._stalled_bytes >= self._window:
                    self._stalled_bytes += sizes[at] - sizes[at - 1]
        self._outstanding = sizes[taken]
        return taken, asking, request

    def _request(self, covered: int) -> bytes:
        """Return the reply subject of a new flow control request, which covers `covered` outstanding bytes."""
        self._stalled = self._prefix + "".join(secrets.choice(_ALPHABET) for _ in range(4)).encode()
        self._stalled_bytes = covered
        return self._stalled

    def _is_full(self, more: int) -> bool:
        """Return True if max_ack_pending is reached once `more` messages are sent."""
        return len(self._ledger.pending) + more >= self._config.max_ack_pending

    def flow_control_reply(self, subject: bytes) -> bool:
        """Take the answer to a flow control request: what it covers has arrived. Return False for any other subject."""
        if not self._stalled or subject != self._stalled:
            return False
        self._window = min(self._window * 2, WINDOW_BYTES)
        self._outstanding = max(self._outstanding - self._stalled_bytes, 0)
        self._stalled, self._stalled_bytes = b"", 0
        self._wake()
        return True

    # ------------------------------------------------------------------ heartbeats
    def _arm_heartbeat(self, delay: int) -> None:
        if self._config.idle_heartbeat and self._beat is None:
            self._beat = self._clock.call_later(delay, self._tick)

    def _tick(self) -> None:
        """Send a heartbeat if nothing was sent for long enough; deliveries only note their time."""
        self._beat = None
        if not self.bound:
            return
        interval, now = self._config.idle_heartbeat, self._clock.steady()
        silent = now - self._last_sent_ns
        if silent >= interval:
            self._bus.send(Single(self._subject, header=heartbeat(self._ledger, self._stalled)))
            if self._acked and self._ledger.pending and not self._stalled:
                self._bus.send(Single(self._subject, self._request(self._outstanding), _FLOW_CONTROL))
            self._last_sent_ns = now
            silent = 0
        self._arm_heartbeat(interval - silent)
