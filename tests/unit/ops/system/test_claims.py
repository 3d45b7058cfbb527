"""Decisions about requests for tokens of accounts."""

from __future__ import annotations

import pytest

from lakestream.ops.system.claims import ClaimsError, deleted_accounts, updated_account, validation_issues
from tests.keys import ISSUED_AT, Key, account_jwt, account_key, operator_key, user_jwt, user_key

pytestmark = pytest.mark.unit

OPERATOR, OTHER = operator_key("claims"), operator_key("claims other")
A, B, SYSTEM = (account_key(f"claims {name}") for name in ("A", "B", "SYS"))


def _deletion(*accounts: object, signer: Key = OPERATOR, subject: str = "") -> str:
    nats = {"accounts": list(accounts), "type": "generic", "version": 2}
    return signer.token({"iat": ISSUED_AT, "iss": signer.public, "sub": subject or signer.public, "nats": nats})


def _deleted(text: str, *, allowed: bool = True) -> list[str]:
    return deleted_accounts(text, trusts=lambda key: key == OPERATOR.public, allowed=allowed, system=SYSTEM.public)


def test_an_update_is_about_the_account_of_the_token() -> None:
    token = account_jwt(A, "A", OPERATOR)
    assert updated_account("", token) == updated_account(A.public, token) == A.public


@pytest.mark.parametrize(
    ("asked", "text", "subject", "reason"),
    [
        ("", "garbage", "n/a", "expected 3 chunks"),
        (A.public, user_jwt(user_key("u"), "u", A), "n/a", "not account claim"),
        (B.public, account_jwt(A, "A", OPERATOR), B.public, "subject does not match jwt content"),
    ],
)
def test_updates_that_are_refused(asked: str, text: str, subject: str, reason: str) -> None:
    with pytest.raises(ClaimsError, match=reason) as raised:
        updated_account(asked, text)
    assert raised.value.subject == subject


def test_issues_of_an_account() -> None:
    assert validation_issues(account_jwt(A, "A", OPERATOR, claims={"exp": ISSUED_AT})) == []
    assert validation_issues(account_jwt(A, "A", OPERATOR, imports=[{"subject": "a..b", "type": "stream"}]))


def test_a_request_names_the_accounts_that_go() -> None:
    assert _deleted(_deletion(A.public, B.public)) == [A.public, B.public]
    assert _deleted(_deletion()) == []


@pytest.mark.parametrize(
    ("text", "allowed", "reason"),
    [
        ("garbage", True, "expected 3 chunks"),
        (_deletion(A.public, subject=B.public), True, "not self signed"),
        (account_jwt(A, "A", OPERATOR), True, "not self signed"),
        (_deletion(A.public, signer=OTHER), True, "not trusted"),
        (_deletion(A.public, signer=OTHER), False, "not trusted"),
        (_deletion(A.public), False, "delete must be enabled"),
        (_deletion("FOO"), True, "malformed request"),
        (_deletion(5), True, "malformed request"),
        (_deletion(A.public, SYSTEM.public), True, "not allowed to delete system account"),
    ],
)
def test_deletions_that_are_refused(text: str, allowed: bool, reason: str) -> None:
    with pytest.raises(ClaimsError, match=reason):
        _deleted(text, allowed=allowed)
