"""Names of a server's streams, consumers and buckets, for shells that complete a command line.

Belongs here: asking the server that the command line names. A shell waits for the answer, so it is given a second;
without an answer there are no names, and no error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import typer

from lakestream.cli.server_options import server_of

ANSWER_S = 1.0
"""Time for the connection and all answers (1 s)."""

Completer = Callable[[typer.Context, str], list[str]]
"""A function of Typer's context and the word to complete."""


def names(kind: str, prefix: str = "") -> Completer:
    """Return a completer for streams or consumers.

    Args:
        kind: "stream", or "consumer" of the stream on the command line.
        prefix: of the streams of buckets, which is not part of their names.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        subject = "STREAM.NAMES" if kind == "stream" else f"CONSUMER.NAMES.{ctx.params.get('stream')}"
        found: list[str] = []
        with contextlib.suppress(Exception):  # the shell would show it in the middle of the command line
            found = asyncio.run(_asked(ctx.params, subject, kind))
        hidden = ("KV_", "OBJ_") if not prefix and not incomplete.startswith(("KV_", "OBJ_")) else ()
        own = [name.removeprefix(prefix) for name in found if name.startswith(prefix)]
        return sorted(name for name in own if name.startswith(incomplete) and not name.startswith(hidden))

    return complete


async def _asked(options: Mapping[str, Any], subject: str, kind: str) -> list[str]:
    """Return all names that an API request lists, page after page."""
    from lakestream.cli.link import connect_once

    async with asyncio.timeout(ANSWER_S):
        client = await connect_once(server_of(options), "lakestream completion")
        try:
            found, total = list[str](), 1
            while len(found) < total:
                body = json.dumps({"offset": len(found)}).encode()
                page = json.loads((await client.request(f"$JS.API.{subject}", body)).data)
                found += page.get(f"{kind}s") or []
                total = page.get("total", 0) if page.get(f"{kind}s") else 0
            return found
        finally:
            await client.close()
