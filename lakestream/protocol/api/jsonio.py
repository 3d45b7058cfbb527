"""JSON as Go's encoder writes it and as nats-server reads it.

Belongs here: the API's JSON conventions: escaping and omission rules, RFC 3339 times, case-insensitive field names, and
errors in Go's words. Request and configuration records are msgspec Structs whose annotations (`Int64`, `Duration`,
`enum(...)`, `Time`) carry the Go type; field order is the order of the output. Syntax errors are in json_syntax.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from lakestream.protocol.api.json_syntax import JsonError, end_of_value, next_value, trailing
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.gotime import normal_time

S = TypeVar("S", bound=msgspec.Struct)


class Go(msgspec.Struct, frozen=True):
    """The Go type of an annotation, as it appears in error texts."""

    type: str
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    fold: bool = False
    """Choices match in any case (discard)."""
    refusal: str = ""
    """The whole error text of an invalid choice, `{value}` = its JSON; "" = `can not unmarshal "…"`."""


Int = Annotated[int, Go("int", -(1 << 63), (1 << 63) - 1)]
Int64 = Annotated[int, Go("int64", -(1 << 63), (1 << 63) - 1)]
Int32 = Annotated[int, Go("int32", -(1 << 31), (1 << 31) - 1)]
Uint64 = Annotated[int, Go("uint64", 0, (1 << 64) - 1)]
Duration = Annotated[int, Go("time.Duration", -(1 << 63), (1 << 63) - 1)]
"""ns"""
Time = Annotated[str | None, Go("time.Time")]
"""RFC 3339 text in Go's normal form; None = absent. `gotime.time_ns` gives the instant."""


# ---------------------------------------------------------------------------------------------------- output
_ESCAPES: Final = (
    (b"<", b"\\u003c"),
    (b">", b"\\u003e"),
    (b"&", b"\\u0026"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)


def _literal(value: object) -> msgspec.Raw:
    """Encode a number that was read with its literal as that literal."""
    if isinstance(value, _Number):
        return msgspec.Raw(value.encode())
    raise TypeError(f"{type(value).__name__} has no JSON form")


_encode = msgspec.json.Encoder(enc_hook=_literal).encode


def dumps(value: object) -> bytes:
    """Encode like Go's json.Marshal: no blanks, `<` `>` `&` and U+2028/9 escaped. Dict order is kept."""
    text = _encode(value)
    for raw, escaped in _ESCAPES:
        if raw in text:
            text = text.replace(raw, escaped)
    return text


_SCALARS = frozenset({bool, int, str})


def shown(record: msgspec.Struct) -> dict[str, Any]:
    """Return a record as a response shows it: empty fields are left out unless `ALWAYS` names them."""
    always: frozenset[str] = getattr(type(record), "ALWAYS", frozenset())
    out: dict[str, Any] = {}
    for name, value in zip(record.__struct_fields__, msgspec.structs.astuple(record), strict=True):
        if value or name in always:  # a record is never empty
            out[name] = value if type(value) in _SCALARS else _shown_value(value)
    return out


def _shown_value(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        return shown(value)
    if isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
        return [shown(item) for item in value]
    if isinstance(value, dict):
        return dict(sorted(value.items()))
    return value


# ---------------------------------------------------------------------------------------------------- input
class _Number(str):
    """A number literal that is no Go integer as it stands (a fraction, an exponent)."""


Converter = Callable[[object, str, bool], object]
"""(value, path of the field, strict) → the field's value. Raises JsonError."""


def parse(body: bytes, record: type[S], name: str = "", *, strict: bool = True) -> S:
    """Decode a request body. An empty body is an empty object, and so is `null`.

    Args:
        body: JSON text; invalid UTF-8 is replaced, as in Go. Of several values in a row the later ones overwrite, as in
            nats-server.
        record: the Struct class to fill; a field that is absent or null keeps its default.
        name: the Go name of the request in error texts; the class's own when empty.
        strict: reject unknown fields.

    Raises:
        JsonError: syntax, types, unknown fields, with nats-server's texts.
    """
    root = name or record.__name__
    try:
        return record(**_root(msgspec.json.decode(body), record, root, strict))
    except (*DECODE_ERRORS, JsonError):
        # Slow path: find Go's error, or that Go accepts it.
        found: dict[str, Any] = {}
        try:
            for value in _values(body, strict):
                found.update(_root(value, record, root, strict))
        except JsonError as error:
            raise error if strict else error.as_lenient() from None
        except RecursionError:  # shallow enough to be decoded, but not to be shown in an error
            raise JsonError("exceeded max depth") from None
        return record(**found)


def _values(body: bytes, strict: bool) -> Iterator[object]:
    """Return the values of `body` one after another, numbers with their literals. Raises JsonError."""
    at = begin = next_value(body, 0)
    while at < len(body):
        wrong = None if strict or at == begin else trailing(body, at)
        if wrong is not None:
            raise wrong
        end = end_of_value(body, at)
        text = body[at:end].decode("utf-8", "replace")
        try:
            yield json.loads(text, parse_float=_Number, parse_int=_exact_int)
        except RecursionError:
            raise JsonError(f"exceeded max depth at offset {end}") from None
        at = next_value(body, end)


def _exact_int(literal: str) -> object:
    return int(literal) if len(literal) < 25 else _Number(literal)


def _root(value: object, record: type[msgspec.Struct], root: str, strict: bool) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise JsonError(f"json: cannot unmarshal {_kind(value)} into Go value of type server.{root}")
    return _fill(value, record, root, strict)


def _fill(value: dict[str, object], record: type[msgspec.Struct], path: str, strict: bool) -> dict[str, Any]:
    """Set the fields of `record` that a JSON object has."""
    fields = _fields(record)
    found: dict[str, Any] = {}
    for key, item in value.items():
        field = fields.get(key) or fields.get(key.lower())
        if field is None:
            if strict:
                raise JsonError(f"json: unknown field {_encode(clean(key)).decode()}")
            continue
        name, convert, always, usual = field
        if item is None and not always:
            continue
        if item == usual and type(item) is type(usual):
            found[name] = item
            continue
        found[name] = convert(item, f"{path}.{name}", strict)
    return found


def clean(text: str) -> str:
    """Replace lone surrogates, which have no UTF-8, by U+FFFD, as Go does."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float, _Number)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _source(value: object) -> str:
    """Return JSON text of a value that was read, for a refusal that quotes it."""
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:  # a lone surrogate, which can only be written as an escape
        return json.dumps(value, separators=(",", ":"))


def _mismatch(value: object, path: str, go_type: str, literal: str = "") -> JsonError:
    words = f"{_kind(value)} {literal}" if literal else _kind(value)
    into = path if path.rpartition(".")[2].isdigit() else f"Go struct field {path}"
    return JsonError(f"json: cannot unmarshal {words} into {into} of type {go_type}")


Field = tuple[str, Converter, bool, object]
"""(name, converter, True if it also takes null, the default of a string, number or flag): most values of a stored
configuration are defaults, which need no conversion."""


@lru_cache(maxsize=256)
def _fields(record: type[msgspec.Struct]) -> Mapping[str, Field]:
    """Return the fields of a record class by lower-case name. Caches class definitions, never data."""
    hints = get_type_hints(record, include_extras=True)
    made: dict[str, Field] = {}
    for field in msgspec.structs.fields(record):
        convert, _ = _converter(hints[field.name])
        go = _go(hints[field.name])
        usual = field.default if isinstance(field.default, str | int) else None
        made[field.name.lower()] = (field.name, convert, go is not None and bool(go.choices), usual)
    return made


def _go(hint: Any) -> Go | None:
    return next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Go)), None)


def _converter(hint: Any) -> tuple[Converter, str]:
    """Return the converter of an annotation, and its Go type in error texts."""
    go = _go(hint)
    if go is not None:
        if go.choices:
            return _choice(go), go.type
        return (_time if go.type == "time.Time" else _integer(go)), go.type
    if hint is str:
        return _string, "string"
    if hint is bool:
        return _bool, "bool"
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _converter(next(arg for arg in args if arg is not NoneType))
    if origin is list:
        return _list(args[0])
    if origin is dict:
        return _string_map, "map[string]string"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _struct(hint), f"server.{hint.__name__}"
    raise TypeError(f"no JSON form for {hint!r}")


def _string(value: object, path: str, strict: bool) -> object:
    if type(value) is not str:
        raise _mismatch(value, path, "string")
    return clean(value)


def _bool(value: object, path: str, strict: bool) -> object:
    if not isinstance(value, bool):
        raise _mismatch(value, path, "bool")
    return value


def _time(value: object, path: str, strict: bool) -> object:
    if type(value) is not str:
        raise _mismatch(value, path, "time.Time")
    try:
        return normal_time(clean(value))
    except ValueError as error:
        raise JsonError(str(error)) from None


def _integer(go: Go) -> Converter:
    low, high = go.low, go.high

    def convert(value: object, path: str, strict: bool) -> object:
        if isinstance(value, bool) or not isinstance(value, (int, float, _Number)):
            raise _mismatch(value, path, go.type)
        if not isinstance(value, int) or not low <= value <= high:
            raise _mismatch(value, path, go.type, str(value))
        return value

    return convert


def _choice(go: Go) -> Converter:
    def convert(value: object, path: str, strict: bool) -> object:
        chosen = value.lower() if go.fold and isinstance(value, str) else value
        if chosen in go.choices:
            return chosen
        if go.refusal:
            if "{value}" not in go.refusal and value is not None and type(value) is not str:
                # nats-server decodes this one as a string first; the others as they are written.
                raise JsonError(f"json: cannot unmarshal {_kind(value)} into Go value of type string")
            raise JsonError(go.refusal.replace("{value}", _source(value)))
        raise JsonError(f"can not unmarshal {_encode(_source(value)).decode()}")

    return convert


def _list(item: Any) -> tuple[Converter, str]:
    convert_item, item_type = _converter(item)
    pointer = "*" if getattr(item, "BY_POINTER", False) else ""
    go_type = f"[]{pointer}{item_type}"
    zero: Callable[[], object] = {"string": str}.get(item_type, item if isinstance(item, type) else int)

    def convert(value: object, path: str, strict: bool) -> object:
        if not isinstance(value, list):
            raise _mismatch(value, path, go_type)
        return [
            zero() if entry is None else convert_item(entry, f"{path}.{at}", strict) for at, entry in enumerate(value)
        ]

    return convert, go_type


def _string_map(value: object, path: str, strict: bool) -> object:
    if not isinstance(value, dict):
        raise _mismatch(value, path, "map[string]string")
    made: dict[str, str] = {}
    for key, entry in value.items():
        if type(entry) is not str and entry is not None:
            raise _mismatch(entry, f"{path}.{clean(key)}", "string")
        made[clean(key)] = clean(entry or "")
    return made


def _struct(record: type[msgspec.Struct]) -> Converter:
    def convert(value: object, path: str, strict: bool) -> object:
        if not isinstance(value, dict):
            raise _mismatch(value, path, f"server.{record.__name__}")
        return record(**_fill(value, record, path, strict))

    return convert


def enum(go_type: str, *choices: str, fold: bool = False, refusal: str = "") -> Go:
    """Return the annotation of a string with few values: `Annotated[str, enum("server.X", "a", "b")]`."""
    return Go(go_type, choices=choices, fold=fold, refusal=refusal)
