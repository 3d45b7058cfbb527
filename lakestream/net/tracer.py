"""Protocol trace in the log (-V), line by line, as nats-server writes it.

Belongs here: the text of a command or frame. A connection has a tracer only while tracing is on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from lakestream.logging import Logger
from lakestream.protocol.commands import Command, Connect, Ping, Pong, Single, Subscribe, Unsubscribe, Violation

MAX_TRACED = 1024
"""Bytes of a payload or line that are shown (default 1 KiB)."""

SECRET_SUBJECTS = (
    b"$SYS.REQ.USER.AUTH",
    b"$SYS._INBOX.",
    b"$SYS.REQ.CLAIMS.",
    b"$SYS.REQ.ACCOUNT.",
    b"$LAKE.API.REMOTE.",
)
"""Messages with these prefixes may hold passwords or tokens: their payloads are never logged."""

SECRETS = ("pass", "auth_token", "jwt", "sig")
"""CONNECT fields whose values are never logged."""


class Tracer:
    """Logs the protocol of one connection.

    Args:
        log: its trace level must be on.
        label: `host:port - cid:n`.
    """

    def __init__(self, log: Logger, label: str) -> None:
        self._log = log
        self._label = label

    def inbound(self, commands: Iterable[Command]) -> None:
        """Log commands as they were parsed."""
        for command in commands:
            self._log.trace(f"{self._label} - <<- [{_shown(command)}]")
            if isinstance(command, Single):
                payload = _payload(command.subject, command.header + command.payload)
                self._log.trace(f"{self._label} - <<- MSG_PAYLOAD: [{payload}]")

    def outbound(self, frames: Sequence[bytes]) -> None:
        """Log frames as they are written, each a control line with an optional payload."""
        for frame in frames:
            line, _, rest = frame.partition(b"\r\n")
            self._log.trace(f"{self._label} - ->> [{_text(line)}]")
            if rest:
                payload = _payload(line.split(b" ", 2)[1], rest[:-2])
                self._log.trace(f"{self._label} - ->> MSG_PAYLOAD: [{payload}]")


def _shown(command: Command) -> str:
    match command:
        case Single():
            reply = [command.reply] if command.reply else []
            size = len(command.header) + len(command.payload)
            if command.header:
                return _words(b"HPUB", command.subject, *reply, b"%d" % len(command.header), b"%d" % size)
            return _words(b"PUB", command.subject, *reply, b"%d" % size)
        case Subscribe():
            queue = [command.queue] if command.queue else []
            return _words(b"SUB", command.subject, *queue, command.sid)
        case Unsubscribe():
            return _words(b"UNSUB", command.sid, *([b"%d" % command.maximum] if command.maximum else []))
        case Connect():
            fields = {name: "[REDACTED]" if name in SECRETS else value for name, value in command.options.items()}
            return f"CONNECT {msgspec.json.encode(fields).decode()}"
        case Ping():
            return "PING"
        case Pong():
            return "PONG"
        case Violation():
            return f"{command.reason}: {command.text}" if command.text else command.reason


def _words(*words: bytes) -> str:
    return _text(b" ".join(words))


def _text(data: bytes) -> str:
    return data[:MAX_TRACED].decode("utf-8", "backslashreplace")


def _payload(subject: bytes, data: bytes) -> str:
    return "[REDACTED]" if subject.startswith(SECRET_SUBJECTS) else _quoted(data)


def _quoted(data: bytes) -> str:
    shown = msgspec.json.encode(_text(data)).decode()
    return shown if len(data) <= MAX_TRACED else f"{shown[:-1]}..."
