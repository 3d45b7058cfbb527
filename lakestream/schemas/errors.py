"""Errors of schemas, and the reason why a payload does not fit one.

Belongs here: the exception of everything that reads a schema, and the record of a misfit.
"""

from __future__ import annotations

import msgspec

MAX_MISFIT_TEXT = 300
"""Maximum number of characters of a misfit's text."""


class BadSchema(ValueError):
    """Raised for a schema, or a document of the registry, that cannot be used.

    Attributes: `where`: path in the schema, "" for all of it; `reason`; `remedy`: the change that would help.
    """

    def __init__(self, reason: str, where: str = "", remedy: str = "") -> None:
        self.where, self.reason, self.remedy = where, reason, remedy
        super().__init__("; ".join(part for part in (f"{where}: {reason}" if where else reason, remedy) if part))


class Misfit(msgspec.Struct, frozen=True):
    """The reason why a payload does not fit its schema.

    Attributes: `field`: path in the payload (`address.zip`, `tags[2]`), "" for all of it; `rule`: keyword of the schema
    or of the mapping that is broken (`required`, `type`, `range`, …); `text`: sentence for people.
    """

    field: str
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.field or 'payload'}: {self.text} ({self.rule})"


class RowMisfit(msgspec.Struct, frozen=True):
    """A misfit of one row of a batch. `row` counts from 0."""

    row: int
    misfit: Misfit


class Unfit(Exception):
    """Raised inside decoders for a payload that does not fit."""

    def __init__(self, field: str, rule: str, text: str) -> None:
        super().__init__(text)
        self.misfit = Misfit(field, rule, text[:MAX_MISFIT_TEXT])

    def inside(self, parent: str | int) -> Unfit:
        """Return the same, of a part of `parent`."""
        path = within("", parent)
        rest = self.misfit.field
        joined = path + (rest if rest.startswith("[") else f".{rest}") if rest else path
        return Unfit(joined, self.misfit.rule, self.misfit.text)


def within(parent: str, child: str | int) -> str:
    """Return the path of a part of `parent`: a field's name or an index."""
    if isinstance(child, int):
        return f"{parent}[{child}]"
    return f"{parent}.{child}" if parent else child
