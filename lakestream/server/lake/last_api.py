"""Requests for the last message of each subject: `$LAKE.API.LAST.<stream>`.

Belongs here: answering from the subject index, in pages that are made in several turns of the event loop and no faster
than the reader takes them, and an empty message. lake/last_messages.py has the format, and the reason why the index may
change meanwhile.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from lakestream.lake.last_messages import MAX_FILTERS, MAX_SUBJECTS, LastPage, LastRequest
from lakestream.log.format.errors import LogError
from lakestream.ports import ClientInfo, Single
from lakestream.protocol.api.errors import ApiError, api_error, for_clients
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.protocol.subjects import subscribable

if TYPE_CHECKING:
    from lakestream.account.engine import Engine
    from lakestream.stream.assembly import Stream

TURN_NS = 1_000_000
"""Time (1 ms) that an answer takes of one turn of the event loop."""
PAGE_SUBJECTS = 4096
"""A page ends with the batch of the index in which it reaches this number of subjects …"""
PAGE_BYTES = 256 << 10
"""… or this size (256 KiB)."""
MAX_ANSWERS = 64
"""Maximum number of answers under way in an account; further requests fail (429)."""

_REQUEST = JsonDecoder(LastRequest)
_encode = msgspec.msgpack.Encoder().encode


class LastApi:
    """Answers these requests for one engine's streams.

    Args:
        engine: the streams.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._under_way = 0

    def asked(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        """Answer a request."""
        try:
            engine = self._engine
            stream = engine.node.asked_here(engine.account, subject.rpartition(b".")[2].decode("utf-8", "replace"))
            if stream is None or not reply:
                return
            if stream.closed:
                raise api_error(10059)
            if stream.failed is not None:
                raise stream.failed
            filters, most = _read(body)
            if self._under_way >= MAX_ANSWERS:
                raise ApiError(429, 0, f"{MAX_ANSWERS} such requests are being answered")
        except ApiError as error:
            self._fail(reply, error)
            return
        self._under_way += 1
        self._turn(reply, _pages(stream, filters, most))

    def _turn(self, reply: bytes, pages: Iterator[bytes]) -> None:
        """Send the next pages; go on in a later turn until all are sent."""
        bus, clock = self._engine.bus, self._engine.clock
        until, more = clock.steady() + TURN_NS, False
        try:
            while bus.writable(reply):
                page = next(pages)
                if page and not bus.send(Single(reply, payload=page)):
                    return  # the reader has gone
                if clock.steady() >= until:
                    break
            bus.when_writable(reply, lambda: self._turn(reply, pages))
            more = True
        except StopIteration:
            bus.send(Single(reply))
        except ApiError as error:
            self._fail(reply, error)
        except LogError as error:
            self._fail(reply, ApiError(500, 0, for_clients(error)))
        finally:
            self._under_way -= not more

    def _fail(self, reply: bytes, error: ApiError) -> None:
        page = LastPage(error=error.description, code=error.code, done=True)
        self._engine.bus.send(Single(reply, payload=_encode(page)))
        self._engine.bus.send(Single(reply))


def _read(body: bytes) -> tuple[list[bytes], int]:
    """Return the filters, and the maximum number of subjects. Raise ApiError."""
    try:
        asked = _REQUEST.decode(body) if body else LastRequest()
    except DECODE_ERRORS as error:
        raise ApiError(400, 0, f"invalid request: {error}") from None
    filters = [each.encode() for each in asked.filters] or [b">"]
    if len(filters) > MAX_FILTERS or not all(map(subscribable, filters)):
        raise ApiError(400, 0, f"filters are at most {MAX_FILTERS} subjects, which may have wildcards")
    return filters, min(asked.most, MAX_SUBJECTS)


def _pages(stream: Stream, filters: list[bytes], most: int) -> Iterator[bytes]:
    """Yield the pages of an answer, or b"" after a step without one. Raise ApiError, LogError."""
    store, uid, begun = stream.store, stream.uid, stream.store.applied
    subjects, seqs, size, found = list[bytes](), array("q"), 0, 0
    if filters == [b">"] and len(store.subjects) > most:
        raise _too_many(most)
    for some in store.subjects.some_matching(*filters):
        if stream.closed:
            raise api_error(10059)
        last = store.subjects.last
        subjects += some
        seqs.extend(map(last, some))
        size, found = size + sum(map(len, some)), found + len(some)
        if found > most:
            raise _too_many(most)
        if len(subjects) >= PAGE_SUBJECTS or size >= PAGE_BYTES:
            yield _page(uid, begun, subjects, seqs, done=False)
            subjects, seqs, size = [], array("q"), 0
        else:
            yield b""
    # Of an operation that is being applied, the index may have a part.
    ended = store.applied + (store.operation_ns is not None)
    if begun != ended and found <= len(subjects):
        yield _page(uid, begun, [], array("q"), done=False)
    yield _page(uid, ended, subjects, seqs, done=True)


def _page(uid: str, applied: int, subjects: list[bytes], seqs: array[int], *, done: bool) -> bytes:
    lengths = array("I", map(len, subjects))
    return _encode(LastPage(uid, applied, seqs.tobytes(), lengths.tobytes(), b"".join(subjects), done))


def _too_many(most: int) -> ApiError:
    return ApiError(413, 0, f"more than {most} subjects")
