"""The columns that a user sees masked.

Belongs here: the masks of a stream (lake/table/masks.py) as a SELECT over its rows, and their functions for DuckDB. The
payload comes as JSON with the masks in it, written anew from what was decoded; one that is no JSON object is NULL. A
typed struct, or a list of them, is made again with the masks inside; a map with a masked field is NULL. Conditions of a
user see the masks alone: they are the columns. The key of the hashes is in functions of this process, never in the text
of a query, and no query may call them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from lakestream.lake.table.masks import How, Mask, Masks
from lakestream.lake.table.schema import BY_FIELD, doubled, is_own, literal
from lakestream_sql.explained import SqlError

OWN_FUNCTIONS = "lakestream_mask_"
"""Beginning of the names of the functions."""
SHOWN = 4
"""Letters that last4 shows, of texts of at least twice as many."""
HIDDEN = "****"


class NoMaskKey(SqlError):
    """Raised for a stream with hashes where the server has no key for them."""

    def __init__(self, stream: str) -> None:
        super().__init__(f"stream {stream} shows fields as hashes, and this server has no key for them: sql.mask_key")


class Masking:
    """The masks of a stream for its users without a role.

    Args:
        stream: with its account; values of different streams have different hashes.
        key: of the hashes; "": none.

    Raises:
        NoMaskKey: there are hashes, and no key.
    """

    def __init__(self, masks: Masks, stream: str, key: str) -> None:
        if not key and any(mask.how == "hash" for mask in masks.fields):
            raise NoMaskKey(stream.rpartition("/")[2])
        self._key = hmac.digest(key.encode(), stream.encode(), "sha256")
        self._fields = _tree(masks.fields)
        digest = hashlib.sha256(self._key + repr(masks.fields).encode()).hexdigest()[:16]
        self.text_function, self.payload_function = f"{OWN_FUNCTIONS}text_{digest}", f"{OWN_FUNCTIONS}json_{digest}"

    def select(self, rows: str, columns: Mapping[str, str], *, of_misfits: bool = False) -> str:
        """Return a SELECT of rows with the masks.

        Args:
            columns: their types by name.
            of_misfits: the rows have reasons, which may tell of values.
        """
        import duckdb

        shown = list[str]()
        for name, kind in columns.items():
            if name == "data":
                shown.append(f"{self.payload_function}(data) AS data")
            elif of_misfits and name == "reason":
                shown.append("NULL::VARCHAR AS reason")
            elif is_own(name) and name.startswith(BY_FIELD):  # of a layout that is older than the masks, perhaps
                shown.append(f"NULL::VARCHAR AS {name}")
            elif not is_own(name) and (rule := self._fields.get(name.casefold())) is not None:
                shown.append(f"{self._value(doubled(name), duckdb.type(kind), rule)} AS {doubled(name)}")
        return f"SELECT * REPLACE ({', '.join(shown)}) FROM ({rows})" if shown else rows

    def _value(self, value: str, kind: Any, rule: Any, depth: int = 0) -> str:
        """Return the expression of a typed value, of a column or a field inside one, with its masks.

        Args:
            kind: of DuckDB.
            rule: a mask, or masks of fields by their names.
        """
        if rule is None:
            return value
        if rule in ("hash", "last4"):
            return f"{self.text_function}_{rule}(CAST({value} AS VARCHAR))"
        if isinstance(rule, dict) and kind.id == "list":
            item = f"item_{depth}"
            return f"list_transform({value}, lambda {item}: {self._value(item, kind.child, rule, depth + 1)})"
        if isinstance(rule, dict) and kind.id == "struct":
            fields = list[str]()
            for name, inner in kind.children:
                field = f"struct_extract({value}, {literal(name)})"
                fields.append(f"{doubled(name)} := {self._value(field, inner, rule.get(name.casefold()), depth)}")
            return f"CASE WHEN {value} IS NULL THEN NULL ELSE struct_pack({', '.join(fields)}) END"
        return f"NULL::{kind}"

    def functions(self) -> dict[str, tuple[Callable[[pa.Array], pa.Array], str, str]]:
        """Return the functions of the SELECT by name, with the types that each takes and returns."""

        def texts(how: How) -> Callable[[pa.Array], pa.Array]:
            return lambda values: pa.array([self._masked(how, value) for value in values.to_pylist()], pa.string())

        return {
            self.payload_function: (
                lambda values: pa.array([self._payload(value) for value in values.to_pylist()], pa.binary()),
                "BLOB",
                "BLOB",
            ),
            f"{self.text_function}_hash": (texts("hash"), "VARCHAR", "VARCHAR"),
            f"{self.text_function}_last4": (texts("last4"), "VARCHAR", "VARCHAR"),
        }

    def _payload(self, payload: bytes | None) -> bytes | None:
        try:
            found = json.loads(payload or b"")
            if isinstance(found, dict):
                return json.dumps(self._hidden(found, self._fields), ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            pass
        return None

    def _hidden(self, value: Any, fields: Mapping[str, Any]) -> Any:
        if isinstance(value, list):
            return [self._hidden(each, fields) for each in value]
        if not isinstance(value, dict):
            return value
        return {name: self._field(each, fields.get(name.casefold())) for name, each in value.items()}

    def _field(self, value: Any, rule: Any) -> Any:
        if rule is None:
            return value
        return self._hidden(value, rule) if isinstance(rule, dict) else self._masked(rule, value)

    def _masked(self, how: How, value: Any) -> str | None:
        if value is None or how == "null":
            return None
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
        if how == "hash":
            return hmac.digest(self._key, text.encode("utf-8", "surrogatepass"), "sha256").hex()[:32]
        return HIDDEN + (text[-SHOWN:] if len(text) >= 2 * SHOWN else "")


def _tree(fields: tuple[Mask, ...]) -> dict[str, Any]:
    """Return the rules by the names of fields, in small letters: a decoder may not tell large ones from them. A rule
    for a field is for all in it."""
    tree: dict[str, Any] = {}
    for mask in sorted(fields, key=lambda each: -len(each.path)):
        inner = tree
        for name in mask.path[:-1]:
            inner = inner.setdefault(name.casefold(), {})
        inner[mask.path[-1].casefold()] = mask.how
    return tree
