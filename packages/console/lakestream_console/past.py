"""The program that reads a stream as of a moment, for a restore: `python -m lakestream_console.past`.

Belongs here: the messages between it and the server, and the names that messages get in a new bucket. Reading the lake
would hold up the server, so it happens in a process of its own, which ends with the restore. A message is its length (4
bytes, big-endian), a letter for its kind, and its body, as in lakestream_sql/child.py. After the request come `r` with
the first and last sequence, chunks of the archive (`c`), each followed by the last sequence in it (`p`), and `d` at the
end; or `e`, an error.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec
from msgspec.structs import replace

from lakestream.account.backup.past_stream import chunks, empty_state, packed
from lakestream.lake.errors import LakeError
from lakestream.lake.flush import FlushAnswer
from lakestream.log.format.record import Record

_LENGTH, _HEAD = struct.Struct(">I"), struct.Struct(">Ic")


class PastRequest(msgspec.Struct, frozen=True):
    """A request to read a stream of a lake as of a time, ns since the epoch.

    `flush`: the server's answer to a flush of the stream, as JSON; "": there is none. `renamed`: the beginnings of
    subjects, and what they become; `bucket`: the name in the entries of an object store, "": it stays.
    """

    lake: str
    account: str
    stream: str
    at_ns: int
    chunk_bytes: int
    flush: str = ""
    renamed: dict[str, str] = {}
    bucket: str = ""


_flush_answer = msgspec.json.Decoder(FlushAnswer)
_request = msgspec.json.Decoder(PastRequest)


def main() -> None:
    """Serve one request."""
    request = _request.decode(sys.stdin.buffer.read(_LENGTH.unpack(sys.stdin.buffer.read(_LENGTH.size))[0]))
    os.nice(19)  # the server has the processor first
    try:
        _serve(request)
    except LakeError as error:
        text = str(error).replace(request.lake, "the lake")
        _say(b"e", json.dumps({"error": text, "code": 400}).encode())


def _serve(request: PastRequest) -> None:
    from lakestream_client.lake.past import NothingThen, open_past  # loads pyarrow

    answer = _flush_answer.decode(request.flush) if request.flush else None
    past = open_past(request.lake, request.stream, request.at_ns, request.account, answer=answer)
    blocks = past.messages()
    first = next(blocks, None)
    if first is None:
        raise NothingThen(request.stream, request.at_ns)
    ready = {"first_seq": first[0].seq, "last_seq": past.last_seq, "note": past.note}
    _say(b"r", json.dumps(ready).encode())
    reached = 0

    def read() -> Iterator[list[Record]]:
        nonlocal reached
        for block in chain([first], blocks):
            reached = block[-1].seq
            yield [_renamed(record, request) for record in block]

    for chunk in chunks(packed(empty_state(first[0].seq), read()), request.chunk_bytes):
        _say(b"c", chunk)
        _say(b"p", b"%d" % reached)
    _say(b"d", b"")


def _renamed(record: Record, request: PastRequest) -> Record:
    """Return a message as it is in the new bucket."""
    for old, new in request.renamed.items():
        if record.subject.startswith(old.encode()):
            data = record.data
            if request.bucket and ".M." in new:
                data = _in_bucket(data, request.bucket)
            return replace(record, subject=new.encode() + record.subject[len(old.encode()) :], data=data)
    return record


def _in_bucket(data: bytes, bucket: str) -> bytes:
    """Return the entry of an object with the name of its store; data that is no entry stays."""
    try:
        entry: Any = json.loads(data)
    except ValueError:
        return data
    return json.dumps(entry | {"bucket": bucket}).encode() if isinstance(entry, dict) else data


def _say(kind: bytes, body: bytes) -> None:
    sys.stdout.buffer.write(_HEAD.pack(len(body), kind) + body)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
