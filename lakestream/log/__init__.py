"""The log of one stream: segments, frames, recovery, and the indexes over what they hold.

Belongs here: everything that turns entries into durable bytes and back, and the state that follows from them (which
sequences live, which subject each has, how many bytes they are). It knows neither NATS nor JSON nor the lake: an
operation is an opaque body, a subject is bytes.

In reading order:

- `format/`: Bytes of the log: records, frames, segment files, outlines, and the file operations that carry them.
- `index/`: Indexes over the messages of a stream: live sequences, and the sequences of each subject.
- `store/`: The store of a stream: its log of segments, its indexes, its checkpoint, and their recovery.
- `sealing/`: Encryption at rest: files whose content is sealed, and their keys.
"""
