"""Operator mode in nats.conf: `operator`, `resolver` and their company.

Belongs here: reading these keys, the tokens of operators and the preloaded ones of accounts, and the rules between them
and other settings, with the errors of nats-server. Tokens are decoded in protocol/jwt.py; what they allow is decided in
net/accounts/operators.py.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from lakestream.config.conf import Item
from lakestream.config.errors import StartError, reason_of
from lakestream.config.options import OperatorOptions, Options, ResolverOptions, TlsOptions
from lakestream.config.tls import as_tls
from lakestream.config.values import Rule, as_text, go_kind
from lakestream.protocol import jwt, nkeys
from lakestream.protocol.api.request import NATS_VERSION
from lakestream.protocol.durations import parse_duration
from lakestream.protocol.goquote import quoted
from lakestream.protocol.jwt import JwtError, Token

MAX_FILE_BYTES = 1 << 20
"""Longest file of an operator's token (default 1 MiB)."""

_INLINE = "eyJ"
"""The first letters of every token; other text names a file."""

_MEMORY = ("mem", "memory")

# ---------------------------------------------------------------------- operators


def _as_operators(key: str, item: Item) -> tuple[Token[jwt.Operator], ...]:
    entries = item.value if isinstance(item.value, list) else [item]
    for entry in entries:
        if not isinstance(entry.value, str):
            raise item.error(f"error parsing operators: unsupported type {go_kind(entry.value)}")
    try:
        return tuple(_operator(str(entry.value)) for entry in entries)
    except JwtError as error:
        raise item.error(f"error parsing operator JWT: {error}") from None


def _operator(text: str) -> Token[jwt.Operator]:
    """Return the token, or that of the file of this name. Raises JwtError."""
    return jwt.decode(text if text.startswith(_INLINE) else jwt.undecorated(_content(text)), jwt.Operator)


def _content(name: str) -> str:
    try:
        with open(name, "rb") as stream:
            return stream.read(MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError as error:
        verb = "read" if os.path.isdir(name) else "open"
        reason = reason_of(error)
        raise JwtError(f"{verb} {name}: {reason[:1].lower()}{reason[1:]}") from None


def _as_trusted_keys(key: str, item: Item) -> tuple[str, ...]:
    entries = item.value if isinstance(item.value, list) else [item]
    for entry in entries:
        if not isinstance(entry.value, str):
            raise item.error(f"error parsing trusted: unsupported type {go_kind(entry.value)}")
        if not nkeys.is_public(entry.value, nkeys.OPERATOR):
            raise entry.error(f"trust key {quoted(entry.value)} required to be a valid public operator nkey")
    return tuple(str(entry.value) for entry in entries)


def _as_keys(key: str, item: Item) -> tuple[str, ...]:
    entries = item.value if isinstance(item.value, list) else [item]
    return tuple(as_text(key, entry) for entry in entries)


# ---------------------------------------------------------------------- resolvers


def _as_resolver(key: str, item: Item) -> ResolverOptions:
    value = item.value
    if not isinstance(value, str | dict):
        raise item.error(f"error parsing operator resolver, wrong type {go_kind(value)}")
    fields = {name.lower(): entry for name, entry in value.items()} if isinstance(value, dict) else {"type": item}
    kind = fields["type"].value if "type" in fields else ""
    kind = kind.lower() if isinstance(kind, str) else ""
    if kind in _MEMORY:
        return ResolverOptions(kind="memory")
    if isinstance(value, str) and value.upper().startswith("URL"):
        return url_resolver(value[3:].strip().removeprefix("(").removesuffix(")").strip("\"' "))
    if kind == "url" and "url" in fields:
        return url_resolver(as_text("url", fields["url"]))
    if isinstance(value, dict) and kind == "full":
        return _directory(item, fields, "full")
    if isinstance(value, dict) and kind == "cache":
        return _directory(item, fields, "cache")
    raise item.error(
        'error parsing account resolver, should be MEM or  URL("url") or a map containing dir and type '
        "state=[FULL|CACHE])"
    )


def url_resolver(url: str) -> ResolverOptions:
    return ResolverOptions(kind="url", url=url if url.endswith("/") else f"{url}/")


def _directory(item: Item, fields: Mapping[str, Item], kind: Literal["full", "cache"]) -> ResolverOptions:
    """Convert a resolver with a directory, which is made unless it is there."""
    values: dict[str, Any] = {}
    for name, (option, kind_of) in _DIRECTORY.items():
        if name in fields and isinstance(entry := fields[name], Item):
            if not isinstance(entry.value, kind_of) or (kind_of is int and isinstance(entry.value, bool)):
                wanted = go_kind(kind_of())
                raise entry.error(f"interface conversion: interface {{}} is {go_kind(entry.value)}, not {wanted}")
            values[option] = _duration(item, str(entry.value)) if option.endswith("_ns") else entry.value
    _make(item, values.setdefault("directory", ""))
    if kind == "full" and values.get("ttl_ns"):
        raise item.error("FULL does not accept ttl")
    if kind == "cache":
        for option, name in (("hard_delete", "hard_delete"), ("allow_delete", "allow_delete"), ("interval_ns", "sync")):
            if values.get(option):
                raise item.error(f"CACHE does not accept {name}")
    if values.get("hard_delete") and not values.get("allow_delete"):
        raise item.error("hard_delete has no effect without delete")
    for option in ("limit", "ttl_ns", "interval_ns", "timeout_ns"):
        if values.get(option, 1) <= 0:
            del values[option]
    if kind == "cache":
        values.setdefault("limit", CACHED)
    return ResolverOptions(kind=kind, **values)


CACHED = 1000
"""Tokens in the directory of a cache by default (1,000)."""

_DIRECTORY: dict[str, tuple[str, type]] = {
    "dir": ("directory", str),
    "limit": ("limit", int),
    "ttl": ("ttl_ns", str),
    "interval": ("interval_ns", str),
    "timeout": ("timeout_ns", str),
    "allow_delete": ("allow_delete", bool),
    "hard_delete": ("hard_delete", bool),
}
"""Option and type of each key; others have no effect, as in nats-server."""


def _duration(item: Item, text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError:
        raise item.error(f"time: invalid duration {quoted(text)}") from None


def _make(item: Item, directory: str) -> None:
    """Make a directory unless it is there. Raises StartError."""
    first = "" if directory else "dir has no value and needs to point to a directory"
    if directory and os.path.exists(directory) and not os.path.isdir(directory):
        first = "dir needs to point to an accessible directory"
    try:
        if not directory:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if first:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        reason = reason_of(error)
        lines = [first, f"mkdir {directory}: {reason[:1].lower()}{reason[1:]}"]
        raise StartError("\n".join(str(item.error(line)) for line in lines if line)) from None


def _as_preload(key: str, item: Item) -> dict[str, Any]:
    if not isinstance(item.value, dict):
        raise item.error("preload should be a map of account_public_key:account_jwt")
    tokens: list[tuple[str, str]] = []
    warnings: list[str] = []
    for account, entry in item.value.items():
        if not isinstance(entry.value, str):
            raise entry.error("preload map value should be a string JWT")
        try:
            token = jwt.decode(entry.value, jwt.AccountClaims)
        except JwtError:
            raise entry.error("invalid account JWT") from None
        if issues := [*token.time_issues(int(time.time())), *jwt.account_issues(token)]:
            warnings += [f"Account [{token.sub}] has validation issues:", *(f"  - {issue}" for issue in issues)]
        tokens.append((account, entry.value))
    return {"resolver_preload": tuple(tokens), "warnings": warnings}


OPERATOR_KEYS: dict[str, Rule] = {
    **dict.fromkeys(
        ("operator", "operators", "root", "roots", "root_operator", "root_operators"),
        ("operator_tokens", _as_operators),
    ),
    **dict.fromkeys(("trusted", "trusted_keys"), ("trusted_keys", _as_trusted_keys)),
    **dict.fromkeys(("resolver", "account_resolver"), ("resolver", _as_resolver)),
    "resolver_preload": ("*", _as_preload),
    "resolver_pinned_accounts": ("pinned_accounts", _as_keys),
    "resolver_tls": ("resolver_tls", as_tls),
    "default_sentinel": ("default_sentinel", as_text),
}
"""Keys at the top of the file; `settle_operators` makes one option of them."""


# ---------------------------------------------------------------------- the whole file


def settle_operators(values: dict[str, Any]) -> None:
    """Make one option of what was read of operator mode. Raises StartError for what does not fit together."""
    operators: tuple[Token[jwt.Operator], ...] = values.pop("operator_tokens", ())
    trusted_keys: tuple[str, ...] = values.pop("trusted_keys", ())
    resolver: ResolverOptions | None = values.pop("resolver", None)
    preload = values.pop("resolver_preload", ())
    pinned = values.pop("pinned_accounts", ())
    sentinel = values.pop("default_sentinel", "")
    tls: TlsOptions | None = values.pop("resolver_tls", None)
    if sentinel and not operators:
        raise StartError("default sentinel requires operators and accounts")
    if not operators and not trusted_keys:
        return
    if sentinel:
        _check_sentinel(sentinel)
    if resolver is None and operators:
        resolver = url_resolver(f"{operators[0].nats.account_server_url}/accounts/")
    if resolver is not None and resolver.kind == "url":
        resolver = msgspec.structs.replace(resolver, tls=tls)
        if preload:
            raise StartError("resolver preloads only available for writeable resolver types MEM/DIR/CACHE_DIR")
    if not values.get("system_account") and len(operators) == 1:
        values["system_account"] = operators[0].nats.system_account
    values["operators"] = OperatorOptions(
        operators=operators,
        trusted_keys=trusted_keys,
        resolver=resolver or ResolverOptions(),
        preload=preload,
        pinned_accounts=pinned,
        sentinel=sentinel,
    )


def _check_sentinel(sentinel: str) -> None:
    try:
        token = jwt.decode(sentinel, jwt.UserClaims)
    except JwtError:
        raise StartError("default sentinel JWT not valid") from None
    if not token.nats.bearer_token:
        raise StartError("default sentinel must be a bearer token")


def check_operators(options: Options, operators: OperatorOptions) -> None:
    """Check operator mode against the other settings. Raises StartError."""
    if options.accounts:
        raise StartError("operators do not allow Accounts to be configured directly")
    if options.users and not options.single_user:
        raise StartError("operators do not allow users to be configured directly")
    if options.callout is not None:
        raise StartError("operators do not allow authorization callouts to be configured directly")
    if operators.resolver.kind in ("full", "cache") and not options.system_account:
        raise StartError(
            "using nats based account resolver - the system account needs to be specified in configuration or the "
            "operator jwt"
        )
    if operators.operators and operators.trusted_keys:
        raise StartError("conflicting options for 'TrustedKeys' and 'TrustedOperators'")
    named = {operator.nats.system_account for operator in operators.operators} - {""}
    if options.system_account and named and options.system_account not in named:
        raise StartError("system_account in config and operator JWT must be identical")
    for operator in operators.operators:
        _check_version(operator)
        for key in operator.nats.signing_keys:
            if not nkeys.is_public(key, nkeys.OPERATOR):
                raise StartError(f"trusted Keys {quoted(key)} are required to be a valid public operator nkey")
    for key in operators.pinned_accounts:
        if not nkeys.is_public(key, nkeys.ACCOUNT):
            raise StartError(f"pinned account key {quoted(key)} is not a valid public account nkey")
    if options.no_auth_user:
        raise StartError("no_auth_user not compatible with Trusted Operator")


def check_reload(old: OperatorOptions | None, new: OperatorOptions | None) -> None:
    """Raise StartError when a reload would change more than preloaded and pinned accounts and the sentinel."""
    for field, name in (
        ("operators", "TrustedOperators"),
        ("trusted_keys", "TrustedKeys"),
        ("resolver", "AccountResolver"),
    ):
        if getattr(old, field, ()) != getattr(new, field, ()):
            raise StartError(f"config reload not supported for {name}; restart the server for that")


def _check_version(operator: Token[jwt.Operator]) -> None:
    wanted = operator.nats.assert_server_version
    if not wanted:
        return
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9}){2}", wanted, re.ASCII) is None:
        raise StartError(
            f"operator {operator.sub} expects version {wanted} got error instead: asserted server version must be of "
            "the form <major>.<minor>.<update>"
        )
    numbers = zip(("major", "minor", "update"), wanted.split("."), NATS_VERSION.split("."), strict=True)
    for part, least, here in numbers:
        if int(least) > int(here):
            raise StartError(f"operator {operator.sub} expected {part} version {least} > server {part} version {here}")
        if int(least) < int(here):
            return
