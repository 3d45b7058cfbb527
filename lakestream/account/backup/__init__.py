"""Snapshot and restore of streams.

Belongs here: the archive format, its transfer in both directions, and the advisories about it.

In reading order:

- `archive.py`: Format of stream archives (backups).
- `archive_tar.py`: Stream archives of nats-server 2.14 and earlier.
- `snapshots.py`: Sending a stream as a backup: `$JS.API.STREAM.SNAPSHOT`.
- `restores.py`: Restoring a backup: `$JS.API.STREAM.RESTORE`.
- `restore_target.py`: Filling a new stream with the entries of an archive.
- `past_stream.py`: A new stream with the messages that another one held in the past, as an archive to restore.
- `events.py`: Advisories about snapshots and restores.
"""
