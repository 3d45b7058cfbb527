----------------------------- MODULE Membership -----------------------------
\* Membership change of a Raft group: one member at a time, valid as soon as it is in the log. Learners receive the log and
\* neither vote nor count. A leader starts a change only after the change before, and an entry of its own term, are committed.
\*
\* Abstractions: as in GroupCommit.tla; here every write is on disk at once.
EXTENDS Naturals, FiniteSets, Sequences

CONSTANTS Nodes, First, MaxTerm, MaxEntries,
    Memberships,      \* sets of voters that a change may lead to
    \* Guards. A mutation sets one to FALSE.
    OneAtATime,       \* the change before is committed
    OwnEntryFirst,    \* the leader has committed an entry of its own term
    OneMember,        \* old and new voters differ by one member
    LearnersOnly,     \* who is no voter does not count
    VotersDecide      \* an election counts the voters of the candidate's own newest membership

VARIABLES
    log,      \* node -> entries: [term, voters]; voters are those from this entry on
    term,     \* node -> its term
    leads,    \* nodes that take themselves for leaders
    commit,   \* node -> index through which it knows entries to be committed
    chosen    \* committed entries: pairs of index and entry

vars == <<log, term, leads, commit, chosen>>

Voters(n) == log[n][Len(log[n])].voters
Majority(q, voters) == 2 * Cardinality(q \cap voters) > Cardinality(voters)
Last(n) == log[n][Len(log[n])].term
AsNew(n, m) == Last(n) > Last(m) \/ (Last(n) = Last(m) /\ Len(log[n]) >= Len(log[m]))
Agree(n, m, i) == Len(log[m]) >= i /\ SubSeq(log[n], 1, i) = SubSeq(log[m], 1, i)

Init ==
    /\ log = [n \in Nodes |-> <<[term |-> 0, voters |-> First]>>]
    /\ term = [n \in Nodes |-> 0] /\ leads = {}
    /\ commit = [n \in Nodes |-> 1]
    /\ chosen = {<<1, [term |-> 0, voters |-> First]>>}

\* q are those that vote, no more than are needed. The new leader's first entry has the members of the one before.
Elect(n, q) ==
    LET new == 1 + CHOOSE t \in {term[m] : m \in q} : \A m \in q : term[m] <= t
        voters == IF VotersDecide THEN Voters(n) ELSE First IN
    /\ n \in q /\ new <= MaxTerm /\ Len(log[n]) < MaxEntries
    /\ q \subseteq voters /\ Majority(q, voters) /\ \A m \in q : ~Majority(q \ {m}, voters)
    /\ n \in Voters(n) /\ \A m \in q : AsNew(n, m)
    /\ term' = [m \in Nodes |-> IF m \in q THEN new ELSE term[m]]
    /\ leads' = (leads \ q) \cup {n}
    /\ log' = [log EXCEPT ![n] = Append(@, [term |-> new, voters |-> Voters(n)])]
    /\ UNCHANGED <<commit, chosen>>

ChangePending(n) == \E i \in (commit[n] + 1)..Len(log[n]) : log[n][i].voters # log[n][i - 1].voters

Change(n, voters) ==
    LET now == Voters(n) IN
    /\ n \in leads /\ voters # now /\ Len(log[n]) < MaxEntries
    /\ OneMember => Cardinality((now \ voters) \cup (voters \ now)) = 1
    /\ OneAtATime => ~ChangePending(n)
    /\ OwnEntryFirst => log[n][commit[n]].term = term[n]
    /\ log' = [log EXCEPT ![n] = Append(@, [term |-> term[n], voters |-> voters])]
    /\ UNCHANGED <<term, leads, commit, chosen>>

Replicate(n, m) ==
    /\ n \in leads /\ m # n /\ term[m] <= term[n]
    /\ log[m] # log[n] \/ term[m] # term[n]
    /\ \E k \in 1..Len(log[n]) :
        /\ Agree(n, m, k - 1)
        /\ log' = [log EXCEPT ![m] = IF Agree(n, m, k) THEN @ ELSE SubSeq(log[n], 1, k)]
        /\ ~Agree(n, m, k) \/ term[m] # term[n]
    /\ term' = [term EXCEPT ![m] = term[n]]
    /\ leads' = leads \ {m}
    /\ UNCHANGED <<commit, chosen>>

Commit(n, i) ==
    LET having == {m \in Nodes : m = n \/ (term[m] = term[n] /\ Agree(n, m, i))} IN
    /\ n \in leads /\ i \in (commit[n] + 1)..Len(log[n]) /\ log[n][i].term = term[n]
    /\ IF LearnersOnly THEN Majority(having, Voters(n)) ELSE 2 * Cardinality(having) > Cardinality(Voters(n))
    /\ commit' = [commit EXCEPT ![n] = i]
    /\ chosen' = chosen \cup {<<j, log[n][j]>> : j \in 1..i}
    \* Raft thesis 4.2.2: a leader that is no member any more steps down once that is committed.
    /\ leads' = IF n \in log[n][i].voters THEN leads ELSE leads \ {n}
    /\ UNCHANGED <<log, term>>

Next ==
    \/ \E n \in Nodes : \E q \in SUBSET Nodes : Elect(n, q)
    \/ \E n \in Nodes : \E voters \in Memberships : Change(n, voters)
    \/ \E n, m \in Nodes : Replicate(n, m)
    \/ \E n \in Nodes : \E i \in 1..Len(log[n]) : Commit(n, i)

Symmetry == {f \in [Nodes -> Nodes] :
    /\ \A n, m \in Nodes : n # m => f[n] # f[m]
    /\ {f[n] : n \in First} = First
    /\ {{f[n] : n \in voters} : voters \in Memberships} = Memberships}
All == (SUBSET Nodes) \ {{}}

\* Invariant: a term has one leader, whatever members it counts.
\* Code: raft/core/leader.py Leader.propose_membership, raft/core/election.py on_vote
\* Simulator: tests/sim/checks.py Checker.leads, tests/sim/bugs.py changes_members_at_once
OneLeader == \A n, m \in leads : term[n] = term[m] => n = m

\* Invariant: one index has one committed entry.
\* Code: raft/core/leader.py Leader.count, raft/core/leader.py Leader.propose_membership
\* Simulator: tests/sim/checks.py Checker.applied, tests/sim/bugs.py counts_learners
OneEntry == \A a, b \in chosen : a[1] = b[1] => a[2] = b[2]

\* Invariant: whoever leads the newest term has every committed entry.
\* Code: raft/core/election.py on_vote, raft/core/log_view.py LogView.up_to_date
\* Simulator: tests/sim/checks.py Checker.leads
LeaderHasChosen == \A n \in leads : (\A m \in Nodes : term[m] <= term[n]) =>
    \A a \in chosen : Len(log[n]) >= a[1] /\ log[n][a[1]] = a[2]
=============================================================================
