"""Accounts, as records: users and their permissions, limits, exports, imports and mappings.

Belongs here: every setting of accounts and users, with its unit and default. users.py, accounts.py, exports.py and
sharing.py make them of the configuration file, net/accounts/operators.py of JWTs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from lakestream.protocol.accounts import GLOBAL_ACCOUNT, JetStreamLimits

if TYPE_CHECKING:
    from lakestream.protocol import jwt  # with time zones, which a server without operators does without

RESPONSE_THRESHOLD_NS = 120_000_000_000
"""Default idle time of a stream of replies before its reply path is closed (2 min)."""


class SubjectRule(msgspec.Struct, frozen=True):
    """Allowed subjects (None: all) and denied ones. An entry may name a queue group: `orders.* workers`."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()


class AllowResponses(msgspec.Struct, frozen=True):
    """Permission to reply to received messages: number of replies (-1: unlimited), and time in ns."""

    max: int = 1
    expires_ns: int = 120_000_000_000


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """Permissions of a user; None: unrestricted."""

    publish: SubjectRule | None = None
    subscribe: SubjectRule | None = None
    responses: AllowResponses | None = None


class User(msgspec.Struct, frozen=True):
    """One user, with a password (plain text or a bcrypt hash, `$2a$…`) or with a key (`nkey`, `U…`).

    `connection_types`: the ways in that it may use, in upper case; (): any. `max_subscriptions` and `max_payload` are
    its own limits (-1: none) besides those of its account. `token`: of a user that an account signed; of a `bearer` it
    is enough to log in. `proxy_required`: it may come through a trusted proxy alone.
    """

    user: str
    password: str
    permissions: Permissions | None = None
    nkey: str = ""
    connection_types: tuple[str, ...] = ()
    max_subscriptions: int = -1
    max_payload: int = -1
    token: jwt.Token[jwt.UserClaims] | None = None
    bearer: bool = False
    proxy_required: bool = False

    @property
    def name(self) -> str:
        """Return its name, or its key."""
        return self.nkey or self.user

    @property
    def shown_token(self) -> str:
        """Return the text of its token; "" for none, and for a bearer's, with which anybody may log in."""
        return "" if self.token is None or self.bearer else self.token.text


class CalloutOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Auth callout: a service in `account` decides about every login but those of `users`.

    Attributes:
        issuer: public key of the account key that signs the service's answers.
        users: names or keys of the service's users, who log in as they are configured.
        xkey: public curve key of the service, to which requests are encrypted; "": they are not.
        allowed_accounts: have to exist; as in nats-server the service may name any account.
    """

    issuer: str
    users: tuple[str, ...]
    account: str = GLOBAL_ACCOUNT
    xkey: str = ""
    allowed_accounts: tuple[str, ...] = ()


class AccountLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`limits` of an account; -1: no limit. `max_subscriptions` is per connection, `max_payload` in bytes."""

    max_connections: int = -1
    max_leafnodes: int = -1
    max_subscriptions: int = -1
    max_payload: int = -1


class StreamExport(msgspec.Struct, frozen=True, kw_only=True):
    """A stream export. `accounts`: who may import it; None: any account.

    `token_position`: the token (from 1) of the subject that must be the importer's name; 0: none. `activated`:
    importers need an activation token, issued later than `revoked` says of them (s since the epoch by account, or `*`).
    """

    subject: str
    accounts: tuple[str, ...] | None = None
    token_position: int = 0
    activated: bool = False
    revoked: tuple[tuple[str, int], ...] = ()


class Latency(msgspec.Struct, frozen=True):
    """Destination of latency metrics, and the sampled requests in percent; 0: those with a tracing header."""

    subject: str
    sampling: int = 100


class ServiceExport(msgspec.Struct, frozen=True, kw_only=True):
    """A service export. For `accounts`, `token_position`, `activated` and `revoked` see `StreamExport`.

    `response`: one reply, any number, or any number up to an empty one; the latter two until they pause for
    `threshold_ns`. `allow_trace`: a trace of the request continues in this account.
    """

    subject: str
    accounts: tuple[str, ...] | None = None
    token_position: int = 0
    activated: bool = False
    revoked: tuple[tuple[str, int], ...] = ()
    response: Literal["singleton", "stream", "chunked"] = "singleton"
    threshold_ns: int = RESPONSE_THRESHOLD_NS
    latency: Latency | None = None
    allow_trace: bool = False


class StreamImport(msgspec.Struct, frozen=True, kw_only=True):
    """A stream import. `subject` as exported; here it is `to`, or `prefix` and a dot before it, or the same.

    `activation`: the exporter's permission for an export that requires one.
    """

    account: str
    subject: str
    to: str = ""
    prefix: str = ""
    allow_trace: bool = False
    activation: jwt.Token[jwt.Activation] | None = None


class ServiceImport(msgspec.Struct, frozen=True, kw_only=True):
    """A service import. `subject` as exported, `to` as here ("": the same); `share`: send the requester's identity.

    `activation`: see `StreamImport`.
    """

    account: str
    subject: str
    to: str = ""
    share: bool = False
    activation: jwt.Token[jwt.Activation] | None = None


class Destination(msgspec.Struct, frozen=True):
    """A destination of a mapped subject: weight in percent, and cluster ("": any)."""

    subject: str
    weight: int = 100
    cluster: str = ""


class SubjectMapping(msgspec.Struct, frozen=True):
    """A subject mapping: messages of the account's clients to `subject` go to one of the destinations."""

    subject: str
    destinations: tuple[Destination, ...]


class TraceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Traces of an account's messages with the header `traceparent`: their subject, and the percentage traced."""

    destination: str
    percent: int = 100


class AccountOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One account. `jetstream` None: off. `default_permissions`: of users without permissions of their own.

    `token`: of an account that an operator signed; its users have tokens, too.
    """

    name: str
    users: tuple[User, ...] = ()
    jetstream: JetStreamLimits | None = None
    limits: AccountLimits = AccountLimits()
    exports: tuple[StreamExport | ServiceExport, ...] = ()
    imports: tuple[StreamImport | ServiceImport, ...] = ()
    mappings: tuple[SubjectMapping, ...] = ()
    default_permissions: Permissions | None = None
    trace: TraceOptions | None = None
    token: jwt.Token[jwt.AccountClaims] | None = None

    @property
    def shown(self) -> str:
        """Return its name for people: that of its token, or the configured one."""
        return self.token.name or self.name if self.token is not None else self.name
