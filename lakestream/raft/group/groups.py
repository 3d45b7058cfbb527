"""All Raft groups of a node, on the same connections and the same timer.

Belongs here: dispatching received messages to groups, one buffer for each node and turn of the event loop with the
messages of all groups, ticks for groups that are not quiescent, and the liveness of nodes for all groups.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from random import Random

import msgspec

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Brief, Files, Io
from lakestream.ports import Clock, Timer
from lakestream.raft.core.messages import (
    Append,
    Envelope,
    HardState,
    Membership,
    Message,
    Vote,
    decode_envelopes,
    encode_envelopes,
)
from lakestream.raft.core.ready import RaftError, RaftOptions
from lakestream.raft.group.disk import DiskQueue, Work
from lakestream.raft.group.group import Group
from lakestream.raft.group.hard_state import PersistentState, StateFile
from lakestream.raft.group.member import RaftMember
from lakestream.raft.group.ports import Channel, Transport
from lakestream.raft.group.raft_group import KEEP_TICKS, TICK_NS, Outlet, RaftGroup

BUFFER_BYTES = 4 << 20
"""Maximum bytes of entries in one buffer between two nodes (4 MiB); a longer entry goes alone."""
ANNOUNCE_NS = 2_000_000
"""Delay after which a commit index that no entries carried is sent to followers, and followers hand out what an index
that came with entries committed (2 ms): short enough for a client that reads from a follower what was just acked, long
enough for the next entry of a busy publisher to carry it."""
SEALS_A_TICK = 1
"""Old and small segments that this node, as a leader, has sealed in a tick (10 a second), first come, first served: a
seal takes each replica 1.5 ms of processor time. Those of more than a hundred such streams grow older, and longer."""
HEARTBEAT_TICKS = 2
"""Ticks between heartbeats of a group that is awake (200 ms): five within the shortest election timeout."""
MAX_EARLY = 1024
"""Maximum number of unknown groups for which the newest vote request or heartbeat of each node is kept."""

_logger = logging.getLogger(__name__)


class RaftGroups:
    """The Raft groups of this node. Everything runs in the event loop except methods that say that they block."""

    def __init__(
        self,
        peers: Transport,
        io: Io,
        clock: Clock,
        *,
        random: Random,
        files: Files | None = None,
        options: RaftOptions | None = None,
    ) -> None:
        """Receive on the RAFT channel of `peers`. `random` is for election timeouts; a seeded one is deterministic."""
        self.unknown = 0
        """Number of messages for groups that are not here: not yet, or not any more."""
        self.refused = 0
        """Number of messages and buffers dropped because no correct node sends them."""
        self.on_error: Callable[[str, Exception], None] = _log_error
        """Called with (group, error) when a group's owner raised: that group ends here, the others go on."""
        self._peers, self._clock, self._random = peers, clock, random
        self._files, self._options = files or Files(), options or RaftOptions(heartbeat_ticks=HEARTBEAT_TICKS)
        self._members: dict[str, RaftGroup] = {}
        self._awake: dict[str, RaftGroup] = {}
        self._out: dict[str, list[Envelope]] = {}
        self._early: dict[str, dict[str, Envelope]] = {}
        self._works: list[tuple[RaftGroup, Work]] = []  # begin when no more groups are called in this turn
        self._disk: DiskQueue[RaftGroup] = DiskQueue(io, self._worked)
        self._dozing: dict[str, RaftGroup] = {}  # fell asleep since the last round of `keep`
        self._old: dict[str, RaftGroup] = {}  # have an old segment, and wait for their turn to seal it
        self._ticks = 0
        self._gathering = self._in_turn = self._stopped = False
        self._announcing: set[str] = set()
        self._timer: Timer | None = None
        self._outlet = Outlet(
            io,
            self._send,
            self._flush,
            self._work,
            self._active,
            self._committed,
            self._joined,
            self._left,
            self._old_segment,
        )
        peers.receive(Channel.RAFT, self._receive)
        peers.watch(self._node_changed)

    def start(self) -> None:
        self._timer = self._clock.call_later(TICK_NS, self._tick)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def replicated(self) -> dict[str, Group]:
        return {name: member for name, member in self._members.items() if member.replicated}

    def member(self, group: str, directory: str, membership: Membership, *, lost: bool = False) -> RaftMember:
        self._files.make_directory(directory)
        file = StateFile(self._files, directory)
        try:
            kept = file.read()
        except CorruptLog:
            if not lost:
                raise
            kept = None
            file.close()
            # Keep the damaged file until it is replaced: a member without one would be taken for a new one.
            file = StateFile(self._files, directory)
        fresh = kept is None and not lost
        if kept is None:
            # A joining member passes through former memberships while it catches up, perhaps one in which it is the
            # only voter: it must not lead before its log is as complete as its leader's.
            joins = not lost and self._peers.me not in membership.voters
            kept = PersistentState(HardState(), membership, recovering=lost or joins, forgetful=lost, joining=joins)
        return RaftMember(
            group,
            self._peers.me,
            file,
            kept,
            fresh=fresh,
            outlet=self._outlet,
            options=self._options,
            rng=Random(self._random.getrandbits(64)),
        )

    # ------------------------------------------------------------------ members
    def _joined(self, group: str, member: RaftGroup) -> None:
        assert group not in self._members, f"group {group} is here already"
        self._members[group] = member
        early = self._early.pop(group, None)
        if early is not None:
            self._clock.call_soon(lambda: self._deliver(early))

    def _left(self, group: str) -> None:
        self._members.pop(group, None)
        self._awake.pop(group, None)
        self._dozing.pop(group, None)
        self._old.pop(group, None)

    def _old_segment(self, member: RaftGroup) -> None:
        self._old.setdefault(member.group, member)

    def _active(self, group: str, active: bool) -> None:
        if active and group in self._members:
            self._awake[group] = self._members[group]
        elif (member := self._awake.pop(group, None)) is not None:
            self._dozing[group] = member

    def _committed(self, group: str) -> None:
        if not self._announcing:
            self._clock.call_later(ANNOUNCE_NS, self._announce)
        self._announcing.add(group)

    def _announce(self) -> None:
        groups, self._announcing = sorted(self._announcing), set()
        if not self._stopped:
            self._for_each([self._members[group] for group in groups if group in self._members], RaftGroup.announce)

    def _tick(self) -> None:
        if self._stopped:
            return
        self._timer = self._clock.call_later(TICK_NS, self._tick)
        self._for_each(list(self._awake.values()), RaftGroup.tick)
        self._for_each([self._old.pop(group) for group in list(islice(self._old, SEALS_A_TICK))], RaftGroup.seal_old)
        self._ticks += 1
        if self._ticks % KEEP_TICKS == 0 and self._dozing:
            dozing, self._dozing = self._dozing, {}
            self._for_each(dozing.values(), RaftGroup.keep)

    def _node_changed(self, node: str, up: bool) -> None:
        self._for_each(list(self._members.values()), lambda member: member.node_changed(node, up))

    def _for_each(self, members: Collection[RaftGroup], call: Callable[[RaftGroup], None]) -> None:
        """Call each group; an error that its owner raises fails that group alone."""
        self._gathering, self._outlet.many = True, len(members) > 1
        try:
            for member in members:
                try:
                    call(member)
                except Exception as error:
                    member.fail(error)
                    self.on_error(member.group, error)
        finally:
            self._gathering = self._outlet.many = False
            self._begin()

    # ------------------------------------------------------------------ disk
    def _work(self, member: RaftGroup, work: Work) -> None:
        self._works.append((member, work))
        if not self._gathering and not self._in_turn:
            # The first group that writes does not wait for others, which are called later in this turn, if at all.
            self._in_turn = True
            self._clock.call_soon(self._turn_ends)
            self._begin()

    def _turn_ends(self) -> None:
        self._in_turn = False
        self._begin()

    def _begin(self) -> None:
        """Send what was gathered, so that other nodes' disks work at the same time, then begin the disk work."""
        sent = self._send_all()
        if self._works:
            works, self._works = self._works, []
            self._disk.begin(works, Brief.AFTER_SENDS if sent or works[0][0].is_leader else Brief.SOON)

    def _worked(self, members: list[RaftGroup]) -> None:
        self._for_each(members, RaftGroup.worked)

    # ------------------------------------------------------------------ messages
    def _send(self, group: str, to: str, message: Message) -> None:
        pending = self._out.get(to)
        if pending is None:
            self._out[to] = [Envelope(group, message)]
        else:
            pending.append(Envelope(group, message))

    def _flush(self) -> None:
        """Send what was gathered, unless more groups send in this turn."""
        if self._out and not self._gathering and not self._in_turn:
            self._send_all()

    def _send_all(self) -> bool:
        """Send what was gathered. Return True if something is sent."""
        if not self._out:
            return False
        out, self._out = self._out, {}
        if self._stopped:
            return False
        for node, envelopes in out.items():
            for part in _parts(envelopes):
                if self._peers.send(node, Channel.RAFT, encode_envelopes(part)):
                    continue
                for group in {envelope.group: None for envelope in part}:
                    if (member := self._members.get(group)) is not None:
                        member.unreachable(node)
        return True

    def _receive(self, node: str, payload: bytes) -> None:
        if self._stopped:
            return
        try:
            envelopes = decode_envelopes(payload)
        except msgspec.DecodeError as error:
            self.refused += 1
            _logger.error("a message from %s was dropped: %s", node, error)
            return
        touched: dict[str, RaftGroup] = {}
        for envelope in envelopes:
            member = self._members.get(envelope.group)
            if member is None:
                self._keep_early(node, envelope)
            else:
                touched[envelope.group] = member
                self._step(member, node, envelope.message)
        self._for_each(touched.values(), RaftGroup.settle)

    def _step(self, member: RaftGroup, node: str, message: Message) -> None:
        try:
            member.step(node, message)
        except RaftError as error:
            self.refused += 1
            _logger.error("group %s: a message from %s was dropped: %s", member.group, node, error)
        except Exception as error:  # the same buffer has messages of other groups
            member.fail(error)
            self.on_error(member.group, error)

    def _keep_early(self, node: str, envelope: Envelope) -> None:
        """Keep a vote request or heartbeat for a group that is not here yet.

        A group begins on its nodes at nearly the same time: the first one asks for votes before the others exist, and
        would repeat that only after an election timeout.
        """
        self.unknown += 1
        message = envelope.message
        if isinstance(message, Vote) or (isinstance(message, Append) and not message.entries):
            self._early.setdefault(envelope.group, {})[node] = envelope
            if len(self._early) > MAX_EARLY:
                del self._early[next(iter(self._early))]

    def _deliver(self, early: dict[str, Envelope]) -> None:
        for node, envelope in early.items():
            member = self._members.get(envelope.group)
            if member is not None:
                self._step(member, node, envelope.message)
                self._for_each((member,), RaftGroup.settle)


def _log_error(group: str, error: Exception) -> None:
    _logger.error("group %s: its owner failed", group, exc_info=error)


def _parts(envelopes: list[Envelope]) -> Iterator[list[Envelope]]:
    """Cut the messages to one node in a turn into buffers of about BUFFER_BYTES."""
    part: list[Envelope] = []
    size = 0
    for envelope in envelopes:
        message, length = envelope.message, 0
        if isinstance(message, Append):
            for entry in message.entries:
                length += len(entry.body)
        if part and size + length > BUFFER_BYTES:
            yield part
            part, size = [], 0
        part.append(envelope)
        size += length
    yield part
