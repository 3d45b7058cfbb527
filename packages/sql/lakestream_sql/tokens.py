"""Tokens of SQL, and texts with replacements.

Belongs here: the lexical rules of DuckDB (quotes, dollar quotes, nested comments), and the few in which Spark differs.
They decide nothing about rights: what a query reads is told by DuckDB's own parser.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Literal, NamedTuple

# DuckDB takes these for blanks (Parser::StripUnicodeSpaces), and every other letter beyond ASCII for that of a name.
_BLANKS = " \t\n\r\f\v\u00a0\u2000-\u200d\u202f\u205f\u2060\u3000\ufeff"
_BEGINS = rf"(?:[A-Za-z_]|[^\x00-\x7f{_BLANKS}])"
_WORD = rf"{_BEGINS}(?:[0-9$]|{_BEGINS})*+"
_COMMON = rf"""
    (?P<blank>[{_BLANKS}]++|--[^\n\r]*+) | (?P<comment>/\*) | {{strings}} | (?P<ticked>`(?:[^`]|``)*+`)
    | (?P<number>(?:[0-9][0-9_]*+\.?[0-9_]*+|\.[0-9][0-9_]*+)(?:[eE][+-]?[0-9]++)?) | (?P<word>{_WORD})
    | (?P<open>['"`]) | (?P<sign>::|:=|.)
"""
_DUCKDB = rf"""
    (?P<escaped>[eE]'(?:[^'\\]|\\.|'')*+') | (?P<string>'(?:[^']|'')*+') | (?P<unclosed>[eE]')
    | (?P<dollars>\$(?:{_WORD.replace("$", "")})?\$) | (?P<quoted>"(?:[^"]|"")*+") | (?P<parameter>\$[0-9A-Za-z_]++|\?)
"""
_SPARK = r"""
    (?P<string>[rR]'[^']*+'|[rR]"[^"]*+"|'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")
"""
_PATTERNS = {
    name: re.compile(_COMMON.replace("{strings}", strings), re.VERBOSE | re.DOTALL)
    for name, strings in (("duckdb", _DUCKDB), ("spark", _SPARK))
}
_COMMENT_EDGE = re.compile(r"/\*|\*/")

Language = Literal["duckdb", "spark"]


class SqlToken(NamedTuple):
    """A token: its kind (`word`, `quoted`, `ticked`, `string`, `number`, `parameter`, `sign`, or `open` for a quote or
    comment without end), its text, and its place."""

    kind: str
    text: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        """Return True for one of these words, given in capitals."""
        return self.kind == "word" and self.text.upper() in words

    @property
    def depth(self) -> int:
        """Return 1 for an opening parenthesis or bracket, -1 for a closing one."""
        return (self.text in "([{") - (self.text in ")]}") if self.kind == "sign" else 0

    @property
    def name(self) -> str:
        """Return the name that a quoted token means; of others their text."""
        if self.kind in ("quoted", "ticked") or (self.kind == "string" and self.text[0] == "'"):
            quote = self.text[0]
            return self.text[1:-1].replace(quote * 2, quote)
        return self.text


def tokens(text: str, language: Language = "duckdb") -> Iterator[SqlToken]:
    """Yield the tokens of a text without blanks and comments; those with an odd blank, which DuckDB makes
    shorter, have the kind `blank`."""
    match, at, end = _PATTERNS[language].match, 0, len(text)
    while at < end:
        found = match(text, at)
        assert found is not None  # Invariant: `sign` is any character.
        kind, after = found.lastgroup or "", found.end()
        if kind == "comment":
            kind, after = "blank", _comment_end(text, after)
        elif kind == "dollars":
            closing = text.find(found[0], after)
            kind, after = ("string", closing + len(found[0])) if closing >= 0 else ("open", end)
        elif kind == "escaped":
            kind = "string"
        if kind in ("open", "unclosed") or after < 0:
            yield SqlToken("open", text[at:], at, end)
            return
        if kind != "blank":
            yield SqlToken(kind, found[0] if after == found.end() else text[at:after], at, after)
        elif not text[at:after].isascii() and not text.startswith("--", at):
            yield SqlToken(kind, text[at:after], at, after)
        at = after


def significant(text: str) -> list[SqlToken]:
    """Return the tokens of a text in DuckDB's SQL without any blanks."""
    return [token for token in tokens(text) if token.kind != "blank"]


def _comment_end(text: str, at: int) -> int:
    """Return the end of a comment, in which others may be nested; -1 if it has none."""
    depth = 1
    for edge in _COMMENT_EDGE.finditer(text, at):
        depth += 1 if edge[0] == "/*" else -1
        if not depth:
            return edge.end()
    return -1


def split(text: str, language: Language = "duckdb") -> tuple[list[tuple[str, int]], str]:
    """Cut a text at its semicolons, respecting quotes and comments.

    Returns:
        The complete statements as (text, offset), and the rest after the last semicolon: "" when it has only blanks and
            comments; a statement with an open quote or comment is incomplete and returned as the rest.
    """
    done: list[tuple[str, int]] = []
    start, has_tokens = 0, False
    if ";" not in text:
        return done, text if any(token.kind != "blank" for token in tokens(text, language)) else ""
    for token in tokens(text, language):
        if token.kind == "sign" and token.text == ";":
            if has_tokens:
                done.append((text[start : token.start], start))
            start, has_tokens = token.end, False
        elif token.kind != "blank":
            has_tokens = True
    return done, text[start:] if has_tokens else ""


def names_of_with(text: str) -> list[str]:
    """Return the names of the queries of a WITH, as they are written: those before `AS (`."""
    found = significant(text)
    behind = [*found[2:], *found[:2]]
    return [
        each.text
        for each, as_, query in zip(found, found[1:], behind, strict=False)
        if each.kind in ("word", "quoted") and as_.is_word("AS") and query.text == "("
    ]


def closing(found: list[SqlToken], at: int) -> int | None:
    """Return the number of the token behind the parenthesis that closes the one at `at`; None if none does."""
    for number, depth in enumerate(itertools.accumulate(token.depth for token in found[at:])):
        if depth == 0:
            return at + number + 1
    return None


class Edit(NamedTuple):
    """A replacement for the text from `start` to `end`."""

    start: int
    end: int
    text: str


class Edited:
    """A text with replacements.

    Args:
        text: the original.
        edits: do not overlap.
    """

    def __init__(self, text: str, edits: list[Edit]) -> None:
        edits.sort()
        self._edits, self._starts = edits, list[int]()
        parts, at, grown = list[str](), 0, 0
        for edit in edits:
            parts += [text[at : edit.start], edit.text]
            self._starts.append(edit.start + grown)
            grown += len(edit.text) - (edit.end - edit.start)
            at = edit.end
        self.text = "".join(parts) + text[at:]

    def place(self, offset: int) -> int:
        """Return the original's offset for one of the result; in a replacement its beginning."""
        at = bisect_right(self._starts, offset) - 1
        if at < 0:
            return offset
        edit, inside = self._edits[at], offset - self._starts[at]
        return edit.start if inside < len(edit.text) else edit.end + inside - len(edit.text)
