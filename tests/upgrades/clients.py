"""Clients that work through all steps: a publisher, and readers of tables and of SQL.

Belongs here: what they do, and what they compare with the acks. A message is published once more, with the same id,
after each failure: so all that is stored was acked in the end.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import duckdb
from deltalake.exceptions import DeltaError

from lakestream.lake.errors import LakeError
from lakestream.lake.storage import paths
from lakestream_sql.session import Session
from tests.lake import tables
from tests.servers import Server
from tests.upgrades.programs import Broken, until
from tests.wire import Closed, Wire, WireTimeout

PAUSE_S = 0.2
"""Pause between two messages of a stream."""
ACK_S = 120.0
"""Longest time without an ack: that of a restart."""
SUBJECTS = 20
"""Number of subjects of each stream."""
MISFITS = 5
"""Every so many messages of a typed stream do not fit its schema."""
TYPED = ("TYPED",)
"""Streams with a schema."""
REST_S = 2.0
"""Pause between two reads."""


class Acks:
    """All that clients were told.

    Attributes:
        acked: payloads by stream and sequence.
        removed: sequences by stream whose removal was asked for.
        erased: payloads of messages that were deleted securely.
    """

    def __init__(self) -> None:
        self.acked: dict[str, dict[int, bytes]] = {}
        self.removed: dict[str, set[int]] = {}
        self.erased: list[bytes] = []

    def compare(self, stream: str, rows: Sequence[tuple[int, bytes]], where: str, first: int = 0) -> None:
        """Compare what was read of a stream in sequence order with the acks.

        Args:
            first: first sequence that must be there; 0 for a stream whose limits remove the first ones.

        Raises:
            Broken: a message is doubled, has another content, or is missing before another one.
        """
        acked, removed = self.acked[stream], self.removed.get(stream, set())
        at = first or (rows[0][0] if rows else 1)
        for seq, data in rows:
            if seq < at:
                raise Broken(f"{where}: {stream} has {seq} twice")
            if not set(range(at, seq)) <= removed:
                raise Broken(f"{where}: {stream} lacks {at} to {seq - 1}")
            if acked.get(seq, data) != data:
                raise Broken(f"{where}: {stream} {seq} is {data!r}, acked was {acked[seq]!r}")
            at = seq + 1


class Worker(threading.Thread):
    """Thread that works until it is stopped, and keeps the error with which it ended."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.failure: BaseException | None = None
        self.stopped = threading.Event()

    def run(self) -> None:
        """Work until `stop`."""
        try:
            self.work()
        except BaseException as error:  # raised again by `check`, in another thread
            self.failure = error

    def work(self) -> None:
        """Work until `stopped` is set."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise the error with which it ended."""
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        """Stop it, and raise the error with which it ended."""
        self.stopped.set()
        self.join()
        self.check()


class Publisher(Worker):
    """Publishes a message to each stream in turn, through restarts of the server.

    Each message is published again, with the same id, until it is acked: so all that is stored was acked in the end.
    """

    def __init__(self, server: Server, acks: Acks) -> None:
        super().__init__()
        self._server, self._acks = server, acks
        self._streams: list[str] = []
        self._between = threading.Lock()
        self._wire: Wire | None = None

    def take(self, stream: str) -> None:
        """Publish to a stream from now on."""
        with self._between:
            self._acks.acked[stream] = {}
            self._streams.append(stream)

    def leave(self, stream: str) -> None:
        """Publish to a stream no more."""
        with self._between:
            self._streams.remove(stream)

    def work(self) -> None:
        """Publish until `stopped` is set."""
        number = 0
        while not self.stopped.wait(PAUSE_S):
            number += 1
            with self._between:
                for stream in self._streams:
                    self._insist(stream, number)
        if self._wire is not None:
            self._wire.close()

    def _insist(self, stream: str, number: int) -> None:
        until(lambda: self._publish(stream, number), f"an ack of {stream}", ACK_S)

    def _publish(self, stream: str, number: int) -> bool:
        """Publish a message; return True if it was acked."""
        data = b"%s %d" % (stream.encode(), number)
        if stream in TYPED and number % MISFITS:
            data = b'{"n": %d}' % number
        try:
            if self._wire is None:
                self._wire = Wire(self._server.address, timeout=10)
            headers = {"Nats-Msg-Id": f"{stream}-{number}"}
            frame = self._wire.request(f"{stream.lower()}.{number % SUBJECTS}", data, headers)
        except (OSError, Closed, WireTimeout):
            if self._wire is not None:
                self._wire.close()
            self._wire = None
            return False
        if frame.status or "error" in (answer := frame.json()):
            return False
        self._acks.acked[stream][answer["seq"]] = data
        return True


class Reader(Worker):
    """Reads streams again and again, and compares them with the acks.

    Attributes:
        reads: number of streams that were read and compared.
        refusals: errors of reads that failed, each with its number.
    """

    where = ""

    def __init__(self, lake: Path, acks: Acks, streams: Iterable[tuple[str, int]]) -> None:
        super().__init__()
        self._lake, self._acks, self._streams = lake, acks, list(streams)
        self.reads = 0
        self.refusals = Counter[str]()

    def read(self, stream: str) -> list[tuple[int, bytes]]:
        """Return sequences and payloads of a stream in sequence order."""
        raise NotImplementedError

    def work(self) -> None:
        """Read until `stopped` is set."""
        while not self.stopped.wait(REST_S):
            for stream, first in self._streams:
                try:
                    rows = self.read(stream)
                except (LakeError, OSError, DeltaError, duckdb.Error) as error:
                    self.refusals[str(error).partition("\n")[0][:200]] += 1
                    continue
                self._acks.compare(stream, rows, self.where, first)
                self.reads += 1


class TableReader(Reader):
    """Reads the newest version of tables with deltalake."""

    where = "the table"

    def read(self, stream: str) -> list[tuple[int, bytes]]:
        """Return sequences and payloads of a table."""
        return [(row["seq"], row["data"]) for row in tables.rows(paths.table(str(self._lake), stream))]


class SqlReader(Reader):
    """Asks the SQL of this release for streams: tables, and what is on its way to them."""

    where = "SQL"

    def read(self, stream: str) -> list[tuple[int, bytes]]:
        """Return sequences and payloads of a stream."""
        with Session(str(self._lake)) as session:
            return list(session.query(f"SELECT seq, data FROM delta.`streams/{stream}` ORDER BY seq"))
