"""Content of one sealed file: its chunks, and which of them holds which bytes.

Belongs here: the format, reading, writing and cutting one open file. Nothing here knows where keys come from.
"""

# A sealed file is a sequence of bytes like any other, for those who use it. On disk each write is one chunk or several,
# sealed by themselves, behind those before:
#
#     header   64 bytes: magic, version, cipher, id of the scope key, random id of the file, crc, zeros
#     chunks   magic, u8 kind, u32 length, u64 offset of its bytes in the content, 12 bytes nonce, 8 bytes of the tag
#              of the chunk before it, u32 crc of the chunk's header; ciphertext; 16 bytes tag
#     zeros    as room for the next ones
#
# Why not blocks at fixed places, as disks are encrypted: an append would write the last block again, and a torn write
# would then destroy what was durable before.
#
# What holds the chunks in place. A chunk's associated data are its header and its place in the file, and the file's id
# is in its key: a chunk that is moved within the file or to another one does not open. Each names a part of the tag of
# the one before, so none can be replaced by an older version of it, nor left out. Nonces are random, 96 bits under a
# key of one file: a chunk that is written again after a crash, at the same place, never repeats one.
#
# What a crash or damage looks like. A chunk that does not open reads as FILL. So does what is missing between two
# chunks, and what lies behind the last good one. The formats above have their own checks, and decide as ever what is a
# torn write and what is damage: store/recovery.py needs no second rule. Only a chunk whose header is damaged takes
# more: the next one is searched, and its offset tells how much is missing.
#
# Content is mostly appended. What is written elsewhere (the two slots of the file `raft`, a head that is written last)
# is a LOOSE chunk, on a page of its own: writing exactly the same bytes' range again overwrites it in place, as a plain
# file would be. Cutting a file in the middle of a chunk adds a chunk that says so (CUT).

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from io import BytesIO
from zlib import crc32

from lakestream.log.format.files import Files, WriteRoom
from lakestream.log.sealing.keys import Aead, Keyring, ScopeKey

MAGIC = b"LKSEALED"
VERSION = 1
HEADER_SIZE = 64
CHUNK_BYTES = 32 << 10
"""Longer writes become several chunks (32 KiB): reading one message decrypts as much (0.01 to 0.03 ms)."""
OVERHEAD = 60
"""Bytes of a chunk besides its content."""
PAGE = 4096
"""LOOSE chunks begin at multiples of this."""
READ_BYTES = 256 << 10
"""Maximum bytes of one read (256 KiB): they are still in the processor's cache when they are opened."""
GATHER_CHUNKS = 64
GATHER_BYTES = CHUNK_BYTES // 2
"""A complete file with more chunks than that, of fewer bytes on the average, is worth writing anew: opening one reads
the headers of its chunks (a segment of 16 MiB: 1 ms with chunks of 32 KiB, 30 ms with those of 4 KiB)."""
FILL = b"\xdb"
"""Reads in the place of a byte that cannot be read. Not zero: zeros mean that nothing was written."""

Buffer = bytes | memoryview

_APPEND, _LOOSE, _CUT = 1, 2, 3
_FIRST = b"LKCH"
_HEADER = struct.Struct("<8sHBx16s16sI")
_CHUNK = struct.Struct("<4sB3xIQ12s8sI")
_HEAD = _CHUNK.size
_TAG = 16
_NONE = bytes(8)
_WINDOW, _NEXT = 16 << 10, _TAG + _HEAD
_SMALL = 16 << 10
assert _HEAD + _TAG == OVERHEAD


class Unsealed(ValueError):
    """Raised for a file without an intact header of a sealed one."""


def is_plain(header: bytes) -> bool:
    """Return True if a file begins as one of a store that is not encrypted (their magics begin with `LK`)."""
    return header[:2] == MAGIC[:2] and header[4:8] != MAGIC[4:8]


def key_of(header: bytes) -> bytes:
    """Return the id of the scope key in a file's header. Raise Unsealed."""
    if len(header) < HEADER_SIZE or not header.startswith(MAGIC):
        raise Unsealed("it does not begin as a sealed file")
    _magic, version, _cipher, key_id, _file_id, crc = _HEADER.unpack_from(header)
    if crc32(header[: _HEADER.size - 4]) != crc:
        raise Unsealed("the crc of its header does not match")
    if version != VERSION:
        raise Unsealed(f"it has version {version} of sealed files, this release reads {VERSION}")
    return bytes(key_id)


class Content:
    """The content of one file, shared by all its descriptors. Every method but the properties blocks.

    One thread at a time may write; others may read meanwhile what was written before.

    Args:
        keys: for random bytes, and the cipher of a new file.
        key: of the file.
        path: by which it was opened.
    """

    def __init__(self, keys: Keyring, key: ScopeKey, path: str) -> None:
        self._keys, self._key, self.path = keys, key, path
        self.users = 0
        """Number of descriptors."""
        self.end = 0
        """Length of the content in bytes."""
        self._header = b""  # until something is written
        self._aead: Aead | None = None
        # Extents of the content by columns, ascending: the bytes start … stop are in the chunk at `place`, whose
        # `size` bytes begin at `base` of the content. Place 0: nobody can read them.
        self._starts, self._stops, self._bases = array("Q"), array("Q"), array("Q")
        self._places, self._sizes = array("Q"), array("I")
        self._tail = HEADER_SIZE  # where the next chunk goes
        self._length = 0  # of the file on disk
        self._last: bytes | None = _NONE  # of the tag of the last chunk; None: it has to be read
        self._tip = (0, 0)  # place and size of that chunk
        self._even = True  # chunks follow each other as their bytes do
        self._room = 0  # zeros that were wanted behind small appends
        self._changes = 0  # of chunks that were there
        self._recent = (0, 0, b"")  # the chunk that was opened last: as of which change, its place, its content

    # ------------------------------------------------------------------ opening
    def load(self, files: Files, fd: int) -> None:
        """Find the chunks of a file. Raise OSError."""
        self._length = files.size(fd)
        window = _Window(files, fd)
        header = window.at(0, HEADER_SIZE)
        if not header.strip(b"\0") and self._length <= HEADER_SIZE:
            return
        try:
            self._begin(header)
        except Unsealed:
            self._put(0, max(1, self._length - HEADER_SIZE - OVERHEAD), 0)
            return
        at, chained, missed = HEADER_SIZE, True, 0
        while at < self._length:
            chunk = _decode(window.at(at, _HEAD))
            if (
                chunk is None
                or at + chunk[1] + OVERHEAD > self._length
                or not self._takes(files, fd, at, *chunk, chained)
            ):
                # A device may also return other bytes the next time: behind the place where it did so once.
                at = missed = self._found_again(files, fd, at + (at == missed))
                if not at:
                    break
                window, chained = _Window(files, fd), False
                continue
            kind, size, _, _ = chunk
            self._last = window.at(at + _HEAD + size, _TAG)[:8] if kind != _LOOSE else _NONE
            self._tip, chained = (at, size), kind != _LOOSE
            at += size + OVERHEAD
            self._tail = at
        if self._last != _NONE:
            self._last = None  # what was read here was not checked

    def _takes(
        self, files: Files, fd: int, at: int, kind: int, size: int, base: int, previous: bytes, chained: bool
    ) -> bool:
        """Take the chunk at `at` for what its header says; return False for a cut that does not open."""
        broken = chained and bool(self._places) and previous != self._last and (kind == _APPEND or previous != _NONE)
        if (kind == _CUT or broken) and self._open(files.read_at(fd, size + OVERHEAD, at), at) is None:
            if kind == _CUT:
                return False
        elif broken:
            self._places[-1] = 0  # the one before is not what was written there
        if kind == _CUT:
            self._drop(base)
            self.end, self._even = base, False
        else:
            if kind == _APPEND and base > self.end:
                self._put(self.end, base - self.end, 0)  # lost
            self._put(base, size, at)
        return True

    def _begin(self, header: bytes) -> None:
        if key_of(header) != self._key.id:
            raise Unsealed("it is sealed with another stream's key")
        self._header, self._aead = header, self._key.aead(header[10], header)

    def _found_again(self, files: Files, fd: int, at: int) -> int:
        """Return the place of the next chunk that opens behind damage at `at`; 0 if there is none.

        What lies in between is damage, and what lies behind the last chunk a torn write, unless it is zeros.
        """
        aligned = -(-at // PAGE) * PAGE
        chunk = _decode(files.read_at(fd, _HEAD, aligned))
        begins = chunk is not None and not files.read_at(fd, aligned - at, at).strip(b"\0")
        if chunk and begins and self._open(files.read_at(fd, chunk[1] + OVERHEAD, aligned), aligned) is not None:
            return aligned
        rest = files.read_at(fd, self._length - at, at)
        found = rest.find(_FIRST)
        while found >= 0:
            chunk = _decode(rest[found : found + _HEAD])
            if chunk is not None and self._open(rest[found : found + chunk[1] + OVERHEAD], at + found) is not None:
                return at + found
            found = rest.find(_FIRST, found + 1)
        torn = len(rest.rstrip(b"\0"))
        if torn:
            self._put(self.end, max(1, torn - OVERHEAD), 0)
            self._tail = at + torn
        return 0

    # ------------------------------------------------------------------ reading
    def read(self, files: Files, fd: int, length: int, offset: int) -> bytes:
        """Return `length` bytes at `offset`; fewer only at the end. Raise OSError."""
        stop = min(offset + length, self.end)
        made = BytesIO(bytes(max(stop - offset, 0)))
        if offset < stop:
            with made.getbuffer() as out:  # chunks are opened in their place: no copy is made of what is read
                self._fill(files, fd, out, offset, stop)
        return made.getvalue()

    def _fill(self, files: Files, fd: int, out: memoryview, offset: int, stop: int) -> None:
        """Write the content from `offset` to `stop` to `out`, which is zeros."""
        starts, stops, places, sizes = self._starts, self._stops, self._places, self._sizes
        begun, index = offset, max(bisect_right(starts, offset) - 1, 0)
        while offset < stop and index < len(stops):
            if stops[index] <= offset:
                index += 1
            elif starts[index] > offset:  # never written
                offset = min(starts[index], stop)
            elif not places[index]:
                until = min(stops[index], stop)
                out[offset - begun : until - begun] = FILL * (until - offset)
                offset, index = until, index + 1
            else:
                first, at, until = index, places[index], places[index] + sizes[index] + OVERHEAD
                as_of, recent, plain = self._recent
                if (as_of, recent) == (self._changes, at):
                    self._put_part(first, plain, out, begun, stop)
                    offset, index = stops[first], index + 1
                    continue
                index += 1
                while (
                    index < len(stops)
                    and (starts[index], places[index]) == (stops[index - 1], until)
                    and starts[index] < stop
                    and until - at < READ_BYTES
                ):
                    until += sizes[index] + OVERHEAD
                    index += 1
                self._open_run(files, fd, range(first, index), out, begun, stop)
                offset = stops[index - 1]

    def _open_run(self, files: Files, fd: int, chunks: Sequence[int], out: memoryview, begun: int, stop: int) -> None:
        """Write the content of chunks that follow each other to `out`, whose first byte is the one at `begun`."""
        bases, places, sizes, changes = self._bases, self._places, self._sizes, self._changes
        at = places[chunks[0]]
        read = memoryview(files.read_at(fd, places[chunks[-1]] + sizes[chunks[-1]] + OVERHEAD - at, at))
        for each in chunks:
            place, size, base = places[each], sizes[each], bases[each]
            chunk = read[place - at : place - at + size + OVERHEAD]
            is_whole = begun <= base == self._starts[each] and base + size == self._stops[each] <= stop
            if is_whole and self._open_into(chunk, place, out[base - begun : base - begun + size]):
                continue
            piece = self._open(chunk, place)
            if piece is None or len(piece) != size:  # a device may do better the next time
                piece = self._open(files.read_at(fd, size + OVERHEAD, place), place)
            if piece is None or len(piece) != size:
                piece = FILL * size
            elif each == chunks[-1]:
                self._recent = (changes, place, piece)
            self._put_part(each, piece, out, begun, stop)

    def _put_part(self, index: int, plain: bytes, out: memoryview, begun: int, stop: int) -> None:
        """Write what is wanted of a chunk to `out`."""
        base, start, end = self._bases[index], max(begun, self._starts[index]), min(stop, self._stops[index])
        out[start - begun : end - begun] = memoryview(plain)[start - base : end - base]

    def _open_into(self, chunk: memoryview, place: int, out: memoryview) -> bool:
        """Write the content of a chunk to `out`; return False if it is not what was written there, or `cryptography`
        is too old for that (46)."""
        from cryptography.exceptions import InvalidTag

        into = getattr(self._aead, "decrypt_into", None)
        if into is None or len(chunk) != len(out) + OVERHEAD:
            return False
        head = bytes(chunk[:_HEAD])
        try:
            into(head[20:32], chunk[_HEAD:], head + place.to_bytes(8, "little"), out)
        except InvalidTag:
            return False
        return True

    def _open(self, chunk: Buffer, place: int) -> bytes | None:
        """Return the content of a chunk; None if it is not what was written there."""
        from cryptography.exceptions import InvalidTag

        assert self._aead is not None
        head = bytes(chunk[:_HEAD])
        if len(head) < _HEAD:
            return None
        try:
            return self._aead.decrypt(head[20:32], chunk[_HEAD:], head + place.to_bytes(8, "little"))
        except InvalidTag:
            return None

    # ------------------------------------------------------------------ writing
    def write(self, files: Files, fd: int, buffers: Sequence[bytes], offset: int) -> None:
        """Write buffers, one behind the other, at `offset`. `WriteRoom` at their end becomes zeros on disk."""
        if buffers and isinstance(buffers[-1], WriteRoom):
            self._room, buffers = len(buffers[-1]), buffers[:-1]
        out, total = list[bytes](), sum(map(len, buffers))
        nonces = self._keys.random(12 * -(-total // CHUNK_BYTES))
        if not self._header:
            fields = (MAGIC, VERSION, self._keys.cipher, self._key.id, self._keys.random(16))
            header = _HEADER.pack(*fields, crc32(_HEADER.pack(*fields, 0)[:-4])).ljust(HEADER_SIZE, b"\0")
            self._begin(header)
            out, self._tail = [header], HEADER_SIZE
        at = self._tail - sum(map(len, out))
        placed, tip = list[tuple[int, int, int]](), self._tip
        if self._last is None:
            self._last = self._tag(files, fd)
        end, tail, last = self.end, self._tail, self._last
        for number, piece in enumerate(_pieces(buffers)):
            base, nonce = offset + number * CHUNK_BYTES, nonces[12 * number : 12 * number + 12]
            if (place := self._same(base, len(piece))) and not out:
                files.write(fd, self._seal(_LOOSE, piece, base, place, _NONE, nonce), place)
                self._changes += 1
                continue
            kind = _APPEND
            if base != end:
                kind, last = _LOOSE, _NONE
                aligned = -(-tail // PAGE) * PAGE
                out.append(bytes(aligned - tail))
                tail = aligned
            head, sealed = self._seal(kind, piece, base, tail, last, nonce)
            out += (head, sealed)
            placed.append((base, len(piece), tail))
            tail += len(piece) + OVERHEAD
            end, last = max(end, base + len(piece)), sealed[-_TAG:-8] if kind == _APPEND else _NONE
            tip = tail - len(piece) - OVERHEAD, len(piece)
        length = max(self._length, tail)
        if tail > self._length and self._room and total <= _SMALL:
            length = -(-(tail + self._room) // PAGE) * PAGE
            out.append(bytes(length - tail))
        if out:
            try:
                files.write(fd, out, at)
            except BaseException:
                self._header = self._header if at else b""  # the next write begins with it again
                raise
        self._length, self._tail, self._last, self._tip = length, tail, last, tip
        for each in placed:
            self._put(*each)

    def _seal(
        self, kind: int, data: Buffer, base: int, place: int, previous: bytes, nonce: bytes
    ) -> tuple[bytes, bytes]:
        assert self._aead is not None
        head = _CHUNK.pack(_FIRST, kind, len(data), base, nonce, previous, 0)[:-4]
        head += crc32(head).to_bytes(4, "little")
        return head, self._aead.encrypt(nonce, data, head + place.to_bytes(8, "little"))

    def _tag(self, files: Files, fd: int) -> bytes:
        """Return the part of the last chunk's tag that the next one names.

        Only a chunk that opens is believed: a bit that a device flips once would stay in the file, as damage.
        """
        place, size = self._tip
        for _ in range(2):
            chunk = files.read_at(fd, size + OVERHEAD, place)
            if self._open(chunk, place) is not None:
                break
        return chunk[-_TAG:-8]

    def _same(self, base: int, size: int) -> int:
        """Return the place of the chunk that has exactly these bytes, all of them in use; 0 if there is none."""
        if base >= self.end:
            return 0
        index = bisect_left(self._starts, base)
        if index == len(self._starts) or self._starts[index] != base or self._bases[index] != base:
            return 0
        return self._places[index] if self._stops[index] - base == size == self._sizes[index] else 0

    def truncate(self, files: Files, fd: int, length: int) -> None:
        """Cut or extend the content to `length` bytes."""
        self._changes += 1
        if length > self.end:
            self.write(files, fd, [bytes(length - self.end)], self.end)
            return
        if length == self.end and self._header:  # only room
            files.truncate(fd, self._tail)
            self._length = self._tail
            return
        if not length:
            self._drop(0)
            self._even, self._tail, self._last = True, HEADER_SIZE if self._header else 0, _NONE  # begun anew
            files.truncate(fd, self._tail)
            self._length = self._tail
            return
        if not self._header:  # it is damaged, and stays so
            self.truncate(files, fd, 0)
            self.write(files, fd, [FILL * length], 0)
            return
        self._drop(length)
        last = len(self._places) - 1
        while last >= 0 and not self._places[last]:
            last -= 1
        parted = last >= 0 and self._stops[last] < self._bases[last] + self._sizes[last]
        if self._even:
            self._tail = self._places[last] + self._sizes[last] + OVERHEAD if last >= 0 else HEADER_SIZE
        files.truncate(fd, self._tail)
        self._length = self._tail
        if self._even and not parted:
            self._last, self._tip = (None, (self._places[last], self._sizes[last])) if last >= 0 else (_NONE, (0, 0))
            return
        # Else whoever opens the file finds the chunks whole again. The place of what it cuts stays taken: an older cut
        # may be there, too.
        head, sealed = self._seal(_CUT, b"", length, self._tail, _NONE, self._keys.random(12))
        files.write(fd, [head, sealed], self._tail)
        self._tail = self._length = self._tail + OVERHEAD
        self._last, self._even, self.end = sealed[-_TAG:-8], False, length

    @property
    def damaged(self) -> bool:
        """Return True if some of the content cannot be read."""
        return 0 in self._places

    @property
    def scattered(self) -> bool:
        """Return True if so many small chunks make opening it slow, or if most of it was cut off."""
        many = len(self._sizes) > GATHER_CHUNKS and self.end < GATHER_BYTES * len(self._sizes)
        return many or self._tail > 2 * (self.end + OVERHEAD * len(self._sizes)) + PAGE

    # ------------------------------------------------------------------ extents
    def _put(self, start: int, size: int, place: int) -> None:
        """Note that a chunk holds the bytes from `start` on; whatever was there before is gone."""
        if start < self.end:
            self._even = False
            self._clear(start, start + size)
        elif start > self.end:
            self._even = False
        if size:
            self._insert(start, start + size, start, place, size)
        self.end = max(self.end, start + size)

    def _insert(self, start: int, stop: int, base: int, place: int, size: int) -> None:
        at = bisect_left(self._starts, start)
        if at == len(self._starts):
            self._stops.append(stop)
            self._bases.append(base)
            self._places.append(place)
            self._sizes.append(size)
            self._starts.append(start)
            return
        for column, value in zip(self._columns, (start, stop, base, place, size), strict=True):
            column.insert(at, value)

    @property
    def _columns(self) -> tuple[array[int], ...]:
        return self._starts, self._stops, self._bases, self._places, self._sizes

    def _clear(self, start: int, stop: int) -> None:
        """Forget the bytes start … stop."""
        at = max(bisect_right(self._starts, start) - 1, 0)
        while at < len(self._starts) and self._starts[at] < stop:
            first, last = self._starts[at], self._stops[at]
            if last <= start:
                at += 1
            elif first < start:
                self._stops[at] = start
                if last > stop:
                    self._insert(stop, last, self._bases[at], self._places[at], self._sizes[at])
                at += 1
            elif last > stop:
                self._starts[at] = stop
                at += 1
            else:
                for column in self._columns:
                    del column[at]

    def _drop(self, length: int) -> None:
        """Forget the bytes from `length` on."""
        if length < self.end:
            self._clear(length, self.end)
            self.end = length


def _pieces(buffers: Sequence[bytes]) -> Iterator[Buffer]:
    """Yield buffers, one behind the other, in pieces of CHUNK_BYTES.

    Each piece is joined by itself: it is still in the processor's cache when it is sealed.
    """
    held, size = list[Buffer](), 0
    for buffer in buffers:
        view, at = memoryview(buffer), 0
        while len(view) - at >= CHUNK_BYTES - size:
            upto = at + CHUNK_BYTES - size
            yield b"".join([*held, view[at:upto]]) if held else view[at:upto]
            held, size, at = [], 0, upto
        if at < len(view):
            held.append(view[at:])
            size += len(view) - at
    if held:
        yield b"".join(held) if len(held) > 1 else held[0]


class _Window:
    """Reads the pieces of a file that follow each other, many at once if they are short."""

    def __init__(self, files: Files, fd: int) -> None:
        self._files, self._fd = files, fd
        self._start, self._data = 0, b""

    def at(self, offset: int, length: int) -> bytes:
        """Return `length` bytes at `offset`; fewer at the end of the file."""
        begun = offset - self._start
        if begun < 0 or begun + length > len(self._data):
            # Between large chunks only a tag and the next header are wanted.
            size = _WINDOW if offset - self._start < _WINDOW else _NEXT
            self._start, self._data = offset, self._files.read_at(self._fd, max(length, size), offset)
            begun = 0
        return self._data[begun : begun + length]


def _decode(head: bytes) -> tuple[int, int, int, bytes] | None:
    """Return kind, size, offset and the tag before it of a chunk's header; None if it is damaged or none."""
    if len(head) < _HEAD or not head.startswith(_FIRST):
        return None
    _, kind, size, base, _, previous, crc = _CHUNK.unpack(head)
    if crc32(head[:-4]) != crc or kind not in (_APPEND, _LOOSE, _CUT):
        return None
    return kind, size, base, previous
