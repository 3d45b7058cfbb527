"""Subjects and filters: what is valid, what matches what.

Belongs here: pure functions over subjects as raw bytes, with the rules of nats-server 2.15
(docs/internals/protocol.md#subjects). A subject is tokens joined by `.`; in a filter the whole token `*` stands for
exactly one token and a last token `>` for one or more. Anything that keeps state (who subscribes to what) is the
interest graph's; what a stream allows is JetStream's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

_BLANKS = re.compile(rb"[ \t\r\n\f]")
_HAS_WILDCARD = re.compile(rb"(?:^|\.)(?:\*(?:\.|\Z)|>\Z)")
_ANY_WILDCARD_TOKEN = re.compile(rb"(?:^|\.)[*>](?:\.|\Z)")


def tokens(subject: bytes) -> list[bytes]:
    """The tokens of `subject`; empty ones where dots meet."""
    return subject.split(b".")


def is_literal(subject: bytes) -> bool:
    """Whether `subject` holds no wildcard token: it then names exactly one subject. `a*` and `a.>b` are literal."""
    if b"*" not in subject and b">" not in subject:
        return True
    return _HAS_WILDCARD.search(subject) is None


def subscribable(subject: bytes) -> bool:
    """Whether SUB accepts `subject`: no empty token, and `>` only as the last token.

    Blanks that end a word on the wire cannot be inside one; a form feed can, and the server takes it.
    """
    if not subject or subject[0] == 46 or subject[-1] == 46 or b".." in subject:
        return False
    # A `>` token anywhere but at the end.
    return not subject.startswith(b">.") and b".>." not in subject


def valid_subject(subject: bytes, wildcards: bool = True) -> bool:
    """Whether `subject` may stand in a configuration (a stream's subjects, a consumer's filter).

    Args:
        subject: the subject or filter.
        wildcards: False refuses a filter: only a literal subject is valid then.
    """
    if not subscribable(subject) or _BLANKS.search(subject) is not None:
        return False
    return wildcards or is_literal(subject)


def valid_literal(subject: bytes) -> bool:
    """Whether a pedantic PUB accepts `subject`: no empty token and no token that is `*` or `>`.

    Laxer than `valid_subject(…, wildcards=False)`: blanks are not looked at, as in nats-server.
    """
    if not subject or subject[0] == 46 or subject[-1] == 46 or b".." in subject:
        return False
    if b"*" not in subject and b">" not in subject:
        return True
    return _ANY_WILDCARD_TOKEN.search(subject) is None


def publishable(subject: bytes) -> bool:
    """Whether a message can be published to this subject: a literal that a protocol line can carry."""
    return valid_literal(subject) and not any(blank in subject for blank in (b" ", b"\t", b"\r", b"\n"))


def matches(pattern: bytes, subject: bytes) -> bool:
    """Whether the filter `pattern` selects `subject`.

    A subject with an empty token is selected by nothing. In `subject` the tokens `*` and `>` are ordinary: nats-server
    routes a message published to `a.*` to the subscribers of `a.*` and `a.>`.
    """
    if not subject or subject[0] == 46 or subject[-1] == 46 or b".." in subject:
        return False
    if pattern == subject:
        return True
    want, have = pattern.split(b"."), subject.split(b".")
    count = len(have)
    for i, token in enumerate(want):
        if i >= count:
            return False
        if token == b">" and i == len(want) - 1:
            return True
        if token not in (b"*", have[i]):
            return False
    return len(want) == count


def overlaps(a: bytes, b: bytes) -> bool:
    """Whether some subject is selected by both filters. Both must be valid."""
    left, right = a.split(b"."), b.split(b".")
    for x, y in zip(left, right, strict=False):
        if x == b">" or y == b">":
            return True
        if x != y and x != b"*" and y != b"*":
            return False
    return len(left) == len(right)


def covers(a: bytes, b: bytes) -> bool:
    """Whether filter `a` selects every subject that filter `b` selects. Both must be valid."""
    left, right = a.split(b"."), b.split(b".")
    for x, y in zip(left, right, strict=False):
        if x == b">":
            return True
        if y == b">" or (x not in (b"*", y)):
            return False
    return len(left) == len(right)


def intersection(a: bytes, b: bytes) -> bytes | None:
    """The filter that selects exactly what both filters select; None when that is nothing. Both must be valid."""
    left, right = a.split(b"."), b.split(b".")
    both: list[bytes] = []
    for at, (x, y) in enumerate(zip(left, right, strict=False)):
        if x == b">":
            return b".".join([*both, *right[at:]])
        if y == b">":
            return b".".join([*both, *left[at:]])
        if x != y and x != b"*" and y != b"*":
            return None
        both.append(y if x == b"*" else x)
    return b".".join(both) if len(left) == len(right) else None


class Filters:
    """Valid filters, and which of them have to do with another one.

    A request can name a hundred thousand filters: comparing each with each would keep everybody else waiting. A walk
    looks at no more of them than share the other filter's tokens up to a wildcard.
    """

    __slots__ = ("_root",)

    def __init__(self, filters: Iterable[bytes] = ()) -> None:
        # A node is a dict by token; no token is empty, so that b"" marks the end of a filter.
        self._root: dict[bytes, Any] = {}
        for one in filters:
            self.add(one)

    def add(self, one: bytes) -> None:
        """Take in a filter."""
        node = self._root
        for token in one.split(b"."):
            node = node.setdefault(token, {})
        node[b""] = {}

    def match(self, subject: bytes) -> bool:
        """Whether one of these selects `subject`; see `matches`."""
        tokens = subject.split(b".")
        if b"" in tokens:
            return False
        nodes = [self._root]
        for token in tokens:
            following = []
            for node in nodes:
                if b">" in node:
                    return True
                if token in node:
                    following.append(node[token])
                if b"*" in node and token != b"*":
                    following.append(node[b"*"])
            nodes = following
        return any(b"" in node for node in nodes)

    def overlap(self, other: bytes) -> bool:
        """Whether some subject is selected by `other` and by one of these."""
        tokens = other.split(b".")
        open_ends = [(self._root, 0)]
        while open_ends:
            node, at = open_ends.pop()
            if at == len(tokens):
                if b"" in node:
                    return True
                continue
            token = tokens[at]
            if b">" in node or (token == b">" and (len(node) > 1 or (node and b"" not in node))):
                return True
            if token == b"*":
                open_ends.extend((child, at + 1) for name, child in node.items() if name)
            else:
                open_ends.extend((node[name], at + 1) for name in (token, b"*") if name in node)
        return False

    def cover(self, other: bytes) -> bool:
        """Whether one of these, `other` itself aside, selects everything that `other` selects."""
        tokens = other.split(b".")
        # The third says whether the way here is `other` itself, letter by letter.
        open_ends = [(self._root, 0, True)]
        while open_ends:
            node, at, same = open_ends.pop()
            if at == len(tokens):
                if b"" in node and not same:
                    return True
                continue
            token = tokens[at]
            if b">" in node and not (same and token == b">"):
                return True
            if token != b">":
                names = {token, b"*"}
                open_ends.extend((node[name], at + 1, same and name == token) for name in names if name in node)
        return False


def to_regex(pattern: bytes) -> re.Pattern[bytes]:
    """A compiled expression that selects what `pattern` selects, for scans over many subjects.

    `match` and `fullmatch` agree (the expression is anchored). It is meant for stored subjects, which have no empty
    tokens: `>` is taken as "anything", because that scans faster than token by token.
    """
    parts = []
    words = pattern.split(b".")
    for i, word in enumerate(words):
        if word == b"*":
            parts.append(rb"[^.]+")
        elif word == b">" and i == len(words) - 1:
            parts.append(rb"(?s:.+)")
        else:
            parts.append(re.escape(word))
    return re.compile(rb"\.".join(parts) + rb"\Z")


def literal_head(pattern: bytes) -> bytes:
    """The literal tokens before the first wildcard token, with their dots."""
    head = b""
    for token in pattern.split(b"."):
        if token in (b"*", b">"):
            break
        head += token + b"."
    return head


def chooser(pattern: bytes, head: bytes) -> Callable[[list[bytes]], list[bytes]]:
    """What picks the subjects that `pattern` selects out of stored ones that begin with `head` (see `literal_head`, or
    empty). The patterns of most scans need no expression for that. Hot."""
    rest, at = pattern[len(head) :], len(head)
    if pattern == b">":
        return lambda subjects: subjects
    if rest == b">":
        return lambda subjects: [subject for subject in subjects if subject != head]
    if rest == b"*":
        return lambda subjects: [subject for subject in subjects if subject.find(b".", at) < 0 and subject != head]
    match = to_regex(pattern).fullmatch
    return lambda subjects: [subject for subject in subjects if match(subject)]
