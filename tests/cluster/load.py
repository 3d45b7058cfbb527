"""Clients that use a cluster all the time, and an audit of what the cluster acked.

Belongs here: publishers and a reader with nats-py, in an event loop of their own thread; their acks; and the audit of
the cluster against them. The tests inject the failures.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from tests.chaos.audit import Stored, read_all
from tests.cluster.nodes import Cluster, Node, until
from tests.servers import Kind

STREAM = "LOAD"
SUBJECTS = "load.>"
SECOND = 1_000_000_000
WINDOW_S = 3600
"""Duplicate window, far longer than any test takes."""
ACK_TIMEOUT_S = 1.0
PAUSE_S = 0.05
IN_FLIGHT = 16
HURRY_S = 0.01
"""Pause between two publishes of a hurried publisher: the cluster is busy, but the machine not the bottleneck."""
ACK_WAIT_S = 3
CONFIRM_EVERY = 10
UNDER_WAY_S = 2.0
"""A redelivered message may have been in flight when its ack was confirmed, but not longer than this …"""
UNDER_WAY_PARTED_S = 7.0
"""… except for a first delivery.

A connection between nodes survives 5 s of silence, and then delivers what a former leader had sent before it was cut
off or stopped.
"""
DRAIN_S = 30.0
AUDIT_TIMEOUT_S = 20.0


class Ack(NamedTuple):
    """Acked publish: number, sequence, times of the first attempt and of the ack, number of attempts."""

    number: int
    seq: int
    began: float
    at: float
    tries: int


def payload(name: str, number: int) -> bytes:
    """Return the data of a publisher's message, from which its integrity can be checked."""
    return b"%s:%d:" % (name.encode(), number) + b"x" * (number * 7919 % 1500)


class Publisher:
    """Publishes numbered messages on a subject of its own and keeps every ack.

    patient: one message at a time, each retried until it is acked, so that the stream must hold them all, in order.
    Otherwise many at a time, each tried once: the acked ones must be there.
    """

    def __init__(self, name: str, patient: bool, timeout: float) -> None:
        self.name = name
        self.patient = patient
        self.timeout = timeout
        self.acks: list[Ack] = []
        self.failures: list[str] = []
        self._numbers = itertools.count(1)

    async def run(self, js: JetStreamContext, stopped: asyncio.Event) -> None:
        """Publish until `stopped`."""
        if self.patient:
            while not stopped.is_set():
                await self._insist(js, next(self._numbers))
        else:
            await asyncio.gather(*(self._hurry(js, stopped) for _ in range(IN_FLIGHT)))

    async def _insist(self, js: JetStreamContext, number: int) -> None:
        began = time.monotonic()
        for tries in itertools.count(1):
            if await self._try(js, number, began, tries):
                return
            await asyncio.sleep(PAUSE_S)

    async def _hurry(self, js: JetStreamContext, stopped: asyncio.Event) -> None:
        while not stopped.is_set():
            done = await self._try(js, next(self._numbers), time.monotonic(), 1)
            await asyncio.sleep(HURRY_S if done else PAUSE_S)

    async def _try(self, js: JetStreamContext, number: int, began: float, tries: int) -> bool:
        headers = {"Nats-Msg-Id": f"{self.name}-{number}"}
        data = payload(self.name, number)
        try:
            ack = await js.publish(f"load.{self.name}", data, timeout=self.timeout, headers=headers)
        except Exception as error:  # after any error the message may be missing
            self.failures.append(f"{number}: {type(error).__name__} {error}")
            return False
        self.acks.append(Ack(number, ack.seq, began, time.monotonic(), tries))
        return True


class Reader:
    """Reads the stream through a durable pull consumer and acks everything, a part with confirmation."""

    def __init__(self) -> None:
        self.seen: dict[int, str] = {}
        self.changed: list[str] = []
        self.again: list[int] = []
        self._confirmed: dict[int, float] = {}

    async def run(self, js: JetStreamContext, stopped: asyncio.Event) -> None:
        """Read until `stopped`."""
        subscription = None
        while not stopped.is_set():
            try:
                if subscription is None:
                    config = ConsumerConfig(
                        ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT_S, max_ack_pending=10_000, max_deliver=-1
                    )
                    subscription = await js.pull_subscribe(SUBJECTS, "reader", stream=STREAM, config=config)
                messages = await subscription.fetch(100, timeout=1)
            except NatsTimeout:
                continue
            except Exception:  # no leader at the moment
                await asyncio.sleep(PAUSE_S)
                continue
            for message in messages:
                await self._take(message)

    async def _take(self, message: Msg) -> None:
        seq, msg_id = message.metadata.sequence.stream, (message.headers or {}).get("Nats-Msg-Id", "")
        if self.seen.setdefault(seq, msg_id) != msg_id:
            self.changed.append(f"{seq}: {self.seen[seq]} then {msg_id}")
        late = time.monotonic() - self._confirmed.get(seq, time.monotonic())
        if late > (UNDER_WAY_PARTED_S if message.metadata.num_delivered == 1 else UNDER_WAY_S):
            self.again.append(seq)
        with contextlib.suppress(Exception):
            if seq % CONFIRM_EVERY:
                await message.ack()
            else:
                await message.ack_sync(timeout=1)
                self._confirmed.setdefault(seq, time.monotonic())


class Load:
    """Publishers and a reader on a cluster for the duration of a `with` block; each client starts on another node.

    Args:
        patient: number of publishers that send one message at a time.
        hurried: number of publishers that keep many in flight.
        timeout: seconds that a client waits for an ack before it tries again.
    """

    def __init__(
        self, cluster: Cluster, *, patient: int = 3, hurried: int = 1, timeout: float = ACK_TIMEOUT_S, replicas: int = 3
    ) -> None:
        self.cluster = cluster
        names = [(f"p{n}", True) for n in range(patient)] + [(f"h{n}", False) for n in range(hurried)]
        self.publishers = [Publisher(name, of, timeout) for name, of in names]
        self.reader = Reader()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="load", daemon=True)
        self._work: Any = None
        self._stopped: asyncio.Event | None = None
        self._reader_stopped: asyncio.Event | None = None
        self._clients: list[Client] = []
        cluster.stream(STREAM, [SUBJECTS], replicas, duplicate_window=WINDOW_S * SECOND)

    def __enter__(self) -> Load:
        self._thread.start()
        self._do(self._begin())
        self.wait_acks(20)
        return self

    def __exit__(self, *exc: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DRAIN_S)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * DRAIN_S)

    async def _begin(self) -> None:
        self._stopped, self._reader_stopped = asyncio.Event(), asyncio.Event()
        publishing = []
        for number, publisher in enumerate(self.publishers):
            js = await self._client(number, publisher.timeout)
            publishing.append(asyncio.create_task(publisher.run(js, self._stopped)))
        reading = asyncio.create_task(
            self.reader.run(await self._client(len(self.publishers), ACK_TIMEOUT_S), self._reader_stopped)
        )
        self._work = (publishing, reading)

    async def _client(self, number: int, timeout: float) -> JetStreamContext:
        urls = self.cluster.urls
        first = number % len(urls)
        client = await nats.connect(
            urls[first:] + urls[:first],
            dont_randomize=True,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            connect_timeout=2,
            ping_interval=1,
            max_outstanding_pings=2,
            error_cb=_ignore,
        )
        self._clients.append(client)
        return client.jetstream(timeout=timeout)

    async def _end(self) -> None:
        assert self._stopped is not None
        assert self._reader_stopped is not None
        self._stopped.set()
        publishing, reading = self._work
        try:
            async with asyncio.timeout(DRAIN_S):
                await asyncio.gather(*publishing)
        finally:
            for task in publishing:
                task.cancel()
            last = max((ack.seq for publisher in self.publishers for ack in publisher.acks), default=0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    while len(self.reader.seen) < last:
                        await asyncio.sleep(PAUSE_S)
            self._reader_stopped.set()
            await reading
            for client in self._clients:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(client.close(), 5)
            left = asyncio.all_tasks() - {asyncio.current_task()}  # of clients that were reconnecting
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    # ---- observations while it runs

    @property
    def acked(self) -> int:
        """Return the number of acked publishes."""
        return sum(len(publisher.acks) for publisher in self.publishers)

    def wait_acks(self, count: int, timeout: float = 30.0) -> None:
        """Wait for `count` more acks of every patient publisher."""
        patient = [publisher for publisher in self.publishers if publisher.patient]
        goals = [len(publisher.acks) + count for publisher in patient]

        def reached() -> bool:
            return all(len(one.acks) >= goal for one, goal in zip(patient, goals, strict=True))

        until(reached, f"{count} more acks of everyone (failures: {self.recent_failures()})", timeout)

    def recent_failures(self) -> list[str]:
        """Return the newest failures of each publisher."""
        return [failure for publisher in self.publishers for failure in publisher.failures[-2:]]

    def outage(self, since: float) -> tuple[float, float]:
        """Return the seconds from `since` until the first, and until every, patient publisher got an ack.

        A message counts if it was first tried after `since`, or was in flight then.
        """
        waits = []
        for publisher in self.publishers:
            if publisher.patient:
                after = next((ack.at for ack in publisher.acks if ack.at > since and ack.tries > 1), None)
                first = next((ack.at for ack in publisher.acks if ack.began > since), None)
                known = [moment for moment in (after, first) if moment is not None]
                assert known, f"{publisher.name} never got an ack again"
                # the message in flight comes first; if none was in flight, the next one counts
                waits.append((after if after is not None and after <= (first or after) else known[-1]) - since)
        return min(waits), max(waits)

    def longest_gap(self, since: float) -> float:
        """Return the longest time after `since` in which no patient publisher got an ack."""
        moments = sorted(ack.at for one in self.publishers if one.patient for ack in one.acks if ack.at > since)
        return max((b - a for a, b in itertools.pairwise([since, *moments])), default=0.0)

    # ---- the audit

    def audit(self) -> str:
        """Check every replica of the stream against all acks; return a line of figures."""
        self.cluster.wait_current(STREAM)
        last = max((ack.seq for publisher in self.publishers for ack in publisher.acks), default=0)
        copies = {}
        for node in self.cluster.running:
            copies[node.name] = stored = self._read(node, last)
            compare(self.publishers, stored, node.name)
        contents = list(copies.values())
        assert all(content == contents[0] for content in contents), "replicas differ"
        stored_ids = {message.seq: message.msg_id for message in contents[0]}
        assert not self.reader.changed, f"another message was delivered later: {self.reader.changed}"
        if self.cluster.kind is Kind.OURS:  # nats-server confirms acks before a majority has them
            assert not self.reader.again, f"delivered again after a confirmed ack: {self.reader.again[:20]}"
        phantoms = {seq: name for seq, name in self.reader.seen.items() if stored_ids.get(seq) != name}
        assert not phantoms, f"delivered, and not in the stream: {phantoms}"
        unread = sorted(set(stored_ids) - set(self.reader.seen))
        assert not unread, f"never delivered: {unread[:20]} … ({len(unread)} of {len(stored_ids)})"
        failures = sum(len(publisher.failures) for publisher in self.publishers)
        return f"{self.acked} acked, {failures} tries failed, {len(stored_ids)} stored"

    def _read(self, node: Node, last: int) -> list[Stored]:
        """Return the messages of a node's own replica, which answers direct gets of clients on that node."""
        with self.cluster.wire(node, AUDIT_TIMEOUT_S) as wire:

            def whole() -> list[Stored]:
                stored = list(read_all(wire, STREAM))
                return stored if stored and stored[-1].seq >= last else []

            found: list[Stored] = until(whole, f"messages through {last} at {node.name}", AUDIT_TIMEOUT_S)
            return found

    def most_tries(self) -> int:
        """Return the highest number of attempts for a message of a patient publisher."""
        return max(ack.tries for publisher in self.publishers if publisher.patient for ack in publisher.acks)


def compare(publishers: Sequence[Publisher], stored: Sequence[Stored], where: str) -> None:
    """Compare a replica with the publishers' acks.

    Raises:
        AssertionError: an acked message is missing, duplicated, changed, out of order or at another sequence.
    """
    sequences = [message.seq for message in stored]
    assert sequences == list(range(1, len(stored) + 1)), f"{where}: sequences have holes"
    by_id = {message.msg_id: message for message in stored}
    assert len(by_id) == len(stored), f"{where}: stored twice: {_twice(stored)}"
    for publisher in publishers:
        mine = [message for message in stored if message.subject == f"load.{publisher.name}"]
        for message in mine:
            number = int(message.msg_id.rpartition("-")[2])
            assert message.data == payload(publisher.name, number), f"{where}: content of {message.seq} changed"
        lost = [ack for ack in publisher.acks if f"{publisher.name}-{ack.number}" not in by_id]
        assert not lost, f"{where}: acked and lost: {lost[:10]} ({len(lost)})"
        moved = [ack for ack in publisher.acks if by_id[f"{publisher.name}-{ack.number}"].seq != ack.seq]
        assert not moved, f"{where}: another sequence than acked: {moved[:10]} ({len(moved)})"
        if publisher.patient:
            numbers = [int(message.msg_id.rpartition("-")[2]) for message in mine]
            assert numbers == sorted(numbers), f"{where}: {publisher.name} is out of order"


def _twice(stored: Sequence[Stored]) -> list[str]:
    counted = collections.Counter(message.msg_id for message in stored)
    return [msg_id for msg_id, count in counted.items() if count > 1][:10]


async def _ignore(error: Exception) -> None:
    """Ignore an error: nats-py reports lost connections here, which are expected."""
