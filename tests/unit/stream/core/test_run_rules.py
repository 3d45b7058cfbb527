"""Tests of publish rules over runs: a stream does with a run what it does with its messages one by one."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.log.format.record import Record
from lakestream.net.connection import APART
from lakestream.protocol import frames, headers
from lakestream.protocol.publishes import Publishes, run_of
from lakestream.stream.core.operations import DeleteMessage, Purge
from lakestream.stream.core.proposer import BufferLimits
from lakestream.stream.features.dedupe import Dedupe
from lakestream.stream.features.expiry import Expiry
from tests.unit.stream_world import CLIENT, ManualClock, World

pytestmark = pytest.mark.unit

SUBJECTS = (b"s.a", b"s.a", b"s.b", b"s.*")
LINES = (
    *[(b"Nats-Msg-Id", b"%d" % each) for each in range(6)] * 3,
    (b"Nats-Msg-Id", b""),
    *[(b"Nats-TTL", each) for each in (b"1h", b"2", b"never", b"90s", b"x", b"")],
    *[(b"Nats-Expected-Stream", each) for each in (b"S", b"S", b"S", b"other")],
    *[(b"Nats-Expected-Last-Sequence", b"%d" % each) for each in range(7)],
    *[(b"Nats-Expected-Last-Subject-Sequence", b"%d" % each) for each in (0, 0, 0, 1, 2, 3, 4, 5)],
    (b"Nats-Expected-Last-Subject-Sequence-Subject", b"s.a"),
    (b"Nats-Expected-Last-Msg-Id", b"1"),
    (b"Nats-Rollup", b"sub"),
    (b"Nats-Rollup", b"all"),
    (b"Nats-Schedule", b"@every 1h"),
    (b"Nats-Incr", b"1"),
    (b"Nats-Other", b"x"),
    (b"traceparent", b"00-1-2-01"),
    (b"Lakestream-Misfit", b"x"),
)
Message = tuple[bytes, list[tuple[bytes, bytes]], bytes]
MESSAGES = st.tuples(st.sampled_from(SUBJECTS), st.lists(st.sampled_from(LINES), max_size=2), st.binary(max_size=8))
STEPS = st.lists(
    st.lists(MESSAGES, min_size=1, max_size=12) | st.sampled_from(["settle", "settle", "purge", "delete", "advance"]),
    min_size=1,
    max_size=6,
)
CONFIGS = st.fixed_dictionaries(
    {"allow_msg_ttl": st.booleans(), "allow_rollup_hdrs": st.booleans()},
    optional={
        "discard": st.just("new"),
        "max_msgs": st.integers(1, 12),
        "max_bytes": st.integers(100, 600),
        "max_msgs_per_subject": st.integers(1, 3),
        "discard_new_per_subject": st.just(True),
        "max_msg_size": st.sampled_from([4, 40, 60]),
        "retention": st.sampled_from(["interest", "workqueue"]),
        "subject_delete_marker_ttl": st.just(60_000_000_000),
        "duplicate_window": st.sampled_from([0, 120_000_000_000]),
        "storage": st.just("memory"),
        "no_ack": st.just(True),
        "sealed": st.just(True),
    },
)


def run_from(messages: list[Message], number: int) -> Publishes:
    parts = []
    for at, (subject, lines, payload) in enumerate(messages, number):
        reply, block = b"_INBOX.me.%d " % at, headers.build(lines) if lines else b""
        if block:
            parts.append(frames.HPUB % (subject, reply, len(block), len(block + payload), block, payload))
        else:
            parts.append(frames.PUB % (subject, reply, len(payload), payload))
    return run_of(b"".join(parts), APART)


class Publisher:
    """Takes the same steps as another one, with runs or with single messages. `checked`: all rules judge each."""

    def __init__(
        self, directory: str, clock: ManualClock, runs: bool, config: dict[str, Any], exact: bool, checked: bool = False
    ) -> None:
        buffer = BufferLimits(6, 400, exact=True) if exact else None
        self.world, self.runs, self.number = World(directory, clock=clock, buffer=buffer, **config), runs, 0
        if checked:
            self.world.stream.proposer._passes_alone = lambda *_: False  # type: ignore[method-assign]

    def step(self, step: list[Message] | str) -> None:
        stream = self.world.stream
        if step == "settle":
            self.world.settle()
        elif step == "purge":
            stream.propose(Purge(b"s.a"))
        elif step == "delete":
            stream.propose(DeleteMessage(2))
        elif step == "advance":
            self.world.clock.advance(70_000_000_000)
        else:
            assert isinstance(step, list)
            run, at = run_from(step, self.number), 0
            self.number += len(step)
            while at < len(run):
                if self.runs:
                    at = stream.proposer.take(run, at, len(run), CLIENT)
                else:
                    stream.proposer.take(run.message(at), 0, 1, CLIENT)
                    at += 1

    def outcome(self) -> dict[str, Any]:
        """Return what was answered, in order, and what is stored and known now."""
        self.world.settle()
        stream = self.world.stream
        stored = [_shown(stream.store.read(seq)) for seq in range(stream.store.first_seq, stream.store.last_seq + 1)]
        return {
            "answers": self.world.inbox.got,
            "stored": stored,
            "bytes": stream.store.bytes,
            "ids": [entry[:2] for entry in stream.feature(Dedupe).ids.entries()],
            "last_id": (stream.feature(Dedupe).ids.last_id, stream.feature(Dedupe).ids.last_seq),
            "ttls": sorted(seq for _, seq in stream.feature(Expiry).dump()["ttls"]),  # type: ignore[attr-defined]
        }


def _shown(record: Record | None) -> tuple[int, bytes, bytes, bytes] | None:
    return None if record is None else (record.seq, record.subject, record.header, record.data)


@given(STEPS, CONFIGS, st.booleans())
def test_a_run_is_judged_as_its_messages_are(
    steps: list[list[Message] | str], config: dict[str, Any], exact: bool
) -> None:
    if config.get("discard_new_per_subject") and "max_msgs_per_subject" not in config:
        del config["discard_new_per_subject"]
    clock = ManualClock()
    found = []
    for runs, checked in ((False, True), (False, False), (True, False)):
        with tempfile.TemporaryDirectory() as directory:
            publisher = Publisher(directory, copy.deepcopy(clock), runs, config, exact, checked)
            for step in steps:
                publisher.step(step)
            found.append(publisher.outcome())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("lines", "config"),
    [
        ([], {"discard": "new", "max_msgs": 1000}),
        ([], {"discard": "new", "max_bytes": 1 << 20, "max_msgs_per_subject": 1}),
        ([], {"max_msg_size": 100}),
        ([(b"traceparent", b"1")], {}),
        ([(b"Nats-Msg-Id", b"%d")], {}),
        ([(b"Nats-TTL", b"1h")], {"allow_msg_ttl": True}),
        ([(b"Nats-Expected-Stream", b"S")], {"discard": "new", "max_msgs": 1000}),
        ([(b"Nats-Expected-Last-Sequence", b"%d")], {}),
        ([(b"Nats-Expected-Last-Subject-Sequence", b"%d"), (b"Nats-Msg-Id", b"%d")], {"max_msgs": 1000}),
    ],
)
def test_a_run_that_passes_is_taken_at_once(lines: list[tuple[bytes, bytes]], config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        publisher = Publisher(directory, ManualClock(), True, config, False)
        filled = [[(name, value % at if b"%" in value else value) for name, value in lines] for at in range(50)]
        run = run_from([(b"s.a", each, b"x") for each in filled], 0)
        assert publisher.world.stream.proposer.take(run, 0, len(run), CLIENT) == 50
        publisher.world.settle()
        assert publisher.world.stream.store.last_seq == len(publisher.world.inbox.got) == 50


def test_a_duplicate_ends_what_is_taken_at_once(tmp_path: Any) -> None:
    world = World(str(tmp_path))
    ids = [b"1", b"2", b"1", b"3", b"4", b"4", b"5"]
    run = run_from([(b"s.a", [(b"Nats-Msg-Id", each)], b"x") for each in ids], 0)
    ends = [0]
    while ends[-1] < len(run):
        ends.append(world.stream.proposer.take(run, ends[-1], len(run), CLIENT))
    assert ends == [0, 2, 3, 5, 6, 7]
    world.settle()
    answers = [headers_and_body[1] for headers_and_body in world.inbox.got]
    assert [b"duplicate" in answer for answer in answers] == [False, False, False, False, False, True, True]
    assert world.stream.store.msgs == 5


def test_a_run_with_many_refusals_is_soon_judged_one_by_one(tmp_path: Any) -> None:
    world = World(str(tmp_path), discard="new", max_msgs=10)
    asked = []
    fits = world.stream.proposer._fits
    world.stream.proposer._fits = lambda *args: asked.append(args) or fits(*args)  # type: ignore[func-returns-value, method-assign]
    run, at = run_from([(b"s.a", [], b"x")] * 200, 0), 0
    while at < len(run):
        at = world.stream.proposer.take(run, at, len(run), CLIENT)
    world.settle()
    assert world.stream.store.msgs == 10
    assert sum(b"maximum messages exceeded" in body for _, body in world.inbox.got) == 190
    assert sum(len(subjects) > 1 for subjects, *_ in asked) == 8


OF_SUBJECT = b"Nats-Expected-Last-Subject-Sequence"
PLAIN: Message = (b"s.a", [], b"x")
MARKERS = {"allow_msg_ttl": True, "allow_rollup_hdrs": True, "subject_delete_marker_ttl": 60_000_000_000}


@pytest.mark.parametrize(
    ("config", "steps", "shown"),
    [
        ({}, [[PLAIN, (b"s.*", [(OF_SUBJECT, b"0")], b"")]], b'"err_code":10071'),
        ({"retention": "interest"}, [[PLAIN, (b"s.a", [(OF_SUBJECT, b"1")], b"")]], b'"err_code":10071'),
        ({"max_msgs": 1}, [[PLAIN, (b"s.b", [], b""), (b"s.a", [(OF_SUBJECT, b"1")], b"")]], b'"err_code":10071'),
        ({}, [[PLAIN], "settle", "purge", [(b"s.a", [(OF_SUBJECT, b"1")], b"")]], b'"err_code":10071'),
        ({}, [[PLAIN], "settle", [(b"s.a", [(OF_SUBJECT, b"x")], b"")] * 2], b'"err_code":10071'),
        (MARKERS, [[PLAIN, (b"s.a", [(b"Nats-TTL", b"2")], b"")]], b"Nats-TTL: 60"),
        ({"discard": "new", "max_bytes": 200}, [[PLAIN] * 4, [PLAIN] * 3], b"maximum bytes exceeded"),
        ({"discard": "new", "max_msgs": 6}, [[PLAIN] * 4, [PLAIN] * 3], b"maximum messages exceeded"),
        ({"max_msg_size": 40}, [[PLAIN, (b"s.a", [(b"a", b"b" * 20)], b"x" * 4), PLAIN]], b'"err_code":10054'),
        ({"max_msg_size": 4}, [[PLAIN, (b"s.a", [], b"12345"), PLAIN]], b'"err_code":10054'),
    ],
)
def test_what_does_not_pass(config: dict[str, Any], steps: list[Any], shown: bytes) -> None:
    outcomes = []
    for runs in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            publisher = Publisher(directory, ManualClock(), runs, config, False)
            for step in steps:
                publisher.step(step)
            outcomes.append(publisher.outcome())
    assert outcomes[1] == outcomes[0]
    assert shown in repr(outcomes[0]).encode()
