"""Users and their permissions, in nats.conf.

Belongs here: the keys of a user and of `permissions`, in `authorization` or in an account, with the errors of
nats-server. Permissions are applied in net/accounts/permissions.py.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lakestream.config.account_options import (
    AllowResponses,
    Permissions,
    SubjectRule,
    User,
)
from lakestream.config.conf import Item
from lakestream.config.values import (
    LOGIN,
    Rule,
    as_boolean,
    as_duration,
    as_go_string,
    as_number,
    as_text,
    converted,
    go_kind,
    shown,
)
from lakestream.protocol.goquote import quoted
from lakestream.protocol.nkeys import USER, is_public
from lakestream.protocol.subjects import valid_subject

# ---------------------------------------------------------------------- permissions


def _subjects(item: Item, queues: bool) -> tuple[str, ...] | None:
    """Convert a subject or several. An empty array is as if absent, as in nats-server."""
    entries = item.value if isinstance(item.value, list) else [item]
    if not isinstance(item.value, str | list):
        raise item.error(
            f"Expected subject permissions to be a subject, or array of subjects, got {go_kind(item.value)}"
        )
    for entry in entries:
        if not isinstance(entry.value, str):
            raise entry.error("Subject in permissions array cannot be cast to string")
        _check_subject(entry, entry.value, queues)
    return tuple(str(entry.value) for entry in entries) or None


def _check_subject(item: Item, text: str, queues: bool) -> None:
    """Check a subject; a subscription's permission may name a queue group: `orders.* workers`."""
    words = text.split()
    subject = words[0] if queues and len(words) == 2 else text
    if not valid_subject(subject.encode()):
        raise item.error(f'subject "{subject}" is not a valid subject')


def _rule(item: Item, queues: bool) -> SubjectRule:
    if not isinstance(item.value, dict):
        return SubjectRule(_subjects(item, queues))
    values: dict[str, tuple[str, ...] | None] = {}
    for written, entry in item.value.items():
        name = written.lower()
        if name in ("allow", "deny"):
            values[name] = _subjects(entry, queues)
        elif not entry.used:
            raise entry.error(
                f"Unknown field name \"{written}\" parsing subject permissions, only 'allow' or 'deny' are permitted"
            )
    return SubjectRule(values.get("allow"), values.get("deny") or ())


def _expires(key: str, item: Item) -> int:
    if not isinstance(item.value, str) and item.raw[-1:] != "m":
        raise item.error(f"error parsing {key}, not a duration string")
    return as_duration(key, item)


RESPONSES: dict[str, Rule] = {
    **dict.fromkeys(("max", "max_msgs", "max_messages", "max_responses"), ("max", as_number)),
    **dict.fromkeys(("expires", "expiration", "ttl"), ("expires_ns", _expires)),
}
_UNKNOWN = "Unknown field {} parsing permissions"


def _responses(key: str, item: Item) -> AllowResponses | None:
    if isinstance(item.value, bool):
        return AllowResponses() if item.value else None
    if not isinstance(item.value, dict):
        raise item.error("error parsing response permissions, expected a boolean or a map")
    values = converted(item.value, RESPONSES, unknown=_UNKNOWN)
    return AllowResponses(**{name: value for name, value in values.items() if value})  # 0 is the default


PERMISSIONS: dict[str, Rule] = {
    **dict.fromkeys(("publish", "pub", "import"), ("publish", lambda key, item: _rule(item, False))),
    **dict.fromkeys(("subscribe", "sub", "export"), ("subscribe", lambda key, item: _rule(item, True))),
    **dict.fromkeys(("allow_responses", "publish_allow_responses"), ("responses", _responses)),
}


def as_permissions(key: str, item: Item) -> Permissions:
    """Convert `permissions`. With allow_responses alone, nothing else may be published."""
    if not isinstance(item.value, dict):
        raise item.error(f"Expected permissions to be a map/struct, got {shown(item)}")
    values = converted(item.value, PERMISSIONS, unknown=_UNKNOWN)
    if values.get("responses") is not None:
        publish = values.get("publish") or SubjectRule()
        if publish.allow is None:
            values["publish"] = msgspec.structs.replace(publish, allow=())
    return Permissions(**values)


# ---------------------------------------------------------------------- users


CONNECTION_TYPES = ("STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS")
"""Ways in that `allowed_connection_types` may name."""


def _connection_types(key: str, item: Item) -> tuple[str, ...]:
    """Convert the ways by which a user may connect; text in any case, one or several."""
    entries = item.value if isinstance(item.value, list) else [item]
    kinds = tuple(as_text(key, entry).upper() for entry in entries)
    if unknown := [kind for kind in kinds if kind not in CONNECTION_TYPES]:
        raise item.error(f"invalid connection types [{' '.join(map(quoted, unknown))}]")
    return kinds


def _nkey(key: str, item: Item) -> str:
    text = as_go_string(item)
    if text and not is_public(text, USER):
        raise item.error("Not a valid public nkey for a user")
    return text


USER_KEYS: dict[str, Rule] = {
    **LOGIN,
    "nkey": ("nkey", _nkey),
    **dict.fromkeys(("permissions", "permission", "authorization"), ("permissions", as_permissions)),
    **dict.fromkeys(
        ("allowed_connection_types", "connection_types", "clients"), ("connection_types", _connection_types)
    ),
    "proxy_required": ("proxy_required", as_boolean),
}


def as_users(key: str, item: Item) -> tuple[User, ...]:
    """Convert an array of users; see `check_names`."""
    if not isinstance(item.value, list):
        raise item.error(f"Expected users field to be an array, got {shown(item)}")
    users: list[User] = []
    for entry in item.value:
        if not isinstance(entry.value, dict):
            raise entry.error(f"Expected user entry to be a map/struct, got {shown(entry)}")
        user = User(**({"user": "", "password": ""} | converted(entry.value, USER_KEYS)))
        if user.nkey:
            if user.user or user.password:
                raise entry.error("Nkey users do not take usernames or passwords")
        elif not user.user:
            raise entry.error("User entry requires a user")
        users.append(user)
    return tuple(users)


def check_names(item: Item, users: Iterable[User], seen: set[str]) -> None:
    """Raise SettingError at the place of the block for a name or a key that two users have; add them to those seen."""
    for user in users:
        if user.name in seen:
            raise item.error(f'Duplicate {"nkey" if user.nkey else "user"} "{user.name}" detected')
        seen.add(user.name)


def with_default(users: tuple[User, ...], permissions: Permissions | None) -> tuple[User, ...]:
    """Give the users of an `authorization` block without permissions of their own those of the block."""
    if permissions is None:
        return users
    return tuple(
        user if user.permissions is not None else msgspec.structs.replace(user, permissions=permissions)
        for user in users
    )
