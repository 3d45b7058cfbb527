"""A consumer: its parts, its life, and its side of the stream's log.

Belongs here: the two steps of invariant 2 for consumers (creation, update, reset and deletion are applied here when the
stream says that they are committed; progress is logged by the stream in batches, a confirmed ack at once), when a
consumer serves, what the stream tells it, and its numbers. Finding messages is feed.py's, delivering them
delivering.py's and resending.py's, deadlines are redelivery.py's, receivers pull.py's and push.py's, acks acking.py's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakestream.ports import ClientInfo, Subscribed
from lakestream.protocol.api.request import level_refused
from lakestream.protocol.gotime import ZERO, time_ns
from lakestream.protocol.subjects import covers, matches, overlaps
from lakestream.stream.consumer.acking import Acking
from lakestream.stream.consumer.advisories import ConsumerEvents
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.consumer.delivery import Delivering
from lakestream.stream.consumer.feed import Feed
from lakestream.stream.consumer.ledger import Ledger, Snapshot, decode_snapshot, encode_snapshot
from lakestream.stream.consumer.lifetime import Inactivity, Pause
from lakestream.stream.consumer.pull import PullOutlet
from lakestream.stream.consumer.push import PushOutlet
from lakestream.stream.consumer.redelivery import Redelivery
from lakestream.stream.core import offline
from lakestream.stream.core.operations import CreateConsumer, DeleteConsumer, UpdateConsumer

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream


class Consumer:
    """One consumer of one stream. Made by `create` or `restore`, silent until `start`."""

    def __init__(
        self, stream: Stream, name: str, config: bytes, created_ns: int, ledger: Ledger, picked: list[int]
    ) -> None:
        self.stream, self.name, self.created_ns, self.ledger = stream, name, created_ns, ledger
        self.config = offline.consumer_config(name, config)
        self.ephemeral = not self.config.durable_name
        """Whether it never had a durable name, as far as is known since the last start."""
        self.closed = False
        self._filters_changed = False
        self._config_json = config
        self._clock, self._bus = stream.clock, stream.bus
        self.serving = False
        """Whether it delivers and takes acks here: not before `start`, nor while another node leads."""
        self._subscriptions: list[Subscribed] = []
        self.events = ConsumerEvents(stream, name)
        self.feed = Feed(stream, ledger, self.config.filters, picked, self.wake)
        self.redelivery = Redelivery(ledger, stream.clock, self._expired)
        self.delivering = Delivering(self)
        self.acking = Acking(self)
        self.inactivity = Inactivity(self)
        self.pause = Pause(self)
        self.outlet: PullOutlet | PushOutlet = self._make_outlet()
        self._adopt(self.config)

    # ------------------------------------------------------------------ the log's side
    @classmethod
    def create(cls, stream: Stream, operation: CreateConsumer) -> Consumer:
        """Apply a CreateConsumer."""
        picked = operation.pending or []
        delivered = (picked[0] if picked else operation.start) - 1
        ledger = Ledger(delivered, operation.start)
        return cls(stream, operation.name, operation.config, operation.created_ns, ledger, list(picked))

    @classmethod
    def restore(cls, stream: Stream, name: str, snapshot: bytes) -> Consumer:
        """Take a consumer from a checkpoint."""
        saved = decode_snapshot(snapshot)
        ledger = Ledger(saved.state.floor_stream, saved.state.next_seq)
        ledger.apply(saved.state)
        consumer = cls(stream, name, saved.config, saved.created_ns, ledger, saved.picked)
        consumer._filters_changed = True  # it may have been, before
        return consumer

    def snapshot(self) -> bytes:
        """This consumer for a checkpoint."""
        return encode_snapshot(Snapshot(self._config_json, self.created_ns, self.feed.picked, self.ledger.whole()))

    def progress(self) -> bytes | None:
        """What changed since the last call, for a PROGRESS entry; None when nothing did, or when it is not kept."""
        if self._volatile:
            return None
        delta = self.ledger.take_delta()
        if delta is not None:
            self.redelivery.trim()
        return delta

    def whole_progress(self) -> bytes:
        """Everything, for a PROGRESS entry that ends what an earlier leader knew and did not log."""
        return self.ledger.take_whole()

    def apply_progress(self, state: bytes) -> None:
        """Apply a PROGRESS entry: at recovery, and on replicas."""
        self.ledger.apply(state)

    def apply_update(self, operation: UpdateConsumer) -> None:
        """Apply a changed configuration."""
        self._config_json = operation.config
        old, self.config = self.config, offline.consumer_config(self.name, operation.config)
        self.ephemeral = self.ephemeral and not self.config.durable_name
        if old.filters != self.config.filters:
            self._filters_changed = True
            self.feed.choose(self.config.filters)
        self._adopt(self.config)
        if not self.serving:
            self.outlet = self._make_outlet()
        else:
            self.outlet.update(self.config)
            self.pause.settle()
            self.inactivity.arm()
            self.wake()

    def apply_reset(self, seq: int) -> None:
        """Apply CONSUMER.RESET: nothing is pending, the next delivery is consumer sequence 1, from `seq` on."""
        self.ledger.reset(seq)
        self.feed.reset()
        self.redelivery.clear()
        self.redelivery.rebuild()
        self.wake()

    @property
    def volatile(self) -> bool:
        """Whether only this process knows where it is: with `mem_storage`, unless other nodes hold the stream too.

        Any of those may lead next, and a change of leader ends no consumer in nats-server either.
        """
        return self.config.mem_storage and self.stream.config.num_replicas <= 1

    def stream_changed(self) -> None:
        """The stream has another configuration."""
        self._adopt(self.config)

    def _adopt(self, config: ConsumerConfig) -> None:
        """What follows from the configuration is worked out once."""
        self._volatile = self.volatile
        self.ledger.logged = not self._volatile
        self.delivering.adopt(config)
        self.acking.adopt(config)

    def pick(self, seqs: list[int]) -> None:
        """Deliver these first, ascending. For a new consumer that the log need not bring back."""
        self.ledger.begin(seqs[0] - 1)
        self.feed.pick(seqs)

    # ------------------------------------------------------------------ life
    def start(self, recovered: bool = True) -> None:
        """Begin to serve.

        Args:
            recovered: the server has been restarted. A consumer that is `volatile` does not survive that.
        """
        if recovered and self._volatile:
            self.stream.propose(DeleteConsumer(self.name), lambda _: None)
            return
        self.serving = True
        self.feed.rewind()
        self.redelivery.start()
        self.pause.begin()
        self._subscribe()
        self.outlet.start()
        self.inactivity.arm()
        self.wake()

    def rest(self) -> None:
        """Another node serves from now on; `start` begins anew, from what is known here or was logged since."""
        if not self.serving:
            return
        self.serving = False
        self.outlet.yielded()
        self._silence()
        self.acking.rest()
        self.delivering.rest()
        self.outlet = self._make_outlet()

    def recover(self) -> None:
        """What could not be read can be read now: a read that failed may have lost what was about to go out again."""
        if self.serving:
            self.redelivery.rebuild()
            self.wake()

    def stop(self) -> None:
        """Cease to serve; the state stays for the last checkpoint."""
        self.serving = False
        self.closed = True
        self.outlet.shut_down()
        self._silence()

    def deleted(self) -> None:
        """The consumer is gone for good: tell those who wait."""
        if self.closed:
            return
        self.serving = False
        self.closed = True
        self.outlet.deleted()
        self._silence()
        if self.stream.leading:
            self.events.deleted()

    def _subscribe(self) -> None:
        """Listen for pull requests; a push consumer answers them too."""
        tail = f"API.CONSUMER.MSG.NEXT.{self.stream.name}.{self.name}"
        prefixes = ["$JS.", f"$JS.{self.stream.domain}."] if self.stream.domain else ["$JS."]
        self._subscriptions = [self._bus.subscribe((prefix + tail).encode(), self._asked) for prefix in prefixes]

    def _silence(self) -> None:
        for subscription in self._subscriptions:
            subscription.cancel()
        self._subscriptions = []
        self.feed.stop()
        self.redelivery.stop()
        self.inactivity.stop()
        self.pause.stop()
        self.delivering.stop()

    def _make_outlet(self) -> PullOutlet | PushOutlet:
        if not self.config.push:
            numbers = (self._available, self.feed.pending)
            return PullOutlet(self.config, self.ledger, self._bus, self._clock, *numbers, self.wake, self.events)
        prefix = f"$JS.FC.{self.stream.name}.{self.name}.".encode()
        return PushOutlet(
            self.config, self.ledger, self._bus, self._clock, prefix, self.wake, lambda _: self.inactivity.arm()
        )

    # ------------------------------------------------------------------ what the stream tells
    def stored(self, first_seq: int) -> None:
        """Messages from `first_seq` on were committed, some of which this consumer wants: of others it is not told."""
        self.feed.heard(first_seq)
        self.delivering.stored()

    def removed(self, seq: int, subject: bytes) -> None:
        """The stream let a message go."""
        self.feed.removed(seq, subject)
        if self.ledger.pending or self.ledger.redelivered:
            self._lost(seq)

    def _lost(self, seq: int) -> None:
        """A message that may have been delivered is gone."""
        ledger, full = self.ledger, self.delivering.full
        now = self._clock.steady() if self.serving else ledger.last_ack_ns
        if ledger.removed(seq, now, log=self.serving):
            self.redelivery.dequeue(seq)
            if full:
                self.wake()

    def swept(self, seqs: Sequence[int]) -> None:
        """The stream let many messages go at once, of any subjects; ascending."""
        self.feed.swept()
        ledger = self.ledger
        mine = [seq for seq in (*ledger.pending, *ledger.redelivered) if _among(seqs, seq)]
        for seq in dict.fromkeys(mine):
            self._lost(seq)

    def purged(self, subjects: bytes, first_left: int) -> None:
        """The stream was purged of what matches `subjects` (all when empty), and may begin at a higher sequence now.

        `first_left`: of what matches, the first that is left, or could come.
        """
        mine = self.config.filters
        if not subjects or not mine or any(overlaps(one, subjects) for one in mine):
            narrower = subjects and mine and all(covers(subjects, one) for one in mine)
            self.ledger.purged(first_left if narrower else self.stream.store.first_seq)
        self.feed.rewind()
        self.wake()

    def rolled_up(self, seq: int, subject: bytes) -> None:
        """The message at `seq` replaced all before it, of its subject or of the stream (`subject` empty)."""
        if self.ledger.floor_stream >= seq - 1:
            return
        mine = self.config.filters
        if subject and not any(covers(subject, one) for one in mine):
            if mine and not any(matches(one, subject) for one in mine):
                return
            seq = self.stream.store.first_seq  # it has others to deliver, from there on
        if self.ledger.purged(seq):
            self.feed.rewind()
            self.wake()

    # ------------------------------------------------------------------ numbers
    @property
    def num_pending(self) -> int:
        """Messages that match and were not delivered."""
        return self.feed.pending()

    @property
    def mixed(self) -> bool:
        """Whether it may hold messages that its filters do not let through any more."""
        if self._filters_changed and self.serving and not (self.ledger.pending or self.ledger.redelivered):
            # Only who serves knows all that is pending: elsewhere older progress may still come.
            self._filters_changed = bool(self.feed.picked)
        return self._filters_changed

    @property
    def num_waiting(self) -> int:
        """Open pull requests."""
        return len(self.outlet) if isinstance(self.outlet, PullOutlet) else 0

    @property
    def priority_group(self) -> dict[str, Any] | None:
        """The priority group as CONSUMER.INFO shows it; None without a policy."""
        if self.config.priority_policy == "none" or not isinstance(self.outlet, PullOutlet):
            return None
        return self.outlet.policy.shown()

    def unpin(self) -> None:
        """Take the pin away from whoever has it."""
        if isinstance(self.outlet, PullOutlet):
            self.outlet.policy.unpin()

    @property
    def push_bound(self) -> bool:
        """Whether somebody listens on the deliver subject."""
        return isinstance(self.outlet, PushOutlet) and self.outlet.active

    @property
    def pause_until_ns(self) -> int:
        """When deliveries go on, in ns since the epoch; 0 when they were not paused."""
        until = self.config.pause_until
        return 0 if until in (None, ZERO) else time_ns(until)

    def _available(self) -> int:
        return self.feed.pending() + len(self.redelivery)

    # ------------------------------------------------------------------ what the parts share
    def wake(self) -> None:
        """Look for something to deliver at the end of this turn."""
        self.delivering.wake()

    def progressed(self) -> None:
        """The ledger has changed: let the stream log it soon, if it is kept."""
        if not self._volatile:
            self.stream.request_progress()

    def ack_wait(self, deliveries: int) -> int:
        """How long the ack of the n-th delivery may take, in ns."""
        backoff = self.config.backoff
        return backoff[min(deliveries, len(backoff)) - 1] if backoff else self.config.ack_wait

    def _expired(self, seqs: list[int]) -> None:
        """The acks of these messages did not come in time."""
        self.redelivery.enqueue(seqs)
        self.wake()

    # ------------------------------------------------------------------ pull requests
    def _asked(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        """MSG.NEXT as a client sends it."""
        if not reply:
            return
        if header and level_refused(header):
            self._bus.publish(reply, b"", b"NATS/1.0 412 Required Api Level\r\n\r\n", b"")
            return
        self.request(reply, body)

    def request(self, reply: bytes, body: bytes) -> None:
        """Take a pull request, whichever way it came."""
        if isinstance(self.outlet, PullOutlet):
            self.inactivity.last_ns = self._clock.steady()
            self.outlet.request(reply, body)
        else:
            self._bus.publish(reply, b"", b"NATS/1.0 409 Consumer is push based\r\n\r\n", b"")

    def flow_control_reply(self, subject: bytes, header: bytes) -> None:
        """A client answered a flow control request."""
        asked = isinstance(self.outlet, PushOutlet) and self.outlet.flow_control_reply(subject)
        if asked and self.config.ack_policy == "flow_control":
            self.acking.confirmed(header)


def _among(seqs: Sequence[int], seq: int) -> bool:
    """Whether `seq` is one of these, which ascend."""
    if isinstance(seqs, range):
        return seq in seqs
    at = bisect_left(seqs, seq)
    return at < len(seqs) and seqs[at] == seq
