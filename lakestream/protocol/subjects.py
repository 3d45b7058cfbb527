"""Subjects and filters: validity and matching.

Belongs here: pure functions over subjects as raw bytes, with the rules of nats-server 2.15
(docs/internals/protocol.md#subjects). A subject is tokens joined by `.`; in a filter the token `*` matches exactly one
token and a last token `>` one or more. Subscriptions are in net/interest.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from lakestream.native import SubjectMatcher, SubjectSeeker

T = TypeVar("T")

_BLANKS = re.compile(rb"[ \t\r\n\f]")
_HAS_WILDCARD = re.compile(rb"(?:^|\.)(?:\*(?:\.|\Z)|>\Z)")
_ANY_WILDCARD_TOKEN = re.compile(rb"(?:^|\.)[*>](?:\.|\Z)")
_STEP_BYTES = 8192
_STEP_NODES = 512
"""Bytes of filters, and nodes of a walk, between two steps of `redundant`: each takes about 0.1 ms."""
_HASH_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase


def short_hash(text: str) -> str:
    """Return a token of eight letters and digits for a text: the first bytes of its SHA-256, as in nats-server."""
    return "".join(_HASH_DIGITS[byte % len(_HASH_DIGITS)] for byte in hashlib.sha256(text.encode()).digest()[:8])


def is_literal(subject: bytes) -> bool:
    """Return True if `subject` has no wildcard token and so names exactly one subject. `a*` and `a.>b` are literal."""
    if b"*" not in subject and b">" not in subject:
        return True
    return _HAS_WILDCARD.search(subject) is None


def subscribable(subject: bytes) -> bool:
    """Return True if SUB accepts `subject`: no empty token, and `>` only as the last token.

    A word on the wire cannot contain the blanks that end it; it may contain a form feed, which is accepted.
    """
    if not subject or subject[0] == 46 or subject[-1] == 46 or b".." in subject:
        return False
    # A `>` token anywhere but at the end.
    return not subject.startswith(b">.") and b".>." not in subject


def valid_subject(subject: bytes, wildcards: bool = True) -> bool:
    """Return True if `subject` is valid in a configuration (a stream's subjects, a consumer's filter).

    Args:
        subject: the subject or filter.
        wildcards: False: only a literal subject is valid.
    """
    if not subscribable(subject) or _BLANKS.search(subject) is not None:
        return False
    return wildcards or is_literal(subject)


def valid_literal(subject: bytes) -> bool:
    """Return True if a pedantic PUB accepts `subject`: no empty token and no token that is `*` or `>`.

    Laxer than `valid_subject(…, wildcards=False)`: blanks are allowed, as in nats-server.
    """
    if not subject or subject[0] == 46 or subject[-1] == 46 or b".." in subject:
        return False
    if b"*" not in subject and b">" not in subject:
        return True
    return _ANY_WILDCARD_TOKEN.search(subject) is None


_REQUESTS = frozenset((b"API", b"ACK", b"FC", b"SNAPSHOT", b"EVENT"))
"""Second tokens of JetStream's own subjects."""


def publishable(subject: bytes) -> bool:
    """Return True if a message can be published to this subject: a literal that fits into a protocol line."""
    return valid_literal(subject) and not any(blank in subject for blank in (b" ", b"\t", b"\r", b"\n"))


def is_reserved(subject: bytes) -> bool:
    """Return True if a message at this subject is a request, an ack or an answer of JetStream.

    No client may name it for what the server sends by itself: deliveries, backups, republished messages.
    """
    if not subject.startswith(b"$JS."):
        return subject.startswith((b"_R_.", b"_GR_."))
    tokens = subject.split(b".", 3)
    return tokens[1] in _REQUESTS or tokens[2:3] == [b"API"]


def is_api_request(subject: bytes) -> bool:
    """Return True if a message at this subject is a request to JetStream's API, perhaps that of another domain."""
    if not subject.startswith(b"$JS."):
        return False
    tokens = subject.split(b".", 3)
    return tokens[1] == b"API" or (tokens[1] not in _REQUESTS and tokens[2:3] == [b"API"])


def matches(pattern: bytes, subject: bytes) -> bool:
    """Return True if the filter `pattern` matches `subject`.

    A subject with an empty token matches nothing. In `subject` the tokens `*` and `>` are literal: nats-server routes a
    message published to `a.*` to the subscribers of `a.*` and `a.>`.
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
    """Return True if some subject matches both filters. Both must be valid."""
    left, right = a.split(b"."), b.split(b".")
    for x, y in zip(left, right, strict=False):
        if x == b">" or y == b">":
            return True
        if x != y and x != b"*" and y != b"*":
            return False
    return len(left) == len(right)


def covers(a: bytes, b: bytes) -> bool:
    """Return True if filter `a` matches every subject that filter `b` matches. Both must be valid."""
    left, right = a.split(b"."), b.split(b".")
    for x, y in zip(left, right, strict=False):
        if x == b">":
            return True
        if y == b">" or (x not in (b"*", y)):
            return False
    return len(left) == len(right)


def intersection(a: bytes, b: bytes) -> bytes | None:
    """Return the filter that matches exactly what both filters match; None when that is nothing. Both must be valid."""
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


class SubjectFilters:
    """A set of valid filters, compared with other filters.

    A request can name a hundred thousand filters, too many to compare each with each. A walk visits only those that
    share the other filter's tokens up to a wildcard.
    """

    __slots__ = ("_root",)

    def __init__(self, filters: Iterable[bytes] = ()) -> None:
        # A node is a dict by token; no token is empty, so that b"" marks the end of a filter. Its value is shared.
        self._root: dict[bytes, Any] = {}
        for one in filters:
            self.add(one)

    def add(self, one: bytes) -> None:
        node = self._root
        for token in one.split(b"."):
            node = node.setdefault(token, {})
        node[b""] = None

    def match(self, subject: bytes) -> bool:
        """Return True if one of these matches `subject`; see `matches`."""
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
        """Return True if some subject matches `other` and one of these."""
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
                continue
            if token in node:
                open_ends.append((node[token], at + 1))
            if b"*" in node:
                open_ends.append((node[b"*"], at + 1))
        return False

    def covering(self, others: Iterable[bytes]) -> Steps[bool]:
        """Find out, in steps, whether one of these, except `other` itself, matches all that one of `others` matches."""
        visited = 0
        for other in others:
            tokens = other.split(b".")
            # The third is True while the path equals `other` itself.
            open_ends = [(self._root, 0, True)]
            while open_ends:
                visited += 1
                if not visited % _STEP_NODES:
                    yield
                node, at, same = open_ends.pop()
                if at == len(tokens):
                    if b"" in node and not same:
                        return True
                    continue
                token = tokens[at]
                if b">" in node and not (same and token == b">"):
                    return True
                if token != b">":
                    if b"*" in node and token != b"*":
                        open_ends.append((node[b"*"], at + 1, False))
                    if token in node:
                        open_ends.append((node[token], at + 1, same))
        return False


Steps = Generator[None, None, T]
"""Work that may be interrupted after each step; its result is the generator's."""


def finished(steps: Steps[T]) -> T:
    """Do all steps at once; return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def redundant(filters: Sequence[bytes]) -> Steps[bool]:
    """Find out, in steps, whether valid filters contain one twice, or one that covers another."""
    if len(set(filters)) < len(filters):
        return True
    known, size = SubjectFilters(), 0
    for one in filters:
        known.add(one)
        size += len(one)
        if size >= _STEP_BYTES:
            size = 0
            yield
    return (yield from known.covering(filters))


def literal_head(pattern: bytes) -> bytes:
    """Return the literal tokens before the first wildcard token, with their dots."""
    head = b""
    for token in pattern.split(b"."):
        if token in (b"*", b">"):
            break
        head += token + b"."
    return head


SOUGHT_PATTERNS = 4
"""For more patterns together no subjects are skipped."""


class SubjectWalk(NamedTuple):
    """Range of subjects with those that match some patterns.

    Attributes:
        head: beginning of all its subjects.
        choose: selects the matching ones among stored subjects there.
        seek: `seeker` of the patterns; None if many of the subjects match.
    """

    head: bytes
    choose: Callable[[list[bytes]], list[bytes]]
    seek: SubjectSeeker | None


def walks(patterns: Iterable[bytes]) -> list[SubjectWalk]:
    """Return disjoint ranges of subjects, which together have all that match valid patterns."""
    ranges: list[tuple[bytes, list[bytes]]] = []
    for head, pattern in sorted((literal_head(pattern), pattern) for pattern in set(patterns)):
        if ranges and head.startswith(ranges[-1][0]):
            ranges[-1][1].append(pattern)
        else:
            ranges.append((head, [pattern]))
    return [SubjectWalk(head, chooser(some, head), seeker(some)) for head, some in ranges]


def seeker(patterns: Sequence[bytes]) -> SubjectSeeker | None:
    """Return what skips subjects between two that match; None if that would not pay."""
    parted = [pattern.split(b".") for pattern in patterns]
    pays = len(parted) <= SOUGHT_PATTERNS and all(
        b"*" in tokens and tokens[-1] not in (b"*", b">") and tokens[-1] for tokens in parted
    )
    return SubjectSeeker(patterns) if pays else None


def chooser(patterns: Sequence[bytes], head: bytes) -> Callable[[list[bytes]], list[bytes]]:
    """Return a function that selects the subjects that match one of `patterns` from stored ones that begin with `head`
    (see `literal_head`, or empty). The simplest patterns compare nothing. Hot."""
    first, at = patterns[0], len(head)
    rest = first[at:] if len(patterns) == 1 and first.startswith(head) else b""
    if b">" in patterns:
        return lambda subjects: subjects
    if rest == b">":
        return lambda subjects: [subject for subject in subjects if subject != head]
    if rest == b"*":
        return lambda subjects: [subject for subject in subjects if subject.find(b".", at) < 0 and subject != head]
    return SubjectMatcher(patterns).choose
