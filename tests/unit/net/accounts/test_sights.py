"""Tests of what users may see: by their permissions for subscribing, and through imports."""

from __future__ import annotations

import pytest

from lakestream.config.account_options import Permissions, SubjectRule
from lakestream.net.accounts.permissions import Rules
from lakestream.protocol.client import Sight, sees_everything
from lakestream_client.http_users import HttpUser

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("allow", "deny", "sees"),
    [
        (None, (), None),
        ((">",), (), None),
        ((">", "a q"), ("b",), (Sight(None, ("b",)),)),
        (None, ("b", "c q"), (Sight(None, ("b",)),)),
        (None, ("c q",), None),
        ((), (), (Sight(()),)),
        (("a.>",), ("a.b",), (Sight(("a.>",), ("a.b",)),)),
        (
            ("a", "b q", "c *.x"),
            ("d", "b.* q", "e *"),
            (Sight(("a",), ("d",)), Sight(("b",), ("d", "b.*", "e")), Sight(("c",), ("d",))),
        ),
    ],
)
def test_a_user_sees_what_it_may_subscribe_to(
    allow: tuple[str, ...] | None, deny: tuple[str, ...], sees: tuple[Sight, ...] | None
) -> None:
    rules = Rules(Permissions(subscribe=SubjectRule(allow, deny)))
    assert rules.sees() == sees
    shown = {"allow": list(allow)} if allow else {}
    if allow != ():
        assert sees_everything({**shown, "deny": list(deny)}) == (sees is None)


def test_a_user_without_rules_sees_everything() -> None:
    assert Rules(Permissions()).sees() is None
    assert sees_everything(None)
    assert sees_everything({})


@pytest.mark.parametrize(
    ("subscribe", "reads"),
    [(None, True), ({"allow": [">"]}, True), ({"allow": ["a"]}, False), ({"deny": ["a"]}, False)],
)
def test_files_are_for_users_that_see_everything(subscribe: dict[str, list[str]] | None, reads: bool) -> None:
    assert HttpUser("A", subscribe=subscribe).may_read("ORDERS") is reads
