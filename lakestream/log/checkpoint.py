"""The state of a stream at one index, so that opening it need not replay everything.

Belongs here: the checkpoint file and its encoding. It replaces the one before in one durable step, so there always is
a whole one. What JetStream keeps beside the store travels along as opaque bytes.

    magic, u32 version, u64 length of the state, u64 length of the subject index, u32 crc of both
    MessagePack `State`, the subject index (subject_index.py)
"""

from __future__ import annotations

import struct
from zlib import crc32

import msgspec

from lakestream.log import subject_index
from lakestream.log.errors import CorruptLog, StoreVersionError
from lakestream.log.files import Files
from lakestream.log.subject_index import SubjectIndex

NAME = "checkpoint"
VERSION = 1

_MAGIC = b"LKCP"
_HEAD = struct.Struct("<4sIQQI")
_REBUILD = " (if the log still has its first segment, remove the checkpoint: it is rebuilt from the log)"


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the store knows at `index`, except the subject index and where records lie.

    `removed` are the sequences removed since the segment that begins with `opened_index` was begun, `erased` those of
    them that were asked for, `shredded` those of them whose bytes shall go too, and `moved` says that it saw removals
    at all; `size` is the stream's bytes; `live` is a SequenceSet. Times in ns.
    """

    index: int
    uid: str
    stream: str
    account: str
    config: bytes
    size: int
    first_seq: int
    last_seq: int
    last_time: int
    opened_index: int
    removed: list[int]
    moved: bool
    live: bytes
    extra: bytes
    erased: list[int] = []
    shredded: list[int] = []


class Snapshot(msgspec.Struct, frozen=True):
    """A copy of the state, taken in the event loop and written in a thread."""

    state: State
    subjects: subject_index.Snapshot


def write_checkpoint(files: Files, path: str, snapshot: Snapshot) -> int:
    """Write a checkpoint, durably, over the one before; returns its size in bytes. Blocks. Raises OSError."""
    state = msgspec.msgpack.encode(snapshot.state)
    subjects = snapshot.subjects.to_bytes()
    head = _HEAD.pack(_MAGIC, VERSION, len(state), len(subjects), crc32(subjects, crc32(state)))
    files.write_whole(path, [head, state, subjects])
    return len(head) + len(state) + len(subjects)


def read_checkpoint(files: Files, path: str) -> tuple[State, SubjectIndex, int] | None:
    """(state, subject index, size in bytes), or None when there is no checkpoint.

    Raises CorruptLog when it is damaged, StoreVersionError when a newer release wrote it.
    """
    try:
        data = files.read(path)
    except FileNotFoundError:
        return None
    if len(data) < _HEAD.size:
        raise CorruptLog(path, 0, "the checkpoint is cut short" + _REBUILD)
    magic, version, state_length, subjects_length, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptLog(path, 0, "this is not a checkpoint" + _REBUILD)
    if version != VERSION:
        raise StoreVersionError(f"{path} has version {version}, this release reads {VERSION}: run a newer lakestream")
    if len(data) != _HEAD.size + state_length + subjects_length:
        raise CorruptLog(path, len(data), "the checkpoint does not have the length that it claims" + _REBUILD)
    if crc32(memoryview(data)[_HEAD.size :]) != crc:
        raise CorruptLog(path, _HEAD.size, "the crc of the checkpoint does not match" + _REBUILD)
    state = msgspec.msgpack.decode(data[_HEAD.size : _HEAD.size + state_length], type=State)
    return state, SubjectIndex.from_bytes(data[_HEAD.size + state_length :]), len(data)
