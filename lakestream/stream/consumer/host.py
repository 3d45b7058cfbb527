"""Interfaces of the stream that its consumers depend on.

Belongs here: protocols only, one for each user, as narrow as that user needs. The stream satisfies them structurally.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from lakestream.log.format.record import Record
from lakestream.log.store.store import Store
from lakestream.ports import Bus, Clock, Io
from lakestream.protocol.api.errors import ApiError
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import Operation, Progress


class MessageReader(Protocol):
    """Reads of messages from where they lie, the log or the lake. Sequences are inclusive; results ascend."""

    async def fetch_run(
        self, first: int, max_msgs: int, max_bytes: int, subjects: Sequence[bytes] | None = None
    ) -> list[Record]:
        """Return messages from `first` on. `subjects` narrows what is read from the lake, but not from the log."""

    async def fetch_many(self, seqs: Sequence[int]) -> list[Record]:
        """Return those of the messages `seqs`, ascending, that still exist."""


class StartHost(Protocol):
    """A stream, as far as the start of a new consumer depends on it."""

    store: Store
    io: Io

    @property
    def next_seq(self) -> int:
        """Return the sequence of the next message."""

    async def first_at(self, time_ns: int) -> int:
        """Return the first sequence stored at or after `time_ns`, 0 if there is none."""


class _Leader(Protocol):
    """Members that both users below need."""

    config: StreamConfig
    clock: Clock
    store: Store

    @property
    def leading(self) -> bool:
        """Return True while this node decides for the stream."""

    def propose(self, operation: Operation, done: Callable[[object], None] | None = None) -> None:
        """Log an operation; call `done` with its result once it is applied, or with an ApiError."""


class ConsumerHost(_Leader, Protocol):
    """The stream of one consumer."""

    name: str
    uid: str
    """Identity of the stream, which no later stream of that name has."""
    account: str
    domain: str
    """JetStream domain, "" for none."""
    bus: Bus

    @property
    def reader(self) -> MessageReader:
        """Return the reader of messages that may be in the lake."""


class RetentionHost(_Leader, Protocol):
    """The stream whose messages retention by interest removes."""

    @property
    def closed(self) -> bool:
        """Return True once the stream has ended on this node."""

    def flush_soon(self) -> None:
        """Hand over what is proposed at the end of this turn; `Consumers.before_flush` is called before."""


class ConsumersHost(ConsumerHost, RetentionHost, Protocol):
    """The stream of `Consumers`."""

    @property
    def failed(self) -> ApiError | None:
        """Return why the stream is frozen, None while it is not."""

    @property
    def replicated(self) -> bool:
        """Return True if other nodes hold the stream too."""

    def pending_operations(self) -> list[Operation]:
        """Return the operations that are proposed and not committed, oldest first."""

    def log_progress(self, entries: list[Progress], done: Callable[[], None]) -> None:
        """Log PROGRESS entries after what was proposed before; call `done` once they are committed."""
