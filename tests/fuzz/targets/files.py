"""Targets: files that a start, a compaction or a restore reads.

A log that was damaged must not give other messages than were written; a file whose checksums agree although its content
makes no sense must be refused by the error that names it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import struct
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import msgspec

from lakestream.account.backup import archive
from lakestream.account.backup.archive import ArchivedState, ArchiveError
from lakestream.account.backup.archive_tar import TarArchive, is_tar
from lakestream.lake.errors import LakeError
from lakestream.lake.staging import staging
from lakestream.lake.storage.paths import STREAM_FILE
from lakestream.lake.table import segments
from lakestream.log.format.errors import LogError
from lakestream.log.format.frame import Frame, Kind, encode_header
from lakestream.log.format.pieces import Pieces
from lakestream.log.format.record import Record, encode_record
from lakestream.log.format.segment import Header, encode_segment_header
from lakestream.log.store.checkpoint import read_checkpoint, write_checkpoint
from lakestream.log.store.segment_log import LogOptions
from lakestream.protocol import s2
from tests.fuzz.target import Target
from tests.unit.logkit import T0, MiniStream, QuickFiles, close_all, message

MEMORY = Path("/dev/shm")


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Make a directory, in memory where the machine has such a file system."""
    path = Path(tempfile.mkdtemp(prefix="lakestream-fuzz-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


# ---------------------------------------------------------------------- segments

SALT = 0x1234


@functools.cache
def _written() -> tuple[bytes, tuple[Record, ...]]:
    """Return a segment of several writes, and its messages."""
    content = encode_segment_header(Header(1, 1, T0, SALT))
    records: list[Record] = []
    seq = index = 1
    for frames in (2, 1, 3, 1):
        write = index
        for _ in range(frames):
            batch = [Record(seq + at, T0 + seq + at, *message(seq + at)) for at in range(2)]
            body = b"".join(encode_record(r.seq, r.time_ns, r.subject, r.header, r.data) for r in batch)
            content += encode_header(Frame(Kind.MESSAGES, 1, index, 2, body), write, SALT) + body
            records += batch
            seq, index = seq + 2, index + 1
    return content, tuple(records)


def _opened(content: bytes) -> list[Record]:
    """Return the messages of a stream whose log is one segment file with this content; open it twice."""
    with folder() as path:
        (path / "log").mkdir()
        (path / "log" / f"{1:020d}.seg").write_bytes(content)
        try:
            first = MiniStream(str(path)).all()
            close_all()
            assert MiniStream(str(path)).all() == first
            return first
        finally:
            close_all()


def _segments(data: bytes) -> None:
    """Even: the rest is the file. Odd: changes (position, length, new bytes) of a valid file; it may be cut."""
    if not data:
        return
    how, rest = data[0], data[1:]
    if not how & 1:
        _opened(rest)
        return
    whole, records = _written()
    content, at = bytearray(whole), 0
    while at + 3 <= len(rest):
        place, length = int.from_bytes(rest[at : at + 2], "little"), rest[at + 2] & 15
        fresh = rest[at + 3 : at + 3 + length]
        if not length:
            del content[place:]
        else:
            content[place : place + len(fresh)] = fresh
        at += 3 + length
    found = _opened(bytes(content))
    # Without a mark of what was synced, whole frames may be missing at the end.
    assert tuple(found) == records[: len(found)], "other messages than were written"


def _segment_seeds() -> list[bytes]:
    whole = _written()[0]
    found = [b"\x00" + whole, b"\x00" + whole[:-7], b"\x00" + whole[:64], b"\x01", b"\x01\x40\x02\x00"]
    return [*found, b"\x01\x50\x00\x02ab", b"\x01\x90\x01\x04\x00\x00\x00\x00\x00\x02\x00", b"\x00"]


# ---------------------------------------------------------------------- checkpoints

_CHECKPOINT = struct.Struct("<4sIQQI")


@functools.cache
def _checkpoint(blocks: int = 0) -> tuple[bytes, bytes]:
    """Return the state and the subject index of a valid checkpoint, with this many blocks of its owner behind it."""
    with folder() as path:
        stream = MiniStream(str(path))
        for number in range(8):
            stream.publish(message(number), message(number, b"other"))
        stream.operate("remove", 3)
        extra = Pieces([b"extra"])
        extra.blocks = [b"block"] * blocks
        snapshot = stream.store.snapshot(extra)  # type: ignore[attr-defined]
        write_checkpoint(QuickFiles(), str(path / "made"), snapshot)
        content = (path / "made").read_bytes()
        close_all()
    _, _, state, subjects, _ = _CHECKPOINT.unpack_from(content)
    head = _CHECKPOINT.size
    return content[head : head + state], content[head + state : head + state + subjects]


def _sealed_checkpoint(version: int, state: bytes, subjects: bytes) -> bytes:
    crc = crc32(subjects, crc32(state))
    return _CHECKPOINT.pack(b"LKCP", version, len(state), len(subjects), crc) + state + subjects


def _checkpoints(data: bytes) -> None:
    """0: the rest is the file. Otherwise a version, a length, state and subjects, under checksums that agree."""
    if len(data) < 3:
        return
    version, rest = data[0], data[3:]
    if version:
        length = int.from_bytes(data[1:3], "little")
        rest = _sealed_checkpoint(1 + version % 4, rest[:length], rest[length:])
    with folder() as path:
        (path / "checkpoint").write_bytes(rest)
        found = read_checkpoint(QuickFiles(), str(path / "checkpoint"))
        if found is not None:
            for subject, _ in found.subjects.items():
                found.subjects.seqs(subject)
            for block in found.blocks:
                block.content()


def _checkpoint_seeds() -> list[bytes]:
    state, subjects = _checkpoint()
    whole = _sealed_checkpoint(3, state, subjects)
    packed = bytes([2]) + len(state).to_bytes(2, "little") + state + subjects
    apart, index = _checkpoint(blocks=2)
    owned = bytes([3]) + len(apart).to_bytes(2, "little") + apart + index
    return [b"\0\0\0" + whole, b"\0\0\0" + whole[:20], packed, b"\x01" + packed[1:], owned]


# ---------------------------------------------------------------------- staged files

_TRAILER = struct.Struct("<QIIII4s")


@functools.cache
def _sealed() -> bytes:
    """Return a sealed segment."""
    with folder() as path:
        stream = MiniStream(str(path), LogOptions(seal_bytes=200, seal_age_ns=1 << 60))
        for number in range(12):
            stream.publish(message(number), message(number, b"other"))
        close_all()
        for name in sorted(os.listdir(path / "log")):
            content = (path / "log" / name).read_bytes()
            if content[-4:] == b"LKSF":
                return content
    raise AssertionError("no segment was sealed")


def _staged(data: bytes) -> None:
    """0: the rest is a segment. 1: its metadata is, under checksums that agree. 2: the identity of the stream."""
    if not data:
        return
    how, rest = data[0] % 3, data[1:]
    with folder() as path:
        if how == 2:
            (path / STREAM_FILE).write_bytes(rest)
            staging.read_identity(str(path))
            return
        if how == 1:
            whole = _sealed()
            tables_at, rows, length, tables_crc, _, magic = _TRAILER.unpack(whole[-_TRAILER.size :])
            fields = struct.pack("<QIII", tables_at, rows, len(rest), tables_crc)
            crc = crc32(fields, crc32(rest))
            rest = whole[: -_TRAILER.size - length] + rest + fields + struct.pack("<I4s", crc, magic)
        file = path / f"{1:020d}-{9:020d}.seg"
        file.write_bytes(rest)
        staging.footer(str(file))
        for batch in segments.decode(str(file)):
            batch.validate()


def _staged_seeds() -> list[bytes]:
    whole = _sealed()
    length = _TRAILER.unpack(whole[-_TRAILER.size :])[2]
    metadata = whole[-_TRAILER.size - length : -_TRAILER.size]
    identity = staging.StreamIdentity("ORDERS", "$G", "uid", T0, msgspec.Raw(b'{"name":"ORDERS"}'))
    return [b"\0" + whole, b"\x01" + metadata, b"\x02" + msgspec.json.encode(identity), b"\0" + whole[:100]]


# ---------------------------------------------------------------------- archives


def _archives(data: bytes) -> None:
    """Bits of the first byte: 1: in a valid S2 stream; 2: in pieces of 7 bytes; 4: as a tar archive; 8: an S2 block."""
    if not data:
        return
    how, sent = data[0], data[1:]
    if how & 8:
        with contextlib.suppress(s2.S2Error):
            s2.decode_block(sent)
        return
    if how & 1:
        sent = s2.MAGIC + s2.encode(sent)
    chunks = [sent[at : at + 7] for at in range(0, len(sent), 7)] if how & 2 else [sent]

    def unpacked() -> Iterator[bytes]:
        return archive.decoded(chunks, 1 << 24)

    beginning = b"".join(unpacked())[:512]
    if how & 4 or is_tar(beginning):
        state = ArchivedState(messages=3, first_seq=1, last_seq=3)
        old = TarArchive(unpacked, state)
        list(old.messages())
        return
    read = archive.Archive(unpacked())
    records = list(read.messages())
    if records and all(0 <= r.time_ns < 1 << 62 for r in records):
        state_entry = archive.entry(archive.STATE_NAME, 0, body=b'{"last_seq":%d}' % records[-1].seq)
        made = archive.MAGIC + state_entry + archive.messages(records) + archive.END
        assert list(archive.Archive(archive.decoded([s2.MAGIC + s2.encode(made)])).messages()) == records


def _block() -> bytes:
    """Return a message block of nats-server with three messages."""
    found = b""
    for seq in (1, 2, 3):
        subject, header, payload = b"a.%d" % seq, b"NATS/1.0\r\n\r\n" if seq == 2 else b"", b"x" * seq
        middle = len(header).to_bytes(4, "little") + header if header else b""
        size = 22 + len(subject) + len(middle) + len(payload) + 8
        found += struct.pack("<IQqH", size | (bool(header) << 31), seq, T0, len(subject)) + subject + middle + payload
        found += bytes(8)
    return found


def _tar() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        state = bytes([22, 2, 1, 1, 2, 2, 1, 10, 0, 0, 0, 1, 1, 1])
        files = (
            ("meta.inf", b"{}"),
            ("msgs/1.blk", _block()),
            ("obs/c/meta.inf", b'{"name":"c"}'),
            ("obs/c/o.dat", state),
        )
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return made.getvalue()[:5120]


def _archive_seeds() -> list[bytes]:
    state = b'{"messages":2,"first_seq":1,"last_seq":2,"consumer_count":1}'
    consumer = archive.consumer("c", T0, b'{"name":"c"}', archive.ConsumerState(pending={"2": archive.Pending(1, T0)}))
    records = [Record(1, T0, b"a", b"", b"x"), Record(2, -T0, b"b", b"NATS/1.0\r\n\r\n", b"")]
    plain = archive.MAGIC + archive.entry(archive.STATE_NAME, T0, body=state) + consumer
    plain += archive.messages(records) + archive.END
    stream = s2.MAGIC + s2.encode(plain)
    block = b"\x14\x10hello\x05\x05\x3a\x05\x00"
    return [b"\x01" + plain, b"\x03" + plain, b"\0" + stream, b"\x02" + stream, b"\x05" + _tar(), b"\x08" + block]


TARGETS = (
    Target(
        "segments",
        "recovery of a log: any bytes, and damaged segments",
        _segments,
        (LogError,),
        _segment_seeds,
        (b"1FKL", encode_segment_header(Header(1, 1, T0, SALT))),
    ),
    Target(
        "checkpoints",
        "checkpoints, also with checksums that agree",
        _checkpoints,
        (LogError,),
        _checkpoint_seeds,
        (b"LKCP", b"\xa5index", b"\xa4live", b"\xa7removed"),
    ),
    Target(
        "staged",
        "staged files of a lake: segments, footers, identities",
        _staged,
        (LakeError, LogError),
        _staged_seeds,
        (b"LKSF", b'{"name":', b'"uid":', b'"config":'),
    ),
    Target(
        "archives",
        "archives of backups: S2 streams, archives, old tar files",
        _archives,
        (ArchiveError,),
        _archive_seeds,
        (
            archive.MAGIC,
            archive.STATE_NAME,
            archive.CONSUMERS,
            b"\xff\x06\x00\x00S2sTwO",
            b"ustar",
            b"msgs/1.blk",
            b"obs/c/",
        ),
        6144,
    ),
)
