"""Transfer of the meta group's state to a member that is too far behind.

Belongs here: the call to the leader, and creating the member's new files, so that after a kill between any two steps
either the old ones or the new ones are complete. The group starts a transfer with `on_install`.

    _meta_            the group's files
    _meta_.incoming   a received state; complete once it has the file `raft`, then it replaces the old one
    _meta_.outgoing   the old one, about to be removed
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from lakestream.log.format.segment import LOG_DIRECTORY
from lakestream.log.index.sequences import SequenceSet
from lakestream.log.index.subject_index import SubjectIndex
from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.log.store.checkpoint import Snapshot, StoreState, write_checkpoint
from lakestream.log.store.segment_log import begin_segment
from lakestream.logging import Logger
from lakestream.meta.meta import GROUP
from lakestream.meta.meta_group import MetaGroup
from lakestream.ports import Io
from lakestream.raft.core.messages import Install, Membership
from lakestream.raft.group.group import Replacement
from lakestream.raft.group.hard_state import NAME as RAFT
from lakestream.raft.group.ports import Calls

STATE = "meta.state"
"""The call that asks for the state."""
STATE_TIMEOUT_NS = 30_000_000_000
"""Longest duration of a transfer (30 s): a hundred thousand streams are about 100 MB."""
INCOMING = ".incoming"
OUTGOING = ".outgoing"


class MetaSent(msgspec.Struct, frozen=True):
    """The state as of entry `index`; `wrong`: the reason why there is none."""

    index: int = 0
    term: int = 0
    membership: Membership = Membership(())
    state: bytes = b""
    wrong: str = ""


_META_SENT = msgspec.msgpack.Decoder(MetaSent)


class MetaTransfer:
    """Serves and fetches the state of the meta group. Create it before the group is opened."""

    def __init__(self, meta: MetaGroup, calls: Calls, io: Io, log: Logger) -> None:
        self._meta, self._calls, self._io, self._log = meta, calls, io, log
        self._files = meta.files
        meta.on_install = self._install
        calls.serve(STATE, self._asked)

    def settle(self) -> None:
        """Complete the replacement by a received state after a kill, and remove leftovers. Block, before the group is
        opened. Raise OSError."""
        files, directory = self._files, self._meta.directory
        incoming = directory + INCOMING
        if not files.exists(directory) and files.exists(os.path.join(incoming, RAFT)):
            files.replace(incoming, directory)
            files.sync_directory(os.path.dirname(directory))
        files.remove_tree(incoming)
        files.remove_tree(directory + OUTGOING)

    # ------------------------------------------------------------------ the leader
    def _asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        group = self._meta.group
        if group is None or not self._meta.leading:
            answer(msgspec.msgpack.encode(MetaSent(wrong="this node does not lead the meta group")))
            return
        now = group.snapshot()
        sent = MetaSent(now.index, now.last_term, now.membership, self._meta.state.dump())
        answer(msgspec.msgpack.encode(sent))

    # ------------------------------------------------------------------ the member that is behind
    def _install(self, sender: str, install: Install, done: Callable[[Replacement | None], None]) -> None:
        def received(body: bytes | None, why: str) -> None:
            sent = _META_SENT.decode(body) if body is not None else MetaSent(wrong=why)
            if not sent.wrong and sent.index < install.index:
                sent = MetaSent(wrong=f"it is only as of entry {sent.index}")
            if sent.wrong:
                self._log.warn(f"the meta group's state cannot be fetched from {sender}: {sent.wrong}")
                done(None)
            else:
                self._io.submit(lambda: self._write(sent), lambda path, error: written(sent, path, error))

        def written(sent: MetaSent, path: str | None, error: BaseException | None) -> None:
            if path is None:
                self._log.error(f"the meta group's state from {sender} cannot be stored: {error}")
                done(None)
            else:
                self._log.info(f"JetStream cluster: received the meta state as of entry {sent.index} from {sender}")
                done(self._replacement(sent, path))

        self._calls.call(sender, STATE, b"", received, STATE_TIMEOUT_NS)

    def _write(self, sent: MetaSent) -> str:
        """Create the files of a group with that state and no entries after it. Block."""
        files, path = self._files, self._meta.directory + INCOMING
        files.remove_tree(path)
        log = os.path.join(path, LOG_DIRECTORY)
        files.make_directory(log)
        _, fd = begin_segment(log, files, sent.index + 1, 1, 0)
        files.close(fd)
        state = StoreState(
            index=sent.index,
            uid=GROUP,
            stream="",
            account="",
            config=b"",
            size=0,
            first_seq=1,
            last_seq=0,
            last_time=0,
            opened_index=sent.index + 1,
            removed=[],
            moved=False,
            live=SequenceSet().to_bytes(),
            extra=sent.state,
        )
        write_checkpoint(files, os.path.join(path, CHECKPOINT), Snapshot(state, SubjectIndex().snapshot()))
        self._meta.keep_lost(path)
        files.sync_directory(path)
        return path

    def _replacement(self, sent: MetaSent, path: str) -> Replacement:
        directory, files = self._meta.directory, self._files

        def take_in() -> None:
            files.replace(directory, directory + OUTGOING)
            files.replace(path, directory)
            files.sync_directory(os.path.dirname(directory))
            files.remove_tree(directory + OUTGOING)

        swap, swapped = self._meta.exchange(take_in)
        return Replacement(sent.index, sent.term, sent.membership, path, swap, swapped)
