"""`lakestream schema test`: checks of a schema's file without a server, for CI.

Belongs here: the checks, in order: the schema can be used, and makes these columns; payloads fit it, or do not, as they
should; it can follow earlier files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from lakestream.schemas.codec import codec_of
from lakestream.schemas.columns import ddl
from lakestream.schemas.errors import BadSchema, Misfit
from lakestream.schemas.schema import Schema
from lakestream_schemas.compatibility import find_conflicts
from lakestream_schemas.formats import prepared

LINES = (".jsonl", ".ndjson")
"""Extensions of files with a payload in each line; any other file is one payload."""


class SchemaCheck(msgspec.Struct, frozen=True):
    """A check and its outcome. `subject`: of what; `problem`: "" if it passed."""

    check: str
    subject: str
    problem: str = ""


class SchemaReport(msgspec.Struct, frozen=True):
    """All checks of a file. `columns`: names of the columns with their types."""

    columns: dict[str, str]
    checks: list[SchemaCheck]

    @property
    def is_good(self) -> bool:
        """Return True if no check failed."""
        return not any(each.problem for each in self.checks)


def check_file(
    name: str, schema: Schema, fits: Sequence[str], misfits: Sequence[str], before: Sequence[Schema]
) -> SchemaReport:
    """Check a schema.

    Args:
        name: of its file, for the report.
        schema: not prepared yet; its `compatibility` is that of the comparison.
        fits, misfits: files with payloads.
        before: earlier versions, ascending.

    Raises:
        OSError: a file cannot be read.
    """
    try:
        ready = prepared(schema)
        codec = codec_of(ready)
    except BadSchema as error:
        return SchemaReport({}, [SchemaCheck("schema", name, str(error))])
    checks = [SchemaCheck("schema", name)]
    for files, wanted in ((fits, True), (misfits, False)):
        for where, payload in _payloads(files):
            found = codec.fits(payload)
            problem = ""
            if wanted and isinstance(found, Misfit):
                problem = str(found)
            elif not wanted and found is None:
                problem = "it fits, and should not"
            checks.append(SchemaCheck("fits" if wanted else "does not fit", where, problem))
    if before:
        checks.append(SchemaCheck("compatible", schema.compatibility, _conflicts(ready, before)))
    columns = {field.column: ddl(field.type) for field in codec.record.fields}
    return SchemaReport(columns, checks)


def _payloads(files: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield (place, payload) of files."""
    for file in files:
        raw = Path(file).read_bytes()
        if Path(file).suffix.lower() not in LINES:
            yield file, raw
            continue
        for number, line in enumerate(raw.splitlines(), 1):
            if line.strip():
                yield f"{file}:{number}", line


def _conflicts(ready: Schema, before: Sequence[Schema]) -> str:
    """Return the reasons why a version cannot follow others; "" if it can."""
    try:
        found = find_conflicts(ready, [prepared(each) for each in before])
    except BadSchema as error:
        return str(error)
    return "; ".join(map(str, found))
