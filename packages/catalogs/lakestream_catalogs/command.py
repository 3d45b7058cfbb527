"""`lakestream catalog`: the entries of a lake's tables in catalogs.

Belongs here: the commands and their output. The other modules do the work; the compactor does the same by itself.
lakestream finds the commands by the entry point in pyproject.toml, and has the help of the group in its own list
(lakestream/cli/app.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from lakestream.cli.lake_options import CatalogOption, LakeOption, default_lake
from lakestream.cli.results import visible
from lakestream.cli.terminal import JsonOption, complain, console, print_json
from lakestream.lake.errors import LakeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakestream.lake.catalogs.address import CatalogAddress
    from lakestream_catalogs.catalog import Catalog
    from lakestream_catalogs.plan import EntryPlace, SyncResult
    from lakestream_catalogs.tables import Tables

catalog = typer.Typer()

_STATES = {"create": "missing", "alter": "differs", "drop": "left over", "foreign": "of another program"}
"""States of entries before the changes that a sync would make."""
_DONE = {"create": "created", "alter": "altered", "drop": "dropped", "foreign": "of another program"}


@catalog.command()
def sync(lake: LakeOption = None, urls: CatalogOption = None, as_json: JsonOption = False) -> None:
    """Update the entries to match the tables once, then exit. Exit code 1: a catalog or an entry has failed."""
    from lakestream_catalogs.sync import SYNC_SECONDS
    from lakestream_catalogs.sync import sync as pass_over

    def work(connected: Catalog, address: CatalogAddress, found: Tables) -> SyncResult:
        return pass_over(connected, address, found, seconds=10 * SYNC_SECONDS)

    _visit(lake, urls, work, _DONE, as_json, only_changes=True)


@catalog.command("ls")
def list_(lake: LakeOption = None, urls: CatalogOption = None, as_json: JsonOption = False) -> None:
    """List the entries and their state, and change nothing. Exit code 1: a catalog has failed."""
    from lakestream_catalogs.plan import EntryPlace, SyncResult
    from lakestream_catalogs.sync import plans

    def work(connected: Catalog, address: CatalogAddress, found: Tables) -> SyncResult:
        decided = plans(connected, address, found)
        return SyncResult(
            str(address), tuple(EntryPlace(each.database, change) for each in decided for change in each.changes)
        )

    _visit(lake, urls, work, _STATES, as_json, only_changes=False)


def _visit(
    lake: str | None,
    urls: list[str] | None,
    work: Callable[[Catalog, CatalogAddress, Tables], SyncResult],
    words: dict[str, str],
    as_json: bool,
    only_changes: bool,
) -> None:
    """Do work on each catalog and print the results. Exits with 1 after an error, 2 without catalogs."""
    from lakestream.lake.catalogs.address import ICEBERG, BadCatalog, parse_all
    from lakestream_catalogs.opening import open_catalog
    from lakestream_catalogs.plan import SyncResult
    from lakestream_catalogs.tables import LakeTables

    try:
        addresses = parse_all(urls or ())
    except BadCatalog as error:
        complain(error)
        raise typer.Exit(2) from None
    if not addresses:
        complain("no catalog: name one with --catalog, or several in LAKESTREAM_CATALOGS")
        raise typer.Exit(2)
    try:
        iceberg = any(address.format == ICEBERG for address in addresses)
        found = LakeTables(str(lake or default_lake()), iceberg).read()
    except (LakeError, OSError) as error:
        complain(error)
        raise typer.Exit(1) from None
    results = []
    for address in addresses:
        try:
            with open_catalog(address) as connected:
                results.append(work(connected, address, found.of(address.format)))
        except (LakeError, ImportError) as error:
            results.append(SyncResult(str(address), complete=False, error=str(error)))
    errors = [*found.troubles.values(), *(each.reason for each in results if each.reason)]
    errors += [
        f"catalog {each.catalog}: not all is done; run it again"
        for each in results
        if not (each.complete or each.error)
    ]
    if as_json:
        print_json([_record(each, words) for each in results])
    else:
        _print(results, words, only_changes)
    for text in errors:
        complain(visible(text))
    if errors:
        raise typer.Exit(1)


def _record(result: SyncResult, words: dict[str, str]) -> dict[str, object]:
    entries = [
        {
            "database": each.database,
            "name": each.change.entry.name,
            "stream": each.change.table.stream if each.change.table is not None else None,
            "account": each.change.table.account if each.change.table is not None else None,
            "location": each.change.entry.location,
            "state": _state(each, words),
            "reason": each.error or each.change.reason,
        }
        for each in result.changes
    ]
    return {"catalog": result.catalog, "error": result.error, "entries": entries}


def _state(placed: EntryPlace, words: dict[str, str]) -> str:
    return "failed" if placed.error else words.get(placed.change.kind, placed.change.kind)


def _print(results: list[SyncResult], words: dict[str, str], only_changes: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    for result in results:
        if result.error:
            continue
        if only_changes:
            print(f"{result.catalog}: {result.entries} registered: {result.describe()}")
        table = Table(box=None, pad_edge=False, padding=(0, 2))
        for column in ("entry", "stream", "state", "location"):
            table.add_column(column)
        for each in result.changes:
            change = each.change
            if only_changes and change.kind == "registered":
                continue
            stream = change.table.stream if change.table is not None else ""
            state = _state(each, words) + (f": {change.reason}" if change.reason and not each.error else "")
            texts = (f"{each.database}.{change.entry.name}", stream, state, change.entry.location)
            table.add_row(*(Text(visible(text)) for text in texts))
        if table.row_count:
            if not only_changes:
                print(result.catalog)
            console().print(table)
