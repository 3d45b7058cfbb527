"""Records of columns, as every format makes them.

Belongs here: a record of fields with the names of their columns, and the limits of one.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakestream.schemas.columns import Field, List, Map, RecordType, Type, column_names, walk
from lakestream.schemas.errors import BadSchema

MAX_FIELDS = 1_000
"""Maximum number of fields of a schema, including those of nested records."""
MAX_NESTING = 20
"""Maximum nesting of columns; JSON Schema: deeper values are JSON text."""
MAX_FIELD_NAME = 255
"""Maximum length of a field's name, in bytes of UTF-8."""


def record_of(fields: Iterable[tuple[str, Type, bool, str]], root: bool = False) -> RecordType:
    """Return a record of fields, as (name, type, nullable, comment), with columns named by `column_names`.

    Raises:
        BadSchema: a field's name is too long.
    """
    fields = list(fields)
    for name, *_ in fields:
        if len(name.encode(errors="surrogatepass")) > MAX_FIELD_NAME:
            raise BadSchema(f"its name has more than {MAX_FIELD_NAME} bytes", name[:40])
    columns = column_names([field[0] for field in fields], root)
    return RecordType(
        tuple(
            Field(name, column, of, nullable, comment)
            for (name, of, nullable, comment), column in zip(fields, columns, strict=True)
        )
    )


def check_size(record: RecordType) -> None:
    """Check the number of fields and their nesting.

    Raises:
        BadSchema: there are more than MAX_FIELDS, or they nest deeper than MAX_NESTING.
    """
    if sum(1 for _ in walk(record)) > MAX_FIELDS:
        raise BadSchema(f"there are more than {MAX_FIELDS} fields", remedy="make rarely used parts free-form objects")
    if _nesting(record) > MAX_NESTING:
        raise BadSchema(f"fields nest deeper than {MAX_NESTING}", remedy="make the inner part a free-form object")


def _nesting(of: Type) -> int:
    if isinstance(of, RecordType):
        return 1 + max((_nesting(field.type) for field in of.fields), default=0)
    return 1 + _nesting(of.of) if isinstance(of, List | Map) else 0
