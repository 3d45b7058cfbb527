"""`lakestream doctor`: what is wrong with a machine or a configuration, and what to do.

Belongs here: the command, the order of the checks, and its output. The checks are in checks.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import msgspec
import typer

from lakestream.cli.link import exits
from lakestream.cli.server_options import CaOption
from lakestream.cli.terminal import JsonOption, console, print_json
from lakestream.config.errors import StartError
from lakestream.config.loading import load
from lakestream.config.options import Flags, Options
from lakestream.lake.errors import LakeError
from lakestream.lake.progress import waiting
from lakestream_commands import checks
from lakestream_commands.checks import CheckFinding
from lakestream_commands.monitor import DEFAULT_MONITOR, Monitor, MonitorFailed

DEFAULT_STORE = "data"
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    config: Annotated[str, typer.Option("--config", "-c", metavar="FILE", help="Configuration file to check.")] = "",
    store_dir: Annotated[
        str | None,
        typer.Option(
            "--store_dir",
            "-sd",
            metavar="DIR",
            help="Storage directory (default: that of the running server, or ./data).",
        ),
    ] = None,
    lake: Annotated[
        str | None, typer.Option("--lake", metavar="LAKE", help="The lake (default: <store_dir>/lake).")
    ] = None,
    monitor: Annotated[
        str | None,
        typer.Option(
            "--monitor",
            envvar="LAKESTREAM_MONITOR",
            metavar="URL",
            help=f"Monitoring port of a server to check (default: {DEFAULT_MONITOR}, if one answers).",
        ),
    ] = None,
    tls_ca: CaOption = "",
    as_json: JsonOption = False,
) -> None:
    """Check this machine and a configuration, and say what is wrong and what to do."""
    with exits("stopped"):
        if not config and store_dir is None and lake is None:
            store_dir, lake = _places(Monitor(monitor or DEFAULT_MONITOR, tls_ca))
        options, findings = _options(config, store_dir, lake)
        for name, check in _checks(options, monitor, tls_ca):
            with waiting(f"checking {name}"):
                findings += _guarded(name, check)
    failed = any(finding.level == "fail" for finding in findings)
    if as_json:
        print_json({"ok": not failed, "findings": [msgspec.to_builtins(finding) for finding in findings]})
    else:
        _show(findings)
    raise typer.Exit(1 if failed else 0)


def _places(monitor: Monitor) -> tuple[str | None, str | None]:
    """Return the storage directory and the lake of a server that runs on this machine; None without one."""
    try:
        page = monitor.page("varz").body
    except MonitorFailed:
        return None, None
    store = str(((page.get("jetstream") or {}).get("config") or {}).get("store_dir", ""))
    if not os.path.isdir(store):
        return None, None
    return os.path.dirname(store), (page.get("lake") or {}).get("url")


def _options(config: str, store_dir: str | None, lake: str | None) -> tuple[Options, list[CheckFinding]]:
    """Return the settings, those of an empty configuration if the file is invalid, and the findings about them."""
    if not config and store_dir is None:
        store_dir = DEFAULT_STORE
    flags = Flags(config=config, store_dir=store_dir, lake=lake, jetstream=True if store_dir or lake else None)
    try:
        options = load(flags)
    except StartError as error:
        text = str(error) or type(error).__name__
        wrong = CheckFinding(check="configuration", level="fail", text=text, remedy="correct these lines of the file")
        try:
            return load(msgspec.structs.replace(flags, config="", jetstream=True)), [wrong]
        except StartError:
            return load(Flags()), [wrong]
    if not config:
        return options, []
    lines = [*options.notices, *options.warnings]
    if lines:
        remedy = "correct these lines, or leave them out"
        return options, [CheckFinding(check="configuration", level="warn", text="\n".join(lines), remedy=remedy)]
    return options, [
        CheckFinding(check="configuration", level="ok", text=f"{config} is valid ({options.config_digest})")
    ]


def _checks(
    options: Options, monitor: str | None, tls_ca: str
) -> Sequence[tuple[str, Callable[[], Iterator[CheckFinding]]]]:
    url = monitor or DEFAULT_MONITOR
    for scheme, port in (("http", options.http_port), ("https", options.https_port)):
        if port > 0 and not monitor:
            url = f"{scheme}://127.0.0.1:{port}{options.http_base_path}"
            break
    return (
        ("python", checks.python),
        ("native", checks.compiled),
        ("extras", checks.extras),
        ("java", lambda: checks.java(options)),
        ("lake", lambda: checks.lake(options)),
        ("clock", checks.clock),
        ("fsync", lambda: checks.sync(options)),
        ("disk", lambda: checks.disk(options)),
        ("files", lambda: checks.files(options)),
        ("ports", lambda: checks.ports(options)),
        ("tls", lambda: checks.certificates(options)),
        ("server", lambda: checks.server(Monitor(url, tls_ca), required=monitor is not None)),
    )


def _guarded(name: str, check: Callable[[], Iterator[CheckFinding]]) -> list[CheckFinding]:
    """Return the findings of a check; a check that cannot be made is a finding, too."""
    try:
        return list(check())
    except (OSError, LakeError) as error:
        text = f"could not be checked: {error}"
        return [CheckFinding(check=name, level="warn", text=text, remedy="run the command as the server's user")]


def _show(findings: Sequence[CheckFinding]) -> None:
    from rich.table import Table
    from rich.text import Text

    out = console()
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in findings:
        table.add_row(Text(each.level, _COLOURS[each.level]), each.check, Text(each.text))
        if each.remedy:
            table.add_row("", "", Text(f"→ {each.remedy}", "bold"))
    out.print(table)
    count = {level: sum(each.level == level for each in findings) for level in ("ok", "warn", "fail")}
    out.print(f"\n{count['ok']} ok, {count['warn']} warnings, {count['fail']} failures")
