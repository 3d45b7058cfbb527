"""Fixtures for tests against server processes.

`--against` chooses the server under test: `lakestream`, or `real` to try the tests themselves on nats-server.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from lakestream import native
from tests.clouds.azure_server import AzureServer
from tests.clouds.gcs_server import GcsServer
from tests.conformance.harness import compare
from tests.pairs import FLAGS, Pair, Setup
from tests.recordings import FIRST, Recordings, Referee, plain
from tests.s3_server import S3Server
from tests.servers import Kind, Server, release

# Test machines vary in speed, so the duration of an example is no failure.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=40)
hypothesis.settings.load_profile("patient")

TESTS = Path(__file__).parent
HEAVY_FOLDERS = {"chaos", "cluster", "lake", "power"}
"""In these folders every test is `heavy` unless it is marked `smoke`."""

SHOWN_LOGS = pytest.StashKey[list[Callable[[], str]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Run nothing on a compiled module that does not fit its sources, which would take hours. Let property tests draw
    fewer examples in `make test`; with the heavy tests, and alone, they draw 100."""
    if native.STALE:
        raise pytest.UsageError(f"lakestream.native: {native.WHY}")
    if config.getoption("markexpr") == "not heavy":
        hypothesis.settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--against",
        choices=["lakestream", "real"],
        default="lakestream",
        help="the server under test (real: nats-server, to try the tests themselves)",
    )
    parser.addoption("--live", action="store_true", help="ask nats-server too; fail if a recording of it is stale")
    parser.addoption("--record", action="store_true", help="as --live, but write stale and missing recordings anew")


@pytest.fixture(scope="session")
def referee(request: pytest.FixtureRequest) -> Referee:
    """Return the source of nats-server's answers."""
    if request.config.getoption("--record"):
        return Referee.RECORD
    return Referee.LIVE if request.config.getoption("--live") else Referee.RECORDED


def recordings_of(tests: Path, referee: Referee) -> Recordings:
    """Return the recordings of a directory of tests."""
    return Recordings(tests / "recordings", referee, FIRST if referee is Referee.RECORDED else release())


@pytest.fixture(scope="session")
def recordings(referee: Referee) -> Iterator[Recordings]:
    """Yield the recordings of tests/conformance; write new ones when the session ends."""
    recordings = recordings_of(TESTS / "conformance", referee)
    yield recordings
    recordings.save()


Recorded = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def recorded(recordings: Recordings, request: pytest.FixtureRequest) -> Recorded:
    """Return nats-server's answer to a test as JSON: `recorded(ask)` calls `ask` only if nats-server is asked live.

    A test may call it once.
    """
    id = f"{request.module.__name__.rpartition('.')[2]}.{request.node.name}"

    def answer(ask: Callable[[], Any]) -> Any:
        if not recordings.asks(id):
            return recordings.get(id)[0][1]
        answered = plain([("answer", ask())])
        if difference := recordings.stale(id, answered, partial(compare, differences=())):
            pytest.fail(f"{id}\n{difference}", pytrace=False)
        return recordings.expected(id, answered)[0][1]

    return answer


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the heavy tests; deselect the tests marked `live`, or with `--live` all others."""
    for item in items:
        if item.path.relative_to(TESTS).parts[0] in HEAVY_FOLDERS and not item.get_closest_marker("smoke"):
            item.add_marker("heavy")
    live = config.getoption("--live") or config.getoption("--record")
    wanted = [_asks_nats_server(item) if live else not item.get_closest_marker("live") for item in items]
    config.hook.pytest_deselected(items=[item for item, keep in zip(items, wanted, strict=True) if not keep])
    items[:] = [item for item, keep in zip(items, wanted, strict=True) if keep]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Look for no garbage among the tests and all modules, a million objects that stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _asks_nats_server(item: pytest.Item) -> bool:
    return bool(item.get_closest_marker("live")) or "recordings" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def kind(request: pytest.FixtureRequest) -> Kind:
    """Return the program under test."""
    return Kind.REAL if request.config.getoption("--against") == "real" else Kind.OURS


@pytest.fixture(scope="session")
def _pair(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("pair"), kind)
    yield pair
    pair.stop()


@pytest.fixture(scope="session")
def _pairs(_pair: Pair, kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Setup, Pair]]:
    pairs = _Pairs(kind, tmp_path_factory)
    pairs[FLAGS] = _pair
    yield pairs
    for pair in pairs.values():
        pair.stop()


class _Pairs(dict[Setup, Pair]):
    """Server pairs by setup, created on first use. Beside the pair without a configuration the newest `KEPT` run: a
    session has 82 setups, and each idle server takes some thousandths of a processor from the tests."""

    KEPT = 3

    def __init__(self, kind: Kind, directories: pytest.TempPathFactory) -> None:
        self._kind, self._directories = kind, directories

    def __missing__(self, setup: Setup) -> Pair:
        configured = [each for each in self if each != FLAGS]
        for other in configured[: len(configured) - self.KEPT + 1]:
            self.pop(other).stop()
        pair = self[setup] = Pair(self._directories.mktemp("pair"), self._kind, setup)
        return pair


@pytest.fixture
def pairs(_pairs: dict[Setup, Pair], request: pytest.FixtureRequest) -> dict[Setup, Pair]:
    """Return the session's server pairs by setup, including that of `pair`."""

    def log() -> str:
        return "\n".join(pair.log() for pair in _pairs.values())

    request.node.stash.setdefault(SHOWN_LOGS, []).append(log)
    return _pairs


@pytest.fixture
def pair(_pair: Pair, request: pytest.FixtureRequest) -> Pair:
    """Return the session's two servers; print the log of the one under test if the test fails."""
    request.node.stash.setdefault(SHOWN_LOGS, []).append(_pair.log)
    return _pair


@pytest.fixture
def server(pair: Pair) -> Server:
    """Return the session's server under test, running, with JetStream. Other tests use it too."""
    return pair.tested


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    """Yield an S3-compatible server with an empty bucket, shared by one module."""
    server = S3Server()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def gcs_server() -> Iterator[GcsServer]:
    """Yield a server with the APIs of Google Cloud Storage, shared by one module."""
    server = GcsServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def azure_server() -> Iterator[AzureServer]:
    """Yield an emulator of Azure Blob Storage, shared by one module."""
    server = AzureServer()
    server.start()
    yield server
    server.stop()


StartServer = Callable[..., Server]


@pytest.fixture
def start_server(kind: Kind, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartServer]:
    """Make and start a server for this test alone: `start_server(store=…, config=…, args=…)`.

    Kill it after the test.
    """
    started: list[Server] = []

    def start(*, of: Kind = kind, store: Path | None = None, **options: Any) -> Server:
        server = Server(of, store or tmp_path / f"store{len(started)}", **options)
        started.append(server)
        request.node.stash.setdefault(SHOWN_LOGS, []).append(server.log)
        return server.start()

    yield start
    for server in started:
        server.kill()


Agree = Callable[..., None]


@pytest.fixture
def agree(start_server: StartServer, recorded: Recorded) -> Agree:
    """Assert that a server under test shows what nats-server shows: `agree(see, config=…)` starts one for `see`.

    What `see` returns is compared as JSON. A test may call it once.
    """

    def compare_one(see: Callable[[Server], Any], **options: Any) -> None:
        expected = recorded(lambda: see(start_server(of=Kind.REAL, **options)))
        got = see(start_server(**options))
        assert plain([("answer", got)])[0][1] == expected

    return compare_one


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print one line about a failure at once; pytest shows the details at the end."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        crash = getattr(report.longrepr, "reprcrash", None)
        said = crash.message if crash else report.longreprtext
        print(f"\nFAILED {report.nodeid} ({report.when}): {said.strip().splitlines()[0]}", flush=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        for log in item.stash.get(SHOWN_LOGS, []):
            report.sections.append(("server log", log()))
    return report
