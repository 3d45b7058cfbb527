"""An operator with accounts of every kind, in a resolver in memory.

Belongs here: keys, account tokens and the configuration that scenarios of operator mode share. All are the same text in
every run.
"""

from __future__ import annotations

from typing import Any

from tests.keys import (
    ISSUED_AT,
    JETSTREAM,
    Key,
    account_jwt,
    account_key,
    activation_jwt,
    operator_config,
    operator_jwt,
    operator_key,
    scope,
    user_key,
)
from tests.pairs import Setup

OPERATOR, OPERATOR_SIGNER, OTHER_OPERATOR = operator_key("O"), operator_key("O signer"), operator_key("other")
SYSTEM, A, LIMITED, FOREIGN, ABSENT, EXPIRED, BARE = (
    account_key(name) for name in ("SYS", "A", "LIMITED", "FOREIGN", "ABSENT", "EXPIRED", "BARE")
)
SIGNER, SCOPED, TEMPLATE, UNKNOWN_SIGNER = (
    account_key(name) for name in ("A signer", "A scoped", "A template", "A unknown")
)
U, SYSTEM_USER, REVOKED, STRANGER = (user_key(name) for name in ("u", "system", "revoked", "stranger"))

REVOKED_AT = ISSUED_AT + 100
"""Tokens of the revoked user are void when they were issued by then."""

TEMPLATES = {
    "pub": {
        "allow": [
            *("name.{{name()}}", "subject.{{subject()}}", "account.{{account-name()}}"),
            *("key.{{account-subject()}}", "team.{{tag(team)}}", "both.{{tag(team)}}.{{tag(x)}}"),
            *("env.{{account-tag(env)}}", "plain", "$SYS.REQ.USER.INFO"),
        ],
        "deny": ["both.red.{{tag(x)}}"],
    },
    "sub": {"allow": ["_INBOX.>", "in.{{name()}}.>"], "deny": ["in.{{name()}}.no.{{tag(team)}}"]},
}

EXPORTER = account_key("EXPORTER")
EXPORTS: list[dict[str, Any]] = [
    {"name": "open stream", "subject": "open.>", "type": "stream"},
    {"name": "private stream", "subject": "private.>", "type": "stream", "token_req": True},
    {
        "name": "revoked stream",
        "subject": "revoked.>",
        "type": "stream",
        "token_req": True,
        "revocations": {account_key("REVOKED IMPORTER").public: REVOKED_AT, account_key("LATER").public: REVOKED_AT},
    },
    {"name": "stream by account", "subject": "mine.*.>", "type": "stream", "account_token_position": 2},
    {"name": "open service", "subject": "ask.open", "type": "service"},
    {"name": "private service", "subject": "ask.private", "type": "service", "token_req": True},
    {"name": "service by account", "subject": "by.*.ask", "type": "service", "account_token_position": 2},
    {"name": "many", "subject": "ask.many", "type": "service", "response_type": "Stream"},
]


def _import(subject: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"name": subject, "subject": subject, "account": EXPORTER.public, "type": kind, **fields}


def _activated(name: str, subject: str, kind: str, signer: Key = EXPORTER, to: str = "", **claims: Any) -> Any:
    """An import with an activation token for the account of this name, or for `to`."""
    importer = account_key(to or name).public
    token = activation_jwt(importer, signer, subject, kind, claims=claims or None)
    return _import(subject, kind, token=token)


EXPORT_SIGNER = account_key("EXPORTER signer")
IMPORTS: dict[str, list[dict[str, Any]]] = {
    "STREAM": [_import("open.>", "stream")],
    "STREAM TO": [_import("open.>", "stream", local_subject="far.>")],
    "STREAM PREFIX": [_import("open.>", "stream", to="pre")],
    "STREAM PART": [_import("open.a", "stream")],
    "STREAM PRIVATE": [_import("private.>", "stream")],
    "ACTIVATED": [_activated("ACTIVATED", "private.>", "stream")],
    "ACTIVATED PART": [_activated("ACTIVATED PART", "private.a", "stream")],
    "ACTIVATED FOR LESS": [
        {**_activated("ACTIVATED FOR LESS", "private.a", "stream"), "subject": "private.>"},
    ],
    "ACTIVATED BY SIGNER": [
        _import(
            "private.>",
            "stream",
            token=activation_jwt(
                account_key("ACTIVATED BY SIGNER").public,
                EXPORT_SIGNER,
                "private.>",
                "stream",
                issuer_account=EXPORTER.public,
            ),
        )
    ],
    "ACTIVATED BY OTHER": [_activated("ACTIVATED BY OTHER", "private.>", "stream", signer=account_key("A"))],
    "ACTIVATED FOR OTHER": [_activated("ACTIVATED FOR OTHER", "private.>", "stream", to="ACTIVATED")],
    "ACTIVATION EXPIRED": [_activated("ACTIVATION EXPIRED", "private.>", "stream", exp=ISSUED_AT + 1)],
    "ACTIVATION GARBAGE": [_import("private.>", "stream", token="garbage")],
    "ACTIVATION OF SERVICE": [
        {**_activated("ACTIVATION OF SERVICE", "private.>", "service"), "type": "stream"},
    ],
    "REVOKED IMPORTER": [_activated("REVOKED IMPORTER", "revoked.>", "stream")],
    "LATER": [_activated("LATER", "revoked.>", "stream", iat=REVOKED_AT + 1)],
    "MINE": [_import(f"mine.{account_key('MINE').public}.>", "stream")],
    "NOT MINE": [_import(f"mine.{account_key('MINE').public}.>", "stream")],
    "SERVICE": [_import("ask.open", "service")],
    "SERVICE TO": [_import("ask.open", "service", local_subject="there.open")],
    "SERVICE OLD TO": [_import("old.open", "service", to="ask.open")],
    "SERVICE SHARED": [_import("ask.open", "service", share=True)],
    "SERVICE PRIVATE": [_import("ask.private", "service")],
    "SERVICE ACTIVATED": [_activated("SERVICE ACTIVATED", "ask.private", "service")],
    "SERVICE MANY": [_import("ask.many", "service")],
    "BY": [_import(f"by.{account_key('BY').public}.ask", "service", local_subject="by.ask")],
    "NOT BY": [_import(f"by.{account_key('BY').public}.ask", "service", local_subject="by.ask")],
    "NOT EXPORTED": [_import("nothing.>", "stream")],
    "SERVICE AS STREAM": [_import("ask.open", "stream")],
    "FROM NOBODY": [{**_import("open.>", "stream"), "account": ABSENT.public}],
    "FROM ITSELF": [{**_import("open.>", "stream"), "account": account_key("FROM ITSELF").public}],
    "TWICE": [_import("open.>", "stream"), _import("open.>", "stream")],
    "NO TYPE": [{"name": "x", "subject": "open.>", "account": EXPORTER.public}],
    "BAD SUBJECT": [_import("open..x", "stream")],
}
"""Imports of an account by its name."""

_TIER = {"mem_storage": 4096, "disk_storage": 8192, "streams": 2, "consumer": 2}
TIERS: dict[str, dict[str, Any]] = {
    "NO JETSTREAM": {},
    "JETSTREAM": JETSTREAM,
    "FLAT": {**_TIER, "max_ack_pending": 10, "disk_max_stream_bytes": 4096, "mem_max_stream_bytes": 2048},
    "BYTES REQUIRED": {**JETSTREAM, "max_bytes_required": True},
    "R1": {"tiered_limits": {"R1": _TIER}},
    "R1 AND R3": {"tiered_limits": {"R1": _TIER, "R3": {**_TIER, "streams": 1}}},
    "R3": {"tiered_limits": {"R3": JETSTREAM}},
    "MEMORY ONLY": {"mem_storage": -1, "disk_storage": 0, "streams": -1, "consumer": -1},
    "FLAT AND TIERED": {**JETSTREAM, "tiered_limits": {"R1": _TIER}},
    "ZERO STREAMS": {"mem_storage": -1, "disk_storage": -1, "streams": 0, "consumer": 0},
    "NO CONSUMERS SAID": {"mem_storage": -1, "disk_storage": -1},
}
"""Limits for JetStream of an account by its name."""


def _accounts() -> dict[str, str]:
    """Every account's token by its key."""
    tokens = {
        SYSTEM.public: account_jwt(SYSTEM, "SYS", OPERATOR),
        A.public: account_jwt(
            A,
            "A",
            OPERATOR_SIGNER,
            signing_keys=[
                SIGNER.public,
                scope(
                    SCOPED,
                    "reader",
                    {"pub": {"allow": ["a.>"]}, "sub": {"allow": ["_INBOX.>", "u.{{name()}}.>"]}, "subs": 3},
                ),
                scope(TEMPLATE, "templates", TEMPLATES),
            ],
            tags=["env:prod"],
            revocations={REVOKED.public: REVOKED_AT},
            mappings={"from": [{"subject": "to", "weight": 100}]},
        ),
        LIMITED.public: account_jwt(
            LIMITED,
            "LIMITED",
            OPERATOR,
            limits={"conn": 2, "subs": 3, "payload": 100, "disallow_bearer": True},
            revocations={"*": REVOKED_AT},
            default_permissions={"pub": {"allow": ["def.>"]}, "sub": {"deny": ["no.>"]}, "resp": {"max": 1, "ttl": 0}},
        ),
        FOREIGN.public: account_jwt(FOREIGN, "FOREIGN", OTHER_OPERATOR),
        EXPIRED.public: account_jwt(EXPIRED, "EXPIRED", OPERATOR, claims={"exp": ISSUED_AT + 1}),
        BARE.public: OPERATOR.signed(BARE.public, "BARE", {"type": "account", "limits": {"conn": -1, "subs": -1}}),
        EXPORTER.public: account_jwt(
            EXPORTER, "EXPORTER", OPERATOR, exports=EXPORTS, signing_keys=[EXPORT_SIGNER.public]
        ),
    }
    for name, imports in IMPORTS.items():
        key = account_key(name)
        tokens[key.public] = account_jwt(key, name, OPERATOR, imports=imports)
    for name, limits in TIERS.items():
        key = account_key(name)
        tokens[key.public] = account_jwt(key, name, OPERATOR, limits=limits)
    return tokens


OPERATED = Setup(
    operator_config(
        operator_jwt(OPERATOR, system_account=SYSTEM.public, signing_keys=[OPERATOR_SIGNER.public]),
        _accounts(),
        SYSTEM.public,
    ),
    (),
)


def _strict() -> Setup:
    """An operator who signs accounts, and whose accounts sign users, with signing keys alone."""
    fields = {"signing_keys": [OPERATOR_SIGNER.public], "strict_signing_key_usage": True}
    tokens = {
        SYSTEM.public: account_jwt(SYSTEM, "SYS", OPERATOR_SIGNER),
        A.public: account_jwt(A, "A", OPERATOR_SIGNER, signing_keys=[SIGNER.public]),
        BARE.public: account_jwt(BARE, "BARE", OPERATOR, signing_keys=[SIGNER.public]),
    }
    trusted = operator_jwt(OPERATOR, system_account=SYSTEM.public, **fields)
    return Setup(operator_config(trusted, tokens, SYSTEM.public), ())


STRICT = _strict()
