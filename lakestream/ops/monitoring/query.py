"""Query strings of the monitoring port.

Belongs here: typed access to parameters, with nats-server's texts for wrong ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False", "")


class BadQuery(Exception):
    """Raised for an invalid parameter; the text is the body of the 400 response."""


class Query:
    """The parameters of one request; of repeated ones the first counts."""

    def __init__(self, text: str = "", **values: str) -> None:
        self._values = {name: found[0] for name, found in parse_qs(text, keep_blank_values=True).items()} | values

    @property
    def values(self) -> dict[str, str]:
        """Return the parameters by name."""
        return self._values

    def but(self, **values: str) -> Query:
        """Return a copy with other values for some parameters."""
        changed = Query()
        changed._values = self._values | values
        return changed

    def text(self, name: str) -> str:
        """Return a text; "" when absent."""
        return self._values.get(name, "")

    def flag(self, name: str) -> bool:
        """Return a boolean; false when absent."""
        value = self.text(name)
        if value in _TRUE:
            return True
        if value in _FALSE:
            return False
        raise BadQuery(f"Error decoding boolean for '{name}': strconv.ParseBool: parsing \"{value}\": invalid syntax")

    def flag_or_detail(self, name: str) -> str:
        """Return `subs` of /connz: "", "list" or "detail"."""
        if self.text(name).lower() == "detail":
            return "detail"
        return "list" if self.flag(name) else ""

    def number(self, name: str) -> int:
        """Return an integer; 0 when absent."""
        return self._integer(name, "int", "Atoi")

    def unsigned(self, name: str) -> int:
        """Return a non-negative integer; 0 when absent."""
        return self._integer(name, "uint64", "ParseUint")

    def _integer(self, name: str, kind: str, function: str) -> int:
        value = self.text(name)
        digits = value.removeprefix("-") if kind == "int" else value
        if value and not (digits.isascii() and digits.isdecimal() and len(digits) < 19):
            raise BadQuery(
                f"Error decoding {kind} for '{name}': strconv.{function}: parsing \"{value}\": invalid syntax"
            )
        return int(value or "0")

    def choice(self, name: str, known: Mapping[str, str]) -> str:
        """Return one of a few words."""
        value = self.text(name).lower()
        if value not in known:
            raise BadQuery(f"Error decoding {name} for {self.text(name)}")
        return known[value]

    def page(self, default: int) -> tuple[int, int]:
        """Return `offset` and `limit`; negative ones count as absent."""
        limit = self.number("limit")
        return max(0, self.number("offset")), limit if limit > 0 else default
