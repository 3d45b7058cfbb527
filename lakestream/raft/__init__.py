"""Agreement on one order of entries.

Belongs here: proposing entries, making them durable on as many members as their group needs, and handing them out as
committed, in index order. Entries are opaque here.

In reading order:

- `core/`: The Raft consensus algorithm without I/O.
- `group/`: Groups: one log on one node or on several, and the owner's interface to it.
"""
