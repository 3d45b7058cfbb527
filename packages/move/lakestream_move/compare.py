"""The comparison of a stream with its copy before the cut-over.

Belongs here: states, and messages byte for byte, of a sample or all of them.
"""

from __future__ import annotations

import asyncio
import base64
import enum
import random
from collections.abc import Callable
from typing import Any

from lakestream.cli.link import TransferFailed
from lakestream.stream.mirroring.origin import stored_header
from lakestream_move.plan import SeenStream, differs
from lakestream_move.sides import RequestRefused, SideConnection

SAMPLE = 500
"""Messages that are compared by default, besides the first and the last one."""
WALKERS = 32
"""Requests to each server at the same time."""
AGREE_S = 10.0
"""Time in which the states must become equal (10 s): both sides remove expired messages by themselves."""


class Verify(enum.StrEnum):
    """Extent of the comparison."""

    SAMPLE = "sample"
    FULL = "full"
    STATE = "state"


class Different(TransferFailed):
    """Raised when a copy is not what its origin is."""


async def compare(
    old: SideConnection, new: SideConnection, name: str, how: Verify, advance: Callable[[int], None], exact: bool
) -> tuple[SeenStream, int]:
    """Compare a stream with its copy; return the origin and the number of compared messages. `advance` is told of each.

    Args:
        exact: the copy has all headers; mirrors leave out those that concern only the stream of the publish.

    Raises:
        Different, Refused, Unreachable.
    """
    deadline = asyncio.get_running_loop().time() + AGREE_S
    while True:
        origin, target = await old.stream(name), await new.stream(name)
        if origin is None or target is None:
            raise Different(f"stream {name} is gone on the {'old' if origin is None else 'new'} server")
        what = differs(origin, target)
        if not what:
            break
        if asyncio.get_running_loop().time() > deadline:
            raise Different(f"stream {name} differs: {what}")
        await asyncio.sleep(0.2)
    if not origin.messages or how is Verify.STATE:
        return origin, 0
    comparison = _Comparison(old, new, origin, advance, exact)
    await (comparison.everything() if how is Verify.FULL else comparison.sample())
    return origin, comparison.compared


class _Comparison:
    def __init__(
        self, old: SideConnection, new: SideConnection, origin: SeenStream, advance: Callable[[int], None], exact: bool
    ) -> None:
        self._old, self._new, self._origin, self._advance = old, new, origin, advance
        config = origin.config
        self._exact = exact
        self._expire = bool(config.get("max_age") or config.get("allow_msg_ttl"))
        self.compared = 0

    async def sample(self) -> None:
        """Compare the first and the last message, and a sample of those between."""
        first, last = self._origin.first_seq, self._origin.last_seq
        count = last - first + 1
        chosen = set(random.sample(range(first, last + 1), SAMPLE)) if count > SAMPLE else set(range(first, last + 1))
        seqs = iter(sorted({first, last, *chosen}))

        async def walk() -> None:
            for seq in seqs:
                await self._compare({"seq": seq})

        await self._together([walk() for _ in range(WALKERS)])

    async def everything(self) -> None:
        """Compare all messages: each walker those of its part of the sequences."""
        first, last = self._origin.first_seq, self._origin.last_seq
        step = max(1, -(-(last - first + 1) // WALKERS))

        async def walk(seq: int, end: int) -> None:
            while seq < end:
                found = await self._compare({"seq": seq, "next_by_subj": ">"}, end)
                if found is None:
                    return
                seq = found + 1

        await self._together([walk(start, min(start + step, last + 1)) for start in range(first, last + 1, step)])

    async def _together(self, walks: list[Any]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for walk in walks:
                    group.create_task(walk)
        except* TransferFailed as failed:
            raise failed.exceptions[0] from None

    async def _compare(self, asked: dict[str, Any], end: int = 0) -> int | None:
        """Compare the message that both servers return; return its sequence, None when there is none before `end`."""
        there, here = await asyncio.gather(self._message(self._old, asked), self._message(self._new, asked))
        if there is None and here is None:
            return None
        if there != here and not (self._expire and (there is None or here is None or there["seq"] != here["seq"])):
            seq = min(int(one["seq"]) for one in (there, here) if one is not None)
            if end and seq >= end:
                return None
            what = _what(there, here)
            raise Different(f"stream {self._origin.name} differs at sequence {seq:,}: {what}")
        seq = max(int(one["seq"]) for one in (there, here) if one is not None)
        if end and seq >= end:
            return None
        self.compared += 1
        self._advance(1)
        return seq

    async def _message(self, side: SideConnection, asked: dict[str, Any]) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = (await side.api(f"STREAM.MSG.GET.{self._origin.name}", asked))["message"]
        except RequestRefused as error:
            if error.code == 10037:
                return None
            raise
        if not self._exact:
            header = stored_header(base64.b64decode(found.pop("hdrs", "")))
            found |= {"hdrs": header} if header else {}
        return found


def _what(there: dict[str, Any] | None, here: dict[str, Any] | None) -> str:
    if there is None or here is None or there["seq"] != here["seq"]:
        return "a message is missing on one side"
    keys = [key for key in sorted({*there, *here}) if there.get(key) != here.get(key)]
    return f"{', '.join(keys)} of the message"
