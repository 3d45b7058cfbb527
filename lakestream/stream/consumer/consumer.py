"""A consumer: its parts, its life, and its side of the stream's log.

Belongs here: applying creation, update, reset and deletion once they are committed (invariant 2; progress is logged by
consumers.py), when a consumer serves, what the stream tells it, and its numbers.

A delivery passes through: feed.py (which messages), delivery.py (the turn), pull.py or push.py (the target), acks.py
and redelivery.py; ledger.py is the state that all of them share.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from lakestream.ports import ClientInfo, Single, Subscribed, singly
from lakestream.protocol.api.request import level_refused
from lakestream.protocol.dead_letters import DeadLetterSetting
from lakestream.protocol.subjects import covers, is_literal, matches, overlaps
from lakestream.spans import Spans
from lakestream.stream.consumer import dead_letters, order_by_key
from lakestream.stream.consumer.acks import AckHandler
from lakestream.stream.consumer.advisories import ConsumerAdvisories
from lakestream.stream.consumer.config import stored_config
from lakestream.stream.consumer.dead_letters import MAX_DELIVER, DeadLetters
from lakestream.stream.consumer.delivery import Deliverer
from lakestream.stream.consumer.feed import Announced, Feed
from lakestream.stream.consumer.ledger import ConsumerSnapshot, Ledger, decode_snapshot, encode_snapshot
from lakestream.stream.consumer.lifetime import Inactivity, Pause
from lakestream.stream.consumer.order_by_key import KeyRule, OrderByKey
from lakestream.stream.consumer.pull import PullTarget
from lakestream.stream.consumer.push import PushTarget
from lakestream.stream.consumer.read_ahead import Room
from lakestream.stream.consumer.redelivery import Redelivery
from lakestream.stream.consumer.spans import DeliverySpans
from lakestream.stream.core.operations import CreateConsumer, DeleteConsumer, UpdateConsumer
from lakestream.stream.core.stream import StreamCore

_PARTS = __name__.rpartition(".")[0]
"""Package of a consumer's parts."""


class Siblings(Protocol):
    """All consumers of the stream, as one of them uses them."""

    @property
    def index(self) -> Announced:
        """Return the filter index, which has the range of announced messages."""

    @property
    def exporter(self) -> Spans | None:
        """Return what exports the spans of traced messages; None: traces are off."""

    @property
    def room(self) -> Room:
        """Return the number of bytes that the consumers have read ahead."""

    def holds(self, consumer: Consumer) -> None:
        """Report removals to a consumer from now on: it has counted or delivered messages."""

    def request_progress(self) -> None:
        """Log the progress of all consumers soon."""

    def progress_now(self, consumer: Consumer, done: Callable[[], object]) -> None:
        """Log one consumer's progress at once; call `done` when it is committed."""

    def released(self, consumer: Consumer, seqs: Sequence[int]) -> None:
        """Take messages that one consumer of an interest or work-queue stream is done with."""


class Consumer:
    """One consumer of one stream. Made by `create` or `restore`, silent until `start`."""

    def __init__(
        self,
        stream: StreamCore,
        siblings: Siblings,
        name: str,
        config: bytes,
        created_ns: int,
        ledger: Ledger,
        picked: list[int],
    ) -> None:
        self.stream, self._siblings = stream, siblings
        self.name, self.created_ns, self.ledger = name, created_ns, ledger
        self.config = stored_config(name, config)
        self.ephemeral = not self.config.durable_name
        """True if it never had a durable name, as far as is known since the last start."""
        self.closed = False
        self.serving = False
        """True while it delivers and takes acks on this node: from `start` on, while this node leads."""
        self._filters_changed = False
        self._config_json = config
        clock = stream.clock
        self._clock, self._bus, self._store = clock, stream.bus, stream.store
        self._subscriptions: list[Subscribed] = []
        self.request_progress = siblings.request_progress
        """Logs the progress of all consumers soon."""
        self.advisories = ConsumerAdvisories(stream.bus, clock, stream.domain, stream.account, stream.name, name)
        self.inactivity = Inactivity(clock, self._unused)
        self.pause = Pause(clock, self.advisories, self.wake)
        counted = partial(siblings.holds, self)
        self.feed = Feed(ledger, stream.store, stream.reader, clock, siblings.room, siblings.index, counted, self.wake)
        self.feed.choose(self.config.filters)
        if picked:
            self.feed.pick(picked)
        calls = (lambda: self.config.max_deliver, self._exhausted, self.wake)
        self.redelivery = Redelivery(ledger, stream.store, stream.reader, clock, *calls)
        self.target: PullTarget | PushTarget = self._make_target()
        label, exporter = (stream.account, stream.name, stream.uid), siblings.exporter
        spans = DeliverySpans(label, name, clock, exporter) if exporter is not None else None
        self.delivery = Deliverer(
            f"{stream.name}.{name}".encode(),
            clock,
            ledger,
            self.feed,
            self.redelivery,
            self.pause,
            self.target,
            self._progressed,
            self.released,
            spans,
        )
        self.acks = AckHandler(
            ledger, self.redelivery, self.inactivity, self.advisories, stream.store, clock, stream.bus, self, spans
        )
        self._letters: DeadLetters | None = None
        self._setting: DeadLetterSetting | None = None
        self._order: OrderByKey | None = None
        self.adopt()
        siblings.holds(self)

    # ------------------------------------------------------------------ the log's side
    @classmethod
    def create(cls, stream: StreamCore, siblings: Siblings, operation: CreateConsumer) -> Consumer:
        """Apply a CreateConsumer."""
        picked = operation.pending or []
        delivered = (picked[0] if picked else operation.start) - 1
        ledger = Ledger(delivered, operation.start)
        return cls(stream, siblings, operation.name, operation.config, operation.created_ns, ledger, list(picked))

    @classmethod
    def restore(cls, stream: StreamCore, siblings: Siblings, name: str, snapshot: bytes) -> Consumer:
        """Take a consumer from a checkpoint."""
        saved = decode_snapshot(snapshot)
        ledger = Ledger(saved.state.floor_stream, saved.state.next_seq)
        ledger.apply(saved.state)
        consumer = cls(stream, siblings, name, saved.config, saved.created_ns, ledger, saved.picked)
        consumer._filters_changed = True  # perhaps, before
        return consumer

    def snapshot(self) -> bytes:
        """Return this consumer for a checkpoint."""
        return encode_snapshot(
            ConsumerSnapshot(self._config_json, self.created_ns, self.feed.picked, self.ledger.whole())
        )

    def progress(self) -> bytes | None:
        """Return the changes since the last call for a PROGRESS entry; None if there are none or none are kept."""
        if self.volatile:
            return None
        delta = self.ledger.take_delta()
        if delta is not None:
            self.redelivery.trim()
        return delta

    def apply_update(self, operation: UpdateConsumer) -> None:
        """Apply a changed configuration, and a reset with it."""
        self._config_json = operation.config
        old, self.config = self.config, stored_config(self.name, operation.config)
        self.ephemeral = self.ephemeral and not self.config.durable_name
        if old.filters != self.config.filters:
            self._filters_changed = True
            self.feed.choose(self.config.filters)
        self.adopt()
        if not self.serving:
            self.target = self.delivery.target = self._make_target()
        else:
            self.target.update(self.config)
            self.pause.change(self.config.pause_until_ns)
            self._watch_inactivity()
            self.wake()
        if operation.reset:
            self.apply_reset(operation.reset)

    def apply_reset(self, seq: int) -> None:
        """Apply CONSUMER.RESET: nothing is pending, the next delivery is consumer sequence 1, from `seq` on."""
        self.ledger.reset(seq)
        self.feed.reset()
        self.redelivery.clear()
        self.redelivery.rebuild()
        self._find_order()
        self.wake()

    def adopt(self) -> None:
        """Take the configurations of consumer and stream: what follows from them is computed once."""
        config, stream = self.config, self.stream.config
        self.volatile = config.mem_storage and stream.num_replicas <= 1
        """True if only this process knows its state: `mem_storage`, and no other node holds the stream.

        With other nodes, any of which may lead next, the state is logged: a change of leader ends no consumer in
        nats-server either.
        """
        self.ledger.logged = not self.volatile
        self._take_letters(dead_letters.stored_setting(config))
        self._take_rule(order_by_key.stored_rule(config))
        self.delivery.adopt(config, stream.retention)
        self.acks.adopt(config, stream.retention, self.volatile)

    def _take_letters(self, setting: DeadLetterSetting | None) -> None:
        """Begin, or cease, to make dead letters; those on their way to another subject are sent again."""
        if setting == self._setting:
            return
        if self._letters is not None:
            self._letters.stop()
        stream, letters = self.stream, None
        if setting is not None:
            origin = (stream.name, self.name, f"{stream.uid}.{self.name}.{self.created_ns}")
            parts = (self.ledger.pending, stream.store, stream.reader, stream.bus, stream.clock)
            letters = DeadLetters(setting, origin, *parts, self._letter_stored)
        self._setting = setting
        self._letters = self.redelivery.letters = self.acks.letters = letters
        if self.serving:
            self.redelivery.rebuild()

    def _take_rule(self, rule: KeyRule | None) -> None:
        """Begin, or cease, to order messages by a key."""
        old = self._order
        if rule == (old.rule if old is not None else None):
            return
        parts = (self.ledger, self.redelivery, self._store, self.stream.reader, self._clock, self.wake)
        self._order = self.delivery.order = self.acks.order = None if rule is None else OrderByKey(rule, *parts)
        if self.serving:
            self._find_order()

    def _find_order(self) -> None:
        """Find out which messages are held back, from the ledger; without a key deliver them."""
        if self._order is not None:
            self._order.start()
        elif self.config.ack_policy == "explicit":
            self.redelivery.enqueue(self.ledger.held())

    def _letter_stored(self, seq: int, deliveries: int, reply: bytes) -> None:
        if self.serving:
            self.acks.ack(seq, 0, deliveries, reply, plain=False)

    def pick(self, seqs: list[int]) -> None:
        """Deliver these messages first, ascending. For a new volatile consumer."""
        self.ledger.begin(seqs[0] - 1)
        self.feed.pick(seqs)

    # ------------------------------------------------------------------ life
    def start(self, recovered: bool = True) -> None:
        """Serve from now on.

        Args:
            recovered: the server was restarted. A `volatile` consumer does not survive that.
        """
        if recovered and self.volatile:
            self.stream.propose(DeleteConsumer(self.name), volatile=True)
            return
        self.serving = True
        self.delivery.start()
        self.feed.rewind()
        self.redelivery.start()
        self._find_order()
        self.pause.begin(self.config.pause_until_ns)
        self._subscribe()
        self.target.start()
        self._watch_inactivity()
        self.wake()

    def rest(self) -> None:
        """Cease to serve: another node does. `start` begins anew from what is known here or was logged since."""
        if not self.serving:
            return
        self.serving = False
        self.target.yielded()
        self._silence()
        self.acks.rest()
        self.target = self.delivery.target = self._make_target()

    def recover(self) -> None:
        """Deliver pending messages whose read may have failed: the damaged segment was repaired."""
        if self.serving:
            self.redelivery.rebuild()
            self._find_order()
            self.wake()

    def stop(self) -> None:
        """Cease to serve for good; the state stays for the last checkpoint."""
        self.serving = False
        self.closed = True
        self.target.shut_down()
        self._silence()

    def deleted(self) -> None:
        """End a deleted consumer and tell its clients."""
        if self.closed:
            return
        self.serving = False
        self.closed = True
        self.target.deleted()
        self._silence()
        if self.stream.leading:
            self.advisories.deleted()
        from lakestream.ended import reexamine  # once something ends

        reexamine(self, (_PARTS,), self.stream, self._siblings)

    def _unused(self) -> None:
        """Delete the consumer: it was not used for `inactive_threshold`."""
        self.stream.propose(DeleteConsumer(self.name), volatile=self.volatile)

    def _watch_inactivity(self) -> None:
        self.inactivity.watch(self.config, self.target)

    def _subscribe(self) -> None:
        """Listen for pull requests; a push consumer answers them too."""
        suffix = f"API.CONSUMER.MSG.NEXT.{self.stream.name}.{self.name}"
        prefixes = ["$JS.", f"$JS.{self.stream.domain}."] if self.stream.domain else ["$JS."]
        self._subscriptions = [
            self._bus.subscribe((prefix + suffix).encode(), singly(self._asked)) for prefix in prefixes
        ]

    def _silence(self) -> None:
        for subscription in self._subscriptions:
            subscription.cancel()
        self._subscriptions = []
        if self._letters is not None:
            self._letters.stop()
        if self._order is not None:
            self._order.stop()
        self.feed.stop()
        self.redelivery.stop()
        self.inactivity.stop()
        self.pause.stop()
        self.delivery.stop()

    def _make_target(self) -> PullTarget | PushTarget:
        if not self.config.push:
            numbers = (self._available, self.feed.pending, self._blocked)
            return PullTarget(self.config, self.ledger, self._bus, self._clock, *numbers, self.wake, self.advisories)
        prefix = f"$JS.FC.{self.stream.name}.{self.name}.".encode()
        config, calls = self.config, (self.wake, self._watch_inactivity, lambda: self.stream.config.max_msg_size)
        return PushTarget(config, self.ledger, self._bus, self._clock, prefix, *calls)

    # ------------------------------------------------------------------ events of the stream
    def stored(self, first_seq: int) -> None:
        """Note that messages from `first_seq` on were committed, some of which match."""
        self.feed.notify(first_seq)
        self.delivery.stored()

    def removed(self, seq: int, subject: bytes) -> bool:
        """Note that a message was removed from the stream. Return False if no other one has been counted or delivered
        and not acked."""
        self.feed.removed(seq, subject)
        ledger = self.ledger
        if ledger.pending or ledger.redelivered:
            self._lost(seq)
        # Invariant: a message is counted before it is delivered, so nothing is delivered without `Siblings.holds`.
        return bool(self.feed.counted or ledger.pending or ledger.redelivered)

    def _lost(self, seq: int) -> None:
        """Treat a removed message as acked."""
        ledger, full = self.ledger, self.delivery.full
        now = self._clock.steady() if self.serving else ledger.last_ack_ns
        if ledger.removed(seq, now, log=self.serving):
            self.redelivery.dequeue(seq)
            if self._order is not None:
                self._order.settled((seq,))
            if full:
                self.wake()

    def swept(self, seqs: Sequence[int]) -> None:
        """Note that many messages were removed at once, of any subjects; ascending."""
        self.feed.swept()
        ledger = self.ledger
        mine = [seq for seq in (*ledger.pending, *ledger.redelivered) if _among(seqs, seq)]
        for seq in dict.fromkeys(mine):
            self._lost(seq)

    def purged(self, subjects: bytes, first_left: int) -> None:
        """Note a purge of what matches `subjects` (everything if empty).

        `first_left`: the first matching sequence that is left, or the next one.
        """
        mine = self.config.filters
        if not subjects or not mine or any(overlaps(one, subjects) for one in mine):
            narrower = subjects and mine and all(covers(subjects, one) for one in mine)
            self.ledger.purged(first_left if narrower else self._store.first_seq)
        self.rebased()

    def rolled_up(self, seq: int, subject: bytes) -> None:
        """Note that the message at `seq` replaced all before it that its subject matches, or of the stream (`subject`
        empty)."""
        if not is_literal(subject):
            self.purged(subject, seq)
            return
        if self.ledger.floor_stream >= seq - 1:
            return
        mine = self.config.filters
        if subject and not (mine and all(covers(subject, one) for one in mine)):
            if mine and not any(matches(one, subject) for one in mine):
                return
            seq = self._store.first_seq  # it has others to deliver, from there on
        if self.ledger.purged(seq):
            self.rebased()

    def rebased(self) -> None:
        """Look at the store anew."""
        self.feed.rewind()
        self.wake()

    # ------------------------------------------------------------------ numbers
    @property
    def mixed(self) -> bool:
        """Return True if it may hold messages that its filters do not match any more."""
        if self._filters_changed and self.serving and not (self.ledger.pending or self.ledger.redelivered):
            # Only the leader knows all that is pending: elsewhere older progress may still come.
            self._filters_changed = bool(self.feed.picked)
        return self._filters_changed

    @property
    def is_quiet(self) -> bool:
        """Return True if it does nothing before the next request of a client: it has no timer, waits for no ack, and is
        not ended by a start."""
        config, awaited = self.config, len(self.ledger.pending) + len(self.redelivery)
        return not (config.push or config.inactive_threshold or self.volatile or self.pause.active or awaited)

    @property
    def num_waiting(self) -> int:
        """Return the number of open pull requests."""
        return len(self.target) if isinstance(self.target, PullTarget) else 0

    @property
    def priority_group(self) -> dict[str, Any] | None:
        """Return the priority group for CONSUMER.INFO; None without a policy."""
        if self.config.priority_policy == "none" or not isinstance(self.target, PullTarget):
            return None
        return self.target.policy.shown()

    def unpin(self) -> None:
        """Take the pin from its client (CONSUMER.UNPIN)."""
        if isinstance(self.target, PullTarget):
            self.target.policy.unpin()

    def _available(self) -> int:
        return self.feed.pending() + len(self.redelivery)

    def _blocked(self) -> bool:
        return self.delivery.full or self.pause.active

    # ------------------------------------------------------------------ callbacks of the parts
    def wake(self) -> None:
        """Deliver at the end of this turn, if there is something to deliver."""
        self.delivery.wake()

    def _progressed(self) -> None:
        """Let the ledger's changes be logged soon, if they are kept."""
        if not self.volatile:
            self.request_progress()

    def progress_now(self, done: Callable[[], object]) -> None:
        """Log this consumer's progress at once; call `done` when it is committed."""
        self._siblings.progress_now(self, done)

    def released(self, seqs: Sequence[int]) -> None:
        """Take messages of an interest or work-queue stream that this consumer is done with."""
        self._siblings.released(self, seqs)

    def _exhausted(self, seq: int, deliveries: int) -> bool:
        """Report a message that was delivered max_deliver times. Return False if it becomes a dead letter."""
        self.advisories.max_deliveries(seq, deliveries)
        if self._letters is not None and self._letters.takes(MAX_DELIVER):
            self._letters.send(seq, deliveries, MAX_DELIVER)
            return False
        if self._order is not None:
            self._order.settled((seq,))
        self._progressed()
        return True

    # ------------------------------------------------------------------ requests of clients
    def _asked(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        """Take a MSG.NEXT request."""
        if not reply:
            return
        if header and level_refused(header):
            self._bus.send(Single(reply, header=b"NATS/1.0 412 Required Api Level\r\n\r\n"))
            return
        self.request(reply, body)

    def request(self, reply: bytes, body: bytes) -> None:
        """Take a pull request, of MSG.NEXT or behind an ack (+NXT)."""
        if isinstance(self.target, PullTarget):
            self.inactivity.last_ns = self._clock.steady()
            target = self.target
            self.feed.when_counted(lambda: target.request(reply, body))
        else:
            self._bus.send(Single(reply, header=b"NATS/1.0 409 Consumer is push based\r\n\r\n"))

    def flow_control_reply(self, subject: bytes, header: bytes) -> None:
        """Take the answer to a flow control request."""
        asked = isinstance(self.target, PushTarget) and self.target.flow_control_reply(subject)
        if asked and self.config.ack_policy == "flow_control":
            self.acks.confirmed(header)


def _among(seqs: Sequence[int], seq: int) -> bool:
    """Return True if `seq` is one of these ascending sequences."""
    if isinstance(seqs, range):
        return seq in seqs
    at = bisect_left(seqs, seq)
    return at < len(seqs) and seqs[at] == seq
