"""Leadership of one term.

Belongs here: replication to the other members, commitment, membership changes, check-quorum, reads, leader
transfer, quiescence. A `Leader` lives from one election to the end of that leadership.
"""

# The problem. One member decides the order of entries while others stop, come back, or are cut off, and while messages
# are lost, doubled and late. Three things must never happen: two members commit different entries at one index, a
# committed entry is lost, a read misses what was acknowledged before it was asked.
#
# Commitment (`count`). An entry is committed once a quorum has it durable. This member counts as one of them with what
# is durable on its own disk, not with what it appended: it sends entries while it writes them, and a quorum of others
# may commit what its disk does not have yet. Only entries of its own term are counted, those from `first` on. An older
# one may be on a quorum and still be replaced (Raft, figure 8); it is committed by a newer one behind it. So that there
# is one, each leadership begins with an empty entry, and reads and membership changes wait until it is committed
# (`established`).
#
# Replication. Each other member is at one pace (progress.py):
#
#     PROBE      asks if the logs agree before `next`, one question at a time, without entries
#                agrees: REPLICATE; refused: PROBE further back, by whole terms (`_rejected`)
#     REPLICATE  streams entries, at most `max_inflight` messages ahead of the answers
#                refused, node lost, or entries that cannot be read: PROBE
#     INSTALL    the entry before `next` has left the log, so the member fetches a state; meanwhile only signs of life
#                has the state: REPLICATE, or INSTALL again if the log has moved on; failed: PROBE
#
#     Invariant: match < next. Entries through `match` are durable there, and `match` never falls, except when the
#     member itself says, or proves by a refusal, that its disk has lost entries (`on_recover`, `_rejected`).
#
# Streaming at once, and going back on refusal, would send a member that is far behind whole streams of entries that it
# cannot append. A probe costs one round trip for each change of leaders.
#
# Rounds instead of timestamps. A heartbeat has a number that grows and holds the tick at which it was sent. An echo
# from a quorum proves that no other leader had been elected by that tick, whenever the echo arrives: no clock of
# another member is compared. One number serves reads (answer those that were asked before the round) and check-quorum
# (a leader without echoes steps down). Reads by a lease would need no round, but depend on clocks that run at the same
# speed, and one round for all reads of a turn costs little.
#
# Membership changes by one voter at a time, and a change counts from the moment at which it is appended. Then any two
# quorums, of the old and the new voters, have a member in common, so no joint phase is needed. The price: a change
# waits for the one before (`ChangePending`).
#
# Sleep. Heartbeats of a thousand idle streams would fill the network, so a group where all logs are equal stops its
# clocks (`_quiet`, `_quiesce`). Then silence says nothing: waking up adds an election timeout to `now`, so that nobody
# counts as silent. A lost node is told by the connection between nodes instead.
#
# What is ugly. `asked`, `nonce` and `_doubters` are for disks that forget. The paper assumes that they never do, so
# there is no section to cite. confirmed.py and the recovery of members in follower.py are the other half.

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from lakestream.log.format.frame import Frame, Kind
from lakestream.raft.core import confirmed
from lakestream.raft.core.messages import (
    Append,
    AppendReply,
    Confirmed,
    Install,
    InstallReply,
    LogEntry,
    Membership,
    Quiesce,
    Recover,
    RecoverTo,
    TimeoutNow,
    encode_membership,
)
from lakestream.raft.core.progress import Inflight, Pace, Progress
from lakestream.raft.core.reads import Reads
from lakestream.raft.core.ready import BadMessage, ChangePending, Role, SendEntries, TooMuchUncommitted, Transferring
from lakestream.raft.core.state import State

ROUND_BITS = 20
"""Rounds in one tick: 2^20."""


class Leader:
    """The leadership of this member in one term."""

    def __init__(self, state: State) -> None:
        """Begin to lead with a NOOP entry of the new term, whose commit commits everything before it."""
        self.state = state
        self.log = state.log
        self.progress: dict[str, Progress] = {}
        self.reads = Reads()
        self.transfer_to = ""
        self._transfer_age = 0
        self._round = 0
        self._idle = 0
        self._uncommitted: deque[tuple[int, int]] = deque()
        self.uncommitted_bytes = 0
        self._doubters: dict[str, tuple[int, int]] = {}
        """Members without hard state that wait for proof that this leader leads: (round, nonce)."""
        self.first = self.log.last + 1
        """This leader's first entry."""
        self._voters: list[Progress] = []
        self._i_vote = False
        self._quorum = 1
        state.leading = self
        state.role = Role.LEADER
        state.leader = state.me
        state.votes = {}
        self._follow_membership()
        self.log.append([Frame(Kind.NOOP, state.term, self.first, 0, b"")])

    # -- what the log says ---------------------------------------------------------------------------------------

    @property
    def established(self) -> bool:
        """Return True if an entry of this term is committed."""
        return self.log.commit >= self.first

    def propose(self, entries: Sequence[Frame]) -> None:
        """Append entries of this term."""
        self._refuse_while_transferring()
        if not entries:
            return
        size = 0
        index = self.log.last
        for frame in entries:
            index += 1
            assert frame.index == index, f"entry {frame.index} is proposed where {index} belongs"
            assert frame.term == self.state.term, f"an entry of term {frame.term} is proposed in {self.state.term}"
            assert frame.kind is not Kind.MEMBERSHIP, "use propose_membership"
            size += len(frame.body)
        if self.uncommitted_bytes and self.uncommitted_bytes + size > self.state.options.max_uncommitted_bytes:
            raise TooMuchUncommitted(
                f"{self.uncommitted_bytes} bytes are proposed and not committed; propose again after a commit"
            )
        self.busy(beat=False)  # the entries wake the others, and the next tick those that get none now
        self._uncommitted.append((index, size))
        self.uncommitted_bytes += size
        self.log.append(entries)

    def propose_membership(self, membership: Membership) -> int:
        """Return append a membership change, valid at once; return its index."""
        self._refuse_while_transferring()
        now = self.log.membership
        if len(set(now.voters) ^ set(membership.voters)) > 1:
            raise ValueError(f"from {now.voters} to {membership.voters} is more than one voter: change one at a time")
        if not membership.voters:
            raise ValueError("a group needs a voter")
        if set(membership.voters) & set(membership.learners):
            raise ValueError(f"{membership} has a member twice")
        if self.log.change_pending or not self.established:
            # Both conditions are needed: a leader that has committed nothing of its term may not know of another
            # leader's change, and the quorums of two changes may not overlap.
            raise ChangePending("an earlier entry must be committed first; propose the change again after that")
        self.busy()
        index = self.log.last + 1
        self.log.append([Frame(Kind.MEMBERSHIP, self.state.term, index, 0, encode_membership(membership))])
        self._follow_membership()
        self.count()
        self._confirm()
        return index

    def count(self) -> None:
        """Commit what a quorum has durable, if it is of this term, and with it everything before it (Raft §5.4.2)."""
        log = self.log
        matches = [peer.match for peer in self._voters]
        if self._i_vote:
            matches.append(log.durable)
        matches.sort()
        index = matches[len(matches) - self._quorum]
        if index <= log.commit or index < self.first:
            return
        assert log.terms.term(index) == self.state.term, "a leader's entries from its first on are of its term"
        log.commit_to(index)
        waiting = self._uncommitted
        while waiting and waiting[0][0] <= index:
            self.uncommitted_bytes -= waiting.popleft()[1]
        if self.state.me not in log.committed_membership.voters and not log.change_pending:
            self.hand_off()  # thesis §4.2.2: a removed leader steps down once that is committed

    def _follow_membership(self) -> None:
        state, membership = self.state, self.log.membership
        others = [member for member in membership.members if member != state.me]
        known, options = self.progress, state.options
        self.progress = {
            member: known.get(member)
            or Progress(self.first, state.now, Inflight(options.max_inflight, options.max_inflight_bytes))
            for member in others
        }
        self._voters = [self.progress[member] for member in membership.voters if member != state.me]
        self._i_vote = state.me in membership.voters
        self._quorum = membership.quorum
        if self.transfer_to not in membership.voters:
            self.transfer_to = ""
        confirmed.forget_strangers(state)

    def _refuse_while_transferring(self) -> None:
        if self.transfer_to:
            raise Transferring(self.transfer_to)

    # -- time ----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Handle a tick, which `state.now` counts already."""
        state, options = self.state, self.state.options
        since, active = state.now - options.election_ticks, int(self._i_vote)
        for peer in self._voters:
            active += peer.contact > since
        if active < self._quorum:
            state.become_follower(state.term, "")  # check-quorum, thesis §6.2
            return
        if self.transfer_to:
            self._transfer_age += 1
            if self._transfer_age >= options.transfer_ticks:
                self.transfer_to = ""
            else:
                self._push_transfer()
        for name, peer in self.progress.items():
            if peer.pace is Pace.INSTALL:
                peer.install_age += 1
                if peer.install_age >= options.install_ticks:
                    self._offer_install(name, peer)
        self._idle += 1
        if options.quiesce_ticks and self._idle > options.quiesce_ticks and self._quiet():
            self._quiesce()
        elif state.now % options.heartbeat_ticks == 0:
            self._beat(self._new_round(), confirmed.of_members(self.state, self.progress))

    def busy(self, beat: bool = True) -> None:
        """Note activity: restart the time to quiescence. `beat`: see `State.wake`."""
        self._idle = 0
        self.state.wake(beat)

    def end(self) -> list[object]:
        return self.reads.drop()

    def woken(self, beat: bool) -> None:
        self._idle = 0
        # Ticks were not counted meanwhile: silence has no consequence.
        self.state.now += self.state.options.election_ticks
        for peer in self.progress.values():
            peer.contact = self.state.now
        if beat:
            self._beat(self._new_round(), confirmed.of_members(self.state, self.progress))

    def _quiet(self) -> bool:
        """Return True if nothing is left to do for members whose nodes are alive; others wake the group later."""
        log, state = self.log, self.state
        if not log.commit == log.durable == log.last or self.transfer_to or len(self.reads):
            return False
        up = self._i_vote + sum(member in self.log.membership.voters for member in self.progress.keys() - state.down)
        return up >= self._quorum and all(
            peer.pace is Pace.REPLICATE and peer.match == log.last
            for name, peer in self.progress.items()
            if name not in state.down
        )

    def _quiesce(self) -> None:
        log, state = self.log, self.state
        known = confirmed.of_members(state, self.progress)
        for name in self.progress:
            state.send(name, Quiesce(state.term, log.last, log.terms.last_term, known))
        state.quiescent = True

    # -- rounds --------------------------------------------------------------------------------------------------

    def _new_round(self) -> int:
        self._round = max(self._round + 1, self.state.now << ROUND_BITS)
        return self._round

    def _quorum_round(self) -> int:
        """Return the newest round that a quorum answered."""
        echoed = [peer.echoed for peer in self._voters]
        if self._i_vote:
            echoed.append(self._round)
        echoed.sort()
        return echoed[len(echoed) - self._quorum]

    def _beat(self, round_id: int, known: tuple[Confirmed, ...] = ()) -> None:
        state, log = self.state, self.log
        for name, peer in self.progress.items():
            prev_term = log.terms.term(peer.next - 1)
            if prev_term is None and peer.pace is not Pace.INSTALL:
                self._offer_install(name, peer)  # the entry before `next` has left the log
            if peer.pace is Pace.INSTALL or prev_term is None:
                # All logs agree at 0, and commit 0 says nothing: only a sign of life.
                state.send(name, Append(state.term, 0, 0, 0, [], round_id, known))
                continue
            if peer.pace is Pace.PROBE:
                peer.paused = True
                # The receiver may be another process than a moment ago.
                known = known or confirmed.of_members(state, self.progress)
            peer.sent_commit = min(log.commit, peer.next - 1)
            state.send(name, Append(state.term, peer.next - 1, prev_term, log.commit, [], round_id, known))

    def read(self, context: object) -> None:
        """Queue a read for the next round."""
        self.busy()
        self.reads.add(context)

    def _ask_reads(self) -> None:
        """Start a round for new reads, once this leader has committed an entry of its term (Raft §8)."""
        if self.established:
            round_id = self._new_round()
            self.reads.ask(round_id, self.log.commit)
            self._beat(round_id)
            self._confirm()

    def _confirm(self) -> None:
        if len(self.reads):
            self.state.out.reads.extend(self.reads.confirmed(self._quorum_round()))

    # -- replication ---------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Add everything that can be sent now to the Ready."""
        if self.reads.waiting:
            self._ask_reads()
        options, last = self.state.options, self.log.terms.last
        for name, peer in self.progress.items():
            if peer.pace is Pace.REPLICATE:
                if peer.next <= last:
                    if peer.sending is None and not peer.inflight.full:
                        self._want_entries(name, peer)
                elif options.eager_commit:
                    self._tell_commit(name, peer)
            elif peer.pace is Pace.PROBE and not peer.paused:
                self._probe(name, peer)

    def announce(self) -> None:
        """Send the commit index to followers that neither know it nor are about to get entries.

        A group in which nothing is left to do falls asleep at once: Quiesce carries the commit index, too. Many streams
        with a message now and then would otherwise cost two rounds of heartbeats, and an election when one is late.
        """
        if self.state.quiescent:
            return
        if self.state.options.quiesce_ticks and self._quiet():
            self._quiesce()
            return
        for name, peer in self.progress.items():
            if peer.pace is Pace.REPLICATE and peer.next > self.log.last:
                self._tell_commit(name, peer)

    def _tell_commit(self, name: str, peer: Progress) -> None:
        log = self.log
        if peer.sent_commit < log.commit:
            peer.sent_commit = log.commit
            self.state.send(name, Append(self.state.term, log.last, log.terms.last_term, log.commit))

    def _want_entries(self, name: str, peer: Progress) -> None:
        prev_term = self.log.terms.term(peer.next - 1)
        if prev_term is None:
            self._offer_install(name, peer)
            return
        peer.sending = SendEntries(name, peer.next, self.log.last, self.state.options.max_append_bytes, prev_term)
        self.state.out.sends.append(peer.sending)

    def _probe(self, name: str, peer: Progress) -> None:
        """Probe where the logs agree, without entries: they follow the answer."""
        prev_term = self.log.terms.term(peer.next - 1)
        if prev_term is None:
            self._offer_install(name, peer)
            return
        peer.paused = True
        known = confirmed.of_members(self.state, self.progress)
        append = Append(self.state.term, peer.next - 1, prev_term, self.log.commit, [], self._new_round(), known)
        self.state.send(name, append)

    def _offer_install(self, name: str, peer: Progress) -> None:
        """Offer a state, because the entries that a member needs have left the log (Raft §7).

        Any state that reaches the beginning of the log is sufficient.
        """
        peer.install()
        base = self.log.terms.base
        base_term = self.log.terms.term(base)
        assert base_term is not None, "the term of the last entry that is gone is known"
        past = self.log.terms.past
        self.state.send(name, Install(self.state.term, base, base_term, self.log.committed_membership, past))

    def fill(self, send: SendEntries, entries: list[LogEntry]) -> Append | None:
        """Return the Append for a SendEntries, or None if it is no longer needed."""
        peer = self.progress.get(send.to)
        if peer is None or peer.sending is not send:
            return None
        peer.sending = None
        if not entries:
            peer.probe(peer.match + 1, paused=True)
            return None
        last = entries[-1].index
        assert entries[0].index == send.first == peer.next, f"entries from {entries[0].index}, wanted {send.first}"
        assert last == send.first + len(entries) - 1 <= send.last, f"entries through {last}, wanted {send.last}"
        peer.inflight.add(last, sum([len(entry.body) for entry in entries]))
        peer.next = last + 1
        peer.sent_commit = min(self.log.commit, last)
        return Append(self.state.term, send.first - 1, send.prev_term, self.log.commit, entries)

    def on_append_reply(self, sender: str, message: AppendReply) -> None:
        """Handle a reply of this term."""
        peer = self.progress.get(sender)
        if peer is None:
            return
        match, term = message.match, message.match_term
        if not message.rejected and self.log.terms.term(match) != term and self._has_parted(sender, match, term):
            return
        peer.contact = self.state.now
        peer.answered = True
        if message.read > peer.echoed:
            peer.echoed = message.read
            self._confirm()
            if self._doubters:
                self._convince()
        if message.rejected and message.match_term:
            confirmed.warn_of_conflict(self.state, sender, message.match, message.match_term)
        elif message.rejected:
            self._rejected(sender, peer, message)
        else:
            self._accepted(peer, message.match)

    def _has_parted(self, name: str, match: int, term: int) -> bool:
        """Return True if the entry that a member acknowledges differs from the one here.

        Then the acknowledgement is ignored, and the member is sent an entry by which it detects the conflict, stops,
        and reports its own entry.
        """
        log = self.log
        if match > log.last and not term:
            raise BadMessage(f"{name} acknowledges entry {match} of a log that ends at {log.last}")
        index = min(match, log.last)
        mine = log.terms.term_once(index)
        if not term or mine is None or (match == index and mine == term):
            return False
        self.state.send(name, Append(self.state.term, index, mine, log.commit))
        return True

    def _accepted(self, peer: Progress, match: int) -> None:
        advanced = peer.advance(match)
        if peer.pace is Pace.PROBE or (peer.pace is Pace.INSTALL and peer.match >= self.log.terms.base):
            peer.replicate()
        if advanced:
            peer.asked = self._round
            self.count()
            if self.transfer_to and self.state.leading is self:
                self._push_transfer()

    def _rejected(self, name: str, peer: Progress, message: AppendReply) -> None:
        """Back off by whole terms on either side (Raft §5.3)."""
        refused = message.match
        if peer.pace is Pace.INSTALL:
            return
        if refused <= peer.match:
            if message.read > peer.asked:
                confirmed.lost_by(self.state, self.progress, name)
            elif not peer.nonce:
                return  # late: the member has that entry by now
            else:
                peer.match = refused - 1  # an older acknowledgement arrived after its Recover
        if peer.pace is Pace.PROBE and refused != peer.next - 1:
            return  # the reply to an older probe
        agreed, _ = self.log.terms.newest(message.hint_index, message.hint_term)
        peer.probe(max(min(agreed + 1, refused), peer.match + 1))

    def on_install_reply(self, sender: str, message: InstallReply) -> None:
        """Handle the end of an install: the member has the state, or could not fetch it."""
        peer = self.progress.get(sender)
        if peer is None:
            return
        if message.ok and self._has_parted(sender, message.index, message.index_term):
            return
        peer.contact = self.state.now
        peer.answered = True
        if message.ok:
            self._accepted(peer, message.index)
            if peer.pace is Pace.INSTALL and self.state.leading is self:
                self._offer_install(sender, peer)  # entries after its state have left the log, too
        elif peer.pace is Pace.INSTALL:
            peer.probe(peer.match + 1, paused=True)

    def on_recover(self, sender: str, message: Recover) -> None:
        """Forget what a member acknowledged, because its log was damaged.

        Entries counted with it stay committed: it does not vote before it has them again.
        """
        peer = self.progress.get(sender)
        if peer is None:
            return
        if peer.nonce != message.nonce:
            peer.forget(self.log.last + 1, message.nonce)
        self.busy()
        if not message.forgot:
            self.state.send(sender, RecoverTo(self.state.term, message.nonce, self.log.last))
        elif self._doubters.get(sender, (0, 0))[1] != message.nonce:
            self._doubters[sender] = (self._new_round(), message.nonce)
            self._beat(self._round)

    def _convince(self) -> None:
        """Answer members without hard state, once a majority without them answered a round that began afterwards."""
        for name, (round_id, nonce) in list(self._doubters.items()):
            doubter = self.progress.get(name)
            sure = self._i_vote + sum(peer.echoed >= round_id for peer in self._voters if peer is not doubter)
            if sure >= self._quorum:
                del self._doubters[name]
                self.state.send(name, RecoverTo(self.state.term, nonce, self.log.last))

    def unreachable(self, name: str) -> None:
        """Probe `peer` anew: entries streamed to it may be lost."""
        peer = self.progress.get(name)
        if peer is not None and peer.pace is Pace.REPLICATE:
            peer.probe(peer.match + 1, paused=True)

    def node_up(self, name: str) -> None:
        """Probe a member whose node is alive again."""
        peer = self.progress.get(name)
        if peer is None:
            return
        self.busy()
        self.state.warned.discard(name)
        if peer.pace is Pace.INSTALL:
            self._offer_install(name, peer)
        else:
            peer.probe(peer.match + 1)

    # -- the end -------------------------------------------------------------------------------------------------

    def transfer(self, to: str) -> str:
        """Begin a leader transfer; return the target, or "" if there is none."""
        to = to or self._heir()
        if not to or to == self.state.me:
            return ""
        if to not in self.log.membership.voters:
            raise ValueError(f"{to!r} is not a voter of this group ({', '.join(self.log.membership.voters)})")
        if to == self.transfer_to:
            return to
        self.busy()
        self.transfer_to = to
        self._transfer_age = 0
        peer = self.progress[to]
        if peer.pace is Pace.PROBE:
            peer.paused = False
        self._push_transfer()
        return to

    def hand_off(self) -> None:
        """Step down in this term, and ask the most caught-up voter to campaign at once."""
        state = self.state
        state.wake()
        heir = self._heir()
        if heir:
            state.send(heir, TimeoutNow(state.term))
        state.become_follower(state.term, "")

    def _push_transfer(self) -> None:
        if self.progress[self.transfer_to].match == self.log.last:
            self.state.send(self.transfer_to, TimeoutNow(self.state.term))

    def _heir(self) -> str:
        state = self.state
        fit = [
            (peer.match, name)
            for name, peer in self.progress.items()
            if name in self.log.membership.voters
            and name not in state.down
            and state.now - peer.contact < state.options.election_ticks
        ]
        return max(fit)[1] if fit else ""
