"""Errors as clients of Postgres get them.

Belongs here: codes of SQLSTATE for the errors of SQL over NATS.

Source: PostgreSQL's documentation, appendix "PostgreSQL Error Codes".
"""

from __future__ import annotations

import re
from collections.abc import Callable

from lakestream_client.errors import ClientError, QueryFailed
from lakestream_postgres import wire


class PgError(Exception):
    """Raised for a statement that fails; the session goes on unless `is_fatal`.

    Args:
        code: of SQLSTATE.
        text: its first line is the message, the others are its detail.
        position: in the statement, in characters from 1; 0: unknown.
    """

    def __init__(self, code: str, text: str, position: int = 0, *, is_fatal: bool = False) -> None:
        super().__init__(text)
        self.code, self.position, self.is_fatal = code, position, is_fatal

    def encode(self) -> bytes:
        """Return the message to the client."""
        severity = "FATAL" if self.is_fatal else "ERROR"
        first, _, rest = str(self).partition("\n")
        values = {"S": severity, "V": severity, "C": self.code, "M": first, "D": rest}
        return wire.response(values | ({"P": str(self.position)} if self.position else {}))


_CODES = {
    400: "42601",  # syntax_error
    403: "42501",  # insufficient_privilege
    404: "42P01",  # undefined_table
    408: "57014",  # query_canceled
    413: "54000",  # program_limit_exceeded
    429: "53300",  # too_many_connections
    499: "57014",
    503: "57P03",  # cannot_connect_now
}
_KINDS = [
    (code, re.compile(words))
    for code, words in (
        ("42P01", "Table with name|Referenced table|there is no table|because schema"),
        ("42702", "Ambiguous reference"),
        (
            "42703",
            "Referenced column|ha(s no|ve a) column|does not exist on (left|right) side|list not found|in UNPIVOT but",
        ),
        ("42803", "must appear in the GROUP BY|cannot contain aggregates"),
        ("42804", "Cannot compare values|Cannot mix values"),
        ("42883", "No function matches|Function with name|Could not choose a best candidate function"),
        ("53200", "more memory"),
        ("2201W", "LIMIT/OFFSET cannot be negative"),
        ("22003", "[Oo]verflow|because the value is out of range|out of range for the destination"),
        ("22008", "field value out of range"),
        ("22007", "invalid (timestamp|date|time|interval) field"),
        ("22P02", "Could not convert|Could not parse string|Malformed JSON"),
    )
]
"""Codes of errors of queries by DuckDB's words; the first that fits counts."""
_PLACE = re.compile(r"\n  line (\d+), column (\d+):\n[^\n]*\n *\^")


def code_of(said: str) -> str:
    """Return the code for an error of a query: 42601 (syntax_error) for one that is of no other kind."""
    return next((code for code, words in _KINDS if words.search(said)), _CODES[400])


def explained(error: ClientError, text: str, place: Callable[[int], int | None]) -> PgError:
    """Return the error for one of SQL over NATS.

    Args:
        text: the query as it was asked.
        place: returns the place in what the client sent for one in it.
    """
    said = str(error)
    if not isinstance(error, QueryFailed):
        return PgError("08006", said)
    code = _CODES.get(error.code, "XX000")
    if error.code == 400:
        code = code_of(said)
    found = None
    if match := _PLACE.search(said):
        lines = text.split("\n")[: int(match[1]) - 1]
        found = place(sum(len(line) + 1 for line in lines) + int(match[2]) - 1)
        # Clients show the place themselves, in what they sent.
        said = said[: match.start()] + re.sub(r"^\n +", "\n", said[match.end() :])
    return PgError(code, said, 0 if found is None else found + 1)
