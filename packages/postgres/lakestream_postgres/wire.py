"""The protocol of Postgres, version 3: messages as bytes.

Belongs here: messages of the client, decoded with limits, and messages to the client, encoded. No I/O, no state but the
bytes of an unfinished message: listener.py has the sockets, session.py the order of messages.

Source: PostgreSQL's documentation, "Frontend/Backend Protocol" (chapter 55 of version 17).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

import msgspec

MAX_STARTUP = 10_000
"""Size of the first message, in bytes, as in Postgres."""
MAX_LOGIN = 64 << 10
"""Size of a message before the login (64 KiB): a password may be the text of a credentials file."""
MAX_MESSAGE = 1 << 20
"""Size of a message (1 MiB): a query, or the parameters of one."""
PROTOCOL = 3 << 16
_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102
_I16, _U16, _I32, _U32 = struct.Struct(">h"), struct.Struct(">H"), struct.Struct(">i"), struct.Struct(">I")
_NULL = _I32.pack(-1)


class BadMessage(ValueError):
    """Raised for bytes that are no message of the protocol: the connection ends."""


# ---------------------------------------------------------------------- messages of the client


class Startup(msgspec.Struct, frozen=True):
    """The first message. `minor`: of the version 3; `parameters`: user, database and settings."""

    minor: int
    parameters: dict[str, str]


class EncryptionRequest(msgspec.Struct, frozen=True):
    """A request for TLS, or else for GSSAPI."""

    is_tls: bool


class CancelRequest(msgspec.Struct, frozen=True):
    """The first and only message of a connection that cancels the query of another one."""

    process: int
    key: int


class Password(msgspec.Struct, frozen=True):
    """The answer to a request for authentication: a password, or a message of SASL."""

    body: bytes


class Query(msgspec.Struct, frozen=True):
    """A text of statements, in the simple protocol."""

    text: str


class Parse(msgspec.Struct, frozen=True):
    """Prepares a statement. `types`: oids of the first parameters, 0 where the server decides."""

    name: str
    text: str
    types: tuple[int, ...]


class Bind(msgspec.Struct, frozen=True):
    """Makes a portal of a prepared statement. Formats are 0 (text) or 1 (binary): none, one for all, or each."""

    portal: str
    statement: str
    formats: tuple[int, ...]
    values: tuple[bytes | None, ...]
    results: tuple[int, ...]


class Describe(msgspec.Struct, frozen=True):
    """Asks for the columns of a prepared statement, or else of a portal."""

    is_statement: bool
    name: str


class Execute(msgspec.Struct, frozen=True):
    """Asks for rows of a portal; `limit` 0: all."""

    portal: str
    limit: int


class Close(msgspec.Struct, frozen=True):
    """Forgets a prepared statement, or else a portal."""

    is_statement: bool
    name: str


class Sync(msgspec.Struct, frozen=True):
    """Ends a round of the extended protocol."""


class Flush(msgspec.Struct, frozen=True):
    """Wants what was answered so far."""


class Terminate(msgspec.Struct, frozen=True):
    """Ends the connection."""


class CopyInput(msgspec.Struct, frozen=True):
    """Data of a COPY FROM, or its end: late, after the error that refused it."""


class FunctionCall(msgspec.Struct, frozen=True):
    """Calls a function, which is not supported."""


Message = (
    Startup | EncryptionRequest | CancelRequest | Password | Query | Parse | Bind | Describe | Execute | Close
    | Sync | Flush | Terminate | CopyInput | FunctionCall
)  # fmt: skip


class _Fields:
    """Reads the fields of a message."""

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0

    def number(self, kind: struct.Struct) -> int:
        if self._at + kind.size > len(self._body):
            raise BadMessage("a number is cut off")
        (found,) = kind.unpack_from(self._body, self._at)
        self._at += kind.size
        return int(found)

    def text(self) -> str:
        end = self._body.find(b"\0", self._at)
        if end < 0:
            raise BadMessage("a text has no end")
        found, self._at = self._body[self._at : end], end + 1
        try:
            return found.decode()
        except UnicodeDecodeError:
            raise BadMessage("a text is not UTF-8") from None

    def numbers(self, kind: struct.Struct) -> tuple[int, ...]:
        return tuple(self.number(kind) for _ in range(self.number(_U16)))

    def value(self) -> bytes | None:
        if (size := self.number(_I32)) == -1:
            return None
        if size < 0 or self._at + size > len(self._body):
            raise BadMessage("a value is cut off")
        self._at += size
        return self._body[self._at - size : self._at]

    def is_statement(self) -> bool:
        kind = chr(self.number(_BYTE))
        if kind not in "SP":
            raise BadMessage("this is neither a statement nor a portal")
        return kind == "S"

    def end(self) -> None:
        if self._at != len(self._body):
            raise BadMessage("a message is too long")


_BYTE = struct.Struct(">B")


class Decoder:
    """Decodes the messages of a client.

    Attributes:
        started: the first message has been read: messages have letters.
        limit: size of the next messages, in bytes.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.started = False
        self.limit = MAX_STARTUP

    @property
    def pending(self) -> int:
        """Return the number of bytes that are not decoded yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Take bytes."""
        self._buffer += data

    def next(self) -> Message | None:
        """Return the next message; None if it is not complete. Raises BadMessage."""
        head = 1 if self.started else 0
        if len(self._buffer) < head + 4:
            return None
        (size,) = _I32.unpack_from(self._buffer, head)
        if not 4 <= size <= self.limit:
            raise BadMessage(f"a message of {size} bytes; the most are {self.limit}")
        if len(self._buffer) < head + size:
            return None
        kind, body = bytes(self._buffer[:head]), bytes(self._buffer[head + 4 : head + size])
        del self._buffer[: head + size]
        fields = _Fields(body)
        if self.started:
            return _decoded(kind, body, fields)
        return self._first(fields)

    def _first(self, fields: _Fields) -> Message:
        code = fields.number(_U32)
        if code in (_SSL, _GSS):
            fields.end()
            return EncryptionRequest(code == _SSL)
        if code == _CANCEL:
            found = CancelRequest(fields.number(_U32), fields.number(_U32))
            fields.end()
            return found
        if code >> 16 != PROTOCOL >> 16:
            raise BadMessage(f"version {code >> 16}.{code & 0xFFFF} of the protocol; this is version 3")
        parameters: dict[str, str] = {}
        while name := fields.text():
            parameters[name] = fields.text()
        fields.end()
        self.started, self.limit = True, MAX_LOGIN
        return Startup(code & 0xFFFF, parameters)


def _decoded(kind: bytes, body: bytes, fields: _Fields) -> Message:
    """Return a message with a letter. Raises BadMessage."""
    if kind == b"p":
        return Password(body)
    if kind in (b"d", b"c", b"f"):
        return CopyInput()
    if kind == b"F":
        return FunctionCall()
    found: Message
    if kind == b"Q":
        found = Query(fields.text())
    elif kind == b"P":
        found = Parse(fields.text(), fields.text(), fields.numbers(_U32))
    elif kind == b"B":
        names, formats = (fields.text(), fields.text()), fields.numbers(_U16)
        values = tuple(fields.value() for _ in range(fields.number(_U16)))
        found = Bind(*names, formats, values, fields.numbers(_U16))
        if not {*found.formats, *found.results} <= {0, 1}:
            raise BadMessage("a format is neither text nor binary")
    elif kind == b"D":
        found = Describe(fields.is_statement(), fields.text())
    elif kind == b"C":
        found = Close(fields.is_statement(), fields.text())
    elif kind == b"E":
        found = Execute(fields.text(), max(fields.number(_I32), 0))
    elif kind in _EMPTY:
        found = _EMPTY[kind]
    else:
        raise BadMessage(f"a message of kind {kind!r}")
    fields.end()
    return found


_EMPTY: dict[bytes, Message] = {b"S": Sync(), b"H": Flush(), b"X": Terminate()}

# ---------------------------------------------------------------------- messages to the client


class Field(msgspec.Struct, frozen=True):
    """A column of a result. `size`: bytes of its values, -1: they differ; `modifier`: precision of its type."""

    name: str
    oid: int
    size: int = -1
    modifier: int = -1


def _message(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return kind + _I32.pack(len(body) + 4) + body


def _text(value: str) -> bytes:
    return value.replace("\0", "").encode(errors="replace") + b"\0"


TLS_FOLLOWS, NO_ENCRYPTION = b"S", b"N"
PARSED, BOUND, CLOSED, NO_DATA = (_message(kind) for kind in (b"1", b"2", b"3", b"n"))
EMPTY_QUERY, SUSPENDED, COPY_DONE = (_message(kind) for kind in (b"I", b"s", b"c"))
LOGGED_IN = _message(b"R", _I32.pack(0))
WANT_PASSWORD = _message(b"R", _I32.pack(3))


def want_sasl(mechanisms: Iterable[str]) -> bytes:
    """Return the request for an authentication by one of some mechanisms."""
    return _message(b"R", _I32.pack(10), *map(_text, mechanisms), b"\0")


def sasl(data: bytes, *, is_final: bool) -> bytes:
    """Return a message of the mechanism."""
    return _message(b"R", _I32.pack(12 if is_final else 11), data)


def sasl_first(body: bytes) -> tuple[str, bytes]:
    """Return mechanism and data of a client's first message of SASL. Raises BadMessage."""
    fields = _Fields(body)
    found = fields.text(), fields.value() or b""
    fields.end()
    return found


def negotiate(options: Sequence[str]) -> bytes:
    """Return the answer to a newer minor version, or to options of the protocol that are unknown here."""
    return _message(b"v", _U32.pack(0), _I32.pack(len(options)), *map(_text, options))


def parameter(name: str, value: str) -> bytes:
    """Return the report of a setting."""
    return _message(b"S", _text(name), _text(value))


def backend_key(process: int, key: int) -> bytes:
    """Return what a cancel request needs."""
    return _message(b"K", _U32.pack(process), _U32.pack(key))


def ready(status: bytes) -> bytes:
    """Return the sign that a query is expected. `status`: I, T or E."""
    return _message(b"Z", status)


def row_description(fields: Sequence[Field], formats: Sequence[int]) -> bytes:
    """Return the columns of a result."""
    parts = [
        _text(each.name) + struct.pack(">IhIhih", 0, 0, each.oid, each.size, each.modifier, code)
        for each, code in zip(fields, formats, strict=True)
    ]
    return _message(b"T", _U16.pack(len(parts)), *parts)


def parameter_description(oids: Sequence[int]) -> bytes:
    """Return the types of a statement's parameters."""
    return _message(b"t", _U16.pack(len(oids)), *map(_U32.pack, oids))


def data_rows(columns: Sequence[Sequence[bytes | None]], rows: int) -> bytes:
    """Return rows, of the values of each column."""
    count = _U16.pack(len(columns))
    pack = _I32.pack
    sized = [[_NULL if value is None else pack(len(value)) + value for value in column] for column in columns]
    bodies = map(b"".join, zip(*sized, strict=True)) if sized else (b"" for _ in range(rows))
    return b"".join([b"D" + pack(len(body) + 6) + count + body for body in bodies])


def complete(tag: str) -> bytes:
    """Return the end of a statement's result."""
    return _message(b"C", _text(tag))


def copy_out(formats: Sequence[int], *, is_binary: bool) -> bytes:
    """Return the beginning of a COPY TO STDOUT."""
    return _message(b"H", _BYTE.pack(is_binary), _U16.pack(len(formats)), *map(_U16.pack, formats))


def copy_data(data: bytes) -> bytes:
    """Return data of a COPY."""
    return _message(b"d", data)


def response(values: Mapping[str, str], *, is_error: bool = True) -> bytes:
    """Return an error or a notice, of fields by their letters: S severity, C code, M message, D detail, P position."""
    parts = [name.encode() + _text(value) for name, value in values.items() if value]
    return _message(b"E" if is_error else b"N", *parts, b"\0")
