"""Tests of imports that fail, are killed and are repeated, against a stream in memory: every row is stored once."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from lakestream.cli import link
from lakestream.cli.app import app
from lakestream.log.format.record import Record, iter_records
from lakestream_transfer import command, importing, sending
from lakestream_transfer.finding import find
from lakestream_transfer.mapping import MappingOptions
from lakestream_transfer.text import TextSource
from lakestream_transfer.text_mapping import TextMapper

pytestmark = pytest.mark.unit

STRANGE = b"r.stranger"


class Killed(Exception):
    """Ends a run at once, as `kill -9` does."""


class Streams:
    """The part of a server that imports use: one stream, which takes a message only with the next sequence."""

    max_payload = 1 << 20

    def __init__(self) -> None:
        self.config: dict[str, Any] | None = None
        self.messages_stored: list[Record] = []
        self.first = 1
        self.refuses = False
        """A batch was refused, and no empty one has come."""
        self.before_batch: Callable[[], None] = lambda: None
        """Called before a batch is taken."""

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def publish(self, data: bytes = b"x") -> None:
        self.messages_stored.append(Record(len(self.messages_stored) + 1, 1, STRANGE, b"", data))

    def purge(self) -> None:
        self.first = len(self.messages_stored) + 1

    def stream(self, name: str) -> dict[str, Any] | None:
        if self.config is None:
            return None
        last = len(self.messages_stored)
        return {
            "config": json.loads(json.dumps(self.config)),
            "state": {"last_seq": last, "messages": last - self.first + 1},
        }

    def api(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        self.config = json.loads(json.dumps(body))
        return {}

    def submit(self, subject: str, body: bytes, timeout: float = 0) -> concurrent.futures.Future[bytes]:
        if not body:
            self.refuses = False
            return _answered({"error": {"description": "empty"}})
        self.before_batch()
        if self.refuses:
            return _answered({"error": {"description": "one before"}, "again": True})
        answer: dict[str, Any] = {}
        for stored, record in enumerate(iter_records(body)):
            if record.seq != len(self.messages_stored) + 1:
                answer = {"error": {"description": "another sequence"}, "again": True, "stored": stored}
                break
            if record.subject.startswith(b"r.refused"):
                answer = {"error": {"description": "not one of the stream's"}, "stored": stored}
                break
            self.messages_stored.append(Record(record.seq, 1, record.subject, record.header, record.data))
        self.refuses = bool(answer)
        return _answered(answer)

    def messages(self, stream: str, first: int, last: int) -> Iterator[list[Record]]:
        yield [each for each in self.messages_stored if max(first, self.first) <= each.seq <= last]

    def message(self, stream: str, seq: int) -> Record | None:
        return next((each for each in self.messages_stored if each.seq == seq and seq >= self.first), None)

    def imported(self) -> list[bytes]:
        return [each.data for each in self.messages_stored if each.subject != STRANGE]


def _answered(answer: dict[str, Any]) -> concurrent.futures.Future[bytes]:
    future: concurrent.futures.Future[bytes] = concurrent.futures.Future()
    future.set_result(json.dumps(answer).encode())
    return future


@pytest.fixture(scope="module", autouse=True)
def _small_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "BATCH_MSGS", 2)
        patch.setattr("time.sleep", lambda seconds: None)
        yield


def run(streams: Streams, source: Path, *options: str) -> Result:
    streams.refuses = False  # another connection
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "ClientLink", lambda server: streams)
        arguments = ["import", str(source), "--stream", "R", "--subject", "r.{k}", *options]
        return CliRunner().invoke(app, arguments, catch_exceptions=True)


def lines(path: Path, *keys: object) -> list[bytes]:
    """Write a file of JSON lines, and return them."""
    made = [json.dumps({"k": key}).encode() for key in keys]
    path.write_bytes(b"".join(line + b"\n" for line in made))
    return made


def killed_before(streams: Streams, batch: int, then: Callable[[], None] = lambda: None) -> None:
    """Kill the run before its n-th batch."""
    left = [batch]

    def count() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        then()

    streams.before_batch = count


@pytest.mark.parametrize("subject", [b"r.\xff", b"r." + b"x" * 4000])
def test_a_message_that_no_request_can_have_is_refused_with_its_row(streams: Streams, subject: bytes) -> None:
    streams.max_payload = 6000
    sender = sending.StreamSender(streams, "R", 0)  # type: ignore[arg-type]
    sender.put([Record(1, 0, subject, b"", b"x" * 1000), Record(2, 0, b"r.1", b"", b"x" * 100)])
    with pytest.raises(sending.RowRefused, match=r"row 3: .* it needs a max_payload of as many"):
        sender.put([Record(3, 0, subject, b"", b"x" * 5999)])
    sender.finish()
    assert [each.subject for each in streams.messages_stored] == [subject, b"r.1"]


@pytest.fixture
def streams() -> Streams:
    return Streams()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def test_a_failed_import_says_how_many_messages_are_stored_and_how_to_go_on(streams: Streams, source: Path) -> None:
    lines(source, *range(5), "refused", *range(6, 9))
    failed = run(streams, source, "--create")
    assert failed.exit_code == 1
    assert failed.stderr == (
        "lakestream: row 6: the server refuses it: not one of the stream's\n"
        "5 messages of this import are stored in R, the last as sequence 5. The same command goes on behind them and "
        "stores nothing twice, also with corrected rows or options, as long as they make the same first 5 messages. To "
        "start over instead, delete stream R.\n"
    )
    mended = lines(source, *range(9))
    done = run(streams, source, "--create")
    assert "R: 5 messages are there already, going on behind them" in done.stderr
    assert "4 messages imported" in done.stdout
    assert streams.imported() == mended


def test_a_failed_import_that_stored_nothing_says_so(streams: Streams, source: Path) -> None:
    lines(source, "a b")
    assert "Nothing of this import is stored in R." in run(streams, source, "--create").stderr


def test_a_mended_append_goes_on_behind_its_messages(streams: Streams, source: Path) -> None:
    streams.config = {"name": "R", "subjects": ["r.>"]}
    streams.publish()
    lines(source, *range(5), "refused", 6)
    assert "5 messages of this import" in run(streams, source, "--append").stderr
    mended = lines(source, *range(7))
    assert run(streams, source, "--append").exit_code == 0
    assert streams.imported() == mended
    assert "0 messages imported" in run(streams, source, "--append").stdout


def test_a_finished_import_stores_nothing_more_whatever_came_after_it(
    streams: Streams, source: Path, tmp_path: Path
) -> None:
    first = lines(source, 1, 2, 3)
    assert run(streams, source, "--create").exit_code == 0
    streams.publish()
    other = tmp_path / "other.jsonl"
    second = lines(other, 4)
    assert "--append adds the import after them" in run(streams, other).stderr
    assert run(streams, other, "--append").exit_code == 0
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(source.read_bytes())
    for path in (source, copy, other):
        repeated = run(streams, path, "--append")
        assert "0 messages imported" in repeated.stdout
        assert "--again stores its messages once more" in repeated.stderr
    assert streams.imported() == first + second
    assert run(streams, source, "--again").exit_code == 0
    assert streams.imported() == first + second + first


def test_an_import_whose_messages_were_removed_is_not_taken_for_done(streams: Streams, source: Path) -> None:
    made = lines(source, 1, 2, 3)
    run(streams, source, "--create")
    streams.purge()
    assert "its messages have been removed since; --again stores them again" in run(streams, source).stderr
    run(streams, source, "--again")
    assert streams.imported() == made + made


def test_an_import_goes_on_behind_strangers_with_append_only(streams: Streams, source: Path) -> None:
    made = lines(source, *range(8))
    killed_before(streams, 2)
    assert isinstance(run(streams, source, "--create").exception, Killed)
    streams.before_batch = lambda: None
    streams.publish()
    refused = run(streams, source, "--create")
    assert "somebody else published to it; with --append the import goes on" in refused.stderr
    killed_before(streams, 1)
    run(streams, source, "--append")
    streams.before_batch = lambda: None
    streams.publish()
    assert run(streams, source, "--append").exit_code == 0
    assert streams.imported() == made
    assert [each.subject for each in streams.messages_stored].count(STRANGE) == 2


def test_another_source_is_not_appended_to_an_import_that_did_not_end(
    streams: Streams, source: Path, tmp_path: Path
) -> None:
    lines(source, *range(8))
    killed_before(streams, 2)
    run(streams, source, "--create")
    streams.before_batch = lambda: None
    lines(tmp_path / "other.jsonl", 9)
    refused = run(streams, tmp_path / "other.jsonl", "--append").stderr
    assert "messages of an unfinished import (from sequence 1)" in refused
    assert run(streams, tmp_path / "other.jsonl", "--again").exit_code == 0


def test_a_stream_noted_by_an_earlier_release_takes_another_source_with_append(streams: Streams, source: Path) -> None:
    streams.config = {"name": "R", "subjects": ["r.>"], "metadata": {importing.IMPORT_KEY: '{"id":"0","first":1}'}}
    streams.publish()
    made = lines(source, 1)
    assert run(streams, source, "--append").exit_code == 0
    assert streams.imported() == made


def test_a_grown_source_goes_on_behind_its_first_rows(streams: Streams, source: Path) -> None:
    lines(source, 1, 2)
    run(streams, source, "--create")
    streams.publish()
    grown = lines(source, 1, 2, 3)
    assert "1 messages imported" in run(streams, source).stdout
    assert streams.imported() == grown


def attempt(streams: Streams, source: Path) -> Exception | None:
    """Run an import with --append, without a command line. Return its error."""
    streams.refuses = False
    text = TextSource(find(str(source)))
    rows = importing.ImportRows(text, TextMapper(MappingOptions(subject="r.{k}"), text), False, False)
    target = importing.ImportTarget("R", False, True, False, [], {}, "", "r.{k}")
    try:
        importing.ImportRun(streams, rows, target).run()  # type: ignore[arg-type]
    except (Killed, link.TransferFailed) as error:
        return error
    return None


# A stranger's messages between two batches: (before batch, how many).
strangers = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=2)
runs = st.lists(st.tuples(st.integers(0, 6), strangers, st.integers(0, 2)), max_size=4)


@settings(max_examples=200, deadline=None)
@given(keys=st.lists(st.sampled_from("ab"), max_size=12), events=runs)
def test_every_row_is_stored_once_whatever_ends_the_runs_and_whoever_publishes(
    keys: list[str], events: list[tuple[int, list[tuple[int, int]], int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    streams, source = Streams(), tmp_path_factory.getbasetemp() / "rows.jsonl"
    streams.config = {"name": "R", "subjects": ["r.>"]}
    made = lines(source, *keys)
    for kill, between, after in events:
        batch = [0]

        def meddle(between: list[tuple[int, int]] = between, batch: list[int] = batch) -> None:
            for at, count in between:
                for _ in range(count if at == batch[0] else 0):
                    streams.publish()
            batch[0] += 1

        killed_before(streams, kill, meddle)
        attempt(streams, source)
        for _ in range(after):
            streams.publish()
    streams.before_batch = lambda: None
    assert attempt(streams, source) is None
    assert streams.imported() == made
