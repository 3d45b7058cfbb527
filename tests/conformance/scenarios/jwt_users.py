"""User tokens: validation, permissions, limits, scopes and expiry."""

from __future__ import annotations

import time
from typing import Any

from tests.conformance.harness import Script, configured, table
from tests.conformance.logins import (
    Fields,
    admitted,
    attempt,
    encodings,
    fenced,
    heard,
    in_either_alphabet,
    may,
    only,
    told,
    user_info,
    with_nkey,
    with_token,
)
from tests.conformance.operators import (
    ABSENT,
    BARE,
    EXPIRED,
    EXPORTER,
    FOREIGN,
    LIMITED,
    OPERATED,
    OPERATOR,
    REVOKED,
    REVOKED_AT,
    SCOPED,
    SIGNER,
    STRANGER,
    STRICT,
    SYSTEM,
    SYSTEM_USER,
    TEMPLATE,
    UNKNOWN_SIGNER,
    A,
    U,
)
from tests.keys import (
    ISSUED_AT,
    NO_LIMITS,
    account_jwt,
    activation_jwt,
    claims_of,
    operator_jwt,
    proof,
    user_jwt,
    user_key,
    without,
)
from tests.wire import pub

GOOD = user_jwt(U, "u", A)
BEARER = user_jwt(U, "u", A, bearer_token=True)
V1 = {"iat": ISSUED_AT, "iss": A.public, "sub": U.public, "name": "u", "type": "user", "nats": {"pub": {}, "sub": {}}}


def _token(token: str) -> Fields:
    return with_token(U, token)


def _of_a(**nats: Any) -> Fields:
    return _token(user_jwt(U, "u", A, **nats))


def _with_signature(name: str) -> Fields:
    return lambda nonce: {"jwt": GOOD, "sig": encodings(U)[name](nonce)}


def _at(offset_s: int) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(time.time() + offset_s))


def _between(start_s: int, end_s: int) -> Fields:
    """A user who may connect between these seconds from now."""
    return lambda nonce: _of_a(times=[{"start": _at(start_s), "end": _at(end_s)}], times_location="UTC")(nonce)


_LOGINS: list[tuple[str, Fields]] = [
    *((f"signature_{name}", _with_signature(name)) for name in encodings(U)),
    ("no_signature", only(jwt=GOOD)),
    ("signature_of_another", lambda nonce: {"jwt": GOOD, "sig": STRANGER.sign(nonce)}),
    ("nothing", only()),
    ("user_and_password", only(user="u", **{"pass": "p"})),
    ("key_without_token", with_nkey(U)),
    ("token_and_another_key", with_token(U, GOOD, nkey=STRANGER.public)),
    ("token_and_a_password", with_token(U, GOOD, user="x", **{"pass": "y"})),
    # The text of the token.
    ("garbage", _token("garbage")),
    ("three_chunks_of_garbage", _token("a.b.c")),
    ("changed", _token(without(GOOD, name="root"))),
    ("of_an_account", _token(account_jwt(A, "A", OPERATOR))),
    ("of_an_operator", _token(operator_jwt(OPERATOR))),
    ("activation", _token(activation_jwt(U.public, A, "a", "stream"))),
    ("alg_none", _token(A.token(claims_of(GOOD), {"typ": "JWT", "alg": "none"}))),
    ("alg_of_version_1", _token(A.token(claims_of(GOOD), {"typ": "jwt", "alg": "ed25519"}))),
    ("type_in_lower_case", _token(A.token(claims_of(GOOD), {"typ": "jwt", "alg": "ed25519-nkey"}))),
    ("no_type_in_the_head", _token(A.token(claims_of(GOOD), {"alg": "ed25519-nkey"}))),
    ("version_1", _token(A.token(V1, {"typ": "jwt", "alg": "ed25519"}, whole=False))),
    ("version_1_signed_as_version_2", _token(A.token(V1, {"typ": "jwt", "alg": "ed25519"}))),
    ("version_2_signed_as_version_1", _token(A.token(claims_of(GOOD), whole=False))),
    ("version_3", _of_a(version=3)),
    ("no_type", _token(A.signed(U.public, "u", {"pub": {}, "sub": {}}))),
    ("subject_is_an_account", _token(A.signed(A.public, "u", {"type": "user", **NO_LIMITS}))),
    ("subject_is_garbage", _token(A.signed("UABC", "u", {"type": "user", **NO_LIMITS}))),
    ("audience", _token(user_jwt(U, "u", A, claims={"aud": "x"}))),
    ("no_name", _token(user_jwt(U, "", A))),
    # Who signed it.
    ("signing_key", _token(user_jwt(U, "u", SIGNER, issuer_account=A.public))),
    ("signing_key_without_its_account", _token(user_jwt(U, "u", SIGNER))),
    ("unknown_signing_key", _token(user_jwt(U, "u", UNKNOWN_SIGNER, issuer_account=A.public))),
    ("signing_key_of_another_account", _token(user_jwt(U, "u", SIGNER, issuer_account=LIMITED.public))),
    ("issuer_account_is_garbage", _token(user_jwt(U, "u", SIGNER, issuer_account="ABC"))),
    ("issuer_account_is_unknown", _token(user_jwt(U, "u", SIGNER, issuer_account=ABSENT.public))),
    ("account_key_with_its_account", _token(user_jwt(U, "u", A, issuer_account=A.public))),
    ("unknown_account", _token(user_jwt(U, "u", ABSENT))),
    ("account_of_another_operator", _token(user_jwt(U, "u", FOREIGN))),
    ("expired_account", _token(user_jwt(U, "u", EXPIRED))),
    ("account_without_limits", _token(user_jwt(U, "u", BARE))),
    ("signed_by_the_operator", _token(user_jwt(U, "u", OPERATOR))),
    ("signed_by_itself", _token(user_jwt(U, "u", U))),
    ("scoped", _token(user_jwt(U, "u", SCOPED, issuer_account=A.public, scoped=True))),
    ("scoped_with_limits", _token(user_jwt(U, "u", SCOPED, issuer_account=A.public))),
    (
        "scoped_with_permissions",
        _token(user_jwt(U, "u", SCOPED, issuer_account=A.public, scoped=True, pub={"allow": ["x"]})),
    ),
    ("of_the_system_account", with_token(SYSTEM_USER, user_jwt(SYSTEM_USER, "s", SYSTEM))),
    # Times.
    ("expired", _of_a(claims={"exp": ISSUED_AT + 1})),
    ("expires_at_0", _of_a(claims={"exp": 0})),
    ("expires_later", _of_a(claims={"exp": 4_000_000_000})),
    ("not_yet", _of_a(claims={"nbf": 4_000_000_000})),
    ("issued_in_the_future", _of_a(claims={"iat": 4_000_000_000})),
    ("revoked", with_token(REVOKED, user_jwt(REVOKED, "r", A))),
    ("revoked_then", with_token(REVOKED, user_jwt(REVOKED, "r", A, claims={"iat": REVOKED_AT}))),
    ("issued_after_it_was_revoked", with_token(REVOKED, user_jwt(REVOKED, "r", A, claims={"iat": REVOKED_AT + 1}))),
    ("all_revoked", _token(user_jwt(U, "u", LIMITED))),
    ("issued_after_all_were_revoked", _token(user_jwt(U, "u", LIMITED, claims={"iat": REVOKED_AT + 1}))),
    ("now", _between(-3600, 3600)),
    ("later_today", _between(3600, 7200)),
    ("over_midnight", _between(-3600, -7200)),
    ("all_day", _of_a(times=[{"start": "00:00:00", "end": "23:59:59"}])),
    ("second_of_two_times", lambda nonce: _of_a(
        times=[{"start": _at(3600), "end": _at(7200)}, {"start": _at(-60), "end": _at(3000)}], times_location="UTC"
    )(nonce)),
    ("time_is_garbage", _of_a(times=[{"start": "x", "end": "y"}])),
    ("time_is_short", _of_a(times=[{"start": "0:0:0", "end": "23:59:59"}])),
    ("time_beyond_the_day", _of_a(times=[{"start": "00:00:00", "end": "25:00:00"}])),
    ("time_without_end", _of_a(times=[{"start": "00:00:00"}])),
    ("unknown_place", _of_a(times=[{"start": "00:00:00", "end": "23:59:59"}], times_location="Foo/Bar")),
    # Where from, and over what.
    *(
        (f"from_{name}", _of_a(src=src))
        for name, src in (
            ("loopback", ["127.0.0.0/8"]),
            ("elsewhere", ["10.0.0.0/8"]),
            ("here_or_there", ["10.0.0.0/8", "127.0.0.1/32"]),
            ("text", "10.0.0.0/8,127.0.0.1/32"),
            ("ipv6", ["::1/128"]),
            ("address", ["127.0.0.1"]),
            ("garbage", ["foo"]),
            ("none", []),
        )
    ),
    *(
        ("over_" + ("_".join(types) or "none"), _of_a(allowed_connection_types=types))
        for types in (
            ["STANDARD"],
            ["standard"],
            ["WEBSOCKET"],
            ["MQTT", "LEAFNODE"],
            ["STANDARD", "FOO"],
            ["FOO"],
            ["IN_PROCESS"],
            [],
        )
    ),
    ("proxy_required", _of_a(proxy_required=True)),
    # Bearers.
    ("bearer", only(jwt=BEARER)),
    ("bearer_with_signature", _token(BEARER)),
    ("bearer_with_a_wrong_signature", with_token(STRANGER, BEARER)),
    ("bearer_as_password", only(user="u", **{"pass": BEARER})),
    ("bearer_as_token", only(auth_token=BEARER)),
    (
        "bearer_where_none_may_be",
        only(jwt=user_jwt(U, "u", LIMITED, bearer_token=True, claims={"iat": REVOKED_AT + 1})),
    ),
    # Permissions.
    ("permission_with_blanks", _of_a(pub={"allow": ["a b c"]})),
    ("permission_with_an_empty_token", _of_a(pub={"allow": ["a..b"]})),
    ("permission_for_a_queue_to_publish", _of_a(pub={"allow": ["a q"]})),
    ("permission_empty", _of_a(pub={"allow": [""]})),
    ("permissions", _of_a(
        pub={"allow": ["$SYS.REQ.USER.INFO", "a"], "deny": ["b"]}, sub={"allow": ["_INBOX.>", "q g"], "deny": ["z"]},
        resp={"max": 3, "ttl": 5_000_000_000}, tags=["k:v"],
    )),
    ("responses_of_0", _of_a(pub={"allow": ["$SYS.REQ.USER.INFO"]}, resp={"max": 0, "ttl": 0})),
    ("responses_without_end", _of_a(pub={"allow": ["$SYS.REQ.USER.INFO"]}, resp={"max": -1, "ttl": -1})),
]  # fmt: skip


@table(_LOGINS, OPERATED)
def logins(t: Script, fields: Fields) -> None:
    if wire := attempt(t, "CONNECT", fields):
        told(t, wire)
        user_info(t, wire)


@configured(OPERATED)
def forms_of_base64(t: Script) -> None:
    in_either_alphabet(t, U, jwt=GOOD)


@table(
    [
        ("subs", {"subs": 2}),
        ("payload", {"payload": 10}),
        ("payload_0", {"payload": 0}),
        ("payload_above_the_servers", {"payload": 1 << 30}),
        ("data", {"data": 10}),
        ("null", {"data": None, "payload": None}),
        ("negative", {"subs": -5, "data": -5, "payload": -5}),
        ("publish", {"pub": {"allow": ["a", "p.*"], "deny": ["p.no"]}}),
        ("publish_nothing", {"pub": {"deny": [">"]}}),
        ("subscribe", {"sub": {"allow": ["p.>", "q g"], "deny": ["p.no"]}}),
        ("answers", {"sub": {"allow": ["p.>"]}, "resp": {"max": 1, "ttl": 60_000_000_000}}),
    ],
    OPERATED,
)
def limits_and_permissions(t: Script, nats: dict[str, Any]) -> None:
    wire = attempt(t, "CONNECT", _of_a(**nats))
    assert wire
    told(t, wire)
    may(t, wire, ("a", "p.x", "p.no", "c"), ("p.x", "p.no", "q", "q g", "c"))
    if wire.closed:
        return
    fenced(t, wire, "11 bytes", pub("a", b"x" * 11))


@table(
    [
        ("0", {"subs": 0}),
        ("null", {"subs": None}),
        ("not_said", {}),
    ],
    OPERATED,
)
def a_user_without_subscriptions(t: Script, limits: dict[str, Any]) -> None:
    """A limit of 0 admits the connection and closes it asynchronously."""
    wire = t.connect_bare()
    nats = {"type": "user", "data": -1, "payload": -1, **limits}
    wire.connect(_token(A.signed(U.public, "u", nats))(wire.info["nonce"]), b"PING\r\n")
    t.note("until closed", sorted({t.show(frame) for frame in wire.until_closed()}))


@configured(OPERATED)
def answers_are_counted(t: Script) -> None:
    asking = admitted(t, _token(GOOD))
    service = admitted(t, _of_a(sub={"allow": ["svc"]}, resp={"max": 2, "ttl": 60_000_000_000}))
    sid = service.subscribe("svc")
    service.ping()
    asking.publish("svc", b"", "back")
    asking.ping()
    service.delivered(sid)
    may(t, service, ("back", "back", "back", "other"))


@table(
    [
        (name, user, tags)
        for name, user, tags in (
            ("no_tags", "joe", []),
            ("one_tag", "joe", ["team:blue"]),
            ("all_tags", "joe", ["team:blue", "x:1"]),
            ("two_teams", "joe", ["team:blue", "team:red", "x:1"]),
            ("tag_in_upper_case", "joe", ["Team:Blue", "X:1"]),
            ("tag_without_value", "joe", ["team:", "x:1"]),
            ("tag_with_wildcards", "joe", ["team:*", "x:>"]),
            ("tag_with_a_dot", "joe", ["team:a.b", "x:1"]),
            ("tag_with_a_colon", "joe", ["team:a:b", "x:1"]),
            ("name_with_a_blank", "j oe", ["team:blue", "x:1"]),
            ("name_with_a_dot", "j.oe", ["team:blue", "x:1"]),
            ("name_is_a_wildcard", "*", ["team:blue", "x:1"]),
            ("no_name", "", ["team:blue", "x:1"]),
        )
    ],
    OPERATED,
)
def templates(t: Script, user: str, tags: list[str]) -> None:
    fields = with_token(U, user_jwt(U, user, TEMPLATE, issuer_account=A.public, scoped=True, tags=tags))
    if wire := attempt(t, "CONNECT", fields):
        user_info(t, wire)
        may(
            t,
            wire,
            ("name.joe", "team.blue", "team.red", "both.blue.1", "both.red.1", "env.prod", "env.test", "plain", "z"),
            ("in.joe.x", "in.joe.no.blue", "in.other.x"),
        )


@configured(OPERATED)
def a_scope_limits(t: Script) -> None:
    wire = admitted(t, _token(user_jwt(U, "joe", SCOPED, issuer_account=A.public, scoped=True)))
    may(t, wire, ("a.x", "b"), ("u.joe.x", "u.jim.x", "u.joe.1", "u.joe.2", "u.joe.3", "u.joe.4"))


@table(
    [
        ("token", lambda: {"claims": {"exp": int(time.time()) + 2}}),
        ("times", lambda: {"times": [{"start": _at(-3600), "end": _at(2)}], "times_location": "UTC"}),
    ],
    OPERATED,
)
def it_ends_while_connected(t: Script, nats: Any) -> None:
    wire = admitted(t, _of_a(**nats()))
    t.frames("until closed", heard(wire))


@configured(OPERATED)
def a_second_connect_is_another_login(t: Script) -> None:
    wire = admitted(t, _token(GOOD))
    for label, key, token in (
        ("the same", U, GOOD),
        ("of another account", U, user_jwt(U, "u", EXPORTER)),
        ("of another user", STRANGER, user_jwt(STRANGER, "v", A, pub={"allow": ["a"]})),
        ("refused", U, user_jwt(U, "u", ABSENT)),
    ):
        wire.connect(proof(key, wire.info["nonce"], token), b"PING\r\n")
        t.frames(label, frames := heard(wire))
        if frames and frames[-1].verb == "CLOSED":
            return
        t.note(f"{label}: account", wire.told()[-1].get("remote_account"))
        may(t, wire, ("c",))


@configured(OPERATED)
def one_key_of_two_users(t: Script) -> None:
    """Permissions belong to the token, not to the key."""
    first = admitted(t, _of_a(pub={"allow": ["a"]}))
    second = admitted(t, with_token(U, user_jwt(U, "two", A, pub={"allow": ["b"]})))
    may(t, first, ("a", "b"))
    may(t, second, ("a", "b"))


@configured(OPERATED)
def an_account_has_so_many_connections(t: Script) -> None:
    token = user_jwt(U, "u", LIMITED, claims={"iat": REVOKED_AT + 1})
    wires = [attempt(t, f"connection {number}", _token(token)) for number in range(3)]
    other = user_key("other")
    attempt(t, "another user", with_token(other, user_jwt(other, "o", LIMITED, claims={"iat": REVOKED_AT + 1})))
    assert wires[0]
    wires[0].close()


@configured(OPERATED)
def an_account_limits_its_users(t: Script) -> None:
    token = user_jwt(U, "u", LIMITED, claims={"iat": REVOKED_AT + 1})
    wire = attempt(t, "CONNECT", _token(token))
    assert wire
    told(t, wire)
    may(t, wire, ("def.x", "other"), ("no.x", "s.1", "s.2", "s.3", "s.4", "s.5"))
    own = attempt(t, "with permissions", _token(user_jwt(
        U, "u", LIMITED, claims={"iat": REVOKED_AT + 1}, pub={"allow": ["own"]}
    )))  # fmt: skip
    assert own
    may(t, own, ("own", "def.x"), ("no.x",))
    fenced(t, wire, "101 bytes", pub("def.x", b"x" * 101))


@configured(OPERATED)
def mappings_are_the_accounts(t: Script) -> None:
    wire = admitted(t, _token(GOOD))
    wire.subscribe("to")
    wire.subscribe("from")
    wire.publish("from", b"m")
    t.frames("mapped", wire.ping())


@table(
    [
        ("signing_key", _token(user_jwt(U, "u", SIGNER, issuer_account=A.public))),
        ("account_key", _token(user_jwt(U, "u", A))),
        ("account_of_the_operators_key", _token(user_jwt(U, "u", SIGNER, issuer_account=BARE.public))),
    ],
    STRICT,
)
def signing_keys_alone(t: Script, fields: Fields) -> None:
    if wire := attempt(t, "CONNECT", fields):
        told(t, wire)
