"""Which subjects a read of history is for.

Belongs here: literal subjects and patterns as one choice, how it is put to a table's index and query engine (which know
the texts of the column `subject`, and of a pattern what stands before its first wildcard), and which of the rows that
these find are really meant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from lakestream.lake.delta.schema import subject_text
from lakestream.lake.read.history.index import Wanted
from lakestream.protocol.subjects import Filters, is_literal

MAX_SUBJECTS = 512
"""More subjects than this are looked for among all messages rather than named in a query."""


class Choice:
    """Messages of some subjects: literal ones, and all that match a pattern."""

    def __init__(self, subjects: Iterable[bytes]) -> None:
        self.subjects = frozenset(subjects)
        self.literal = frozenset(filter(is_literal, self.subjects))
        self.patterns = sorted(self.subjects - self.literal)
        self.wanted = wanted(self.literal, self.patterns)
        self._filters = Filters(self.patterns)

    @property
    def narrows(self) -> bool:
        """Whether a table can be asked for them: they are few enough, and no pattern begins with a wildcard."""
        return len(self.subjects) <= MAX_SUBJECTS and not self.wanted.everything

    def has(self, subject: bytes) -> bool:
        """Whether messages of `subject` are meant."""
        return subject in self.literal or (bool(self.patterns) and self._filters.match(subject))

    def only(self, rows: Any) -> Any:
        """Those rows of a pyarrow Table that are meant: what a table was asked for is seldom more, but may be."""
        import pyarrow as pa

        if rows.num_rows == 0:
            return rows
        raw = rows.column("subject_bytes")
        if raw.null_count < rows.num_rows:  # two raw subjects may have one text
            pairs = zip(rows.column("subject").to_pylist(), raw.to_pylist(), strict=True)
            meant = pa.array([self.has(_bytes(text) if kept is None else kept) for text, kept in pairs])
        else:
            texts = rows.column("subject").combine_chunks().dictionary_encode()
            meant = pa.array([self.has(_bytes(text)) for text in texts.dictionary.to_pylist()]).take(texts.indices)
        return rows if meant.true_count == rows.num_rows else rows.filter(meant)


def wanted(literal: Collection[bytes], patterns: Sequence[bytes] = ()) -> Wanted:
    """Subjects as the table's column spells them; of a pattern, what stands before its first wildcard."""
    heads = []
    for pattern in patterns:
        before = pattern.split(b".")
        at = next(place for place, token in enumerate(before) if token in (b"*", b">"))
        heads.append(subject_text(b".".join([*before[:at], b""]) if at else b"")[0])
    return Wanted((subject_text(subject)[0] for subject in literal), heads)


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
