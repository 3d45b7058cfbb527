"""Statements of clients: their ends, their kinds, and the few that are answered here.

Belongs here: which statement reads, and goes to SQL over NATS as it is written, and which one only speaks to a server
of Postgres: settings, transactions, cursors, COPY. A query keeps every letter, except that the schema `public` before a
name becomes blanks, and a parameter with a type gets a cast. No I/O.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Literal

import msgspec

from lakestream_postgres.errors import PgError

Kind = Literal["query", "empty", "set", "reset", "show", "begin", "end", "savepoint", "nothing", "copy", "declare",
               "fetch", "close"]  # fmt: skip


class Token(msgspec.Struct, frozen=True):
    """A token, without blanks and comments."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """Return a word in capitals; "" for other tokens."""
        return self.text.upper() if self.kind == "word" else ""

    @property
    def name(self) -> str:
        """Return the name or value that it stands for."""
        if self.kind in ("quoted", "ticked", "string"):
            quote = self.text[-1]
            return self.text[self.text.index(quote) + 1 : -1].replace(quote * 2, quote)
        return self.text.lower() if self.kind == "word" else self.text


_TOKEN = re.compile(
    r"""(?P<blank>(?:\s|--[^\n]*|/\*.*?(?:\*/|$))+)
    |(?P<string>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\$(?P<tag>[A-Za-z_]\w*|)\$.*?\$(?P=tag)\$)
    |(?P<quoted>"(?:[^"]|"")*")|(?P<ticked>`(?:[^`]|``)*`)|(?P<parameter>\$\d+)
    |(?P<word>[^\W\d][\w$]*)|(?P<number>\d[\w.]*)|(?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of a text."""
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup if match.lastgroup != "tag" else "string"
        if kind != "blank":
            yield Token(kind or "sign", match[0], match.start(), match.end())


def split(text: str) -> list[tuple[str, int]]:
    """Return the statements of a text, with their places in it; one that is empty if there is none."""
    parts, start = [], 0
    found = list(tokens(text))
    for token in found:
        if token.text == ";":
            parts.append((text[start : token.start], start))
            start = token.end
    parts.append((text[start:], start))
    return [(part, start) for part, start in parts if next(tokens(part), None) is not None] or [("", 0)]


class Statement(msgspec.Struct, frozen=True):
    """A statement. `text`: of a query, also of the one in COPY and DECLARE; `tag`: of its end; `name`: of a setting or
    cursor; `value`: of a setting; `count`: of rows, 0: all; `options`: of COPY; `place`: of the text in what the client
    sent with it, None for a text that was not sent with it."""

    kind: Kind
    text: str = ""
    tag: str = ""
    name: str = ""
    value: str = ""
    count: int = 0
    options: dict[str, str] = {}
    place: int | None = None


_TAGS = {"START": "BEGIN", "END": "COMMIT", "ABORT": "ROLLBACK"}
_NOTHING = frozenset({"DISCARD", "DEALLOCATE", "LISTEN", "UNLISTEN", "CHECKPOINT"})
_WRITES = frozenset(
    {
        "INSERT",
        "UPDATE",
        "DELETE",
        "MERGE",
        "TRUNCATE",
        "CREATE",
        "DROP",
        "ALTER",
        "GRANT",
        "REVOKE",
        "COMMENT",
        "VACUUM",
    }
    | {"ANALYZE", "REINDEX", "CLUSTER", "LOCK", "REFRESH", "IMPORT", "DO", "CALL", "REASSIGN", "NOTIFY"}
)


def read(text: str, place: int = 0) -> Statement:
    """Return a statement. Raises PgError for one that does more than read. `place`: in what the client sent."""
    found = list(tokens(text))
    if not found:
        return Statement("empty")
    words = [token.word for token in found]
    first, second = words[0], words[1] if len(words) > 1 else ""
    if first in ("BEGIN", "START"):
        return Statement("begin", tag=_TAGS.get(first, first) if second == "TRANSACTION" or first == "BEGIN" else first)
    if first in ("COMMIT", "END", "ROLLBACK", "ABORT"):
        if "TO" in words:
            return Statement("savepoint", tag="ROLLBACK")
        return Statement("end", tag=_TAGS.get(first, first))
    if first in ("SAVEPOINT", "RELEASE"):
        return Statement("savepoint", tag=first)
    if first in _NOTHING:
        return Statement("nothing", tag=" ".join(words[: 1 + (second == "ALL")]), name=found[-1].name)
    if first in ("SET", "RESET"):
        return _setting(first, found, words)
    if first == "SHOW" and second not in ("TABLES", "FUNCTIONS") and words[1:3] != ["ALL", "TABLES"]:
        name = "timezone" if words[1:3] == ["TIME", "ZONE"] else found[-1].name
        if words[1:3] == ["TRANSACTION", "ISOLATION"]:
            name = "transaction_isolation"
        return Statement("show", tag="SHOW", name=name.lower())
    if first == "COPY":
        return _copy(text, found, words, place)
    if first in ("DECLARE", "FETCH", "MOVE", "CLOSE"):
        return _cursor(text, found, words)
    if first in _WRITES:
        raise PgError("25006", f"cannot execute {first} in a read-only transaction: streams change through NATS")
    return Statement("query", text, place=place)


CLIENT_SETTINGS = {
    "application_name": "", "backslash_quote": "safe_encoding", "bytea_output": "hex", "client_encoding": "UTF8",
    "client_min_messages": "notice", "datestyle": "ISO, MDY", "default_transaction_isolation": "repeatable read",
    "default_transaction_read_only": "on", "extra_float_digits": "1", "idle_in_transaction_session_timeout": "0",
    "in_hot_standby": "off", "integer_datetimes": "on", "intervalstyle": "postgres", "is_superuser": "off",
    "jit": "off", "lc_collate": "C", "lc_ctype": "C", "lock_timeout": "0", "max_identifier_length": "63",
    "max_index_keys": "32", "plan_cache_mode": "auto", "role": "none", "row_security": "on", "search_path": "public",
    "server_encoding": "UTF8", "server_version_num": "150000", "session_authorization": "",
    "standard_conforming_strings": "on",
    "statement_timeout": "0", "synchronize_seqscans": "on", "timezone": "UTC",
    "transaction_isolation": "repeatable read", "transaction_read_only": "on", "work_mem": "4096",
}  # fmt: skip
"""Settings that clients set and ask for, with the values that they have here: for most, setting one changes nothing."""
REPORTED = {
    "application_name": "application_name", "client_encoding": "client_encoding", "datestyle": "DateStyle",
    "default_transaction_read_only": "default_transaction_read_only", "in_hot_standby": "in_hot_standby",
    "integer_datetimes": "integer_datetimes", "intervalstyle": "IntervalStyle", "is_superuser": "is_superuser",
    "server_encoding": "server_encoding", "server_version": "server_version",
    "session_authorization": "session_authorization", "standard_conforming_strings": "standard_conforming_strings",
    "timezone": "TimeZone",
}  # fmt: skip
"""Settings that the server reports, as it spells them."""
KEPT = frozenset({"application_name", "extra_float_digits", "statement_timeout", "search_path", "client_min_messages"})
"""Settings whose new value is shown."""


_TIME = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|s|min|h|d|)\s*")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def options(text: str) -> list[tuple[str, str]]:
    """Return the settings in the startup parameter `options`: -c name=value or --name=value, a blank behind a
    backslash."""
    found = re.findall(r"(?:-c\s*|--)([\w.-]+)=((?:\\.|[^\s\\])*)", text)
    return [(name.lower().replace("-", "_"), re.sub(r"\\(.)", r"\1", value)) for name, value in found]


def seconds(name: str, value: str) -> float:
    """Return the time that a setting means, in seconds. Raises PgError.

    Source: Postgres' documentation, "Parameter Names and Values".
    """
    if (found := _TIME.fullmatch(value)) is None:
        raise PgError("22023", f'invalid value for parameter "{name}": "{value}"')
    return float(found[1]) * _SECONDS[found[2]]


def _setting(first: str, found: list[Token], words: list[str]) -> Statement:
    at = 1 + (len(words) > 1 and words[1] in ("SESSION", "LOCAL") and words[2:3] != ["AUTHORIZATION"])
    if words[at : at + 1] in (["CHARACTERISTICS"], ["TRANSACTION"]):
        if "WRITE" in words:
            raise PgError("25006", "a transaction here is read-only: streams change through NATS")
        return Statement("nothing", tag="SET")
    if words[at : at + 2] == ["TIME", "ZONE"]:
        name, values = "timezone", found[at + 2 :]
    elif words[at : at + 1] == ["NAMES"]:
        name, values = "client_encoding", found[at + 1 :]
    else:
        name, values = "".join(token.name for token in found[at : at + 1]), found[at + 2 :]
        if found[at + 1 : at + 2] and found[at + 1].text == ".":  # of an extension
            name, values = f"{name}.{found[at + 2].name if found[at + 2 :] else ''}", found[at + 4 :]
    kind: Kind = "reset" if first == "RESET" else "set"
    return Statement(kind, tag=first, name=name.lower(), value="".join(token.name for token in values))


def _copy(text: str, found: list[Token], words: list[str], place: int) -> Statement:
    """Read COPY (query) TO STDOUT, or COPY table (columns) TO STDOUT, with options."""
    at, depth = 0, 0
    for number, token in enumerate(found[1:], 1):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and token.word in ("TO", "FROM"):
            at = number
            break
    if words[at] != "TO" or words[at + 1 : at + 2] != ["STDOUT"]:
        raise PgError("42501", "COPY writes to the client alone here: COPY (query) TO STDOUT")
    source = text[found[1].start : found[at - 1].end]
    behind: int | None = None
    if found[1].text == "(":
        query, behind = text[found[1].end : found[at - 1].start], place + found[1].end
    else:
        table, paren, columns = source.partition("(")
        query = f"SELECT {columns.rstrip(' )') if paren else '*'} FROM {table}"
    options: dict[str, str] = {}
    rest = [token for token in found[at + 2 :] if token.text not in ("(", ")", ",", "=") and token.word != "WITH"]
    while rest:
        key = rest.pop(0).name.lower()
        if key in ("csv", "binary", "text"):
            options["format"] = key
        elif key in ("header", "force_quote") and not (rest and rest[0].word in ("TRUE", "FALSE", "ON", "OFF")):
            options[key] = "true"
            rest = rest[1:] if rest and rest[0].text == "*" else rest
        elif key in ("format", "delimiter", "null", "header", "encoding", "quote", "escape") and rest:
            rest = rest[1:] if rest[0].word == "AS" else rest
            options[key] = rest.pop(0).name
        else:
            raise PgError("0A000", f"COPY has no option {key} here")
    return Statement("copy", query, "COPY", options=options, place=behind)


def _cursor(text: str, found: list[Token], words: list[str]) -> Statement:
    """Read DECLARE c CURSOR FOR query, FETCH [FORWARD] [n | ALL] [FROM] c, and CLOSE c."""
    first = words[0]
    if first == "DECLARE":
        at = words.index("FOR") if "FOR" in words and "CURSOR" in words else 0
        if not at or ("SCROLL" in words[:at] and "NO" not in words[:at]) or len(found) <= at + 1:
            raise PgError("0A000", "a cursor here goes forward alone: DECLARE name CURSOR FOR query")
        return Statement("declare", text[found[at + 1].start :], "DECLARE CURSOR", found[1].name)
    if first == "CLOSE":
        return Statement("close", tag="CLOSE CURSOR", name="" if words[1:2] == ["ALL"] else found[-1].name)
    middle = [token for token in found[1:-1] if token.word not in ("FORWARD", "NEXT", "FROM", "IN")]
    every = len(middle) == 1 and middle[0].word == "ALL"
    if first == "MOVE" or len(middle) > 1 or (middle and not every and not middle[0].text.isdigit()):
        raise PgError("0A000", "a cursor here goes forward alone: FETCH FORWARD n FROM name")
    count = 0 if every else int(middle[0].text) if middle else 1
    return Statement("fetch", tag="FETCH", name=found[-1].name, count=count)


# ---------------------------------------------------------------------- queries


def parameters(text: str) -> int:
    """Return the number of parameters: that of the highest `$n`. Raises PgError."""
    highest = max((int(token.text[1:6]) for token in tokens(text) if token.kind == "parameter"), default=0)
    if highest > MAX_PARAMETERS:
        raise PgError("54000", f"a statement has at most {MAX_PARAMETERS} parameters")
    return highest


MAX_PARAMETERS = 32_767
"""Parameters of a statement, as in Postgres."""


class AskedQuery(msgspec.Struct, frozen=True):
    """A query as it is asked. `pieces`: of each piece the place here and in what the client sent, and whether its
    letters are the same; none for a query that the client did not write."""

    text: str
    pieces: tuple[tuple[int, int, bool], ...] = ()

    def place(self, offset: int) -> int | None:
        """Return the place in what the client sent for one in the text; in a replacement the beginning."""
        at = bisect_right(self.pieces, offset, key=itemgetter(0)) - 1
        if at < 0:
            return None
        here, there, is_same = self.pieces[at]
        return there + (offset - here if is_same else 0)


def substituted(text: str, value: Callable[[int], str], place: int | None = None) -> AskedQuery:
    """Return a query with another text for each parameter, and without the schema `public` before names.

    Args:
        value: returns the text for the parameter of a number.
        place: of the query in what the client sent; None: nowhere.
    """
    parts, pieces, at, size = list[str](), list[tuple[int, int, bool]](), 0, 0

    def add(until: int, replacement: str, behind: int) -> None:
        nonlocal at, size
        for part, start, is_same in ((text[at:until], at, True), (replacement, until, False)):
            pieces.append((size, start + (place or 0), is_same))
            parts.append(part)
            size += len(part)
        at = behind

    found = list(tokens(text))
    for number, token in enumerate(found):
        before = found[number - 1].text if number else ""
        if token.kind == "parameter":
            add(token.start, value(int(token.text[1:])), token.end)
        elif token.kind in ("word", "quoted") and token.name == "public" and before != ".":
            behind = found[number + 1 : number + 3]
            if len(behind) == 2 and behind[0].text == "." and behind[1].kind in ("word", "quoted"):
                add(token.start, " " * (behind[0].end - token.start), behind[0].end)
    add(len(text), "", len(text))
    return AskedQuery("".join(parts), () if place is None else tuple(pieces))
