"""Fixtures of conformance tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.harness import Scenario, Script, compare, play, stopped
from tests.conftest import Recorded
from tests.pairs import Pair, Setup
from tests.recordings import Transcript
from tests.servers import Kind

CompareScripts = Callable[[Setup, Callable[[Script], None]], None]


@pytest.fixture
def compare_scripts(
    kind: Kind, tmp_path: Path, recorded: Recorded, request: pytest.FixtureRequest
) -> Iterator[CompareScripts]:
    """Return a function that plays a script on a server of its own and compares with nats-server."""
    pairs: list[Pair] = []

    def play_both(setup: Setup, script: Callable[[Script], None]) -> None:
        pair = Pair(tmp_path, kind, setup)
        pairs.append(pair)
        scenario = Scenario(request.module.__name__.rpartition(".")[2].removeprefix("test_"), script, setup)

        def real() -> Transcript:
            expected = play(scenario, pair.expected, 5.0)
            assert not stopped(expected), stopped(expected)
            return expected

        if difference := compare(scenario.id, recorded(real), play(scenario, pair.tested, 5.0)):
            pytest.fail(f"{difference}\n{pair.log()}", pytrace=False)

    yield play_both
    for pair in pairs:
        pair.stop()
