"""The parser of what a server sends: the client's side of the protocol.

Belongs here: its lexical rules (docs/internals/protocol.md) and the limits of what is held while something is
incomplete. No sockets and no decisions. The events do not depend on how the byte stream is cut. A server that breaks
the rules ends in a `ServerProtocolError`.

As in parser.py one compiled expression per hot verb is matched at a position in the whole read buffer; other lines are
parsed one by one.
"""

from __future__ import annotations

import re

import msgspec

from lakestream.protocol.commands import Ping, Pong, Single

MAX_LINE = 1 << 20
"""Maximum length of a control line in bytes (1 MiB): the longest is an INFO with the addresses of a large cluster."""

MAX_MESSAGE = 80 << 20
"""Maximum size of header block and payload (80 MiB): more than any server can be configured to send."""


class ServerProtocolError(Exception):
    """Raised for bytes that are not the NATS protocol; the text shows them."""


class DeliveredMessage(msgspec.Struct, gc=False):
    """MSG or HMSG: a message, and the id of the subscription that it is for."""

    sid: bytes
    message: Single


class Info(msgspec.Struct, frozen=True):
    """INFO, with its raw JSON document."""

    document: bytes


class ErrorLine(msgspec.Struct, frozen=True):
    """-ERR, its text without quotes."""

    text: str


Event = DeliveredMessage | Info | ErrorLine | Ping | Pong

_PING, _PONG = Ping(), Pong()
_WORD = rb"([!-\xff]{1,32768}+)"
_message = re.compile(rb"MSG %b %b (?:%b )?([0-9]{1,9})\r\n" % (_WORD, _WORD, _WORD)).match
_with_header = re.compile(rb"HMSG %b %b (?:%b )?([0-9]{1,9}) ([0-9]{1,9})\r\n" % (_WORD, _WORD, _WORD)).match
_words = re.compile(rb"[^ \t]+").findall
_CR, _LF = 13, 10


class ServerParser:
    """The parser of one connection to a server."""

    __slots__ = ("_held", "_need")

    def __init__(self) -> None:
        self._held = bytearray()
        self._need = 0
        """Bytes of the incomplete message; 0: its line has not ended."""

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that `data` completes, in order. The cost is linear in the bytes fed, however they are cut.

        Raises:
            ServerProtocolError: not a NATS server, or beyond the limits.
        """
        if self._held:
            self._held += data
            if len(self._held) < self._need:
                return []
            if not self._need and b"\n" not in data:
                if len(self._held) > MAX_LINE:
                    raise ServerProtocolError(f"control line of more than {MAX_LINE} bytes")
                return []
            data = bytes(self._held)
            self._held = bytearray()
            self._need = 0
        events: list[Event] = []
        self._scan(data, events)
        return events

    def _scan(self, buf: bytes, events: list[Event]) -> None:
        append, position, length = events.append, 0, len(buf)
        while position < length:
            found = _message(buf, position)
            if found is not None:
                subject, sid, reply, digits = found.groups(b"")
                start = middle = found.end()
                end = start + int(digits)
            else:
                found = _with_header(buf, position)
                if found is None:
                    position = self._careful(buf, position, events)
                    continue
                subject, sid, reply, digits, total = found.groups(b"")
                start = found.end()
                middle, end = start + int(digits), start + int(total)
            if end + 2 > length:
                position = self._hold(buf, position, end + 2)
                continue
            if middle > end or buf[end] != _CR or buf[end + 1] != _LF:
                raise ServerProtocolError("message without CRLF at its end")
            append(DeliveredMessage(sid, Single(subject, reply, buf[start:middle], buf[middle:end])))
            position = end + 2

    def _hold(self, buf: bytes, position: int, end: int = 0) -> int:
        """Hold an incomplete event, until the bytes up to `end` are there."""
        if end - position > MAX_MESSAGE:
            raise ServerProtocolError(f"message of {end - position} bytes")
        self._held += buf[position:]
        self._need = end - position if end else 0
        return len(buf)

    def _careful(self, buf: bytes, position: int, events: list[Event]) -> int:
        """Parse a line that is not a message in its usual form; return the position behind it."""
        stop = buf.find(b"\n", position)
        if stop < 0:
            if len(buf) - position > MAX_LINE:
                raise ServerProtocolError(f"control line of more than {MAX_LINE} bytes")
            return self._hold(buf, position)
        words = buf[position : stop - (buf[stop - 1] == _CR)].split(None, 1)
        verb = words[0].upper() if words else b""
        if verb == b"PING":
            events.append(_PING)
        elif verb == b"PONG":
            events.append(_PONG)
        elif verb == b"INFO" and len(words) == 2:
            events.append(Info(words[1].rstrip()))
        elif verb == b"-ERR":
            text = words[1] if len(words) == 2 else b""
            events.append(ErrorLine(text.strip().strip(b"'").decode("utf-8", "replace")))
        elif verb in (b"MSG", b"HMSG"):
            return self._rare(buf, position, stop + 1, words, events)
        elif verb not in (b"+OK", b""):
            raise ServerProtocolError(f"unknown operation {verb[:20].decode('ascii', 'replace')!r}")
        return stop + 1

    def _rare(self, buf: bytes, position: int, start: int, words: list[bytes], events: list[Event]) -> int:
        """Parse a message with more blanks than necessary."""
        parts = _words(words[1]) if len(words) == 2 else []
        sizes = 2 if words[0].upper() == b"HMSG" else 1
        numbers = parts[-sizes:]
        if not sizes + 2 <= len(parts) <= sizes + 3 or not all(one.isdigit() and len(one) < 10 for one in numbers):
            raise ServerProtocolError(f"malformed {words[0].decode()}")
        end, middle = start + int(numbers[-1]), start + (int(numbers[0]) if sizes == 2 else 0)
        if end + 2 > len(buf):
            return self._hold(buf, position, end + 2)
        if middle > end or buf[end : end + 2] != b"\r\n":
            raise ServerProtocolError("message without CRLF at its end")
        reply = parts[2] if len(parts) == sizes + 3 else b""
        events.append(DeliveredMessage(parts[1], Single(parts[0], reply, buf[start:middle], buf[middle:end])))
        return end + 2
