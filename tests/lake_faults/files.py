"""Files of a lake that are deleted, damaged or older than they were, and come back.

Belongs here: the cases, and what harms the files. Publishing goes on in each, no reader gets other messages than were
published, `status` names what is missing, and everything resumes without a restart once it is back. What other files
make up for (the checkpoints of a table's log, whose commits are there) is not noticed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lake_faults.cases import Broken, Case, Site, Traffic, reads_truly

HISTORY = 150
"""Messages that have left the log when files are harmed."""
LATER = 60
"""Messages that follow them in the newer copy of a lake."""
CHECKPOINT_COMMITS = 3
"""Commits between two checkpoints of a table, in cases about checkpoints."""
BACK = "no message is passed over, doubled or other; status names it; all resumes once it is back, without a restart"
OLDER = "until then nothing leaves the log"
"""Words of `status` about a table that is missing, or older than what has left the log."""
UNNOTICED = "nothing is noticed, by running programs or by restarted ones"
TOLD = "/healthz of the stream, the strict one of the server and a metric say so, until the files are back"
_CHECKPOINT = "*.checkpoint*.parquet"


def _log(table: Path) -> Path:
    return table / "_delta_log"


def _data(table: Path) -> list[Path]:
    """Return the data files of a table, the first one of the stream's first."""
    files = [path for path in table.rglob("*.parquet") if _log(table) not in path.parents]
    return sorted(files, key=lambda path: path.stat().st_mtime_ns)


def _cut(path: Path) -> None:
    """Cut a file in half."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _zeroed(path: Path) -> None:
    """Let a file be full of zeros, as after a power loss."""
    path.write_bytes(bytes(path.stat().st_size))


def brought_back(harm: Callable[[Path], object], names: str, read_first: bool = False) -> Callable[[Site], None]:
    """Return a case in which a table's files are harmed and then restored from a copy.

    Args:
        harm: harms the table at a path.
        names: text of `status`.
        read_first: a read of history finds the harm.
    """

    def run(site: Site) -> None:
        traffic = site.traffic()
        site.in_table(traffic, HISTORY)
        site.stop_compactor()  # the copy is of one moment
        table = Path(site.table(traffic))
        copy = table.with_name(f"{traffic.name}-copy")
        shutil.copytree(table, copy)
        try:
            harm(table)
            if read_first:
                site.direct(traffic, 1)
            _named(site, traffic, names)
            site.goes_on(traffic)
            reads_truly(site, traffic, set())
        finally:
            shutil.rmtree(table, ignore_errors=True)
            copy.rename(table)
            site.start_compactor()
        site.follows(traffic)
        reads_truly(site, traffic, set())

    return run


def destroyed(site: Site) -> None:
    """All data files of a table are deleted: the health of its stream, the strict one of the server, and the metric say
    so, until they are back."""
    healthy, other = site.traffic(), site.traffic()
    site.in_table(other, site.history)
    site.in_table(healthy, 1)
    site.stop_compactor()
    aside = site.directory / "data files"
    aside.mkdir()
    files = _data(Path(site.table(other)))
    for path in files:
        path.rename(aside / path.name)
    if site.direct(other, 1).data == other.acked[1]:
        raise Broken("a message is read from a file that is deleted")
    pages = {f"healthz?account=$G&stream={other.name}", "healthz?strict=true", "healthz?strict=true&account=$G"}
    fine = {"healthz", f"healthz?account=$G&stream={healthy.name}"}

    def told() -> bool:
        found = [site.page(name) for name in pages]
        return all(status == 503 and other.name in text and "is missing" in text for status, text in found)

    site.until(told, "/healthz of the stream and of the server names the damage", 60)
    if bad := [name for name in fine if site.page(name)[0] != 200]:
        raise Broken(f"{bad} are not healthy")
    site.until(lambda: "\nlakestream_lake_tables_damaged 1.0\n" in site.page("metrics")[1], "the metric counts it", 60)
    for path in files:
        (aside / path.name).rename(path)
    site.until(lambda: all(site.page(name)[0] == 200 for name in pages | fine), "all is healthy again")
    if "\nlakestream_lake_tables_damaged 0.0\n" not in site.page("metrics")[1]:
        raise Broken("the metric still counts a damaged table")
    site.start_compactor()
    site.follows(other)


def _named(site: Site, traffic: Traffic, names: str) -> None:
    site.until(lambda: f"table of {traffic.name}: " in site.warnings(), "status names it", 60)
    if names not in site.warnings():
        raise Broken(f"status does not say {names!r}: {site.warnings()}")


def _older_lake(site: Site) -> None:
    """An older copy of the whole lake is in its place, and then the newer one again."""
    traffic = site.traffic()
    site.in_table(traffic, HISTORY)
    site.stop_compactor()
    older, newer = site.place.with_name("older"), site.place.with_name("newer")
    shutil.copytree(site.place, older)
    site.start_compactor()
    site.in_table(traffic, len(traffic.acked) + LATER)
    site.stop_compactor()
    site.place.rename(newer)
    older.rename(site.place)
    try:
        _named(site, traffic, OLDER)
        site.goes_on(traffic)
        reads_truly(site, traffic, set())
    finally:
        shutil.rmtree(site.place)
        newer.rename(site.place)
        site.start_compactor()
    site.follows(traffic)
    reads_truly(site, traffic, set())


def checkpoint(harm: Callable[[Path], object]) -> Callable[[Site], None]:
    """Return a case in which files about checkpoints are harmed, and server and compactor start again."""

    def run(site: Site) -> None:
        interval = {"lakestream.properties.delta.checkpointInterval": str(CHECKPOINT_COMMITS)}
        traffic = site.traffic(metadata=interval)
        log = _log(Path(site.table(traffic)))
        site.in_table(traffic, HISTORY)
        site.until((log / "_last_checkpoint").exists, "the table has a checkpoint")
        site.stop_compactor()
        harm(log)
        site.goes_on(traffic)
        site.restart()
        site.start_compactor()
        site.goes_on(traffic)
        site.follows(traffic)
        reads_truly(site, traffic, set())

    return run


def _each_checkpoint(harm: Callable[[Path], object]) -> Callable[[Path], None]:
    def run(log: Path) -> None:
        for path in log.glob(_CHECKPOINT):
            harm(path)

    return run


def _newest_commits(table: Path) -> None:
    for path in sorted(_log(table).glob("*.json"))[-3:]:
        path.unlink()


def _hint(harm: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda log: harm(log / "_last_checkpoint")


_BROUGHT_BACK: dict[str, tuple[str, Callable[[Path], object], str, bool]] = {
    "table-deleted": ("directory of a table deleted", shutil.rmtree, OLDER, False),
    "log-deleted": ("`_delta_log` deleted", lambda table: shutil.rmtree(_log(table)), OLDER, False),
    "commits-deleted": ("newest three commits deleted", _newest_commits, OLDER, False),
    "data-deleted": ("first data file deleted", lambda table: _data(table)[0].unlink(), "it is missing", True),
    "data-cut": ("first data file cut in half", lambda table: _cut(_data(table)[0]), "bytes instead of", True),
}
_CHECKPOINTS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "hint-deleted": ("`_last_checkpoint` deleted", _hint(lambda path: path.unlink())),
    "hint-cut": ("`_last_checkpoint` cut in half", _hint(_cut)),
    "checkpoint-deleted": ("checkpoints deleted, `_last_checkpoint` names one", _each_checkpoint(Path.unlink)),
    "checkpoint-cut": ("checkpoints cut in half", _each_checkpoint(_cut)),
    "checkpoint-zeros": ("checkpoints full of zeros", _each_checkpoint(_zeroed)),
}


def _case(name: str, fault: str, promise: str, run: Callable[[Site], None], **more: Any) -> Case:
    return Case(name, "files", fault, promise, run, **more)


CASES = (
    _case("data-gone", "all data files of a table deleted, and back", TOLD, destroyed, own=True, compactor="small"),
    *(
        _case(name, fault, BACK, brought_back(harm, names, read), compactor="small")
        for name, (fault, harm, names, read) in _BROUGHT_BACK.items()
    ),
    _case(
        "older-lake", "older copy of the whole lake, then the newer one", BACK, _older_lake, own=True, compactor="small"
    ),
    *(_case(name, fault, UNNOTICED, checkpoint(harm)) for name, (fault, harm) in _CHECKPOINTS.items()),
)
