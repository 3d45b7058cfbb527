"""The `accounts` block of nats.conf, and `mappings`.

Belongs here: the keys of an account with those of its `jetstream` and `limits`, and subject mappings. Users are in
users.py, exports and imports in exports.py, checks across accounts in account_checks.py.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from lakestream.config.account_checks import AccountsError, check_accounts, kind_of, name_error
from lakestream.config.account_options import (
    AccountLimits,
    AccountOptions,
    Destination,
    SubjectMapping,
    TraceOptions,
    User,
)
from lakestream.config.conf import Item
from lakestream.config.errors import StartError
from lakestream.config.exports import Places, as_exports, as_imports
from lakestream.config.mappings import Mappings, hashed_mapping
from lakestream.config.options import Options
from lakestream.config.sharing import hashed_entry
from lakestream.config.users import as_permissions, as_users, check_names
from lakestream.config.values import (
    INT64,
    Rule,
    as_map,
    as_text,
    converted,
    find,
    go_kind,
    number_in,
    shown,
)
from lakestream.protocol.accounts import GLOBAL_ACCOUNT, SYSTEM_ACCOUNT, JetStreamLimits
from lakestream.protocol.goquote import quoted
from lakestream.protocol.nkeys import ACCOUNT, is_public
from lakestream.protocol.subjects import publishable, valid_subject
from lakestream.protocol.transforms import TransformError, check_destination


class Configured(msgspec.Struct):
    """The accounts of one block. `users_at`: the position of each account's users; `places`: see `Places`."""

    accounts: tuple[AccountOptions, ...] = ()
    users_at: dict[str, Item] = {}
    places: Places = {}
    warnings: list[str] = []


# ---------------------------------------------------------------------- mappings


def as_mappings(key: str, item: Item, account: str = GLOBAL_ACCOUNT) -> tuple[SubjectMapping, ...]:
    """Convert `mappings { SUBJECT: DESTINATION }` of an account, or several destinations with weights."""
    found = []
    for source, entry in as_map(key, item).items():
        if not valid_subject(source.encode()):
            raise item.error(f'Subject "{source}" is not a valid subject')
        value = entry.value
        if isinstance(value, str):
            destinations: tuple[Destination, ...] = (Destination(value),)
            where = f'"{source}" to "{value}"'
        elif isinstance(value, dict):
            destinations, where = (_destination(entry),), f'"{source}"'
        elif isinstance(value, list):
            destinations, where = tuple(_destination(one) for one in value), f'"{source}"'
        else:
            raise entry.error("Expected an entry for the mapping destination")
        try:
            mapping = hashed_mapping(SubjectMapping(source, destinations), account)
            _check_mapping(mapping)
        except TransformError as error:
            raise entry.error(f"Error adding mapping for {where} : {error}") from error
        if destinations:
            found.append(mapping)
    return tuple(found)


def _check_mapping(mapping: SubjectMapping) -> None:
    """Raise TransformError, with nats-server's texts, for an invalid mapping."""
    if not valid_subject(mapping.subject.encode()):
        raise TransformError("invalid subject")
    for one in mapping.destinations:
        if not one.subject:
            raise TransformError("invalid subject")
        check_destination(one.subject.encode())
    Mappings((mapping,))


def _destination(item: Item) -> Destination:
    if not isinstance(item.value, dict):
        raise item.error("Expected an entry for the mapping destination")
    values = converted(item.value, DESTINATION, unknown="Unknown field {} for mapping destination")
    subject = values.setdefault("subject", "")
    if "weight" not in values:
        raise item.error(f'Missing weight for mapping destination "{subject}"')
    return Destination(**values)


def _weight(key: str, item: Item) -> int:
    value = item.value
    if isinstance(value, str):
        text = value.removesuffix("%")
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise item.error(f'Invalid weight "{text}" for mapping destination')
        value = int(text)
    if isinstance(value, bool) or not isinstance(value, int):
        raise item.error(f"Unknown entry type for weight of {value}")
    if not 0 <= value <= 100:
        raise item.error(f"Invalid weight {value} for mapping destination")
    return value


DESTINATION: dict[str, Rule] = {
    **dict.fromkeys(("dest", "destination"), ("subject", as_text)),
    "weight": ("weight", _weight),
    "cluster": ("cluster", as_text),
}


# ---------------------------------------------------------------------- limits


def _limit_of_bytes(key: str, item: Item) -> int:
    if isinstance(item.value, bool) or not isinstance(item.value, int):
        raise item.error(f'Expected a parseable size for "{key}", got {shown(item)}')
    return max(item.value, -1)


def _flag(key: str, item: Item) -> bool:
    if not isinstance(item.value, bool):
        raise item.error(f'Expected a parseable bool for "{key}", got {shown(item)}')
    return item.value


def _traffic(key: str, item: Item) -> bool:
    """Convert `cluster_traffic`, which has no effect: replicas use connections of their own here."""
    if not isinstance(item.value, str):
        raise item.error(f"Expected either 'system' or 'owner' string value for \"{key}\", got {shown(item)}")
    if item.value not in ("", "system", "owner"):
        raise item.error(f"Expected 'system' or 'owner' string value for \"{key}\", got {item.value}")
    return item.value == "owner"


ACCOUNT_JETSTREAM: dict[str, Rule] = {
    **dict.fromkeys(("max_memory", "max_mem", "mem", "memory"), ("max_memory", _limit_of_bytes)),
    **dict.fromkeys(("max_store", "max_file", "max_disk", "store", "disk"), ("max_file", _limit_of_bytes)),
    **dict.fromkeys(("max_streams", "streams"), ("max_streams", _limit_of_bytes)),
    **dict.fromkeys(("max_consumers", "consumers"), ("max_consumers", _limit_of_bytes)),
    **dict.fromkeys(("max_bytes_required", "max_stream_bytes", "max_bytes"), ("max_bytes_required", _flag)),
    **dict.fromkeys(("memory_max_stream_bytes", "mem_max_stream_bytes"), ("memory_max_stream_bytes", _limit_of_bytes)),
    **dict.fromkeys(("disk_max_stream_bytes", "store_max_stream_bytes"), ("disk_max_stream_bytes", _limit_of_bytes)),
    "max_ack_pending": ("max_ack_pending", _limit_of_bytes),
    "cluster_traffic": ("cluster_traffic", _traffic),
}


def _jetstream(item: Item, warnings: list[str]) -> JetStreamLimits | None:
    value = item.value
    if isinstance(value, bool):
        return JetStreamLimits() if value else None
    if isinstance(value, str):
        if value.lower() not in ("enabled", "disabled"):
            raise item.error(f"Expected 'enabled' or 'disabled' for string value, got '{value}'")
        return JetStreamLimits() if value.lower() == "enabled" else None
    if not isinstance(value, dict):
        raise item.error(f"Expected map, bool or string to define JetStream, got {go_kind(value)}")
    values = converted(value, ACCOUNT_JETSTREAM)
    if values.pop("cluster_traffic", False):
        place = find(value, "cluster_traffic")
        warnings.append(f'{place.file}:{place.line}: "cluster_traffic" has no effect here')
    return JetStreamLimits(**values)


ACCOUNT_LIMITS: dict[str, Rule] = {
    **dict.fromkeys(("max_connections", "max_conn"), ("max_connections", number_in(-1, INT64))),
    **dict.fromkeys(("max_leafnodes", "max_leafs"), ("max_leafnodes", number_in(-1, INT64))),
    **dict.fromkeys(("max_subscriptions", "max_subs"), ("max_subscriptions", number_in(-1, INT64))),
    **dict.fromkeys(("max_payload", "max_pay"), ("max_payload", number_in(-1, INT64))),
}


def _limits(key: str, item: Item) -> dict[str, Any]:
    if not isinstance(item.value, dict):
        raise item.error(f"Expected account limits to be a map/struct, got {item.value}")
    unknown = "Unknown field {} parsing account limits"
    values = converted(item.value, ACCOUNT_LIMITS, unknown=unknown)
    warnings = values.pop("warnings", ())
    return {"limits": AccountLimits(**values), "warnings": warnings}


# ---------------------------------------------------------------------- accounts


def _nkey(key: str, item: Item) -> bool:
    """Check the public key of an account, which has no effect without operators."""
    if not isinstance(item.value, str) or not is_public(item.value, ACCOUNT):
        raise item.error(f'Not a valid public nkey for an account: "{shown(item)}"')
    return True


ACCOUNT_KEYS: dict[str, Rule] = {
    "users": ("users", as_users),
    "default_permissions": ("default_permissions", as_permissions),
    "limits": ("*", _limits),
    # Converted in `_account`, which has the account's name, and collects positions and warnings.
    "maps": ("mappings", lambda key, item: item),
    **{name: (name, lambda key, item: item) for name in ("jetstream", "exports", "imports", "mappings")},
    "nkey": ("nkey", _nkey),
    **dict.fromkeys(("msg_trace", "trace_dest"), ("*", lambda key, item: _trace(key, item))),
}


def _trace(key: str, item: Item) -> dict[str, Any]:
    """Convert where messages with `traceparent` are traced: a subject, or a map."""
    if not isinstance(item.value, dict | str):
        wrong = f'Expected account message trace "{key}" to be a string or a map/struct'
        raise item.error(f"{wrong}, got {go_kind(item.value)}")
    block = {"dest": item} if isinstance(item.value, str) else item.value
    unknown = f'Unknown field {{}} parsing account message trace map/struct "{key}"'
    values = converted(block, ACCOUNT_TRACE, unknown=unknown)
    warnings = list(values.pop("warnings", ()))
    if "destination" in values:
        return {"trace": TraceOptions(**values), "warnings": warnings}
    if values:
        at = f"{item.file}:{item.line}:{item.column}"
        warnings.append(f"{at}: Trace destination sampling ignored since no destination was set")
    return {"warnings": warnings}


def _trace_subject(key: str, item: Item) -> str:
    if not isinstance(item.value, str):
        raise item.error(f'Field "{key}" should be a string, got {go_kind(item.value)}')
    if not publishable(item.value.encode()):
        raise item.error(f"Trace destination {quoted(item.value)} is not valid")
    return item.value


def _percent(key: str, item: Item) -> int:
    value = item.value
    if isinstance(value, bool) or not isinstance(value, int | str):
        wrong = f'Trace destination sampling field "{key}" should be an integer or a percentage'
        raise item.error(f"{wrong}, got {go_kind(value)}")
    if isinstance(value, str):
        if re.fullmatch("[+-]?[0-9]{1,9}", value.removesuffix("%")) is None:
            raise item.error(f"Invalid trace destination sampling value {quoted(value)}")
        value = int(value.removesuffix("%"))
    if not 0 < value <= 100:
        raise item.error(f"Ttrace destination sampling value {value} is invalid, needs to be [1..100]")
    return value


ACCOUNT_TRACE: dict[str, Rule] = {"dest": ("destination", _trace_subject), "sampling": ("percent", _percent)}


def as_accounts(key: str, item: Item) -> Configured:
    """Convert the block and check each account by itself; `settle` does the rest once the file is read."""
    made = Configured(users_at={}, places={}, warnings=[])
    if isinstance(item.value, list):
        made.accounts = tuple(AccountOptions(name=name) for name in _names(key, item.value))
        return made
    accounts = []
    for name, entry in as_map(key, item).items():
        if entry.used:
            continue  # a variable for what is below
        _check_name(name, entry)
        if not isinstance(entry.value, dict):
            raise entry.error("Expected map entries for accounts")
        accounts.append(_account(name, entry.value, made))
    made.accounts = tuple(accounts)
    return made


def _names(key: str, entries: list[Item]) -> list[str]:
    names: list[str] = []
    for entry in entries:
        name = as_text(key, entry)
        _check_name(name, entry)
        if name in names:
            raise entry.error(f"Duplicate Account Entry: {name}")
        names.append(name)
    return names


def _check_name(name: str, item: Item) -> None:
    wrong = name_error(name)
    if wrong:
        raise item.error(wrong)


def _account(name: str, block: dict[str, Item], made: Configured) -> AccountOptions:
    values = converted(block, ACCOUNT_KEYS)
    values.pop("nkey", None)
    made.warnings += values.pop("warnings", ())
    if "users" in values:
        made.users_at[name] = find(block, "users")
    if "mappings" in values:
        values["mappings"] = as_mappings("mappings", values["mappings"], name)
    if "jetstream" in values:
        values["jetstream"] = _jetstream(values["jetstream"], made.warnings)
    if "exports" in values:
        values["exports"] = as_exports(values["exports"], made.places, made.warnings)
    if "imports" in values:
        values["imports"] = as_imports(values["imports"], made.places, made.warnings)
    return AccountOptions(name=name, **values)


# ---------------------------------------------------------------------- the whole file


def settle(items: dict[str, Item], values: dict[str, Any]) -> None:
    """Convert the accounts of a file to options, and check them against each other and against its users.

    Raises:
        ConfError: they do not fit together.
    """
    made: Configured = values["accounts"]
    made.accounts = values["accounts"] = tuple(_hashed(account, made.places) for account in made.accounts)
    values["warnings"] += made.warnings
    _check_logins(items, values, made)
    try:
        check_accounts(made.accounts)
    except AccountsError as error:
        raise made.places[id(error.at)].error(str(error)) from error


def _hashed(account: AccountOptions, places: Places) -> AccountOptions:
    """Replace the functions in subjects of exports and imports that stand for an account."""

    def replaced(one: Any, kind: str) -> Any:
        try:
            made = hashed_entry(one, account.name)
        except TransformError as error:
            what = f'Error adding {kind_of(one)} {kind} "{one.subject}"'
            raise places[id(one)].error(f"{what}: {error}") from error
        places[id(made)] = places[id(one)]
        return made

    exports = tuple(replaced(one, "export") for one in account.exports)
    return msgspec.structs.replace(
        account, exports=exports, imports=tuple(replaced(one, "import") for one in account.imports)
    )


def _check_logins(items: dict[str, Item], values: dict[str, Any], made: Configured) -> None:
    """Reject a user name of two users, and users of accounts together with a single user or a token."""
    order = [written.lower() for written in items]
    authorization = find(items, "authorization") if "authorization" in order else None
    last = authorization is not None and order.index("authorization") > order.index("accounts")
    users: tuple[User, ...] = values.get("users", ())
    seen = {user.name for user in users}
    for account in made.accounts:
        if not account.users:
            continue
        place = authorization if authorization is not None and last else made.users_at[account.name]
        for what, is_there in (("single user/pass", values.get("single_user")), ("token", values.get("token"))):
            if is_there:
                raise place.error(f"Can not have a {what} and {'a users array' if last else 'accounts'}")
        check_names(place, account.users, seen)


# ---------------------------------------------------------------------- default domains

_DOMAIN_SUBJECTS = ("STREAM.>", "CONSUMER.>", "DIRECT.>", "META.>", "SERVER.>", "ACCOUNT.>", "INFO")
_STORES = ("$KV.>", "$OBJ.>")


def with_default_domains(options: Options) -> Options:
    """Return the settings with the mappings by which clients of accounts without JetStream use that of a leaf node's
    domain, as if it were their own. Raises StartError."""
    if options.operators is not None:
        raise StartError("default_js_domain: not supported with operators; map subjects in the accounts' tokens")
    accounts = {account.name: account for account in options.accounts}
    system = options.system_account or SYSTEM_ACCOUNT
    for name, domain in options.default_js_domain:
        if name == system:
            raise StartError(f"system account {quoted(name)} can not be in default_js_domain")
        mapped = [(f"$JS.API.{each}", f"$JS.{domain}.API.{each}") for each in _DOMAIN_SUBJECTS]
        mapped += [(each, f"$JS.{domain}.API.{each}") for each in _STORES]
        added = tuple(SubjectMapping(source, (Destination(to),)) for source, to in mapped)
        if name == GLOBAL_ACCOUNT:
            if options.jetstream is not None:
                raise StartError(f"default_js_domain contains account name {quoted(name)} with enabled JetStream")
            options = msgspec.structs.replace(options, mappings=options.mappings + added)
        elif (account := accounts.get(name)) is None:
            wrong = f"`default_js_domain` references non existing account {quoted(name)}"
            raise StartError(f"in non operator mode, {wrong}")
        elif account.jetstream is not None:
            raise StartError(f"default_js_domain contains account name {quoted(name)} with enabled JetStream")
        else:
            accounts[name] = msgspec.structs.replace(account, mappings=account.mappings + added)
    return msgspec.structs.replace(options, accounts=tuple(accounts.values()))
