"""Commands of a client, as records.

Belongs here: one record for each protocol verb of a client, and the decoding of CONNECT's JSON as nats-server does it.
Subjects, headers and payloads stay `bytes` from the socket to the disk. The meaning of a command is decided by the
connection.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, ClassVar, NoReturn, final

import msgspec


@final
class Single(msgspec.Struct, gc=False, array_like=True):
    """PUB or HPUB, or one message of a list: a block of one (`Messages`). An absent reply or header block is `b""`;
    `header` is the raw block through its blank line. Between nodes it is an array of these four (route_wire.py)."""

    to: ClassVar[bytes] = b""

    subject: bytes
    reply: bytes = b""
    header: bytes = b""
    payload: bytes = b""

    def message(self, at: int) -> Single:
        """Return this message, as a block returns one that it has."""
        return self

    def messages(self, begin: int, end: int) -> Iterable[Single]:
        return (self,)

    def stop(self, begin: int, end: int) -> int:
        return end

    @property
    def content_bytes(self) -> int:
        """Return the lengths of header block and payload."""
        return len(self.header) + len(self.payload)

    def under(self, subject: bytes) -> Single:
        """Return the message under another subject."""
        return Single(subject, self.reply, self.header, self.payload)


class Subscribe(msgspec.Struct, gc=False):
    """SUB. `queue` is `b""` for a plain subscription; `sid` is the client's own token."""

    subject: bytes
    queue: bytes
    sid: bytes


class Unsubscribe(msgspec.Struct, gc=False):
    """UNSUB. `maximum` counts deliveries since SUB; 0 means at once."""

    sid: bytes
    maximum: int


class Connect(msgspec.Struct):
    """CONNECT, its JSON object decoded."""

    options: dict[str, Any]


class Ping(msgspec.Struct, frozen=True):
    """PING."""


class Pong(msgspec.Struct, frozen=True):
    """PONG."""


class Violation(msgspec.Struct, frozen=True):
    """A protocol violation: send `-ERR '<text>'` (nothing when empty) and close. Always the last command."""

    text: str
    reason: str


Command = Single | Subscribe | Unsubscribe | Connect | Ping | Pong | Violation

_FLAGS = frozenset(["verbose", "pedantic", "echo", "headers", "no_responders", "tls_required", "new_account"])
_TEXTS = frozenset(
    [
        *("user", "pass", "auth_token", "nkey", "sig", "jwt", "name", "lang", "version"),
        *("account", "remote_account", "proxy_sig"),
    ]
)
_OBJECTS = ("import", "export")
_INT64 = 1 << 63


class _Object(list[tuple[str, Any]]):
    """A JSON object as its pairs in order: of two spellings of one option the later applies."""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_decode = json.JSONDecoder(object_pairs_hook=_Object, parse_constant=_refuse).decode


def _object(document: bytes) -> _Object | None:
    """Return the object in `document`, empty for `null`; None when it is anything else."""
    try:
        # Bytes that are not UTF-8 are replaced, as Go does.
        value = _decode(document.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if value is None:
        return _Object()
    return value if isinstance(value, _Object) else None


def is_json_object(document: bytes) -> bool:
    """Return True if `document` is a JSON object or `null`."""
    return _object(document) is not None


def _option(name: str) -> str:
    """Return the option that `name` spells, in any case (letters that fold to ASCII included)."""
    return name.replace("\u017f", "s").replace("\u212a", "k").lower()


def _text(value: str) -> str:
    """Return `value` without lone surrogates, which cannot be encoded."""
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _has_type(option: str, value: object) -> bool:
    if option in _FLAGS:
        return isinstance(value, bool)
    if option in _TEXTS:
        return isinstance(value, str)
    # bool is an int to Python, but not to the protocol.
    return isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64


def connect_command(document: bytes) -> Connect | None:
    """Decode the JSON of CONNECT; None when the server must close without -ERR (docs/internals/protocol.md#errors).

    Only known options are kept, under their own spelling and with the required type; `null` counts as absent. Unknown
    options are skipped. `import` and `export` are checked but not kept: no client sends them.
    """
    pairs = _object(document)
    if pairs is None:
        return None
    options: dict[str, Any] = {}
    for name, value in pairs:
        option = _option(name)
        if value is None:
            continue
        if option in _FLAGS or option in _TEXTS or option == "protocol":
            if not _has_type(option, value):
                return None
            options[option] = _text(value) if isinstance(value, str) else value
        elif option in _OBJECTS and not isinstance(value, _Object):
            return None
    return Connect(options)
