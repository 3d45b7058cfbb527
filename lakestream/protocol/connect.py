"""The JSON of CONNECT.

Belongs here: reading the options object as nats-server's decoder does, so that nobody after it has to ask whether an
option has the right type. What the options mean is the connection's business.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from lakestream.protocol.commands import Connect

_FLAGS = frozenset(["verbose", "pedantic", "echo", "headers", "no_responders", "tls_required", "new_account"])
_TEXTS = frozenset(
    [
        *("user", "pass", "auth_token", "nkey", "sig", "jwt", "name", "lang", "version"),
        *("account", "remote_account", "proxy_sig"),
    ]
)
_OBJECTS = ("import", "export")
_INT64 = 1 << 63


class _Object(list[tuple[str, Any]]):
    """A JSON object as its pairs in order: of two spellings of one option the later counts."""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_decode = json.JSONDecoder(object_pairs_hook=_Object, parse_constant=_refuse).decode


def _object(document: bytes) -> _Object | None:
    """The object in `document`; an empty one for `null`; None when it is anything else."""
    try:
        # Bytes that are not UTF-8 are replaced, as Go does.
        value = _decode(document.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if value is None:
        return _Object()
    return value if isinstance(value, _Object) else None


def is_json_object(document: bytes) -> bool:
    """Whether `document` is a JSON object or `null`."""
    return _object(document) is not None


def _option(name: str) -> str:
    """The name of the option that `name` spells: case does not count (nor do the letters that fold to ASCII ones)."""
    return name.replace("\u017f", "s").replace("\u212a", "k").lower()


def _text(value: str) -> str:
    """`value` without lone surrogates, which could not be written again."""
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _has_type(option: str, value: object) -> bool:
    if option in _FLAGS:
        return isinstance(value, bool)
    if option in _TEXTS:
        return isinstance(value, str)
    # bool is an int to Python, but not to the protocol.
    return isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64


def connect_command(document: bytes) -> Connect | None:
    """CONNECT's options from its JSON; None when the server must close without a word
    (docs/internals/protocol.md#errors).

    Only known options are kept, under their own spelling and with the type they must have; `null` is as if absent.
    Names of an unknown kind are passed over. `import` and `export` are checked but not kept: no client sends them.
    """
    pairs = _object(document)
    if pairs is None:
        return None
    options: dict[str, Any] = {}
    for name, value in pairs:
        option = _option(name)
        if value is None:
            continue
        if option in _FLAGS or option in _TEXTS or option == "protocol":
            if not _has_type(option, value):
                return None
            options[option] = _text(value) if isinstance(value, str) else value
        elif option in _OBJECTS and not isinstance(value, _Object):
            return None
    return Connect(options)
