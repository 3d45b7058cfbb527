"""The staging area: sealed segments that wait for compaction, and the notes of server and compactor beside them.

Belongs here: what knows the staging directories of streams, and no table.

In reading order:

- `clone_request.py`: Requests that a mirror's table begin as a clone, and their answers.
- `quarantine.py`: Quarantine for staged segments that do not decode.
- `compactor_files.py`: Files beside a compactor's checkpoint: its state for people, and requests of servers to it.
- `scan.py`: Repeated scans of the whole staging area.
- `staging.py`: The staging area: sealed segments that wait for compaction.
- `sealed.py`: Staged segments of encrypted stores: their keys beside them, and reading them.
"""
