"""Operators, and what the tokens of their accounts and users allow.

Belongs here: decisions from decoded tokens alone: whom an operator trusts, an account's token as the options of an
account, a user's token as a login, the templates of scopes, and why a connected user may not stay; with nats-server's
reasons. Tokens are decoded in protocol/jwt.py and fetched in signed_accounts.py.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from lakestream.config.account_options import (
    RESPONSE_THRESHOLD_NS,
    AccountLimits,
    AccountOptions,
    AllowResponses,
    Destination,
    Latency,
    Permissions,
    ServiceExport,
    ServiceImport,
    StreamExport,
    StreamImport,
    SubjectMapping,
    SubjectRule,
    TraceOptions,
    User,
)
from lakestream.config.mappings import Mappings, hashed_mapping
from lakestream.config.options import MINUTE, SECOND, OperatorOptions
from lakestream.config.sharing import Entry, hashed_entry
from lakestream.config.users import CONNECTION_TYPES
from lakestream.net.accounts.auth import NO_PROXY, Credentials, Login, Refusal, kept_from_callouts, signature_error
from lakestream.protocol import jwt, nkeys
from lakestream.protocol.accounts import JetStreamLimits
from lakestream.protocol.goquote import quoted
from lakestream.protocol.jwt import JwtError, Token
from lakestream.protocol.subjects import publishable, valid_subject
from lakestream.protocol.transforms import TransformError

MAX_TEMPLATED = 4096
"""Subjects that the templates of a scope may give one user (default). A login beyond that is refused."""

INVALID = "account validation failed"
NO_TOKEN = "Authentication requires a user JWT"

AccountToken = Token[jwt.AccountClaims]
UserToken = Token[jwt.UserClaims]


class ConnectionEnd(NamedTuple):
    """The end of a connection: the text of -ERR ("": none is sent) and the reason that monitoring shows."""

    error: str
    reason: str


class Unusable(msgspec.Struct, frozen=True):
    """The reason why an account cannot be used. `warnings`: for the log of the server."""

    reason: str
    warnings: tuple[str, ...] = ()


class Trust:
    """The operators that this server trusts, and what follows for accounts and users.

    Args:
        options: operator mode.
        system_account: the system account's key; "": none.
    """

    def __init__(self, options: OperatorOptions, system_account: str = "") -> None:
        self._keys = set(options.trusted_keys)
        self._strict: set[str] = set()
        """Keys of operators whose accounts must use signing keys."""
        for operator in options.operators:
            signing = set(operator.nats.signing_keys)
            self._keys |= signing
            if operator.nats.strict_signing_key_usage:
                self._strict |= signing
            else:
                self._keys.add(operator.sub)
        self._pinned = {*options.pinned_accounts, system_account} if options.pinned_accounts else set[str]()

    def trusts(self, key: str) -> bool:
        """Return True if this is the key, or a signing key, of a trusted operator."""
        return key in self._keys

    def admits(self, account: str) -> bool:
        """Return True if users of this account may log in (resolver_pinned_accounts)."""
        return not self._pinned or account in self._pinned

    # ------------------------------------------------------------------ accounts
    def account(self, key: str, text: str, now_s: int) -> AccountToken:
        """Return the token of an account that may be used now. Raises JwtError."""
        token = jwt.decode(text, jwt.AccountClaims)
        if token.sub != key or jwt.account_issues(token) or token.time_issues(now_s) or not self.trusts(token.iss):
            raise JwtError(INVALID)
        return token

    # ------------------------------------------------------------------ users
    def user(self, text: str, now_s: int) -> UserToken | Refusal:
        """Return the token of a user as far as it can be judged without its account."""
        try:
            token = jwt.decode(text, jwt.UserClaims)
        except JwtError:
            return Refusal(NO_TOKEN)
        if issues := [*token.time_issues(now_s), *jwt.user_issues(token.nats)]:
            return Refusal(f"User JWT no longer valid: &{{Issues:[{' '.join(issues)}]}}")
        issuer = issuer_account(token)
        if not self.admits(issuer):
            return Refusal(f"Account {issuer} not listed as operator pinned account")
        return token

    def login(
        self, account: AccountOptions, token: UserToken, credentials: Credentials, now_ns: int
    ) -> Login | Refusal:
        """Return what comes of a user's token and these credentials in this account."""
        assert account.token is not None  # Invariant: of operator mode.
        user = self._user(account, token)
        if isinstance(user, Refusal):
            return user
        limits = user_limits(account.token, token)
        if limits.bearer_token and account.token.nats.limits.disallow_bearer:
            return Refusal("Account does not allow bearer tokens")
        kinds = user.connection_types
        if limits.allowed_connection_types and not kinds:
            unknown = map(quoted, (kind.upper() for kind in limits.allowed_connection_types))
            return Refusal(f"invalid connection types [{' '.join(unknown)}]")
        if kinds and credentials.kind not in kinds:
            return Refusal("Connection type not allowed")
        if limits.proxy_required and not credentials.proxy:
            return NO_PROXY
        if not limits.bearer_token and (error := _signature_error(token, credentials)):
            return Refusal(error)
        if is_revoked(account.token, token):
            return Refusal("User authentication revoked")
        if not may_come_from(limits, credentials.host):
            return Refusal(errors=(f"Bad src Ip {credentials.host}",))
        return self._timed(account, user, limits, now_ns)

    def vouched(self, account: AccountOptions, token: UserToken, now_ns: int) -> Login | Refusal:
        """Return what comes of the token of a user for whom the service of an auth callout vouches: nobody signs for
        it. The way and the address are judged by the callout's ruling."""
        assert account.token is not None  # Invariant: of operator mode.
        user = self._user(account, token, called_out=True)
        if isinstance(user, Refusal):
            return user
        if is_revoked(account.token, token):
            return Refusal("User authentication revoked")
        return self._timed(account, replace(user, user=token.name), user_limits(account.token, token), now_ns)

    @staticmethod
    def _timed(account: AccountOptions, user: User, limits: jwt.UserLimits, now_ns: int) -> Login | Refusal:
        assert user.token is not None  # Invariant: of operator mode.
        until_ns = connect_until(limits, now_ns)
        if until_ns < 0:
            return Refusal(errors=("Outside connect times",))
        ends = [end for end in (until_ns, user.token.exp * SECOND) if end]
        return Login(account.name, user, min(ends, default=0))

    def _user(self, account: AccountOptions, token: UserToken, *, called_out: bool = False) -> User | Refusal:
        """Return a user with the permissions and limits of its token or scope."""
        signed = account.token
        assert signed is not None  # Invariant: of operator mode.
        if not self._signs(signed, token.iss):
            return Refusal("User JWT issuer is not known")
        limits = user_limits(signed, token)
        permissions: jwt.JwtPermissions | None = limits
        if signed.nats.scopes.get(token.iss) is not None:
            if not _unlimited(token.nats):
                return Refusal("User JWT is not valid: scoped users require no permissions or limits set")
            permissions = resolved(limits, token, signed)
            if permissions is None:
                return Refusal("User JWT generated invalid permissions")
        kinds = tuple(kind.upper() for kind in limits.allowed_connection_types)
        user = User(
            user="",
            password="",
            permissions=permissions_of(permissions),
            nkey=token.sub,
            connection_types=tuple(kind for kind in kinds if kind in CONNECTION_TYPES),
            max_subscriptions=limits.subs,
            max_payload=limits.payload,
            token=token,
            bearer=limits.bearer_token,
            proxy_required=limits.proxy_required,
        )
        asks = bool(signed.nats.authorization.auth_users)
        return kept_from_callouts(user, account.default_permissions, called_out=called_out) if asks else user

    def _signs(self, account: AccountToken, key: str) -> bool:
        return key in account.nats.scopes or (key == account.sub and account.iss not in self._strict)

    def remains(self, account: AccountOptions, user: User) -> ConnectionEnd | None:
        """Return why a connected user may not stay after its account changed; None: it may."""
        token, signed = user.token, account.token
        if token is None or signed is None:
            return None
        now = self._user(account, token)
        same = not isinstance(now, Refusal) and (
            (now.permissions, now.connection_types, now.max_subscriptions, now.max_payload)
            == (user.permissions, user.connection_types, user.max_subscriptions, user.max_payload)
        )
        if not same:
            return ConnectionEnd("", "Authentication Failure")
        if is_revoked(signed, token):
            return ConnectionEnd("User Authentication Revoked", "Credentials Revoked")
        if user_limits(signed, token).bearer_token and signed.nats.limits.disallow_bearer:
            return ConnectionEnd("Authorization Violation", "Authentication Failure")
        return None


def described(options: OperatorOptions, system_account: str) -> Iterator[str]:
    """Yield the lines for the log at start."""
    if options.operators:
        yield "Trusted Operators"
    for operator in options.operators:
        yield f'  System  : "{system_account}"'
        yield f'  Operator: "{operator.name}"'
        yield f"  Issued  : {_day(operator.iat)}"
        yield f"  Expires : {_day(operator.exp) if operator.exp else 'Never'}"


def _day(time_s: int) -> str:
    try:
        return f"{datetime.datetime.fromtimestamp(time_s, datetime.UTC):%Y-%m-%d %H:%M:%S} +0000 UTC"
    except (OverflowError, ValueError, OSError):
        return str(time_s)


def issuer_account(token: UserToken) -> str:
    """Return the key of a user's account."""
    return token.nats.issuer_account or token.iss


def is_revoked(account: AccountToken, user: UserToken) -> bool:
    """Return True if the account declared the user's token void."""
    revocations = account.nats.revocations
    return user.iat <= max(revocations.get(user.sub, -1), revocations.get("*", -1))


def user_limits(account: AccountToken, user: UserToken) -> jwt.UserLimits:
    """Return the limits and permissions of a user: its own, or the template of its scope."""
    scope = account.nats.scopes.get(user.iss)
    return user.nats if scope is None else scope.template


_LIMITS = jwt.UserLimits.__struct_fields__
_NO_LIMITS = jwt.UserLimits()


def _unlimited(user: jwt.UserClaims) -> bool:
    """Return True if a token has neither limits nor permissions."""
    return all(getattr(user, name) == getattr(_NO_LIMITS, name) for name in _LIMITS)


def _signature_error(token: UserToken, credentials: Credentials) -> str:
    if credentials.signature and not nkeys.is_public(token.sub, nkeys.USER, nkeys.ACCOUNT, nkeys.OPERATOR):
        return "User nkey not valid: nkeys: invalid encoded key"
    if not nkeys.is_public(token.sub, nkeys.USER):
        return "Signature not verified" if credentials.signature else "Signature missing"
    return signature_error(token.sub, credentials)


def may_come_from(limits: jwt.UserLimits, host: str) -> bool:
    """Return True if a user with these limits may connect from this address."""
    if not limits.sources:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # an IPv4 client of a listener for both
    networks = [ipaddress.ip_network(source, strict=False) for source in limits.sources]
    return any(one in network for network in networks for one in (address, mapped) if one is not None)


def connect_until(limits: jwt.UserLimits, now_ns: int) -> int:
    """Return the end of the time range that it is now, in ns since the epoch; 0: there are none, -1: it is outside."""
    if not limits.times:
        return 0
    zone: datetime.tzinfo | None = jwt.zone_of(limits.times_location) if limits.times_location else None
    now = datetime.datetime.fromtimestamp(now_ns / SECOND, zone)
    for one in limits.times:
        start, end = (datetime.time.fromisoformat(text) for text in (one.start, one.end))
        # A range over midnight may have begun yesterday.
        for day in (now.date(), now.date() - datetime.timedelta(days=1)) if start > end else (now.date(),):
            began = datetime.datetime.combine(day, start, now.tzinfo)
            ends = datetime.datetime.combine(day + datetime.timedelta(days=start > end), end, now.tzinfo)
            if began <= now < ends:
                return int(ends.timestamp() * SECOND)
    return -1


# ---------------------------------------------------------------------- permissions and templates


def permissions_of(claims: jwt.JwtPermissions | None) -> Permissions | None:
    """Return permissions as the configuration would have them; None: there are none."""
    if claims is None or (claims.pub == jwt.Rule() and claims.sub == jwt.Rule() and claims.resp is None):
        return None
    responses = None if claims.resp is None else AllowResponses(claims.resp.max or 1, claims.resp.ttl or 2 * MINUTE)
    return Permissions(
        publish=_rule(claims.pub, needed=responses is not None),
        subscribe=_rule(claims.sub, needed=False),
        responses=responses,
    )


def _rule(claims: jwt.Rule, *, needed: bool) -> SubjectRule | None:
    """Return a rule; `needed`: without allowed subjects nothing is allowed."""
    allow = tuple(filter(_usable, claims.allow)) if claims.allow or needed else None
    deny = tuple(filter(_usable, claims.deny))
    return SubjectRule(allow, deny) if allow is not None or deny else None


def _usable(entry: str) -> bool:
    """Return True if an entry is a subject, or a subject and a queue group; another one matches nothing."""
    return all(valid_subject(word.encode()) for word in entry.split(" "))


_CALL = re.compile(r"\{\{(.*)\}\}", re.DOTALL)
_TAG = re.compile(r"(account-)?tag\((.*)\)", re.DOTALL)


def resolved(template: jwt.JwtPermissions, user: UserToken, account: AccountToken) -> jwt.JwtPermissions | None:
    """Return the permissions of a scope for one user; None: a call in its subjects has no value.

    A call is a whole token of a subject: `{{name()}}`, `{{subject()}}`, `{{account-name()}}`, `{{account-subject()}}`,
    and `{{tag(KEY)}}` and `{{account-tag(KEY)}}`, which give a subject for each tag `KEY:value`.
    """
    made: list[jwt.Rule] = []
    try:
        for rule in (template.pub, template.sub):
            allow, deny = (
                tuple(itertools.chain.from_iterable(_subjects(entry, user, account) for entry in entries))
                for entries in (rule.allow, rule.deny)
            )
            if len(allow) + len(deny) > MAX_TEMPLATED:
                return None
            made.append(jwt.Rule(allow, deny))
    except _UnresolvedError:
        return None
    return jwt.JwtPermissions(pub=made[0], sub=made[1], resp=template.resp)


class _UnresolvedError(Exception):
    """Raised for a call without a value."""


def _subjects(entry: str, user: UserToken, account: AccountToken) -> Iterable[str]:
    """Return the subjects that an entry of a template stands for."""
    tokens = entry.split(".")
    choices = [_values(token, user, account) for token in tokens]
    if not any(_CALL.fullmatch(token) for token in tokens):
        return [entry]
    number = 1
    for values in choices:
        number *= len(values)
    if number > MAX_TEMPLATED:
        raise _UnresolvedError
    subjects = [".".join(parts) for parts in itertools.product(*choices)]
    if not all(valid_subject(subject.encode()) for subject in subjects):
        raise _UnresolvedError
    return subjects


def _values(token: str, user: UserToken, account: AccountToken) -> Sequence[str]:
    """Return what a token of a template stands for. Raises _UnresolvedError."""
    call = _CALL.fullmatch(token)
    if call is None:
        return [token]
    words = call[1].lower()
    known = {
        "name()": user.name,
        "subject()": user.sub,
        "account-name()": account.name,
        "account-subject()": account.sub,
    }
    tag = _TAG.fullmatch(words)
    values = [known[words]] if words in known else list(_tagged(tag, user, account)) if tag is not None else []
    if not values or not all(values):
        raise _UnresolvedError
    return values


def _tagged(tag: re.Match[str], user: UserToken, account: AccountToken) -> Iterator[str]:
    start = f"{tag[2]}:"
    for one in account.nats.tags if tag[1] else user.nats.tags:
        if one.startswith(start):
            yield one.removeprefix(start)


# ---------------------------------------------------------------------- accounts as options


def account_options(token: AccountToken) -> AccountOptions:
    """Return the options of an account; whether its imports are allowed is decided when they are connected."""
    claims = token.nats
    return AccountOptions(
        name=token.sub,
        jetstream=_jetstream(claims.limits),
        limits=AccountLimits(
            max_connections=claims.limits.conn,
            max_subscriptions=claims.limits.subs,
            max_payload=claims.limits.payload,
            max_leafnodes=claims.limits.leaf,
        ),
        exports=tuple(_hashed(map(_export, claims.exports), token.sub)),
        imports=tuple(_hashed(map(_import, claims.imports), token.sub)),
        mappings=tuple(_mappings(claims, token.sub)),
        default_permissions=permissions_of(claims.default_permissions),
        trace=_trace(claims.trace),
        token=token,
    )


def _trace(claim: jwt.JwtTrace) -> TraceOptions | None:
    if not publishable(claim.dest.encode()):
        return None
    percent = claim.sampling if 0 < claim.sampling <= 100 else 100
    return TraceOptions(destination=claim.dest, percent=percent)


def _hashed(entries: Iterable[Entry], account: str) -> Iterator[Entry]:
    """Yield valid exports or imports with the functions replaced that stand for an account."""
    for entry in entries:
        with contextlib.suppress(TransformError):
            made = hashed_entry(entry, account)
            if isinstance(made, StreamImport | ServiceImport) or valid_subject(made.subject.encode()):
                yield made


def _export(one: jwt.JwtExport) -> StreamExport | ServiceExport:
    revoked = tuple(sorted(one.revocations.items()))
    position = one.account_token_position if one.account_token_position > 0 else 0
    if one.type == "stream":
        return StreamExport(subject=one.subject, token_position=position, activated=one.token_req, revoked=revoked)
    latency = None
    if one.service_latency is not None:
        sampling = one.service_latency.sampling
        latency = Latency(one.service_latency.results, sampling if isinstance(sampling, int) else 0)
    return ServiceExport(
        subject=one.subject,
        token_position=position,
        activated=one.token_req,
        revoked=revoked,
        response=_RESPONSES.get(one.response_type.lower(), "singleton"),
        threshold_ns=one.response_threshold or RESPONSE_THRESHOLD_NS,
        latency=latency,
        allow_trace=one.allow_trace,
    )


_RESPONSES: dict[str, Literal["singleton", "stream", "chunked"]] = {"stream": "stream", "chunked": "chunked"}


def _import(one: jwt.JwtImport) -> StreamImport | ServiceImport:
    """Return an import. Older tokens have `to`: a prefix for a stream; for a service `subject` is the one here then."""
    activation = jwt.decode(one.token, jwt.Activation) if one.token else None
    if one.type == "stream":
        return StreamImport(
            account=one.account,
            subject=one.subject,
            to=one.local_subject,
            prefix="" if one.local_subject else one.to,
            allow_trace=one.allow_trace,
            activation=activation,
        )
    theirs, ours = (one.subject, one.local_subject) if one.local_subject or not one.to else (one.to, one.subject)
    return ServiceImport(account=one.account, subject=theirs, to=ours, share=one.share, activation=activation)


def _mappings(claims: jwt.AccountClaims, account: str) -> Iterator[SubjectMapping]:
    """Yield the subject mappings that are valid; others have no effect, as in nats-server."""
    for subject, destinations in claims.mappings.items():
        mapping = SubjectMapping(
            subject, tuple(Destination(one.subject, one.weight or 100, one.cluster) for one in destinations)
        )
        with contextlib.suppress(TransformError):
            mapping = hashed_mapping(mapping, account)
            Mappings((mapping,))
            if destinations and valid_subject(mapping.subject.encode()):
                yield mapping


def _jetstream(limits: jwt.Limits) -> JetStreamLimits | None:
    """Return the limits of JetStream; None: the account has none of it."""
    tiers = tuple((name, limits_of(tier)) for name, tier in sorted(limits.tiered_limits.items()))
    if tiers:
        return JetStreamLimits(max_memory=0, max_file=0, tiers=tiers)
    return limits_of(limits) if limits.mem_storage or limits.disk_storage else None


def limits_of(storage: jwt.TierLimits) -> JetStreamLimits:
    """Return the limits of an account or of one of its tiers."""
    return JetStreamLimits(
        max_memory=storage.mem_storage,
        max_file=storage.disk_storage,
        max_streams=storage.streams,
        max_consumers=storage.consumer,
        max_ack_pending=storage.max_ack_pending or -1,
        memory_max_stream_bytes=storage.mem_max_stream_bytes or -1,
        disk_max_stream_bytes=storage.disk_max_stream_bytes or -1,
        max_bytes_required=storage.max_bytes_required,
    )
