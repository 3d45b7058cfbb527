"""Tests of the conformance harness: it hides what differs between runs, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import harness
from tests.conformance.harness import Script, compare, stopped
from tests.servers import Kind, Server
from tests.wire import Frame, Reader, pub

pytestmark = pytest.mark.unit


@pytest.fixture
def script() -> Script:
    return Script(Server(Kind.OURS, Path("unused")), 1.0)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2026-11-21T04:09:57.736309Z", "<time>"),
        ("2026-11-21T04:09:57Z", "<time>"),
        ("2026-11-21T04:09:57.730Z", "2026-11-21T04:09:57.730Z"),  # Go writes no zeros at the end
        ("2026-11-21T04:09:57+00:00", "2026-11-21T04:09:57+00:00"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ("2001-01-01T00:00:00Z", "2001-01-01T00:00:00Z"),
        ("$JS.ACK.S.c.1.2.3.1795234197736309000.4", "$JS.ACK.S.c.1.2.3.<time>.4"),
        ("$JS.ACK.S.c.1.2.3.4.5", "$JS.ACK.S.c.1.2.3.4.5"),
        ("$JS.FC.S.c.abcd", "$JS.FC.S.c.<token>"),
    ],
)
def test_only_times_and_tokens_are_hidden(script: Script, text: str, shown: str) -> None:
    assert script.normal({"time": text}) == {"time": shown}


def test_random_names_are_hidden_on_demand(script: Script) -> None:
    script.hide("aB3dE9", "<name>")
    assert script.normal(["x.aB3dE9.y", {"aB3dE9": 1}]) == ["x.<name>.y", {"<name>": 1}]


def test_equal_transcripts_have_no_difference() -> None:
    transcript: harness.Transcript = [("INFO", {"a": 1, "b": [1, 2]})]
    assert compare("streams.x", transcript, [("INFO", {"b": [1, 2], "a": 1})]) == ""


@pytest.mark.parametrize(
    "other",
    [
        [("INFO", {"a": "1"})],
        [("INFO", {"a": 1, "b": None})],
        [("INFO", {})],
        [("info", {"a": 1})],
        [],
        [("INFO", {"a": 1}), ("more", 1)],
        [("INFO", {"a": True})],
    ],
)
def test_every_other_difference_is_shown(other: harness.Transcript) -> None:
    assert compare("streams.x", [("INFO", {"a": 1})], other)


def test_an_allowed_difference_holds_for_its_scenario_only() -> None:
    allowed, other = "mirror_config.origin[filter_of_one]", "mirror_config.origin[name]"
    expected: harness.Transcript = [("INFO", {"mirror": {"filter_subject": "a"}, "seq": 1})]
    assert compare(allowed, expected, [("INFO", {"mirror": {}, "seq": 1})]) == ""
    assert compare(other, expected, [("INFO", {"mirror": {}, "seq": 1})])
    assert compare(allowed, expected, [("INFO", {"mirror": {}, "seq": 2})])


def test_a_script_that_stopped_is_known() -> None:
    assert stopped([("a", 1), ("STOPPED", "WireTimeout")]) == "WireTimeout"
    assert stopped([("a", 1)]) == ""


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_frames_are_cut_the_same_however_they_arrive(step: int) -> None:
    text = b"INFO {}\r\nMSG a.b 1 2\r\nhi\r\nHMSG a 1 r 12 14\r\nNATS/1.0\r\n\r\n\r\n\r\n-ERR 'no'\r\nPONG\r\n"
    reader = Reader()
    frames = [frame for at in range(0, len(text), step) for frame in reader.feed(text[at : at + step])]
    assert frames == [
        Frame("INFO", text="{}"),
        Frame("MSG", "a.b", "1", "", b"", b"hi"),
        Frame("HMSG", "a", "1", "r", b"NATS/1.0\r\n\r\n", b"\r\n"),
        Frame("-ERR", text="'no'"),
        Frame("PONG"),
    ]


def test_publishes_are_written_with_their_sizes() -> None:
    assert pub("a", b"xy") == b"PUB a 2\r\nxy\r\n"
    assert pub("a", b"x", "r", {"A": "b"}) == b"HPUB a r 18 19\r\nNATS/1.0\r\nA: b\r\n\r\nx\r\n"
