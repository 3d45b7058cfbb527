"""Finding what an import reads: the files of a source, their format, and an id of their contents.

Belongs here: paths, suffixes, `key=value` directories and digests. Nothing is parsed here.
"""

from __future__ import annotations

import glob
import hashlib
import os
from pathlib import Path
from urllib.parse import unquote

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.table.log import log_directory

DELTA = "delta"
TEXTS = ("csv", "json")
"""Formats whose values are text as it is spelled."""
SUFFIXES = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".delta": DELTA,
}

_DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class BadSource(LakeError):
    """Raised when a source is missing or cannot be read."""


class SourceFiles(msgspec.Struct, frozen=True):
    """A source: its format, and the files in the order of reading; a Delta table has none here.

    Attributes:
        path: absolute, or a glob pattern. base: the directory below which `key=value` directories are columns; None:
            no columns come from directories.
    """

    path: str
    kind: str
    names: tuple[str, ...]
    base: str | None

    def parts(self, file: str) -> dict[str, str]:
        """Return the columns that the directories of a file give: `country=de/` makes `country` `de`."""
        if self.base is None:
            return {}
        pairs = (part.partition("=") for part in Path(file).relative_to(self.base).parts[:-1])
        return {unquote(key): unquote(value) for key, equals, value in pairs if equals and value != _DEFAULT_PARTITION}

    @property
    def identity(self) -> str:
        """Return a digest of the contents. Names and times do not count: a copied or moved source is the same one."""
        digest = hashlib.blake2b(self.kind.encode(), digest_size=16)
        for file in self.names:
            try:
                with open(file, "rb") as opened:
                    content = hashlib.file_digest(opened, "sha256").hexdigest()
            except OSError as error:
                raise BadSource(f"{file} cannot be read: {error}") from None
            digest.update(f"\n{sorted(self.parts(file).items())} {content}".encode())
        return digest.hexdigest()


def find(path: str, format: str = "") -> SourceFiles:
    """Find a source.

    Args:
        path: a Delta table's directory, a file, a directory of files, or a glob pattern.
        format: of the files; "": by their suffixes.

    Raises:
        BadSource: there is nothing, or the format cannot be told.
    """
    pattern = glob.has_magic(path) and not os.path.exists(path)
    whole = path if pattern else os.path.abspath(path)
    base = None
    if os.path.isdir(log_directory(whole)) and format in ("", DELTA):
        return SourceFiles(whole, DELTA, (), None)
    if pattern:
        names = sorted(found for found in glob.glob(whole, recursive=True) if os.path.isfile(found))
    elif os.path.isdir(whole):
        base = whole
        names = sorted(str(found) for found in Path(whole).rglob("*") if _is_data(found, whole))
    else:
        names = [whole] if os.path.isfile(whole) else []
    if not names:
        raise BadSource(f"there is nothing at {whole}: name a Delta table, a file, a directory or a pattern")
    kinds = {format} if format else {SUFFIXES.get(Path(file).suffix.lower(), "") for file in names}
    if len(kinds) > 1 or kinds <= {"", DELTA}:
        found = ", ".join(sorted({Path(file).suffix or "no suffix" for file in names}))
        raise BadSource(
            f"{whole}: files of one kind are needed (.parquet, .csv, .json), not {found}; --format names the kind"
        )
    return SourceFiles(whole, kinds.pop(), tuple(names), base)


def _is_data(file: Path, base: str) -> bool:
    """Return False for files that Spark and others write beside the data."""
    return file.is_file() and not any(part[0] in "._" for part in file.relative_to(base).parts)
