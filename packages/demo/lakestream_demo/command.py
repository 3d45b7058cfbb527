"""`lakestream demo`: a whole round with real data, checked.

Belongs here: the steps in the order in which they are shown, and the result. Data and questions are in flights.py.
Exit code 0 only when every answer equals the one computed from the data set.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from lakestream.cli.link import INTERRUPTED, TransferFailed, connect_once
from lakestream.cli.server_options import Server, with_server
from lakestream.cli.terminal import JsonOption, complain, console, print_json
from lakestream.extras import ExtraMissing
from lakestream.lake.errors import LakeError
from lakestream.lake.flush import plain_url
from lakestream.lake.progress import progress
from lakestream.lake.storage import paths
from lakestream.lake.table.at import latest_progress
from lakestream_demo import flights
from lakestream_spark import jars

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext
    from rich.console import Console

    from lakestream_sql.session import Session

DEFAULT_DIRECTORY = Path("data", "demo")
MAX_PENDING = 4000
"""Publishes with outstanding acks."""

READY_S = 20.0
"""Time that the demo's own server may take to start."""

STALLED_S = 180.0
"""Time without progress of the compactor; its first start may have to fetch the Delta JARs."""

_MARKER = ".lakestream-demo"
_HISTORY = 5
_KEY = "JFK"

app = typer.Typer(add_completion=False)


class DemoFailed(Exception):
    """Raised when a step fails; the text says which and what to look at."""


@app.command()
@with_server
def demo(
    server: Server,
    url: Annotated[str, typer.Option("--url", hidden=True, help="The same as --server.")] = "",
    lake: Annotated[
        str | None, typer.Option("--lake", help="Use the running server --server, whose lake this is; else start one.")
    ] = None,
    directory: Annotated[Path, typer.Option("--dir", help="Data directory of the demo's own server.")] = (
        DEFAULT_DIRECTORY
    ),
    limit: Annotated[
        int | None, typer.Option("--flights", min=1, help="Number of flights to publish (default: all).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Publish 336,776 flights, ask the lake three questions, and check the answers against the data set."""
    out = console(stderr=as_json)
    try:
        data = flights.load(limit)
        with contextlib.ExitStack() as stack:
            if lake is None:
                if url or (server.named and not os.environ.get("NATS_URL")):
                    raise DemoFailed("a running server needs --lake as well: the directory or URL of its lake")
                url, lake = stack.enter_context(_own_server(directory, out))
                server = Server(url)
            elif url:
                server = msgspec.structs.replace(server, url=url)
            outcome = asyncio.run(_run(server, lake, data, out))
    except (DemoFailed, ExtraMissing, LakeError, TransferFailed) as error:
        complain(error)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print("stopped; the demo begins anew next time", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(outcome)
    raise typer.Exit(0 if outcome.passed else 1)


# ---------------------------------------------------------------------------- the server


@contextlib.contextmanager
def _own_server(directory: Path, console: Console) -> Iterator[tuple[str, str]]:
    """Start a server with its compactor over a new directory, on a free port; yield (url, lake)."""
    jars.find_java()
    log = directory / "server.log"
    command = [sys.executable, "-m", "lakestream.cli.main", "up", "-a", "127.0.0.1", "-p", "-1"]
    command += ["-sd", str(directory), "--ports_file_dir", str(directory)]
    try:
        _fresh(directory)
        output = log.open("wb")
    except OSError as error:
        raise DemoFailed(
            f"cannot write to {error.filename}: {error.strerror}; choose another place with --dir"
        ) from None
    with output:
        # In a session of its own: Ctrl-C in a terminal ends the demo, which then stops the server.
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        url = _wait_for_ports(server, directory, log)
        console.print(f"server     [bold]{url}[/], log in {log}")
        yield url, str(directory / "lake")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
        console.print(
            f"The lake stays for your own questions: [bold]lakestream sql --lake {directory / 'lake'}[/]",
            soft_wrap=True,
        )


def _fresh(directory: Path) -> None:
    """Empty the directory, if an earlier demo made it."""
    if directory.exists() and any(directory.iterdir()):
        if not (directory / _MARKER).exists():
            raise DemoFailed(f"{directory} is not empty, and no earlier demo made it; choose another one with --dir")
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _MARKER).touch()


def _wait_for_ports(server: subprocess.Popen[bytes], directory: Path, log: Path) -> str:
    """Wait for the ports file; return the server's URL."""
    file = directory / f"nats-server_{server.pid}.ports"
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(FileNotFoundError, ValueError):  # not there yet, or being written
            if urls := json.loads(file.read_bytes()).get("nats"):
                return str(urls[0])
        time.sleep(0.02)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
    raise DemoFailed(f"the demo's server did not start; the end of {log}:\n{tail}")


# ---------------------------------------------------------------------------- the steps


class DemoOutcome(msgspec.Struct):
    """Result of a demo: every answer was right, the number of messages, and seconds of its parts."""

    passed: bool
    messages: int
    publish_seconds: float
    compaction_seconds: float
    answers: dict[str, bool]


async def _run(server: Server, lake: str, data: flights.DataSet, console: Console) -> DemoOutcome:
    async with _connected(server) as client:
        who = json.loads((await client.request("$SYS.REQ.USER.INFO", b"", timeout=5)).data)
        account = str(who["data"]["account"])
        js = client.jetstream(publish_async_max_pending=MAX_PENDING)
        published_s = await _publish_flights(js, data, console)
        passed = await _airports(client, js, data, console)
        compacted_s = await _wait_for_tables(js, lake, account, console)
    from lakestream_sql.session import Session  # loads DuckDB

    with Session(lake, account=None if account == paths.DEFAULT_ACCOUNT else account) as session:
        answers = {question.title: _compare(session, question, data, console) for question in flights.QUESTIONS}
    passed = passed and all(answers.values())
    console.print("\n[bold green]every answer is equal[/]" if passed else "\n[bold red]some answers differ[/]")
    return DemoOutcome(passed, len(data.flights), round(published_s, 3), round(compacted_s, 3), answers)


@contextlib.asynccontextmanager
async def _connected(server: Server) -> AsyncIterator[Client]:
    from nats.errors import Error
    from nats.js.errors import APIError

    client = await connect_once(server, "lakestream demo")
    try:
        yield client
    except APIError as error:
        raise DemoFailed(f"the server refused: {error.description}") from error
    except Error as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from error  # nats-py turns a cancellation into an error of its own
        raise DemoFailed(f"the server at {plain_url(server.url)} refused: {error}") from error
    finally:
        await client.close()


async def _publish_flights(js: JetStreamContext, data: flights.DataSet, console: Console) -> float:
    """Publish every flight, with thousands of publishes in flight, check every ack, and return the seconds."""
    from nats.js.errors import BadRequestError

    try:
        await js.add_stream(name=flights.STREAM, subjects=[f"{flights.STREAM}.>"], allow_direct=True)
    except BadRequestError as error:
        raise DemoFailed(f"cannot create stream {flights.STREAM}: {error.description}") from None
    if (await js.stream_info(flights.STREAM)).state.messages:
        raise DemoFailed(f"stream {flights.STREAM} already holds messages; delete it first, or leave out --lake")
    total = len(data.flights)
    acked: list[int] = []
    failures: list[BaseException] = []

    def settled(ack: asyncio.Future[Any]) -> None:
        if (error := ack.exception()) is not None:
            failures.append(error)
        else:
            acked.append(ack.result().seq)

    began, shown = time.perf_counter(), 0
    with progress("publish", total) as advance:
        for number, (subject, payload) in enumerate(flights.flight_messages(data), 1):
            (await js.publish_async(subject, payload)).add_done_callback(settled)
            if number % 1000 == 0:
                advance(len(acked) - shown)
                shown = len(acked)
                if failures:
                    break
        await js.publish_async_completed()
        await asyncio.sleep(0)  # the callbacks of the last acks run in the next turn
    seconds = time.perf_counter() - began
    if failures:
        raise DemoFailed(f"{len(failures)} publishes failed, the first with: {failures[0]}")
    if sorted(acked) != list(range(1, total + 1)):
        raise DemoFailed(f"{total} publishes were acked with sequences other than 1 to {total}")
    console.print(f"publish    {total:,} flights acked in {seconds:.1f} s ({total / seconds:,.0f}/s)")
    return seconds


async def _airports(client: Client, js: JetStreamContext, data: flights.DataSet, console: Console) -> bool:
    """Put the airports into a KV bucket; change one, and read it now and as it was."""
    from nats.js.api import KeyValueConfig

    bucket = await js.create_key_value(KeyValueConfig(bucket=flights.BUCKET, history=_HISTORY, direct=True))
    entries = list(flights.airport_entries(data))
    for start in range(0, len(entries), 256):
        await asyncio.gather(*(bucket.put(key, value) for key, value in entries[start : start + 256]))
    stream, subject = f"KV_{flights.BUCKET}", f"$KV.{flights.BUCKET}.{_KEY}"
    before = dict(entries)[_KEY]
    [(stored, _)] = await last_for(client, stream, [subject])
    after = json.dumps({**json.loads(before), "name": "Idlewild"}).encode()
    await asyncio.sleep(0.01)
    await bucket.put(_KEY, after)
    now = await bucket.get(_KEY)
    [(changed, _)] = await last_for(client, stream, [subject])
    # By the server's clock, which need not be ours.
    between = (stored + (changed - stored) / 2).isoformat()
    [(_, then)] = await last_for(client, stream, [subject], up_to=between)
    passed = now.value == after and then == before
    mark = "[green]✓[/]" if passed else "[red]✗ differs from what was put[/]"
    console.print(f"airports   {len(entries)} keys in bucket {flights.BUCKET}; {_KEY} was changed, and reads")
    console.print(f"           now: {_name(now.value)}")
    console.print(f"           as of {between}: {_name(then)}  {mark}", soft_wrap=True)
    return passed


def _name(airport: bytes | None) -> str:
    return str(json.loads(airport or b"{}").get("name"))


async def last_for(
    client: Client, stream: str, subjects: list[str], up_to: str | None = None
) -> list[tuple[datetime, bytes]]:
    """Return the last message of each subject by direct get: (time stored, data).

    Args:
        client: a connection.
        stream: the stream, with allow_direct.
        subjects: filters.
        up_to: RFC 3339: only messages stored before it.

    Source: ADR-31, multi_last and up_to_time.
    """
    request: dict[str, Any] = {"multi_last": subjects}
    if up_to is not None:
        request["up_to_time"] = up_to
    inbox = client.new_inbox()
    replies = await client.subscribe(inbox)
    found: list[tuple[datetime, bytes]] = []
    try:
        await client.publish(f"$JS.API.DIRECT.GET.{stream}", json.dumps(request).encode(), reply=inbox)
        while True:
            message = await replies.next_msg(timeout=5)
            headers = message.headers or {}
            if (status := headers.get("Status")) is not None:
                if status != "204":
                    raise DemoFailed(f"direct get from {stream}: {status} {headers.get('Description')}")
                return found
            found.append((datetime.fromisoformat(headers["Nats-Time-Stamp"]), message.data))
    finally:
        await replies.unsubscribe()


async def _wait_for_tables(js: JetStreamContext, lake: str, account: str, console: Console) -> float:
    """Wait until the tables hold all messages of the streams; return the seconds."""
    began = moved = time.monotonic()
    streams = (flights.STREAM, f"KV_{flights.BUCKET}")
    wanted = {stream: (await js.stream_info(stream)).state.last_seq for stream in streams}
    seen = dict.fromkeys(streams, 0)
    with progress("compact", sum(wanted.values())) as advance:
        for stream, last in wanted.items():
            while (reached := min(_reached(lake, stream, account), last)) < last:
                if reached != seen[stream]:
                    advance(reached - seen[stream])
                    seen[stream], moved = reached, time.monotonic()
                if time.monotonic() - moved > STALLED_S:
                    raise DemoFailed(
                        f"the table of {stream} holds {reached:,} of {last:,} messages, and nothing has moved for "
                        f"{STALLED_S:.0f} s; is a compactor running on this lake? The server's log says why not"
                    )
                await asyncio.sleep(0.2)
            advance(last - seen[stream])
    seconds = time.monotonic() - began
    console.print(f"compactor  both tables are complete, {seconds:.1f} s after the last publish")
    return seconds


def _reached(lake: str, stream: str, account: str) -> int:
    progress = latest_progress(paths.table(lake, stream, account))
    return progress.last_seq if progress is not None else 0


# ---------------------------------------------------------------------------- the answers


def _compare(session: Session, question: flights.Question, data: flights.DataSet, console: Console) -> bool:
    """Ask the lake and pandas, and show both."""
    from rich import box
    from rich.syntax import Syntax
    from rich.table import Table

    began = time.perf_counter()
    answer = session.query(question.sql).fetchall()
    took = time.perf_counter() - began
    expected = question.expected(data)
    console.print(f"\n[bold]{question.title}[/]")
    console.print(Syntax(question.sql, "sql", background_color="default", word_wrap=True))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in question.columns[: question.keys]:
        table.add_column(column)
    for column in question.columns[question.keys :]:
        table.add_column(f"{column}\nSQL", justify="right")
        table.add_column("\npandas", justify="right", style="dim")
    table.add_column("")
    for number in range(max(len(answer), len(expected))):
        ours = answer[number] if number < len(answer) else (None,) * len(question.columns)
        theirs = expected[number] if number < len(expected) else (None,) * len(question.columns)
        pairs = [
            _show(value) for pair in zip(ours[question.keys :], theirs[question.keys :], strict=True) for value in pair
        ]
        equal = flights.same_rows([ours], [theirs])
        table.add_row(*map(_show, ours[: question.keys]), *pairs, "[green]=[/]" if equal else f"[red]≠ {theirs}[/]")
    console.print(table)
    equal = flights.same_rows(answer, expected)
    verdict = f"[green]✓ {len(answer)} rows, equal[/]" if equal else "[red]✗ the answers differ[/]"
    console.print(f"{verdict}  (SQL took {took * 1000:.0f} ms)")
    return equal


def _show(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
