"""Streams that are known and not open.

Belongs here: `Dormant`, which has what others see of such a stream, and the file in which a clean stop leaves them to
the next start. `meta/keeping.py` decides which streams these are, and opens them.

    magic, u32 crc of the rest, MessagePack `_Left`

The file lasts from a clean stop to the next start, which removes it durably before it changes anything: after a crash
there is none. What it says of a stream holds as long as its newest segment is as the stop left it; an earlier release
that ran meanwhile, or a copy that somebody restores, changes that. Nothing that a recovery uses is taken from it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

import msgspec

import lakestream
from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files
from lakestream.log.format.segment import LOG_DIRECTORY
from lakestream.log.store.root import DORMANT
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder, PackDecoder
from lakestream.stream.core.config import StreamConfig

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream

Json = bytes  # by another name: `bytes` is a field, too
_MAGIC = b"LKDM"
_HEAD = len(_MAGIC) + 4
_STREAM_CONFIG = JsonDecoder(StreamConfig)
_OWN = ("account", "name", "uid", "created_ns")
_STATE = ("msgs", "bytes", "first_seq", "first_time", "last_seq", "last_time")


class Dormant(msgspec.Struct, kw_only=True, dict=True):
    """A stream that is not open, with what is known of `Stream` and `Store` under their names.

    It is to be opened at `acts_at` (steady clock, ns), whatever its clients do, and if it is `staged` once a compactor
    comes, which its segments wait for. `segment` is the name of the newest one, and `stamp` that of its file.
    """

    closed: ClassVar[bool] = False
    leading: ClassVar[bool] = True
    failed: ClassVar[None] = None
    pending_bytes: ClassVar[int] = 0
    consumers: ClassVar[Mapping[str, Any]] = {}

    account: str
    name: str
    uid: str
    created_ns: int
    stored: Json
    msgs: int
    bytes: int
    first_seq: int
    first_time: int
    last_seq: int
    last_time: int
    num_subjects: int
    consumer_names: list[str]
    acts_at: int
    staged: bool
    segment: str
    stamp: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, stream: Stream, acts_at: int, staged: bool, segment: str) -> Dormant:
        """Return what is known of an open stream. Raise LogError."""
        store = stream.store
        state = {name: getattr(store, name) for name in _STATE} | {"num_subjects": len(store.subjects)}
        own = {name: getattr(stream, name) for name in _OWN} | {"consumer_names": list(stream.consumers)}
        return cls(**own, **state, stored=store.config, acts_at=acts_at, staged=staged, segment=segment)

    @cached_property
    def config(self) -> StreamConfig:
        """Return the configuration."""
        return _STREAM_CONFIG.decode(self.stored)

    @property
    def consumer_count(self) -> int:
        """Return the number of consumers."""
        return len(self.consumer_names)

    @property
    def subjects(self) -> range:
        """Return something that is as long as the stream has subjects."""
        return range(self.num_subjects)

    @property
    def store(self) -> Dormant:
        """Return what has the state of the store."""
        return self

    pipeline = proposer = store

    def feature_info(self) -> dict[str, Any]:
        """Return nothing: a stream with features that act is open."""
        return {}

    def guard(self) -> None:
        """Do nothing: no message is decided before it is open."""

    def memory(self) -> dict[str, int]:
        """Return nothing: there are no indexes in memory."""
        return {}

    def stamp_in(self, files: Files, directory: str) -> tuple[int, int]:
        """Return the present stamp of the newest segment in the stream's directory. Block. Raise OSError."""
        return files.stamp(os.path.join(directory, LOG_DIRECTORY, self.segment))


class _Left(msgspec.Struct, frozen=True):
    """Content of the file. Another release than the one that wrote it does not use it."""

    release: str
    streams: list[Dormant]


_LEFT = PackDecoder(_Left)


def leave(files: Files, root: str, streams: Sequence[Dormant]) -> None:
    """Write the file, durably, at the end of a clean stop. Block. Raise OSError."""
    content = msgspec.msgpack.encode(_Left(lakestream.__version__, list(streams)))
    files.write_whole(os.path.join(root, DORMANT), [_MAGIC, crc32(content).to_bytes(4, "little"), content])


def take(files: Files, root: str) -> dict[tuple[str, str], Dormant]:
    """Return the streams, by account and name, that the last stop has left, and remove the file, durably. Block.

    There are none if the file is damaged or of another release. Raise OSError.
    """
    path, found = os.path.join(root, DORMANT), list[Dormant]()
    with contextlib.suppress(LogError, OSError, *DECODE_ERRORS):  # then every stream is opened
        content = files.read(path)
        if content[:_HEAD] == _MAGIC + crc32(content[_HEAD:]).to_bytes(4, "little"):
            left = _LEFT.decode(content[_HEAD:])
            found = left.streams if left.release == lakestream.__version__ else []
    files.remove(path)
    files.sync_directory(root)
    return {(each.account, each.name): each for each in found}
