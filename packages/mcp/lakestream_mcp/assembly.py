"""The server of the Model Context Protocol, with the tools.

Belongs here: the list of tools, and how their errors reach the assistant.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from lakestream import __version__
from lakestream_client import ClientError
from lakestream_mcp.link import Link, ToolFailed
from lakestream_mcp.shown import MAX_ANSWER_BYTES
from lakestream_mcp.tools import ReadingTools
from lakestream_mcp.writes import WritingTools

INSTRUCTIONS = """\
The streams and buckets of a NATS server that keeps every stream as a table. Begin with list_streams or list_tables. To
count, sum or search many messages use query (DuckDB's SQL; table names are stream names); to look at single ones use
last_message, read_messages and the kv tools. Times are UTC. Answers are bounded: `truncated` and `left_out` say that
there is more."""


def mcp_server(link: Link, allow_writes: bool) -> MCPServer[Any]:
    """Return the server. Tools that write exist with `allow_writes` only."""
    server = MCPServer[Any]("lakestream", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")
    kinds: list[tuple[object, bool]] = [(ReadingTools(link), True)]
    if allow_writes:
        kinds.append((WritingTools(link), False))
    for tools, reads in kinds:
        hints = ToolAnnotations(read_only_hint=reads, open_world_hint=False)
        for name in vars(type(tools)):
            if not name.startswith("_"):
                server.add_tool(_explained(getattr(tools, name)), annotations=hints, structured_output=False)
    return server


def _explained(tool: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
    """Return a tool whose expected errors reach the assistant with their texts; the SDK hides those of others."""

    @functools.wraps(tool)
    async def run(*arguments: Any, **named: Any) -> str:
        try:
            answer = await tool(*arguments, **named)
            if len(answer.encode()) > MAX_ANSWER_BYTES:
                raise ToolFailed("the answer is too large: ask for less, by limit, max_bytes or fewer columns")
            return answer
        except (ToolFailed, ClientError) as error:
            raise ToolError(str(error)) from error
        except (nats.errors.Error, OSError) as error:
            text = str(error).removeprefix("nats: ") or type(error).__name__
            raise ToolError(f"the connection to the server failed: {text}; try again when it runs") from error

    return run
