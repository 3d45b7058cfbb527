"""Message ids of the duplicate window: in memory, and beyond a bound on disk.

Belongs here: `MessageIds`, the ids of one stream in the order in which they came. The newest are in a dict. A thousand
of them at a time become a chunk: immutable bytes, in memory at first. When the indexes of all streams exceed their
memory limit (log/index/memory_limit.py), the oldest chunks move to a file without a name; a checkpoint copies them, and
a start leaves them in it.
"""

# The problem. Each publish with an id asks whether the id is known, and nearly all are not. A window of days has a
# hundred million ids, which leave it in the order in which they came. So the answer "new" must not read a file, and
# forgetting must not search.
#
# A chunk is never read for a new id. Tables in memory say for each id in which chunk it may be: 32 bits a slot, 20 of
# them a hash (`native.note_ids`), about 5 bytes an id. Only where a table says "perhaps", rarely without reason, the
# chunk is read and the id itself decides. Nothing is ever removed from a table: chunks leave at the front, and a table
# goes with the last of its chunks. So there is no step that grows with the window, and none that moves ids: what was
# tried before, one dict of all ids, took 200 bytes an id, and 20 to 500 ms whenever it grew.
#
# Each table is made for twice as many ids as there are: a few tables serve any number, and a stream with few ids has
# a small one. Sorted hashes on disk, merged in doubling levels, would need less memory (2 bytes an id), but a read for
# each level or a filter in memory anyway, and merges that take turns of the event loop or a thread.
#
# What `forget_after` takes back stays in the tables: it costs a look at a chunk that does not have the id.

from __future__ import annotations

import logging
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from mmap import mmap

import msgspec

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files
from lakestream.log.index.cold_rows import BlockFile, FileBlock, checked
from lakestream.log.index.memory_limit import IndexMemory
from lakestream.log.index.subject_index import SCRATCH
from lakestream.native import note_ids, seek_ids
from lakestream.protocol.api.errors import api_error
from lakestream.protocol.decoding import DECODE_ERRORS, PackDecoder

MAX_IDS = 100_000_000
"""Ids of one stream that are remembered at once: about 500 MB of memory for their tables, and 40 bytes each on disk
with ids of 22. Beyond them a message with an id is refused with 10167 until older ones leave the window: forgetting
them earlier could let a duplicate in."""
MAX_IDS_IN_MEMORY = 16_000_000
"""The same for a stream without files, some 750 MB."""
CHUNK_IDS = 1024
FORGOTTEN_AT_ONCE = 64
"""Chunks that one call forgets at most; what is left goes with the next calls."""
RECENT_BYTES = 200
"""Rough bytes of memory of an id that is in no chunk yet."""
TRIM_IDS = 1024
"""Above this number of ids, old ones are also removed without publishes."""
SCRATCH_BYTES = 64 << 20
"""A scratch file that is longer is followed by another one, so that disk is given back as ids leave the window."""
NEWEST = 16
"""Number of full chunks that a checkpoint has in its state, as in earlier releases: only with more it has blocks of
ids, which those releases cannot read."""

_TABLE_CHUNKS = 1 << 12
"""Number of chunks of the largest table; `native.note_ids` takes no more."""
_CHUNK_SLOTS = CHUNK_IDS * 8 // 7 + 1
_logger = logging.getLogger(__name__)


class _Chunk:
    """Some ids in order of arrival. Times and sequences ascend."""

    __slots__ = ("ids", "seqs", "times")

    def __init__(self) -> None:
        self.ids: list[bytes] = []
        self.times = array("q")
        self.seqs = array("Q")

    def pack(self, stop: int | None = None) -> bytes:
        """Return the entries before `stop`, for `unpack`."""
        part = slice(stop)
        return msgspec.msgpack.encode((self.times[part].tobytes(), self.seqs[part].tobytes(), self.ids[part]))

    def place(self, msg_id: bytes, places: dict[bytes, int]) -> int:
        """Return the place of the newest message with an id, or -1. `places`: empty at first, filled by a second
        search: publishers repeat messages in order, or one."""
        if not places:
            places[b""] = -1
            return len(self.ids) - 1 - self.ids[::-1].index(msg_id) if msg_id in self.ids else -1
        if len(places) == 1:
            places |= {each: place for place, each in enumerate(self.ids)}
        return places.get(msg_id, -1)

    @classmethod
    def unpack(cls, data: bytes, behind_ns: int = 0) -> _Chunk:
        """Return the chunk that `pack` packed; `behind_ns` is taken from its times."""
        made = cls()
        times, seqs, made.ids = _PACKED.decode(data)
        made.times.frombytes(times)
        made.seqs.frombytes(seqs)
        if behind_ns:
            made.times = array("q", (each - behind_ns for each in made.times))
        return made


_PACKED = PackDecoder(tuple[bytes, bytes, list[bytes]])


class _Table(msgspec.Struct):
    """Table of the ids of some chunks. `first`: the number of its first chunk; `room`: ids for which it has slots, in
    pages that the system adds when they are first written: 20 MB of zeros at once take 10 ms."""

    slots: mmap
    first: int
    room: int


class IdsDump(msgspec.Struct):
    """The ids of a checkpoint: `blocks`, with four columns about them, then the packed chunks of `ids`."""

    ids: list[bytes]
    columns: list[bytes]
    blocks: list[bytes | FileBlock]


class MessageIds:
    """Message ids seen within `window_ns`, oldest forgotten first.

    Args:
        window_ns: how long an id is remembered; 0 remembers nothing.
        stored: returns the last sequence that is stored. Messages above it may be taken back.
    """

    __slots__ = (
        "__weakref__",
        "_behind",
        "_bytes",
        "_cold",
        "_count",
        "_counts",
        "_directory",
        "_ends",
        "_files",
        "_first",
        "_lasts",
        "_newest_ns",
        "_open",
        "_packed",
        "_read",
        "_recent",
        "_scratch",
        "_shared",
        "_slots",
        "_stored",
        "_tables",
        "last_id",
        "last_seq",
        "memory",
        "window_ns",
    )

    def __init__(self, window_ns: int, stored: Callable[[], int] = lambda: 1 << 63) -> None:
        self.window_ns = window_ns
        self._stored = stored
        self.last_id = b""
        self.last_seq = 0
        """The message that carried `last_id`."""
        self.memory = 0
        """Rough bytes of memory; 0 while there is no full chunk."""
        self._shared: IndexMemory | None = None
        self._files: Files | None = None
        self._directory = ""
        self._scratch: BlockFile | None = None
        self._clear()

    def _clear(self) -> None:
        self._open = _Chunk()  # the newest ids
        self._recent: dict[bytes, int] = {}  # their sequences
        # The full chunks, oldest first. On followers, which do not look ids up, an id may be here twice: once expired,
        # and once with the message that carries it now.
        self._packed: list[bytes | FileBlock] = []
        self._counts, self._lasts, self._ends = array("I"), array("Q"), array("q")  # ids, last sequence, last time
        self._behind = array("q")  # to be taken from the times in a chunk: see `Ages`
        self._first = 0  # number of the first chunk
        self._cold = 0  # chunks at the front that are in a file
        self._count = self._bytes = 0  # ids in chunks, and bytes of those in memory
        self._newest_ns = -(1 << 63)
        self._tables: list[_Table] = []
        self._slots: list[mmap] = []
        self._read: tuple[int, _Chunk, dict[bytes, int]] | None = None  # the chunk that was searched last, by number

    def __len__(self) -> int:
        return self._count + len(self._open.ids)

    def keep_within(self, memory: IndexMemory, files: Files, directory: str) -> None:
        """Move chunks to a file in this directory when the memory limit is exceeded."""
        self._shared, self._files, self._directory = memory, files, directory

    # ------------------------------------------------------------------ ask
    def seen(self, msg_id: bytes, now_ns: int) -> int:
        """Return the sequence stored under `msg_id` within the window, or 0.

        Raise ApiError 10167 if it is not known and no more ids can be remembered; CorruptLog, FileNotReadable.
        """
        self.forget(now_ns)
        seq, time_ns = self._find(msg_id)
        if seq and time_ns > now_ns - self.window_ns:
            return seq
        if len(self) >= self._most and self.window_ns > 0:
            raise api_error(10167)
        return 0

    @property
    def _most(self) -> int:
        return MAX_IDS if self._files is not None else MAX_IDS_IN_MEMORY

    def _find(self, msg_id: bytes) -> tuple[int, int]:
        """Return the sequence and time of the newest message with this id, or (0, 0)."""
        seq = self._recent.get(msg_id)
        if seq is not None:
            return seq, self._open.times[bisect_right(self._open.seqs, seq) - 1]
        found = {self._tables[which].first + chunk for _, which, chunk in seek_ids(self._slots, [msg_id])}
        for number in sorted(found, reverse=True):
            if 0 <= number - self._first < len(self._packed):
                if self._read is None or self._read[0] != number:
                    self._read = number, self._unpacked(number - self._first), {}
                chunk, places = self._read[1:]
                place = chunk.place(msg_id, places)
                if place >= 0:
                    return chunk.seqs[place], chunk.times[place]
        return 0, 0

    def _unpacked(self, at: int) -> _Chunk:
        """Return a full chunk. Raise CorruptLog, FileNotReadable."""
        return self._unpack(self._packed[at], self._behind[at])

    def _unpack(self, packed: bytes | FileBlock, behind_ns: int) -> _Chunk:
        content = packed if isinstance(packed, bytes) else packed.content()
        try:
            return _Chunk.unpack(content, behind_ns)
        except (*DECODE_ERRORS, ValueError) as error:
            raise CorruptLog(self._directory, 0, f"a block of message ids makes no sense: {error}") from error

    def unknown(self, ids: Sequence[bytes | None], now_ns: int) -> int:
        """Return how many of these ids, from the first on, are certainly new, each before the next is added; None and
        b"" are no ids. None of them is if there may not be room for all. Hot."""
        if self.window_ns <= 0 or not ids:
            return len(ids)
        self.forget(now_ns)
        if len(self) + len(ids) > self._most:
            return 0
        if ids[0] in self._recent or (ids[0] and self._slots and seek_ids(self._slots, [ids[0]])):
            return 0  # soon: of a run of duplicates each is asked for with those behind it
        end, some, recent = len(ids), set(ids), self._recent
        if len(some) < end or not recent.keys().isdisjoint(some):
            before: set[bytes] = set()
            for at, each in enumerate(ids):
                if each:
                    if each in before or each in recent:
                        end = at
                        break
                    before.add(each)
        if self._slots:
            found = seek_ids(self._slots, ids if isinstance(ids, list) else list(ids))
            end = min(end, min(found)[0]) if found else end
        return end

    # ------------------------------------------------------------------ add
    def add(self, msg_id: bytes, seq: int, time_ns: int) -> None:
        """Remember an id of a message stored at `time_ns` by the steady clock; see `Ages.stored_ns`."""
        self.add_all([msg_id], [seq], [time_ns])

    def add_all(self, ids: list[bytes], seqs: Sequence[int], times: Sequence[int]) -> None:
        """Remember the ids of some messages, ascending by sequence and time. Hot."""
        self.last_id, self.last_seq = ids[-1], seqs[-1]
        if self.window_ns <= 0:
            return
        newest = self._newest_ns
        if times[0] < newest:  # another leader's clock may have been ahead
            times = [max(time_ns, newest) for time_ns in times]
        self._newest_ns = times[-1]
        at = 0
        while at < len(ids):
            chunk = self._open
            stop = at + CHUNK_IDS - len(chunk.ids)
            some, numbers = ids[at:stop], seqs[at:stop]
            chunk.ids += some
            chunk.times.extend(times[at:stop])
            chunk.seqs.extend(numbers)
            self._recent.update(zip(some, numbers, strict=True))
            if len(chunk.ids) == CHUNK_IDS:
                self._fill(chunk.ids, chunk.pack(), chunk.seqs[-1], chunk.times[-1])
                self._open, self._recent = _Chunk(), {}
                self._weigh()
                if self._shared is not None:
                    self._shared.grown(self, CHUNK_IDS)
            at = stop

    def _fill(
        self, ids: list[bytes], packed: bytes | FileBlock, last_seq: int, last_ns: int, behind: int = 0, more: int = 8
    ) -> None:
        """Add a full chunk; `more`: at least so many follow, this one included."""
        number = self._first + len(self._packed)
        table = self._tables[-1] if self._tables else None
        if table is None or table.room < len(ids) or number - table.first >= _TABLE_CHUNKS:
            chunks = min(max(2 * len(self._packed), more), _TABLE_CHUNKS)
            table = _Table(mmap(-1, 4 * _CHUNK_SLOTS * chunks), number, CHUNK_IDS * chunks)
            self._tables.append(table)
            self._slots.append(table.slots)
        note_ids(table.slots, ids, number - table.first)
        table.room -= len(ids)
        self._packed.append(packed)
        self._counts.append(len(ids))
        self._lasts.append(last_seq)
        self._ends.append(last_ns)
        self._behind.append(behind)
        self._count += len(ids)
        if isinstance(packed, bytes):
            self._bytes += len(packed)

    def moved(self, before: int, last_seq: int) -> None:
        """Note that a purge gave the sequences after `before` through `last_seq` to no message."""
        if self.last_seq == before:
            self.last_seq = last_seq

    # ------------------------------------------------------------------ forget
    def forget_after(self, last_seq: int) -> None:
        """Forget the ids of messages above `last_seq`: these may not be stored."""
        self.last_id, self.last_seq = self.last_through(last_seq)
        while self._packed and self._lasts[-1] > last_seq and (not self._open.seqs or self._open.seqs[0] > last_seq):
            self._open = self._unpacked(len(self._packed) - 1)
            self._release(slice(len(self._packed) - 1, None))
        chunk = self._open
        left = bisect_right(chunk.seqs, last_seq)
        del chunk.ids[left:], chunk.seqs[left:], chunk.times[left:]
        self._recent = dict(zip(chunk.ids, chunk.seqs, strict=True))
        self._weigh()

    def forget(self, now_ns: int) -> None:
        """Forget ids that have left the window, some at a time."""
        horizon = now_ns - self.window_ns
        if self._packed:
            if self._ends[0] <= horizon:
                stop = min(bisect_right(self._ends, horizon), FORGOTTEN_AT_ONCE)
                self._release(slice(stop))
                self._weigh()
        elif self._open.times and self._open.times[-1] <= horizon:
            self._open, self._recent = _Chunk(), {}

    def _release(self, chunks: slice) -> None:
        """Drop chunks of the front or of the end, and the tables that have no other ones."""
        gone = self._packed[chunks]
        self._count -= sum(self._counts[chunks])
        self._bytes -= sum(len(each) for each in gone if isinstance(each, bytes))
        del self._packed[chunks], self._counts[chunks], self._lasts[chunks], self._ends[chunks], self._behind[chunks]
        if chunks.start is None:
            self._first += len(gone)
            self._cold = max(self._cold - len(gone), 0)
        else:
            self._cold = min(self._cold, len(self._packed))
        self._read = None
        following = self._first + len(self._packed)
        while self._tables and (not self._packed or self._tables[-1].first >= following):
            self._tables.pop()
        while len(self._tables) > 1 and self._tables[1].first <= self._first:
            del self._tables[0]
        self._slots = [table.slots for table in self._tables]
        if not self._cold:
            self._scratch = None  # its file ends with its last block

    def trim(self, time_ns: int) -> None:
        """Forget ids that had left the window at `time_ns`; for followers, which never ask."""
        if len(self) > TRIM_IDS:
            self.forget(time_ns)

    @property
    def due_ns(self) -> int | None:
        """Return when the oldest chunk leaves the window; None while there are few ids."""
        if len(self) <= TRIM_IDS:
            return None
        oldest = self._ends[0] if self._packed else self._newest_ns
        return oldest + self.window_ns

    # ------------------------------------------------------------------ memory
    def bytes_in_memory(self) -> int:
        """Return the rough bytes of memory."""
        return self.memory + RECENT_BYTES * len(self._open.ids)

    def cool(self, subjects: int) -> int:
        """Move chunks with about this many ids out of memory; return how many ids were moved."""
        moved, at, stored = 0, self._cold, self._stored()
        try:
            while moved < subjects and at < len(self._packed) and self._lasts[at] <= stored:
                packed = self._packed[at]
                assert isinstance(packed, bytes), "only the chunks at the front are in a file"
                self._packed[at] = self._file().write(checked(packed), self._counts[at])
                self._bytes -= len(packed)
                moved += self._counts[at]
                at += 1
        except OSError as error:
            _logger.error("%s: message ids stay in memory: %s", self._directory, error)
        self._cold = at
        self._weigh()
        return moved

    def _file(self) -> BlockFile:
        if self._scratch is None or self._scratch.size >= SCRATCH_BYTES:
            assert self._files is not None, "only those that have a directory are asked"
            self._scratch = BlockFile.make_scratch(self._files, os.path.join(self._directory, SCRATCH))
        return self._scratch

    def _weigh(self) -> None:
        before, self.memory = self.memory, self._bytes + sum(map(len, self._slots))
        if self._shared is not None and (not before) != (not self.memory):
            self._shared.weighed(self)

    # ------------------------------------------------------------------ over restarts
    def dump(self, now_ns: int, through: int) -> IdsDump:
        """Return the ids of messages ≤ `through`, for the checkpoint. Raise CorruptLog, FileNotReadable.

        An id of a message in flight must not get there: were that message lost, its publisher's next try would be
        taken for a duplicate.
        """
        self.forget(now_ns)
        whole = bisect_right(self._lasts, through)
        apart = max(whole - NEWEST, self._cold)
        ids = [each for each in self._packed[apart:whole] if isinstance(each, bytes)]
        rest = self._open if whole == len(self._packed) else self._unpacked(whole)
        stop = bisect_right(rest.seqs, through)
        if stop:
            ids.append(rest.pack(stop))
        columns = (self._counts, self._lasts, self._ends, self._behind)
        return IdsDump(ids, [each[:apart].tobytes() for each in columns] if apart else [], self._packed[:apart])

    def last_through(self, through: int) -> tuple[bytes, int]:
        """Return the newest id of a message ≤ `through`, and its sequence; `(b"", 0)` if none is remembered."""
        if self.last_seq <= through:
            return self.last_id, self.last_seq
        at = bisect_right(self._lasts, through)  # the first chunk with others
        for each in (at, at - 1):
            if 0 <= each <= len(self._packed):
                chunk = self._open if each == len(self._packed) else self._unpacked(each)
                place = bisect_right(chunk.seqs, through)
                if place:
                    return chunk.ids[place - 1], chunk.seqs[place - 1]
        return b"", 0

    def load(
        self,
        dump: IdsDump,
        last_id: bytes,
        last_seq: int,
        older: Iterable[tuple[int, bytes, int]] = (),
        behind_ns: int = 0,
    ) -> None:
        """Load what `dump` returned, or the (time, id, seq) of releases before it. `behind_ns`: see `Ages`. Block.

        Raise CorruptLog, FileNotReadable.
        """
        self._clear()
        columns = [array(kind, each) for kind, each in zip("IQqq", dump.columns or [b""] * 4, strict=True)]
        if any(len(each) != len(dump.blocks) for each in columns):
            raise CorruptLog(self._directory, 0, "the checkpoint names other blocks of message ids than it has")
        for at, block in enumerate(dump.blocks):
            count, last, end, behind = (each[at] for each in columns)
            ids = self._unpack(block, 0).ids
            if len(ids) != count:
                raise CorruptLog(self._directory, 0, f"a block of {len(ids)} message ids where {count} belong")
            self._fill(ids, block, last, end - behind_ns, behind + behind_ns, max(len(dump.blocks) - at, 8))
            self._newest_ns = end - behind_ns
        self._cold = sum(not isinstance(each, bytes) for each in self._packed)
        for packed in dump.ids:
            chunk = self._unpack(packed, behind_ns)
            if chunk.ids:
                self.add_all(chunk.ids, chunk.seqs, chunk.times)
        for time_ns, msg_id, seq in older:
            self.add(msg_id, seq, time_ns)
        self._weigh()
        self.last_id, self.last_seq = last_id, last_seq

    def entries(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield (id, sequence, time in ns) of everything remembered, oldest first."""
        for at in range(len(self._packed) + 1):
            chunk = self._unpacked(at) if at < len(self._packed) else self._open
            yield from zip(chunk.ids, chunk.seqs, chunk.times, strict=True)
