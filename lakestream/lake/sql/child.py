"""The program that answers the console's queries: `python -m lakestream.lake.sql.child`.

Belongs here: the messages between it and the server, and the limits of a process and of a result. It serves one
account, one query at a time, and may be killed at any moment. A message is its length (4 bytes, big-endian), a letter
for its kind, and JSON. The server's first message names lake and account. A query is answered in two steps, so that the
server can judge which streams it reads, and have their newest messages staged. The JSON of a result is that of the
HTTP response: the server passes it on as it is.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import os
import queue
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, BinaryIO

import msgspec

from lakestream.lake.errors import LakeError

MAX_DATA_BYTES = 4 << 30
"""Memory of the process (4 GiB), DuckDB's own limit included; a query that needs more fails."""

TAIL_BYTES = 256 << 20
"""Bytes of a stream's uncompacted segments that are read (256 MiB)."""

EXACT = 1 << 53
"""Integers from here on are texts: a browser's numbers would not be exact."""

_LENGTH = struct.Struct(">I")


class Open(msgspec.Struct, frozen=True):
    """The first message: the lake's root, and the account whose streams are served."""

    lake: str
    account: str


class Ask(msgspec.Struct, frozen=True):
    """A query, with the limits of its result."""

    query: str
    max_rows: int
    max_bytes: int


class Mentioned(msgspec.Struct, frozen=True):
    """The streams that a query reads; `lists`: it shows the names of all."""

    streams: list[str]
    lists: bool = False


class Judgement(msgspec.Struct, frozen=True):
    """The server's judgement of a query by its streams: it may go on, or ends without an answer."""

    go: bool


class Answer(msgspec.Struct, frozen=True):
    """The result of a query."""

    columns: list[dict[str, str]]
    rows: list[list[Any]]
    truncated: bool
    elapsed_ms: int


class Failure(msgspec.Struct, frozen=True):
    """The error of a query."""

    error: str


_KINDS = {Mentioned: b"m", Answer: b"a", Failure: b"e"}
_open = msgspec.json.Decoder(Open)
_ask = msgspec.json.Decoder(Ask)
_judgement = msgspec.json.Decoder(Judgement)


def main() -> None:
    """Serve until the input ends."""
    _limit()
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, messages.put), daemon=True).start()
    out = sys.stdout.buffer
    opened = _open.decode(messages.get())
    try:
        from lakestream.lake.sql.session import Session  # loads DuckDB

        session = Session(opened.lake, tail_bytes=TAIL_BYTES, account=opened.account)
    except (LakeError, ImportError) as error:
        messages.get()
        _send(out, Failure(str(error).replace(opened.lake, "the lake")))
        return
    with contextlib.suppress(OSError):  # a sandbox may deny it
        os.nice(19)  # for queries: the server has the processor first
    while True:
        ask, began = _ask.decode(messages.get()), time.monotonic()
        answer: Answer | Failure
        try:
            _send(out, Mentioned(session.streams(ask.query), session.lists(ask.query)))
            if not _judgement.decode(messages.get()).go:
                continue
            answer = _answer(session.query(ask.query), ask, began)
        except LakeError as error:
            answer = Failure(str(error).replace(opened.lake, "the lake"))
        except RecursionError:
            answer = Failure("the query is nested too deeply")
        except MemoryError:
            answer = Failure("the query needs more memory than one may have")
        _send(out, answer)


def _limit() -> None:
    """Limit what this process can do to its machine. It can write no file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the server
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for kind, most in (
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, MAX_DATA_BYTES),
    ):
        _, hard = resource.getrlimit(kind)
        low = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (low, low))


def _read(stream: BinaryIO, put: Callable[[bytes], None]) -> None:
    """Read messages; end the process with the input, whatever it is doing."""
    while len(head := stream.read(_LENGTH.size)) == _LENGTH.size:
        put(stream.read(_LENGTH.unpack(head)[0]))
    os._exit(0)


def _send(out: BinaryIO, message: Mentioned | Answer | Failure) -> None:
    body = msgspec.json.encode(message)
    out.write(_LENGTH.pack(len(body)) + _KINDS[type(message)])
    out.write(body)
    out.flush()


def _answer(result: Any, ask: Ask, began: float) -> Answer:
    """Return the first rows of a result, as far as the limits allow."""
    columns = [{"name": name, "type": kind} for name, kind in zip(result.columns, result.types, strict=True)]
    rows, truncated = _rows(result, ask)
    return Answer(columns, rows, truncated, round((time.monotonic() - began) * 1000))


def _rows(result: Iterable[tuple[Any, ...]], ask: Ask) -> tuple[list[list[Any]], bool]:
    rows: list[list[Any]] = []
    size = 0
    for row in result:
        shown = [as_json(value) for value in row]
        size += len(msgspec.json.encode(shown)) + 1
        if len(rows) >= ask.max_rows or size > ask.max_bytes:
            return rows, True
        rows.append(shown)
    return rows, False


def as_json(value: Any) -> Any:
    """Return a value of DuckDB's as JSON has it: bytes as base64, times as ISO 8601, what a browser's numbers would not
    hold exactly as text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if -EXACT < value < EXACT else str(value)
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(as_json(key)): as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    return format(value, "f") if isinstance(value, Decimal) else str(value)


if __name__ == "__main__":
    main()
