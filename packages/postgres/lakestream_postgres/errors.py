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
_KINDS = (
    ("42P01", "Table with name"),
    ("42703", "Referenced column"),
    ("42703", " has no column "),
    ("42883", "No function matches"),
    ("42883", "Function with name"),
    ("53200", "more memory"),
    ("22000", "Could not convert"),
)
_PLACE = re.compile(r"\n  line (\d+), column (\d+):\n[^\n]*\n *\^")


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
        code = next((kind for kind, words in _KINDS if words in said), code)
    found = None
    if match := _PLACE.search(said):
        lines = text.split("\n")[: int(match[1]) - 1]
        found = place(sum(len(line) + 1 for line in lines) + int(match[2]) - 1)
        # Clients show the place themselves, in what they sent.
        said = said[: match.start()] + said[match.end() :]
    return PgError(code, said, 0 if found is None else found + 1)
