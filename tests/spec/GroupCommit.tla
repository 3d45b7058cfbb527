---------------------------- MODULE GroupCommit ----------------------------
\* Group commit and acks. An entry is written to the page cache of a node's disk; one sync takes all entries that were
\* written before it began. A publish is acked when a majority has its entry on disk. Any nodes may lose power at any
\* moment, also all of them, and any node with the votes of a majority may lead.
\*
\* Abstractions: a message and its answer are one step, so that nothing is known that has changed meanwhile (the
\* simulator delays, repeats and reorders messages); an election is one step; an entry holds one publish.
EXTENDS Naturals, FiniteSets, Sequences

CONSTANTS Nodes, Publishes, MaxTerm, MaxLosses,
    \* Guards. A mutation sets one to FALSE.
    SyncsWhatItSaw,     \* a sync covers only what was written before it began
    LeaderSyncs,        \* a leader counts its own copy when it is on disk
    FollowerSyncs,      \* a follower confirms entries when they are on disk
    VotesForTheNewest,  \* a vote goes only to a log that is as new as the voter's
    CommitsItsOwnTerm   \* a leader counts copies of entries of its own term only

VARIABLES
    log,      \* node -> entries that it has written, as pairs of term and publish
    syncing,  \* node -> number of entries when the sync under way began; 0: none is under way
    synced,   \* node -> number of entries that it takes to be on disk
    disk,     \* node -> number of entries that are on disk
    term,     \* node -> its term, which is on disk
    leads,    \* nodes that take themselves for leaders
    acked,    \* entries of which clients were told: pairs of index and entry
    losses    \* number of power losses so far

vars == <<log, syncing, synced, disk, term, leads, acked, losses>>
Start == "start of a term"

Min(a, b) == IF a < b THEN a ELSE b
Majorities == {q \in SUBSET Nodes : 2 * Cardinality(q) > Cardinality(Nodes)}
Last(n) == IF log[n] = <<>> THEN 0 ELSE log[n][Len(log[n])][1]
AsNew(n, m) == Last(n) > Last(m) \/ (Last(n) = Last(m) /\ Len(log[n]) >= Len(log[m]))
Agree(n, m, i) == SubSeq(log[n], 1, i) = SubSeq(log[m], 1, i)
Common(n, m) == CHOOSE i \in 0..Min(Len(log[n]), Len(log[m])) :
    Agree(n, m, i) /\ (i = Min(Len(log[n]), Len(log[m])) \/ log[n][i + 1] # log[m][i + 1])

Init ==
    /\ log = [n \in Nodes |-> <<>>] /\ syncing = [n \in Nodes |-> 0]
    /\ synced = [n \in Nodes |-> 0] /\ disk = [n \in Nodes |-> 0]
    /\ term = [n \in Nodes |-> 0] /\ leads = {} /\ acked = {} /\ losses = 0

Elect(n, q) ==
    LET new == 1 + CHOOSE t \in {term[m] : m \in q} : \A m \in q : term[m] <= t IN
    /\ n \in q /\ new <= MaxTerm
    /\ VotesForTheNewest => \A m \in q : AsNew(n, m)
    /\ term' = [m \in Nodes |-> IF m \in q THEN new ELSE term[m]]
    /\ leads' = (leads \ q) \cup {n}
    /\ log' = [log EXCEPT ![n] = Append(@, <<new, Start>>)]
    /\ UNCHANGED <<syncing, synced, disk, acked, losses>>

Publish(n, p) ==
    /\ n \in leads
    /\ \A m \in Nodes : \A i \in 1..Len(log[m]) : log[m][i][2] # p
    /\ log' = [log EXCEPT ![n] = Append(@, <<term[n], p>>)]
    /\ UNCHANGED <<syncing, synced, disk, term, leads, acked, losses>>

\* A follower takes the leader's entries through k, and cuts its own where they differ.
Replicate(n, m, k) ==
    LET same == Common(n, m)
        taken == IF same = k THEN log[m] ELSE SubSeq(log[n], 1, k) IN
    /\ n \in leads /\ m # n /\ term[m] <= term[n]
    /\ k >= same /\ k <= same + 1 /\ k <= Len(log[n])
    /\ term' = [term EXCEPT ![m] = term[n]]
    /\ leads' = leads \ {m}
    /\ log' = [log EXCEPT ![m] = taken]
    /\ disk' = [disk EXCEPT ![m] = IF taken = log[m] THEN @ ELSE Min(@, same)]
    /\ synced' = [synced EXCEPT ![m] = IF taken = log[m] THEN @ ELSE Min(@, same)]
    /\ syncing' = [syncing EXCEPT ![m] = IF taken = log[m] THEN @ ELSE 0]
    /\ log[m] # taken \/ term[m] # term[n]
    /\ UNCHANGED <<acked, losses>>

SyncBegins(n) ==
    /\ syncing[n] = 0 /\ Len(log[n]) > disk[n]
    /\ syncing' = [syncing EXCEPT ![n] = Len(log[n])]
    /\ UNCHANGED <<log, synced, disk, term, leads, acked, losses>>

SyncEnds(n) ==
    /\ syncing[n] > 0
    /\ disk' = [disk EXCEPT ![n] = syncing[n]]
    /\ synced' = [synced EXCEPT ![n] = IF SyncsWhatItSaw THEN syncing[n] ELSE Len(log[n])]
    /\ syncing' = [syncing EXCEPT ![n] = 0]
    /\ UNCHANGED <<log, term, leads, acked, losses>>

Has(n, m, i) ==
    IF m = n THEN (IF LeaderSyncs THEN synced[n] >= i ELSE TRUE)
    ELSE /\ term[m] = term[n] /\ Len(log[m]) >= i /\ Agree(n, m, i)
         /\ FollowerSyncs => synced[m] >= i

Ack(n, i) ==
    /\ n \in leads /\ i \in 1..Len(log[n])
    /\ CommitsItsOwnTerm => log[n][i][1] = term[n]
    /\ {m \in Nodes : Has(n, m, i)} \in Majorities
    /\ \E j \in 1..i : <<j, log[n][j]>> \notin acked
    /\ acked' = acked \cup {<<j, log[n][j]>> : j \in 1..i}
    /\ UNCHANGED <<log, syncing, synced, disk, term, leads, losses>>

\* What was not synced may be there or not.
PowerLoss(s) ==
    /\ losses < MaxLosses
    /\ \E whole \in BOOLEAN :
        LET left(n) == IF whole THEN Len(log[n]) ELSE disk[n] IN
        /\ log' = [n \in Nodes |-> IF n \in s THEN SubSeq(log[n], 1, left(n)) ELSE log[n]]
        /\ disk' = [n \in Nodes |-> IF n \in s THEN left(n) ELSE disk[n]]
        /\ synced' = [n \in Nodes |-> IF n \in s THEN left(n) ELSE synced[n]]
    /\ syncing' = [n \in Nodes |-> IF n \in s THEN 0 ELSE syncing[n]]
    /\ leads' = leads \ s
    /\ losses' = losses + 1
    /\ UNCHANGED <<term, acked>>

Next ==
    \/ \E n \in Nodes : SyncBegins(n) \/ SyncEnds(n)
    \/ \E n \in Nodes, q \in Majorities : Elect(n, q)
    \/ \E n \in Nodes, p \in Publishes : Publish(n, p)
    \/ \E n, m \in Nodes : \E k \in 0..Len(log[n]) : Replicate(n, m, k)
    \/ \E n \in Nodes : \E i \in 1..Len(log[n]) : Ack(n, i)
    \/ \E s \in (SUBSET Nodes) \ {{}} : PowerLoss(s)

Symmetry == {f \in [Nodes -> Nodes] : \A n, m \in Nodes : n # m => f[n] # f[m]}

\* Invariant: an acked entry is on the disks of a majority (invariant 1).
\* Code: raft/core/leader.py Leader.count, log/store/segment_log.py SegmentLog.append, raft/group/outgoing.py Outgoing.put
\* Simulator: tests/sim/checks.py Checker.leader_commits, tests/sim/checks.py Checker.sent
AckedIsOnAMajority == \A a \in acked :
    {n \in Nodes : disk[n] >= a[1] /\ log[n][a[1]] = a[2]} \in Majorities

\* Invariant: whoever leads the newest term has every acked entry at its index, so nothing acked is lost or reordered.
\* Code: raft/core/election.py on_vote, raft/core/log_view.py LogView.up_to_date
\* Simulator: tests/sim/checks.py Checker.leads, tests/sim/checks.py Checker.applied
LeaderHasAcked == \A n \in leads : (\A m \in Nodes : term[m] <= term[n]) =>
    \A a \in acked : Len(log[n]) >= a[1] /\ log[n][a[1]] = a[2]

\* Invariant: a term has one leader.
\* Code: raft/core/election.py on_vote, raft/group/hard_state.py StateFile.write
\* Simulator: tests/sim/checks.py Checker.hardened, tests/sim/checks.py Checker.leads
OneLeader == \A n, m \in leads : term[n] = term[m] => n = m

\* Invariant: one index has one acked entry, and one publish one index (invariant 5).
\* Code: stream/core/proposer.py Proposer.take, stream/core/stream.py StreamCore.committed
\* Simulator: tests/sim/checks.py Checker.acked_to_client
OneOrder == \A a, b \in acked : (a[1] = b[1] => a[2] = b[2]) /\ (a[2] = b[2] => a[1] = b[1])
=============================================================================
