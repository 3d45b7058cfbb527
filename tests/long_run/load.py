"""Clients of a long run: a steady mixed load, with what each operation took.

Belongs here: the streams, and the client loops over them. Each loop has its own connection, repeats what a restart
interrupts, and ends when it is told to.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamConfig
from nats.js.errors import KeyNotFoundError

TRAVEL = {"lakestream.time_travel": "1h"}
"""The shortest retention of old versions of a table."""
ORDERS_KEPT = 20_000
KEYS = 500
OBJECTS = 8
PAYLOAD = 300
REPEATS_S = 0.2
OLD_PER_S = 15
"""Reads of old messages; so many that the cache of each node fills up in the course of an hour."""

Work = Callable[[JetStreamContext], Awaitable[None]]


def streams() -> list[tuple[str, list[str], dict[str, Any]]]:
    """Return the streams as name, subjects and further configuration; all have three replicas."""
    return [
        ("ORDERS", ["orders.>"], {"max_msgs": ORDERS_KEPT, "metadata": TRAVEL}),
        ("JOBS", ["jobs.>"], {"retention": "workqueue", "metadata": TRAVEL}),
        ("KV_state", ["$KV.state.>"], {"max_msgs_per_subject": 1, "discard": "new", "allow_rollup_hdrs": True,
                                       "deny_delete": True, "max_age": 0, "metadata": TRAVEL}),
        ("OBJ_files", ["$O.files.C.>", "$O.files.M.>"], {"discard": "new", "allow_rollup_hdrs": True,
                                                        "metadata": TRAVEL}),
        ("COPY", [], {"mirror": {"name": "ORDERS"}, "max_msgs": ORDERS_KEPT, "metadata": TRAVEL}),
    ]  # fmt: skip


class Load:
    """All client loops.

    Args:
        urls: of the nodes.
        seed: of keys and payloads.

    Attributes:
        took: seconds of each finished operation since `taken`, by kind.
        done: operations that ended well, by kind.
        failed: operations that were repeated, by kind.
        acked: acknowledged messages by stream.
    """

    def __init__(self, urls: Sequence[str], seed: int) -> None:
        self._urls = list(urls)
        self._random = Random(seed)
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._clients: list[Client] = []
        self._took: dict[str, list[float]] = {}
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.acked: Counter[str] = Counter()
        self.last_error = ""

    def taken(self) -> dict[str, list[float]]:
        """Return the seconds of each operation since the last call, sorted, by kind."""
        took, self._took = self._took, {}
        return {kind: sorted(found) for kind, found in took.items()}

    async def start(self, orders_per_s: float, jobs_per_s: float, keys_per_s: float) -> None:
        """Start the loops at these rates."""
        for kind, rate, work in (
            ("publish", orders_per_s, self._publish),
            ("job", jobs_per_s, self._add_job),
            ("kv put", keys_per_s, self._put_key),
            ("kv get", keys_per_s, self._get_key),
            ("old message", OLD_PER_S, self._get_old),
            ("object", 0.2, self._put_object),
            ("replay", 0.05, self._replay),
        ):
            await self._loop(kind, rate, work)
        client = await self._connect()
        self._tasks.append(asyncio.create_task(self._do_jobs(client.jetstream())))

    async def stop(self) -> None:
        """End all loops and close the connections."""
        self._stop.set()
        await asyncio.gather(*self._tasks)
        for client in self._clients:
            await client.close()

    async def _connect(self) -> Client:
        async def expected(_: Exception) -> None:
            """Print nothing: restarts interrupt connections."""

        client = await nats.connect(
            self._urls, max_reconnect_attempts=-1, reconnect_time_wait=REPEATS_S, error_cb=expected
        )
        self._clients.append(client)
        return client

    async def _loop(self, kind: str, rate: float, work: Work) -> None:
        js = (await self._connect()).jetstream(timeout=5)
        self._tasks.append(asyncio.create_task(self._repeat(kind, 1 / rate, work, js)))

    async def _repeat(self, kind: str, period_s: float, work: Work, js: JetStreamContext) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            began = time.perf_counter()
            try:
                await work(js)
            except (nats.errors.Error, TimeoutError, OSError) as error:
                self.failed[kind] += 1
                self.last_error = f"{kind}: {error!r}"
                await asyncio.sleep(REPEATS_S)
                continue
            self.done[kind] += 1
            self._took.setdefault(kind, []).append(time.perf_counter() - began)
            due = max(due + period_s, time.monotonic() - 1.0)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _publish(self, js: JetStreamContext) -> None:
        number = self.acked["ORDERS"]
        headers = {"Nats-Msg-Id": f"order-{number}"}  # repeated after an unknown result
        await js.publish(f"orders.{number % 50}", self._payload(number), headers=headers)
        self.acked["ORDERS"] += 1

    async def _add_job(self, js: JetStreamContext) -> None:
        number = self.acked["JOBS"]
        await js.publish(f"jobs.{number % 5}", b"%d" % number, headers={"Nats-Msg-Id": f"job-{number}"})
        self.acked["JOBS"] += 1

    async def _put_key(self, js: JetStreamContext) -> None:
        key = self._random.randrange(KEYS)
        await (await js.key_value("state")).put(f"k{key}", self._payload(key))

    async def _get_key(self, js: JetStreamContext) -> None:
        with contextlib.suppress(KeyNotFoundError):
            await (await js.key_value("state")).get(f"k{self._random.randrange(KEYS)}")

    async def _get_old(self, js: JetStreamContext) -> None:
        """Read a message of ORDERS or of its mirror, mostly one that only the table holds."""
        stream = self._random.choice(("ORDERS", "COPY"))
        state = (await js.stream_info(stream)).state
        if state.messages:
            seq = self._random.randint(state.first_seq, state.last_seq)
            with contextlib.suppress(nats.js.errors.NotFoundError):  # the limit has removed it meanwhile
                await js.get_msg(stream, seq, direct=True)

    async def _put_object(self, js: JetStreamContext) -> None:
        store = await js.object_store("files")
        await store.put(f"file{self._random.randrange(OBJECTS)}", self._random.randbytes(100_000))

    async def _replay(self, js: JetStreamContext) -> None:
        """Read a thousand messages from the first one on."""
        config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE, mem_storage=True,
                                num_replicas=1, inactive_threshold=30)  # fmt: skip
        info = await js.add_consumer("ORDERS", config)
        reader = await js.pull_subscribe_bind(info.name, "ORDERS")
        with contextlib.suppress(TimeoutError):  # there may be fewer yet
            left = 1_000
            while left:
                left -= len(await reader.fetch(min(left, 200), timeout=2))
        await reader.unsubscribe()
        await js.delete_consumer("ORDERS", info.name)

    async def _do_jobs(self, js: JetStreamContext) -> None:
        """Pull and acknowledge jobs."""
        worker = await js.pull_subscribe("jobs.>", durable="worker", stream="JOBS")
        while not self._stop.is_set():
            try:
                for message in await worker.fetch(50, timeout=1):
                    await message.ack()
                    self.done["job done"] += 1
            except (nats.errors.Error, TimeoutError, OSError):
                await asyncio.sleep(REPEATS_S)

    def _payload(self, number: int) -> bytes:
        text = b'{"number": %d, "customer": "c%d", "text": "' % (number, number % 1000)
        return text + self._random.randbytes((PAYLOAD - len(text)) // 2).hex().encode() + b'"}'


def config(name: str, subjects: list[str], further: dict[str, Any]) -> StreamConfig:
    """Return the configuration of a stream with three replicas and direct gets."""
    return StreamConfig.from_response(
        {"name": name, "subjects": subjects, "num_replicas": 3, "allow_direct": True, "storage": "file", **further}
    )
