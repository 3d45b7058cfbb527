"""Moving a stream from one running worker to another.

Belongs here: the steps of its old and of its new holder, and the messages that clients send meanwhile. workers.py has
the first worker's part, worker_load.py decides which stream moves where.
"""

# A move has to be invisible: no message lost, doubled or out of order. Workers learn of each other's subscriptions at
# different times, and an ordinary subscriber at either holder brings the stream's messages there, whatever the stream
# has announced. So each worker that sends draws the line, by a call to both holders: what it sent before is the old
# holder's, which passes it on, and what follows is the new one's. Calls and routed messages share one ordered
# connection, so both see the line at the same message. docs/internals/workers.md has the steps, and what a kill leaves.

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.log.store.segment_log import SegmentLog
from lakestream.meta.keeping import SoloKeeping
from lakestream.meta.meta import SoloMeta
from lakestream.meta.node import CALL_TIMEOUT_NS, MetaNode, decode_failure, encode_failure
from lakestream.meta.recovery import RecoveredLog
from lakestream.ports import Bus, ClientInfo, ListedMessages, Messages, Single, Take
from lakestream.protocol.api.errors import ApiError, api_error, for_clients
from lakestream.protocol.decoding import PackDecoder
from lakestream.protocol.subjects import matches
from lakestream.stream.core.feature import NEVER

if TYPE_CHECKING:
    from lakestream.meta.replica import Replica
    from lakestream.stream.assembly import Stream
    from lakestream.stream.dormant import Dormant

GIVE, COME, TAKE, TURN, TURNED, PASS = (
    f"workers.{name}" for name in ("give", "come", "take", "turn", "turned", "pass")
)
"""The calls of a move. The first one begins it, and is answered at its end."""
MOVE_TIMEOUT_NS = 60_000_000_000
"""Maximum time of a move (60 s)."""
MAX_MOVING_BYTES = 16 << 20
"""Bytes of the messages that are held for a stream that moves (16 MiB)."""
HOLD_NS = 4_000_000_000
"""Time for which they are held (4 s), below the timeout of clients. Beyond either, requests have no responders."""
LOOK_NS = 1_000_000
"""Interval at which a stream that is to move is checked for uncommitted entries (1 ms)."""
TURN_AGAIN_NS = 50_000_000
"""Pause before a worker that did not answer is asked again (50 ms), unless it is gone."""
ROUTER = "Router"
"""Kind of the client that stands for another worker."""

Settle = Callable[[Callable[[], None]], None]
"""Calls back once the other workers know the subscriptions that this one has now."""
Guard = Callable[[str, Callable[[bytes, Take], Take] | None], None]
"""Sets the guard of new internal subscriptions of an account, or ends it; see `Hub.guard`."""


class MovedStream(msgspec.Struct, array_like=True, frozen=True):
    """A stream that moves."""

    uid: str
    account: str
    name: str
    subjects: list[str]


_MOVED = PackDecoder(MovedStream)
_MOVE = PackDecoder(tuple[str, str])
_PASSED = PackDecoder(tuple[str, list[Single], set[str]])


class StreamDeparture:
    """A stream that leaves this worker: the messages to it and its consumers that are held for the next holder.

    Args:
        bus: of its account.
        to: the next holder.
        done: called at the end of the move.

    Attributes:
        turned: workers that send to the next holder from now on.
    """

    def __init__(self, moved: MovedStream, bus: Bus, to: str, done: Callable[[ApiError | None], None]) -> None:
        self.moved, self.to, self.done = moved, to, done
        self.turned: set[str] = set()
        self.held: list[Single] = []
        self._bus, self._size, self._is_over = bus, 0, False

    @property
    def key(self) -> tuple[str, str]:
        """Return account and name."""
        return self.moved.account, self.moved.name

    def take(self, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        """Hold messages of a client."""
        if client.kind == ROUTER and client.name in self.turned:
            return end
        for one in messages.messages(begin, end):
            self._size += one.content_bytes
            self.held.append(one)
        if self._is_over or self._size > MAX_MOVING_BYTES:
            self.decline()
        return end

    def decline(self) -> None:
        """Hold nothing any more: requests have no responders."""
        self._is_over = True
        held, self.held = self.held, []
        for one in held:
            if one.reply:
                self._bus.declined(one.subject, one.reply)


class StreamArrival:
    """A stream that comes to this worker: its subscriptions, until all workers have turned to them.

    Attributes:
        turned: workers that have.
        passed: the messages that the old holder held, once it has passed them on, and the workers that turned then.
    """

    def __init__(self, moved: MovedStream, me: str, old: str) -> None:
        self.uid, self.account, self.name, self.old = moved.uid, moved.account, moved.name, old
        self.is_opened = False
        self.turned: set[str] = set()
        self.passed: tuple[list[Single], set[str]] | None = None
        self._name, self._me = moved.name.encode(), me
        self._subjects = {each.encode() for each in moved.subjects}
        self._takes: dict[bytes, Take] = {}
        self._held: list[tuple[Take, ListedMessages, ClientInfo]] = []
        self.is_over = False

    def guard(self, subject: bytes, take: Take) -> Take:
        """Return the function that a new subscription of the stream has for now, its own one for any other."""
        if self.is_over or not self._is_mine(subject):
            return take
        self._takes[subject] = take

        def guarded(messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
            if self.is_over:
                return take(messages, begin, end, client)
            if (client.name if client.kind == ROUTER else self._me) in self.turned:
                self._held.append((take, ListedMessages(list(messages.messages(begin, end))), client))
            return end

        return guarded

    def _is_mine(self, subject: bytes) -> bool:
        return subject in self._subjects or (subject[:4] == b"$JS." and subject.split(b".")[-2:-1] == [self._name])

    def is_complete(self, there: Collection[str]) -> bool:
        """Return True if the old holder has passed on what it held, or is gone, and the senders have turned, or are
        gone: what one has sent before may still be on its way here, and the old holder has it.

        Args:
            there: the workers that are connected.
        """
        if self.passed is None:
            return self.old not in there
        return self.passed[1].intersection(there) <= self.turned

    def end(self) -> None:
        """Take what the old holder has held, then what is held here, and everything directly from now on."""
        self.is_over, passed = True, self.passed[0] if self.passed is not None else []
        client = ClientInfo(0, "", self.account, name=self.old, kind=ROUTER)
        takes = list(self._takes.items())
        before = [
            (take, ListedMessages([one]), client)
            for one in passed
            for subject, take in takes
            if matches(subject, one.subject)
        ]
        for take, messages, sender in [*before, *self._held]:
            at = 0
            while at < len(messages):
                at = take(messages, at, len(messages), sender)


class WorkerKeeping(SoloKeeping):
    """The streams on the disk of a worker, which gives some to other workers and takes some of theirs.

    Args:
        hand_over: notes, on this worker, that another one has a stream (uid, worker).
        settle: see `Settle`.
        guard: see `Guard`.
        store_of: returns the store (`…/jetstream`) of a worker.

    Attributes:
        in_hand: uids of the streams that are being given or taken: no entry about them is acted on.
    """

    def __init__(
        self,
        node: MetaNode,
        meta: SoloMeta,
        hand_over: Callable[[str, str], None],
        settle: Settle,
        guard: Guard,
        store_of: Callable[[str], str],
    ) -> None:
        super().__init__(node, meta)
        self._hand_over, self._settle, self._guard, self._store_of = hand_over, settle, guard, store_of
        self.in_hand: set[str] = set()
        self._arrivals: dict[str, StreamArrival] = {}
        peers = self._peers = node.peers
        peers.serve(GIVE, self._give_asked)
        peers.serve(COME, self._coming)
        peers.serve(TAKE, self._take_asked)
        peers.serve(TURN, self._turn_asked)
        peers.serve(TURNED, lambda worker, body, answer: self._turned(body.decode(), worker))
        peers.serve(PASS, self._passed)
        peers.watch(self._seen)

    # ------------------------------------------------------------------ the old holder
    def _give_asked(self, worker: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        uid, to = _MOVE.decode(body)
        try:
            self._give(uid, to, lambda error: answer(encode_failure(error)))
        except (ApiError, LogError) as error:
            answer(encode_failure(error if isinstance(error, ApiError) else _cannot(for_clients(error))))

    def _give(self, uid: str, to: str, done: Callable[[ApiError | None], None]) -> None:
        """Begin to give a stream to another worker. Raise ApiError, LogError if it has to stay."""
        replica = self._node.replicas.by_uid.get(uid)
        stream = replica.stream if replica is not None else None
        if replica is None or stream is None or not replica.leading or to not in self._peers.connected():
            raise api_error(10008)
        if why := self._reason_to_stay(replica, stream):
            raise _cannot(why)
        from lakestream.stream.dormant import Dormant  # with the first stream

        dormant = Dormant.of(stream, NEVER, False, "")
        moved = MovedStream(uid, replica.account, replica.name, stream.config.subjects)
        departure = StreamDeparture(moved, self._shared.bus_of(replica.account), to, done)
        self._peers.tell(to, COME, msgspec.msgpack.encode(moved))
        self.in_hand.add(uid)
        self._opening[departure.key] = []  # requests that would open it wait
        self._node.local.gone(replica)
        self._node.accounts.of(replica.account).rest(dormant, departure.take)
        stream.use, stream.on_updated = None, lambda _: None
        for consumer in stream.consumers.values():
            consumer.acks.log_confirmed()
        stream.consumers.follow()
        self._shared.clock.call_later(HOLD_NS, departure.decline)
        self._come_to_rest(departure, dormant, replica, stream)

    def _reason_to_stay(self, replica: Replica, stream: Stream) -> str:
        if replica.memory:
            return "it is in memory"
        if stream.config.mirror is not None:
            return "it is a mirror"
        if stream.has_open_batches:
            return "a client publishes a batch"
        if replica.uid in self._node.local.updating or stream.pipeline.pending_operations():
            return "it is being changed"
        return "it is being restored" if stream.hidden else ""

    def _come_to_rest(self, departure: StreamDeparture, dormant: Dormant, replica: Replica, stream: Stream) -> None:
        """Close a stream once everything is committed that it took, and move its files."""
        pipeline, shared = stream.pipeline, self._shared
        if replica.closed:
            self._end_departure(departure, api_error(10059))  # deleted meanwhile
            return
        if stream.failed is not None:
            self._node.accounts.of(replica.account).attach(stream)
            self._end_departure(departure, stream.failed)
            return
        if pipeline.uncommitted() or pipeline.operations or stream.proposer.waiting:
            shared.clock.call_later(LOOK_NS, lambda: self._come_to_rest(departure, dormant, replica, stream))
            return
        self._node.replicas.release(replica)
        self._node.accounts.of(replica.account).rest(dormant, departure.take)
        shared.lake.detached(stream)
        state = stream.dump()

        def move() -> None:
            log = stream.store.log
            if isinstance(log, SegmentLog):
                log.settle_new()
                if log.birth is not None:
                    raise LogError("its files are not durable yet")
            stream.store.close(state)
            shared.stores.give(*departure.key, self._store_of(departure.to))

        def moved(_: None, error: BaseException | None) -> None:
            if error is not None:
                shared.log.error(f"stream {replica.name}: cannot be moved to {departure.to}: {error}")
                self._come_back(departure)
                return
            self._hand_over(replica.uid, departure.to)
            self._node.leaders.forget(replica.uid)
            body = msgspec.msgpack.encode(departure.moved)
            taken = functools.partial(self._taken, departure)
            self._peers.call(departure.to, TAKE, body, lambda got, _: taken(decode_failure(got)), MOVE_TIMEOUT_NS)

        shared.io.submit(move, moved)

    def _come_back(self, departure: StreamDeparture) -> None:
        """Open a stream again whose files could not be moved, and give it what is held."""
        arrival = StreamArrival(departure.moved, self._node.me, self._node.me)
        self._guard(departure.moved.account, arrival.guard)
        self._arrivals[departure.moved.uid] = arrival

        def opened() -> None:
            arrival.passed, departure.held = (departure.held, set()), []
            self._arrived(arrival)
            self._end_departure(departure, _cannot("the server's log has the reason"))

        self._open_later(*departure.key, opened)

    def _taken(self, departure: StreamDeparture, error: ApiError | None) -> None:
        if error is not None:
            self._end_departure(departure, error)
        else:
            self._turn(departure)

    def _turn(self, departure: StreamDeparture) -> None:
        """Have all workers turn to the next holder, also those that have connected meanwhile; then pass on."""
        there = self._peers.connected()
        left = [each for each in there if each not in departure.turned]
        if departure.to not in there:
            self._end_departure(departure, api_error(10008))
            return
        if not left:
            self._end_departure(departure, None)
            return
        waiting, body = set(left), msgspec.msgpack.encode((departure.moved.uid, departure.to))

        def answered(worker: str, got: bytes | None, why: str) -> None:
            waiting.discard(worker)
            if got is not None:
                departure.turned.add(worker)
            if not waiting:
                all_did = departure.turned.issuperset(left)
                self._shared.clock.call_later(0 if all_did else TURN_AGAIN_NS, lambda: self._turn(departure))

        for each in left:
            self._peers.call(each, TURN, body, functools.partial(answered, each), CALL_TIMEOUT_NS)

    def _end_departure(self, departure: StreamDeparture, error: ApiError | None) -> None:
        """End a move here: pass on what is held, or decline it."""
        account, name = departure.key
        streams = self._node.accounts.of(account)
        if name in streams.dormant:
            streams.detach(name)
        passed = (departure.held, departure.turned) if error is None else ([], set[str]())
        body = msgspec.msgpack.encode((departure.moved.uid, *passed))
        if self._peers.tell(departure.to, PASS, body) and error is None:
            departure.held = []
        departure.decline()
        self.in_hand.discard(departure.moved.uid)
        self._run_held(departure.key)
        departure.done(error)

    # ------------------------------------------------------------------ the senders
    def _turn_asked(self, worker: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        uid, to = _MOVE.decode(body)
        if to == self._node.me:
            self._turned(uid, to)
        else:
            self._peers.tell(to, TURNED, uid.encode())
        answer(b"")

    # ------------------------------------------------------------------ the new holder
    def take(self, found: RecoveredLog) -> None:
        if found.stream is not None and found.stream.uid in self._arrivals:
            found.stream.is_handed_over = True
        super().take(found)

    def _coming(self, worker: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        """Note a stream that is about to come: its old holder may die behind the rename, before it asks to take it."""
        moved = _MOVED.decode(body)
        self._arrivals[moved.uid] = StreamArrival(moved, self._node.me, worker)
        self.in_hand.add(moved.uid)

    def _seen(self, worker: str, up: bool) -> None:
        """Go on without a worker that is gone; one that is merely silent is still connected."""
        arrivals = list(self._arrivals.values()) if worker not in self._peers.connected() else []
        for arrival in arrivals:
            arrival.turned.add(worker)
            if arrival.old == self._node.me:
                continue  # it has come back
            if arrival.old == worker and not arrival.is_opened:
                self._find(arrival)
            else:
                self._end_arrival(arrival)

    def _find(self, arrival: StreamArrival) -> None:
        """Open a stream whose old holder is gone, if its files are here."""
        stores, arrival.is_opened = self._shared.stores, True
        directory = stores.directory(arrival.account, arrival.name)

        def looked(is_here: bool | None, error: BaseException | None) -> None:
            if is_here:
                self._open_later(arrival.account, arrival.name, lambda: self._arrived(arrival))
            else:
                self._arrived(arrival)

        self._shared.io.submit(lambda: stores.files.exists(directory), looked)

    def _take_asked(self, worker: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        moved = _MOVED.decode(body)
        if moved.uid in self._node.replicas.by_uid:  # this worker was restarted meanwhile, and has found it
            answer(encode_failure(api_error(10008)))
            return
        if moved.uid not in self._arrivals:
            self._coming(worker, body, answer)
        arrival = self._arrivals[moved.uid]
        arrival.is_opened = True
        self._guard(moved.account, arrival.guard)

        def opened() -> None:
            replica = self._node.replicas.by_uid.get(moved.uid)
            if replica is None or not replica.leading:
                self._arrived(arrival)
                answer(encode_failure(_cannot("it cannot be opened; the server's log has the reason")))
                return
            self._settle(lambda: answer(encode_failure(None)))

        self._open_later(moved.account, moved.name, opened)

    def _end_arrival(self, arrival: StreamArrival) -> None:
        if arrival.is_complete(self._peers.connected()):
            self._arrived(arrival)

    def _turned(self, uid: str, worker: str) -> None:
        if (arrival := self._arrivals.get(uid)) is not None:
            arrival.turned.add(worker)
            self._end_arrival(arrival)

    def _passed(self, worker: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        uid, messages, turned = _PASSED.decode(body)
        if (arrival := self._arrivals.get(uid)) is not None:
            arrival.passed = messages, turned
            self._turned(uid, worker)

    def _arrived(self, arrival: StreamArrival) -> None:
        """Serve a stream like any other from now on."""
        if self._arrivals.pop(arrival.uid, None) is None:
            return
        self.in_hand.discard(arrival.uid)
        self._guard(arrival.account, None)
        arrival.end()
        replica = self._node.replicas.by_uid.get(arrival.uid)
        if replica is not None and replica.stream is not None and replica.leading:  # without the guard
            streams = self._node.accounts.of(arrival.account)
            streams.refresh(replica.stream)
            streams.lead(replica.stream)


def _cannot(why: str) -> ApiError:
    return ApiError(500, 10049, f"the stream cannot be moved to another worker: {why}")
