"""`lakestream verify`: everything that is wrong with the files of stores, or of running servers, and their lake.

Belongs here: the command and its output. The checks are in stores.py, requests to a server in client.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import typer

from lakestream.cli.link import INTERRUPTED, TransferFailed
from lakestream.cli.server_options import Server, with_server
from lakestream.cli.terminal import JsonOption, complain, console, counted, print_json, size
from lakestream.lake.errors import LakeError
from lakestream.lake.progress import Advance, progress
from lakestream.lake.storage import paths
from lakestream.log.format.errors import LogError
from lakestream_verify.audit_check import AuditResult, verify_audit
from lakestream_verify.client import Verified, is_server, verify_running
from lakestream_verify.log.findings import Finding, Repair
from lakestream_verify.stores import NoStore, StoreCheck, lake_beside, root_of

CANNOT_RUN = 2

TargetsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="DIR|URL…",
        help="Storage directory (store_dir) of a stopped server; several, to compare the replicas in them. "
        "Or the URL of a running server, and names of streams.",
    ),
]
StreamOption = Annotated[
    list[str] | None,
    typer.Option("--stream", metavar="NAME", help="Only this stream, or ACCOUNT/NAME. May be repeated."),
]
LakeOption = Annotated[
    str, typer.Option("--lake", metavar="LAKE", help="The lake (default: DIR/lake, if it is there).")
]
NoLakeOption = Annotated[bool, typer.Option("--no-lake", help="Do not compare with the lake.")]

REMEDIES = {
    Repair.NONE: "restore this file from a backup",
    Repair.START: "the next start of the server repairs it",
    Repair.REPAIR: "lakestream repair",
    Repair.REPLICAS: "start the node: the other replicas send what is damaged",
    Repair.COMPACTOR: "run server and compactor",
    Repair.REFILL: "lakestream repair of the running cluster: the other replicas send this one everything",
    Repair.CHECKPOINT: "the running server has written another one",
}


@with_server
def verify(
    targets: TargetsArgument,
    server: Server,
    stream: StreamOption = None,
    lake: LakeOption = "",
    no_lake: NoLakeOption = False,
    audit: Annotated[bool, typer.Option("--audit", help="Verify the account's audit trail, at a URL.")] = False,
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="KEY", help="With --audit: a server that may have signed it.")
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option("--expect", metavar="DIGEST", help="With --audit: an entry that must be there."),
    ] = None,
    rows: Annotated[bool, typer.Option("--rows", help="Name each message or row that differs.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Verify stores, or a running server, and the lake. Nothing is changed. Exit code 1: something is damaged."""
    with cannot_run():
        if is_server(targets[0]):
            asked = Server(targets[0], server.login)
            if audit:
                raise typer.Exit(_show_audit(verify_audit(asked, key or (), expect or ()), as_json))
            names = [*targets[1:], *(stream or [])]
            raise typer.Exit(show_running(verify_running(asked, names, lake=not no_lake, rows=rows), as_json))
        checks: dict[str, StoreCheck] = {}
        with contextlib.ExitStack() as closing:
            for each in targets:
                root = root_of(each)
                check = StoreCheck(root, chosen(stream or []), place_of(lake, no_lake, root), rows)
                checks[each] = closing.enter_context(contextlib.closing(check))
            total = sum(each.total() for each in checks.values())
            with progress("verifying", total, in_bytes=True) as advance:
                found = list(_findings(checks, advance, rows))
    damage = [each for each in found if not each.harmless]
    streams, size_ = (sum(getattr(each, name) for each in checks.values()) for name in ("streams", "bytes"))
    if as_json:
        print_json(summary(found, streams, size_))
    else:
        show(found)
        console().print(
            f"{counted(streams, 'stream')}, {size(size_)} verified: "
            f"{len(damage)} damaged, {counted(len(found) - len(damage), 'note')}"
        )
    raise typer.Exit(1 if damage else 0)


def _findings(checks: Mapping[str, StoreCheck], advance: Advance, rows: bool) -> Iterator[Finding]:
    """Yield what is wrong with each store, and with replicas that several of them have."""
    for label, check in checks.items():
        node = label if len(checks) > 1 else ""
        for finding in check.findings(advance):
            yield msgspec.structs.replace(finding, node=node)
    if len(checks) > 1:
        from lakestream_verify.copies import compare_stores

        yield from compare_stores(checks, lambda count: None, rows)


def _show_audit(found: AuditResult, as_json: bool) -> int:
    """Print the result for an audit trail; return the exit code."""
    if as_json:
        print_json({"ok": found.ok, **msgspec.to_builtins(found)})
        return int(not found.ok)
    for each in found.wrong:
        complain(each)
    for chain, digest in found.ends.items():
        console().print(f"chain {chain} ends with {digest}", soft_wrap=True, markup=False)
    by = ", ".join(found.keys) or "nobody"
    console().print(f"{counted(found.entries, 'audit message')} verified: {len(found.wrong)} wrong; signed by {by}")
    return int(not found.ok)


def show_running(results: Sequence[Verified], as_json: bool) -> int:
    """Print the results of a running server; return the exit code."""
    found = [finding for each in results for finding in each.findings]
    unknown = [each for each in results if each.error or not each.complete]
    damage = sum(not each.harmless for each in found) + sum(each.more for each in results)
    if as_json:
        ok, complete = not damage, not unknown
        print_json({"ok": ok, "complete": complete, "streams": [msgspec.to_builtins(each) for each in results]})
    else:
        show(found)
        for each in results:
            _show_result(each)
        console().print(
            f"{counted(len(results), 'stream')}, {size(sum(each.bytes for each in results))} verified: "
            f"{damage} damaged, {counted(len(found) - damage if damage <= len(found) else 0, 'note')}"
        )
    return 1 if damage else CANNOT_RUN if unknown else 0


def _show_result(result: Verified) -> None:
    if result.error:
        complain(f"stream {result.stream} is not verified: {result.error}")
    for node in result.nodes:
        if node["error"]:
            complain(f"stream {result.stream}: the replica of {node['node']} is not verified: {node['error']}")
    if result.more:
        complain(f"stream {result.stream}: {counted(result.more, 'more finding')}, which are not shown")
    for each in result.repairs:
        text = each.get("done") or f"not repaired: {each.get('refused')}"
        console().print(f"stream {result.stream}: {each['node']}: {text}", soft_wrap=True, markup=False)


def summary(found: Sequence[Finding], streams: int, size: int) -> dict[str, Any]:
    """Return the result for scripts."""
    return {
        "ok": all(each.harmless for each in found),
        "streams": streams,
        "bytes": size,
        "findings": [msgspec.to_builtins(each) for each in found],
    }


@contextlib.contextmanager
def cannot_run() -> Iterator[None]:
    """Context that turns the errors of an unusable store into a line and exit code 2; code 130 after Ctrl-C."""
    try:
        yield
    except (NoStore, LogError, LakeError, TransferFailed, OSError) as error:
        complain(error)
        raise typer.Exit(CANNOT_RUN) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def place_of(lake: str, no_lake: bool, root: str) -> str:
    """Return the root of the lake to compare a store with, "" for none."""
    if no_lake:
        return ""
    return paths.root(lake) if lake else lake_beside(root)


def chosen(names: Sequence[str]) -> Callable[[str, str], bool]:
    """Return the predicate over (account, stream) for the streams that were named, or for all if none was."""
    wanted = frozenset(names)
    return lambda account, name: not wanted or bool(wanted & {name, f"{account}/{name}"})


def show(found: Sequence[Finding]) -> None:
    """Print findings, each with what to do about it."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in found:
        level = Text("note", "yellow") if each.harmless else Text("damaged", "bold red")
        stream = f"{each.account}/{each.stream}" if each.stream else ""
        place = f"{each.node}: " * bool(each.node) + f"{each.file}:{each.offset}: " * bool(each.file)
        table.add_row(level, each.kind, Text(stream), Text(f"{place}{each.what}"))
        if not each.harmless or each.repair is not Repair.NONE:
            table.add_row("", "", "", Text(f"→ {REMEDIES[each.repair]}", "bold"))
    if found:
        console().print(table)
