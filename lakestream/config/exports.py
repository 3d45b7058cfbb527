"""Exports and imports of an account, in nats.conf.

Belongs here: the entries of `exports` and `imports` of one account, with the errors of nats-server. Whether an export
allows an import is checked in account_checks.py; other keys of an account are in accounts.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakestream.config.account_options import (
    Latency,
    ServiceExport,
    ServiceImport,
    StreamExport,
    StreamImport,
)
from lakestream.config.conf import Item
from lakestream.config.values import (
    Rule,
    as_boolean,
    as_number,
    as_positive_duration,
    as_text,
    converted,
    expected,
    go_kind,
)
from lakestream.protocol.durations import parse_duration

Places = dict[int, Item]
"""Position of an import or export, by its `id`."""

Entry = dict[str, tuple[Any, Item]]
"""The keys of one entry: their values and positions."""


def _entries(item: Item, what: str) -> list[Item]:
    if not isinstance(item.value, list):
        raise item.error(f"{what}s should be an array, got {go_kind(item.value)}")
    for entry in item.value:
        if not isinstance(entry.value, dict):
            raise entry.error(f"{what} Items should be a map with type entry, got {go_kind(entry.value)}")
    return item.value


def _entry(item: Item, rules: dict[str, Rule]) -> Entry:
    assert isinstance(item.value, dict)  # Invariant: `_entries` has looked.
    found: Entry = {}
    for written, one in item.value.items():
        for name, value in converted({written: one}, rules).items():
            if name == "threshold_ns" and name in found:
                raise one.error("Duplicate response threshold detected")
            found[name] = (value, one)
    return found


# ---------------------------------------------------------------------- exports


def _name(kind: str) -> Callable[[str, Item], str]:
    def convert(key: str, item: Item) -> str:
        if not isinstance(item.value, str):
            raise item.error(f"Expected {kind} name to be string, got {go_kind(item.value)}")
        return item.value

    return convert


def _accounts(key: str, item: Item) -> tuple[str, ...] | None:
    """Convert a list of accounts; an empty list allows all, as in nats-server."""
    if not isinstance(item.value, list):
        raise expected(key, item, "an array of accounts")
    return tuple(as_text(key, entry) for entry in item.value) or None


_KINDS = {"single": "singleton", "singleton": "singleton", "stream": "stream", "chunk": "chunked", "chunked": "chunked"}


def _response(key: str, item: Item) -> str:
    if not isinstance(item.value, str):
        raise item.error(f"Expected response type to be string, got {go_kind(item.value)}")
    kind = _KINDS.get(item.value.lower())
    if kind is None:
        raise item.error(f'Unknown response type: "{item.value}"')
    return kind


def _threshold(key: str, item: Item) -> int:
    wrong = "Expected response threshold to be a parseable time duration, got"
    if not isinstance(item.value, str):
        if item.raw[-1:] == "m":
            return as_positive_duration(key, item)
        raise item.error(f"{wrong} {go_kind(item.value)}")
    try:
        parse_duration(item.value)
    except ValueError:
        raise item.error(f'{wrong} "{item.value}"') from None
    return as_positive_duration(key, item)


def _latency(key: str, item: Item) -> Latency:
    if isinstance(item.value, str):
        return Latency(item.value)
    if not isinstance(item.value, dict):
        raise item.error(f"Expected latency entry to be a map/struct or string, got {go_kind(item.value)}")
    values = converted(item.value, {"sampling": ("sampling", _sampling), "subject": ("subject", as_text)})
    if not values.get("subject"):
        raise item.error("Latency subject required, but missing")
    return Latency(**values)


def _sampling(key: str, item: Item) -> int:
    """Convert a percentage of requests; 0: those with a tracing header (`headers`)."""
    if isinstance(item.value, str):
        text = item.value.strip().removesuffix("%")
        if text.lower() == "headers":
            return 0
        if not text.isascii() or not text.isdigit():
            raise item.error(f'Failed to parse latency sample: strconv.Atoi: parsing "{text}": invalid syntax')
        percent = int(text[:9])
    else:
        percent = as_number(key, item)
    if not 1 <= percent <= 100:
        raise item.error("bad sampling percentage, should be 1-100")
    return percent


_RESPONSE_TIMES = ("threshold", "response_threshold", "response_max_time", "response_time")
EXPORT: dict[str, Rule] = {
    "stream": ("stream", _name("stream")),
    "service": ("service", _name("service")),
    "accounts": ("accounts", _accounts),
    **dict.fromkeys(("response", "response_type"), ("response", _response)),
    **dict.fromkeys(_RESPONSE_TIMES, ("threshold_ns", _threshold)),
    "account_token_position": ("token_position", as_number),
    "latency": ("latency", _latency),
    "allow_trace": ("allow_trace", as_boolean),
}
_OF_SERVICES = {
    "response": "response",
    "threshold_ns": "response",
    "latency": "latency",
    "allow_trace": "allow_trace",
}
"""Keys of services only, and their names in nats-server's errors."""


def as_exports(item: Item, places: Places, warnings: list[str]) -> tuple[StreamExport | ServiceExport, ...]:
    """Convert the array. The position of each export goes into `places`."""
    found: list[StreamExport | ServiceExport] = []
    for entry in _entries(item, "Export"):
        keys = _entry(entry, EXPORT)
        if not keys.keys() & {"stream", "service"}:
            warnings.append(_nothing(entry, "exports"))
            continue
        _one_kind(keys, named=True)
        export: StreamExport | ServiceExport
        if "service" in keys:
            values = {name: value for name, (value, _) in keys.items()}
            export = ServiceExport(subject=values.pop("service"), **values)
        else:
            for name, (_, one) in keys.items():
                if name in _OF_SERVICES:
                    raise one.error(f"Detected {_OF_SERVICES[name]} directive on non-service")
            values = {name: value for name, (value, _) in keys.items()}
            export = StreamExport(subject=values.pop("stream"), **values)
        places[id(export)] = keys.get("service", keys.get("stream", (None, entry)))[1]
        found.append(export)
    return tuple(found)


def _nothing(entry: Item, key: str) -> str:
    return f'{entry.file}:{entry.line}: an entry of "{key}" without stream and service has no effect'


def _one_kind(keys: Entry, *, named: bool) -> None:
    """Reject an entry that is both a stream and a service."""
    kinds = [name for name in keys if name in ("stream", "service")]
    if len(kinds) == 2:
        first, second = kinds
        value, item = keys[second]
        what = f'{second} "{value}"' if named else second
        raise item.error(f"Detected {what} but already saw a {first}")


# ---------------------------------------------------------------------- imports


Services = dict[tuple[str, str], ServiceImport]
"""Service imports of an account, by local subject and exporting account."""


def _source(kind: str) -> Callable[[str, Item], tuple[str, str]]:
    def convert(key: str, item: Item) -> tuple[str, str]:
        if not isinstance(item.value, dict):
            raise item.error(f"{kind} entry should be an account map, got {go_kind(item.value)}")
        values = converted(item.value, {"account": ("account", as_text), "subject": ("subject", as_text)})
        if not values.get("account") or not values.get("subject"):
            raise item.error("Expect an account name and a subject")
        return values["account"], values["subject"]

    return convert


IMPORT: dict[str, Rule] = {
    "stream": ("stream", _source("Stream")),
    "service": ("service", _source("Service")),
    "to": ("to", as_text),
    "prefix": ("prefix", as_text),
    "share": ("share", as_boolean),
    "allow_trace": ("allow_trace", as_boolean),
}


def as_imports(item: Item, places: Places, warnings: list[str]) -> tuple[StreamImport | ServiceImport, ...]:
    """Convert the array. The position of each import goes into `places`."""
    found: list[StreamImport | ServiceImport] = []
    seen: Services = {}
    for entry in _entries(item, "Import"):
        keys = _entry(entry, IMPORT)
        if not keys.keys() & {"stream", "service"}:
            warnings.append(_nothing(entry, "imports"))
            continue
        _one_kind(keys, named=False)
        values = {name: value for name, (value, _) in keys.items()}
        if "service" in keys:
            made: StreamImport | ServiceImport = _service(keys, values, seen)
        else:
            made = _stream(keys, values)
        places[id(made)] = keys.get("service", keys.get("stream", (None, entry)))[1]
        found.append(made)
    return tuple(found)


def _service(keys: Entry, values: dict[str, Any], seen: Services) -> ServiceImport:
    if "allow_trace" in keys:
        raise keys["allow_trace"][1].error("Detected allow_trace directive on a non-stream")
    account, subject = values["service"]
    made = ServiceImport(account=account, subject=subject, to=values.get("to", ""), share=values.get("share", False))
    local = made.to or subject
    before = seen.setdefault((local, account), made)
    if before is not made:
        place = keys["to"][1] if made.to else keys["service"][1]
        raise place.error(
            f'Duplicate service import subject "{local}", previously used in import for account "{before.account}", '
            f'subject "{before.subject}"'
        )
    return made


def _stream(keys: Entry, values: dict[str, Any]) -> StreamImport:
    if values.get("to") and values.get("prefix"):
        raise _later(keys, "to", "prefix").error("Stream import can not have a 'prefix' and a 'to' property")
    account, subject = values["stream"]
    return StreamImport(
        account=account,
        subject=subject,
        to=values.get("to", ""),
        prefix=values.get("prefix", ""),
        allow_trace=values.get("allow_trace", False),
    )


def _later(keys: Entry, *names: str) -> Item:
    return keys[[name for name in keys if name in names][-1]][1]
