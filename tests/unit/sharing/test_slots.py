"""Places for downloads: limits of all and of each owner."""

from __future__ import annotations

import asyncio

import pytest

from lakestream_sharing.errors import Unavailable
from lakestream_sharing.slots import Slots


async def test_one_owner_leaves_room_for_others() -> None:
    slots = Slots(total=3, each=2)
    async with slots.taken("a", 1), slots.taken("a", 1):
        with pytest.raises(Unavailable):
            async with slots.taken("a", 0.01):
                pass
        async with slots.taken("b", 1):
            with pytest.raises(Unavailable):
                async with slots.taken("c", 0.01):
                    pass
            waiting = asyncio.ensure_future(_once(slots, "c"))
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting
    async with slots.taken("a", 1), slots.taken("a", 1):
        pass


async def test_a_place_comes_back_after_an_error() -> None:
    slots = Slots(total=1, each=1)
    with pytest.raises(ValueError, match="x"):
        async with slots.taken("a", 1):
            raise ValueError("x")
    await _once(slots, "a")


async def _once(slots: Slots, owner: str) -> None:
    async with slots.taken(owner, 10):
        pass
