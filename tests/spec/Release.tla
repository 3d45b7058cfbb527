------------------------------ MODULE Release ------------------------------
\* Release of log segments after a Delta commit: seal, stage, write, commit, verify, release. Segment s holds the messages
\* of index s. Two compactors may be at work at once and die at any step; an answer to a commit may be lost; a power loss
\* takes what was not synced; something else may take a file of the table while a copy of its messages is left.
\*
\* Abstractions: the server, its log and the staging area are durable (GroupCommit.tla); a commit is one step.
EXTENDS Naturals, FiniteSets

CONSTANTS Segments, Compactors, MaxFiles, MaxFaults,
    \* Guards. A mutation sets one or two to FALSE.
    WaitsForTheTable,  \* a segment leaves the log only when the table holds it, not when it is staged
    ChecksPosition,    \* a commit is refused if the table's position is not the one that its batch began at
    CommitSyncs,       \* a commit names only files that are on disk
    Verifies,          \* the server releases only what it found whole, and synced
    ReadsOutcome,      \* after an error of a commit the log tells if it was made
    LooksBeforeDeleting, \* nothing is deleted unless every file of the newest version exists
    StaysForRepair     \* a staged segment stays while damage is to be repaired from it

VARIABLES
    sealed,    \* segments 1..sealed exist
    log,       \* segments in the log
    staged,    \* segments in the staging area
    position,  \* of the table's newest version: segments 1..position are in it
    named,     \* files that the newest version names
    content,   \* file -> its segment; 0: there is no such file yet
    state,     \* file -> "cache", "disk", "gone"
    work,      \* compactor -> position at which its batch began, its file, and how far it is
    verified,  \* position through which the server found every file whole
    faults

vars == <<sealed, log, staged, position, named, content, state, work, verified, faults>>
Files == 1..MaxFiles
Idle == [at |-> 0, file |-> 0, step |-> "idle"]
Whole == {f \in named : state[f] # "gone"} = named
Damaged == {content[f] : f \in {g \in named : state[g] = "gone"}}

Init ==
    /\ sealed = 0 /\ log = {} /\ staged = {} /\ position = 0 /\ named = {}
    /\ content = [f \in Files |-> 0] /\ state = [f \in Files |-> "gone"]
    /\ work = [c \in Compactors |-> Idle] /\ verified = 0 /\ faults = 0

Seal ==
    /\ sealed < Segments
    /\ sealed' = sealed + 1 /\ log' = log \cup {sealed + 1}
    /\ UNCHANGED <<staged, position, named, content, state, work, verified, faults>>

Stage(s) ==
    /\ s \in log \ staged /\ s > position
    /\ staged' = staged \cup {s}
    /\ UNCHANGED <<sealed, log, position, named, content, state, work, verified, faults>>

Begin(c) ==
    /\ work[c].step = "idle" /\ position + 1 \in staged
    /\ \E f \in Files :
        /\ content[f] = 0
        /\ \A g \in Files : g < f => content[g] # 0
        /\ content' = [content EXCEPT ![f] = position + 1]
        /\ state' = [state EXCEPT ![f] = "cache"]
        /\ work' = [work EXCEPT ![c] = [at |-> position, file |-> f, step |-> "written"]]
    /\ UNCHANGED <<sealed, log, staged, position, named, verified, faults>>

Sync(c) ==
    /\ work[c].step = "written" /\ state[work[c].file] # "gone"
    /\ state' = [state EXCEPT ![work[c].file] = "disk"]
    /\ work' = [work EXCEPT ![c].step = "synced"]
    /\ UNCHANGED <<sealed, log, staged, position, named, content, verified, faults>>

\* The commit is made, with or without an answer; or it is refused, and its file belongs to no version.
Commit(c) ==
    /\ work[c].step = "synced" \/ (~CommitSyncs /\ work[c].step = "written")
    /\ ChecksPosition => position = work[c].at
    /\ position' = work[c].at + 1
    /\ named' = named \cup {work[c].file}
    /\ \E answer \in {"done", "unsure"} :
        work' = [work EXCEPT ![c] = IF answer = "done" THEN Idle ELSE [@ EXCEPT !.step = "unsure"]]
    /\ UNCHANGED <<sealed, log, staged, content, state, verified, faults>>

Refused(c) ==
    /\ work[c].step = "synced" /\ position # work[c].at
    /\ work' = [work EXCEPT ![c].step = "unsure"]
    /\ UNCHANGED <<sealed, log, staged, position, named, content, state, verified, faults>>

\* After an error: the file is deleted if no version names it.
Settle(c) ==
    /\ work[c].step = "unsure"
    /\ state' = [state EXCEPT ![work[c].file] = IF ReadsOutcome /\ work[c].file \in named THEN @ ELSE "gone"]
    /\ work' = [work EXCEPT ![c] = Idle]
    /\ UNCHANGED <<sealed, log, staged, position, named, content, verified, faults>>

\* The server syncs each file that a new version names, and reads its end.
Verify ==
    /\ verified < position
    /\ Verifies => Whole
    /\ state' = IF Verifies THEN [f \in Files |-> IF f \in named THEN "disk" ELSE state[f]] ELSE state
    /\ verified' = position
    /\ UNCHANGED <<sealed, log, staged, position, named, content, work, faults>>

MayDelete(s) == s <= verified /\ (LooksBeforeDeleting => Whole)

Release(s) ==
    /\ s \in log /\ (MayDelete(s) \/ (~WaitsForTheTable /\ s \in staged))
    /\ log' = log \ {s}
    /\ UNCHANGED <<sealed, staged, position, named, content, state, work, verified, faults>>

Unstage(s) ==
    /\ s \in staged /\ s <= position
    /\ StaysForRepair => MayDelete(s)
    /\ staged' = staged \ {s}
    /\ UNCHANGED <<sealed, log, position, named, content, state, work, verified, faults>>

\* The compactor goes back to the version before the damage; what it lacks then is staged again.
Repair ==
    /\ Damaged # {}
    /\ LET first == CHOOSE s \in Damaged : \A other \in Damaged : s <= other IN
        /\ \A s \in first..position : s \in log \cup staged
        /\ position' = first - 1
        /\ named' = {f \in named : content[f] < first}
        /\ verified' = IF verified < first THEN verified ELSE first - 1
    /\ UNCHANGED <<sealed, log, staged, content, state, work, faults>>

Kill(c) ==
    /\ faults < MaxFaults /\ work[c] # Idle
    /\ work' = [work EXCEPT ![c] = Idle] /\ faults' = faults + 1
    /\ UNCHANGED <<sealed, log, staged, position, named, content, state, verified>>

PowerLoss ==
    /\ faults < MaxFaults
    /\ state' = [f \in Files |-> IF state[f] = "cache" THEN "gone" ELSE state[f]]
    /\ work' = [c \in Compactors |-> Idle] /\ faults' = faults + 1
    /\ UNCHANGED <<sealed, log, staged, position, named, content, verified>>

\* Another program, or a disk, takes a file of which there is a copy in the log or the staging area.
Damage(f) ==
    /\ faults < MaxFaults /\ f \in named /\ state[f] # "gone" /\ content[f] \in log \cup staged
    /\ \A s \in content[f]..position : s \in log \cup staged
    /\ state' = [state EXCEPT ![f] = "gone"] /\ faults' = faults + 1
    /\ UNCHANGED <<sealed, log, staged, position, named, content, work, verified>>

Next ==
    \/ Seal \/ Verify \/ Repair \/ PowerLoss
    \/ \E s \in 1..sealed : Stage(s) \/ Release(s) \/ Unstage(s)
    \/ \E c \in Compactors : Begin(c) \/ Sync(c) \/ Commit(c) \/ Refused(c) \/ Settle(c) \/ Kill(c)
    \/ \E f \in Files : Damage(f)

InTable(s) == \E f \in named : content[f] = s /\ state[f] = "disk"

\* Invariant: every message is in the log, in a staged segment, or in a file of the newest version that is on disk.
\* Code: server/lake/stream_sync.py StreamSync.look, lake/table/check.py TableCheck.look
\* Simulator: tests/sim/whole/lake_checks.py check_tables
NothingLost == \A s \in 1..sealed : s \in log \/ s \in staged \/ InTable(s)

\* Invariant: a segment that left the log is in a file that is on disk (invariants 7 and 10).
\* Code: lake/table/check.py TableCheck.are_there, log/store/segment_store.py SegmentStore.drop_through
\* Simulator: tests/sim/whole/lake_checks.py checked_drops, tests/sim/whole/bugs.py drops_what_is_only_staged
ReleasedIsInTheTable == \A s \in 1..sealed : s \in log \/ InTable(s) \/ (s \in staged /\ Damaged # {})
    \/ (s \in staged /\ s > position /\ faults > 0)

\* Invariant: the newest version has each message once, and none is left out (invariant 8).
\* Code: packages/spark/lakestream_spark/write/commit.py Commit.append, packages/spark/lakestream_spark/write/stream_compaction.py StreamCompaction.plan
\* Simulator: tests/sim/whole/lake_checks.py check_tables
ExactlyOnce ==
    /\ \A f, g \in named : content[f] = content[g] => f = g
    /\ {content[f] : f \in named} = 1..position

\* Invariant: nobody of ours deletes a file that the newest version names (invariant 13).
\* Code: packages/spark/lakestream_spark/write/commit.py Commit.append, packages/spark/lakestream_spark/write/vacuum.py dead_files
\* Simulator: tests/sim/whole/lake_checks.py table_content
NamedFilesStay == faults = 0 => Whole
=============================================================================
