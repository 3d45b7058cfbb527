------------------------------- MODULE Erase -------------------------------
\* Erasure of messages from a table whose files are shared: by older versions within the retention, by readers of them, and
\* by shallow clones. A file is a set of messages; a version names files and marks deleted messages.
\*
\* Abstractions: a step of maintenance is atomic between two commits of others (it holds the table's lock); a clone is
\* made in two steps, as its entry in the registry comes before it; time is the choice of what leaves the retention.
EXTENDS Naturals, FiniteSets, Sequences

CONSTANTS Messages, MaxFiles, MaxVersions,
    \* Guards. A mutation sets one to FALSE.
    KeepsTheRetention,   \* VACUUM keeps files of versions within the retention
    KnowsClones,         \* VACUUM and erasure keep files of clones
    KnowsNewClones,      \* ... also of clones that are only registered
    SparesTheYoung,      \* VACUUM keeps files that no version names yet
    TakesTheNextVersion, \* an erasure that deletes such a file takes the version that would have named it
    NotesFirst,          \* a note exists only when no row of the newest version has its messages
    ForgetsLast          \* the note of an erasure goes after the files

VARIABLES
    versions,  \* sequence of [files, dead]: the table's versions, the newest last
    oldest,    \* first version within the retention
    content,   \* file -> its messages; {} : no file was written
    exists,    \* files that are there
    writer,    \* a commit under way: its file, and the version that it is based on; file 0: none
    clone,     \* [step, version, own]: "none", "registered", "made", "detached"
    note,      \* messages that have to be erased
    done       \* messages of which an erasure was reported as complete

vars == <<versions, oldest, content, exists, writer, clone, note, done>>
Files == 1..MaxFiles
Newest == versions[Len(versions)]
Free == {f \in Files : content[f] = {} /\ \A g \in Files : g < f => content[g] # {}}
Nothing == [file |-> 0, base |-> 0]

Init ==
    /\ versions = <<[files |-> {1}, dead |-> {}]>> /\ oldest = 1
    /\ content = [f \in Files |-> IF f = 1 THEN Messages ELSE {}] /\ exists = {1}
    /\ writer = Nothing
    /\ clone = [step |-> "none", version |-> 0] /\ note = {} /\ done = {}

Commit(files, dead) == versions' = Append(versions, [files |-> files, dead |-> dead])
Room == Len(versions) < MaxVersions

\* Another program writes a file of rows that it read from a version, marked as deleted or not, and commits it later as the
\* version behind the newest one, unless that is taken by then.
Write(f, v) ==
    /\ writer = Nothing /\ f \in Free /\ versions[v].files # {} /\ versions[v].files \subseteq exists
    /\ \E rows \in {UNION {content[g] : g \in versions[v].files}, UNION {content[g] : g \in versions[v].files} \ Newest.dead} :
        /\ rows # {}
        /\ content' = [content EXCEPT ![f] = rows]
    /\ exists' = exists \cup {f}
    /\ writer' = [file |-> f, base |-> Len(versions)]
    /\ UNCHANGED <<versions, oldest, clone, note, done>>

Named ==
    /\ writer # Nothing
    /\ IF Len(versions) = writer.base /\ Room
       THEN Commit({writer.file}, Newest.dead) ELSE UNCHANGED versions
    /\ writer' = Nothing
    /\ UNCHANGED <<oldest, content, exists, clone, note, done>>

\* A delete marks the rows, and leaves a note behind it. Without the guard the note comes first.
Delete(m) ==
    /\ Room /\ m \notin Newest.dead /\ \E f \in Newest.files : m \in content[f]
    /\ Commit(Newest.files, Newest.dead \cup {m})
    /\ note' = IF NotesFirst THEN note \cup {m} ELSE note
    /\ UNCHANGED <<oldest, content, exists, writer, clone, done>>
NoteTooEarly(m) ==
    /\ ~NotesFirst /\ m \notin note /\ \E f \in Newest.files : m \in content[f]
    /\ note' = note \cup {m}
    /\ UNCHANGED <<versions, oldest, content, exists, writer, clone, done>>

Held(f) == content[f] \cap note # {}
OfClones ==
    CASE clone.step = "made" /\ KnowsClones -> versions[clone.version].files
      [] clone.step = "registered" /\ KnowsClones /\ KnowsNewClones -> versions[clone.version].files
      [] OTHER -> {}

\* First step of an erasure: files of the newest version that hold such rows are rewritten without them.
Rewrite(f) ==
    /\ Room /\ note # {} /\ \E g \in Newest.files : Held(g)
    /\ LET left == UNION {content[g] : g \in Newest.files} \ (Newest.dead \cup note) IN
        IF left = {}
        THEN Commit({}, {}) /\ UNCHANGED <<content, exists>>
        ELSE /\ f \in Free
             /\ content' = [content EXCEPT ![f] = left] /\ exists' = exists \cup {f}
             /\ Commit({f}, {})
    /\ UNCHANGED <<oldest, writer, clone, note, done>>

\* Second step: every other file that holds one is deleted, of any version; files of clones stay, with the note.
Erase ==
    LET gone == {f \in exists : Held(f)} \ (Newest.files \cup OfClones)
        young == writer # Nothing /\ writer.file \in gone IN
    /\ note # {} /\ ~\E g \in Newest.files : Held(g)
    /\ exists' = exists \ gone
    /\ IF young /\ TakesTheNextVersion
       THEN Room /\ Commit(Newest.files, Newest.dead) ELSE UNCHANGED versions
    /\ gone # {}
    /\ UNCHANGED <<oldest, content, writer, clone, note, done>>

\* Third step: the note goes when no file holds one any more.
Forget ==
    /\ note # {}
    /\ ForgetsLast => ~\E f \in exists : Held(f)
    /\ done' = done \cup note /\ note' = {}
    /\ UNCHANGED <<versions, oldest, content, exists, writer, clone>>

Expire ==
    /\ oldest < Len(versions)
    /\ oldest' = oldest + 1
    /\ UNCHANGED <<versions, content, exists, writer, clone, note, done>>

Vacuum ==
    LET kept == Newest.files \cup OfClones
            \cup (IF KeepsTheRetention THEN UNION {versions[v].files : v \in oldest..Len(versions)} ELSE {})
            \cup (IF SparesTheYoung /\ writer # Nothing THEN {writer.file} ELSE {}) IN
    /\ exists \ kept # {}
    /\ exists' = exists \cap kept
    /\ UNCHANGED <<versions, oldest, content, writer, clone, note, done>>

Register(v) ==
    /\ clone.step = "none" /\ v \in oldest..Len(versions)
    /\ versions[v].files \subseteq exists /\ versions[v].files # {}
    /\ clone' = [step |-> "registered", version |-> v]
    /\ UNCHANGED <<versions, oldest, content, exists, writer, note, done>>

Make ==
    /\ clone.step = "registered"
    /\ clone' = [clone EXCEPT !.step = "made"]
    /\ UNCHANGED <<versions, oldest, content, exists, writer, note, done>>

\* The clone gets files of its own, or is removed.
Detach ==
    /\ clone.step = "made"
    /\ clone' = [clone EXCEPT !.step = "detached"]
    /\ UNCHANGED <<versions, oldest, content, exists, writer, note, done>>

Next ==
    \/ \E f \in Files : Rewrite(f) \/ \E v \in oldest..Len(versions) : Write(f, v)
    \/ \E m \in Messages : Delete(m) \/ NoteTooEarly(m)
    \/ Named \/ Erase \/ Forget \/ Expire \/ Vacuum \/ Make \/ Detach
    \/ \E v \in 1..Len(versions) : Register(v)

\* Invariant: every file that the newest version names exists (invariant 13).
\* Code: packages/spark/lakestream_spark/write/vacuum.py dead_files, packages/spark/lakestream_spark/write/vacuum.py left_behind
\* Tests: tests/lake/test_erasure.py test_a_file_that_a_killed_writer_did_not_finish_goes_with_the_erased_messages, tests/lake/test_vacuum.py test_what_is_dead_is_what_delta_says
NewestIsWhole == Newest.files \subseteq exists

\* Invariant: versions within the retention can be read, but for files that an erasure took.
\* Code: packages/spark/lakestream_spark/write/vacuum.py dead_files, lakestream/lake/table/policy.py tombstones_ns
\* Tests: tests/lake/test_vacuum.py test_every_version_within_the_retention_can_be_read, tests/lake/test_maintenance.py test_a_running_reader_survives_optimize_vacuum_and_log_cleanup
RetentionIsReadable == \A v \in oldest..Len(versions) : \A f \in versions[v].files :
    f \in exists \/ content[f] \cap (note \cup done) # {}

\* Invariant: the files of a clone exist from its entry in the registry until it has its own.
\* Code: packages/spark/lakestream_spark/write/clones.py registered, packages/spark/lakestream_spark/write/clone_maker.py clone
\* Tests: tests/lake/test_vacuum.py test_clones_survive_maintenance_of_their_origin, tests/lake/test_clones.py test_a_clone_of_a_clone_and_a_table_that_is_being_made_keep_their_files
CloneIsWhole == clone.step \in {"registered", "made"} => versions[clone.version].files \subseteq exists

\* Invariant: after an erasure was reported complete no file holds its messages.
\* Code: lakestream/lake/table/erasures.py leave_note, packages/spark/lakestream_spark/write/vacuum.py to_rewrite
\* Tests: tests/lake/test_erasure.py test_one_deleted_message_of_many_leaves_all_files, tests/lake/test_erasure.py test_a_clone_keeps_its_files_and_the_note
ErasedIsGone == \A f \in exists : content[f] \cap done = {}

\* Invariant: no message leaves the table that nobody deleted.
\* Code: packages/spark/lakestream_spark/write/deletion.py delete, lakestream/lake/table/erasures.py leave_note
\* Tests: tests/lake/test_erasure.py test_a_kill_behind_the_delete_or_behind_the_note_is_made_good
OthersStay == \A m \in Messages :
    (\E v \in 1..Len(versions) : m \in versions[v].dead) \/ \E f \in Newest.files : m \in content[f]
=============================================================================
