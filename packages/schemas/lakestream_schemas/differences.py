"""Differences of two versions of a schema.

Belongs here: the record of one difference, and the list that a comparison fills.
"""

from __future__ import annotations

import msgspec

from lakestream.schemas.errors import within

MAX_DIFFERENCES = 200
"""Maximum number of differences of a comparison; the rest is left out."""


class Difference(msgspec.Struct, frozen=True):
    """A difference between what wrote a payload and what reads it.

    Attributes: `field`: path, "" for all of the payload; `rule`: name of the kind of difference; `text`: for people;
    `is_compatible`: the reader still reads everything that was written.
    """

    field: str
    rule: str
    text: str
    is_compatible: bool

    def __str__(self) -> str:
        return f"{self.field or 'schema'}: {self.text} ({self.rule})"


class Differences:
    """List of differences at a path of fields."""

    def __init__(self, field: str = "", found: list[Difference] | None = None) -> None:
        self._field = field
        self.found: list[Difference] = [] if found is None else found

    def inside(self, child: str) -> Differences:
        """Return the same list at a part of this path. A part in brackets, like `[]`, is an element."""
        path = self._field + child if child.startswith(("[", "{")) else within(self._field, child)
        return Differences(path, self.found)

    def trial(self) -> Differences:
        """Return an empty list at the same path."""
        return Differences(self._field)

    def add(self, rule: str, text: str, is_compatible: bool = False) -> None:
        """Add a difference at this path."""
        difference = Difference(self._field, rule, text, is_compatible)
        if len(self.found) < MAX_DIFFERENCES and difference not in self.found:
            self.found.append(difference)

    def extend(self, other: Differences) -> None:
        """Add the differences of a trial."""
        self.found += other.found[: MAX_DIFFERENCES - len(self.found)]

    @property
    def is_compatible(self) -> bool:
        """Return True if no difference is incompatible."""
        return all(difference.is_compatible for difference in self.found)
