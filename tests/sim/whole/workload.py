"""The work of the simulated clients, and what they were promised.

Belongs here: what clients do at random, and a record of every answer that they got: what was acked must be there at the
end, and of a request without an answer either may be true. A broken promise that a client can see itself ends the run.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from tests.sim.events import S
from tests.sim.whole.client import Message, NoAnswer, SimClient

if TYPE_CHECKING:
    from tests.sim.whole.world import World

Sent = tuple[bytes, bytes]
"""Subject and payload."""

NO_MESSAGE = 10037
"""Error code of a message that is not in the stream."""
SETTLE_S = 0.1
KEYS = 5
HASTE_S = 0.15
"""Time for which clients that are in a hurry wait for an answer."""

STALE_NS = 8 * S
"""Longest time for which a server that stood still or was cut off may answer pulls as a leader that it was."""


class Stream:
    """A stream as its clients know it.

    Attributes:
        acked: what each sequence holds that a pub ack named.
        tried: everything that was published.
        keeps: nothing is removed from it but by its consumers (`consumed`).
        once: messages with an id, which must not be stored twice.
        batches: members of each atomic batch; `committed`: those whose commit was acked.
    """

    def __init__(self, name: str, replicas: int, keeps: bool = True, **config: Any) -> None:
        self.name, self.keeps = name, keeps
        usual = {"name": name, "storage": "file", "num_replicas": replicas, "allow_direct": True}
        if not {"mirror", "sources", "subjects"} & config.keys():
            usual["subjects"] = [f"{name}.>"]
        self.config: dict[str, Any] = usual | config
        self.acked: dict[int, Sent] = {}
        self.tried: set[Sent] = set()
        self.once: set[Sent] = set()
        self.consumed: set[int] = set()
        self.batches: dict[str, list[Sent]] = {}
        self.committed: set[str] = set()

    @property
    def replicas(self) -> int:
        """Return the number of replicas."""
        return int(self.config["num_replicas"])


def sequences(reply: bytes) -> tuple[int, int, int]:
    """Return (deliveries, stream sequence, consumer sequence) of the reply subject of a delivered message."""
    parts = reply.split(b".")
    at = 4 if len(parts) == 9 else 6
    return int(parts[at]), int(parts[at + 1]), int(parts[at + 2])


PARTS = ("events", "single", "limits", "bucket", "queue", "copies", "batches", "scaled", "churn", "operator")
"""Parts of the workload, `_make_` of each of which sets it out."""


class Workload:
    """All clients of a run."""

    def __init__(self, world: World, random: Random) -> None:
        self.world, self.random = world, random
        self.streams: dict[str, Stream] = {}
        self.over = False
        self._tasks: list[asyncio.Task[Any]] = []
        self._readers: list[Reader] = []

    async def prepare(self) -> None:
        """Make the streams."""
        self.admin = self.world.client("admin")
        for name in PARTS:
            if not self.world.plan.work or name in self.world.plan.work:
                make: Callable[[], Coroutine[Any, Any, None]] = getattr(self, f"_make_{name}")
                await make()

    def start(self) -> None:
        """Begin the work: `prepare` has set it out."""

    def _begin(self, coro: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self.world.loop.create_task(coro))

    async def finish(self) -> None:
        """End the work: nothing new is published, and readers read to the end."""
        self.over = True
        for task in self._tasks:
            await task
        for reader in self._readers:
            await reader.drain()

    # ------------------------------------------------------------------ requests that are repeated
    async def certain(self, subject: str, body: Any = None, fine: tuple[int, ...] = ()) -> dict[str, Any]:
        """Repeat a request until it succeeds, or fails with one of these error codes."""
        while True:
            try:
                found = await self.admin.api(subject, body)
            except NoAnswer:
                found = {"error": {"err_code": 0}}
            if "error" not in found or found["error"]["err_code"] in fine:
                return found
            await asyncio.sleep(SETTLE_S)

    async def create(self, stream: Stream) -> Stream:
        """Create a stream."""
        self.streams[stream.name] = stream
        await self.certain(f"STREAM.CREATE.{stream.name}", stream.config)
        return stream

    async def consumer(self, stream: Stream, name: str, **config: Any) -> None:
        """Create a consumer."""
        config = {"durable_name": name, "ack_policy": "explicit", "ack_wait": S} | config
        body = {"stream_name": stream.name, "config": config}
        await self.certain(f"CONSUMER.DURABLE.CREATE.{stream.name}.{name}", body)

    # ------------------------------------------------------------------ parts
    async def _make_events(self) -> None:
        """Publish to a replicated stream; read it with a durable pull consumer and with ordered ones."""
        stream = await self.create(Stream("EVENTS", 3))
        for number in range(2):
            self._begin(self._publish(stream, f"events{number}"))
        self._begin(self._publish_once(stream, "once"))
        await self.consumer(stream, "durable")
        self._readers.append(Puller(self, stream, "durable"))
        self._readers.append(OrderedReader(self, stream, "o"))
        for reader in self._readers[-2:]:
            self._begin(reader.work())
        self._begin(self._look_back(stream))
        if self.world.plan.lake:
            # which begins at the end of the work, with the history
            self._readers.append(OrderedReader(self, stream, "late"))

    async def _make_single(self) -> None:
        stream = await self.create(Stream("SINGLE", 1))
        self._begin(self._publish(stream, "single"))

    async def _make_limits(self) -> None:
        """Publish to a stream that limits, purges, deletions and updates keep short."""
        stream = await self.create(Stream("LIMITS", 3, keeps=False, max_msgs=300, max_msgs_per_subject=20))
        self._begin(self._publish(stream, "limits"))
        self._begin(self._shorten(stream))

    async def _make_bucket(self) -> None:
        """Change keys by compare-and-set, and read them."""
        subjects = ["$KV.STATE.>"]
        replicas = 5 if len(self.world.hosts) == 5 else 3
        stream = Stream(
            "KV_STATE",
            replicas,
            keeps=False,
            subjects=subjects,
            max_msgs_per_subject=8,
            allow_rollup_hdrs=True,
            discard="new",
        )
        await self.create(stream)
        bucket = Bucket(self, stream)
        for number in range(3):
            self._begin(bucket.change(f"kv{number}"))
        for host in self.world.hosts.values():  # one at each server: a deposed leader has its readers, too
            self._begin(bucket.read(f"kvread{host.name}", host.address))
            self._begin(bucket.put(f"kvput{host.name}", host.address))

    async def _make_queue(self) -> None:
        """Publish work, and work it off."""
        stream = await self.create(Stream("QUEUE", 3, retention="workqueue"))
        self._begin(self._publish(stream, "queue", most=20))
        await self.consumer(stream, "workers")
        for _ in range(2):
            self._readers.append(Puller(self, stream, "workers"))
            self._begin(self._readers[-1].work())

    async def _make_copies(self) -> None:
        """Mirror one stream, and gather two in another."""
        if "EVENTS" in self.streams:
            await self.create(Stream("MIRROR", 1, keeps=False, mirror={"name": "EVENTS"}))
        if {"EVENTS", "SINGLE"} <= self.streams.keys():
            sources = [{"name": "EVENTS"}, {"name": "SINGLE"}]
            await self.create(Stream("GATHERED", 3, keeps=False, sources=sources))

    async def _make_batches(self) -> None:
        stream = await self.create(Stream("BATCHES", 3, allow_atomic=True))
        self._begin(self._publish_batches(stream, "batches"))

    async def _make_scaled(self) -> None:
        """Publish to a stream whose replicas are added, removed and moved."""
        stream = await self.create(Stream("SCALED", 1))
        self._begin(self._publish(stream, "scaled"))
        self._begin(self._scale(stream))

    async def _make_churn(self) -> None:
        self._begin(self._churn())

    async def _make_operator(self) -> None:
        self._begin(self._operate())

    # ------------------------------------------------------------------ publishers
    async def _publish(self, stream: Stream, name: str, most: int = 200) -> None:
        """Publish bursts of messages, and note which were acked."""
        client = self.world.client(f"pub{name}")
        random, number = client.random, 0
        while not self.over:
            await client.connected.wait()
            asked: list[tuple[Sent, asyncio.Future[Message]]] = []
            for _ in range(min(most, random.choice((1, 1, 10, 100)))):
                number += 1
                sent = self._message(stream, name, number, random)
                asked.append((sent, client.ask(*sent)))
            self.world.messages += len(asked)
            await asyncio.wait([future for _, future in asked], timeout=5)
            for sent, future in asked:
                if future.done() and future.exception() is None:
                    self.acked(stream, sent, future.result())
            await asyncio.sleep(random.choice((0.01, 0.05, 0.2)))

    @staticmethod
    def _message(stream: Stream, name: str, number: int, random: Random) -> Sent:
        subject = b"%b.%d" % (stream.name.encode(), random.randrange(20))
        sent = subject, b"%b-%d-" % (name.encode(), number) + b"x" * random.choice((0, 100, 1000))
        stream.tried.add(sent)
        return sent

    def acked(self, stream: Stream, sent: Sent, answer: Message) -> dict[str, Any]:
        """Note an answer to a publish; return it."""
        ack: dict[str, Any] = msgspec.json.decode(answer.payload) if answer.payload else {"error": {"err_code": 503}}
        if "error" in ack:
            self.world.counts["refused"] += 1
            return ack
        self.world.counts["acked"] += 1
        known = stream.acked.setdefault(ack["seq"], sent)
        if known != sent:
            self.world.violated(f"{stream.name}: sequence {ack['seq']} was acked for {known} and {sent}")
        return ack

    async def _publish_once(self, stream: Stream, name: str) -> None:
        """Publish messages with ids again and again until they are acked."""
        client = self.world.client(f"pub{name}")
        random, number = client.random, 0
        while not self.over:
            number += 1
            sent = self._message(stream, name, number, random)
            stream.once.add(sent)
            header = b"NATS/1.0\r\nNats-Msg-Id: %b-%d\r\n\r\n" % (name.encode(), number)
            while True:
                try:
                    answer = await client.request(*sent, header, timeout=1.0)
                except NoAnswer:
                    pass
                else:
                    if "error" not in self.acked(stream, sent, answer):
                        break
                await asyncio.sleep(0.05)
            self.world.messages += 1
            await asyncio.sleep(random.choice((0.01, 0.1)))

    async def _publish_batches(self, stream: Stream, name: str) -> None:
        """Publish atomic batches."""
        client = self.world.client(f"pub{name}")
        random, number = client.random, 0
        while not self.over:
            number += 1
            await client.connected.wait()
            batch, size = f"{name}-{number}", random.choice((2, 5, 50))
            members = [self._message(stream, f"{batch}-{each}", each, random) for each in range(size)]
            stream.batches[batch] = members
            for at, sent in enumerate(members[:-1], 1):
                header = f"NATS/1.0\r\nNats-Batch-Id: {batch}\r\nNats-Batch-Sequence: {at}\r\n\r\n"
                client.publish(*sent, header=header.encode())
            header = (
                f"NATS/1.0\r\nNats-Batch-Id: {batch}\r\nNats-Batch-Sequence: {size}\r\nNats-Batch-Commit: 1\r\n\r\n"
            )
            self.world.messages += size
            try:
                answer = await client.request(*members[-1], header.encode())
            except NoAnswer:
                continue
            if "error" not in self.acked(stream, members[-1], answer):
                stream.committed.add(batch)
                self.world.counts["batches committed"] += 1
            await asyncio.sleep(random.choice((0.02, 0.1)))

    async def _look_back(self, stream: Stream) -> None:
        """Read old messages by sequence, from the leader or from any replica.

        Checks: a message that was acked is there, as it was published; the lake may be away.
        """
        client = self.world.client("lookback")
        random = client.random
        while not self.over:
            await client.connected.wait()
            await asyncio.sleep(random.choice((0.02, 0.2)))
            if not stream.acked:
                continue
            seq = random.choice(random.choice((list(stream.acked), list(stream.acked)[:100])))
            sent = stream.acked[seq]
            try:
                if random.random() < 0.5:
                    found = await self._got(client, stream, seq)
                else:
                    found = await self._got_directly(client, stream, seq)
            except NoAnswer:
                continue
            self.world.counts["old messages" if found is not None else "old messages refused"] += 1
            if found is not None and found != sent:
                self.world.violated(f"{stream.name}: {seq} was acked for {sent} and is read as {found}")

    async def _got(self, client: SimClient, stream: Stream, seq: int) -> Sent | None:
        """Return a message by `STREAM.MSG.GET`; None if the server cannot tell."""
        answer = await client.api(f"STREAM.MSG.GET.{stream.name}", {"seq": seq}, 12.0)
        if "error" not in answer:
            message = answer["message"]
            return message["subject"].encode(), base64.b64decode(message.get("data", ""))
        if answer["error"]["err_code"] == NO_MESSAGE:
            self.world.violated(f"{stream.name}: {seq} was acked and is not found")
        return None

    async def _got_directly(self, client: SimClient, stream: Stream, seq: int) -> Sent | None:
        """Return a message by direct get; None if the server cannot tell. A replica may not have it yet."""
        subject = f"$JS.API.DIRECT.GET.{stream.name}".encode()
        answer = await client.request(subject, msgspec.json.encode({"seq": seq}), timeout=12.0)
        if answer.status:
            return None
        return answer.field(b"Nats-Subject"), answer.payload

    # ------------------------------------------------------------------ operators
    async def _shorten(self, stream: Stream) -> None:
        """Purge and update a stream, and delete messages."""
        client = self.world.client("shorten")
        random, name = client.random, stream.name
        while not self.over:
            await asyncio.sleep(random.uniform(0.1, 1.5))
            what = random.randrange(4)
            try:
                if what == 0:
                    await client.api(f"STREAM.PURGE.{name}", {"filter": f"{name}.{random.randrange(20)}"})
                elif what == 1 and stream.acked:
                    await client.api(f"STREAM.MSG.DELETE.{name}", {"seq": max(stream.acked)})
                elif what == 2:
                    await client.api(f"STREAM.PURGE.{name}", {"keep": random.choice((1, 50))})
                else:
                    config = stream.config | {"max_msgs": random.choice((100, 300, 1000))}
                    await client.api(f"STREAM.UPDATE.{name}", config)
                self.world.counts["shortened"] += 1
            except NoAnswer:
                continue

    async def _scale(self, stream: Stream) -> None:
        """Change the number of replicas, remove peers; in the end there are three."""
        client = self.world.client("scale")
        random = client.random
        while not self.over:
            await asyncio.sleep(random.uniform(0.5, 4))
            try:
                if random.random() < 0.6:
                    config = stream.config | {"num_replicas": random.choice((1, 3))}
                    await client.api(f"STREAM.UPDATE.{stream.name}", config)
                else:
                    peer = random.choice(list(self.world.hosts))
                    await client.api(f"STREAM.PEER.REMOVE.{stream.name}", {"peer": peer})
                self.world.counts["scaled"] += 1
            except NoAnswer:
                continue
        stream.config |= {"num_replicas": 3}
        await self.certain(f"STREAM.UPDATE.{stream.name}", stream.config)

    async def _churn(self) -> None:
        """Create and delete streams."""
        random, number = Random(f"churn {self.world.plan.seed}"), 0
        while not self.over:
            number += 1
            stream = Stream(f"SHORT{number % 3}", random.choice((1, 3)), keeps=False, subjects=[f"short.{number}.>"])
            await self.certain(f"STREAM.CREATE.{stream.name}", stream.config, (10058,))
            await asyncio.sleep(random.uniform(0, 1))
            await self.certain(f"STREAM.DELETE.{stream.name}", None, (10059,))
            self.world.counts["streams deleted"] += 1

    async def _operate(self) -> None:
        """Have leaders step down."""
        client = self.world.client("operator")
        random = client.random
        while not self.over:
            await asyncio.sleep(random.uniform(0.5, 5))
            try:
                if random.random() < 0.3 or not self.streams:
                    await client.api("META.LEADER.STEPDOWN", {})
                else:
                    await client.api(f"STREAM.LEADER.STEPDOWN.{random.choice(sorted(self.streams))}", {})
                self.world.counts["stepped down"] += 1
            except NoAnswer:
                continue


class Reader:
    """A client that reads a stream to its end."""

    async def work(self) -> None:
        """Read until the work is over."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Read to the end."""
        raise NotImplementedError


class Puller(Reader):
    """A client that pulls from a durable consumer and acks, with a confirmation or without.

    Checks: a message is not sent again once its ack was confirmed; what comes is what was published; in the end
    everything has come.
    """

    def __init__(self, workload: Workload, stream: Stream, consumer: str) -> None:
        self.workload, self.world, self.stream, self.consumer = workload, workload.world, stream, consumer
        number = len(workload._readers)
        self.client = self.world.client(f"pull{number}")
        self.inbox = b"pulled.%d" % number
        self._left = self._pulls = 0
        self._done = asyncio.Event()

    async def work(self) -> None:
        while not self.workload.over:
            await self._pull(self.client.random.choice((1, 10, 100)))

    async def drain(self) -> None:
        while True:
            info = await self.workload.certain(f"CONSUMER.INFO.{self.stream.name}.{self.consumer}")
            if not info["num_pending"] and not info["num_ack_pending"]:
                return
            await self._pull(100)

    async def _pull(self, batch: int) -> None:
        await self.client.connected.wait()
        self._left = batch
        self._done.clear()
        self._pulls += 1
        inbox, began_ns = b"%b.%d" % (self.inbox, self._pulls), self.world.events.now
        sid = self.client.subscribe(inbox, lambda message: self._received(message, began_ns))
        body = msgspec.json.encode({"batch": batch, "expires": S // 2})
        self.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.stream.name}.{self.consumer}".encode(), body, inbox)
        try:
            async with asyncio.timeout(0.6):
                await self._done.wait()
        except TimeoutError:
            pass
        self.client.unsubscribe(sid)

    def _received(self, message: Message, began_ns: int) -> None:
        self.world.messages += 1
        if message.reply.startswith(b"$JS.ACK"):
            self._left -= 1
            self._take(message, began_ns)
        elif message.status:
            self._left = 0
        if self._left <= 0:
            self._done.set()

    def _take(self, message: Message, began_ns: int) -> None:
        stream, random = self.stream, self.client.random
        _, seq, _ = sequences(message.reply)
        sent = (message.subject, message.payload)
        if sent not in stream.tried or stream.acked.get(seq, sent) != sent:
            self.world.violated(f"{stream.name} > {self.consumer}: {seq} came as {sent}, not {stream.acked.get(seq)}")
        self._check(seq, began_ns)
        self.delivered[seq] += 1
        chance = random.random()
        if chance < 0.02:
            return  # it comes again
        stream.consumed.add(seq)
        if chance < 0.5:
            self.client.ask(message.reply, b"+ACK").add_done_callback(lambda answer: self._answered(seq, answer))
        else:
            self.client.publish(message.reply, b"+ACK")

    def _answered(self, seq: int, answer: asyncio.Future[Message]) -> None:
        if answer.exception() is None and not answer.result().status:
            self.confirmed.setdefault(seq, self.world.events.now)
            self.world.counts["confirmed acks"] += 1

    @property
    def delivered(self) -> Counter[int]:
        """Return how often each sequence came to the clients of this consumer."""
        return self.world.delivered.setdefault((self.stream.name, self.consumer), Counter())

    @property
    def confirmed(self) -> dict[int, int]:
        """Return when the ack of each sequence was confirmed."""
        return self.world.confirmed.setdefault((self.stream.name, self.consumer), {})

    def _check(self, seq: int, began_ns: int) -> None:
        """Check that the ack of a message was not confirmed before the pull that brings it again."""
        stale_ns = 0 if began_ns - self.world.calm_ns > STALE_NS else STALE_NS
        if began_ns - self.confirmed.get(seq, 1 << 62) > stale_ns:
            self.world.violated(f"{self.stream.name} > {self.consumer}: {seq} came again after its confirmed ack")


class OrderedReader(Reader):
    """A client with an ordered push consumer, which it makes again after every gap.

    Checks: what comes is what was published, in order and without gaps.

    Args:
        name: begins the names of its consumers, since those of another reader may still be there.
    """

    def __init__(self, workload: Workload, stream: Stream, name: str) -> None:
        self.workload, self.world, self.stream, self._name = workload, workload.world, stream, name
        self.client = self.world.client("ordered")
        self.last = 0  # stream sequence
        self._expected = 1  # consumer sequence
        self._number = 0
        self._sid = 0
        self._heard = 0.0

    async def work(self) -> None:
        while not self.workload.over:
            if self._sid == 0 or self.world.loop.time() - self._heard > 2:
                await self._make()
            await asyncio.sleep(0.2)

    async def drain(self) -> None:
        while True:
            if self._sid == 0 or self.world.loop.time() - self._heard > 2:
                await self._make()
            info = await self.workload.certain(f"STREAM.INFO.{self.stream.name}")
            if self.last >= info["state"]["last_seq"]:
                return
            await asyncio.sleep(0.2)

    async def _make(self) -> None:
        if self._sid:
            self.client.unsubscribe(self._sid)
        self._number += 1
        inbox, self._expected = f"ordered.{self._name}{self._number}", 1
        self._sid = self.client.subscribe(inbox.encode(), lambda message: self._received(inbox, message))
        self._heard = self.world.loop.time()
        config = {
            "name": f"{self._name}{self._number}",
            "deliver_subject": inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self.last + 1,
            "ack_policy": "none",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": S // 2,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 5 * S,
        }
        body = {"stream_name": self.stream.name, "config": config}
        try:
            found = await self.client.api(f"CONSUMER.CREATE.{self.stream.name}.{self._name}{self._number}", body, 1.0)
        except NoAnswer:
            self._again()
            return
        if "error" in found:
            self._again()

    def _again(self) -> None:
        if self._sid:
            self.client.unsubscribe(self._sid)
            self._sid = 0

    def _received(self, inbox: str, message: Message) -> None:
        if self._sid == 0 or inbox != f"ordered.{self._name}{self._number}":
            return
        self._heard = self.world.loop.time()
        if not message.reply.startswith(b"$JS.ACK"):
            if message.reply:  # flow control
                self.client.publish(message.reply, b"")
            elif (last := message.field(b"Nats-Last-Consumer")) and int(last) >= self._expected:
                self._again()
            return
        _, seq, number = sequences(message.reply)
        if number != self._expected:
            self._again()
            return
        self._expected += 1
        self.world.messages += 1
        sent = (message.subject, message.payload)
        if seq != self.last + 1:
            self.world.violated(f"{self.stream.name}: an ordered consumer got {seq} after {self.last}")
        if sent not in self.stream.tried or self.stream.acked.get(seq, sent) != sent:
            self.world.violated(f"{self.stream.name}: an ordered consumer got {sent} as {seq}")
        self.last = seq


class Bucket:
    """Keys that several clients change by compare-and-set.

    Checks: a change that was acked as revision r and expected revision e was the first one after e; a read that began
    after an ack shows that revision or a later one.
    """

    def __init__(self, workload: Workload, stream: Stream) -> None:
        self.workload, self.world, self.stream = workload, workload.world, stream
        self.newest: dict[bytes, int] = {}
        self.changes: list[tuple[bytes, int, int]] = workload.world.changes

    async def change(self, name: str) -> None:
        """Change keys."""
        client = self.world.client(name)
        random, number = client.random, 0
        seen: dict[bytes, int] = {}
        while not self.workload.over:
            await client.connected.wait()
            number += 1
            subject = b"$KV.STATE.%d" % random.randrange(KEYS)
            if subject not in seen or random.random() < 0.3:
                found = await self._get(client, subject)
                if found is None:
                    continue
                seen[subject] = found
            expected = seen[subject]
            header = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % expected
            sent = subject, b"%b-%d" % (name.encode(), number)
            self.stream.tried.add(sent)
            self.world.messages += 1
            try:
                answer = await client.request(*sent, header, timeout=2.0)
            except NoAnswer:
                del seen[subject]
                continue
            ack = self.workload.acked(self.stream, sent, answer)
            if "error" in ack:
                del seen[subject]
                await asyncio.sleep(0.03)
                continue
            self.world.counts["changes"] += 1
            seen[subject] = ack["seq"]
            self.newest[subject] = max(self.newest.get(subject, 0), ack["seq"])
            self.changes.append((subject, expected, ack["seq"]))
            await asyncio.sleep(random.choice((0.01, 0.05)))

    async def put(self, name: str, address: str) -> None:
        """Set keys through one server, without waiting long: soon after an election there are new revisions."""
        client = self.world.client(name, [address])
        random, number = client.random, 0
        while not self.workload.over:
            await client.connected.wait()
            number += 1
            subject = b"$KV.STATE.%d" % random.randrange(KEYS)
            sent = subject, b"%b-%d" % (name.encode(), number)
            self.stream.tried.add(sent)
            self.world.messages += 1
            try:
                answer = await client.request(*sent, timeout=HASTE_S)
            except NoAnswer:
                continue
            ack = self.workload.acked(self.stream, sent, answer)
            if "error" not in ack:
                self.newest[subject] = max(self.newest.get(subject, 0), ack["seq"])
            await asyncio.sleep(random.choice((0.05, 0.2)))

    async def _get(self, client: SimClient, subject: bytes, timeout: float = 8.0) -> int | None:
        """Return the revision of a key, 0 for none; None: no answer."""
        known = self.newest.get(subject, 0)
        try:
            found = await client.api("STREAM.MSG.GET.KV_STATE", {"last_by_subj": subject.decode()}, timeout)
        except NoAnswer:
            return None
        if "error" in found:
            if found["error"]["err_code"] != NO_MESSAGE:
                await asyncio.sleep(0.05)
                return None
            revision = 0
        else:
            revision = found["message"]["seq"]
        if revision < known:
            self.world.violated(
                f"{subject.decode()}: a read that began after revision {known} was acked got {revision}"
            )
        self.world.counts["reads"] += 1
        return int(revision)

    async def read(self, name: str, address: str) -> None:
        """Read keys through one server."""
        client = self.world.client(name, [address])
        while not self.workload.over:
            await client.connected.wait()
            await self._get(client, b"$KV.STATE.%d" % client.random.randrange(KEYS), HASTE_S)
            await asyncio.sleep(0.03)
