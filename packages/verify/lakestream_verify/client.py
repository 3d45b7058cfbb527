"""Verification of a running server for `lakestream verify` and `lakestream repair`.

Belongs here: the requests and their progress. The server's part is in server/verification.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.cli.link import TransferFailed, connect_once
from lakestream.cli.server_options import Server
from lakestream.lake.progress import Advance, progress
from lakestream_verify.log.findings import Finding

if TYPE_CHECKING:
    from nats.aio.client import Client

SILENCE_S = 30.0
"""Longest wait for a sign of the server: it sends its progress every second."""
REQUEST_S = 10.0
VERIFY = "$LAKE.API.VERIFY."


class Verified(msgspec.Struct):
    """Result of one stream. `error`: it was not verified; `nodes`: replicas that were, or the error."""

    stream: str
    error: str = ""
    complete: bool = False
    exact: bool = True
    nodes: list[dict[str, Any]] = []
    findings: list[Finding] = []
    more: int = 0
    repairs: list[dict[str, str]] = []

    @property
    def bytes(self) -> int:
        """Return the bytes of logs that all nodes have verified."""
        return sum(int(each["bytes"]) for each in self.nodes)


def is_server(target: str) -> bool:
    """Return True if a target of a command is a server, not a directory."""
    return "://" in target


def verify_running(
    server: Server, streams: Sequence[str], *, lake: bool, rows: bool, repair: bool = False
) -> list[Verified]:
    """Have a server verify these streams of the login's account, or all of them, one after the other.

    Raises:
        TransferFailed: the server cannot be reached, or does not list its streams.
        BadCredentials: a file of the login cannot be used.
    """
    options = {"progress": True, "lake": lake, "rows": rows, "repair": repair}
    return asyncio.run(_verify_all(server, streams, options))


async def _verify_all(server: Server, streams: Sequence[str], options: dict[str, bool]) -> list[Verified]:
    client = await connect_once(server, "lakestream verify")
    try:
        names = list(dict.fromkeys(streams)) or await _names(client)
        return [await _verify(client, name, options) for name in names]
    finally:
        await client.close()


async def _names(client: Client) -> list[str]:
    """Return the names of all streams of the account."""
    from nats.errors import Error

    found: list[str] = []
    while True:
        try:
            body = json.dumps({"offset": len(found)}).encode()
            answer = json.loads((await client.request("$JS.API.STREAM.NAMES", body, timeout=REQUEST_S)).data)
        except (Error, TimeoutError) as error:
            raise TransferFailed(f"the server does not list its streams: {str(error) or 'no answer'}") from None
        if "error" in answer:
            raise TransferFailed(f"the server does not list its streams: {answer['error'].get('description')}")
        found += answer["streams"] or []
        if len(found) >= answer["total"] or not answer["streams"]:
            return found


async def _verify(client: Client, name: str, options: dict[str, bool]) -> Verified:
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    await client.publish(f"{VERIFY}{name}", json.dumps(options).encode(), reply=inbox)
    await client.flush()
    if client.last_error is not None:
        return Verified(name, f"the server refuses the request: {client.last_error}")
    with progress(f"verifying {name}", None, in_bytes=True) as advance:
        try:
            return await _answer(answers, name, advance)
        except TimeoutError:
            return Verified(name, "no server answers: its leader may have changed; try again")
        finally:
            await answers.unsubscribe()


async def _answer(answers: Any, name: str, advance: Advance) -> Verified:
    """Follow the progress until the answer comes."""
    from nats.errors import TimeoutError as NoMessage

    seen = 0
    while True:
        try:
            message = await answers.next_msg(timeout=SILENCE_S)
        except NoMessage:
            raise TimeoutError from None
        if (message.headers or {}).get("Status") == "503":
            return Verified(name, "no server answers: it must be a lakestream server with JetStream")
        answer = json.loads(message.data)
        if "error" in answer:
            return Verified(name, str(answer["error"].get("description", answer["error"])))
        if answer.get("done"):
            fields = {field: answer[field] for field in Verified.__struct_fields__ if field in answer}
            return msgspec.convert({**fields, "stream": name}, Verified)
        now = sum(each["bytes"] for each in answer["nodes"].values())
        advance(now - seen)
        seen = now
