"""Files of a lake: paths, storages, locks and the staging area.

Belongs here: everything below the Delta format. A path is complete and selects its storage (a directory or an object
store). Nothing here reads a Delta table.

In reading order:

- `paths.py`: Paths of a lake.
- `storage.py`: Storage interface: the files of a lake, in a directory or under a prefix of a bucket.
- `local_storage.py`: A lake in a directory.
- `object_storage.py`: A lake in an object store.
- `clouds/`: The clouds whose object stores can hold a lake, one description each.
- `lake.py`: Opening a lake: its storage and its identity.
- `probe.py`: Probes of a lake.
- `locks.py`: Locks between the programs that commit to the tables of one lake.
- `staging.py`: The staging area: sealed segments that wait for compaction.
- `scan.py`: Repeated scans of the whole staging area.
- `quarantine.py`: Quarantine for staged segments that do not decode.
- `schemas.py`: Schemas in the lake: the versions that tables refer to.
- `clone_request.py`: Requests that a mirror's table begin as a clone, and their answers.
- `query_progress.py`: The last micro-batch of the compactor's streaming query, for people.
"""
