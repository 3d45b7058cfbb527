"""Tests of the fuzz targets: the kept inputs keep all promises, and a broken promise is seen.

`python -m tests.fuzz` makes new inputs (docs/campaigns.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import corpora, report
from tests.fuzz.target import CORPORA, LIMIT_S, Broken, Target, check, check_memory, corpus, place_of
from tests.fuzz.targets import MODULES, load

pytestmark = pytest.mark.unit

MAX_REPOSITORY_BYTES = 1 << 20


@pytest.mark.parametrize("name", MODULES)
def test_kept_inputs_keep_the_promises(name: str) -> None:
    target = load(name)
    for data in (*target.seeds(), *corpus(name).values()):
        try:
            check(target, data)
            check_memory(target, data)
        except Exception as error:
            raise AssertionError(f"{place_of(error)} for {data!r}") from error


@pytest.mark.parametrize("name", MODULES)
def test_valid_inputs_are_accepted(name: str) -> None:
    """A target whose valid inputs were refused would test nothing but the refusal."""
    target, accepted = load(name), 0
    seeds = target.seeds()
    for data in seeds:
        try:
            target.run(data)
        except target.errors:
            continue
        accepted += 1
    assert accepted >= len(seeds) / 2


def test_corpora_are_small_and_belong_to_targets() -> None:
    files = [path for path in CORPORA.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_REPOSITORY_BYTES
    assert {path.parent.name for path in files} <= set(MODULES)


def made(run: Callable[[bytes], object]) -> Target:
    return Target("made", "made up", run, (KeyError,), lambda: [b"x"])


def _escape(data: bytes) -> None:
    raise ValueError("made up")


def _named(data: bytes) -> None:
    raise KeyError("made up")


def _slow(data: bytes) -> None:
    end = time.thread_time() + LIMIT_S * 1.1
    while time.thread_time() < end:
        pass


def _greedy(data: bytes) -> bytes:
    return bytes(32 << 20)


def test_an_error_that_the_target_does_not_name_is_a_finding() -> None:
    check(made(_named), b"x")
    with pytest.raises(ValueError, match="made up") as caught:
        check(made(_escape), b"x")
    assert place_of(caught.value).startswith("ValueError at tests/fuzz/test_replay.py:")


def test_a_long_run_is_a_finding() -> None:
    with pytest.raises(Broken, match="s of the processor's time for 1 bytes"):
        check(made(_slow), b"x")


def test_much_memory_for_a_short_input_is_a_finding() -> None:
    with pytest.raises(Broken, match="bytes of memory for 1 bytes"):
        check_memory(made(_greedy), b"x")


def test_only_inputs_that_reach_new_lines_are_kept(tmp_path: Path) -> None:
    target = load("leaf")
    ping, pong = (corpora.lines(target, b"\x0f" + sent) for sent in (b"PING\r\n", b"PONG\r\n"))
    assert ping - pong
    assert corpora.lines(target, b"\x0fPING\r\n") == ping


def test_the_table_in_the_documentation_is_that_of_the_saved_results() -> None:
    text = report.PAGE.read_text()
    assert report.page(text, report.saved()) == text
    assert {each.target for each in report.saved()} == set(MODULES)
