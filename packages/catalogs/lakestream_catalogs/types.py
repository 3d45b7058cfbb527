"""Types of Delta columns in the languages of catalogs.

Belongs here: the translation of a type of a Delta schema to Hive's texts and to those of Unity Catalog. No I/O.
"""

from __future__ import annotations

import re
from typing import Any

from lakestream_catalogs.entries import CatalogField, Column, cut

MAX_TYPE = 4000
"""Maximum length of a column's type in characters; metastores before Hive 2.3 keep no longer one."""

_HIVE = {
    "boolean": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp",
}
_UNITY = {
    "boolean": "BOOLEAN",
    "byte": "BYTE",
    "short": "SHORT",
    "integer": "INT",
    "long": "LONG",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "binary": "BINARY",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ",
    "variant": "VARIANT",
    "array": "ARRAY",
    "map": "MAP",
    "struct": "STRUCT",
}
_DECIMAL = re.compile(r"decimal\((\d+), *(\d+)\)")
_WORD = re.compile(r"[A-Za-z0-9_]+")
_NO_NAME = re.compile(r"[:<>,`]")


class NoType(Exception):
    """Raised when a catalog has no text for a type."""


def hive_type(of: Any) -> str:
    """Return Hive's text of a type, as Glue and metastores have it.

    Raises:
        NoType: Hive has no such type, a field's name cannot be in its text, or the text is too long.
    """
    text = _text(of, _HIVE, quote=False)
    if len(text) > MAX_TYPE:
        raise NoType(f"its type has {len(text)} characters")
    return text


def hive_fields(columns: tuple[Column, ...], max_comment: int) -> tuple[CatalogField, ...]:
    """Return columns as Hive and Glue have them: names in lower case, comments of limited length.

    A column without a Hive type is left out: engines read the columns from the table's log.
    """
    found = []
    for column in columns:
        try:
            kind = hive_type(column.type)
        except NoType:
            continue
        found.append(CatalogField(column.name.lower(), kind, cut(column.comment, max_comment)))
    return tuple(found)


def sql_type(of: Any) -> str:
    """Return a type as SQL, as Unity Catalog has it in `type_text`; names are quoted where SQL demands it."""
    return _text(of, {**_HIVE, "timestamp_ntz": "timestamp_ntz", "variant": "variant"}, quote=True)


def unity_name(of: Any) -> tuple[str, int, int]:
    """Return (Unity Catalog's name of a type, precision, scale); the last two are 0 but for decimals.

    Raises:
        NoType: there is none.
    """
    if isinstance(of, str) and (decimal := _DECIMAL.fullmatch(of)) is not None:
        return "DECIMAL", int(decimal[1]), int(decimal[2])
    name = _UNITY.get(of if isinstance(of, str) else of["type"])
    if name is None:
        raise NoType(f"{of} is not a type of Unity Catalog")
    return name, 0, 0


def _text(of: Any, words: dict[str, str], quote: bool) -> str:
    if isinstance(of, str):
        if (decimal := _DECIMAL.fullmatch(of)) is not None:
            return f"decimal({decimal[1]},{decimal[2]})"
        if of not in words:
            raise NoType(f"{of} is not a type there")
        return words[of]
    if of["type"] == "array":
        return f"array<{_text(of['elementType'], words, quote)}>"
    if of["type"] == "map":
        return f"map<{_text(of['keyType'], words, quote)},{_text(of['valueType'], words, quote)}>"
    if of["type"] != "struct":
        raise NoType(f"{of['type']} is not a type there")
    fields = (f"{_name(each['name'], quote)}:{_text(each['type'], words, quote)}" for each in of["fields"])
    return f"struct<{','.join(fields)}>"


def _name(name: str, quote: bool) -> str:
    if quote:
        return name if _WORD.fullmatch(name) else f"`{name.replace('`', '``')}`"
    if _NO_NAME.search(name):
        raise NoType(f"the name {name!r} cannot be written in a type")
    return name
