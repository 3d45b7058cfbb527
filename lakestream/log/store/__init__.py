"""The store of a stream: its log of segments, its indexes, its checkpoint, and their recovery.

Belongs here: everything that changes files of a stream, and the order in which it becomes durable.

In reading order:

- `log.py`: The interfaces between a store and what holds its entries and its messages.
- `segment_log.py`: Writing the log: append, sync, seal, truncate.
- `journal.py`: The journal of a store: small writes of several logs, and new logs, durable with one sync.
- `synced.py`: The synced mark of a log: the entry through which it is known to be on stable storage.
- `recovery.py`: Recovery of a log after the end of a process, whatever its cause.
- `cache.py`: Read cache: open descriptors and loaded tables.
- `segment_rows.py`: Reading messages from segment files, and from the outlines of segments that have left the log.
- `store.py`: The messages of one stream and the indexes over them.
- `segment_store.py`: A store on disk.
- `memory.py`: A store in memory.
- `checkpoint.py`: The checkpoint of a store: its state at one index, from which recovery starts.
- `base.py`: The base of a store: messages that were never in its log.
- `past.py`: A stream's past, as far as its log holds it.
- `pruning.py`: Messages whose rows outlines have to keep.
- `shred.py`: Secure delete in the log: destroy the bytes of deleted messages.
- `repair.py`: Repair of damaged logs from what other members have.
- `export.py`: Files of a store as of its applied entry, while the store continues.
- `root.py`: The store directory of a server and the stream directories in it.
- `figures.py`: Figures of a server's log writes, for monitoring.
"""
