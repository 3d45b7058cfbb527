"""Each kind of work on large streams, and on many, beside a connection that must not wait (tests/bench/scale.py).

The server itself complains of steps for which its event loop has used 100 ms of processor time: other than the waits of
clients, that does not depend on what else the machine does.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from tests.bench.figures import OURS
from tests.bench.scale import OPEN_FILES, ROWS, Work, measured

pytestmark = [pytest.mark.chaos, pytest.mark.heavy]


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """Allow more open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("work", ROWS, ids=[work.__name__ for work in ROWS])
def test_no_step_takes_all_clients_100_ms(work: Work) -> None:
    figures, stalls = measured(work, OURS)
    assert figures
    assert stalls == []
