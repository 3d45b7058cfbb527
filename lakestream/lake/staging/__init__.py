"""The staging area: sealed segments that wait for compaction, and the notes of server and compactor beside them.

Belongs here: what knows the staging directories of streams, and no table.

In reading order:

- `clone_request.py`: Requests that a mirror's table begin as a clone, and their answers.
- `quarantine.py`: Quarantine for staged segments that do not decode.
- `query_progress.py`: The last micro-batch of the compactor's streaming query, for people.
- `upkeep_desk.py`: Maintenance of tables, as servers ask for it and people see it.
- `scan.py`: Repeated scans of the whole staging area.
- `staging.py`: The staging area: sealed segments that wait for compaction.
"""
