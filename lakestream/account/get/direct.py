"""Direct get: stored messages without a consumer and without JSON answers (ADR-31, docs/internals/api.md#direct-get).

Belongs here: the subscriptions of `$JS.API.DIRECT.GET.`, the hot path of a last-by-subject get, and the status of
invalid requests. Runs of several messages are in batch.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from lakestream.account.get import query
from lakestream.account.get.batch import PIECE_BYTES, GetRun, MessageHeaders, piece_size, status, unreadable
from lakestream.account.get.query import MsgGetRequest
from lakestream.log.format.errors import LogError
from lakestream.log.format.record import Record
from lakestream.ports import (
    Bus,
    ClientInfo,
    ListedMessages,
    Messages,
    PastUnavailableError,
    Share,
    Single,
    Subscribed,
    Take,
    singly,
)
from lakestream.protocol import headers
from lakestream.protocol.api.json_syntax import JsonError, end_of_value, next_value
from lakestream.protocol.api.jsonio import parse
from lakestream.protocol.api.request import SERVERS_QUEUE, level_refused, prefixes
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.protocol.gotime import time_ns
from lakestream.protocol.publishes import WIDTH, Publishes
from lakestream.protocol.subjects import Steps
from lakestream.stream.core.config import LINEARIZABLE
from lakestream.stream.core.reader import HistoryUnavailableError

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream
    from lakestream.stream.features.time_travel import Past, PastMessages


AT_ONCE: Final = 1024
"""Maximum number of direct gets of one client that are answered at once (5 ms), before others get their turn. Clients
with hundreds in flight get 30 % fewer answers with 512."""

MAX_RESULTS: Final = 1024
"""Maximum number of subjects in the answer of one multi_last request; with more it fails with 413."""

MAX_IN_LAKE: Final = 10_000
"""Maximum number of direct gets of one stream that wait for the lake; further ones fail with 429."""

MAX_IN_PAST: Final = 64
"""Maximum number of these that read the past; further ones fail with 429. Each may hold 1024 subjects' messages."""

MAX_SENDING: Final = 1024
"""Maximum number of batches of one stream that are being sent; further ones fail with 429. Each holds the sequences of
up to 1,024 messages while its client does not read."""

MAX_SEARCHES: Final = 256
"""Maximum number of multi_last requests of one stream that wait for a later turn of the event loop, or for a search in
steps; further ones fail with 429."""

SEARCH_NS: Final = 2_000_000
"""Time that a multi_last request may take at once (2 ms); what is left is done in later turns."""

SENT_AT_ONCE: Final = 100
"""Maximum number of messages of a multi_last request that are sent in the turn in which it was searched; the answer of
a larger one begins in a later turn."""

NOT_FOUND: Final = status(404, b"Message Not Found")
NO_RESULTS: Final = status(404, b"No Results")
EMPTY: Final = status(408, b"Empty Request")
MALFORMED: Final = status(408, b"Malformed Request")
BAD: Final = status(408, b"Bad Request")
INTERNAL: Final = status(500, b"Internal Server Error")
LEVEL: Final = status(412, b"Required Api Level")
TOO_MANY: Final = status(413, b"Too Many Results")
BUSY: Final = status(429, b"Too Many Requests")
NO_LEADER: Final = status(503, b"No Leader")
"""A linearizable get while no leader is known, or it cannot reach a majority; clients take it for no responders."""
A_MIRROR: Final = status(412, b"Mirrors Are Not Linearizable")

CONSISTENCY: Final = b"Nats-Consistency"
"""Header of a request that may not be answered from a replica that lags: `linearizable`."""
MAX_CONFIRMING: Final = 10_000
"""Maximum number of direct gets of one stream that wait for the leader; further ones fail with 429."""

_STAR, _GREATER = b"*>"
"""Wildcards as numbers, which are looked for in a fifth of the time of bytes."""
_SEQ_DIGITS = 19
"""A sequence with fewer digits is no number that JSON requests may not have."""
_REQUEST = JsonDecoder(MsgGetRequest)


class DirectGet:
    """The direct gets of an account: one `Gets` for each stream that allows them.

    Args:
        max_bytes: maximum size of a batch whose request has no limit.
        find: returns the account's stream of that name on this node.
        share: the time that multi_last requests may take of a turn, together with other requests of clients.
    """

    def __init__(
        self, bus: Bus, domain: str, max_bytes: int, find: Callable[[str], Stream | None], share: Share
    ) -> None:
        self._bus, self._prefixes, self._max_bytes, self._find = bus, prefixes(domain), max_bytes, find
        self._share = share
        self._attached: dict[str, list[Subscribed]] = {}

    def attach(self, stream: Stream) -> None:
        """Serve direct gets from `stream` until `detach`."""
        self.detach(stream.name)
        self.attach_as(stream, stream.name)

    def attach_as(self, stream: Stream, name: str) -> None:
        """Serve direct gets of stream `name`, too, of which this one is a mirror."""
        gets = Gets(stream, self._max_bytes, self._share, behind=lambda: self._behind(stream))
        subscriptions = self._attached.setdefault(stream.name, [])
        for prefix in self._prefixes:
            base = b"%bDIRECT.GET.%b" % (prefix, name.encode())
            subscriptions.append(self._bus.subscribe(base, singly(gets.by_request), SERVERS_QUEUE))
            subscriptions.append(
                self._bus.subscribe(base + b".>", gets.by_subject(len(base) + 1), SERVERS_QUEUE, runs=True)
            )

    def _behind(self, mirror: Stream) -> Stream | None:
        """Return the origin of a mirror, if this node can read from it."""
        name = mirror.mirroring.reads_from
        origin = self._find(name) if name else None
        known = origin is not None and (origin.leading or name in self._attached)
        return origin if known else None

    def detach(self, name: str) -> None:
        """Cancel the subscriptions; the subjects have no responders then."""
        for subscription in self._attached.pop(name, []):
            subscription.cancel()


def read_request(payload: bytes) -> MsgGetRequest:
    """Decode a request body, ignoring unknown fields. Raise JsonError."""
    try:
        asked = _REQUEST.decode(payload)
    except DECODE_ERRORS:
        asked = None
    # The exact parser reads what the fast one cannot: times, numbers out of range (Invariant: 2^64 is rejected, not
    # wrapped), names in another case.
    if asked is not None and asked.start_time is None and asked.up_to_time is None:
        named = asked.seq or asked.last_by_subj or asked.next_by_subj or asked.multi_last
        if named and not (asked.seq | asked.up_to_seq) >> 64 and not (asked.batch | asked.max_bytes) >> 31:
            return asked
    if next_value(payload, end_of_value(payload, next_value(payload, 0))) < len(payload):
        raise JsonError("invalid character after top-level value")  # other requests allow more than one value
    return parse(payload, MsgGetRequest, "JSApiMsgGetRequest", strict=False)


class Gets:
    """Direct gets from one stream.

    Args:
        max_bytes: maximum size of a batch whose request has no limit.
        share: see `DirectGet`.
        shown: the name in the answers, that of `stream` by default.
        behind: returns the stream to read from while this one has never held a message, or None.
    """

    def __init__(
        self,
        stream: Stream,
        max_bytes: int,
        share: Share,
        shown: str = "",
        behind: Callable[[], Stream | None] | None = None,
    ) -> None:
        self._stream = stream
        self._max_bytes, self._share = max_bytes, share
        self._headers = MessageHeaders(shown or stream.name)
        self._behind = behind
        self._in_lake = self._in_past = self._sending = self._waiting = self._confirming = 0

    # ------------------------------------------------------------------ the newest message of a subject
    def by_subject(self, start: int) -> Take:
        """Return what takes requests on `….<stream>.<subject>`, whose subject begins at byte `start`: the hot path."""
        stream = self._stream
        store, send = stream.store, stream.bus.send
        last, read, block = store.subjects.last, store.read, self._headers.single
        mirroring, pipeline, confirming = stream.mirroring, stream.pipeline, stream.confirming
        take_run = self._by_subjects(start)

        def take(messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
            if type(messages) is Single:
                one = messages
            elif type(messages) is Publishes and messages.offer(take_run, begin, min(end, begin + AT_ONCE)):
                return min(end, begin + AT_ONCE)
            else:
                one = messages.message(begin)
            subject, reply = one.subject, one.reply
            header, payload = one.header, one.payload
            plain = not header and not payload and reply and not (mirroring.copying and len(pipeline))
            if plain and not confirming.linearizable and _STAR not in subject and _GREATER not in subject:
                seq = last(subject[start:])
                if seq:
                    try:
                        record = read(seq)
                    except LogError:
                        record = None  # the general path gets the error again, and answers with it
                    if record is not None:
                        send(Single(reply, b"", block(record), record.data))
                        return begin + 1
            self._consistently(header, reply, lambda: self._answer_last(subject[start:], reply, header, payload))
            return begin + 1

        return take

    def _by_subjects(self, start: int) -> Callable[[Publishes, int, int], bool]:
        """Return the same for runs of requests. It takes those without a body and without wildcards whose messages the
        log has, and returns False for others."""
        stream = self._stream
        store, last, block = stream.store, stream.store.subjects.last, self._headers.single

        def get_run(run: Publishes, begin: int, end: int) -> bool:
            if stream.confirming.linearizable or (stream.mirroring.copying and len(stream.pipeline)):
                return False
            places = run.places[begin * WIDTH : end * WIDTH]
            if run.heads or any(places[3::WIDTH]) or not all(places[1::WIDTH]):
                return False
            subjects = run.subjects[begin:end]
            names = b"".join(subjects)  # one look, not one for each request
            if _STAR in names or _GREATER in names:
                return False
            seqs = [last(subject[start:]) for subject in subjects]
            wanted = sorted(set(seqs))
            if not wanted[0]:
                return False
            try:
                records = store.read_many(wanted, PIECE_BYTES)
            except LogError:
                return False
            if len(records) < len(wanted):
                return False
            found = {record.seq: (block(record), record.data) for record in records}
            answers = [
                Single(reply, b"", *found[seq]) for reply, seq in zip(run.replies(begin, end), seqs, strict=True)
            ]
            if len(seqs) > len(wanted) and sum([len(each.payload) for each in answers]) > PIECE_BYTES:
                return False  # a large message, requested again and again, would fill the memory
            stream.bus.send(ListedMessages(answers))
            return True

        return get_run

    def _answer_last(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Answer off the hot path: a request with a body or wildcard, or a message that is not in the log."""
        if (other := self._other()) is not None:
            other._answer_last(subject, reply, header, payload)
            return
        if level_refused(header):
            self._say(reply, LEVEL)
            return
        asked = MsgGetRequest()
        if payload:
            try:
                asked = read_request(payload)
            except JsonError:
                self._say(reply, MALFORMED)
                return
        if not asked.names_nothing or asked.batch or asked.multi_last or asked.up_to_seq or asked.up_to_time:
            self._say(reply, BAD)
            return
        self._answer_newest(reply, subject, asked.no_hdr)

    def _answer_newest(self, reply: bytes, subject: bytes, bare: bool) -> None:
        """Send the newest message of a subject or filter.

        In a copy, what has come from the origin is stored first: a client that has put a value through a mirror has the
        ack of the origin, and must not get an older value.
        """

        def answer() -> None:
            self._answer_one(reply, query.last_of(self._stream.store, subject), bare)

        if self._stream.mirroring.copying:
            self._stream.pipeline.when_stored(subject, answer)
        else:
            answer()

    def _other(self) -> Gets | None:
        """Return the gets of the origin while this mirror has no message yet; else None."""
        behind = self._behind() if self._behind is not None and not self._stream.store.last_seq else None
        return Gets(behind, self._max_bytes, self._share, self._stream.name) if behind is not None else None

    # ------------------------------------------------------------------ consistency
    def _consistently(self, header: bytes, reply: bytes, answer: Callable[[], None]) -> None:
        """Answer at once, or a linearizable get once this replica has everything that was acked before it came."""
        wanted, stream = headers.get(header, CONSISTENCY) if header else None, self._stream
        if wanted is None and not stream.confirming.linearizable:
            self._answered(reply, answer)
        elif wanted not in (None, LINEARIZABLE):
            self._say(reply, BAD)
        elif stream.config.mirror is not None:
            self._say(reply, A_MIRROR)
        elif self._confirming >= MAX_CONFIRMING:
            self._say(reply, BUSY)
        else:
            self._confirming += 1

            def confirmed(known: bool) -> None:
                self._confirming -= 1
                if known:
                    self._answered(reply, answer)
                else:
                    self._say(reply, NO_LEADER)

            stream.confirming.caught_up(confirmed)

    def _answered(self, reply: bytes, answer: Callable[[], None]) -> None:
        try:
            answer()
        except Exception:  # answer in any case; the bus logs the exception
            self._say(reply, INTERNAL)
            raise

    # ------------------------------------------------------------------ requests with a body
    def by_request(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        """Answer a request to `….<stream>`. Most clients ask for one message by its sequence: that takes no JSON."""
        seq, stream = payload[7:-1] if payload.startswith(b'{"seq":') and payload.endswith(b"}") else b"", self._stream
        plain = seq.isdigit() and not seq.startswith(b"0") and len(seq) < _SEQ_DIGITS and not header
        if plain and stream.store.last_seq and not stream.confirming.linearizable:
            self._answer_one(reply, int(seq), bare=False)
            return
        self._consistently(header, reply, lambda: self._requested(subject, reply, header, payload, client))

    def _requested(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        if (other := self._other()) is not None:
            other.by_request(subject, reply, header, payload, client)
            return
        if level_refused(header):
            self._say(reply, LEVEL)
            return
        if not payload:
            self._say(reply, EMPTY)
            return
        try:
            asked = read_request(payload)
        except JsonError:
            self._say(reply, MALFORMED)
            return
        problem = _problem(asked)
        if problem:
            self._say(reply, problem)
        elif asked.multi_last:
            self._multi(reply, asked)
        elif asked.start_time is not None:
            self._at_time(reply, asked.start_time, lambda seq: self._from(reply, asked, seq))
        else:
            self._from(reply, asked, asked.seq)

    def _from(self, reply: bytes, asked: MsgGetRequest, start: int) -> None:
        """Answer with one message, or a batch, from `start` on; 0: the start time is after the last message."""
        store = self._stream.store
        beyond = not start and asked.start_time is not None
        if beyond and asked.batch >= 0:
            self._say(reply, NOT_FOUND)
        elif asked.batch:
            pattern = asked.next_by_subj.encode()
            pending = 0 if beyond else query.count_from(store, pattern, start)
            if not pending and asked.batch > 0:
                self._say(reply, NOT_FOUND)
                return
            self._begin(
                GetRun(
                    self._stream,
                    self._headers,
                    reply,
                    query.pieces_from(store, pattern, start, piece_size(asked.batch)),
                    pending,
                    asked.batch,
                    asked.max_bytes or self._max_bytes,
                    self._sent,
                    bare=asked.no_hdr,
                )
            )
        elif asked.last_by_subj:
            self._answer_newest(reply, asked.last_by_subj.encode(), asked.no_hdr)
        elif asked.next_by_subj:
            self._answer_one(reply, query.next_of(store, asked.next_by_subj.encode(), start), asked.no_hdr)
        else:
            self._answer_one(reply, start, asked.no_hdr)

    def _multi(self, reply: bytes, asked: MsgGetRequest) -> None:
        """Answer with the newest messages of several subjects, in a later turn if this one has no time left."""
        if not self._share.is_over():
            self._multi_now(reply, asked)
        elif self._waiting >= MAX_SEARCHES:
            self._say(reply, BUSY)
        else:
            self._waiting += 1
            self._share.wait(lambda: self._multi_later(reply, asked))

    def _multi_later(self, reply: bytes, asked: MsgGetRequest) -> None:
        self._waiting -= 1
        if self._stream.closed or not self._stream.bus.interest(reply):
            return
        try:
            self._multi_now(reply, asked)
        except Exception:  # answer in any case
            self._say(reply, INTERNAL)
            raise

    def _multi_now(self, reply: bytes, asked: MsgGetRequest) -> None:
        store = self._stream.store
        if self._stream.past is not None and (asked.up_to_seq or asked.up_to_time is not None):
            self._later(reply, self._multi_of_the_past, reply, asked, self._stream.past, past=True)
        elif asked.up_to_time is not None:
            answer = lambda seq: self._multi_through(reply, asked, query.through_time(store, seq))  # noqa: E731
            self._at_time(reply, asked.up_to_time, answer)
        elif asked.up_to_seq > store.last_seq and self._stream.config.storage != "memory":
            self._say(reply, NO_RESULTS)  # as in nats-server, whose memory store answers with what it has
        else:
            self._multi_through(reply, asked, asked.up_to_seq or store.last_seq)

    def _multi_through(self, reply: bytes, asked: MsgGetRequest, through: int) -> None:
        """Send the last message with sequence ≤ `through` of every requested subject."""
        patterns = [pattern.encode() for pattern in asked.multi_last]
        store, until = self._stream.store, self._stream.clock.steady() + SEARCH_NS
        steps = query.multi_last(store, patterns, through, MAX_RESULTS)
        try:
            while self._stream.clock.steady() <= until:
                next(steps)
        except StopIteration as end:
            self._send_multi(reply, asked, end.value, through)
            return
        if self._waiting >= MAX_SEARCHES:
            self._say(reply, BUSY)
            return
        self._waiting += 1
        self._share.wait(lambda: self._share.run_in_steps(self._search_on(reply, asked, through, steps)))

    def _search_on(
        self, reply: bytes, asked: MsgGetRequest, through: int, steps: Steps[list[int] | None]
    ) -> Iterator[None]:
        """Do the steps that are left of a search, and answer; stop if the client has gone."""
        try:
            while self._stream.bus.interest(reply) and not self._stream.closed:
                try:
                    next(steps)
                except StopIteration as end:
                    self._send_multi(reply, asked, end.value, through)
                    return
                yield
        except Exception as error:
            self._say(reply, unreadable(error))
            if not isinstance(error, LogError):
                raise  # an unexpected error: log it, too
        finally:
            self._waiting -= 1

    async def _multi_of_the_past(self, reply: bytes, asked: MsgGetRequest, past: Past) -> None:
        """Send the last message of every requested subject as of the given point, including ones deleted since."""
        patterns = [pattern.encode() for pattern in asked.multi_last]
        before_ns = time_ns(asked.up_to_time) if asked.up_to_time is not None else 0
        if asked.up_to_seq > self._stream.store.last_seq:
            self._say(reply, NO_RESULTS)
            return
        found = await past.find(patterns, asked.up_to_seq, before_ns, MAX_RESULTS)
        if found is None:
            self._say(reply, TOO_MANY)
        else:
            self._send_multi(reply, asked, found.seqs, found.through, found)

    def _send_multi(
        self,
        reply: bytes,
        asked: MsgGetRequest,
        found: Sequence[int] | None,
        through: int,
        past: PastMessages | None = None,
    ) -> None:
        """Send the messages with these sequences; None: there are too many."""
        if not found:
            self._say(reply, TOO_MANY if found is None else NO_RESULTS)
            return
        wanted = [seq for seq in found if seq >= asked.seq]
        limit, max_bytes = asked.batch if asked.batch > 0 else MAX_RESULTS, asked.max_bytes or self._max_bytes
        pieces, count, headers = iter([wanted]), len(wanted), self._headers
        run = GetRun(
            self._stream, headers, reply, pieces, count, limit, max_bytes, self._sent, through=through, past=past
        )
        self._begin(run, soon=count > SENT_AT_ONCE)

    def _begin(self, run: GetRun, soon: bool = False) -> None:
        """Begin to send a batch, in a later turn of the event loop if it is to be `soon`, or refuse it."""
        if self._sending >= MAX_SENDING:
            self._say(run.reply, BUSY)
            return
        self._sending += 1
        if soon:
            self._stream.bus.when_writable(run.reply, run.start)
        else:
            run.start()

    def _sent(self) -> None:
        self._sending -= 1

    # ------------------------------------------------------------------ requests that wait for the lake
    def _later(
        self, reply: bytes, answer: Callable[..., Awaitable[None]], *arguments: object, past: bool = False
    ) -> None:
        """Run `answer(*arguments)`, which reads the lake, or send 429 if too many wait. `past`: it reads the past."""
        if self._in_lake >= MAX_IN_LAKE or (past and self._in_past >= MAX_IN_PAST):
            self._say(reply, BUSY)
            return

        async def run() -> None:
            try:
                await answer(*arguments)
            except Exception as error:
                self._say(reply, unreadable(error))
                if not isinstance(error, HistoryUnavailableError | PastUnavailableError | LogError):
                    raise  # an unexpected error: log it, too
            finally:
                self._in_lake -= 1
                self._in_past -= past

        self._in_lake += 1
        self._in_past += past
        self._stream.clock.spawn(run())

    # ------------------------------------------------------------------ one message
    def _answer_one(self, reply: bytes, seq: int, bare: bool) -> None:
        """Send the message with sequence `seq` from the log or the lake."""
        stream = self._stream
        try:
            record = stream.store.read(seq) if seq else None
        except LogError as error:
            self._say(reply, unreadable(error))
            return
        if record is None and seq in stream.store.live:
            self._later(reply, self._answer_from_lake, reply, seq, bare)
            return
        self._send(reply, record, bare)

    async def _answer_from_lake(self, reply: bytes, seq: int, bare: bool) -> None:
        self._send(reply, await self._stream.reader.fetch(seq), bare)

    def _send(self, reply: bytes, record: Record | None, bare: bool) -> None:
        if record is None:
            self._say(reply, NOT_FOUND)
        else:
            self._publish(reply, b"" if bare else self._headers.single(record), record.data)

    def _say(self, reply: bytes, block: bytes) -> None:
        self._publish(reply, block, b"")

    def _publish(self, reply: bytes, block: bytes, data: bytes) -> None:
        if reply:
            self._stream.bus.send(Single(reply, header=block, payload=data))

    # ------------------------------------------------------------------ times
    def _at_time(self, reply: bytes, text: str, then: Callable[[int], None]) -> None:
        """Call `then` with the first live sequence stored at that time or later, 0 when there is none."""
        at = time_ns(text)
        seq = self._stream.store.first_at(at)
        if seq is None:
            self._later(reply, self._at_time_in_lake, reply, at, then)
        else:
            then(seq)

    async def _at_time_in_lake(self, reply: bytes, at_ns: int, then: Callable[[int], None]) -> None:
        then(await self._stream.reader.first_at(at_ns))


def _problem(asked: MsgGetRequest) -> bytes:
    """Return the status for a contradictory request, or b"" for a valid one."""
    if asked.names_nothing and not asked.multi_last:
        return EMPTY
    contradictory = (
        asked.clashes
        or (asked.up_to_seq and asked.up_to_time)
        or (asked.multi_last and (asked.last_by_subj or asked.next_by_subj))
        or (asked.batch > 0 and asked.last_by_subj)
    )
    return BAD if contradictory else b""
