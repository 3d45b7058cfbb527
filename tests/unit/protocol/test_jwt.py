"""Unit tests of tokens: decoding, signatures, and the issues of claims.

For the fuzz tests `LAKESTREAM_FUZZ_ROUNDS` inputs (2,000) are drawn from `LAKESTREAM_FUZZ_SEED`: tokens with changes,
and tokens with changed claims whose signature is right.
"""

from __future__ import annotations

import base64
import json
import random
import time
from typing import Any

import pytest

from lakestream.protocol import jwt, nkeys
from lakestream.protocol.jwt import JwtError
from tests.fuzzing import CAMPAIGN, ROUNDS, SEED, growth, mutated
from tests.keys import (
    ISSUED_AT,
    JETSTREAM,
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

O, A, B, S, U = operator_key("O"), account_key("A"), account_key("B"), account_key("signer"), user_key("U")  # noqa: E741
LIMIT_S = 0.25
"""Longest time for one input: the machine may be busy."""

RICH_USER = user_jwt(
    U,
    "u",
    A,
    pub={"allow": ["a.>"], "deny": ["a.b"]},
    sub={"allow": ["c.* workers"]},
    resp={"max": 1, "ttl": 5},
    src=["10.0.0.0/8", "::1/128"],
    times=[{"start": "08:00:00", "end": "17:00:00"}],
    times_location="Europe/Berlin",
    allowed_connection_types=["STANDARD"],
    tags=["a:b"],
    claims={"exp": ISSUED_AT + 10**9, "nbf": ISSUED_AT},
)
RICH_ACCOUNT = account_jwt(
    A,
    "A",
    O,
    limits={**JETSTREAM, "tiered_limits": {"R1": JETSTREAM}},
    imports=[
        {
            "subject": "x.>",
            "account": B.public,
            "type": "stream",
            "token": activation_jwt(A.public, B, "x.>", "stream"),
        }
    ],
    exports=[{"subject": "e.*", "type": "service", "service_latency": {"sampling": "headers", "results": "l"}}],
    signing_keys=[S.public, scope(account_key("scoped"), "r", {"pub": {"allow": ["{{tag(a)}}.>"]}})],
    revocations={U.public: ISSUED_AT, "*": 1},
    mappings={"m.*": [{"subject": "n.{{wildcard(1)}}", "weight": 50}]},
    default_permissions={"pub": {"deny": ["no"]}, "sub": {}},
    authorization={"auth_users": [U.public], "allowed_accounts": ["*"]},
    tags=["env:test"],
)
RICH_OPERATOR = operator_jwt(O, system_account=B.public, signing_keys=[O.public], assert_server_version="2.10.0")
RICH: dict[type[Any], str] = {jwt.User: RICH_USER, jwt.Account: RICH_ACCOUNT, jwt.Operator: RICH_OPERATOR}


def _refused(text: str, part: type[Any] = jwt.User) -> str:
    with pytest.raises(JwtError) as caught:
        jwt.decode(text, part)
    return str(caught.value)


@pytest.mark.parametrize("part", RICH, ids=lambda part: part.__name__)
def test_a_token_is_what_was_signed(part: type[Any]) -> None:
    token = jwt.decode(RICH[part], part)
    claims = claims_of(RICH[part])
    assert (token.iss, token.sub, token.name, token.iat) == tuple(claims[key] for key in ("iss", "sub", "name", "iat"))
    assert token.text == RICH[part]


def test_the_claims_of_a_user() -> None:
    user = jwt.decode(RICH_USER, jwt.User).nats
    assert user.pub == jwt.Rule(("a.>",), ("a.b",))
    assert (user.resp, user.sources) == (jwt.Responses(1, 5), ("10.0.0.0/8", "::1/128"))
    assert jwt.user_issues(user) == []


def test_what_this_server_encodes_it_decodes() -> None:
    key = nkeys.new_key(nkeys.ACCOUNT)
    text = jwt.encode(key, U.public, "user", {"subs": 5}, iat=7, exp=9)
    token = jwt.decode(text, jwt.User)
    assert (token.iss, token.sub, token.iat, token.exp, token.nats.subs) == (key.public, U.public, 7, 9, 5)


@pytest.mark.parametrize("part", RICH, ids=lambda part: part.__name__)
def test_no_changed_letter_changes_what_is_said(part: type[Any]) -> None:
    text = RICH[part]
    signed = text.rindex(".")
    for at, letter in enumerate(text):
        for other in {"A", "B", "-", ".", "=", chr(ord(letter) ^ 1)} - {letter}:
            changed = text[:at] + other + text[at + 1 :]
            try:
                token = jwt.decode(changed, part)
            except JwtError:
                continue
            # The last letter of the signature has bits to spare.
            assert at > signed, (at, other)
            assert token.nats == jwt.decode(text, part).nats


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected 3 chunks"),
        ("a.b", "expected 3 chunks"),
        ("a.b.c.d", "expected 3 chunks"),
        (f"{'e' * (1 << 20)}.e.e", "token is longer than 1048576 bytes"),
        ("!.e30.e30", "illegal base64 data"),
        ("e.e30.e30", "illegal base64 data"),
        ("e30=.e30.e30", "illegal base64 data"),
        ("W10.e30.e30", "claims are not an object"),
        ("e3.e30.e30", "claims are not JSON"),
        ("e30.e30.e30", 'not supported type ""'),
        (U.token({}, {"typ": "JOT", "alg": "ed25519"}), 'not supported type "JOT"'),
        (U.token({}, {"typ": "JWT", "alg": "none"}), 'unexpected "none" algorithm'),
        (U.token({}, {"typ": 5, "alg": "none"}), "claims are wrong: Expected `str`, got `int` - at `$.typ`"),
        (U.token({"nats": {"version": 3}}), "JWT was generated by a newer version "),
        (U.token({"nats": {"version": True}}), "JWT was generated by a newer version "),
        (U.token({"iss": A.public, "nats": {"version": 2}}), "claim failed V2 signature verification"),
        (U.token({"iss": A.public, "nats": {}}), "claim failed V1 signature verification"),
        (U.token({"iss": "x", "nats": {"version": 2}}), "claim failed V2 signature verification"),
        (RICH_USER + "A", "claim failed V2 signature verification"),
        (RICH_USER[:-4], "claim failed V2 signature verification"),
        (RICH_ACCOUNT, "not user claim"),
        (user_jwt(U, "u", O), f"unable to validate expected prefixes - '{O.public}'"),
        (A.signed(U.public, "u", {"type": "user", "subs": "x"}), "claims are wrong: Expected `int | null`"),
        (A.signed(U.public, "u", {"type": "user"}, iat="x"), "claims are wrong: Expected `int"),
    ],
)
def test_reasons_of_refusal(text: str, reason: str) -> None:
    assert _refused(text).startswith(reason.partition(" | null")[0])


def test_another_kind_is_named() -> None:
    assert _refused(RICH_USER, jwt.Account) == "not account claim"
    assert _refused(RICH_USER, jwt.Operator) == "not operator claim"
    assert _refused(RICH_USER, jwt.Activation) == "not activation claim"


def test_a_nest_of_claims_is_refused() -> None:
    deep = base64.urlsafe_b64encode(b'{"a":' * 50_000 + b"1" + b"}" * 50_000).rstrip(b"=").decode()
    assert _refused(f"{RICH_USER.split('.')[0]}.{deep}.e30") == "claims are not JSON"


def test_version_1_signs_its_claims_alone_and_has_no_limits_by_default() -> None:
    body = {"iss": A.public, "sub": U.public, "type": "user", "iat": 1, "nats": {"pub": {}, "sub": {}}}
    user = jwt.decode(A.token(body, {"typ": "jwt", "alg": "ed25519"}, whole=False), jwt.User).nats
    assert (user.subs, user.data, user.payload) == (-1, -1, -1)
    assert _refused(A.token(body, whole=True)) == "claim failed V1 signature verification"


def test_null_is_as_if_absent() -> None:
    nats = {"type": "user", "version": 2, "pub": None, "sub": {"allow": None}, "src": None, "resp": None}
    token = jwt.decode(A.token({"iss": A.public, "sub": U.public, "exp": None, "nats": nats}), jwt.User)
    assert (token.exp, token.nats) == (0, jwt.User())


def test_times() -> None:
    token = jwt.decode(user_jwt(U, "u", A, claims={"nbf": 10, "exp": 20}), jwt.User)
    assert {now: token.time_issues(now) for now in (9, 10, 19, 20)} == {
        9: ["claim is not yet valid"],
        10: [],
        19: [],
        20: ["claim is expired"],
    }


@pytest.mark.parametrize(
    ("claims", "issues"),
    [
        ({"issuer_account": "x"}, ["account_id is not an account public key"]),
        ({"pub": {"allow": ["a b c"]}}, ['Permission Subject "a b c" contains too many spaces']),
        ({"pub": {"deny": ["a q"]}}, ['Permission Subject "a q" is not allowed to contain queue']),
        ({"sub": {"allow": ["a q"]}}, []),
        ({"sub": {"allow": [""]}}, ["subject cannot be empty"]),
        ({"sub": {"allow": [".a"]}}, ['subject ".a" cannot start with a `.`']),
        ({"sub": {"allow": ["a."]}}, ['subject "a." cannot end with a `.`']),
        ({"sub": {"allow": ["a..b"]}}, ['subject "a..b" cannot contain consecutive `.`']),
        ({"src": ["10.0.0.1"]}, ['invalid cidr "10.0.0.1" in user src limits']),
        ({"src": "10.0.0.0/8, 1.2.3.4/99"}, ['invalid cidr "1.2.3.4/99" in user src limits']),
        (
            {"times": [{}]},
            ["time ranges start must contain a start", "time ranges end must contain an end"],
        ),
        (
            {"times": [{"start": "24:00:00", "end": "8:00"}]},
            ['start in time range is invalid "24:00:00"', 'end in time range is invalid "8:00"'],
        ),
        ({"times_location": "No/Where"}, ["could not parse iana time zone by name: unknown time zone No/Where"]),
        (
            {"times_location": "../../etc/passwd"},
            ["could not parse iana time zone by name: unknown time zone ../../etc/passwd"],
        ),
    ],
)
def test_issues_of_users(claims: dict[str, Any], issues: list[str]) -> None:
    assert jwt.user_issues(jwt.decode(user_jwt(U, "u", A, **claims), jwt.User).nats) == issues


def _import(**fields: Any) -> dict[str, Any]:
    return {"subject": "x", "account": B.public, "type": "stream", **fields}


def _activated(subject: str = "x", kind: str = "stream", to: str = A.public, signer: Key = B) -> str:
    return activation_jwt(to, signer, subject, kind)


@pytest.mark.parametrize(
    ("claims", "issues"),
    [
        ({"imports": [_import(type="")]}, ['invalid import type: ""']),
        ({"imports": [_import(account="")]}, ["account to import from is not specified"]),
        ({"imports": [_import(subject="")]}, ["subject cannot be empty"]),
        ({"imports": [_import(token="x")]}, ['import "x" contains an invalid activation token']),
        ({"imports": [_import(token=_activated())]}, []),
        (
            {"imports": [_import(token=_activated(signer=S))]},
            ['activation token doesn\'t match account for import "x"'],
        ),
        (
            {"imports": [_import(token=_activated(to=B.public))]},
            ['activation token doesn\'t match account it is being included in, "x"'],
        ),
        (
            {"imports": [_import(token=_activated(kind="service"))]},
            ["mismatch between token import type service and type of import stream"],
        ),
        (
            {"imports": [_import(token=_activated(subject="y"))]},
            ['activation token import subject "y" doesn\'t match import "x"'],
        ),
        ({"exports": [{"subject": "x", "type": "both"}]}, ['invalid export type: "both"']),
        ({"exports": [{"subject": "a b", "type": "stream"}]}, ['subject "a b" cannot have spaces']),
        (
            {"limits": {"imports": 0}, "imports": [_import()]},
            ["the account contains more imports than allowed by the operator"],
        ),
        (
            {"limits": {"exports": 0}, "exports": [{"subject": "x", "type": "stream"}]},
            ["the account contains more exports than allowed by the operator"],
        ),
        (
            {"limits": {"wildcards": False}, "exports": [{"subject": "x.*", "type": "stream"}]},
            ["the account contains wildcard exports that are not allowed by the operator"],
        ),
        (
            {"default_permissions": {"pub": {"allow": ["."]}}},
            ['subject "." cannot start with a `.`', 'subject "." cannot end with a `.`'],
        ),
        ({"signing_keys": ["x"]}, ["x is not an account public key"]),
        ({"signing_keys": [scope(S, "r", {"src": ["x"]})]}, ['invalid cidr "x" in user src limits']),
        ({"signing_keys": [scope(S, "r", {"pub": {"allow": ["{{name()}}"]}})]}, []),
        ({"mappings": {"a..b": []}}, ['subject "a..b" cannot contain consecutive `.`']),
    ],
)
def test_issues_of_accounts(claims: dict[str, Any], issues: list[str]) -> None:
    assert jwt.account_issues(jwt.decode(account_jwt(A, "A", O, **claims), jwt.Account)) == issues


@pytest.mark.parametrize(
    "text",
    [
        RICH_OPERATOR,
        f"\n{RICH_OPERATOR}\n",
        f"-----BEGIN NATS OPERATOR JWT-----\n{RICH_OPERATOR}\n------END NATS OPERATOR JWT------\n",
        f"-----BEGIN X-----\r\n{RICH_OPERATOR}\r\n------END X------\r\n\n",
    ],
)
def test_the_token_of_a_file(text: str) -> None:
    assert jwt.undecorated(text) == RICH_OPERATOR


@pytest.mark.parametrize(
    ("start", "repeated", "end"),
    [("", "-", ""), ("", "---x", ""), ("---", " ", "---"), ("", "\n", ""), ("", "a", " -"), ("---\n", "\n---", "\na")],
)
def test_a_long_file_of_dashes_takes_linear_time(start: str, repeated: str, end: str) -> None:
    assert growth(lambda size: jwt.undecorated(start + repeated * size + end), 5_000) < 9


# ---------------------------------------------------------------------- any input

KINDS = (jwt.User, jwt.Account, jwt.Operator, jwt.Activation, jwt.Response, jwt.Deletion)


def _judge(text: str) -> None:
    """Decode a text as every kind, and look for issues. Raises JwtError, or what is a defect."""
    jwt.kind_of(text)
    for part in KINDS:
        try:
            token: Any = jwt.decode(text, part)
        except JwtError:
            continue
        token.time_issues(ISSUED_AT)
        if part is jwt.User:
            jwt.user_issues(token.nats)
        elif part is jwt.Account:
            jwt.account_issues(token)


def _within_time(text: str) -> None:
    began = time.perf_counter()
    try:
        _judge(text)
    except JwtError:
        pass
    finally:
        took = time.perf_counter() - began
        assert took < LIMIT_S or ROUNDS < CAMPAIGN, (took, text)


def test_any_text_is_a_token_or_an_error() -> None:
    rng = random.Random(f"jwt {SEED}")
    texts = [*RICH.values(), activation_jwt(A.public, B, "x", "stream"), "e30.e30.e30", "\ud800.é.\x00"]
    for _ in range(ROUNDS // 2):
        _within_time(mutated(rng, rng.choice(texts), texts))


def test_any_signed_claims_are_a_token_or_an_error() -> None:
    rng = random.Random(f"claims {SEED}")
    bodies = [json.dumps(claims_of(text)) for text in RICH.values()]
    odd = [
        *bodies,
        '"\\ud800"',
        "9" * 400,
        "-1e400",
        "[[[[",
        '{"a":{"b":null}}',
        "true",
        '"\\u0000"',
        "18446744073709551616",
    ]
    signers = {
        json.dumps(claims_of(text)): key for text, key in ((RICH_USER, A), (RICH_ACCOUNT, O), (RICH_OPERATOR, O))
    }
    for _ in range(ROUNDS // 2):
        body = rng.choice(bodies)
        changed = mutated(rng, body, odd, changes=2)
        _within_time(_signed(signers[body], changed))


def _signed(key: Key, body: str) -> str:
    claims = base64.urlsafe_b64encode(body.encode("utf-8", "surrogatepass")).rstrip(b"=").decode()
    parts = f"{RICH_USER.split('.')[0]}.{claims}"
    return f"{parts}.{key.sign(parts)}"
