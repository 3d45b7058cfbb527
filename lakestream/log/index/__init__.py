"""Indexes over the messages of a stream: live sequences, and the sequences of each subject.

Belongs here: the data structures, in memory and in blocks on disk. Nothing here knows segments.

In reading order:

- `sequences.py`: A set of sequences at one bit each.
- `histories.py`: The live sequences of one subject, in compact forms.
- `subject_index.py`: Index from subjects to live sequences.
- `subject_leaves.py`: The subjects of an index in order, partly on disk; snapshots of an index.
- `cold_rows.py`: Rows of the subject index outside of memory.
- `memory_limit.py`: Memory limit of all subject indexes and message ids of a server.
"""
