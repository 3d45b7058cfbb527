"""The parser of client protocol.

Belongs here: the lexical rules of the client protocol (docs/internals/protocol.md) and the limits of what is held while
a command is incomplete. No sockets and no decisions about a command. The commands do not depend on how the byte stream
is cut; nothing is raised: invalid bytes end in a `Violation`.

PUB and HPUB in the form that clients really send have a quick path: a run of them becomes one `Publishes`
(lakestream.native). Everything else (lower case, tabs, runs of blanks, bare
LF, mistakes, the incomplete command at the end) goes through the slow path below, which knows every rule. Both paths
give the same commands.

Two accidents of nats-server are not imitated: there a line feed as the first byte of the arguments becomes part of them
(here it ends them), and a carriage return inside a line swallows the line's last byte (here it does not).
"""

from __future__ import annotations

import re
from io import BytesIO

from lakestream.native import parse_run
from lakestream.protocol.commands import (
    Command,
    Ping,
    Pong,
    Single,
    Subscribe,
    Unsubscribe,
    Violation,
    connect_command,
    is_json_object,
)
from lakestream.protocol.publishes import NOTHING_APART, Apart, Publishes

MAX_CONTROL_LINE = 4096
"""Maximum length of a line's arguments in bytes (default). Longer ones are a violation."""

MAX_PAYLOAD = 1 << 20
"""Maximum size of header block and payload in bytes (default 1 MiB). A larger one is a violation."""

ONE_BY_ONE = 256
"""Commands of a buffer that are parsed one by one (all but runs of publishes); then the rest is left over, because 256
KiB of small ones take 25 ms."""

LARGE_BYTES = 64 << 10
"""Incomplete messages above this size (64 KiB) are gathered at their place in the payload, so that none of their bytes
is copied again when the last ones have come: copying 64 MiB takes 10 to 40 ms."""

UNKNOWN = Violation("Unknown Protocol Operation", "Protocol Violation")
BAD_ARGUMENTS = Violation("", "Protocol Violation")
CLIENT_ERROR = Violation("", "Parse Error")
PAYLOAD_TOO_LARGE = Violation("Maximum Payload Violation", "Maximum Message Payload Exceeded")
LINE_TOO_LONG = Violation("maximum control line exceeded", "Maximum Control Line Exceeded")

APART_BYTES = 32 << 10
"""Reads above this size (32 KiB) are not copied behind the message begun before: that is completed alone."""

_PING = Ping()
_PONG = Pong()

# Three kinds of verb: those that ignore what follows, those whose arguments may follow at once, and those that need a
# blank first.
_VERB = re.compile(rb"(?i:(PING|PONG|\+OK)|(CONNECT|INFO)[ \t]*+|(H?PUB|(?:UN)?SUB|-ERR)[ \t]++)")
_VERBS = (b"PUB", b"HPUB", b"SUB", b"UNSUB", b"PING", b"PONG", b"CONNECT", b"INFO", b"+OK", b"-ERR")
_BLANK_WORDS = re.compile(rb"[^ \t]+").findall
_WORDS = re.compile(rb"[^ \t\r\n]+").findall
_LF, _CR, _H, _P = 10, 13, 72, 80
_CAREFUL_WORDS = 32
_MAX_SIZE_DIGITS = 9


def _size(digits: bytes) -> int:
    """Return a size or count of at most nine digits; -1 for anything else."""
    return int(digits) if len(digits) <= _MAX_SIZE_DIGITS and digits.isdigit() else -1


class _Large:
    """A large message of which only a part has come.

    Args:
        header, total: sizes of the header block, and of header block and payload.
    """

    __slots__ = ("_end", "_header", "_header_size", "_payload", "_reply", "_subject", "_total", "held")

    def __init__(self, subject: bytes, reply: bytes, header: int, total: int) -> None:
        self._subject, self._reply = subject, reply
        # `BytesIO` writes into the bytes that it was made of, and returns them without a copy if they are full. Their
        # pages take no memory before they are written.
        self._header, self._payload = BytesIO(bytes(header)), BytesIO(bytes(total - header))
        self._header_size, self._total = header, total
        self._end = b""
        self.held = 0

    def feed(self, data: bytes) -> int:
        """Take the bytes that belong to the message; return their number, -1 if its end is wrong."""
        view = memoryview(data)
        at = self._header.write(view[: max(0, self._header_size - self.held)])
        at += self._payload.write(view[at : self._total - self.held])
        self.held += at
        if self.held == self._total:
            more = data[at : at + 2 - len(self._end)]
            self._end += more
            at += len(more)
            if not b"\r\n".startswith(self._end):
                return -1
        return at

    def whole(self) -> Single | None:
        """Return the message; None before its end has come."""
        if len(self._end) < 2:
            return None
        return Single(self._subject, self._reply, self._header.getvalue(), self._payload.getvalue())


class Parser:
    """The parser of one connection.

    Args:
        max_control_line: limit in bytes for the arguments of one line.
        max_payload: limit in bytes for header block + payload.
        supports_headers: False: HPUB is a violation, whatever CONNECT asked for.
        apart: which publishes are in no run.
    """

    __slots__ = (
        "_apart",
        "_held",
        "_in_line",
        "_large",
        "_need",
        "_word",
        "ended",
        "headers",
        "max_control_line",
        "max_payload",
        "rest",
        "supports_headers",
    )

    def __init__(
        self,
        max_control_line: int = MAX_CONTROL_LINE,
        max_payload: int = MAX_PAYLOAD,
        supports_headers: bool = True,
        apart: Apart = NOTHING_APART,
    ) -> None:
        self._apart = apart
        self.supports_headers = supports_headers
        self.limit_lines(max_control_line)
        self.max_payload = max_payload
        self.ended = False
        """A violation was reported; further bytes are ignored."""
        self.rest = b""
        """Bytes that the last `feed` has left over. They are to be fed before any others."""
        self.headers = False
        """CONNECT asked for headers, so HPUB is allowed, until another CONNECT revokes that."""
        self._held = bytearray()
        self._large: _Large | None = None
        self._need = 0
        self._in_line = False

    def limit_lines(self, max_control_line: int) -> None:
        """Apply another limit in bytes for the arguments of one line."""
        self.max_control_line = max_control_line
        # The two words together stay below the limit, so that a line of a run is never too long.
        self._word = max(1, (max_control_line - _CAREFUL_WORDS) // 2)

    def feed(self, data: bytes) -> list[Command | Publishes]:
        """Return the commands completed by `data`, in order; consecutive publishes as one `Publishes`. After
        `ONE_BY_ONE` others there is a `rest`.

        The cost is linear in the bytes fed, however they are cut. At most one incomplete command is held: a control
        line up to its limit, or a payload up to `max_payload`.

        Args:
            data: the next bytes of the stream. Commands hold slices of them.
        """
        held, self.rest = self._held, b""
        if self._large is not None:
            return self._gather(self._large, data)
        commands: list[Command | Publishes] = []
        at = 0
        if len(data) > APART_BYTES and not self._in_line:
            while held and 0 < (missing := self._need - len(held)) <= len(data) - at:
                self._held = bytearray()
                self._scan(b"".join((held, data[at : at + missing])), commands)
                held, at = self._held, at + missing
        if held:
            size = len(held) + len(data) - at
            # Beyond its limit a line is parsed, to be rejected or (behind PING) skipped.
            if size <= self.max_control_line and b"\n" not in data if self._in_line else size < self._need:
                held += data[at:]
                return commands
            data, at, self._held = b"".join((held, data[at:])), 0, bytearray()
        elif self.ended:
            return commands
        self._scan(data, commands, at)
        return commands

    def _gather(self, large: _Large, data: bytes) -> list[Command | Publishes]:
        """Return the commands that `data` completes, the first of which is `large`."""
        commands: list[Command | Publishes] = []
        position = large.feed(data)
        if position < 0:
            self._large = None
            self._end(commands, UNKNOWN)
        elif (whole := large.whole()) is not None:
            self._large = None
            commands.append(whole)
            self._scan(data, commands, position)
        return commands

    @property
    def held(self) -> int:
        """Return the bytes of the incomplete command."""
        return len(self._held) if self._large is None else self._large.held

    def end(self) -> None:
        """Forget the incomplete command, and ignore what follows."""
        self._held, self._large = bytearray(), None
        self.ended = True

    def _hold(self, rest: bytes, need: int, in_line: bool = False) -> int:
        """Hold an incomplete command: until `need` bytes are there, or a line feed, when it is in its arguments."""
        self._held += rest
        self._need = need
        self._in_line = in_line
        return -1

    def _end(self, commands: list[Command | Publishes], violation: Violation) -> int:
        self.ended = True
        commands.append(violation)
        return -1

    def _scan(self, buf: bytes, commands: list[Command | Publishes], position: int = 0) -> None:
        limit, word, apart = self.max_payload, self._word, self._apart
        length, more = len(buf), ONE_BY_ONE
        while 0 <= position < length:
            if not more:
                self.rest = buf[position:]
                return
            if buf[position] == _P or buf[position] == _H:
                run = parse_run(buf, position, word, limit, self.headers, *apart)
                if run is not None:
                    if len(run[1]) > 1:
                        commands.append(Publishes(buf, *run[1:]))
                    else:
                        more -= 1
                        _, (subject,), _, (reply_at, reply_length, at, size), _, heads, _ = run
                        start = at - heads[0] if heads else at
                        reply = buf[reply_at : reply_at + reply_length]
                        commands.append(Single(subject, reply, buf[start:at], buf[at : at + size]))
                    position = run[0]
                    continue
            more -= 1
            position = self._careful(buf, position, commands)

    # ------------------------------------------------------------------ the careful path
    # Each function returns the position after its command, or -1 when nothing more can be taken from the buffer:
    # the rest is held, or the stream has ended in a violation.

    def _careful(self, buf: bytes, position: int, commands: list[Command | Publishes]) -> int:
        found = _VERB.match(buf, position)
        if found is None:
            rest = buf[position : position + 8].upper()
            if len(buf) - position < 8 and any(verb.startswith(rest) for verb in _VERBS):
                return self._hold(buf[position:], 0)
            return self._end(commands, UNKNOWN)
        start = found.end()
        if found[1]:
            return self._bare(buf, start, found[1].upper(), commands)
        verb: bytes = (found[2] or found[3]).upper()
        if start == len(buf):
            # Runs of blanks count as one; CONNECT and INFO need none.
            return self._hold(verb + b" " if found[3] else verb, 0)
        stop = buf.find(b"\n", start)
        if stop < 0:
            end = len(buf) - (buf[-1] == _CR)
            if end - start > self.max_control_line:
                return self._end(commands, LINE_TOO_LONG)
            return self._hold(verb + b" " + buf[start:], 0, in_line=True)
        end = stop - (stop > start and buf[stop - 1] == _CR)
        if end - start > self.max_control_line:
            return self._end(commands, LINE_TOO_LONG)
        arguments = buf[start:end]
        if verb == b"PUB" or verb == b"HPUB":
            return self._publish(buf, position, stop + 1, verb, arguments, commands)
        command = self._line(verb, arguments)
        if isinstance(command, Violation):
            return self._end(commands, command)
        if command is not None:
            commands.append(command)
        return stop + 1

    def _bare(self, buf: bytes, start: int, verb: bytes, commands: list[Command | Publishes]) -> int:
        """Parse PING, PONG, +OK: everything between the verb and the line feed is ignored, however long."""
        stop = buf.find(b"\n", start)
        if stop < 0:
            return self._hold(verb, 0, in_line=True)
        if verb == b"PING":
            commands.append(_PING)
        elif verb == b"PONG":
            commands.append(_PONG)
        return stop + 1

    def _line(self, verb: bytes, arguments: bytes) -> Command | None:
        """Parse a whole line; None for one without an effect."""
        if verb == b"SUB":
            words = _WORDS(arguments)
            if len(words) == 2:
                return Subscribe(words[0], b"", words[1])
            return Subscribe(*words) if len(words) == 3 else BAD_ARGUMENTS
        if verb == b"UNSUB":
            words = _WORDS(arguments)
            if len(words) == 1:
                return Unsubscribe(words[0], 0)
            # nats-server takes an invalid count as 0.
            return Unsubscribe(words[0], max(0, _size(words[1]))) if len(words) == 2 else BAD_ARGUMENTS
        if verb == b"CONNECT":
            connect = connect_command(arguments)
            if connect is None:
                return BAD_ARGUMENTS
            self.headers = self.supports_headers and connect.options.get("headers", self.headers)
            return connect
        if verb == b"INFO":
            return None if is_json_object(arguments) else BAD_ARGUMENTS
        # Invariant: only -ERR is left of the verbs with arguments.
        assert verb == b"-ERR", verb
        return CLIENT_ERROR

    def _publish(
        self, buf: bytes, position: int, start: int, verb: bytes, arguments: bytes, commands: list[Command | Publishes]
    ) -> int:
        words = _BLANK_WORDS(arguments)
        sizes = 2 if verb == b"HPUB" else 1
        if sizes == 2 and not self.headers:
            return self._end(commands, BAD_ARGUMENTS)
        if not sizes < len(words) <= sizes + 2:
            return self._end(commands, BAD_ARGUMENTS)
        total = _size(words[-1])
        header = _size(words[-2]) if sizes == 2 else 0
        if total < 0 or not 0 <= header <= total:
            return self._end(commands, BAD_ARGUMENTS)
        if total > self.max_payload:
            return self._end(commands, PAYLOAD_TOO_LARGE)
        end = start + total
        # A wrong end is rejected at its first wrong byte.
        if not b"\r\n".startswith(buf[end : end + 2]):
            return self._end(commands, UNKNOWN)
        reply = words[1] if len(words) == sizes + 2 else b""
        if total > LARGE_BYTES and len(buf) < end + 2:
            self._large = _Large(words[0], reply, header, total)
            self._large.feed(buf[start:])
            return -1
        if len(buf) < end + 2:
            need = end + (2 if len(buf) > end else 1)
            return self._hold(buf[position:], need - position)
        commands.append(Single(words[0], reply, buf[start : start + header], buf[start + header : end]))
        return end + 2
