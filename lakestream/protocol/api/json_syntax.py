"""Syntax errors of JSON.

Belongs here: the syntax of RFC 8259 as nats-server's decoder sees it, with its texts and offsets. Used only after the
fast decoder has rejected a text: to find the reason, or that Go would accept it.
"""

from __future__ import annotations

import re
from typing import Final

MAX_DEPTH: Final = 10_000
"""Maximum nesting, as in Go. No request nests deeper than four."""

_BLANK: Final = re.compile(rb"[ \t\r\n]*")
_PLAIN: Final = re.compile(rb'[^"\\\x00-\x1f]*')
_ESCAPE: Final = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_LITERALS: Final = {ord("t"): b"true", ord("f"): b"false", ord("n"): b"null"}
_QUOTE, _COMMA, _MINUS, _ZERO, _NINE, _COLON, _BACKSLASH, _BRACE = b'",-09:\\}'

_OFFSET: Final = re.compile(r" at offset \d+$")


class JsonError(Exception):
    """Raised for a text that is not the expected JSON. The message follows `invalid JSON: ` in error 10025."""

    def as_lenient(self) -> JsonError:
        """Return the error in the words of Go's other decoder, used by nats-server where unknown fields are allowed."""
        text = _OFFSET.sub("", str(self))
        return JsonError("unexpected end of JSON input" if text == "unexpected EOF" else text)


def trailing(body: bytes, at: int) -> JsonError | None:
    """Return the lenient decoder's error for text behind a value, when no other value begins there."""
    if body[at : at + 1] in (b"{", b"[", b'"', b"-", b"t", b"f", b"n") or body[at : at + 1].isdigit():
        return None
    return _wrong(body, at, "after top-level value")


def end_of_value(body: bytes, at: int) -> int:
    """Return the position behind the value that begins at `at`. Raises JsonError when it is not JSON.

    Keeps its own stack, so that deep nesting needs no recursion.
    """
    stack: list[int] = []
    while True:
        at, opened = _begin(body, at, stack)
        if opened:
            continue
        at, more = _end(body, at, stack)
        if not more:
            return at


def next_value(body: bytes, at: int) -> int:
    """Return the position behind blanks: of the next value, or the end of `body`."""
    found = _BLANK.match(body, at)
    assert found is not None
    return found.end()


def _wrong(body: bytes, at: int, where: str) -> JsonError:
    """Return the error for the character at `at`; offsets count the bytes read, including it."""
    if at >= len(body):
        return JsonError("unexpected EOF")
    length = 1
    while at + length < len(body) and length < 4 and body[at + length] & 0xC0 == 0x80:
        length += 1
    char = body[at : at + length].decode("utf-8", "replace")[:1]
    if char == "'":
        shown = "\\'"
    elif char in "\\" or not char.isprintable():
        shown = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\"}.get(char, f"\\x{ord(char):02x}")
    else:
        shown = char
    return JsonError(f"invalid character '{shown}' {where} at offset {at + length}")


def _end(body: bytes, at: int, stack: list[int]) -> tuple[int, bool]:
    """Close what a value ends: (end of the whole, False), or (position of the next member, True)."""
    while stack:
        at = next_value(body, at)
        closing = stack[-1]
        if at < len(body) and body[at] == closing:
            stack.pop()
            at += 1
            continue
        if at >= len(body) or body[at] != _COMMA:
            raise _wrong(body, at, "after object key:value pair" if closing == _BRACE else "after array element")
        at = next_value(body, at + 1)
        return (_key(body, at) if closing == _BRACE else at), True
    return at, False


def _begin(body: bytes, at: int, stack: list[int]) -> tuple[int, bool]:
    """Begin a value: (end of a scalar or of an empty container, False), or (begin of the first member, True)."""
    byte = body[at] if at < len(body) else 0
    if byte in b"{[" and byte:
        closing = byte + 2
        at = next_value(body, at + 1)
        if at < len(body) and body[at] == closing:
            return at + 1, False
        stack.append(closing)
        if len(stack) > MAX_DEPTH:
            raise JsonError(f"exceeded max depth at offset {at}")
        return (_key(body, at) if closing == _BRACE else at), True
    if byte == _QUOTE:
        return _string(body, at), False
    if byte == _MINUS or _ZERO <= byte <= _NINE:
        return _number(body, at), False
    if byte in _LITERALS:
        return _literal(body, at, _LITERALS[byte]), False
    raise _wrong(body, at, "looking for beginning of value")


def _key(body: bytes, at: int) -> int:
    if at >= len(body) or body[at] != _QUOTE:
        raise _wrong(body, at, "looking for beginning of object key string")
    at = next_value(body, _string(body, at))
    if at >= len(body) or body[at] != _COLON:
        raise _wrong(body, at, "after object key")
    return next_value(body, at + 1)


def _string(body: bytes, at: int) -> int:
    at += 1
    while True:
        found = _PLAIN.match(body, at)
        assert found is not None
        at = found.end()
        if at >= len(body):
            raise JsonError("unexpected EOF")
        if body[at] == _QUOTE:
            return at + 1
        if body[at] != _BACKSLASH:
            raise _wrong(body, at, "in string")
        escape = _ESCAPE.match(body, at)
        if escape is None:
            raise _bad_escape(body, at)
        at = escape.end()


def _bad_escape(body: bytes, at: int) -> JsonError:
    length = 6 if body[at + 1 : at + 2] == b"u" else 2
    if at + length > len(body):
        return JsonError("unexpected EOF")
    shown = body[at : at + length].decode("utf-8", "replace")
    return JsonError(f"invalid escape sequence `{shown}` in string at offset {at + length}")


def _number(body: bytes, at: int) -> int:
    if body[at] == _MINUS:
        at += 1
    if body[at : at + 1] == b"0":
        at += 1
    else:
        at = _digits(body, at)
    if body[at : at + 1] == b".":
        at = _digits(body, at + 1)
    if body[at : at + 1] in (b"e", b"E"):
        at += 2 if body[at + 1 : at + 2] in (b"+", b"-") else 1
        at = _digits(body, at)
    return at


def _digits(body: bytes, at: int) -> int:
    start = at
    while at < len(body) and _ZERO <= body[at] <= _NINE:
        at += 1
    if at == start:
        raise _wrong(body, at, "in numeric literal")
    return at


def _literal(body: bytes, at: int, word: bytes) -> int:
    for position, expected in enumerate(word):
        if at + position >= len(body) or body[at + position] != expected:
            where = f"in literal {word.decode()} (expecting {chr(expected)!r})"
            raise _wrong(body, at + position, where)
    return at + len(word)
