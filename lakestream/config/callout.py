"""The `auth_callout` block of `authorization`, in nats.conf.

Belongs here: its keys and their errors, in nats-server's words. The callout itself is net/accounts/callout.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakestream.config.account_options import CalloutOptions
from lakestream.config.conf import Item
from lakestream.config.values import Convert, Rule, as_go_string, as_text, converted, shown
from lakestream.protocol.nkeys import ACCOUNT, CURVE, is_public

_ISSUER = "Expected callout user to be a valid public account nkey"
_XKEY = "Expected callout xkey to be a valid public xkey"


def _key(kind: int, wrong: str) -> Convert:
    def convert(key: str, item: Item) -> str:
        text = as_go_string(item)
        if not is_public(text, kind):
            raise item.error(f'{wrong}, got "{text}"')
        return text

    return convert


def _names(what: str) -> Convert:
    def convert(key: str, item: Item) -> tuple[str, ...]:
        entries: Sequence[Item] | None = item.value if isinstance(item.value, list) else None
        if entries is None:
            raise item.error(f"Expected {what} field to be an array, got *conf.token")
        return tuple(as_text(key, entry) for entry in entries)

    return convert


CALLOUT: dict[str, Rule] = {
    "issuer": ("issuer", _key(ACCOUNT, _ISSUER)),
    **dict.fromkeys(("account", "acc"), ("account", as_text)),
    **dict.fromkeys(("auth_users", "users"), ("users", _names("auth_users"))),
    **dict.fromkeys(("xkey", "key"), ("xkey", _key(CURVE, _XKEY))),
    "allowed_accounts": ("allowed_accounts", _names("allowed accounts")),
}


def as_callout(key: str, item: Item) -> CalloutOptions:
    """Convert `auth_callout`. Raises ConfError without an issuer or users who may log in without being asked about."""
    if not isinstance(item.value, dict):
        raise item.error(f"Expected authorization callout to be a map/struct, got {shown(item)}")
    values = converted(item.value, CALLOUT, unknown="Unknown field {} parsing authorization callout")
    if not values.get("issuer"):
        raise item.error("Authorization callouts require an issuer to be specified")
    if not values.get("users"):
        raise item.error("Authorization callouts require authorized users to be specified")
    return CalloutOptions(**values)
