"""The leaf node protocol.

Belongs here: parsing what the other side of a leaf connection sends, frames, and the two names of this server's own
subjects. No sockets and no decisions.

A leaf sends everything that a client sends, with verbs of its own (`LS+`, `LS-`, `LMSG`, `HMSG`), and may do two things
that a client may not: a message may ask for its acks (`$JS.ACK.…`), and it may be shown under another subject than the
one that it is sent to, given behind an `@` in its reply. Delivery to mirrors needs both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from lakestream.protocol.commands import Ping, Pong, Single
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.delivered import ErrorLine
from lakestream.protocol.frames import LEAF_HMSG, LEAF_MSG

MAX_LINE = 64 * 1024
"""Maximum length of a line in bytes: nats-server's INFO can be long."""

MAX_PAYLOAD = 64 << 20
"""Maximum size of a message in bytes (64 MiB): no nats-server accepts a larger one from its own clients."""

ACK, FLOW, SNAPSHOT = b"$JS.ACK.", b"$JS.FC.", b"$JS.SNAPSHOT."
_STALLED = b"Nats-Consumer-Stalled: " + FLOW
_CONTROL = b"NATS/1.0 100"
_RESTORE = b'{"type":"io.nats.jetstream.api.v1.stream_restore_response"'
_CHUNKS = b'"deliver_subject":"' + SNAPSHOT

_MESSAGE = re.compile(rb"([LH])MSG ([^ \r\n]+) ((?:[^\r\n]* )?)([0-9]{1,9})\r\n", re.IGNORECASE).match
_PUB = re.compile(rb"H?PUB [^\r\n]* ([0-9]{1,9})\r\n", re.IGNORECASE).match
UNKNOWN = "Unknown Protocol Operation"
TOO_LARGE = "Maximum Payload Violation"
_JSON = msgspec.json.Decoder(dict[str, Any])


class LeafWireError(Exception):
    """Raised for bytes that no server sends on a leaf connection; the text shows their beginning.

    Attributes:
        error: the text of -ERR for the other side; "": it is told nothing.
    """

    def __init__(self, text: str, error: str = "") -> None:
        super().__init__(text)
        self.error = error


class LeafMessage(msgspec.Struct, gc=False):
    """LMSG or HMSG: a message, and the queue groups of which one member each is to get it; subscribers in none always
    do."""

    message: Single
    queues: tuple[bytes, ...] = ()


class InterestBegins(msgspec.Struct, gc=False):
    """LS+: interest in `subject`, or (`queue`) of `count` members of a group."""

    subject: bytes
    queue: bytes = b""
    count: int = 1


class InterestEnds(msgspec.Struct, gc=False):
    """LS-: the end of that interest."""

    subject: bytes
    queue: bytes = b""


class LeafInfo(msgspec.Struct, frozen=True):
    """INFO, its JSON object decoded."""

    fields: dict[str, Any]


class LeafConnect(msgspec.Struct, frozen=True):
    """CONNECT, its JSON object decoded."""

    fields: dict[str, Any]


Event = LeafMessage | InterestBegins | InterestEnds | LeafInfo | LeafConnect | ErrorLine | Ping | Pong

_PING, _PONG = Ping(), Pong()


class LeafParser:
    """The parser of one leaf connection. `max_payload`: bytes of the largest message that is accepted."""

    __slots__ = ("_held", "_need", "max_payload")

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        self._held = bytearray()
        self._need = 0
        self.max_payload = max_payload

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that `data` completes, in order. Raises LeafWireError; the connection cannot go on then."""
        held = self._held
        if held:
            held += data
            if len(held) < self._need:
                return []
            data = bytes(held)
            self._held = bytearray()
        self._need = 0
        events: list[Event] = []
        position, length = 0, len(data)
        while position < length:
            end = (
                self._message(data, position, events)
                if data[position] in b"LHlh"
                else self._line(data, position, events)
            )
            if end < 0:
                self._held += data[position:]
                break
            position = end
        return events

    def _message(self, data: bytes, position: int, events: list[Event]) -> int:
        """Return the position behind a message (or another line with the same first letter), -1: incomplete."""
        found = _MESSAGE(data, position)
        if found is None:
            return self._line(data, position, events)
        total = int(found[4])
        if total > self.max_payload:
            raise LeafWireError(f"message of {total} bytes", TOO_LARGE)
        words = found[3].split()
        size = 0
        if found[1] in b"Hh":
            if not words or not words[-1].isdigit() or int(words[-1]) > total:
                raise LeafWireError(_shown(found[0]))
            size = int(words.pop())
        start = found.end()
        end = start + total
        if len(data) < end + 2:
            self._need = end + 2 - position
            return -1
        if data[end : end + 2] != b"\r\n":
            raise LeafWireError(_shown(data[end:]), UNKNOWN)
        # `<reply>`; or for queue groups `+ <reply> <groups>` and `| <groups>`.
        reply, queues = b"", ()
        if words:
            if words[0] == b"+":
                reply, queues = words[1] if len(words) > 1 else b"", tuple(words[2:])
            elif words[0] == b"|":
                queues = tuple(words[1:])
            elif len(words) == 1:
                reply = words[0]
            else:
                raise LeafWireError(_shown(found[0]))
        message = Single(found[2], reply, data[start : start + size], data[start + size : end])
        events.append(LeafMessage(message, queues))
        return end + 2

    def _published(self, data: bytes, position: int) -> int:
        """Return the position behind a client's message, which nobody gets; -1: incomplete."""
        found = _PUB(data, position)
        end = found.end() + int(found[1]) + 2 if found is not None else -1
        if found is None or int(found[1]) > self.max_payload:
            raise LeafWireError(_shown(data[position:]))
        if len(data) < end:
            self._need = end - position
            return -1
        return end

    def _line(self, data: bytes, position: int, events: list[Event]) -> int:
        stop = data.find(b"\n", position)
        if stop < 0:
            if len(data) - position > MAX_LINE:
                raise LeafWireError(_shown(data[position:]))
            return -1
        line = data[position:stop].strip()
        verb, _, rest = line.partition(b" ")
        match verb.upper():
            case b"LS+" | b"LS-":
                if (found := _interest(verb, rest.split(), line)) is not None:
                    events.append(found)
            case b"PING":
                events.append(_PING)
            case b"PONG":
                events.append(_PONG)
            case b"+OK" | b"":
                pass
            case b"INFO":
                try:
                    events.append(LeafInfo(_JSON.decode(rest)))
                except DECODE_ERRORS:
                    raise LeafWireError(_shown(line)) from None
            case b"-ERR":
                events.append(ErrorLine(rest.decode("utf-8", "replace").strip().strip("'")))
            case b"CONNECT":
                try:
                    events.append(LeafConnect(_JSON.decode(rest)))
                except DECODE_ERRORS:
                    raise LeafWireError("CONNECT is not a JSON object") from None  # it may hold a password
            case b"PUB" | b"HPUB":
                return self._published(data, position)
            case b"LMSG" | b"HMSG" | b"SUB" | b"UNSUB" | b"RS+" | b"RS-":
                raise LeafWireError(_shown(line))
            case _:
                raise LeafWireError(_shown(line), UNKNOWN)
        return stop + 1


def _interest(verb: bytes, words: list[bytes], line: bytes) -> InterestBegins | InterestEnds | None:
    """Return a change of interest as nats-server reads it: a weight that is no number, or one of more
    than nine digits, is 1; None: it is ignored."""
    if not words:
        raise LeafWireError(_shown(line), UNKNOWN)
    if verb.endswith(b"-"):
        return InterestEnds(words[0], words[1] if len(words) > 1 else b"") if len(words) < 3 else None
    if len(words) not in (1, 3):
        raise LeafWireError(_shown(line))
    if len(words) == 1:
        return InterestBegins(words[0])
    return InterestBegins(words[0], words[1], int(words[2]) if words[2].isdigit() and len(words[2]) < 10 else 1)


def _shown(line: bytes) -> str:
    return f"{line[:64]!r}"


class Names:
    """The names of this server's own subjects on the other side of a leaf connection.

    An ack subject is `$JS.ACK.<stream>.<consumer>.…` here and `$JS.ACK.<domain>.<account>.<stream>.<consumer>.…` there:
    the form that clients and mirrors know from other domains. Otherwise acks of a stream there with the same name (the
    mirror of this one) would come here too, and vice versa. The same holds for flow control, and for chunks of backups,
    `$JS.<domain>.SNAPSHOT.…`.

    Args:
        domain: of this server.
        account: a token for the account.
    """

    __slots__ = ("_ack", "_restore", "_stalled", "_theirs", "subjects")

    def __init__(self, domain: str, account: str) -> None:
        there = f"{domain}.{account}.".encode()
        self._ack = ACK + there
        self._stalled = _STALLED + there
        snapshot = b"$JS.%b.SNAPSHOT." % domain.encode()
        self._theirs = ((ACK, self._ack), (FLOW, FLOW + there), (SNAPSHOT, snapshot))
        self._restore = _CHUNKS.replace(SNAPSHOT, snapshot)
        self.subjects = tuple(theirs + b">" for _, theirs in self._theirs)
        """The subjects to subscribe to there."""

    def to_theirs(self, reply: bytes) -> bytes:
        """Return a reply subject as the other side sees it."""
        for ours, theirs in self._theirs:
            if reply.startswith(ours):
                return theirs + reply[len(ours) :]
        return reply

    def to_ours(self, subject: bytes) -> bytes:
        """Return a subject of the other side as it is here."""
        for ours, theirs in self._theirs:
            if subject.startswith(theirs):
                return ours + subject[len(theirs) :]
        return subject

    def deliveries(self, to: bytes, queue: bytes, messages: Sequence[Single]) -> list[bytes]:
        """Return the frames of a batch for the subscribers of `to`, in a queue group or (b"") in none."""
        frames: list[bytes] = []
        append, ack, skip = frames.append, self._ack, len(ACK)
        before, after, instead = (b"+ ", b" %b " % queue, b"| %b " % queue) if queue else (b"", b" ", b"")
        for each in messages:
            subject, reply, header, payload = each.subject, each.reply, each.header, each.payload
            if reply.startswith(ACK):
                shown = b"@" + subject if subject != to else b""
                asks = b"%b%b%b%b%b" % (before, ack, reply[skip:], shown, after)
            elif reply:
                asks = b"%b%b%b" % (before, self.to_theirs(reply), after)
            else:
                asks = instead
                if not header and payload.startswith(_RESTORE):
                    payload = payload.replace(_CHUNKS, self._restore, 1)
            length = len(payload)
            if header:
                if header.startswith(_CONTROL):
                    header = header.replace(_STALLED, self._stalled)
                n = len(header)
                append(LEAF_HMSG % (to, asks, n, n + length, header, payload))
            else:
                append(LEAF_MSG % (to, asks, length, payload))
        return frames
