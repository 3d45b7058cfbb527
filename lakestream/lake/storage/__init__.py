"""Storages of a lake: directories and buckets, their paths, locks, and the identity of a lake.

Belongs here: everything below the formats of segments and tables. Nothing here interprets a file's content, except for
the file that makes a directory a lake.

In reading order:

- `clouds/`: The clouds whose object stores can hold a lake, one description each.
- `lake.py`: Opening a lake: its storage and its identity.
- `local_storage.py`: A lake in a directory.
- `locks.py`: Locks between the programs that commit to the tables of one lake.
- `object_storage.py`: A lake in an object store.
- `paths.py`: Paths of a lake.
- `probe.py`: Probes of a lake.
- `storage.py`: Storage interface: the files of a lake, in a directory or under a prefix of a bucket.
"""
