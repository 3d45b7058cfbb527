"""Moving whole messages in and out of a stream, for `lakestream import` and `lakestream export`.

Belongs here: two requests of lakestream beside the JetStream API. Messages are sent as records of the log
(log/format/record.py), so that nothing is lost: subject, header block and payload byte for byte, time to the ns.

    $LAKE.API.IMPORT.<stream>   body: consecutive records with the sequences that they are to get, ascending by one;
                                time 0 is now. Answered like a publish with the last one's pub ack, once all are on
                                disk. An error has `stored` (messages of the batch stored before it) and `again`
                                (true: ask for the stream's last sequence and continue from there). After an error the
                                batches behind it are refused, too, until an empty one comes; without that, a batch
                                could be stored at its sequence though somebody else's messages are in the place of the
                                one before it. Batches belong together by their reply subject without its last token.
    $LAKE.API.IMPORT1.<stream>.<seq>.<time>.<length>.<subject>
                                body: one message's header block of `length` bytes, and its payload: for a message that
                                leaves no room for anything else below max_payload.
    $LAKE.API.EXPORT.<stream>   body: {"seq", "last_seq", "start_time_ns"}. Answered with `+` and the records from there
                                on, as many as fit; none at the end. Or with `-` and an error as JSON.

An import is no publish: it is not delivered to subscribers of the subjects, and message ids and expectations
(`Nats-Expected-…`) are not checked, as they were when the message was first stored. Every other rule of the stream
holds. Times must not go backwards nor be later than now, as in every stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.account.engine import Engine
from lakestream.log.format.errors import LogError
from lakestream.log.format.record import Record, encode_record, iter_records
from lakestream.ports import ClientInfo, Single, Subscribed, singly
from lakestream.protocol import headers, subjects
from lakestream.protocol.api.errors import ApiError, api_error, for_clients
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.stream.core import limits, publish
from lakestream.stream.core.effect import Effect
from lakestream.stream.core.reader import HistoryUnavailableError

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream


PREFIX = "$LAKE.API."
EXPORT_BYTES = 512 << 10
"""Maximum size of an answer with messages; a larger message is sent alone."""
EXPORT_MSGS = 8192
MAX_SUBJECT = 4096
"""Maximum size of an imported message's subject, that of a publish."""

REFUSED_NS = 5_000_000_000
"""Time for which batches behind a refused one are refused: clients of earlier releases send no empty batch."""
MOST_REFUSED = 1024
"""Streams for which a refusal is remembered; beyond that all are forgotten."""

_NOT_CHECKED = (
    b"Nats-Msg-Id",
    b"Nats-Expected-Stream",
    b"Nats-Expected-Last-Msg-Id",
    b"Nats-Expected-Last-Sequence",
    b"Nats-Expected-Last-Subject-Sequence",
    b"Nats-Expected-Last-Subject-Sequence-Subject",
)
"""Headers that were checked when the message was first published."""


class ExportRequest(msgspec.Struct, frozen=True):
    """The body of an export request. `last_seq` 0: to the end; `start_time_ns` > 0: from there on, if that is later."""

    seq: int = 1
    last_seq: int = 0
    start_time_ns: int = 0


_EXPORT_REQUEST = JsonDecoder(ExportRequest)


class RecordRefused(Exception):
    """Raised when the stream rejects a record. `again`: it may accept it later."""

    def __init__(self, reason: str | ApiError, again: bool = False) -> None:
        super().__init__(str(reason))
        self.error = reason if isinstance(reason, ApiError) else ApiError(400, 0, reason)
        self.again = again


class TransferApi:
    """Serves imports and exports of one engine's streams."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._bus, self._clock = engine.bus, engine.clock
        self._refused: dict[str, tuple[bytes, int]] = {}
        """The import whose batch was refused last, by stream, and the time of that."""
        self._subscriptions: list[Subscribed] = [
            self._bus.subscribe(f"{PREFIX}IMPORT.*".encode(), singly(self._import)),
            self._bus.subscribe(f"{PREFIX}IMPORT1.>".encode(), singly(self._import_one)),
            self._bus.subscribe(f"{PREFIX}EXPORT.*".encode(), singly(self._export)),
        ]

    def close(self) -> None:
        """Cancel the subscriptions."""
        for subscription in self._subscriptions:
            subscription.cancel()
        self._subscriptions = []

    # ------------------------------------------------------------------ import
    def _import(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        try:
            records = list(iter_records(body))
        except LogError as error:
            self._fail(reply, ApiError(400, 0, f"the batch is damaged: {for_clients(error)}"))
            return
        self._bring(subject.rpartition(b".")[2].decode("utf-8", "replace"), records, reply)

    def _import_one(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        tokens = subject.split(b".", 7)
        if len(tokens) < 8 or not all(token.isdigit() and len(token) < 20 for token in tokens[4:7]):
            form = f"{PREFIX}IMPORT1.<stream>.<seq>.<time>.<length>.<subject>"
            self._fail(reply, ApiError(400, 0, f"the subject is not {form}"))
            return
        length = int(tokens[6])
        record = Record(int(tokens[4]), int(tokens[5]), tokens[7], body[:length], body[length:])
        self._bring(tokens[3].decode("utf-8", "replace"), [record], reply)

    def _bring(self, name: str, records: Sequence[Record], reply: bytes) -> None:
        if self._engine.opening(name, lambda: self._bring(name, records, reply)):
            return
        try:
            stream = self._engine.node.asked_here(self._engine.account, name)
        except ApiError as error:
            self._fail(reply, error)
            return
        if stream is None:
            return
        stored, now = 0, self._clock.now()
        run = reply.rpartition(b".")[0]
        refused, at = self._refused.get(name, (b"", 0))
        try:
            if not records:
                if refused == run:
                    self._refused.pop(name, None)
                self._fail(reply, ApiError(400, 0, "there is no message in the batch"))
                return
            if refused and refused == run and now - at < REFUSED_NS:
                raise RecordRefused("a batch before this one was refused", again=True)
            matching = subjects.SubjectFilters(subject.encode() for subject in stream.config.subjects)
            for record in records:
                self._take(stream, matching, record, now, reply if record is records[-1] else b"")
                stored += 1
        except RecordRefused as error:
            if len(self._refused) >= MOST_REFUSED:
                self._refused.clear()
            self._refused[name] = (run, now)
            self._fail(reply, error.error, stored=stored, again=error.again)

    def _take(self, stream: Stream, matching: subjects.SubjectFilters, record: Record, now: int, reply: bytes) -> None:
        if not stream.proposer.settled:
            raise RecordRefused(stream.failed or "the stream is busy", again=stream.failed is None)
        if record.seq != stream.pipeline.next_seq:
            raise RecordRefused(f"the next sequence is {stream.pipeline.next_seq}, not {record.seq}", again=True)
        # A subject too long for a protocol line could not be delivered.
        too_long = len(record.subject) > MAX_SUBJECT
        if too_long or not subjects.publishable(record.subject) or not matching.match(record.subject):
            shown = record.subject[:256].decode("utf-8", "replace")
            raise RecordRefused(f"subject {shown!r} is not one of the stream's ({', '.join(stream.config.subjects)})")
        if record.time_ns and not stream.pipeline.last_time <= record.time_ns <= now:
            from lakestream.stream.features.time_travel import travels  # loaded with the stream

            before = "the message before it" + (", or than the last removal" if travels(stream.config) else "")
            bound = f"earlier than {before}" if record.time_ns <= now else "in the future"
            raise RecordRefused(f"its time ({record.time_ns} ns) is {bound}")
        effect = self._effect(stream, record) if record.header or stream.proposer.guarded else None
        message = publish.IncomingMessage(record.subject, reply, record.header, record.data, time_ns=record.time_ns)
        if not stream.proposer.store([(message, effect)]) and not reply:
            raise RecordRefused(stream.failed or api_error(10167), again=stream.failed is None)

    @staticmethod
    def _effect(stream: Stream, record: Record) -> Effect:
        """Apply the stream's rules to a record. Raise RecordRefused."""
        header = record.header
        try:
            asked = publish.IncomingMessage(record.subject, b"", headers.remove(header, _NOT_CHECKED), record.data)
            outcome = stream.proposer.rules.check(stream.proposer.view, asked)
            assert isinstance(outcome, Effect)
            length = limits.accounted(stream.config, record.subject, header, record.data)
            if (refused := stream.view.room(record.subject, length, bool(outcome.rollup))) is not None:
                raise RecordRefused(refused, again=bool(stream.view.pending_msgs()))
        except ApiError as error:
            raise RecordRefused(error) from None
        return stream.proposer.effect_of(header)

    def _fail(self, reply: bytes, error: ApiError, **fields: Any) -> None:
        if reply:
            self._bus.send(Single(reply, payload=dumps({"error": error.as_dict(), **fields})))

    # ------------------------------------------------------------------ export
    def _export(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        if not reply:
            return
        try:
            name = subject.rpartition(b".")[2].decode("utf-8", "replace")
            if self._engine.opening(name, lambda: self._export(subject, reply, header, body, client), len(body)):
                return
            stream = self._engine.node.asked_here(self._engine.account, name)
            if stream is None:
                return
            request = _EXPORT_REQUEST.decode(body or b"{}")
        except ApiError as error:
            self._bus.send(Single(reply, payload=b"-" + dumps(error.as_dict())))
        except DECODE_ERRORS as error:
            self._bus.send(Single(reply, payload=b"-" + dumps(ApiError(400, 10025, str(error)).as_dict())))
        else:
            self._clock.spawn(self._answer(stream, request, reply))

    async def _answer(self, stream: Stream, request: ExportRequest, reply: bytes) -> None:
        first = max(request.seq, 1)
        try:
            if request.start_time_ns > 0:
                at = await stream.reader.first_at(request.start_time_ns)
                first = max(first, at or stream.store.last_seq + 1)
            found = await stream.reader.fetch_run(first, EXPORT_MSGS, EXPORT_BYTES)
        except Exception as error:
            self._bus.send(Single(reply, payload=b"-" + dumps(ApiError(503, 0, for_clients(error)).as_dict())))
            if isinstance(error, HistoryUnavailableError | LogError):
                return
            raise  # an unexpected error: log it, too
        self._bus.send(Single(reply, payload=b"+" + b"".join(_records(found, request.last_seq))))


def _records(found: Sequence[Record], last_seq: int) -> list[bytes]:
    """Return the encoded records that fit into one answer; reads of the lake may return more."""
    chosen: list[bytes] = []
    size = 0
    for record in found:
        if last_seq and record.seq > last_seq:
            break
        encoded = encode_record(record.seq, record.time_ns, record.subject, record.header, record.data)
        if chosen and size + len(encoded) > EXPORT_BYTES:
            break
        chosen.append(encoded)
        size += len(encoded)
    return chosen
