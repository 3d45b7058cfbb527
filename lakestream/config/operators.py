"""Operator mode in nats.conf: `operator`, `resolver` and their company.

Belongs here: reading these keys, the tokens of operators and the preloaded ones of accounts, and the rules between them
and other settings, with the errors of nats-server. Tokens are decoded in protocol/jwt.py; what they allow is decided in
net/accounts/operators.py.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any

from lakestream.config.conf import Item
from lakestream.config.errors import StartError, reason_of
from lakestream.config.options import OperatorOptions, Options, ResolverOptions
from lakestream.config.values import Rule, as_text, go_kind
from lakestream.protocol import jwt, nkeys
from lakestream.protocol.api.request import NATS_VERSION
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
    kind = value
    if isinstance(value, dict):
        kind = next((str(entry.value) for name, entry in value.items() if name.lower() == "type"), "")
    if isinstance(kind, str) and kind.lower() in _MEMORY:
        return ResolverOptions(kind="memory")
    raise item.error(
        'error parsing account resolver, should be MEM or  URL("url") or a map containing dir and type '
        "state=[FULL|CACHE])"
    )


def _as_preload(key: str, item: Item) -> dict[str, Any]:
    if not isinstance(item.value, dict):
        raise item.error("preload should be a map of account_public_key:account_jwt")
    tokens: list[tuple[str, str]] = []
    warnings: list[str] = []
    for account, entry in item.value.items():
        if not isinstance(entry.value, str):
            raise entry.error("preload map value should be a string JWT")
        try:
            token = jwt.decode(entry.value, jwt.Account)
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
    if sentinel and not operators:
        raise StartError("default sentinel requires operators and accounts")
    if not operators and not trusted_keys:
        return
    if sentinel:
        _check_sentinel(sentinel)
    if resolver is None and operators:
        # Without a resolver nats-server asks the account server of the operator.
        url = f"{operators[0].nats.account_server_url}/accounts/"
        raise StartError(f'could not fetch <{quoted(url)}>: Get {quoted(url)}: unsupported protocol scheme ""')
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
        token = jwt.decode(sentinel, jwt.User)
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
