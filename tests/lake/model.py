"""Model of a stream: owns a real segment log, and knows the expected content of the table."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from lakestream.lake.staging import staging
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.log.format.files import Files
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.format.record import Record, encode_record
from lakestream.log.format.runs import SchemaRun
from lakestream.log.format.segment import SealedSegment
from lakestream.log.store.log import SealState
from lakestream.log.store.segment_log import LogOptions, SegmentLog, begin_segment

T0 = 1_700_000_000_000_000_000
Message = tuple[bytes, bytes, bytes]
"""(subject, header block, payload)"""


def unstage_through(lake: str, stream: StreamIdentity, index: int) -> None:
    """Delete the staged segments that end at or before a log index, as a server does that grants no grace."""
    staged = staging.segments(staging.directory_of(lake, stream))
    open_storage(lake).delete_all(segment.path for segment in staged if segment.last_index <= index)


class StreamModel:
    """Publishes, removes and seals as a server does, and knows which messages are stored at each seal."""

    def __init__(self, directory: Path, name: str = "ORDERS", uid: str = "UID1", account: str = "$G") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        files = Files()
        segment, descriptor = begin_segment(str(directory), files, 1, 1, T0)
        files.close(descriptor)
        self.log = SegmentLog(str(directory), files, LogOptions(), time.time_ns, [segment], 1)
        self.identity = StreamIdentity(name=name, account=account, uid=uid, created_ns=T0)
        self.next_seq = 1
        self.floor = 1
        self.live: dict[int, Record] = {}
        self.sealed_live: dict[int, Record] = {}
        self.sealed: list[SealedSegment] = []
        self._removed: list[int] = []
        self._erased: list[int] = []
        self._shredded: list[int] = []
        self.schemas: tuple[SchemaRun, ...] | None = None
        """As footers have them; None: as an older release writes them."""
        self.operation()

    def publish(self, messages: Iterable[Message], per_frame: int = 100, time_ns: int | None = None) -> list[Record]:
        """Store messages, `per_frame` in each log entry; return them as records."""
        records = []
        for subject, header, data in messages:
            stamp = T0 + self.next_seq * 1_000_003 if time_ns is None else time_ns
            records.append(Record(self.next_seq, stamp, subject, header, data))
            self.next_seq += 1
        for start in range(0, len(records), per_frame):
            self._frame(records[start : start + per_frame])
        self.live.update((record.seq, record) for record in records)
        return records

    def operation(self) -> None:
        """Append an entry that is no message."""
        self.log.append([Frame(Kind.OPERATION, 1, self.log.last_index + 1, 0, b"\x80")])

    def configure(self, metadata: dict[str, str]) -> None:
        """Set the stream's metadata, which segments sealed from now on contain."""
        config = msgspec.json.encode({"name": self.identity.name, "metadata": metadata})
        self.identity = msgspec.structs.replace(self.identity, config=msgspec.Raw(config))

    def remove(self, seqs: Sequence[int], erase: bool = False, shred: bool = False) -> None:
        """Remove messages: by a limit, or by a delete request (`erase`), perhaps with their bytes (`shred`)."""
        self.operation()
        for seq in seqs:
            if self.live.pop(seq, None) is not None:
                self._removed.append(seq)
                self._erased.extend([seq] if erase or shred else [])
                self._shredded.extend([seq] if shred else [])
        self.floor = min(self.live, default=self.next_seq)

    def purge(self, below: int) -> None:
        """Purge everything below a sequence; beyond the end this sets the next sequence."""
        self.next_seq = max(self.next_seq, below)
        self.remove([seq for seq in self.live if seq < below], erase=True)

    def seal(self) -> SealedSegment:
        """Seal the open segment."""
        identity = self.identity
        state = SealState(
            uid=identity.uid,
            stream=identity.name,
            account=identity.account,
            config=bytes(identity.config),
            floor=self.floor,
            next_seq=self.next_seq,
            removed=sorted(self._removed),
            subjects=len({record.subject for record in self.live.values()}),
            erased=array("Q", [end for seq in sorted(self._erased) for end in (seq, seq)]),
            shredded=sorted(self._shredded),
            schemas=self.schemas,
        )
        self._removed, self._erased, self._shredded = [], [], []
        sealed = self.log.seal(state)
        self.sealed.append(sealed)
        self.sealed_live = dict(self.live)
        return sealed

    def stage(self, lake: Path | str, sealed: SealedSegment | None = None) -> str:
        """Seal and stage a segment, or stage one that is sealed already; make the lake, if it is new."""
        sealed = sealed or self.seal()
        lakes.require(str(lake), create=True)
        return staging.stage(sealed.path, sealed.first_index, sealed.last_index, self.identity, str(lake))

    def expected(self) -> list[Record]:
        """Return the messages that the table must hold once every sealed segment is compacted."""
        return [self.sealed_live[seq] for seq in sorted(self.sealed_live)]

    def table(self, lake: Path | str) -> str:
        """Return the path of the stream's table."""
        return paths.table(str(lake), self.identity.name, self.identity.account)

    def _frame(self, records: list[Record]) -> None:
        encoded = [encode_record(*msgspec.structs.astuple(record)) for record in records]
        frame = Frame(Kind.MESSAGES, 1, self.log.last_index + 1, len(records), b"".join(encoded))
        (placed,) = self.log.append([frame])
        offsets, at = [], placed.offset
        for record in encoded:
            offsets.append(at)
            at += len(record)
        segment = self.log.open_segment
        segment.place(records[0].seq, offsets, [len(record) for record in encoded], records[-1].time_ns)


def flights(count: int, subjects: int = 10, size: int = 128, headers: bool = False) -> list[Message]:
    """Return messages with realistic content on so many subjects."""
    block = b"NATS/1.0\r\nTrace: %d\r\n\r\n"
    return [
        (b"flights.%d" % (n % subjects), block % n if headers and n % 3 == 0 else b"", (b"%d " % n * size)[:size])
        for n in range(count)
    ]
