"""Messages between the members of a group.

Belongs here: the messages of the Raft core as records, the records that a group keeps beside its log (hard state,
membership), and the encoding of many messages of many groups as one buffer. core.py handles the messages.

An entry is a frame of the log (log/format/frame.py): the bytes that the leader's log holds are the bytes that travel.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lakestream.log.format.frame import Frame, Kind
from lakestream.protocol.decoding import PackDecoder


class HardState(msgspec.Struct, frozen=True):
    """State that a member must not forget (Raft §5.1, §5.2): durable before any message that depends on it is sent.

    `commit` may lag behind what the member knows; it saves a restarted member from waiting for its leader.
    """

    term: int = 0
    vote: str = ""
    commit: int = 0


class Membership(msgspec.Struct, frozen=True):
    """Members of a group by node name, ascending. Learners get entries and do not vote (thesis §4.2.1)."""

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """Return voters and learners, in order."""
        return tuple(sorted({*self.voters, *self.learners}))

    @property
    def quorum(self) -> int:
        """Return the number of voters that form a majority."""
        return len(self.voters) // 2 + 1


class LogEntry(msgspec.Struct, array_like=True, gc=False):
    """A frame on the wire; see `Frame`. Without its `write`, which each log sets itself."""

    kind: int
    term: int
    index: int
    count: int
    body: bytes


class Confirmed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A committed entry that a member is known to have acknowledged as durable: its index and term."""

    member: str
    index: int
    term: int


class Append(msgspec.Struct, array_like=True, tag="a", gc=False):
    """AppendEntries (Raft §5.3); without entries a probe or a heartbeat.

    `read` > 0: the receiver echoes it, which tells the leader that it still led when that read began (ReadIndex, §6.4).
    `confirmed`: what the leader knows of each member, in probes and in the heartbeats of the clock, as in Quiesce; see
    confirmed.py.
    Fields at the end that a release does not know are ignored by it, and have their defaults when it is the sender.
    """

    term: int
    prev_index: int
    prev_term: int
    commit: int
    entries: list[LogEntry] = []
    read: int = 0
    confirmed: tuple[Confirmed, ...] = ()


class AppendReply(msgspec.Struct, array_like=True, tag="ar", gc=False):
    """Reply to Append. `match`: entries through here are durable here and agree with the leader's.

    When `rejected`, (hint_index, hint_term) is the newest entry at or before the refused one whose term is not above
    the leader's `prev_term` (fast back-off, §5.3); `match` is then the refused `prev_index`.
    `match_term` is the term of entry `match`, by which the leader sees whether that is so (0: unknown). In a rejection
    it is 0, or the entry is committed here, the leader has another one there, and the member that says so has stopped.
    """

    term: int
    match: int
    rejected: bool = False
    hint_index: int = 0
    hint_term: int = 0
    read: int = 0
    match_term: int = 0


class Vote(msgspec.Struct, array_like=True, tag="v", gc=False):
    """RequestVote (§5.2). `pre`: would you vote for me in that term (§9.6). `transfer`: the leader wants me (§3.10).

    `confirmed_index`, `confirmed_term`: the newest committed entry that the receiver is known to have acknowledged.
    """

    term: int
    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False
    confirmed_index: int = 0
    confirmed_term: int = 0


class VoteReply(msgspec.Struct, array_like=True, tag="vr", gc=False):
    """Reply to Vote; a granted pre-vote has the requested term.

    `confirmed_index`, `confirmed_term`: the newest committed entry that the candidate is known to have acknowledged.
    `had_index`, `had_term`: the newest entry that the voter had before its log was damaged, if the candidate lacks it.
    """

    term: int
    granted: bool
    pre: bool = False
    confirmed_index: int = 0
    confirmed_term: int = 0
    had_index: int = 0
    had_term: int = 0


class TimeoutNow(msgspec.Struct, array_like=True, tag="tn", gc=False):
    """Ask a follower to stand for election at once (leader transfer, §3.10)."""

    term: int


class Install(msgspec.Struct, array_like=True, tag="is", gc=False):
    """InstallSnapshot (§7): the log through `index` is gone here, take a state as of it or later.

    The state itself is fetched by the receiver's shell, from the sender, out of band, and the membership as of it, too;
    `membership` is the newest that the sender knows to be committed, `past` the terms of the entries before `index` as
    (first index, term) of each run, as far as they are remembered: the receiver compares them with what it has.
    """

    term: int
    index: int
    last_term: int
    membership: Membership
    past: tuple[tuple[int, int], ...] = ()


class InstallReply(msgspec.Struct, array_like=True, tag="ir", gc=False):
    """Reply to Install: the state is durable here (`ok`), or could not be fetched. `index_term`: of entry `index`."""

    term: int
    index: int
    ok: bool
    index_term: int = 0


class Quiesce(msgspec.Struct, array_like=True, tag="q", gc=False):
    """Announce quiescence: everything through `index` is committed and matched everywhere. The receiver's election
    clock stops for as long as the sender's node is alive; any other message of the group starts it again.
    `confirmed`: as in `Append`."""

    term: int
    index: int
    last_term: int
    confirmed: tuple[Confirmed, ...] = ()


class Recover(msgspec.Struct, array_like=True, tag="rc", gc=False):
    """Ask the leader for the index through which a damaged log must be refilled before its member votes again.

    `forgot`: it lost its hard state, too, so it cannot tell a leader from a former one, and wants to be answered only
    when a majority without it confirms that this leader leads.
    `held` > 0: there is no leader. Every member is asked for the entries behind `last` through `held`, which the sender
    had, or a damaged voter (restore.py). Earlier releases ignore these fields.
    """

    term: int
    nonce: int
    forgot: bool = False
    last: int = 0
    last_term: int = 0
    held: int = 0
    held_term: int = 0


class RecoverTo(msgspec.Struct, array_like=True, tag="rt", gc=False):
    """Reply to Recover with the leader's last index: nothing that the member ever acknowledged lies beyond it.

    `asked`: it replies to that Recover without a leader, with the first of the entries behind its `last`.
    """

    term: int
    nonce: int
    index: int
    asked: Recover | None = None
    entries: list[LogEntry] = []


Message = Append | AppendReply | Vote | VoteReply | TimeoutNow | Install | InstallReply | Quiesce | Recover | RecoverTo


class Envelope(msgspec.Struct, array_like=True, gc=False):
    """One message of one group between two nodes; the connection says which."""

    group: str
    message: Message


_encoder = msgspec.msgpack.Encoder()
_decoder: PackDecoder[list[Envelope]] = PackDecoder(list[Envelope])
_membership: PackDecoder[Membership] = PackDecoder(Membership)


def encode_envelopes(envelopes: Sequence[Envelope]) -> bytes:
    """Encode messages of many groups as one buffer."""
    return _encoder.encode(envelopes)


def decode_envelopes(buffer: bytes | memoryview) -> list[Envelope]:
    """Decode a buffer of messages. Raise `msgspec.DecodeError` if it is not one."""
    try:
        return _decoder.decode(buffer)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def encode_membership(membership: Membership) -> bytes:
    """Encode the body of a MEMBERSHIP entry."""
    return _encoder.encode(membership)


def decode_membership(body: bytes) -> Membership:
    """Decode the body of a MEMBERSHIP entry. Raise `msgspec.DecodeError`."""
    try:
        return _membership.decode(body)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def entry_of(frame: Frame) -> LogEntry:
    return LogEntry(int(frame.kind), frame.term, frame.index, frame.count, frame.body)


def frame_of(entry: LogEntry) -> Frame:
    """Return an entry as a frame for the log. Raise ValueError for a kind that this release does not know."""
    return Frame(Kind(entry.kind), entry.term, entry.index, entry.count, entry.body)
