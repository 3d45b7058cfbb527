"""Tests of the figures for the plots: what they cost other clients."""

from __future__ import annotations

import asyncio

import pytest

from lakestream_console import history

pytestmark = pytest.mark.unit


async def test_many_streams_are_read_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "STREAMS_AT_ONCE", 10)
    turns, seen = 0, list[int]()

    async def others() -> None:
        nonlocal turns
        while len(seen) < 100:
            turns += 1
            await asyncio.sleep(0)

    async def read() -> None:
        seen.extend([each async for each in history.in_steps(range(100))])

    await asyncio.gather(others(), read())
    assert seen == list(range(100))
    assert turns >= 10
