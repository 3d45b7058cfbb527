"""The permissions of one user.

Belongs here: decisions from subjects and queue groups alone, the replies that a user may still send, and the texts of
violations (-ERR and log line) as nats-server has them. Handling of a denied message is in guard.py.

Permissions with wildcards are read as in nats-server, except where that would allow more than is written: `orders.*`
does not allow a subscription to `orders.>`, and a subject stays denied for a queue group when another group is denied
by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lakestream.config.account_options import AllowResponses, Permissions, SubjectRule
from lakestream.protocol.client import Sight
from lakestream.protocol.goquote import quoted
from lakestream.protocol.subjects import SubjectFilters, covers, is_api_request, is_literal, matches, overlaps


class PermissionViolation(NamedTuple):
    """A permission violation: the text of -ERR, and the line in the log."""

    error: str
    logged: str


def publish_refusal(subject: bytes) -> PermissionViolation:
    shown = quoted(subject)
    return PermissionViolation(f"Permissions Violation for Publish to {shown}", f"Publish Violation - Subject {shown}")


def reply_refusal(subject: bytes) -> PermissionViolation:
    """Return the violation of a publish with the reply subject `subject`."""
    shown = quoted(subject)
    return PermissionViolation(
        f"Permissions Violation for Publish with Reply of {shown}", f"Publish Violation - Reply {shown}"
    )


def subscribe_refusal(subject: bytes, queue: bytes, sid: bytes) -> PermissionViolation:
    """Return the violation of a SUB."""
    error = f"Permissions Violation for Subscription to {quoted(subject)}"
    logged = f"Subscription Violation - Subject {quoted(subject)}"
    if queue:
        error += f" using queue {quoted(queue)}"
        logged += f", Queue: {quoted(queue)}"
    return PermissionViolation(error, f"{logged}, SID {sid.decode('utf-8', 'replace')}")


def too_many_tokens(subject: bytes, sid: bytes) -> PermissionViolation:
    """Return the violation of a SUB above max_subscription_tokens."""
    logged = f"Subscription Violation Too Many Tokens - Subject {quoted(subject)}, SID {sid.decode('utf-8', 'replace')}"
    return PermissionViolation(f"Permissions Violation for Subscription to {quoted(subject)}, too many tokens", logged)


def removal_refusal(subject: bytes, sid: bytes, user: str) -> PermissionViolation:
    """Return the violation of a live subscription that changed permissions no longer allow."""
    which = f"{quoted(subject)} (sid {quoted(sid)})"
    return PermissionViolation(
        f"Permissions Violation for Subscription to {which}",
        f"Removed sub {which} for User {quoted(user)} - not authorized",
    )


MAX_REMEMBERED = 4096
"""Cached decisions per user, each for publishing and for filtering (default 4,096). Cleared when full."""

MAX_REMEMBERED_SUBJECT = 256
"""Decisions for subjects longer than this (bytes, default 256) are not cached."""

MAX_ANSWERS = 65_536
"""Open reply subjects of a connection with allow_responses (default 65,536). Beyond it the oldest is closed."""

MAX_ANSWER_BYTES = 16 << 20
"""Total length of these subjects in bytes (default 16 MiB). The oldest ones are closed when it is exceeded."""

_EVERYTHING = SubjectRule()


class _Entries:
    """Entries of an allow or deny list: subjects, and subjects for given queue groups."""

    def __init__(self, entries: Iterable[str]) -> None:
        self.plain: list[bytes] = []
        self._groups: list[tuple[bytes, bytes]] = []
        for entry in entries:
            subject, _, queue = entry.strip().encode().partition(b" ")
            if queue:
                self._groups.append((subject, queue.strip()))
            else:
                self.plain.append(subject)
        self.filters = SubjectFilters(self.plain)

    def named(self) -> list[tuple[bytes, bytes]]:
        """Return the entries for queue groups: subject and group."""
        return self._groups

    def groups(self, subject: bytes, *, whole: bool) -> list[bytes]:
        """Return the queue groups that entries for `subject` name. `whole`: only entries that cover all of it."""
        return [queue for entry, queue in self._groups if _selects(entry, subject, whole)]

    def match(self, subject: bytes, *, whole: bool) -> bool:
        """Return True if an entry without a queue group matches `subject`; wildcards in `subject` are literal tokens.

        Args:
            whole: the entry must cover everything that a subscription to `subject` receives.
        """
        if not self.filters.match(subject):
            return False
        return not whole or is_literal(subject) or any(_selects(entry, subject, whole) for entry in self.plain)


def _selects(entry: bytes, subject: bytes, whole: bool) -> bool:
    return matches(entry, subject) and (not whole or covers(entry, subject))


def _named(queue: bytes, groups: Iterable[bytes]) -> bool:
    """Return True if the queue group matches one of these, which may have wildcards."""
    return any(queue == group or (not is_literal(group) and matches(group, queue)) for group in groups)


class Rules:
    """The permissions of one user; shared by its connections.

    Attributes:
        responses: the user's allow_responses; None: not set.
    """

    def __init__(self, permissions: Permissions) -> None:
        self.permissions = permissions
        self.responses = permissions.responses
        publish, subscribe = permissions.publish or _EVERYTHING, permissions.subscribe or _EVERYTHING
        allow = publish.allow
        if allow is None and self.responses is not None:
            allow = ()  # with allow_responses alone nothing else may be published, as in nats-server
        self._publish_allow = None if allow is None else _filters(allow)
        self._publish_deny = _filters(publish.deny)
        self._subscribe_allow = None if subscribe.allow is None else _Entries(subscribe.allow)
        self._subscribe_deny = _Entries(subscribe.deny)
        self._may_publish: dict[bytes, bool] = {}
        self._hidden: dict[bytes, bool] = {}

    def may_publish(self, subject: bytes) -> bool:
        """Return True if the user may publish to `subject`, apart from replies."""
        known = self._may_publish.get(subject)
        if known is None:
            allow = self._publish_allow
            known = (allow is None or allow.match(subject)) and not self._publish_deny.match(subject)
            _remember(self._may_publish, subject, known)
        return known

    def may_subscribe(self, subject: bytes, queue: bytes = b"") -> bool:
        """Return True if the user may subscribe to `subject`, in that queue group or (b"") in none.

        An entry without a queue group applies to any group, unless other allow entries name groups for the same
        subject.
        """
        allow, deny = self._subscribe_allow, self._subscribe_deny
        if allow is not None:
            allowed = allow.match(subject, whole=True)
            if queue and (groups := allow.groups(subject, whole=True)):
                allowed = _named(queue, groups)
            if not allowed:
                return False
        denied = queue and _named(queue, deny.groups(subject, whole=False))
        return not denied and not deny.match(subject, whole=False)

    def sees(self) -> tuple[Sight, ...] | None:
        """Return the subjects whose messages the user can receive by some subscription; None: all."""
        allow, deny = self._subscribe_allow, self._subscribe_deny
        hidden = _texts(deny.plain)
        if allow is None or b">" in allow.plain:
            return (Sight(deny=hidden),) if hidden else None
        # In a queue group that only some entries of `deny` name, others stay.
        of_groups = [
            Sight((subject.decode(),), (*hidden, *_texts(each for each, group in deny.named() if covers(group, queue))))
            for subject, queue in allow.named()
        ]
        return (Sight(_texts(allow.plain), hidden), *of_groups)

    def filtered(self, subject: bytes) -> bool:
        """Return True if a subscription to `subject` would receive denied subjects too."""
        deny = self._subscribe_deny.plain
        return bool(deny) and not is_literal(subject) and any(overlaps(entry, subject) for entry in deny)

    def hides(self, subject: bytes) -> bool:
        """Return True if messages with this subject are denied to the user, whatever it subscribed to."""
        known = self._hidden.get(subject)
        if known is None:
            known = self._subscribe_deny.filters.match(subject)
            _remember(self._hidden, subject, known)
        return known


def _texts(subjects: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(subject.decode() for subject in subjects)


def _filters(entries: Iterable[str]) -> SubjectFilters:
    return SubjectFilters(entry.encode() for entry in entries)


def _remember(decisions: dict[bytes, bool], subject: bytes, decision: bool) -> None:
    if len(subject) > MAX_REMEMBERED_SUBJECT:
        return
    if len(decisions) >= MAX_REMEMBERED:
        decisions.clear()
    decisions[subject] = decision


class ReplyPermissions:
    """Reply subjects of received messages, to which a connection may publish for a while (allow_responses)."""

    def __init__(self, rule: AllowResponses, maximum: int = MAX_ANSWERS) -> None:
        usual = AllowResponses()
        # 0 is the default, negative is unlimited, as in nats-server.
        self._max = rule.max or usual.max
        self._expires_ns = rule.expires_ns or usual.expires_ns
        self._maximum = maximum
        # Time of delivery and number of replies, by reply subject; the oldest first.
        self._open: dict[bytes, tuple[int, int]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def received(self, reply: bytes, now: int) -> None:
        """Permit replies to a message that was delivered with this reply subject, which is no request to JetStream."""
        if is_api_request(reply):
            return
        self._close(reply)
        self._forget(now)
        self._open[reply] = (now, 0)
        self._bytes += len(reply)

    def _forget(self, now: int) -> None:
        """Close expired reply subjects, and the oldest ones beyond the limits."""
        while self._open:
            oldest = next(iter(self._open))
            fits = len(self._open) < self._maximum and self._bytes < MAX_ANSWER_BYTES
            if fits and not self._expired(self._open[oldest][0], now):
                return
            self._close(oldest)

    def _close(self, reply: bytes) -> None:
        if self._open.pop(reply, None) is not None:
            self._bytes -= len(reply)

    def _expired(self, came: int, now: int) -> bool:
        return 0 < self._expires_ns < now - came

    def spend(self, subject: bytes, now: int) -> bool:
        """Return True if the connection may publish to `subject` as a reply, and count it."""
        found = self._open.get(subject)
        if found is None:
            return False
        came, answered = found
        if 0 < self._max <= answered or self._expired(came, now):
            self._close(subject)
            return False
        self._open[subject] = (came, answered + 1)  # keeps its place
        return True
