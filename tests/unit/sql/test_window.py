"""Tests of the flow control of a query."""

from __future__ import annotations

import asyncio

import pytest

from lakestream_sql.over_nats.window import Window

pytestmark = pytest.mark.unit


async def test_a_window_is_open_for_as_many_batches_as_are_not_acknowledged() -> None:
    window = Window(2)
    await window.wait()
    window.sent = 2
    assert not window.open
    waiting = asyncio.create_task(window.wait())
    await asyncio.sleep(0)
    for wrong in (0, 3, 99):
        window.acknowledge(wrong)
    assert (window.open, waiting.done()) == (False, False)
    window.acknowledge(2)
    await waiting
    assert (window.open, window.acknowledged) == (True, 2)
    window.acknowledge(1)
    assert window.acknowledged == 2
