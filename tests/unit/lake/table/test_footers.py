"""Tests of what is kept of files: which goes first, and that the limit holds."""

from __future__ import annotations

import pytest

from lakestream.lake.table.row_groups import Footers

pytestmark = pytest.mark.unit


class Kept:
    """Footers within 1,000 bytes, with the loads of each part."""

    def __init__(self) -> None:
        self.footers, self.loaded = Footers(1000), list[tuple[str, str]]()

    def get(self, path: str, part: str, size: int) -> None:
        def load() -> None:
            self.loaded.append((path, part))

        self.footers.get((path, part), load, lambda _: size, is_spare=bool(part))
        assert self.footers.size <= 1000

    def loads(self, path: str, part: str, size: int) -> bool:
        before = len(self.loaded)
        self.get(path, part, size)
        return len(self.loaded) > before


def test_one_read_of_a_full_cache_decodes_nothing_twice() -> None:
    kept = Kept()
    for number in range(30):
        kept.get(f"{number}", "", 50)
    for number in (29, 28, 27):
        for part in ("data", "0/seq", "data", "0", "data", "0/subject", "0"):
            kept.get(f"{number}", part, 200 if part == "data" else 10)
    assert len(kept.loaded) == len(set(kept.loaded))


def test_parts_of_single_files_go_before_footers_and_the_oldest_first() -> None:
    kept = Kept()
    for number in range(14):
        kept.get(f"{number}", "", 50)
    for number in range(9):
        kept.get(f"{number}", "data", 60)
    assert not any(kept.loads(f"{number}", "", 50) for number in range(14))
    assert not any(kept.loads(f"{number}", "data", 60) for number in range(4, 9))
    assert kept.loads("3", "data", 60)


def test_one_part_stays_however_large_it_is() -> None:
    kept = Kept()
    kept.footers.get(("x", ""), lambda: 1, lambda _: 5000)
    assert kept.footers.size == 5000
    assert kept.loads("y", "", 10)
    assert kept.footers.size == 10
    kept.footers.drop("y")
    assert kept.footers.size == 0
