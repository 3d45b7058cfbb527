"""The settings in force, with the place that each comes from.

Belongs here: flattening `Options` to keys of nats.conf, finding file and line of each key, and masking secrets. The
tables of keys are in settings.py and the modules of the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from lakestream.config.cluster import CLUSTER
from lakestream.config.conf import Item, load
from lakestream.config.leafnodes import LEAFNODES
from lakestream.config.options import Options, RemoteAddress
from lakestream.config.settings import AUTHORIZATION, BATCH_LIMITS, JETSTREAM, LAKE, LIMITS, TOP
from lakestream.config.tls import TLS
from lakestream.config.values import Rule
from lakestream.config.websocket import WEBSOCKET_KEYS
from lakestream.protocol.durations import format_duration

MASK = "***"
DEFAULT, COMPUTED = "default", "computed"
"""Origins of a setting that is not in the file; a computed one depends on the machine, or on other settings."""

_SECRETS = frozenset({"password", "token", "nkey", "sentinel", "preload", "activation", "spark_connect_token"}) | {
    "encryption_key",
    "prev_encryption_key",
}
"""Fields that hold secrets, or may."""
_NOT_SETTINGS = frozenset(
    {"flags", "warnings", "notices", "config_file", "config_digest", "single_user", "single_login", "temporary_store"}
) | {"serves_mqtt"}

Path = tuple[str, ...]


class Setting(msgspec.Struct, frozen=True):
    """A setting: its key in nats.conf, its value, and `file:line`, DEFAULT or COMPUTED."""

    key: str
    value: Any
    origin: str


class _Block(NamedTuple):
    """A block of the file: its keys, and the record whose fields they set, by its place in `Options`."""

    path: Path
    record: Path
    rules: Mapping[str, Rule]


_BLOCKS = (
    _Block((), (), TOP),
    _Block(("authorization",), (), AUTHORIZATION),
    _Block(("tls",), ("tls",), TLS),
    _Block(("jetstream",), ("jetstream",), JETSTREAM),
    _Block(("jetstream", "limits"), ("jetstream",), LIMITS),
    _Block(("jetstream", "limits", "batch"), ("jetstream",), BATCH_LIMITS),
    _Block(("lake",), ("lake",), LAKE),
    _Block(("cluster",), ("cluster",), CLUSTER),
    _Block(("cluster", "tls"), ("cluster", "tls"), TLS),
    _Block(("websocket",), ("websocket",), WEBSOCKET_KEYS),
    _Block(("websocket", "tls"), ("websocket", "tls"), TLS),
    _Block(("leafnodes",), ("leafnodes",), LEAFNODES),
    _Block(("leafnodes", "tls"), ("leafnodes", "tls"), TLS),
)


def settings(options: Options) -> list[Setting]:
    """Return all settings with their origins, in the order of `Options`, without secrets.

    Raises:
        StartError: the file has changed since the options were read, and is invalid now.
    """
    origins = _origins(options.config_file) if options.config_file else {}
    keys = _keys()
    found = []
    for path, value, default in _flat((), options):
        origin = origins.get(path)
        if origin is None:
            above = next(
                (origins[path[:end]] for end in range(len(path) - 1, 0, -1) if path[:end] in origins), COMPUTED
            )
            origin = DEFAULT if value == default else COMPUTED if default is msgspec.NODEFAULT else above
        found.append(
            Setting(keys.get(path) or ".".join(_plain(part) for part in path), _shown(path[-1], value), origin)
        )
    return found


def _keys() -> dict[Path, str]:
    """Return the key of each option that has one."""
    keys: dict[Path, str] = {}
    for block in _BLOCKS:
        for key, (option, _) in block.rules.items():
            if option != "*":
                keys.setdefault((*block.record, option), ".".join((*block.path, key)))
    return keys


def _flat(path: Path, record: msgspec.Struct) -> Iterator[tuple[Path, Any, Any]]:
    """Iterate over (path, value, default) of all settings of a record and of the records in it."""
    for name, default in _defaults(type(record)).items():
        if name in _NOT_SETTINGS:
            continue
        value, place = getattr(record, name), (*path, name)
        if isinstance(value, msgspec.Struct) and any(block.record == place for block in _BLOCKS):
            yield from _flat(place, value)
        else:
            yield place, value, default


def _defaults(record: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the fields of a record with their defaults; NODEFAULT where there is none."""
    fields, defaults = record.__struct_fields__, record.__struct_defaults__
    filled = (msgspec.NODEFAULT,) * (len(fields) - len(defaults)) + defaults
    return {
        name: default.factory() if hasattr(default, "factory") else default
        for name, default in zip(fields, filled, strict=True)
    }


def _origins(file: str) -> dict[Path, str]:
    """Return file and line of the options that a file sets."""
    found: dict[Path, str] = {}
    _walk(load(file), _BLOCKS[0], found)
    return found


def _walk(items: Mapping[str, Item], block: _Block, found: dict[Path, str]) -> None:
    for written, item in items.items():
        rule = block.rules.get(written.lower())
        if rule is None:
            continue
        option, convert = rule
        name = written.lower() if option == "*" else option
        inner = next((each for each in _BLOCKS if each.path == (*block.path, name)), None)
        if inner is not None and isinstance(item.value, dict):
            _walk(item.value, inner, found)
            continue
        options = [option] if option != "*" else [key for key in convert(written, item) if key not in _NOT_SETTINGS]
        for each in options:
            found[(*block.record, each)] = f"{item.file}:{item.line}"


def _plain(name: str) -> str:
    """Return a field's name without its unit."""
    return name.removesuffix("_ns")


def _shown(name: str, value: Any) -> Any:
    """Return a value for people and JSON: durations as text, records as objects, secrets masked."""
    if name in _SECRETS and value:
        return MASK
    if name.endswith("_ns") and isinstance(value, int):
        return format_duration(value)
    if isinstance(value, RemoteAddress):
        return value.shown
    if isinstance(value, msgspec.Struct):
        defaults = _defaults(type(value))
        fields = {name: getattr(value, name) for name in defaults}
        return {_plain(name): _shown(name, each) for name, each in fields.items() if each != defaults[name]}
    if isinstance(value, dict):
        return {key: _shown(key, each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown("", each) for each in value]
    return value
