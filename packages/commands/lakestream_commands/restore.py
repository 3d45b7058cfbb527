"""`lakestream restore`: restore a stream from the lake; `lakestream schema restore`: the schemas of an account.

Belongs here: the commands' options and exit codes (0 done, 1 failed, 130 after Ctrl-C), and sending messages to a
server as a backup, in the flow of `$JS.API.STREAM.RESTORE`. Messages of the past are found in
packages/client/lakestream_client/lake/past.py; the new stream and its archive are in account/backup/past_stream.py.
"""

from __future__ import annotations

import concurrent.futures
import json
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakestream.account.backup.past_stream import CHUNK_BYTES, chunks, empty_state, packed, restored_config
from lakestream.account.schemas.bucket import STREAM, SUBJECTS, stream_config
from lakestream.cli.lake_options import LakeOption, default_lake
from lakestream.cli.link import ClientLink, TransferFailed, exits
from lakestream.cli.server_options import DEFAULT_SERVER, Server, with_server
from lakestream.cli.terminal import JsonOption, print_json
from lakestream.lake.progress import Advance, progress
from lakestream.lake.storage.paths import DEFAULT_ACCOUNT
from lakestream.lake.table.at import instant
from lakestream.log.format.record import Record
from lakestream.protocol.instants import rfc3339

if TYPE_CHECKING:
    from lakestream_client.lake.past import StreamPast

WINDOW = 32
"""Unacknowledged chunks in flight."""
FINISH_S = 3600.0
"""Time that the server may take to make a stream of the archive (1 h)."""


@with_server
def restore(
    stream: Annotated[str, typer.Option("--stream", help="The stream to restore.")],
    as_of: Annotated[
        str,
        typer.Option(
            "--as-of",
            metavar="TIME",
            help="Restore the stream as of this time: '2026-05-01 12:30:00' (UTC), or RFC 3339.",
        ),
    ],
    server: Server,
    to: Annotated[str, typer.Option("--to", metavar="STREAM", help="The new stream's name (default: the same).")] = "",
    account: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Account of the stream in the lake. The new stream goes to the account of the server's user.",
        ),
    ] = DEFAULT_ACCOUNT,
    lake: LakeOption = None,
    subject: Annotated[list[str] | None, typer.Option(metavar="SUBJECT", help="Subjects of the new stream.")] = None,
    unlimited: Annotated[
        bool,
        typer.Option("--unlimited", help="Remove the age and size limits, which would delete old messages at once."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Restore a stream as it was at a time: sequences, times, headers and gaps as they were."""
    from lakestream_client.lake.past import open_past  # loads pyarrow

    with exits("interrupted; nothing was restored"):
        root = lake or str(default_lake())
        past = open_past(root, stream, instant(as_of), account, server=_asked(server.url), credentials=server.login)
        with ClientLink(server) as link:
            _restore(link, past, to or stream, subject, unlimited, as_json)


@with_server
def restore_schemas(
    server: Server,
    account: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Account in the lake. The schemas go to the account of the server's user.",
        ),
    ] = DEFAULT_ACCOUNT,
    lake: LakeOption = None,
    replicas: Annotated[int, typer.Option("--replicas", min=1, max=5, help="Replicas of the bucket.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Make the bucket of schemas again from the lake, with all versions and ids. Exit code 1: there is one, or none."""
    from lakestream.lake.storage.lake import open_storage
    from lakestream.lake.table import schema_files as schemas

    with exits("interrupted; nothing was restored"):
        storage = open_storage(lake or str(default_lake()))
        found = list(schemas.everything(storage, account))
        if not found:
            raise TransferFailed(f"the lake {storage.root} has no schemas of account {account}")
        records, seq = [], 0
        for each in found:
            seq = max(seq + 1, each.id)  # equal schemas share an id; none may be given again
            records.append(Record(seq, each.created_ns, f"{SUBJECTS}{each.name}".encode(), b"", each.document()))
        with ClientLink(server) as link:
            if link.stream(STREAM) is not None:
                raise TransferFailed(f"the account has schemas: delete its stream {STREAM} first to bring these back")
            send(link, stream_config(replicas), empty_state(records[0].seq), [records])
        names = sorted({each.name for each in found})
    if as_json:
        print_json({"schemas": names, "versions": len(found), "last_id": found[-1].id})
        return
    print(f"{len(names):,} schemas with {len(found):,} versions restored; the last id is {found[-1].id:,}")


def _asked(server: str) -> str | None:
    """Return the server that stages its messages; by default the one that the lake names."""
    return None if server == DEFAULT_SERVER else server


def _restore(
    link: ClientLink, past: StreamPast, to: str, subjects: list[str] | None, unlimited: bool, as_json: bool
) -> None:
    config = _config(link, past, to, subjects, unlimited)
    blocks = past.messages()
    first = next(blocks, None)
    if first is None:
        raise TransferFailed(f"stream {past.stream} held no message at {rfc3339(past.at_ns)}")
    if past.note:
        print(f"lakestream: {past.note}", file=sys.stderr)
    began = time.perf_counter()
    begins = first[0].seq
    with progress("restore", max(past.last_seq - begins + 1, len(first))) as advance:
        outcome = send(link, config, empty_state(begins), _counted(chain([first], blocks), begins, advance))
    seconds = time.perf_counter() - began
    kept = outcome["state"]
    if as_json:
        names = ("messages", "bytes", "first_seq", "last_seq")
        print_json(
            {
                "stream": to,
                "of": past.stream,
                "as_of": rfc3339(past.at_ns),
                "seconds": round(seconds, 3),
                **{name: kept[name] for name in names},
            }
        )
        return
    print(
        f"{to}: {kept['messages']:,} messages of {past.stream} as of {rfc3339(past.at_ns)} restored in {seconds:.1f} s "
        f"(sequences {kept['first_seq']:,} to {kept['last_seq']:,})"
    )


def _counted(blocks: Iterable[list[Record]], begins: int, advance: Advance) -> Iterator[list[Record]]:
    """Yield the blocks and advance a progress bar of sequences."""
    for block in blocks:
        yield block
        advance(block[-1].seq + 1 - begins)
        begins = block[-1].seq + 1


def _config(link: ClientLink, past: StreamPast, to: str, subjects: list[str] | None, unlimited: bool) -> dict[str, Any]:
    """Return the configuration of the new stream: that of the existing stream on the server, else the lake's."""
    existing = link.stream(past.stream)
    if existing is not None and to == past.stream:
        raise TransferFailed(f"stream {to} exists; name another with --to, or delete it first")
    config: dict[str, Any] = existing["config"] if existing is not None else json.loads(past.config)
    if subjects:
        config = {**config, "subjects": subjects}
    elif existing is not None:
        config = {name: value for name, value in config.items() if name != "subjects"}  # the existing stream has them
    return restored_config(config, to, unlimited=unlimited)


def send(
    link: ClientLink, config: dict[str, Any], state: dict[str, int], blocks: Iterable[list[Record]]
) -> dict[str, Any]:
    """Restore messages as a stream; returns its StreamInfo. Raises TransferFailed; then there is no stream."""
    name = config["name"]
    answer = link.api(f"STREAM.RESTORE.{name}", {"config": config, "state": state})
    to = str(answer["deliver_subject"])
    size = min(CHUNK_BYTES, link.max_payload)
    sent: deque[concurrent.futures.Future[bytes]] = deque()

    def settle() -> None:
        try:
            refusal = sent.popleft().result()
        except Exception as error:
            raise TransferFailed(
                f"stream {name}: the server takes no more of it: {str(error) or 'no answer'}"
            ) from None
        if refusal:
            raise TransferFailed(f"stream {name}: {_reason(refusal)}")

    for chunk in chunks(packed(state, blocks), size):
        if len(sent) == WINDOW:
            settle()
        sent.append(link.submit(to, chunk))
    while sent:
        settle()
    body = link.request(to, timeout=FINISH_S)
    outcome: dict[str, Any] = json.loads(body)
    if "error" in outcome:
        raise TransferFailed(f"stream {name}: {_reason(body)}")
    return outcome


def _reason(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"]["description"])
    except (ValueError, KeyError, TypeError):
        return answer.decode("utf-8", "replace")
