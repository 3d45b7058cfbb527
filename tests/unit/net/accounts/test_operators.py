"""Unit tests of operator mode: whom operators trust, and what the tokens of accounts and users allow."""

from __future__ import annotations

import base64
import contextlib
import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest

from lakestream.config.account_options import (
    AccountOptions,
    AllowResponses,
    ServiceExport,
    ServiceImport,
    StreamExport,
    StreamImport,
    TraceOptions,
)
from lakestream.config.options import MINUTE, SECOND, OperatorOptions
from lakestream.net.accounts.auth import Credentials, Login, Refusal
from lakestream.net.accounts.operators import (
    MAX_TEMPLATED,
    ConnectionEnd,
    Trust,
    account_options,
    connect_until,
    resolved,
)
from lakestream.protocol import jwt
from lakestream.protocol.jwt import JwtError
from tests.fuzzing import ROUNDS, SEED, mutated
from tests.keys import (
    ISSUED_AT,
    JETSTREAM,
    NO_LIMITS,
    Key,
    account_jwt,
    account_key,
    activation_jwt,
    claims_of,
    operator_jwt,
    operator_key,
    scope,
    user_jwt,
    user_key,
)

pytestmark = pytest.mark.unit

O, SIGNER, OTHER = operator_key("O"), operator_key("signer"), operator_key("other")  # noqa: E741
A, B, SCOPED, PLAIN, U = account_key("A"), account_key("B"), account_key("scoped"), account_key("plain"), user_key("U")
NOW_S = ISSUED_AT + 1000
NOW_NS = NOW_S * SECOND
NONCE = "nonce"


def _trust(system: str = "", *, pinned: tuple[str, ...] = (), **nats: Any) -> Trust:
    operator = jwt.decode(operator_jwt(O, signing_keys=[SIGNER.public], **nats), jwt.Operator)
    return Trust(OperatorOptions(operators=(operator,), pinned_accounts=pinned), system)


def _account(trust: Trust | None = None, signer: Key = O, **claims: Any) -> AccountOptions:
    return account_options((trust or _trust()).account(A.public, account_jwt(A, "acc", signer, **claims), NOW_S))


def _logged_in(account: AccountOptions, text: str, key: Key = U, **given: Any) -> Login | Refusal:
    trust = _trust()
    token = trust.user(text, NOW_S)
    if isinstance(token, Refusal):
        return token
    fields = {"jwt": text, "nonce": NONCE, "signature": key.sign(NONCE), "host": "127.0.0.1", **given}
    return trust.login(account, token, Credentials(**fields), NOW_NS)


def _reason(outcome: Login | Refusal) -> str:
    assert isinstance(outcome, Refusal), outcome
    return outcome.reason or outcome.errors[0]


# ---------------------------------------------------------------------- trust


@pytest.mark.parametrize(("signer", "usable"), [(O, True), (SIGNER, True), (OTHER, False), (A, False)])
def test_accounts_are_signed_by_a_trusted_operator(signer: Key, usable: bool) -> None:
    with contextlib.nullcontext() if usable else pytest.raises(JwtError, match="account validation failed"):
        _account(signer=signer)


def test_strict_operators_sign_with_signing_keys_alone() -> None:
    trust = _trust(strict_signing_key_usage=True)
    assert trust.trusts(SIGNER.public)
    assert not trust.trusts(O.public)
    account = account_options(trust.account(A.public, account_jwt(A, "a", SIGNER, signing_keys=[PLAIN.public]), NOW_S))
    for signer, issuer, refused in ((A, "", "User JWT issuer is not known"), (PLAIN, A.public, "")):
        token = trust.user(user_jwt(U, "u", signer, issuer_account=issuer), NOW_S)
        assert not isinstance(token, Refusal)
        outcome = trust.login(account, token, Credentials(nonce=NONCE, signature=U.sign(NONCE)), NOW_NS)
        assert (outcome.reason if isinstance(outcome, Refusal) else "") == refused


@pytest.mark.parametrize("claims", [{"exp": NOW_S}, {"nbf": NOW_S + 1}])
def test_accounts_have_their_time(claims: dict[str, int]) -> None:
    with pytest.raises(JwtError, match="account validation failed"):
        _account(claims=claims)


def test_an_account_is_the_one_that_was_asked_for() -> None:
    with pytest.raises(JwtError, match="account validation failed"):
        _trust().account(B.public, account_jwt(A, "a", O), NOW_S)


def test_pinned_accounts_are_the_only_ones() -> None:
    trust = _trust("SYS", pinned=(B.public,))
    outcome = trust.user(user_jwt(U, "u", A), NOW_S)
    assert _reason(outcome) == f"Account {A.public} not listed as operator pinned account"  # type: ignore[arg-type]
    assert not isinstance(trust.user(user_jwt(U, "u", B), NOW_S), Refusal)


@pytest.mark.parametrize(
    ("trace", "followed"),
    [
        ({"dest": "t", "sampling": 20}, TraceOptions(destination="t", percent=20)),
        ({"dest": "t"}, TraceOptions(destination="t")),
        ({"dest": "t", "sampling": 400}, TraceOptions(destination="t")),
        ({"dest": "t.*"}, None),
        ({"sampling": 20}, None),
    ],
)
def test_an_account_says_where_messages_with_traceparent_are_traced(
    trace: dict[str, Any], followed: TraceOptions | None
) -> None:
    assert _account(trace=trace).trace == followed


# ---------------------------------------------------------------------- logins


def test_a_user_has_the_limits_of_its_token() -> None:
    text = user_jwt(U, "u", A, subs=3, payload=4, pub={"allow": ["a"]}, resp={"max": 0, "ttl": 0})
    outcome = _logged_in(_account(), text)
    assert isinstance(outcome, Login)
    user = outcome.user
    assert user is not None
    assert user.permissions is not None
    assert (user.nkey, user.max_subscriptions, user.max_payload) == (U.public, 3, 4)
    assert user.permissions.responses == AllowResponses(1, 2 * MINUTE)


@pytest.mark.parametrize(
    ("claims", "given", "reason"),
    [
        ({"claims": {"exp": NOW_S}}, {}, "User JWT no longer valid: &{Issues:[claim is expired]}"),
        ({"claims": {"nbf": NOW_S + 9}}, {}, "User JWT no longer valid: &{Issues:[claim is not yet valid]}"),
        ({}, {"signature": ""}, "Signature missing"),
        ({}, {"signature": U.sign("other")}, "Signature not verified"),
        ({"allowed_connection_types": ["WEBSOCKET"]}, {}, "Connection type not allowed"),
        ({"allowed_connection_types": ["odd"]}, {}, 'invalid connection types ["ODD"]'),
        ({"proxy_required": True}, {}, "proxy connection required"),
        ({"src": ["10.0.0.0/8"]}, {}, "Bad src Ip 127.0.0.1"),
        ({"src": ["127.0.0.0/8"]}, {"host": "odd"}, "Bad src Ip odd"),
        ({"times": [{"start": "00:00:00", "end": "00:00:00"}]}, {}, "Outside connect times"),
    ],
)
def test_reasons_of_refusal(claims: dict[str, Any], given: dict[str, Any], reason: str) -> None:
    assert _reason(_logged_in(_account(), user_jwt(U, "u", A, **claims), **given)) == reason


@pytest.mark.parametrize("text", ["", "garbage", account_jwt(A, "A", O)])
def test_without_a_token_of_a_user(text: str) -> None:
    assert _reason(_logged_in(_account(), text)) == "Authentication requires a user JWT"


@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_sources_fit_addresses_of_either_kind(host: str) -> None:
    assert isinstance(_logged_in(_account(), user_jwt(U, "u", A, src="127.0.0.0/8"), host=host), Login)


def test_bearers_need_no_signature_unless_the_account_has_none() -> None:
    text = user_jwt(U, "u", A, bearer_token=True)
    outcome = _logged_in(_account(), text, signature="")
    assert isinstance(outcome, Login)
    assert outcome.user is not None
    assert outcome.user.shown_token == ""
    account = _account(limits={"disallow_bearer": True})
    assert _reason(_logged_in(account, text)) == "Account does not allow bearer tokens"


@pytest.mark.parametrize(
    ("revocations", "revoked"),
    [
        ({U.public: ISSUED_AT}, True),
        ({U.public: ISSUED_AT - 1}, False),
        ({"*": ISSUED_AT}, True),
        ({"*": ISSUED_AT - 1}, False),
        ({"*": ISSUED_AT, U.public: 1}, True),
        ({A.public: ISSUED_AT}, False),
    ],
)
def test_revocations(revocations: dict[str, int], revoked: bool) -> None:
    outcome = _logged_in(_account(revocations=revocations), user_jwt(U, "u", A))
    assert (isinstance(outcome, Refusal) and outcome.reason == "User authentication revoked") is revoked


def test_a_login_ends_with_its_token_or_its_time_of_day() -> None:
    clock = datetime.fromtimestamp(NOW_S, UTC)
    end = clock.replace(hour=(clock.hour + 1) % 24, minute=0, second=0)
    times = [{"start": "00:00:00", "end": f"{end:%H:%M:%S}"}]
    for exp, expected in ((NOW_S + 5, NOW_S + 5), (NOW_S + 10**6, int(end.timestamp()))):
        text = user_jwt(U, "u", A, times=times, times_location="UTC", claims={"exp": exp})
        outcome = _logged_in(_account(), text)
        assert isinstance(outcome, Login)
        assert outcome.expires_ns == expected * SECOND


def _at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * SECOND


@pytest.mark.parametrize(
    ("start", "end", "zone", "now", "until"),
    [
        ("08:00:00", "17:00:00", "UTC", "2026-03-02T07:59:59+00:00", None),
        ("08:00:00", "17:00:00", "UTC", "2026-03-02T08:00:00+00:00", "2026-03-02T17:00:00+00:00"),
        ("08:00:00", "17:00:00", "UTC", "2026-03-02T17:00:00+00:00", None),
        ("22:00:00", "06:00:00", "UTC", "2026-03-02T23:00:00+00:00", "2026-03-03T06:00:00+00:00"),
        ("22:00:00", "06:00:00", "UTC", "2026-03-02T05:00:00+00:00", "2026-03-02T06:00:00+00:00"),
        ("22:00:00", "06:00:00", "UTC", "2026-03-02T12:00:00+00:00", None),
        ("08:00:00", "17:00:00", "America/New_York", "2026-03-02T13:00:00+00:00", "2026-03-02T22:00:00+00:00"),
        # Clocks go forward at 02:00 on this day.
        ("01:00:00", "04:00:00", "Europe/Berlin", "2026-03-29T00:30:00+00:00", "2026-03-29T02:00:00+00:00"),
    ],
)
def test_times_of_day(start: str, end: str, zone: str, now: str, until: str | None) -> None:
    limits = jwt.UserLimits(times=(jwt.TimeRange(start, end),), times_location=zone)
    assert connect_until(limits, _at(now)) == (-1 if until is None else _at(until))


# ---------------------------------------------------------------------- scopes and templates


def test_a_scope_gives_its_template() -> None:
    account = _account(
        signing_keys=[scope(SCOPED, "r", {"subs": 7, "pub": {"allow": ["to.{{name()}}"]}}), PLAIN.public]
    )
    outcome = _logged_in(account, user_jwt(U, "ann", SCOPED, issuer_account=A.public, scoped=True))
    assert isinstance(outcome, Login)
    assert outcome.user is not None
    assert outcome.user.permissions is not None
    assert outcome.user.permissions.publish is not None
    assert (outcome.user.max_subscriptions, outcome.user.permissions.publish.allow) == (7, ("to.ann",))
    own = user_jwt(U, "ann", SCOPED, issuer_account=A.public, subs=3)
    assert _reason(_logged_in(account, own)).startswith("User JWT is not valid: scoped users require")
    assert isinstance(_logged_in(account, user_jwt(U, "ann", PLAIN, issuer_account=A.public)), Login)
    assert _reason(_logged_in(account, user_jwt(U, "x", B, issuer_account=A.public))) == "User JWT issuer is not known"


def _resolved(*allow: str, tags: tuple[str, ...] = (), account_tags: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    account = jwt.decode(account_jwt(A, "acc", O, tags=list(account_tags)), jwt.AccountClaims)
    user = jwt.decode(user_jwt(U, "ann", A, tags=list(tags)), jwt.UserClaims)
    made = resolved(jwt.JwtPermissions(pub=jwt.Rule(allow)), user, account)
    return None if made is None else made.pub.allow


@pytest.mark.parametrize(
    ("template", "subjects"),
    [
        ("plain.>", ("plain.>",)),
        ("a.{{name()}}", ("a.ann",)),
        ("a.{{subject()}}", (f"a.{U.public}",)),
        ("a.{{account-name()}}", ("a.acc",)),
        ("a.{{account-subject()}}", (f"a.{A.public}",)),
        ("a.{{NAME()}}", ("a.ann",)),
        ("a.{{tag(team)}}", ("a.red", "a.blue")),
        ("{{tag(team)}}.{{tag(x)}}", ("red.1", "blue.1")),
        ("{{account-tag(env)}}.>", ("test.>",)),
        ("a.{{tag(none)}}", None),
        ("a.{{unknown()}}", None),
        ("a.{{name}}", None),
        ("a.x{{name()}}", ("a.x{{name()}}",)),
    ],
)
def test_templates(template: str, subjects: tuple[str, ...] | None) -> None:
    assert _resolved(template, tags=("team:red", "team:blue", "x:1"), account_tags=("env:test",)) == subjects


@pytest.mark.parametrize("value", ["", "a b", "a..b", ".", "a."])
def test_a_tag_cannot_make_an_invalid_subject(value: str) -> None:
    assert _resolved("a.{{tag(t)}}.b", tags=(f"t:{value}",)) is None


def test_templates_give_no_more_subjects_than_allowed() -> None:
    tags = tuple(f"t:{number}" for number in range(64))
    at_most = _resolved("{{tag(t)}}.{{tag(t)}}", tags=tags)
    assert at_most is not None
    assert len(at_most) == MAX_TEMPLATED
    assert _resolved("{{tag(t)}}.{{tag(t)}}", "x", tags=tags) is None
    assert _resolved(".".join(["{{tag(t)}}"] * 30), tags=tags) is None  # 64^30 subjects would never be made


# ---------------------------------------------------------------------- accounts as options


def test_an_account_without_jetstream_has_none() -> None:
    assert _account().jetstream is None
    assert _account(limits={"disk_storage": 5}).jetstream is not None


def test_limits_of_an_account() -> None:
    account = _account(limits={"conn": 3, "subs": 4, "payload": 5, **JETSTREAM, "streams": 6, "max_ack_pending": 7})
    limits = account.limits
    assert (limits.max_connections, limits.max_subscriptions, limits.max_payload) == (3, 4, 5)
    assert account.jetstream is not None
    assert (account.jetstream.max_streams, account.jetstream.max_ack_pending) == (6, 7)


def test_tiers_replace_the_flat_limits() -> None:
    account = _account(limits={**JETSTREAM, "tiered_limits": {"R3": {"disk_storage": 9}, "R1": {"disk_storage": 8}}})
    assert account.jetstream is not None
    assert [(name, tier.max_file) for name, tier in account.jetstream.tiers] == [("R1", 8), ("R3", 9)]


def test_exports_and_imports() -> None:
    token = activation_jwt(A.public, B, "p.>", "stream")
    account = _account(
        exports=[
            {
                "subject": "s.*",
                "type": "stream",
                "token_req": True,
                "revocations": {"*": 5},
                "account_token_position": 2,
            },
            {
                "subject": "q",
                "type": "service",
                "response_type": "Chunked",
                "service_latency": {"sampling": 50, "results": "l"},
            },
        ],
        imports=[
            {"subject": "p.>", "account": B.public, "type": "stream", "token": token, "to": "pre"},
            {"subject": "new", "account": B.public, "type": "service", "local_subject": "here"},
            {"subject": "here", "account": B.public, "type": "service", "to": "old"},
        ],
    )
    stream, service = account.exports
    assert isinstance(stream, StreamExport)
    assert (stream.activated, stream.revoked, stream.token_position) == (True, (("*", 5),), 2)
    assert isinstance(service, ServiceExport)
    assert service.latency is not None
    assert (service.response, service.latency.sampling, service.latency.subject) == ("chunked", 50, "l")
    first, second, third = account.imports
    assert isinstance(first, StreamImport)
    assert isinstance(second, ServiceImport)
    assert isinstance(third, ServiceImport)
    assert first.prefix == "pre"
    assert first.activation is not None
    assert first.activation.nats.subject == "p.>"
    assert [(one.subject, one.to) for one in (second, third)] == [("new", "here"), ("old", "here")]


def test_mappings_that_are_not_valid_have_no_effect() -> None:
    mappings = {"a.*": [{"subject": "b.{{wildcard(1)}}"}], "x": [{"subject": "y.{{wildcard(9)}}"}], "z": []}
    assert [one.subject for one in _account(mappings=mappings).mappings] == ["a.*"]


# ---------------------------------------------------------------------- changes of an account


@pytest.mark.parametrize(
    ("changes", "ended"),
    [
        ({}, None),
        ({"limits": {"conn": 1}}, None),
        ({"revocations": {U.public: ISSUED_AT}}, ConnectionEnd("User Authentication Revoked", "Credentials Revoked")),
        ({"signing_keys": []}, ConnectionEnd("", "Authentication Failure")),
        ({"signing_keys": [scope(SCOPED, "r", {"subs": 9})]}, ConnectionEnd("", "Authentication Failure")),
    ],
)
def test_users_who_may_not_stay(changes: dict[str, Any], ended: ConnectionEnd | None) -> None:
    keys: dict[str, Any] = {"signing_keys": [scope(SCOPED, "r", {"subs": 7})]}
    outcome = _logged_in(_account(**keys), user_jwt(U, "ann", SCOPED, issuer_account=A.public, scoped=True))
    assert isinstance(outcome, Login)
    assert outcome.user is not None
    assert _trust().remains(_account(**{**keys, **changes}), outcome.user) == ended


def test_bearers_end_when_the_account_has_them_no_more() -> None:
    outcome = _logged_in(_account(), user_jwt(U, "u", A, bearer_token=True))
    assert isinstance(outcome, Login)
    assert outcome.user is not None
    ended = _trust().remains(_account(limits={"disallow_bearer": True}), outcome.user)
    assert ended == ConnectionEnd("Authorization Violation", "Authentication Failure")


# ---------------------------------------------------------------------- any claims


def test_any_signed_claims_are_options_a_login_or_refused() -> None:
    rng = random.Random(f"operators {SEED}")
    tags = [f"t:{value}" for value in "ab"]
    template = {"pub": {"allow": ["{{tag(t)}}.{{name()}}"]}, "src": ["127.0.0.0/8"], "times_location": "UTC"}
    account_text = account_jwt(
        A,
        "acc",
        O,
        limits={**JETSTREAM, "tiered_limits": {"R1": NO_LIMITS}},
        signing_keys=[scope(SCOPED, "r", template)],
        exports=[{"subject": "e", "type": "service", "service_latency": {"sampling": "headers", "results": "l"}}],
        imports=[{"subject": "x", "account": B.public, "type": "stream"}],
        mappings={"m.*": [{"subject": "n.{{wildcard(1)}}", "weight": 50}]},
        authorization={"auth_users": [U.public]},
        revocations={"*": 1},
    )
    user_text = user_jwt(U, "u", SCOPED, issuer_account=A.public, scoped=True, tags=tags, src="::/0", times=[{}])
    own_text = user_jwt(
        U, "u", A, pub={"allow": ["a"]}, times=[{"start": "08:00:00", "end": "07:59:00"}], resp={"ttl": 1}
    )
    bodies = [
        (json.dumps(claims_of(text)), key) for text, key in ((account_text, O), (user_text, SCOPED), (own_text, A))
    ]
    odd = [
        *(body for body, _ in bodies),
        "-9223372036854775808",
        "9223372036854775807",
        '{"allow":[" "]}',
        "null",
        '""',
        "-1",
    ]
    trust, account = _trust(), _account(signing_keys=[scope(SCOPED, "r", template), PLAIN.public])
    head = account_text.split(".")[0]
    reached = 0
    for _ in range(ROUNDS):
        body, key = rng.choice(bodies)
        changed = mutated(rng, body, odd, changes=2).encode("utf-8", "surrogatepass")
        parts = f"{head}.{base64.urlsafe_b64encode(changed).rstrip(b'=').decode()}"
        text = f"{parts}.{key.sign(parts)}"
        if key is O:
            with contextlib.suppress(JwtError):
                account_options(trust.account(A.public, text, NOW_S))
                reached += 1
            continue
        outcome = _logged_in(account, text)
        if isinstance(outcome, Login):
            assert outcome.user is not None
            trust.remains(account, outcome.user)
            reached += 1
    assert reached > ROUNDS // 50
