"""A stream moved as a backup: a snapshot of the old server becomes a restore of the new one.

Belongs here: the flow of chunks from one to the other. At most `WINDOW` of them are in memory; sequences, times,
headers, gaps and consumers with their state arrive as they were.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable
from typing import Any

from lakestream.cli.link import TransferFailed
from lakestream_move.plan import SeenStream, Stage, moved_config
from lakestream_move.sides import SideConnection

CHUNK_BYTES = 128 << 10
WINDOW_BYTES = 4 << 20
"""Bytes that the old server sends without an ack (4 MiB)."""
WINDOW = 32
"""Chunks that the new server has not acknowledged (32)."""
STALL_S = 30.0
"""Longest wait for the next chunk, or for the answer to one (30 s)."""
FINISH_S = 3600.0
"""Time that the new server may take to make a stream of the archive (1 h)."""


async def move(
    old: SideConnection, new: SideConnection, origin: SeenStream, most_replicas: int, advance: Callable[[int], None]
) -> dict[str, Any]:
    """Move a stream; return its StreamInfo on the new server. `advance` is told of sent bytes.

    Raises:
        TransferFailed: then the new server has no part of it.
    """
    name = origin.name
    inbox = old.client.new_inbox()
    chunks = await old.client.subscribe(inbox, pending_msgs_limit=-1, pending_bytes_limit=-1)
    try:
        body = {
            "deliver_subject": inbox,
            "chunk_size": min(CHUNK_BYTES, new.max_payload // 2, old.max_payload // 2),
            "window_size": WINDOW_BYTES,
        }
        begun = await old.api(f"STREAM.SNAPSHOT.{name}", body)
        state = begun["state"]
        config = moved_config(origin, Stage.RESTORED, most_replicas, int(state["last_seq"]))
        to = str((await new.api(f"STREAM.RESTORE.{name}", {"config": config, "state": state}))["deliver_subject"])
        try:
            await _copy(chunks, old, new, to, advance)
            outcome: dict[str, Any] = json.loads(await new.request(to, timeout=FINISH_S))
        except BaseException:  # also Ctrl-C
            # A nats-server keeps and serves what came of it.
            with contextlib.suppress(TransferFailed):
                await new.api(f"STREAM.DELETE.{name}")
            raise
    finally:
        await chunks.unsubscribe()
    if error := outcome.get("error"):
        raise TransferFailed(f"stream {name}: the new server cannot restore it: {error.get('description', error)}")
    return outcome


async def _copy(chunks: Any, old: SideConnection, new: SideConnection, to: str, advance: Callable[[int], None]) -> None:
    from nats.errors import Error

    sent: deque[tuple[Any, asyncio.Task[bytes]]] = deque()

    async def settle() -> None:
        chunk, answer = sent.popleft()
        refusal = await answer
        if refusal:
            raise TransferFailed(f"the new server stopped accepting the backup: {_reason(refusal)}")
        advance(len(chunk.data))
        if chunk.reply:
            await old.client.publish(chunk.reply, b"")

    try:
        while True:
            try:
                # What is acknowledged already makes room in the old server's window before this one waits for more.
                while sent and sent[0][1].done():
                    await settle()
                chunk = await chunks.next_msg(timeout=0.05 if sent else STALL_S)
            except (Error, TimeoutError) as error:
                if sent:
                    await settle()
                    continue
                raise TransferFailed(f"the old server stopped sending the backup: {str(error) or 'timeout'}") from None
            if not chunk.data:
                status = str((chunk.headers or {}).get("Status", ""))
                if status and not status.startswith("2"):
                    what = " ".join(filter(None, (status, (chunk.headers or {}).get("Description", ""))))
                    raise TransferFailed(f"the old server ended the backup: {what}")
                break
            if len(sent) >= WINDOW:
                await settle()
            sent.append((chunk, asyncio.create_task(new.request(to, chunk.data, STALL_S))))
        while sent:
            await settle()
    finally:
        for _, answer in sent:
            answer.cancel()
        await asyncio.gather(*(answer for _, answer in sent), return_exceptions=True)


def _reason(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"]["description"])
    except (ValueError, KeyError, TypeError):
        return answer.decode("utf-8", "replace")
