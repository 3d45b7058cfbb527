"""Requests about single messages of a stream.

Belongs here: STREAM.PURGE, MSG.GET and MSG.DELETE (docs/internals/api.md#streams). Direct gets are in `account/get/`.
"""

from __future__ import annotations

import functools
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lakestream.account.api.find import find
from lakestream.account.engine import Engine
from lakestream.account.get import query
from lakestream.account.get.query import MsgGetRequest
from lakestream.log.format.errors import LogError
from lakestream.log.format.record import Record
from lakestream.protocol.api.errors import ApiError, api_error, for_clients
from lakestream.protocol.api.json_syntax import JsonError
from lakestream.protocol.api.jsonio import Uint64, parse
from lakestream.protocol.api.request import Request, Where
from lakestream.protocol.gotime import format_time, time_ns
from lakestream.stream.assembly import Stream
from lakestream.stream.core.config import LAST_SEQ
from lakestream.stream.core.operations import DeleteMessage, Purge
from lakestream.stream.core.reader import HistoryUnavailableError


class StreamPurgeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of STREAM.PURGE."""

    seq: Uint64 = 0
    filter: str = ""
    keep: Uint64 = 0


class MsgDeleteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of STREAM.MSG.DELETE."""

    seq: Uint64 = 0
    no_erase: bool = False


class MessageApi:
    """Serves the requests about messages of streams."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def purge(self, request: Request) -> None:
        asked = request.parse_if_json(StreamPurgeRequest, "JSApiStreamPurgeRequest")
        if asked.seq and asked.keep:
            raise api_error(10003)
        stream = find(self._engine, request.tokens[0])
        if stream.config.sealed:
            raise api_error(10109)
        if stream.config.deny_purge:
            raise api_error(10110, err="stream purge not permitted")

        def purged(outcome: object) -> None:
            if isinstance(outcome, ApiError):
                request.fail(outcome)
            else:
                request.respond({"success": True, "purged": outcome})

        stream.pipeline.settle()  # messages in flight are stored before the purge
        # Sequences beyond LAST_SEQ do not fit into a table (nats-server accepts them, and its sequences wrap to 0).
        seq = asked.seq if asked.seq <= max(LAST_SEQ, stream.pipeline.next_seq) else 0
        stream.propose(Purge(asked.filter.encode(), seq, asked.keep), purged)

    def delete(self, request: Request) -> None:
        if request.empty_body:
            raise api_error(10003)
        asked = request.parse(MsgDeleteRequest, "JSApiMsgDeleteRequest")
        stream = find(self._engine, request.tokens[0])
        if stream.config.sealed:
            raise api_error(10109)
        if stream.config.deny_delete:
            raise api_error(10057, err="message delete not permitted")
        missing = _not_deletable(stream, asked.seq)
        if missing is not None:
            raise missing

        def deleted(outcome: object) -> None:
            request.succeed(outcome if outcome else api_error(10043, seq=asked.seq))

        stream.propose(DeleteMessage(asked.seq, not asked.no_erase), deleted)

    def delete_run(
        self, bodies: Sequence[bytes], request: Callable[[int], Request], succeed: Callable[[Sequence[int]], None]
    ) -> bool:
        """Delete messages of one stream, unless a request may have to fail; see `RunHandler`."""
        stream, strict = self._engine.streams.get(request(0).tokens[0]), self._engine.options.strict
        if stream is None or not stream.pipeline.accepts or stream.config.sealed or stream.config.deny_delete:
            return False
        try:
            asked = [parse(body, MsgDeleteRequest, strict=strict) for body in bodies]
        except JsonError:
            return False
        if len({each.no_erase for each in asked}) > 1 or any(_not_deletable(stream, each.seq) for each in asked):
            return False
        done: list[int] = []

        def answer() -> None:
            succeed(done.copy())
            done.clear()

        def deleted(at: int, outcome: object) -> None:
            if outcome is not True:
                request(at).succeed(outcome or api_error(10043, seq=asked[at].seq))
                return
            if not done:
                stream.clock.call_with_output(answer)
            done.append(at)

        stream.pipeline.propose_deletions([each.seq for each in asked], not asked[0].no_erase, deleted)
        return True

    def get(self, request: Request) -> None:
        if request.empty_body:
            raise api_error(10003)
        asked = request.parse(MsgGetRequest, "JSApiMsgGetRequest")
        if asked.names_nothing or asked.clashes or asked.batch or asked.max_bytes or asked.multi_last:
            raise api_error(10003)
        stream = find(self._engine, request.tokens[0])

        def confirmed(led: bool) -> None:
            if led:
                self._get_stored(request, stream, asked)
            elif not stream.closed:  # ask the present leader
                again = functools.partial(request.run, functools.partial(self.get, request))
                self._engine.node.requests.again(request, Where.STREAM, again)
            else:
                raise api_error(10008)

        def confirm() -> None:
            stream.confirming.leading(lambda led: request.run(lambda: confirmed(led)))

        if asked.seq and asked.seq in stream.store.live and not stream.pipeline.operations:
            confirm()  # no earlier request can change the answer
        else:
            self._engine.when_applied([stream], lambda: request.run(confirm))

    def _get_stored(self, request: Request, stream: Stream, asked: MsgGetRequest) -> None:
        origin = self._engine.streams.get(stream.mirroring.reads_from)  # None unless it is a mirror without messages
        if origin is not None and origin.leading:
            stream = origin
        start = asked.seq
        if asked.start_time is not None:
            at = stream.store.first_at(time_ns(asked.start_time))
            if at is None:
                stream.clock.spawn(self._get_later(request, stream, asked))
                return
            if not at:
                raise api_error(10037)
            start = at
        seq = _named(stream, asked, start)
        if stream.store.is_local(seq):
            _answer_message(request, _read(stream, seq), asked.no_hdr)
        elif seq in stream.store.live:
            stream.clock.spawn(self._get_later(request, stream, asked, seq))
        else:
            raise api_error(10037)

    async def _get_later(self, request: Request, stream: Stream, asked: MsgGetRequest, seq: int = 0) -> None:
        """Answer with a message that only the lake has, or whose start time only the lake can resolve."""
        try:
            if not seq and asked.start_time is not None:
                start = await stream.reader.first_at(time_ns(asked.start_time))
                seq = _named(stream, asked, start) if start else 0
            _answer_message(request, await stream.reader.fetch(seq) if seq else None, asked.no_hdr)
        except ApiError as error:
            request.fail(error)
        except (HistoryUnavailableError, LogError) as error:
            if isinstance(error, HistoryUnavailableError) and error.retry_s:
                request.fail(ApiError(503, 10008, f"{api_error(10008).for_clients}: {for_clients(error)}"))
            else:
                request.fail(api_error(10051, err=for_clients(error)))
        except Exception:
            request.fail(api_error(10051, err="the message could not be read from the lake"))
            raise


def _not_deletable(stream: Stream, seq: int) -> ApiError | None:
    """Return the error if `seq` has no message to delete, else None; as in nats-server it depends on the storage."""
    store = stream.store
    if (
        seq in store.live or store.last_seq < seq < stream.pipeline.next_seq
    ):  # a message in flight is stored before the deletion
        return None
    if stream.config.storage == "file":
        if seq > store.last_seq:
            return api_error(10057, err="stream store EOF")
        if seq < store.first_seq or not seq:
            return api_error(10057, err="no message found")
    return api_error(10043, seq=seq)


def _named(stream: Stream, asked: MsgGetRequest, start: int) -> int:
    """Return the sequence that the request selects; `start` is its sequence, or that of its start time."""
    if asked.last_by_subj:
        return query.last_of(stream.store, asked.last_by_subj.encode())
    if asked.next_by_subj:
        return query.next_of(stream.store, asked.next_by_subj.encode(), start)
    return start


def _read(stream: Stream, seq: int) -> Record | None:
    try:
        return stream.store.read(seq)
    except LogError as error:
        raise api_error(10051, err=for_clients(error)) from error


def _answer_message(request: Request, record: Record | None, without_header: bool) -> None:
    if record is None:
        raise api_error(10037)
    message: dict[str, Any] = {"subject": record.subject.decode("utf-8", "replace"), "seq": record.seq}
    if record.header and not without_header:
        message["hdrs"] = b64encode(record.header).decode()
    if record.data:
        message["data"] = b64encode(record.data).decode()
    message["time"] = format_time(record.time_ns)
    request.respond({"message": message})
