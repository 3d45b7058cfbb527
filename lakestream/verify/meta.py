"""Verification of the meta group's files.

Belongs here: the log of assignments of a node of a cluster: its files, and that its entries and its checkpoint can be
decoded.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files, InlineIo
from lakestream.log.format.frame import Kind as FrameKind
from lakestream.log.store.segment_store import open_store
from lakestream.log.verify.findings import Finding, FindingKind, Repair, of_error
from lakestream.log.verify.overlay import Overlay
from lakestream.log.verify.parts import check_checkpoint, check_log
from lakestream.meta.assignments import MetaState, decode_op
from lakestream.meta.meta import DIRECTORY, GROUP
from lakestream.meta.meta_group import LOST
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.raft.group.hard_state import NAME as RAFT
from lakestream.verify.streams import read_state


def check_meta(files: Files, root: str, done: Callable[[int], None]) -> Iterator[Finding]:
    """Yield the findings of the meta group in a store, if the node has one. Block."""
    directory = os.path.join(root, DIRECTORY)
    if not files.exists(os.path.join(directory, RAFT)):
        return
    state, found = read_state(directory)
    for each in found:  # a node whose vote is not known does not start
        yield each if each.harmless else msgspec.structs.replace(each, repair=Repair.NONE)
    durable = state.durable if state is not None else 0
    several = state is None or len(state.membership.voters) > 1
    repair = Repair.REPLICAS if several else Repair.NONE
    lost = os.path.join(directory, LOST)
    if files.exists(lost) and not files.read(lost).strip().isdigit():
        yield Finding(kind=FindingKind.META, file=lost, what="it does not hold a number")
    with tempfile.TemporaryDirectory(prefix="lakestream-verify-") as scratch:
        overlay = Overlay(scratch)
        broken: Exception | None = None
        try:
            for note in _replay(overlay, directory, durable, state.hard.commit if state is not None else None):
                yield Finding(kind=FindingKind.TORN, file=directory, what=note, harmless=True, repair=Repair.START)
        except (LogError, OSError, *DECODE_ERRORS, AssertionError, ValueError) as error:
            broken = error
        index, wrong_state = check_checkpoint(files, directory)
        for each in wrong_state:
            yield msgspec.structs.replace(each, repair=repair)
        wrong = False
        for each in check_log(overlay if broken is None else files, directory, max(durable, index), done):
            wrong = wrong or not each.harmless
            yield each if each.harmless else msgspec.structs.replace(each, repair=repair)
        if broken is not None and not wrong:
            yield of_error(FindingKind.META, directory, broken, repair)


def _replay(files: Files, directory: str, durable: int, commit: int | None) -> list[str]:
    """Recover the assignments; return the notes of the recovery. Raise LogError, MsgspecError, OSError."""
    store = open_store(directory, InlineIo(), uid=GROUP, files=files, durable_through=durable, whole=False)
    try:
        state = MetaState.load(store.extra) if store.extra else MetaState()
        for frame, _ in store.replay(through=commit):
            if frame.kind == FrameKind.OPERATION:
                state.apply(decode_op(frame.body), frame.index)
            store.applied = frame.index
        return store.notes
    finally:
        store.abandon()
