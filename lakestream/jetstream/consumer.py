"""A consumer: from stored messages to its clients, and from their acks back to the log.

Belongs here: the order of deliveries (redeliveries first, then new messages), what limits them, acks, and the two
steps of invariant 2 for consumers: creation, update, reset and deletion are applied here when the stream says that
they are committed; progress is logged by the stream in batches, a confirmed ack at once. Finding messages is
feed.py's, deadlines are redelivery.py's, receivers are pull.py's and push.py's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lakestream.jetstream import offline
from lakestream.jetstream.api_request import level_refused
from lakestream.jetstream.consumer_config import ConsumerConfig
from lakestream.jetstream.consumer_events import ConsumerEvents
from lakestream.jetstream.consumer_rules import sample_percent
from lakestream.jetstream.consumer_state import Ledger, Snapshot, decode_snapshot, encode_snapshot
from lakestream.jetstream.feed import Feed
from lakestream.jetstream.gotime import time_ns
from lakestream.jetstream.lifetime import Inactivity, Pause
from lakestream.jetstream.operations import CreateConsumer, DeleteConsumer, ResetConsumer, UpdateConsumer
from lakestream.jetstream.ports import ClientInfo, Delivery, Subscribed
from lakestream.jetstream.pull import PullOutlet
from lakestream.jetstream.push import PushOutlet
from lakestream.jetstream.redelivery import Redelivery
from lakestream.jetstream.replay import OriginalPace
from lakestream.jetstream.selection import Found
from lakestream.log.record import Record
from lakestream.protocol.subjects import covers, matches, overlaps

if TYPE_CHECKING:
    from lakestream.jetstream.stream import Stream

TURN_MSGS = 1024
"""A consumer delivers at most this many messages in one turn of the event loop, then lets others run."""

BLOCK_MSGS = 512
"""At most this many messages are read and sent as one block."""

SCAN_COST = 256
"""What a step that looked at messages without finding any counts for in a turn."""


class Consumer:
    """One consumer of one stream. Made by `create` or `restore`, silent until `start`."""

    def __init__(
        self, stream: Stream, name: str, config: bytes, created_ns: int, ledger: Ledger, picked: list[int]
    ) -> None:
        self.stream, self.name, self.created_ns, self.ledger = stream, name, created_ns, ledger
        self.config = offline.consumer_config(name, config)
        self.closed = False
        self._config_json = config
        self._clock, self._bus = stream.clock, stream.bus
        self.serving = False
        """Whether it delivers and takes acks here: not before `start`, nor while another node leads."""
        self._scheduled = False
        self._confirmations: list[bytes] = []
        self._subscriptions: list[Subscribed] = []
        self._remote_redelivery: tuple[int, Record | None] = (0, None)
        self._refetching = False
        self.events = ConsumerEvents(stream.bus, stream.clock, stream.name, name, stream.domain)
        self.feed = Feed(stream, ledger, self.config.filters, picked, self.wake)
        self.redelivery = Redelivery(ledger, stream.clock, self._expired)
        self.pace = OriginalPace(stream.clock, self.wake)
        self.inactivity = Inactivity(self)
        self.pause = Pause(self)
        self.outlet: PullOutlet | PushOutlet = self._make_outlet()
        base = f"{stream.name}.{name}".encode()
        # One formatting operation makes an ack reply; a percent sign in a name must survive it.
        self._reply = b"$JS.ACK." + base.replace(b"%", b"%%") + b".%d.%d.%d.%d.%d"
        self._reply_first = b"$JS.ACK." + base.replace(b"%", b"%%") + b".1.%d.%d.%d.%d"
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
        return cls(stream, name, saved.config, saved.created_ns, ledger, saved.picked)

    def snapshot(self) -> bytes:
        """This consumer for a checkpoint."""
        return encode_snapshot(Snapshot(self._config_json, self.created_ns, self.feed.picked, self.ledger.whole()))

    def progress(self) -> bytes | None:
        """What changed since the last call, for a PROGRESS entry; None when nothing did, or when it is not kept."""
        if self.config.mem_storage:
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
        if old.filters != self.config.filters:
            self.feed.choose(self.config.filters)
        self._adopt(self.config)
        if not self.serving:
            self.outlet = self._make_outlet()
        else:
            self.outlet.update(self.config)
            self.pause.settle()
            self.inactivity.arm()
            self.wake()

    def apply_reset(self, operation: ResetConsumer) -> None:
        """Apply CONSUMER.RESET: nothing is pending, the next delivery is consumer sequence 1."""
        self.ledger.reset(operation.seq)
        self.feed.reset()
        self.redelivery.clear()
        self.redelivery.rebuild()
        self.wake()

    def _adopt(self, config: ConsumerConfig) -> None:
        """What follows from the configuration is worked out once."""
        self._acked = config.ack_policy in ("explicit", "all")
        self._explicit = config.ack_policy == "explicit"
        self._max_pending = config.max_ack_pending if self._acked and config.max_ack_pending > 0 else 0
        self._sample = sample_percent(config)
        self._volatile = config.mem_storage
        self.ledger.logged = not config.mem_storage
        self._plain = config.replay_policy == "instant" and not config.headers_only

    def pick(self, seqs: list[int]) -> None:
        """Deliver these first, ascending. For a new consumer that the log need not bring back."""
        self.ledger.begin(seqs[0] - 1)
        self.feed.pick(seqs)

    # ------------------------------------------------------------------ life
    def start(self, recovered: bool = True) -> None:
        """Begin to serve.

        Args:
            recovered: the server has been restarted. A consumer with `mem_storage` does not survive that.
        """
        if recovered and self.config.mem_storage:
            self.stream.propose(DeleteConsumer(self.name), lambda _: None)
            return
        self.serving = True
        self.feed.rewind()
        self.redelivery.start()
        self.pause.settle()
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
        self._confirmations = []
        self._remote_redelivery = (0, None)
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
        self.redelivery.stop()
        self.inactivity.stop()
        self.pause.stop()
        self.pace.stop()

    def _make_outlet(self) -> PullOutlet | PushOutlet:
        if not self.config.push:
            return PullOutlet(self.config, self.ledger, self._bus, self._clock, self._available, self.wake)
        prefix = f"$JS.FC.{self.stream.name}.{self.name}.".encode()
        return PushOutlet(
            self.config, self.ledger, self._bus, self._clock, prefix, self.wake, lambda _: self.inactivity.arm()
        )

    # ------------------------------------------------------------------ what the stream tells
    def stored(self, first_seq: int, last_seq: int) -> None:
        """Messages were committed."""
        if not self._scheduled and self.outlet.wanting:
            self.wake()

    def removed(self, seq: int, subject: bytes) -> None:
        """The stream let a message go."""
        self.feed.removed(seq, subject)
        ledger = self.ledger
        if ledger.pending or ledger.redelivered:
            full = self._is_full()
            now = self._clock.now() if self.serving else ledger.last_ack_ns
            if ledger.removed(seq, now, log=self.serving):
                self.redelivery.dequeue(seq)
                if full:
                    self.wake()

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
    def num_waiting(self) -> int:
        """Open pull requests."""
        return len(self.outlet) if isinstance(self.outlet, PullOutlet) else 0

    @property
    def push_bound(self) -> bool:
        """Whether somebody listens on the deliver subject."""
        return isinstance(self.outlet, PushOutlet) and self.outlet.active

    @property
    def pause_until_ns(self) -> int:
        """When deliveries go on, in ns since the epoch; 0 when they were not paused."""
        return time_ns(self.config.pause_until) if self.config.pause_until else 0

    def _available(self) -> int:
        return self.feed.pending() + len(self.redelivery)

    def _is_full(self) -> bool:
        return bool(self._max_pending) and len(self.ledger.pending) >= self._max_pending

    # ------------------------------------------------------------------ delivering
    def wake(self) -> None:
        """Look for something to deliver at the end of this turn."""
        if not self._scheduled and self.serving:
            self._scheduled = True
            self._clock.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        budget = TURN_MSGS
        while budget > 0:
            if not self.serving or self.pause.active or self.feed.fetching or self._refetching or self.pace.waiting:
                return
            room = self.outlet.capacity()
            if not room:
                return
            step = self._step(min(room, budget, BLOCK_MSGS))
            if not step:
                return
            budget -= step
        self.wake()

    def _step(self, limit: int) -> int:
        """Deliver one block. Returns what it costs of the turn; 0 when nothing more can be done for now."""
        if len(self.redelivery):
            step = self._redeliver(limit)
            if step or self._refetching or len(self.redelivery):
                return step
        if self._max_pending:
            limit = min(limit, self._max_pending - len(self.ledger.pending))
            if limit <= 0:
                return 0
        found = self.feed.peek(limit)
        if found.records:
            return self._send_new(found)
        if found.remote:
            return 0
        if self.feed.skip(found):
            return SCAN_COST
        self.pace.off()
        self.outlet.caught_up()
        return 0

    def _send_new(self, found: Found) -> int:
        records = found.records
        left = self.feed.pending() - 1
        if self._plain:
            reply, consumer = self._reply_first, self.ledger.delivered_consumer + 1
            messages: list[Delivery] = [
                (one.subject, reply % (one.seq, consumer + at, one.time_ns, left - at), one.header, one.data)
                for at, one in enumerate(records)
            ]
        else:
            messages = self._unusual(records, left)
        taken = self.outlet.send(messages) if messages else 0
        if taken:
            self._account(found, taken)
        return taken

    def _unusual(self, records: Sequence[Record], left: int) -> list[Delivery]:
        """Messages of a consumer that wants headers only, or the pace at which they were stored."""
        if self.config.replay_policy == "original":
            records = self.pace.due(records)
        reply, consumer = self._reply_first, self.ledger.delivered_consumer + 1
        return [
            self._message(record, reply % (record.seq, consumer + at, record.time_ns, left - at))
            for at, record in enumerate(records)
        ]

    def _message(self, record: Record, reply: bytes) -> Delivery:
        if not self.config.headers_only:
            return record.subject, reply, record.header, record.data
        head = record.header[:-2] if record.header else b"NATS/1.0\r\n"
        return record.subject, reply, b"%bNats-Msg-Size: %d\r\n\r\n" % (head, len(record.data)), b""

    def _account(self, found: Found, taken: int) -> None:
        """The first `taken` messages went out."""
        records, ledger, now = found.records, self.ledger, self._clock.now()
        first, last = records[0].seq, records[taken - 1].seq
        self.feed.advance(found, taken)
        if self._acked:
            contiguous = last - first == taken - 1
            seqs = range(first, last + 1) if contiguous else [record.seq for record in records[:taken]]
            deadline = now + self.config.ack_wait
            ledger.deliver(seqs, now, deadline)
            self.redelivery.delivered(seqs, deadline)
        else:
            ledger.deliver_unacked(taken, last, now)
            if self.stream.config.retention != "limits":
                self._done([record.seq for record in records[:taken]])
        if not self._volatile:
            self.stream.request_progress()

    # ------------------------------------------------------------------ redelivering
    def _redeliver(self, limit: int) -> int:
        """Send messages again, in the order in which their time came."""
        redelivery, store = self.redelivery, self.stream.store
        seqs: list[int] = []
        rest: list[int] = []
        taken = [seq for seq in redelivery.take(limit) if not self._exhaust(seq)]
        for at, seq in enumerate(taken):
            if store.is_local(seq) or self._remote_redelivery[0] == seq:
                seqs.append(seq)
            elif seq in store.live:
                rest = taken[at:]
                break
        if rest:
            redelivery.put_back(rest)
            if not seqs:
                self._refetch(rest[0])
                return 0
        records = {record.seq: record for record in store.read_many(sorted(seqs))}
        remote_seq, remote = self._remote_redelivery
        if remote is not None:
            records.setdefault(remote_seq, remote)
        found = [records[seq] for seq in seqs if seq in records]
        if not found:
            return SCAN_COST if len(redelivery) else 0
        return self._send_again(found)

    def _send_again(self, records: Sequence[Record]) -> int:
        ledger, left, now = self.ledger, self.feed.pending(), self._clock.now()
        messages = []
        for at, record in enumerate(records, ledger.delivered_consumer + 1):
            reply = self._reply % (ledger.deliveries(record.seq) + 1, record.seq, at, record.time_ns, left)
            messages.append(self._message(record, reply))
        sent = self.outlet.send(messages)
        if sent < len(records):
            self.redelivery.put_back([record.seq for record in records[sent:]])
        for record in records[:sent]:
            deadline = now + self._ack_wait(ledger.deliveries(record.seq) + 1)
            ledger.redeliver(record.seq, now, deadline)
            self.redelivery.expect(record.seq, deadline)
        if sent:
            self._remote_redelivery = (0, None)
            if not self._volatile:
                self.stream.request_progress()
        return sent

    def _ack_wait(self, deliveries: int) -> int:
        """How long the ack of the n-th delivery may take, in ns."""
        backoff = self.config.backoff
        return backoff[min(deliveries, len(backoff)) - 1] if backoff else self.config.ack_wait

    def _refetch(self, seq: int) -> None:
        """A message to send again is in the lake only."""
        self._refetching = True
        self._clock.spawn(self._fetch_again(seq))

    async def _fetch_again(self, seq: int) -> None:
        try:
            record = await self.stream.fetch(seq)
        except Exception:
            self._clock.call_later(1_000_000_000, self._refetched)
            raise
        if record is None:
            self.redelivery.dequeue(seq)
        else:
            self._remote_redelivery = (seq, record)
        self._refetched()

    def _refetched(self) -> None:
        self._refetching = False
        self.wake()

    def _expired(self, seqs: list[int]) -> None:
        """The acks of these messages did not come in time."""
        self.redelivery.enqueue(seqs)
        self.wake()

    def _exhaust(self, seq: int) -> bool:
        """End a message that went out max_deliver times. False when it may go out again.

        As in nats-server this happens when its turn to go out comes: a pull consumer that nobody asks keeps it pending.
        """
        limit, deliveries = self.config.max_deliver, self.ledger.deliveries(seq)
        if limit <= 0 or deliveries < limit:
            return False
        self.ledger.exhausted(seq, self._clock.now())
        self.events.max_deliveries(seq, deliveries)
        if not self._volatile:
            self.stream.request_progress()
        return True

    # ------------------------------------------------------------------ acks
    def ack(self, seq: int, consumer_seq: int, deliveries: int, reply: bytes, plain: bool = True) -> bool:
        """A client is done with a message. False when it was never delivered (then there is no reply either).

        Args:
            consumer_seq, deliveries: as in the ack subject, for the metric only.
            reply: where the confirmation goes once the ack is on disk (invariant 1); `b""` = nowhere.
            plain: False for +TERM, which is no sample of how long acks take.
        """
        ledger = self.ledger
        if seq > ledger.delivered_stream:
            return False
        full = bool(self._max_pending) and len(ledger.pending) >= self._max_pending
        now = self._clock.now()
        self.inactivity.last_ns = now
        if self._explicit:
            if self._sample and plain and seq in ledger.pending:
                self._sampled(seq, consumer_seq, deliveries, now)
            acked = ledger.ack(seq, now, consumer_seq)
            if len(self.redelivery):
                self.redelivery.dequeue(seq)
            if acked and self.stream.config.retention != "limits":
                self._done([seq])
        elif self._acked:
            if self._sample and seq in ledger.pending:
                self._sampled(seq, consumer_seq, deliveries, now)
            self._ack_through(seq, now)
        if not self._volatile:
            self.stream.request_progress()
        if reply:
            self._confirm(reply)
        if full:
            self.wake()
        return True

    def _ack_through(self, seq: int, now: int) -> None:
        done = self.ledger.ack_through(seq, now)
        for other in done:
            self.redelivery.dequeue(other)
        if done and self.stream.config.retention != "limits":
            self._done(done)

    def _sampled(self, seq: int, consumer_seq: int, deliveries: int, now: int) -> None:
        if self._sample >= 100 or random.randrange(100) < self._sample:
            delivered = self.ledger.deadline[seq] - self._ack_wait(self.ledger.deliveries(seq))
            self.events.acked(consumer_seq, seq, max(now - delivered, 0), deliveries)

    def _done(self, seqs: Sequence[int]) -> None:
        """Interest and work-queue streams may let these go."""
        self.stream.consumer_done(self, seqs)

    def nak(self, seq: int, consumer_seq: int, deliveries: int, delay: int) -> None:
        """A client can not take a message now; it goes out again at once, or after `delay` ns."""
        ledger = self.ledger
        if seq not in ledger.pending:
            return
        self.events.naked(consumer_seq, seq, deliveries)
        if delay > 0:
            self.redelivery.dequeue(seq)
            deadline = self._clock.now() + delay
            ledger.postpone(seq, deadline)
            self.redelivery.expect(seq, deadline)
        else:
            self.redelivery.enqueue((seq,))
        self.wake()

    def in_progress(self, seq: int) -> None:
        """A client is still at work on a message: its ack_wait begins anew."""
        if seq in self.ledger.pending:
            deadline = self._clock.now() + self._ack_wait(self.ledger.deliveries(seq))
            self.ledger.postpone(seq, deadline)
            self.redelivery.expect(seq, deadline)
            if not self._volatile:
                self.stream.request_progress()

    def _confirm(self, reply: bytes) -> None:
        """Answer an ack once it is on disk; all acks of one turn share one entry."""
        if self._volatile:
            self._bus.reply_many([(reply, b"")])
            return
        if not self._confirmations:
            self._clock.call_soon(self._log_confirmations)
        self._confirmations.append(reply)

    def _log_confirmations(self) -> None:
        replies, self._confirmations = self._confirmations, []
        self.stream.progress_now(self, self._answerer(replies))

    def _answerer(self, replies: list[bytes]) -> Callable[[], None]:
        return lambda: self._bus.reply_many([(reply, b"") for reply in replies])

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
            self.inactivity.last_ns = self._clock.now()
            self.outlet.request(reply, body)
        else:
            self._bus.publish(reply, b"", b"NATS/1.0 409 Consumer is push based\r\n\r\n", b"")

    def flow_control_reply(self, subject: bytes) -> None:
        """A client answered a flow control request."""
        if isinstance(self.outlet, PushOutlet):
            self.outlet.flow_control_reply(subject)
