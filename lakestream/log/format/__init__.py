"""Bytes of the log: records, frames, segment files, outlines, and the file operations that carry them.

Belongs here: layouts, encoding and decoding. Nothing here knows the state of a stream.

In reading order:

- `record.py`: One stored message as bytes.
- `records.py`: Many stored messages as columns.
- `frame.py`: One log entry as bytes.
- `segment.py`: The segment file: its header, its tables, its footer.
- `packed.py`: Sealed segments whose frames are compressed (a stream's `compression: s2`).
- `entries.py`: Reading entries back by their index.
- `outline.py`: Outlines: subject, size and time of each message in segments that left the log.
- `runs.py`: Runs of sequences.
- `departures.py`: Removals of messages and their times.
- `pieces.py`: MessagePack in pieces, so that long values are written without being copied.
- `files.py`: File operations and the threads they run in, behind interfaces that a test can replace.
- `errors.py`: Errors of the log.
"""
