"""Tests of all consumers of a stream over a minimal core: when progress is logged, and its content."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from lakestream.log.format.record import Record
from lakestream.log.store.memory import MemoryStore
from lakestream.logging import Logger
from lakestream.net.hub import Hub
from lakestream.net.turn import Turn
from lakestream.protocol.api.errors import ApiError
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.consumer.consumers import PROGRESS_INTERVAL_NS, Consumers
from lakestream.stream.consumer.ledger import Ledger
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import ConsumerProgress, CreateConsumer, DeleteConsumer, Operation
from tests.unit.consumer_world import VirtualClock

pytestmark = pytest.mark.unit


class NoMessages:
    """Reader of a stream without messages."""

    async def fetch_run(
        self, first: int, max_msgs: int, max_bytes: int, subjects: Sequence[bytes] | None = None
    ) -> list[Record]:
        return []

    async def fetch_many(self, seqs: Sequence[int]) -> list[Record]:
        return []


class Host:
    """Stream that keeps proposed and logged operations."""

    def __init__(self) -> None:
        self.name, self.uid, self.account, self.domain = "S", "uid", "$G", ""
        self.config = StreamConfig(name="S", subjects=["s.>"])
        self.clock = VirtualClock()
        self.bus = Hub(Turn(self.clock.call_soon), Logger())
        self.store = MemoryStore("uid")
        self.reader, self.pipeline = NoMessages(), self
        self.leading, self.closed, self.replicated = True, False, False
        self.failed: ApiError | None = None
        self.proposed: list[Operation] = []
        self.logged: list[tuple[list[ConsumerProgress], Callable[[], None]]] = []

    def propose(
        self, operation: Operation, done: Callable[[object], None] | None = None, *, volatile: bool = False
    ) -> None:
        self.proposed.append(operation)

    def pending_operations(self) -> list[Operation]:
        return []

    def flush_soon(self) -> None:
        pass

    def log_progress(self, entries: list[ConsumerProgress], done: Callable[[], None] = lambda: None) -> None:
        self.logged.append((entries, done))


class Stream:
    """Consumers that serve, and their host."""

    def __init__(self) -> None:
        self.host = Host()
        self.consumers = Consumers(self.host)  # type: ignore[arg-type]
        self.consumers.configure(self.host.config)
        self.consumers.lead(False)

    def create(self, name: str, **fields: object) -> Ledger:
        config = ConsumerConfig(name=name, ack_policy="explicit", **fields)  # type: ignore[arg-type]
        self.consumers.apply(CreateConsumer(name, msgspec.json.encode(config), 1, 1))
        return self.consumers[name].ledger

    def names(self) -> list[list[str]]:
        """Return the names of the consumers in each log entry."""
        return [[entry.name for entry in entries] for entries, _ in self.host.logged]


@pytest.fixture
def stream() -> Stream:
    return Stream()


def test_progress_of_all_consumers_is_one_entry_each_interval(stream: Stream) -> None:
    for name in "ab":
        stream.create(name).deliver([1, 2], 1, 0)
        stream.consumers.request_progress()
    stream.create("idle")
    stream.host.clock.advance(PROGRESS_INTERVAL_NS - 1)
    assert stream.names() == []
    stream.host.clock.advance(4 * PROGRESS_INTERVAL_NS)
    assert stream.names() == [["a", "b"]]


def test_progress_of_one_consumer_is_logged_at_once_for_a_confirmed_ack(stream: Stream) -> None:
    for name in "ab":
        stream.create(name).deliver([1], 1, 0)
    done = list[str]()
    stream.consumers.progress_now(stream.consumers["a"], lambda: done.append("a"))
    assert stream.names() == [["a"]]
    assert done == []
    stream.host.logged[0][1]()
    assert done == ["a"]


def test_nothing_is_logged_where_another_node_leads_or_the_stream_is_frozen(stream: Stream) -> None:
    stream.create("a").deliver([1], 1, 0)
    stream.consumers.request_progress()
    stream.consumers.follow()
    stream.host.clock.advance(2 * PROGRESS_INTERVAL_NS)
    stream.consumers.lead(False)
    stream.host.failed = ApiError(503, 10077, "the disk failed")
    stream.consumers.progress_now(stream.consumers["a"], lambda: None)
    assert stream.names() == []


def test_leadership_is_handed_over_after_the_progress_and_at_once_without_any(stream: Stream) -> None:
    ledger, handed = stream.create("a"), list[int]()
    stream.consumers.hand_over(lambda: handed.append(1))
    assert (handed, stream.names()) == ([1], [])
    ledger.deliver([1], 1, 0)
    stream.consumers.hand_over(lambda: handed.append(2))
    assert (handed, stream.names()) == ([1], [["a"]])
    stream.host.logged[0][1]()
    assert handed == [1, 2]


def test_a_volatile_consumer_is_logged_once_other_nodes_hold_the_stream(stream: Stream) -> None:
    stream.create("kept").deliver([1], 1, 0)
    stream.create("volatile", mem_storage=True).deliver([1], 1, 0)
    stream.consumers.request_progress()
    stream.host.clock.advance(2 * PROGRESS_INTERVAL_NS)
    assert stream.names() == [["kept"]]
    stream.host.config = msgspec.structs.replace(stream.host.config, num_replicas=3)
    stream.consumers.configure(stream.host.config)
    assert stream.names()[1:] == [["kept", "volatile"]]


def test_a_volatile_consumer_is_deleted_after_a_restart(stream: Stream) -> None:
    stream.create("kept")
    stream.create("volatile", mem_storage=True)
    stream.consumers.follow()
    stream.consumers.lead(True)
    assert stream.host.proposed == [DeleteConsumer("volatile")]
