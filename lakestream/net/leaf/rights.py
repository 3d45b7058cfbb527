"""Rights of a leaf connection.

Belongs here: decisions from subjects alone, for both directions: permissions of the user that a leaf node logged in as,
subjects that either side denies, and JetStream requests, which each side answers for its own clients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from lakestream.net.accounts.permissions import MAX_REMEMBERED, MAX_REMEMBERED_SUBJECT, ReplyPermissions, Rules
from lakestream.net.leaf.account import LOOPS
from lakestream.protocol.subjects import SubjectFilters
from lakestream.protocol.transforms import TransformError, hashed

Decide = Callable[[bytes], bool]


class Rights:
    """The rights of one connection.

    Args:
        sends: may messages on a subject be sent to the other side; None: all of them.
        takes: may they be taken from there; None: all of them.
        denied: subjects that are not sent.
        refused: subjects that are not taken.
        own: prefixes of JetStream requests that this server answers itself.
        replies: answers that the other side may send beside what `takes` allows; None: no more.
    """

    def __init__(
        self,
        sends: Decide | None = None,
        takes: Decide | None = None,
        *,
        denied: Iterable[bytes] = (),
        refused: Iterable[bytes] = (),
        own: tuple[bytes, ...] = (),
        replies: ReplyPermissions | None = None,
    ) -> None:
        self._sends, self._takes = sends, takes
        self._denied, self._refused = _filters(denied), _filters(refused)
        self._own, self._replies = own, replies
        self._sent: dict[bytes, bool] = {}
        self._taken: dict[bytes, bool] = {}
        self.limits_sending = sends is not None or self._denied is not None
        self.limits_taking = takes is not None or self._refused is not None

    def is_own(self, subject: bytes) -> bool:
        """Return True for JetStream requests that do not go to the other side."""
        return bool(self._own) and subject.startswith(self._own)

    def sends(self, subject: bytes) -> bool:
        """Return True if messages on this subject are sent."""
        known = self._sent.get(subject)
        if known is None:
            known = not (self._denied is not None and self._denied.match(subject))
            known = known and (self._sends is None or self._sends(subject))
            _remember(self._sent, subject, known)
        return known

    def takes(self, subject: bytes) -> bool:
        """Return True if messages on this subject are taken, apart from answers."""
        known = self._taken.get(subject)
        if known is None:
            known = not (self._refused is not None and self._refused.match(subject))
            known = known and (self._takes is None or self._takes(subject))
            _remember(self._taken, subject, known)
        return known

    def tells(self, subject: bytes) -> bool:
        """Return True if the other side is told of a subscription to this subject."""
        return subject.startswith(LOOPS) or not self.limits_taking or self.takes(subject)

    def follows(self, subject: bytes) -> bool:
        """Return True if the other side may subscribe to this subject; what a wider one may not get is filtered."""
        return not self.limits_sending or subject.startswith((LOOPS, b">")) or self.sends(subject)

    def asked(self, reply: bytes, now: int) -> None:
        """Permit an answer to a message that was sent."""
        if self._replies is not None:
            self._replies.received(reply, now)

    def answers(self, subject: bytes, now: int) -> bool:
        """Return True if this is an answer that the other side may still send, and count it."""
        return self._replies is not None and self._replies.spend(subject, now)


def denied(subjects: Iterable[str], account: str, remote: str | None) -> list[str]:
    """Return subjects that a leaf node denies, with the functions replaced that stand for an account.

    Invalid ones stay as they are: no subject matches them.

    Args:
        account: of the leaf node.
        remote: the account that it joins; None: not known.
    """
    made = list(subjects)
    for at, subject in enumerate(made):
        with contextlib.suppress(TransformError):
            made[at] = hashed(subject, account=account, leaf_remote=remote)
    return made


def of_user(rules: Rules | None, denied: Iterable[str], own: tuple[bytes, ...]) -> Rights:
    """Return the rights of a leaf node that logged in as a user with these permissions (None: all).

    Args:
        denied: subjects that the leaf node does not want.
    """
    subjects = [subject.encode() for subject in denied]
    if rules is None:
        return Rights(denied=subjects, own=own)
    replies = ReplyPermissions(rules.responses) if rules.responses is not None else None
    sends = _subscribing(rules)
    return Rights(sends, rules.may_publish, denied=subjects, own=own, replies=replies)


def as_user(rules: Rules | None, denied: Iterable[str], refused: Iterable[str], own: tuple[bytes, ...]) -> Rights:
    """Return the rights of this server where it is the leaf node, logged in as a user with these permissions.

    Args:
        denied: subjects that are not sent there; `refused`: not taken from there.
    """
    out, into = [subject.encode() for subject in denied], [subject.encode() for subject in refused]
    if rules is None:
        return Rights(denied=out, refused=into, own=own)
    return Rights(rules.may_publish, _subscribing(rules), denied=out, refused=into, own=own)


def _subscribing(rules: Rules) -> Decide:
    return lambda subject: rules.may_subscribe(subject) and not rules.hides(subject)


def _filters(subjects: Iterable[bytes]) -> SubjectFilters | None:
    listed = list(subjects)
    return SubjectFilters(listed) if listed else None


def _remember(decisions: dict[bytes, bool], subject: bytes, decision: bool) -> None:
    if len(subject) > MAX_REMEMBERED_SUBJECT:
        return
    if len(decisions) >= MAX_REMEMBERED:
        decisions.clear()
    decisions[subject] = decision
