"""The hard state of a member, in the file `raft` of the group's directory.

Belongs here: term, vote and the few other facts that the log does not hold, and how they are made durable. The file has
two slots of SLOT bytes:

    magic, u32 crc of the rest, u64 number, u32 length, MessagePack `PersistentState`

The intact slot with the higher number is valid. Every write goes to the slot that was not synced last: so a synced slot
is never overwritten before its successor is durable, and a torn write loses nothing that was promised. Writes without a
sync are for facts that help after a kill and are not needed after a power failure.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files
from lakestream.protocol.decoding import PackDecoder
from lakestream.raft.core.messages import Confirmed, HardState, Membership
from lakestream.raft.core.terms import Runs

if TYPE_CHECKING:
    from lakestream.raft.core.core import Core  # only members of a Raft group have one

NAME = "raft"
SLOT = 16 << 10
"""Size of a slot in bytes (16 KiB): enough for the names of a few hundred members."""

UNIT = 512
"""Bodies are padded to multiples of this, so that most writes have the length of the one before them (sealed files
overwrite only bytes of the same range in place)."""

_MAGIC = b"LKRF"
_HEAD = struct.Struct("<4sIQI")


class PersistentState(msgspec.Struct, frozen=True):
    """The content of the file.

    hard: term, vote and commit index. Like `recovering`, durable before any message that depends on it is sent; its
        commit index is mostly written without a sync, like `durable`: exact after a kill, a little behind after a
        power failure.
    membership, membership_index: a committed membership and its entry (0: the group began with it); the log may have
        later ones.
    durable: the index through which this member's log was synced.
    base, base_term: entries through `base` cannot be sent one by one: they are not in the log, or have unknown terms.
    durable_term: the term of entry `durable`; 0: not known.
    recovering: the log was damaged; see `Core`.
    had: index and term of the newest entry of the log before it was damaged; term 0: not known (core/restore.py).
    forgetful: recovering, and the hard state was lost, too.
    joining: recovering only because the member is new in an existing group.
    confirmed: what the members are known to have acknowledged (core/confirmed.py), written without a sync.
    past, past_through, past_term: the terms of entries before `past_through`, which has `past_term`, also of those that
        have left the log; written without a sync.
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
    durable_term: int = 0
    had: tuple[int, int] = (0, 0)


_PERSISTENT_STATE = PackDecoder(PersistentState)


def updated(kept: PersistentState, core: Core, durable: int) -> PersistentState:
    """Return `kept` brought up to date with the core; entries through `durable` are durable."""
    terms = core.log.terms
    return msgspec.structs.replace(
        kept,
        hard=core.hard,
        durable=durable,
        durable_term=terms.term(durable) or 0,
        recovering=core.recovering,
        had=core.held.newest,
        forgetful=core.recovering and kept.forgetful,  # until recovery ends, although the core resets it earlier
        joining=core.recovering and kept.joining,
        confirmed=tuple(core.confirmed.values()),
        past=terms.past,
        past_through=terms.base,
        past_term=terms.term(terms.base) or 0,
    )


class StateFile:
    """The file `raft` of one member. Its methods block; the member calls them one at a time."""

    def __init__(self, files: Files, directory: str) -> None:
        """Name the file in `directory`, which exists, without opening it."""
        self.path = os.path.join(directory, NAME)
        self.files = files
        self._fd = -1
        self._number = 0
        self._synced = 0  # the slot that was synced last

    def read(self) -> PersistentState | None:
        """Return the content, or None if there is no file. Raise CorruptLog if no slot is intact, OSError."""
        try:
            self._fd = self.files.open(self.path, write=True)
        except FileNotFoundError:
            return None
        if self.files.size(self._fd) < SLOT + _HEAD.size:  # its first content is in the second slot
            raise CorruptLog(self.path, 0, "it is cut short: one of its two slots is missing")
        found: PersistentState | None = None
        for slot in (0, 1):
            number, kept = decode_slot(self.files.read_at(self._fd, SLOT, slot * SLOT))
            if kept is not None and number > self._number:
                self._number, self._synced, found = number, slot, kept
        if found is None:
            raise CorruptLog(self.path, 0, "neither of its two slots holds a term and a vote")
        self.files.sync(self._fd)  # a killed process may not have synced the newer slot
        return found

    def write(self, kept: PersistentState, sync: bool) -> None:
        """Replace the content, durably if `sync`. Raise OSError; then nothing may be written any more."""
        body = msgspec.msgpack.encode(kept)
        if _HEAD.size + len(body) + UNIT > SLOT:
            raise OSError(f"{self.path}: a membership of {len(kept.membership.members)} names is too large")
        slot = 1 - self._synced
        rest = struct.pack("<QI", self._number + 1, len(body)) + body
        content = [_MAGIC, crc32(rest).to_bytes(4, "little"), rest, bytes(-len(body) % UNIT)]
        if self._fd < 0:  # in one step: a file without an intact slot counts as damaged
            self.files.write_whole(self.path, [bytes(slot * SLOT), *content])
            self._fd = self.files.open(self.path, write=True)
            sync = False
            self._synced = slot
        else:
            self.files.write(self._fd, content, slot * SLOT)
        self._number += 1
        if sync:
            self.files.sync(self._fd)
            self._synced = slot

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        if self._fd >= 0:
            self.files.close(self._fd)
            self._fd = -1


def damaged_slots(files: Files, directory: str) -> list[int]:
    """Return the offsets of slots of the file in `directory` that hold something and are not intact. An interrupted
    write leaves one of them like that. Block. Raise OSError."""
    content = files.read(os.path.join(directory, NAME))
    slots = ((at, content[at : at + SLOT]) for at in (0, SLOT))
    return [at for at, data in slots if data.strip(b"\0") and decode_slot(data)[1] is None]


def decode_slot(data: bytes) -> tuple[int, PersistentState | None]:
    """Return (number, content) of a slot; (0, None) if it is not intact."""
    if len(data) < _HEAD.size:
        return 0, None
    magic, crc, number, length = _HEAD.unpack_from(data)
    end = _HEAD.size + length
    if magic != _MAGIC or end > len(data) or crc32(memoryview(data)[8:end]) != crc:
        return 0, None
    return number, _PERSISTENT_STATE.decode(data[_HEAD.size : end])
