"""Requests of recipients, decoded and checked.

Belongs here: the body of a query, the parameters of other requests, times, and the capabilities header. Pure functions.

Source: Delta Sharing protocol, "Read Data from a Table", "Read Change Data Feed from a Table", "Timestamp Format",
"Delta Sharing Capabilities Header".
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream_sharing.errors import BadRequest

PARQUET, DELTA = "parquet", "delta"
CAPABILITIES = "delta-sharing-capabilities"
MAX_RESULTS = 500
"""Items of one page of a list without `maxResults`."""
MAX_INT = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Query(msgspec.Struct, frozen=True, rename="camel"):
    """Body of a query. Fields that are not known are ignored, as the protocol asks of newer clients."""

    predicate_hints: list[str] | None = None
    json_predicate_hints: str | None = None
    limit_hint: int | None = None
    version: int | None = None
    timestamp: str | None = None
    starting_version: int | None = None
    ending_version: int | None = None
    include_refresh_token: bool | None = None
    refresh_token: str | None = None
    page_token: str | None = None


class Window(msgspec.Struct, frozen=True):
    """Versions of a request for changes: each end is a version, a time (ms since the epoch), or open."""

    first_version: int | None = None
    first_ms: int | None = None
    last_version: int | None = None
    last_ms: int | None = None
    with_metadata: bool = False


class Capabilities(msgspec.Struct, frozen=True):
    """The client's capabilities: response formats, reader features (lower case), and whether it reads the action that
    ends a response."""

    formats: tuple[str, ...] = (PARQUET,)
    features: frozenset[str] = frozenset()
    end_stream: bool = False


_QUERY = msgspec.json.Decoder(Query)


def decode_query(body: bytes) -> Query:
    """Return the query in a request's body; an empty body is one without hints. Raises BadRequest."""
    if not body.strip():
        return Query()
    try:
        query = _QUERY.decode(body)
    except DECODE_ERRORS as error:
        raise BadRequest(f"the body is not a query: {error}") from None
    for name, value in (
        ("limitHint", query.limit_hint),
        ("version", query.version),
        ("startingVersion", query.starting_version),
        ("endingVersion", query.ending_version),
    ):
        if value is not None and not 0 <= value <= MAX_INT:
            raise BadRequest(f"{name} has to be 0 or more")
    points = {
        "version": query.version,
        "timestamp": query.timestamp,
        "startingVersion": query.starting_version,
        "refreshToken": query.refresh_token,
    }
    given = [name for name, value in points.items() if value is not None]
    if len(given) > 1:
        raise BadRequest(f"only one of {', '.join(given)} may be given")
    if query.ending_version is not None and query.starting_version is None:
        raise BadRequest("endingVersion needs startingVersion")
    if query.include_refresh_token and given not in ([], ["refreshToken"]):
        raise BadRequest(f"includeRefreshToken is for the newest version, not with {given[0]}")
    if query.page_token is not None:
        raise BadRequest("pageToken: answers to queries have one page")
    return query


def changes_window(parameters: Mapping[str, str]) -> Window:
    """Return the versions that a request for changes names. Raises BadRequest."""
    first, last = number(parameters, "startingVersion"), number(parameters, "endingVersion")
    first_ms, last_ms = time_of(parameters, "startingTimestamp"), time_of(parameters, "endingTimestamp")
    if (first is None) == (first_ms is None):
        raise BadRequest("one of startingVersion and startingTimestamp has to be given")
    if last is not None and last_ms is not None:
        raise BadRequest("only one of endingVersion and endingTimestamp may be given")
    if first is not None and last is not None and last < first:
        raise BadRequest(f"endingVersion {last} is before startingVersion {first}")
    with_metadata = parameters.get("includeHistoricalMetadata", "").lower()
    if with_metadata not in ("", "true", "false"):
        raise BadRequest("includeHistoricalMetadata is true or false")
    return Window(first, first_ms, last, last_ms, with_metadata == "true")


def number(parameters: Mapping[str, str], name: str) -> int | None:
    """Return a parameter that is a number of 0 or more; None without it. Raises BadRequest."""
    text = parameters.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= MAX_INT):
        raise BadRequest(f"{name} has to be a number, 0 or more")
    return int(text)


def time_of(parameters: Mapping[str, str], name: str) -> int | None:
    """Return a parameter that is a time, in ms since the epoch; None without it. Raises BadRequest."""
    text = parameters.get(name)
    return None if text is None else milliseconds(text, name)


def milliseconds(text: str, name: str) -> int:
    """Return a time of ISO 8601 in ms since the epoch, rounded down; UTC without a zone. Raises BadRequest."""
    try:
        found = datetime.fromisoformat(text)
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found
        return (found - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise BadRequest(f"{name} has to be a time such as 2026-05-01T12:00:00Z") from None


def capabilities(header: str) -> Capabilities:
    """Return the capabilities that a client declares; "" is a client of the parquet format. Raises BadRequest."""
    found: dict[str, list[str]] = {}
    for part in header.lower().split(";"):
        key, equals, values = part.partition("=")
        if equals:
            found[key.strip()] = [each.strip() for each in values.split(",") if each.strip()]
    formats = tuple(each for each in found.get("responseformat", [PARQUET]) if each in (PARQUET, DELTA))
    if not formats:
        raise BadRequest(f"responseformat: the formats are {PARQUET} and {DELTA}")
    return Capabilities(
        formats, frozenset(found.get("readerfeatures", ())), found.get("includeendstreamaction") == ["true"]
    )
