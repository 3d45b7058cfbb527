"""Accounts as configured, as records.

Belongs here: what `accounts {}` and the users in it may say, with units and defaults, nothing that decides. How the
text is written is in accounts.py, what must hold between accounts in accounts/checks.py.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from lakestream.protocol.accounts import JetStreamLimits

RESPONSE_THRESHOLD_NS = 120_000_000_000
"""How long a stream of answers may pause before its way back is closed, where an export does not say (2 min)."""


class SubjectRule(msgspec.Struct, frozen=True):
    """Subjects that are allowed (None: all) but for the denied ones. An entry may carry a queue: `orders.* workers`."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()


class AllowResponses(msgspec.Struct, frozen=True):
    """A user may publish to the reply subjects of what it received: so many answers (-1: any number), so long (ns)."""

    max: int = 1
    expires_ns: int = 120_000_000_000


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may publish and subscribe to. None: everything."""

    publish: SubjectRule | None = None
    subscribe: SubjectRule | None = None
    responses: AllowResponses | None = None


class User(msgspec.Struct, frozen=True):
    """One user who may connect. `password` is plain text or a bcrypt hash (`$2a$…`)."""

    user: str
    password: str
    permissions: Permissions | None = None


class AccountLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`limits` of an account; -1: none. `max_subscriptions` is of one connection, `max_payload` in bytes."""

    max_connections: int = -1
    max_subscriptions: int = -1
    max_payload: int = -1


class StreamExport(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that other accounts may have. `accounts`: which ones, None: any.

    `token_position`: the token (from 1) of the subject that must be the importer's name; 0: none.
    """

    subject: str
    accounts: tuple[str, ...] | None = None
    token_position: int = 0


class Latency(msgspec.Struct, frozen=True):
    """Where measurements of a service go, and of how many requests: percent, or 0 for those with a tracing header."""

    subject: str
    sampling: int = 100


class ServiceExport(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that other accounts may make. `accounts`, `token_position`: see `StreamExport`.

    `response`: one answer, any number, or any number up to an empty one; the latter two until they pause for
    `threshold_ns`. `allow_trace`: a trace of the request goes on in this account.
    """

    subject: str
    accounts: tuple[str, ...] | None = None
    token_position: int = 0
    response: Literal["singleton", "stream", "chunked"] = "singleton"
    threshold_ns: int = RESPONSE_THRESHOLD_NS
    latency: Latency | None = None
    allow_trace: bool = False


class StreamImport(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of another account. `subject` as there; here under `to`, or under `prefix` and a dot, or as there."""

    account: str
    subject: str
    to: str = ""
    prefix: str = ""
    allow_trace: bool = False


class ServiceImport(msgspec.Struct, frozen=True, kw_only=True):
    """Requests into another account. `subject` as there, `to` as here ("": the same); `share`: tell who asks."""

    account: str
    subject: str
    to: str = ""
    share: bool = False


class Destination(msgspec.Struct, frozen=True):
    """Where a mapped subject goes: with what weight (percent), and in which cluster ("": any)."""

    subject: str
    weight: int = 100
    cluster: str = ""


class SubjectMapping(msgspec.Struct, frozen=True):
    """What an account's clients publish to `subject` goes to one of the destinations."""

    subject: str
    destinations: tuple[Destination, ...]


class AccountOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One account. `jetstream` None: it has none. `default_permissions`: of its users who have none of their own."""

    name: str
    users: tuple[User, ...] = ()
    jetstream: JetStreamLimits | None = None
    limits: AccountLimits = AccountLimits()
    exports: tuple[StreamExport | ServiceExport, ...] = ()
    imports: tuple[StreamImport | ServiceImport, ...] = ()
    mappings: tuple[SubjectMapping, ...] = ()
    default_permissions: Permissions | None = None


def lower_limit(one: int, other: int) -> int:
    """Return the lower of two limits; below 0: none."""
    return min(one, other) if one >= 0 and other >= 0 else max(one, other)
