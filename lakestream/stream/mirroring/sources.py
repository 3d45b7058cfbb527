"""Sources: messages of other streams among a stream's own.

Belongs here: storing what a source's session brings, under a sequence of the stream's own and with its origin in the
header `Nats-Stream-Source` (docs/internals/streams.md#mirrors-and-sources), and the positions in origins that follow
from that header.

A position is never stored by itself: it is an effect of the message that was stored with it, on every replica and at
recovery, so that a message of an origin is stored once, whatever stops in between.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from lakestream.log.format.record import Record
from lakestream.ports import Clock
from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.gotime import format_time
from lakestream.stream.core.batch import Run
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import STREAM_SOURCE, Effect, EffectKey, Given
from lakestream.stream.core.proposer import NOT_NOW, Proposer
from lakestream.stream.core.publish import IncomingMessage, NotHere
from lakestream.stream.core.reader import Reader
from lakestream.stream.mirroring.origin import Origin, OriginStart, stored_header
from lakestream.stream.mirroring.session import OriginSession

MAX_SOURCES = 10_000
"""Maximum number of sources of a stream whose positions are kept; above it those without messages for the longest time
are dropped. A mirror keeps the positions that its origin's messages name."""
MAX_DIGITS = 18
"""Maximum length of a sequence in the header; a longer one is ignored."""

SOURCE: EffectKey[bytes] = EffectKey("source")
"""Value of the header `Nats-Stream-Source`, from which the position follows."""

Merge = Callable[[Record | None, IncomingMessage, str, bytes], None]
"""Function that gives a counter's message the value that it has here: (last message of its subject, message, origin's
name, subject in the origin). Raises ApiError."""

_LINE = b"\r\n" + STREAM_SOURCE + b":"
_POSITION = re.compile(_LINE + rb"[ \t]*(([^ \r]+) \d+((?: [^ \r]*){2})[^\r]*?)[ \t]*\r\n")
"""Header line of a position: its value, and of that the name and the filters, which distinguish sources."""


class SourcePosition(msgspec.Struct, frozen=True):
    """The last message that came from a source: its sequence in the origin, and the origin's identity.

    Before the first one (`seq` 0) `since_ns` is the time of the oldest message wanted; 0: as configured.
    """

    seq: int
    identity: str = ""
    since_ns: int = 0


class Positions:
    """The positions of all sources that a stream has or had, by `Origin.key`."""

    def __init__(self) -> None:
        self._known: dict[str, SourcePosition] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> SourcePosition | None:
        """Return the position of a source, None if it is not known."""
        return self._known.get(key)

    def note(self, value: bytes) -> None:
        """Take the position from the `Nats-Stream-Source` header of a stored message."""
        # <index name> <sequence> <filters> <destinations> <subject there> [<identity>]
        parts = value.decode("utf-8", "replace").split(" ")
        if len(parts) < 5 or not parts[1].isascii() or not parts[1].isdigit() or len(parts[1]) > MAX_DIGITS:
            return
        key, identity = f"{parts[0]} {parts[2]} {parts[3]}", parts[5] if len(parts) > 5 else ""
        self._known.pop(key, None)
        self._known[key] = SourcePosition(int(parts[1]), identity)
        if len(self._known) > MAX_SOURCES:
            del self._known[next(iter(self._known))]

    def added(self, keys: Iterable[str], since_ns: int) -> None:
        """Begin sources without a position at `since_ns`, the time of the stream's last message.

        For a stream whose first messages are gone: as in nats-server it is unknown then whether it had the source.
        """
        for key in keys:
            self._known.setdefault(key, SourcePosition(0, "", since_ns))

    def dump(self) -> list[tuple[str, int, str, int]]:
        """Return the positions for the checkpoint."""
        return [(key, at.seq, at.identity, at.since_ns) for key, at in self._known.items()]

    def load(self, dumped: list[tuple[str, int, str, int]]) -> None:
        """Take the positions of a checkpoint."""
        self._known = {key: SourcePosition(seq, identity, since_ns) for key, seq, identity, since_ns in dumped}


def with_source(header: bytes, value: bytes) -> bytes:
    """Return a message's header block with this `Nats-Stream-Source` instead of that of an earlier stream."""
    if not header:
        return b"NATS/1.0%b %b\r\n\r\n" % (_LINE, value)
    if _LINE in header:
        header = headers.remove(header, [STREAM_SOURCE])
    return headers.append(header, [(STREAM_SOURCE, value)])


def positions_in(run: Run) -> list[Effect]:
    """Return the effects of copied messages that their origin has from other streams: the last of each."""
    found: dict[bytes, Effect] = {}
    begin = behind = b"\0"
    for seq, header in zip(reversed(run.seqs), reversed(run.headers), strict=True):
        if header.startswith(begin) and header.startswith(behind, header.find(b" ", len(begin))):
            continue  # mostly many of the same source follow each other
        if header and (line := _POSITION.search(header)):
            begin, behind = header[: line.end(2) + 1], line[3] + b" "
            if line[2] + line[3] not in found:
                effect = found[line[2] + line[3]] = _at(line[1])
                effect.seq = seq
    return list(found.values())[::-1]


def read_source(effect: Effect, header: bytes, given: Given, config: StreamConfig) -> None:
    """Take the header into the effect of a stored message."""
    SOURCE.put(effect, given[STREAM_SOURCE])


def refuse_source(view: object, message: IncomingMessage, given: Given) -> None:
    """Refuse a publish with the header: only sources set it."""
    raise api_error(10227)


def _at(where: bytes) -> Effect:
    """Return the effect of a message whose only effect is its position."""
    effect = Effect(0)
    SOURCE.put(effect, where)
    return effect


class Source:
    """One source of a stream, on the stream's leader: the `Taker` of a session."""

    session: OriginSession
    """Reads the origin for it; set before it begins."""

    def __init__(
        self, origin: Origin, positions: Positions, merge: Merge, proposer: Proposer, reader: Reader, clock: Clock
    ) -> None:
        self._origin, self._merge, self._proposer = origin, merge, proposer
        self._reader, self._clock = reader, clock
        self.source = origin.source
        known = positions.get(self._origin.key) or SourcePosition(0)
        self.seq, self._identity, self._since_ns = known.seq, known.identity, known.since_ns
        """The last message taken, in flight or stored, and the origin's identity."""
        self._before, self._behind = f"{self._origin.index} ".encode(), f" {self._origin.header_filters} ".encode()
        """Text before and behind the sequence in the header."""
        self._fetched: Record | None = None
        """A message of the lake that a counter goes on from."""
        self._fetching = False

    def start(self) -> OriginStart:
        if self.seq:
            return OriginStart(self.seq + 1, identity=self._identity)
        if self._since_ns:
            return OriginStart(time=format_time(self._since_ns))
        return OriginStart(self.source.opt_start_seq, self.source.opt_start_time, self._identity)

    def opened(self, before: int, identity: str, pending: int) -> bool:
        if identity and self._identity and identity != self._identity:
            self.renewed()
            return False
        self._identity = identity or self._identity
        return True

    def renewed(self) -> None:
        self.seq, self._identity, self._since_ns = 0, "", 0

    def take(self, run: Run) -> tuple[int, ApiError | None]:
        fresh, proposer = run.after(self.seq), self._proposer
        known, count = len(run) - len(fresh), len(fresh)
        if fresh.marked or proposer.looks_at_each or proposer.view.config.allow_msg_counter:
            for at in range(count):
                try:
                    refused = self._take_one(fresh[at : at + 1])
                except ApiError as error:  # the duplicate window is full
                    refused = error
                if refused is not None:
                    return known + at, refused
                self.seq = fresh.seqs[at]
        elif count:  # else they are stored
            identity = b" " + self._identity.encode() if self._identity else b""
            places = [
                b"%b%d%b%b%b" % (self._before, seq, self._behind, subject, identity)
                for seq, subject in zip(fresh.seqs, fresh.subjects, strict=True)
            ]
            blocks = [
                with_source(header, place) if header else b"NATS/1.0%b %b\r\n\r\n" % (_LINE, place)  # without a call
                for header, place in zip(fresh.headers, places, strict=True)
            ]
            sourced = msgspec.structs.replace(self._origin.renamed_run(fresh), headers=blocks)
            # The last message determines the position. Without other headers of the protocol it is the only effect.
            taken, refused = proposer.copy(sourced, [_at(places[-1])], own=True)
            if not taken:
                return known, refused
            self.seq = fresh.seqs[-1]
        return len(run), None

    def _take_one(self, run: Run) -> ApiError | None:
        """Store a message; return why not."""
        proposer, view, (subject,) = self._proposer, self._proposer.view, run.subjects
        if proposer.moving:
            return NOT_NOW
        where = b"%b%d%b%b" % (self._before, run.seqs[0], self._behind, subject)
        if self._identity:
            where += b" " + self._identity.encode()
        header = with_source(stored_header(run.headers[0]), where)
        effect = proposer.effect_of(header) if run.marked else _at(where)
        if proposer.duplicate_of(effect):
            return None
        message = IncomingMessage(proposer.renamed(self._origin.renamed(subject)), b"", header, run.payloads[0])
        if view.config.allow_msg_counter:
            if view.unsettled(message.subject, header):
                return NOT_NOW
            try:
                self._merge(self._last(message), message, self._origin.source.name, subject)
            except NotHere as missing:
                self._fetch(missing.seq)
                return NOT_NOW
        headers, payloads = [message.header], [message.payload]
        sourced = msgspec.structs.replace(self._origin.renamed_run(run), headers=headers, payloads=payloads)
        return proposer.copy(sourced, [effect], own=True)[1]

    def _last(self, message: IncomingMessage) -> Record | None:
        """Return the last message of its subject. Raise NotHere if only the lake has it."""
        seq = self._proposer.view.last_of(message.subject)
        if self._fetched is not None and self._fetched.seq == seq:
            return self._fetched
        return self._proposer.view.record(seq) if seq else None

    def _fetch(self, seq: int) -> None:
        """Read a message that only the lake has."""
        if self._fetching:
            return
        self._fetching = True

        async def fetch() -> None:
            try:
                self._fetched = await self._reader.fetch(seq)
            finally:
                self._fetching = False

        self._clock.spawn(fetch())
