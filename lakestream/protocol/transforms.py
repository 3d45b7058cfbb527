"""Subject transforms: from a subject that matches a source filter to the subject of a destination.

Belongs here: pure functions over subjects as raw bytes, with the functions and errors of nats-server 2.15
(docs/internals/streams.md#transforms-and-republishing). Transforms are used by streams, imports and mappings.

A destination is tokens joined by `.`. A token may refer to the source's wildcards: `$n` or `{{wildcard(n)}}`, and the
functions below; every other token is literal. A last token `>` is what the source's `>` matches. Functions that stand
for an account are no part of a transform: they are replaced once, where a mapping, import or export is read (`hashed`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import randrange

from lakestream.protocol.subjects import matches, short_hash, valid_literal

Maker = Callable[[Sequence[bytes]], bytes]
"""Makes a token (or several, joined) of the destination from the tokens of a subject."""

Positions = Sequence[int] | None

_INT = re.compile(rb"[+-]?[0-9]+")
_NAMES = (
    ("wildcard", rb"[wW]ildcard"),
    ("partition", rb"[pP]artition"),
    ("splitfromleft", rb"[sS]plit[fF]rom[lL]eft"),
    ("splitfromright", rb"[sS]plit[fF]rom[rR]ight"),
    ("slicefromleft", rb"[sS]lice[fF]rom[lL]eft"),
    ("slicefromright", rb"[sS]lice[fF]rom[rR]ight"),
    ("split", rb"[sS]plit"),
    ("left", rb"[lL]eft"),
    ("right", rb"[rR]ight"),
    ("random", rb"[rR]andom"),
)
_CALLS = tuple((name, re.compile(rb"\{\{\s*" + form + rb"\s*\((.*)\)\s*\}\}")) for name, form in _NAMES)
_RANDOM = dict(_CALLS)["random"]
_OF_ACCOUNTS = tuple(
    (name, re.compile(rb"\{\{\s*[aA]ccount-[hH]ash" + form + rb"\s*\((.*)\)\s*\}\}"))
    for name, form in (("exporter", rb"-[iI]mport"), ("leaf_remote", rb"-[lL]eaf-[rR]emote"), ("account", b""))
)
_COMMA = re.compile(rb",\s*")
_BLANKS = re.compile(rb"[ \t\r\n\f]")

MAX_DESTINATION = 4096
"""Maximum length of a destination in bytes (the default of a control line); a longer one is rejected."""

MAX_SUBJECT = 0xFFFF
"""A subject that would become longer than this many bytes is not transformed: no record could hold it."""

_NOT_ENOUGH = "not enough arguments passed to the function"
_TOO_MANY = "too many arguments passed to the function"
_INVALID = "function argument is invalid or in the wrong format"
_OUT_OF_RANGE = "wildcard index out of range"
_UNKNOWN = "unknown function"
_UNAVAILABLE = "function is not available in this context"

_INT32 = range(-(1 << 31), 1 << 31)
_MAX_DIGITS = 20
"""Digits of a number in a destination, including its sign: more than 64 bits need."""
_INT64 = range(-(1 << 63), 1 << 63)


class TransformError(ValueError):
    """Raised for an invalid transform, with nats-server's text."""


class Transform:
    """A valid transform.

    Attributes:
        varies: the same subject may be transformed to another one each time.

    Raises:
        TransformError: source and destination do not fit together.
    """

    def __init__(self, source: bytes, destination: bytes) -> None:
        self.source = source or b">"
        self.destination = destination
        stars, rest = _shape(self.source)
        if len(destination) > MAX_DESTINATION:
            raise TransformError("invalid mapping destination: too long")
        if b"*" in destination.split(b".") or _shape(destination)[1] != rest:
            raise TransformError("invalid subject")
        tokens = self.source.split(b".")
        self._tail = len(tokens) - 1 if rest else -1
        """Position of the tokens that the source's `>` matches; -1: it has none."""
        positions: Positions = None
        if stars or rest:
            positions = [at for at, token in enumerate(tokens) if token == b"*"]
        wanted = destination.split(b".")[: -1 if rest else None]
        self._makers = [_maker(token, positions) for token in wanted]
        self.varies = any(_is_call(token) and _RANDOM.search(token) is not None for token in wanted)
        self._identity = self.source == destination == b">"

    def apply(self, subject: bytes) -> bytes | None:
        """Return the transformed subject; None when the source does not match, or the result is empty or too long."""
        if not matches(self.source, subject) or not valid_literal(subject):
            return None
        subject = self.made(subject)
        return subject if 0 < len(subject) <= MAX_SUBJECT else None

    def made(self, subject: bytes) -> bytes:
        """Return the transformed subject of one that matches the source, however long or empty."""
        if self._identity:
            return subject
        tokens = subject.split(b".")
        made = [maker(tokens) for maker in self._makers]
        if self._tail >= 0:
            made += tokens[self._tail :]
        return b".".join(made)


def hashed(subject: str, **accounts: str | None) -> str:
    """Replace the functions of a subject or filter that stand for an account by the hash of its name.

    Args:
        accounts: `account` (`{{account-hash()}}`), `exporter` (`{{account-hash-import()}}`) and `leaf_remote`
            (`{{account-hash-leaf-remote()}}`), as far as they are known there; None: it will be, so the function stays.

    Raises:
        TransformError: a function with arguments, or whose account is not known.
    """
    if "{{" not in subject:
        return subject
    return ".".join([_hashed(token, accounts) for token in subject.split(".")])


def _hashed(token: str, accounts: Mapping[str, str | None]) -> str:
    name, arguments = _account_call(token.encode())
    if not name:
        return token
    if arguments.strip():
        raise _invalid(_TOO_MANY, token.encode())
    account = accounts.get(name, "")
    if account == "":
        raise _invalid(_UNAVAILABLE, token.encode())
    return token if account is None else short_hash(account)


def _account_call(token: bytes) -> tuple[str, bytes]:
    """Return which account a token stands for, and the arguments; "": none."""
    found = next(((name, call) for name, form in _OF_ACCOUNTS if (call := form.search(token))), None)
    return ("", b"") if found is None or not _is_call(token) else (found[0], found[1][1])


def check_destination(destination: bytes) -> None:
    """Check a destination by itself, before it is combined with a source. Raises TransformError."""
    ended = False
    for token in destination.split(b"."):
        if not token or ended:
            raise _invalid("invalid transform", token)
        if _is_call(token):
            if _account_call(token)[0]:
                raise _invalid(_UNAVAILABLE, token)
            if not any(form.search(token) for _, form in _CALLS):
                raise _invalid(_UNKNOWN, token)
        elif token == b">":
            ended = True
        elif _BLANKS.search(token):
            raise _invalid("invalid transform", b"")


def _shape(subject: bytes) -> tuple[int, bool]:
    """Return the number of `*` tokens, and True if it ends with `>`. Raises TransformError if it is invalid."""
    tokens = subject.split(b".")
    if b"" in tokens or b">" in tokens[:-1]:
        raise TransformError("invalid subject")
    return tokens.count(b"*"), tokens[-1] == b">"


def _is_call(token: bytes) -> bool:
    return len(token) > 4 and token.startswith(b"{{") and token.endswith(b"}}")


def _invalid(why: str, token: bytes) -> TransformError:
    where = f" in {token.decode('utf-8', 'replace')}" if token else ""
    return TransformError(f"invalid mapping destination: {why}{where}")


# ------------------------------------------------------------------------------------------------ tokens
def _maker(token: bytes, positions: Positions) -> Maker:
    """Return the maker of a destination token. `positions` of `*` in the source; None: no wildcard."""
    if token[:1] == b"$":
        index = _int(token[1:])
        return _wildcard(_position(token, index, positions)) if index is not None else lambda tokens: token
    if not _is_call(token):
        return lambda tokens: token
    if _account_call(token)[0]:
        raise _invalid(_UNAVAILABLE, token)
    for name, form in _CALLS:
        found = form.search(token)
        if found is not None:
            return _function(name, token, _COMMA.split(found[1]), positions)
    raise _invalid(_UNKNOWN, token)


def _function(name: str, token: bytes, arguments: list[bytes], positions: Positions) -> Maker:
    if name == "partition":
        buckets = _small(token, arguments[0])
        indexes = [_number(token, argument) for argument in arguments[1:]]
        if positions is None:
            return _partition(buckets, [])
        return _partition(buckets, [_position(token, index, positions) for index in indexes])
    if name == "random":
        if len(arguments) != 1:
            raise _invalid(_NOT_ENOUGH, token)  # nats-server's text for too many of them as well
        return _random(_small(token, arguments[0]))
    if name == "wildcard":
        if arguments == [b""]:
            raise _invalid(_NOT_ENOUGH, token)
        if len(arguments) > 1:
            raise _invalid(_TOO_MANY, token)
        return _wildcard(_position(token, _number(token, arguments[0]), positions))
    if len(arguments) < 2:
        raise _invalid(_NOT_ENOUGH, token)
    if len(arguments) > 2:
        raise _invalid(_TOO_MANY, token)
    index = _number(token, arguments[0])
    if name == "split":
        if b" " in arguments[1]:
            raise _invalid(_INVALID, token)
        return _split(_position(token, index, positions), arguments[1])
    size = _small(token, arguments[1])
    return _cut(_position(token, index, positions), size, _CUTS[name])


def _number(token: bytes, text: bytes) -> int:
    number = _int(text.strip(b" "))
    if number is None:
        raise _invalid(_INVALID, token)
    return number


def _int(text: bytes) -> int | None:
    """Return the number of a text; None when it is none that fits into 64 bits."""
    if _INT.fullmatch(text) is None or len(text) > _MAX_DIGITS or int(text) not in _INT64:
        return None
    return int(text)


def _small(token: bytes, text: bytes) -> int:
    number = _number(token, text)
    if number not in _INT32:
        raise _invalid(_INVALID, token)
    return number


def _position(token: bytes, index: int, positions: Positions) -> int:
    """Return the position of the source's wildcard number `index`; 0 and less: the first token, as in nats-server."""
    if positions is None:
        raise _invalid(_OUT_OF_RANGE, token)
    if index > len(positions):
        raise _invalid(f"{_OUT_OF_RANGE} in {token.decode('utf-8', 'replace')}: [{index}]", b"")
    return positions[index - 1] if index > 0 else 0


# ------------------------------------------------------------------------------------------------ functions
def _wildcard(at: int) -> Maker:
    return lambda tokens: tokens[at]


def _partition(buckets: int, positions: Sequence[int]) -> Maker:
    """Return the bucket of the FNV-1a hash of these tokens (of the whole subject without any)."""
    count = buckets & 0xFFFFFFFF

    def number(tokens: Sequence[bytes]) -> bytes:
        if not count:
            return b"0"
        key = b"".join([tokens[at] for at in positions]) if positions else b".".join(tokens)
        return b"%d" % (fnv1a(key) % count)

    return number


def fnv1a(key: bytes) -> int:
    """Return the 32-bit FNV-1a hash."""
    value = 0x811C9DC5
    for byte in key:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def _random(buckets: int) -> Maker:
    return lambda tokens: b"%d" % (randrange(abs(buckets)) if buckets else 0)


def _split(at: int, separator: bytes) -> Maker:
    """Return the token's parts between separators, empty ones left out: `a--b-` becomes `a.b`."""

    def split(tokens: Sequence[bytes]) -> bytes:
        token = tokens[at]
        if separator:
            pieces = token.split(separator)
        else:
            pieces = [letter.encode("utf-8", "surrogateescape") for letter in token.decode("utf-8", "surrogateescape")]
        made = pieces[0]
        for number, piece in enumerate(pieces[1:], 1):
            if piece:
                # One leading separator leaves no empty token, several do, as in nats-server.
                made += piece if number == 1 and not pieces[0] else b"." + piece
        return made

    return split


def _cut(at: int, size: int, cut: Callable[[bytes, int], bytes]) -> Maker:
    def made(tokens: Sequence[bytes]) -> bytes:
        token = tokens[at]
        return cut(token, size) if 0 < size < len(token) else token

    return made


def _slices(token: bytes, size: int) -> bytes:
    return b".".join([token[at : at + size] for at in range(0, len(token), size)])


def _slices_from_right(token: bytes, size: int) -> bytes:
    first = len(token) % size
    return b".".join(([token[:first]] if first else []) + [_slices(token[first:], size)])


_CUTS: dict[str, Callable[[bytes, int], bytes]] = {
    "splitfromleft": lambda token, size: token[:size] + b"." + token[size:],
    "splitfromright": lambda token, size: token[:-size] + b"." + token[-size:],
    "slicefromleft": _slices,
    "slicefromright": _slices_from_right,
    "left": lambda token, size: token[:size],
    "right": lambda token, size: token[-size:],
}
