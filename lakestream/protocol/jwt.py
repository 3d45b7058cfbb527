"""Tokens of NATS: JWTs that operators, accounts and users sign with their keys.

Belongs here: decoding and verifying a token, its claims as records, validation of the claims with nats-server's texts,
and encoding. Whom a token is trusted from, and what comes of it, is in net/accounts/operators.py.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
import zoneinfo
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from lakestream.protocol import nkeys
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.goquote import quoted
from lakestream.protocol.nkeys import ACCOUNT, OPERATOR, KeyPair
from lakestream.protocol.subjects import covers, valid_subject

MAX_TOKEN_BYTES = 1 << 20
"""Longest token (default 1 MiB). A user's is limited by max_control_line before."""

VERSION = 2
"""Version of the tokens that are made here. Version 1 is accepted, too."""

UNLIMITED = -1

_TYPES = ("jwt",)
_ALGORITHMS = ("ed25519", "ed25519-nkey")
_HEAD = {"typ": "JWT", "alg": "ed25519-nkey"}
_URL = re.compile(r"[A-Za-z0-9_-]*", re.ASCII)
_TOKEN = re.compile(r"[\w.-]+", re.ASCII)

Int = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class JwtError(ValueError):
    """Raised for an invalid token, with nats-server's text."""


# ---------------------------------------------------------------------- claims


class Rule(msgspec.Struct, frozen=True):
    """Allowed and denied subjects; none allowed: all are."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class JwtResponses(msgspec.Struct, frozen=True):
    """Permission to answer: number of answers, and time in ns; 0: the default, -1: no limit."""

    max: Int = 0
    ttl: Int = 0


class JwtPermissions(msgspec.Struct, frozen=True, kw_only=True):
    """Permissions of a user, or those by default."""

    pub: Rule = Rule()
    sub: Rule = Rule()
    resp: JwtResponses | None = None


class TimeRange(msgspec.Struct, frozen=True):
    """A time of day from `start` to `end`, `HH:MM:SS`; over midnight when the end comes first."""

    start: str = ""
    end: str = ""


class UserLimits(JwtPermissions, frozen=True, kw_only=True):
    """Permissions and limits of a user, or of a scope. `subs`, `data`, `payload`: -1 is no limit, 0 is none at all."""

    subs: Int = 0
    data: Int = 0
    payload: Int = 0
    src: tuple[str, ...] | str = ()
    times: tuple[TimeRange, ...] = ()
    times_location: str = ""
    bearer_token: bool = False
    proxy_required: bool = False
    allowed_connection_types: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the networks of `src`, which may be one text with commas."""
        given = self.src.split(",") if isinstance(self.src, str) else self.src
        return tuple(one.strip() for one in given if one.strip())


class UserClaims(UserLimits, frozen=True, kw_only=True):
    """Claims of a user. `issuer_account`: the account, when one of its signing keys signed."""

    issuer_account: str = ""
    tags: tuple[str, ...] = ()


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """A signing key whose users have the limits and permissions of a template."""

    key: str
    kind: str = "user_scope"
    role: str = ""
    template: UserLimits = UserLimits()


class TierLimits(msgspec.Struct, frozen=True, kw_only=True):
    """JetStream limits of an account or of one tier of it; bytes and counts, -1: no limit."""

    mem_storage: Int = 0
    disk_storage: Int = 0
    streams: Int = 0
    consumer: Int = 0
    max_ack_pending: Int = 0
    mem_max_stream_bytes: Int = 0
    disk_max_stream_bytes: Int = 0
    max_bytes_required: bool = False


class Limits(TierLimits, frozen=True, kw_only=True):
    """Limits of an account. `tiered_limits`: by `R1`, `R3`; the flat ones count for nothing then."""

    subs: Int = 0
    data: Int = 0
    payload: Int = 0
    imports: Int = UNLIMITED
    exports: Int = UNLIMITED
    wildcards: bool = True
    disallow_bearer: bool = False
    conn: Int = 0
    leaf: Int = 0
    tiered_limits: dict[str, TierLimits] = {}


class JwtImport(msgspec.Struct, frozen=True, kw_only=True):
    """An import. `to` and `local_subject` name it here; `token` is the activation of a private export."""

    name: str = ""
    subject: str = ""
    account: str = ""
    token: str = ""
    to: str = ""
    local_subject: str = ""
    type: str = ""
    share: bool = False
    allow_trace: bool = False


class LatencyClaims(msgspec.Struct, frozen=True):
    """Sampling of a service's latency: percent or `headers`, and the destination."""

    sampling: Int | str = 0
    results: str = ""


class JwtExport(msgspec.Struct, frozen=True, kw_only=True):
    """An export. `token_req`: importers need an activation; `revocations`: activations that are void, by account."""

    name: str = ""
    subject: str = ""
    type: str = ""
    token_req: bool = False
    revocations: dict[str, Int] = {}
    response_type: str = ""
    response_threshold: Int = 0
    service_latency: LatencyClaims | None = None
    account_token_position: Int = 0
    advertise: bool = False
    allow_trace: bool = False


class Weighted(msgspec.Struct, frozen=True):
    """A destination of a mapped subject; weight in percent, 0: 100."""

    subject: str = ""
    weight: Int = 0
    cluster: str = ""


class Authorization(msgspec.Struct, frozen=True, kw_only=True):
    """An auth callout of an account: who is not asked about, who may be answered, and the key to encrypt to."""

    auth_users: tuple[str, ...] = ()
    allowed_accounts: tuple[str, ...] = ()
    xkey: str = ""


class JwtTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Traces of an account's messages with `traceparent`: their subject, and the percentage that is traced (0: all)."""

    dest: str = ""
    sampling: Int = 0


class AccountClaims(msgspec.Struct, frozen=True, kw_only=True):
    """Claims of an account."""

    imports: tuple[JwtImport, ...] = ()
    exports: tuple[JwtExport, ...] = ()
    limits: Limits = Limits()
    signing_keys: tuple[str | Scope, ...] = ()
    revocations: dict[str, Int] = {}
    default_permissions: JwtPermissions = JwtPermissions()
    mappings: dict[str, tuple[Weighted, ...]] = {}
    authorization: Authorization = Authorization()
    trace: JwtTrace = JwtTrace()
    tags: tuple[str, ...] = ()

    @property
    def scopes(self) -> dict[str, Scope | None]:
        """Return the signing keys, each with its scope or None."""
        return {
            one if isinstance(one, str) else one.key: None if isinstance(one, str) else one for one in self.signing_keys
        }


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """Claims of an operator."""

    signing_keys: tuple[str, ...] = ()
    account_server_url: str = ""
    system_account: str = ""
    assert_server_version: str = ""
    strict_signing_key_usage: bool = False
    tags: tuple[str, ...] = ()


class Activation(msgspec.Struct, frozen=True, kw_only=True):
    """Claims with which an account lets another import `subject`."""

    subject: str = ""
    kind: str = ""
    issuer_account: str = ""


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """Claims of the answer to an auth callout: a user's token, or an error."""

    jwt: str = ""
    error: str = ""
    issuer_account: str = ""


class DeletionClaims(msgspec.Struct, frozen=True, kw_only=True):
    """Claims of a request to delete accounts. `accounts` is whatever it says."""

    accounts: Any = None


Part = TypeVar("Part", UserClaims, AccountClaims, Operator, Activation, Response, DeletionClaims)

_KINDS: dict[type[Any], tuple[str, str, tuple[int, ...]]] = {
    UserClaims: ("user", "not user claim", (ACCOUNT,)),
    AccountClaims: ("account", "not account claim", (OPERATOR, ACCOUNT)),
    Operator: ("operator", "not operator claim", (OPERATOR,)),
    Activation: ("activation", "not activation claim", (ACCOUNT, OPERATOR)),
    Response: ("authorization_response", "not an authorization request claim", (ACCOUNT,)),
    DeletionClaims: ("", "", ()),  # as in nats-server, any token will do; it is judged by its signer
}
"""By record: the name of the kind ("": any), the error for another one, and the kinds of keys that may sign."""


class Token(msgspec.Struct, Generic[Part], frozen=True, kw_only=True):
    """A decoded token whose signature is that of `iss`. Times in s since the epoch, 0: none."""

    text: str
    nats: Part
    iss: str = ""
    sub: str = ""
    name: str = ""
    aud: str = ""
    jti: str = ""
    iat: int = 0
    exp: int = 0
    nbf: int = 0

    def time_issues(self, now_s: int) -> list[str]:
        """Return why the token is not valid at this time."""
        issues = ["claim is expired"] if 0 < self.exp <= now_s else []
        return issues + (["claim is not yet valid"] if self.nbf > now_s else [])


class _Head(msgspec.Struct):
    typ: str = ""
    alg: str = ""


class _Registered(msgspec.Struct, kw_only=True):
    iss: str = ""
    sub: str = ""
    name: str = ""
    aud: str | list[str] = ""
    jti: str = ""
    iat: Int = 0
    exp: Int = 0
    nbf: Int = 0
    type: str = ""
    nats: dict[str, Any] = {}


# ---------------------------------------------------------------------- decoding


def decode(text: str, part: type[Part]) -> Token[Part]:
    """Return a token of this kind. Raises JwtError when it is none, or when its signature is wrong."""
    kind, other, signers = _KINDS[part]
    claims, version = _verified(text.strip())
    if kind and (claims.type if version == 1 else claims.nats.get("type")) != kind:
        raise JwtError(other)
    if signers and not nkeys.is_public(claims.iss, *signers):
        raise JwtError(f"unable to validate expected prefixes - {claims.iss!r}")
    fields = claims.nats
    if version == 1 and part is UserClaims:
        fields = {"subs": UNLIMITED, "data": UNLIMITED, "payload": UNLIMITED} | fields
    nats = _converted(fields, part)
    aud = claims.aud if isinstance(claims.aud, str) else " ".join(claims.aud)
    return Token(
        text=text,
        nats=nats,
        iss=claims.iss,
        sub=claims.sub,
        name=claims.name,
        aud=aud,
        jti=claims.jti,
        iat=claims.iat,
        exp=claims.exp,
        nbf=claims.nbf,
    )


def kind_of(text: str) -> str:
    """Return the kind of a token that verifies, "" for a version 2 token without one. Raises JwtError."""
    claims, version = _verified(text.strip())
    return claims.type if version == 1 else str(claims.nats.get("type") or "")


def undecorated(text: str) -> str:
    """Return the token of a file, which may have lines of dashes around it."""
    body = text.strip()
    first, _, rest = body.partition("\n")
    if rest and _is_dashed(first):
        body = rest.strip()
    before, _, last = body.rpartition("\n")
    if before and _is_dashed(last):
        body = before.strip()
    return body if _TOKEN.fullmatch(body) else text.strip()


def _is_dashed(line: str) -> bool:
    """Return True for a line such as `-----BEGIN NATS ACCOUNT JWT-----`."""
    line = line.strip()
    return line.startswith("---") and line.endswith("---") and "-" not in line.strip("-")


def claims_of(text: str) -> dict[str, Any]:
    """Return the claims of a token as they are, for monitoring. Raises JwtError."""
    return _object(text.strip().split(".")[1]) if text.count(".") == 2 else {}


def _verified(text: str) -> tuple[_Registered, int]:
    chunks = text.split(".")
    if len(chunks) != 3:
        raise JwtError("expected 3 chunks")
    if len(text) > MAX_TOKEN_BYTES:
        raise JwtError(f"token is longer than {MAX_TOKEN_BYTES} bytes")
    head = _converted(_object(chunks[0]), _Head)
    if head.typ.lower() not in _TYPES:
        raise JwtError(f"not supported type {quoted(head.typ)}")
    if head.alg.lower() not in _ALGORITHMS:
        raise JwtError(f"unexpected {quoted(head.alg)} algorithm")
    claims = _converted(_object(chunks[1]), _Registered)
    version = claims.nats.get("version", 1) or 1
    if version not in (1, VERSION) or isinstance(version, bool):
        raise JwtError("JWT was generated by a newer version ")
    signed = chunks[1] if version == 1 else f"{chunks[0]}.{chunks[1]}"
    if not nkeys.verify(claims.iss, signed.encode(), _decoded(chunks[2])):
        raise JwtError(f"claim failed V{version} signature verification")
    return claims, version


def _decoded(chunk: str) -> bytes:
    if _URL.fullmatch(chunk) is None:
        raise JwtError("illegal base64 data")
    try:
        return base64.urlsafe_b64decode(chunk + "=" * (-len(chunk) % 4))
    except ValueError:
        raise JwtError("illegal base64 data") from None


def _object(chunk: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(_decoded(chunk))
        if not isinstance(value, dict):
            raise JwtError("claims are not an object")
        return {key: kept for key, one in value.items() if (kept := _without_null(one)) is not None}
    except (*DECODE_ERRORS, UnicodeError):
        raise JwtError("claims are not JSON") from None


def _without_null(value: Any) -> Any:
    """Return the value without members that are null, which count as absent."""
    if isinstance(value, dict):
        return {key: kept for key, one in value.items() if (kept := _without_null(one)) is not None}
    return [_without_null(one) for one in value] if isinstance(value, list) else value


T = TypeVar("T")


def _converted(fields: Mapping[str, Any], record: type[T]) -> T:
    try:
        return msgspec.convert(fields, record)
    except (msgspec.ValidationError, RecursionError) as error:
        raise JwtError(f"claims are wrong: {error}") from None


# ---------------------------------------------------------------------- encoding


def encode(key: KeyPair, subject: str, kind: str, nats: Mapping[str, Any], **claims: Any) -> str:
    """Return a token that `key` signs; `claims` are registered ones (`iat`, `exp`, `aud` …)."""
    body = {"iss": key.public, "sub": subject, **claims, "nats": {**nats, "type": kind, "version": VERSION}}
    digest = hashlib.sha512(msgspec.json.encode(body)).digest()[:32]
    body["jti"] = base64.b32encode(digest).rstrip(b"=").decode()
    signed = f"{_encoded(msgspec.json.encode(_HEAD))}.{_encoded(msgspec.json.encode(body))}"
    return f"{signed}.{_encoded(key.sign(signed.encode()))}"


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


# ---------------------------------------------------------------------- validation


def user_issues(user: UserLimits) -> list[str]:
    """Return what is wrong with the claims of a user or a template."""
    issues = []
    if isinstance(user, UserClaims) and user.issuer_account and not nkeys.is_public(user.issuer_account, ACCOUNT):
        issues.append("account_id is not an account public key")
    issues += permission_issues(user)
    for source in user.sources:
        try:
            if "/" not in source:
                raise ValueError
            ipaddress.ip_network(source, strict=False)
        except ValueError:
            issues.append(f"invalid cidr {quoted(source)} in user src limits")
    for one in user.times:
        for which, text in (("start", one.start), ("end", one.end)):
            if not text:
                issues.append(f"time ranges {which} must contain {'a' if which == 'start' else 'an'} {which}")
            elif seconds_of_day(text) is None:
                issues.append(f"{which} in time range is invalid {quoted(text)}")
    if user.times_location and zone_of(user.times_location) is None:
        issues.append(f"could not parse iana time zone by name: unknown time zone {user.times_location}")
    return issues


def seconds_of_day(text: str) -> int | None:
    """Return the second of the day of `HH:MM:SS`; None: not a time."""
    found = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d):([0-5]\d)", text, re.ASCII)
    return None if found is None else int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3])


def zone_of(name: str) -> zoneinfo.ZoneInfo | None:
    """Return the time zone of a place; None: unknown."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None


def permission_issues(permissions: JwtPermissions) -> list[str]:
    """Return what is wrong with the subjects of permissions."""
    issues: list[str] = []
    for rule, queues in ((permissions.pub, False), (permissions.sub, True)):
        for entry in (*rule.allow, *rule.deny):
            words = entry.split(" ")
            if len(words) > 2:
                issues.append(f"Permission Subject {quoted(entry)} contains too many spaces")
            elif len(words) == 2 and not queues:
                issues.append(f"Permission Subject {quoted(entry)} is not allowed to contain queue")
            else:
                issues += [issue for word in words for issue in subject_issues(word)]
    return issues


def subject_issues(subject: str) -> list[str]:
    """Return what is wrong with a subject."""
    if not subject:
        return ["subject cannot be empty"]
    issues = []
    if " " in subject:
        issues.append(f"subject {quoted(subject)} cannot have spaces")
    if ".." in subject:
        issues.append(f"subject {quoted(subject)} cannot contain consecutive `.`")
    if subject[0] == ".":
        issues.append(f"subject {quoted(subject)} cannot start with a `.`")
    if subject[-1] == ".":
        issues.append(f"subject {quoted(subject)} cannot end with a `.`")
    return issues


def account_issues(token: Token[AccountClaims]) -> list[str]:
    """Return what is wrong with the claims of an account, for which nobody may log in."""
    account, limits = token.nats, token.nats.limits
    issues = [issue for one in account.imports for issue in _import_issues(one, token.sub)]
    for export in account.exports:
        if export.type not in ("stream", "service"):
            issues.append(f"invalid export type: {quoted(export.type)}")
        issues += subject_issues(export.subject)
    for number, most, what in (
        (len(account.imports), limits.imports, "imports"),
        (len(account.exports), limits.exports, "exports"),
    ):
        if 0 <= most < number:
            issues.append(f"the account contains more {what} than allowed by the operator")
    if not limits.wildcards and any(set(one.subject) & {"*", ">"} for one in account.exports):
        issues.append("the account contains wildcard exports that are not allowed by the operator")
    issues += permission_issues(account.default_permissions)
    for key, scope in account.scopes.items():
        if not nkeys.is_public(key, ACCOUNT):
            issues.append(f"{key} is not an account public key")
        issues += user_issues(scope.template) if scope is not None and not _has_calls(scope.template) else []
    issues += [issue for source in account.mappings for issue in subject_issues(source)]
    return issues


def _has_calls(template: JwtPermissions) -> bool:
    rules = (template.pub, template.sub)
    return any("{{" in entry for rule in rules for entry in (*rule.allow, *rule.deny))


def _import_issues(one: JwtImport, importer: str) -> Iterable[str]:
    if one.type not in ("stream", "service"):
        yield f"invalid import type: {quoted(one.type)}"
    if not one.account:
        yield "account to import from is not specified"
    yield from subject_issues(one.subject)
    if not one.token:
        return
    try:
        activation = decode(one.token, Activation)
    except JwtError:
        yield f"import {quoted(one.subject)} contains an invalid activation token"
        return
    if one.account not in (activation.iss, activation.nats.issuer_account):
        yield f"activation token doesn't match account for import {quoted(one.subject)}"
    if activation.sub != importer:
        yield f"activation token doesn't match account it is being included in, {quoted(one.subject)}"
    if activation.nats.kind != one.type:
        yield f"mismatch between token import type {activation.nats.kind} and type of import {one.type}"
    imported = (one.to if one.type == "service" and one.to else one.subject).encode()
    exported = activation.nats.subject.encode()
    if not valid_subject(exported) or not valid_subject(imported) or not covers(exported, imported):
        yield (
            f"activation token import subject {quoted(activation.nats.subject)} "
            f"doesn't match import {quoted(one.subject)}"
        )
