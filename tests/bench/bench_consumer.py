"""Measure how fast a consumer delivers and takes acks, without sockets.

    python -m tests.bench.bench_consumer [--messages N] [--size BYTES]

Counted are reading the log, building the messages and the consumer's own bookkeeping, on one core; the receivers only
count. `push` replays the stream to a deliver subject (ack none), `pull` asks for batches of 500 and acks each message.

Figures: docs/benchmarks.md#single-parts
"""

from __future__ import annotations

import argparse
import tempfile
import time

import msgspec

from lakestream.net.interest.subscription import SingleSink, Subscription
from lakestream.ports import ClientInfo, Messages, Single
from lakestream.stream.acks import Acks
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.core.operations import CreateConsumer, DeleteConsumer
from tests.unit.stream_world import CLIENT, World

BATCH = 500


class Counter(SingleSink):
    """Receiver that counts messages and keeps the ack subjects of the last ones."""

    def __init__(self) -> None:
        self.count = 0
        self.replies: list[bytes] = []

    def take(self, sub: Subscription, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        self.count += end - begin
        self.replies += [message.reply for message in messages.messages(begin, end)]
        return end


def create(world: World, name: str, config: ConsumerConfig) -> None:
    """Create a consumer from the beginning of the stream."""
    world.stream.propose(CreateConsumer(name, msgspec.json.encode(config), 1, 1))
    world.settle()


def receiver(world: World, subject: bytes) -> Counter:
    """Subscribe a counter to a subject; return it."""
    counter = Counter()
    world.hub.join(Subscription(counter, subject, b"", b"1"))
    return counter


def push(world: World, total: int, filters: list[str]) -> float:
    """Return messages a second of a replay."""
    counter = receiver(world, b"deliver.to")
    started = time.perf_counter()
    config = ConsumerConfig(
        deliver_subject="deliver.to", max_deliver=1, mem_storage=True, filter_subjects=filters, num_replicas=1
    )
    create(world, "P", config)
    world.clock.turn()
    took = time.perf_counter() - started
    assert counter.count == total, f"{counter.count} of {total} delivered"
    world.stream.propose(DeleteConsumer("P"))
    world.settle()
    return total / took


def pull(world: World, total: int) -> tuple[float, float]:
    """Return (messages a second with an ack each, ns for an ack)."""
    Acks(world.hub, {"S": world.stream}).listen()
    counter = receiver(world, b"_INBOX.pull.*")
    config = ConsumerConfig(
        durable_name="Q",
        name="Q",
        ack_policy="explicit",
        ack_wait=30_000_000_000,
        max_ack_pending=20_000,
        max_waiting=512,
        max_deliver=-1,
    )
    create(world, "Q", config)
    route, acked, spent = world.hub.route, 0, 0.0
    started = time.perf_counter()
    while acked < total:
        route(None, CLIENT, b"$JS.API.CONSUMER.MSG.NEXT.S.Q", b"_INBOX.pull.%d" % acked, b"", b'{"batch":%d}' % BATCH)
        world.clock.turn()
        replies, counter.replies = counter.replies, []
        before = time.perf_counter()
        for reply in replies:
            route(None, CLIENT, reply, b"", b"", b"+ACK")
        spent += time.perf_counter() - before
        acked += len(replies)
        if acked % 25_000 == 0:
            world.clock.advance(250_000_000)
            world.settle()
    took = time.perf_counter() - started
    assert world.stream.consumers["Q"].ledger.floor()[1] == total
    return total / took, spent / total * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=128)
    arguments = parser.parse_args()
    total = arguments.messages - arguments.messages % BATCH
    with tempfile.TemporaryDirectory() as directory:
        world = World(directory)
        payload = b"x" * arguments.size
        for number in range(total):
            world.stream.proposer.take(Single(b"s.%d" % (number % 10), payload=payload), 0, 1, CLIENT)
            if number % 10_000 == 9_999:
                world.settle()
        world.settle()
        print(f"push, no filter        {push(world, total, []):>10,.0f} msgs/s")
        print(f"push, one of 10        {push(world, total // 10, ['s.3']):>10,.0f} msgs/s")
        print(f"push, wildcard         {push(world, total, ['s.*']):>10,.0f} msgs/s")
        rate, ack = pull(world, total)
        print(f"pull and ack           {rate:>10,.0f} msgs/s, of which {ack:,.0f} ns for an ack")


if __name__ == "__main__":
    main()
