"""The pictures of the documentation, as SVG: `python -m tests.docs.pictures` draws them into docs/pictures.

Belongs here: boxes, arrows and labels on a grid, and the pictures made of them. Charts of measurements are in
tests/bench/draw.py, whose colours and fonts these have; they are readable on light and dark pages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from tests.bench.draw import COLOURS, TEXT, WIDTH
from tests.docs.blocks import ROOT

FOLDER = ROOT / "docs" / "pictures"
BLUE, ORANGE, GREEN, PURPLE = COLOURS[:4]


class Box(NamedTuple):
    """A box with a title and lines below it; `colour` is that of its border."""

    x: float
    y: float
    width: float
    title: str
    lines: tuple[str, ...] = ()
    colour: str = BLUE

    @property
    def height(self) -> float:
        """Return its height."""
        return 34 + 18 * len(self.lines)

    @property
    def middle(self) -> float:
        """Return the middle of its width."""
        return self.x + self.width / 2

    @property
    def right(self) -> float:
        """Return its right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Return its lower edge."""
        return self.y + self.height


class Picture:
    """A drawing that grows by boxes, arrows and texts.

    Args:
        title: for readers who do not see it, too.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []
        self._height = 0.0
        self.text(12, 24, title, size=16, bold=True)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 12,
        anchor: str = "start",
        bold: bool = False,
        colour: str = "",
    ) -> None:
        """Write a line."""
        weight = ' font-weight="600"' if bold else ""
        fill = f' fill="{colour}"' if colour else ""
        place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
        self._parts.append(f"<text {place}{weight}{fill}>{escape(text)}</text>")
        self._height = max(self._height, y + 12)

    def box(self, box: Box) -> Box:
        """Draw a box; return it."""
        self._parts.append(
            f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="6" '
            f'fill="{box.colour}" fill-opacity="0.08" stroke="{box.colour}" stroke-width="1.5"/>'
        )
        self.text(box.middle, box.y + 22, box.title, size=13, anchor="middle", bold=True)
        for number, line in enumerate(box.lines):
            self.text(box.middle, box.y + 42 + 18 * number, line, size=11, anchor="middle")
        self._height = max(self._height, box.bottom + 12)
        return box

    def arrow(self, *points: tuple[float, float], label: str = "", at: tuple[float, float] | None = None) -> None:
        """Draw an arrow along points, with a label at a place, by default above the middle of its first part."""
        way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(
            f'<polyline points="{way}" fill="none" stroke="{TEXT}" stroke-width="1.5" marker-end="url(#head)"/>'
        )
        if label:
            (x1, y1), (x2, y2) = points[:2]
            x, y = at or ((x1 + x2) / 2, (y1 + y2) / 2 - 6)
            self.text(x, y, label, size=11, anchor="middle")

    def line(self, x1: float, y1: float, x2: float, y2: float, *, colour: str = TEXT, width: float = 1.5) -> None:
        """Draw a line."""
        ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self._parts.append(f'<line {ends} stroke="{colour}" stroke-width="{width}"/>')

    def dot(self, x: float, y: float, colour: str) -> None:
        """Draw a dot."""
        self._parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>')

    def svg(self) -> str:
        """Return the picture."""
        body = "\n".join(self._parts)
        head = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{TEXT}"/></marker></defs>'
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height:.0f}" role="img" '
            f'aria-label="{escape(self._title)}" font-family="system-ui, sans-serif" fill="{TEXT}">\n'
            f"{head}\n{body}\n</svg>\n"
        )


def architecture() -> str:
    """Draw the processes and the files between them."""
    picture = Picture("Processes and files")
    clients = picture.box(Box(20, 60, 190, "NATS clients", ("publish, consume, KV, objects",), ORANGE))
    server = picture.box(Box(285, 60, 190, "server", ("lakestream serve", "no JVM"), BLUE))
    log = picture.box(Box(285, 180, 190, "log", ("<store>/jetstream/…", "fdatasync before each ack"), GREEN))
    staged = picture.box(Box(285, 300, 190, "staged segments", ("<lake>/segments/…",), GREEN))
    compactor = picture.box(Box(550, 300, 190, "compactor", ("lakestream compact", "Spark Structured Streaming"), BLUE))
    tables = picture.box(Box(550, 180, 190, "Delta tables", ("<lake>/streams/<STREAM>", "one for each stream"), GREEN))
    readers = picture.box(Box(550, 60, 190, "SQL and data frames", ("DuckDB, Spark, Polars, …",), ORANGE))
    y = clients.y + 27
    picture.arrow((clients.right, y), (server.x, y), label="publish")
    picture.arrow((server.x, y + 18), (clients.right, y + 18), label="ack", at=((clients.right + server.x) / 2, y + 32))
    picture.arrow((server.middle, server.bottom), (log.middle, log.y))
    picture.arrow((log.middle, log.bottom), (staged.middle, staged.y), label="sealed at 16 MiB or 10 s", at=(456, 277))
    picture.arrow((staged.right, staged.y + 26), (compactor.x, staged.y + 26), label="reads")
    picture.arrow((compactor.middle, compactor.y), (tables.middle, tables.bottom), label="commits", at=(675, 277))
    picture.arrow((tables.middle, tables.y), (readers.middle, readers.bottom))
    picture.arrow((tables.x, tables.y + 20), (512, tables.y + 20), (512, 105), (server.right, 105))
    picture.text(508, 152, "old messages", size=11, anchor="end")
    picture.arrow((server.right, 72), (readers.x, 72), label="newest")
    return picture.svg()


def message() -> str:
    """Draw the way of one message, from the publish to a row of the table, with the delays."""
    picture = Picture("How a message travels")
    steps: Sequence[tuple[str, tuple[str, ...], str, str]] = (
        ("publish", ("PUB orders.de", "with a reply subject"), ORANGE, "0 ms"),
        ("rules", ("duplicates, limits,", "expected sequence"), BLUE, ""),
        ("log", ("one write and fdatasync", "for all of this turn"), GREEN, ""),
        ("ack", ("stream and sequence", "now it survives a crash"), ORANGE, "about 1 ms"),
        ("consumers", ("from memory and log", "at once"), ORANGE, ""),
        ("sealed segment", ("immutable, staged", "in the lake"), GREEN, "10 s or 16 MiB"),
        ("commit", ("rows and position", "in one transaction"), BLUE, "some seconds later"),
        ("read from the table", ("the server removes", "the segment from its log"), BLUE, ""),
    )
    for number, (title, lines, colour, after) in enumerate(steps):
        column, row = number % 4, number // 4
        box = picture.box(Box(12 + column * 187, 56 + row * 130, 164, title, lines, colour))
        if after:
            picture.text(box.middle, box.bottom + 16, after, size=11, anchor="middle", bold=True, colour=colour)
        if column < 3:
            picture.arrow((box.right, box.y + 35), (box.right + 23, box.y + 35))
    picture.arrow((718, 126), (718, 164), (94, 164), (94, 186))
    return picture.svg()


def time_travel() -> str:
    """Draw a key's revisions over time, and what a read as of a moment returns."""
    picture = Picture("A bucket as of a time: multi_last with up_to_time")
    left, right = 110, 730
    rows = (
        ("db.host", ((0.05, "10.0.0.7"), (0.42, "10.0.0.8"), (0.8, "10.0.0.9")), BLUE),
        ("db.port", ((0.12, "5432"), (0.62, "deleted")), GREEN),
        ("log.level", ((0.3, "debug"), (0.7, "info")), PURPLE),
    )
    moment, y = 0.52, 0.0
    x = left + moment * (right - left)
    for number, (key, revisions, colour) in enumerate(rows):
        y = 78 + 62 * number
        picture.text(left - 12, y + 4, key, anchor="end", bold=True)
        picture.line(left, y, right, y, colour=colour, width=1)
        for at, value in revisions:
            picture.dot(left + at * (right - left), y, colour)
            picture.text(left + at * (right - left) + 8, y - 8, value, size=11)
    picture.line(x, 52, x, y + 34, colour=ORANGE, width=2)
    picture.text(x, 46, "up_to_time", anchor="middle", bold=True, colour=ORANGE)
    picture.text(x, y + 52, "db.host = 10.0.0.8 · db.port = 5432 · log.level = debug", anchor="middle", bold=True)
    picture.arrow((left, y + 74), (right, y + 74), label="time", at=(right - 14, y + 92))
    picture.text(left, y + 92, "revisions that the stream has removed since are read from the table", size=11)
    return picture.svg()


def typed_tables() -> str:
    """Draw how a payload becomes columns, and where one that does not fit is listed."""
    picture = Picture("From payloads to columns")
    publish = picture.box(Box(12, 60, 170, "publish", ('{"order_id": "o1",', ' "price": 9.5}'), ORANGE))
    check = picture.box(Box(222, 60, 150, "lakestream.validate", ("reject, tag or off",), BLUE))
    log = picture.box(Box(412, 60, 130, "log", ("the bytes as they", "were published"), GREEN))
    compactor = picture.box(Box(582, 60, 158, "compactor", ("decodes columns", "by schema version"), BLUE))
    schemas = picture.box(Box(222, 190, 150, "bucket SCHEMAS", ("orders@1, orders@2", "JSON, Avro, Protobuf"), PURPLE))
    table = picture.box(Box(412, 326, 328, "streams/ORDERS", ("seq, time, subject, headers, schema, data",), GREEN))
    picture.text(
        table.middle, table.bottom + 18, "order_id, price  +  coupon (since orders@2)", anchor="middle", bold=True
    )
    misfits = picture.box(Box(12, 326, 360, "streams/ORDERS_misfits", ("seq, schema, field, rule, reason",), GREEN))
    y = publish.y + 30
    picture.arrow((publish.right, y), (check.x, y))
    picture.arrow((check.right, y), (log.x, y))
    picture.arrow((log.right, y), (compactor.x, y))
    picture.arrow((schemas.middle, schemas.y), (schemas.middle, check.bottom))
    picture.arrow((schemas.right, schemas.y + 30), (630, schemas.y + 30), (630, compactor.bottom))
    picture.arrow((700, compactor.bottom), (700, table.y), label="rows", at=(722, 220))
    picture.arrow((660, compactor.bottom), (660, 304), (misfits.middle, 304), (misfits.middle, misfits.y))
    picture.text(400, 297, "what does not fit: also a row with NULL columns", size=11, anchor="middle")
    return picture.svg()


PICTURES: dict[str, Callable[[], str]] = {
    "architecture.svg": architecture,
    "message.svg": message,
    "time-travel.svg": time_travel,
    "typed-tables.svg": typed_tables,
}


def stale() -> list[str]:
    """Return the files that are not what this module draws."""
    return [
        name for name, draw in PICTURES.items() if not (FOLDER / name).exists() or (FOLDER / name).read_text() != draw()
    ]


def main() -> int:
    """Draw or check the pictures; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a picture is not current")
    if parser.parse_args().check:
        old = stale()
        print("\n".join(f"docs/pictures/{name} is not current: make docs" for name in old), end="\n" if old else "")
        return int(bool(old))
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw())
    return 0


if __name__ == "__main__":
    sys.exit(main())
