"""What a member keeps beside its log, in the file `raft` of the group's directory.

Belongs here: term, vote and the few other facts that the log does not hold, and how they get to disk. The file has two
slots of SLOT bytes:

    magic, u32 crc of the rest, u64 number, u32 length, MessagePack `Kept`

The whole slot with the higher number counts. Every write goes to the slot that was not the last one to be synced: so
what was synced is never touched before its successor is durable, and a torn write costs nothing that was promised.
Writes without a sync are for facts that are good to know after a kill and not missed after a power cut.
"""

from __future__ import annotations

import os
import struct
from zlib import crc32

import msgspec

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files
from lakestream.raft.core.messages import Confirmed, HardState, Membership
from lakestream.raft.core.terms import Runs

NAME = "raft"
SLOT = 16 << 10
"""Bytes a slot may have: the names of a few hundred members."""

_MAGIC = b"LKRF"
_HEAD = struct.Struct("<4sIQI")


class Kept(msgspec.Struct, frozen=True):
    """The content of the file.

    `hard` and `recovering` are durable before anything that depends on them leaves. `durable` is the index through
    which this member's log was synced, and `hard.commit` what it knew to be committed; both are mostly written without
    a sync, so a killed process leaves them exact and a lost machine a little behind. The log begins after entry `base`,
    whose term is `base_term`, or has before that what cannot be given to others entry by entry. `membership` is a
    committed one, of entry `membership_index` (0: the group began with it); the log may have later ones. `forgetful`:
    recovering, and what `hard` says was lost, too. `joining`: recovering only because it is new in an older group.
    `confirmed`: what the members are known to have acknowledged, written without a sync (confirmed.py).
    `past`: the terms of entries before `past_through`, which is of `past_term`, also when they are gone; likewise.
    """

    hard: HardState
    membership: Membership
    membership_index: int = 0
    durable: int = 0
    base: int = 0
    base_term: int = 0
    recovering: bool = False
    forgetful: bool = False
    joining: bool = False
    confirmed: tuple[Confirmed, ...] = ()
    past: Runs = ()
    past_through: int = 0
    past_term: int = 0


class KeptFile:
    """The file of one member. Its methods block; the member calls them one at a time."""

    def __init__(self, files: Files, directory: str) -> None:
        """The file in `directory`, which exists. Nothing is opened yet."""
        self.path = os.path.join(directory, NAME)
        self._files = files
        self._fd = -1
        self._number = 0
        self._synced = 0  # the slot that was synced last

    def read(self) -> Kept | None:
        """What was kept; None when there is no file. Raises CorruptLog when no slot is whole, OSError."""
        try:
            self._fd = self._files.open(self.path, write=True)
        except FileNotFoundError:
            return None
        found: Kept | None = None
        for slot in (0, 1):
            number, kept = _decode(self._files.read_at(self._fd, SLOT, slot * SLOT))
            if kept is not None and number > self._number:
                self._number, self._synced, found = number, slot, kept
        if found is None:
            raise CorruptLog(self.path, 0, "neither of its two slots holds a term and a vote")
        self._files.sync(self._fd)  # the newer slot may be one that a killed process did not sync
        return found

    def write(self, kept: Kept, sync: bool) -> None:
        """Keep this from now on, durably when `sync`. Raises OSError; then nothing may be written any more."""
        body = msgspec.msgpack.encode(kept)
        if _HEAD.size + len(body) > SLOT:
            raise OSError(f"{self.path}: a membership of {len(kept.membership.members)} names is too large")
        slot = 1 - self._synced
        rest = struct.pack("<QI", self._number + 1, len(body)) + body
        content = [_MAGIC, crc32(rest).to_bytes(4, "little"), rest]
        if self._fd < 0:  # in one step: a file that is there without a whole slot is damage
            self._files.write_whole(self.path, [bytes(slot * SLOT), *content])
            self._fd = self._files.open(self.path, write=True)
            sync = False
            self._synced = slot
        else:
            self._files.write(self._fd, content, slot * SLOT)
        self._number += 1
        if sync:
            self._files.sync(self._fd)
            self._synced = slot

    def close(self) -> None:
        """Let go of the descriptor. Idempotent."""
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1


def _decode(data: bytes) -> tuple[int, Kept | None]:
    """(number, content) of a slot; (0, None) when it is not whole."""
    if len(data) < _HEAD.size:
        return 0, None
    magic, crc, number, length = _HEAD.unpack_from(data)
    end = _HEAD.size + length
    if magic != _MAGIC or end > len(data) or crc32(memoryview(data)[8:end]) != crc:
        return 0, None
    return number, msgspec.msgpack.decode(data[_HEAD.size : end], type=Kept)
