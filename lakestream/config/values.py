"""Converters for values of nats.conf.

Belongs here: converting a block by a table of keys, and the converters that several blocks use: texts, numbers,
durations, sizes, addresses, each with an error that names file, line and the expected value. The tables are in
settings.py and the modules of the blocks.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lakestream.config.conf import Item, NotServedError, SettingError, size_bytes
from lakestream.config.options import SECOND
from lakestream.protocol.durations import parse_duration
from lakestream.protocol.goquote import quoted

Convert = Callable[[str, Item], Any]
Integer = Callable[[str, Item], int]
_PORT = re.compile(r"-?[0-9]{1,10}")
Rule = tuple[str, Convert]
"""The option that a key sets, and the converter of its value."""


# ---------------------------------------------------------------------- one block


class Wrong:
    """The wrong settings of a block: all of them are reported, as in nats-server."""

    def __init__(self) -> None:
        self._errors: list[SettingError] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Take the errors of one setting."""
        try:
            yield
        except SettingError as error:
            self._errors.append(error)

    def report(self) -> None:
        """Raise SettingError for what was collected. What is not served is told once all else is right."""
        errors = [error for error in self._errors if not isinstance(error, NotServedError)] or self._errors
        if errors:
            raise type(errors[0])("\n".join(map(str, errors))) from errors[0]


def converted(
    items: Mapping[str, Item],
    rules: Mapping[str, Rule],
    *,
    harmless: Iterable[str] = (),
    missing: Mapping[str, str] | None = None,
    unknown: str = "unknown field {}",
) -> dict[str, Any]:
    """Convert every key of a block by its rule; return the options.

    A key that sets several options (`listen` sets host and port) has a converter that returns a dict, and `*` as the
    option's name. Warnings and notices of inner blocks end up in `warnings` and `notices`.

    Args:
        harmless: keys that have no effect here; each adds a warning.
        missing: keys that are rejected unless they turn the feature off, with the reason.
        unknown: the error for any other key, with a place for its name.

    Raises:
        SettingError: with a line for each wrong setting.
    """
    values: dict[str, Any] = {}
    missing = missing or {}
    wrong = Wrong()
    for written, item in items.items():
        key = written.lower()
        rule = rules.get(key)
        with wrong.collected():
            if rule is not None:
                _take(rule, written, item, values)
            elif key in missing:
                _refuse_unless_off(written, item, missing[key])
            elif key in harmless:
                values.setdefault("warnings", []).append(f'{item.file}:{item.line}: "{written}" has no effect here')
            elif not item.used:
                raise item.error(unknown.format(quoted(written)) + _similar(key, [*rules, *missing, *harmless]))
    wrong.report()
    return values


def _take(rule: Rule, written: str, item: Item, values: dict[str, Any]) -> None:
    option, convert = rule
    value = convert(written, item)
    if isinstance(value, dict):
        for told in ("warnings", "notices"):
            if lines := value.pop(told, ()):
                values.setdefault(told, []).extend(lines)
    values.update(value if option == "*" else {option: value})


def _refuse_unless_off(key: str, item: Item, reason: str) -> None:
    """Reject a feature that is not supported, unless it is turned off (false, 0, empty)."""
    if item.value in (False, 0, "", "disabled") or item.value == [] or item.value == {}:
        return
    raise not_served(key, item, reason)


def not_served(key: str, item: Item, reason: str) -> NotServedError:
    """Return the error of a setting that this server has not. `reason`: why, or what to use instead."""
    return NotServedError(f'{item.file}:{item.line}:{item.column}: "{key}" is not supported: {reason}')


def _similar(key: str, known: Iterable[str]) -> str:
    import difflib  # only on the way to an error

    near = difflib.get_close_matches(key, list(known), 1, 0.7)
    return f', did you mean "{near[0]}"?' if near else ""


def find(items: Mapping[str, Item], key: str) -> Item:
    return next(item for written, item in items.items() if written.lower() == key)


# ---------------------------------------------------------------------- kinds of values


def _kind(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array", dict: "a map"}
    return names.get(type(value), "a date")


def go_kind(value: object) -> str:
    """Return the name of this kind of value in nats-server's errors."""
    if isinstance(value, list | dict):
        return "[]interface {}" if isinstance(value, list) else "map[string]interface {}"
    return {bool: "bool", int: "int64", float: "float64", str: "string"}.get(type(value), "time.Time")


def shown(item: Item) -> str:
    """Return a value, or for an array or map its kind, as nats-server's errors show it."""
    return str(item.value) if isinstance(item.value, str | int | float) else go_kind(item.value)


def expected(key: str, item: Item, what: str) -> SettingError:
    """Return the error of a value of the wrong kind. The value is not shown: it may be a password."""
    return item.error(f'"{key}" must be {what}, not {_kind(item.value)}')


def as_text(key: str, item: Item) -> str:
    if not isinstance(item.value, str):
        raise expected(key, item, 'a string (write numbers in "quotes")')
    if "\0" in item.value:  # no path, name or password may have one
        raise item.error(f'"{key}" must not contain a NUL byte')
    return item.value


def as_go_string(item: Item) -> str:
    """Convert a string whose absence nats-server reports as Go's failed conversion."""
    if not isinstance(item.value, str):
        raise item.error(f"interface conversion: interface {{}} is {go_kind(item.value)}, not string")
    return item.value


def as_boolean(key: str, item: Item) -> bool:
    if not isinstance(item.value, bool):
        raise expected(key, item, "true or false")
    return item.value


def as_number(key: str, item: Item) -> int:
    if isinstance(item.value, bool) or not isinstance(item.value, int):
        raise expected(key, item, "a whole number")
    return item.value


def number_in(lowest: int, highest: int) -> Integer:
    def convert(key: str, item: Item) -> int:
        number = as_number(key, item)
        if not lowest <= number <= highest:
            raise item.error(f'"{key}" is {number}, but must be from {lowest} to {highest}')
        return number

    return convert


INT32 = (1 << 31) - 1
INT64 = (1 << 63) - 1
as_port = as_number
"""A port out of range is reported by the listener, as in nats-server."""


def size_below(lowest: int, default: int) -> Integer:
    """Return the converter of a size of at most 2 GiB; anything below `lowest` means the default."""

    def convert(key: str, item: Item) -> int:
        size = as_number(key, item)
        if size > INT32:
            raise item.error(f"{key} value is too big")
        return size if size >= lowest else default

    return convert


def as_limit(key: str, item: Item) -> int:
    """Convert a limit; 0 and -1 mean none, which is 0 in the options."""
    return max(number_in(-1, INT64)(key, item), 0)


def as_duration(key: str, item: Item) -> int:
    """Convert a Go duration, or a number of seconds as in old files. A bare `2m` means minutes, not two million."""
    value = item.raw if item.raw[-1:] == "m" else item.value
    if isinstance(value, int | float) and not isinstance(value, bool):
        duration = int(value * SECOND)
    elif isinstance(value, str):
        try:
            duration = parse_duration(value)
        except ValueError as error:
            raise item.error(f'error parsing {key}: time: invalid duration "{value[:40]}"') from error
    else:
        raise expected(key, item, 'a duration such as "10s" or "2m"')
    if abs(duration) > INT64:
        raise item.error(f'"{key}" is too long a duration')
    return duration


def spelled_duration(prefix: str) -> Callable[[str, Item], int]:
    """Return the converter of a duration in ns, 0 for a negative one; `prefix` stands before the text of an error."""

    def convert(key: str, item: Item) -> int:
        if isinstance(item.value, str):
            try:
                return max(parse_duration(item.value), 0)
            except ValueError:
                raise item.error(f"{prefix}time: invalid duration {quoted(item.value)}") from None
        return max(as_duration(key, item), 0)

    return convert


def as_ping_interval(key: str, item: Item) -> dict[str, Any]:
    """Convert the interval of PINGs of a block; 0 means that of the server. A number of seconds leaves a warning."""
    values: dict[str, Any] = {"ping_interval_ns": spelled_duration("error parsing ping_interval: ")(key, item)}
    if not isinstance(item.value, str):
        text = f"invalid use of field {quoted(key)}: ping_interval should be converted to a duration"
        values["warnings"] = [f"{item.file}:{item.line}:{item.column}: {text}"]
    return values


def as_positive_duration(key: str, item: Item) -> int:
    duration = as_duration(key, item)
    if duration <= 0:
        raise item.error(f'"{key}" must be longer than 0')
    return duration


def as_pause(key: str, item: Item) -> int:
    """Convert a duration; 0 means never."""
    duration = as_duration(key, item)
    if duration < 0:
        raise item.error(f'"{key}" must not be negative')
    return duration


def as_size(key: str, item: Item) -> int:
    """Convert bytes as a number, or a string with K, M, G or T (binary). -1 and 0 mean the machine's default."""
    if isinstance(item.value, str):
        try:
            return size_bytes(item.value)
        except ValueError as error:
            raise item.error(f"{key} {error}") from error
    return number_in(-1, INT64)(key, item)


def as_bytes(key: str, item: Item) -> int:
    size = as_size(key, item)
    if size < 0:
        raise item.error(f'"{key}" must not be negative')
    return size


def as_positive_size(key: str, item: Item) -> int:
    size = as_size(key, item)
    if size <= 0:
        raise item.error(f'"{key}" must be more than 0 bytes')
    return size


def as_map(key: str, item: Item) -> dict[str, Item]:
    if not isinstance(item.value, dict):
        raise expected(key, item, "a map { … }")
    return item.value


def address(host: str, port: str) -> Convert:
    """Return the converter of `host:port`, `:port` or a port alone into these two options."""

    def convert(key: str, item: Item) -> dict[str, Any]:
        value = item.value
        if isinstance(value, int) and not isinstance(value, bool):
            return {port: as_port(key, item)}
        if not isinstance(value, str):
            raise expected(key, item, "host:port or a port")
        name, colon, number = value.rpartition(":")
        if not colon or (":" in name and not name.endswith("]")):
            raise item.error(f'could not parse address string "{value}"')
        if not _PORT.fullmatch(number):
            raise item.error(f'could not parse port "{number}"')
        name = name.removeprefix("[").removesuffix("]")
        return {port: int(number)} | ({host: name} if name else {})

    return convert


def as_texts(key: str, item: Item) -> dict[str, str]:
    return {name: as_text(f"{key}.{name}", value) for name, value in as_map(key, item).items()}


LOGIN: dict[str, Rule] = {
    **dict.fromkeys(("user", "username"), ("user", as_text)),
    **dict.fromkeys(("pass", "password"), ("password", as_text)),
}
"""Keys of a user's name and password in any block."""


MAX_WORKERS = 64
"""Maximum of `workers` (64)."""


def quota_cores(root: str = "/") -> float:
    """Return the processor time that the control groups of this process allow it (cgroup v2, `cpu.max`), in cores;
    `MAX_WORKERS` without a quota. `root`: of the file system."""
    allowed, group = float(MAX_WORKERS), ""
    with contextlib.suppress(OSError), open(os.path.join(root, "proc/self/cgroup")) as file:
        group = next((line.strip()[3:] for line in file if line.startswith("0::")), "")
    while group:
        path = os.path.join(root, "sys/fs/cgroup", group.lstrip("/"), "cpu.max")
        with contextlib.suppress(OSError, ValueError), open(path) as file:  # none in the root group; "max" is no number
            quota, period = map(int, file.read().split())
            allowed = min(allowed, quota / period)
        group = os.path.dirname(group) if group != "/" else ""
    return allowed


def workers_of(text: str) -> int:
    """Return the number of worker processes that a setting or flag names; `auto`: the processor cores for this process,
    those that a quota allows it entirely.

    Raises:
        ValueError: neither, or out of range.
    """
    if text == "auto":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(min(cores, int(quota_cores()), MAX_WORKERS), 1)
    if not text.isdecimal() or not 1 <= int(text) <= MAX_WORKERS:
        raise ValueError(f'"{text}" is neither "auto" nor a number from 1 to {MAX_WORKERS}')
    return int(text)
