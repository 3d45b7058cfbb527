"""Tests of an account's limits on reservations and storage, and of the order of the checks."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from lakestream.protocol.accounts import UNLIMITED, JetStreamLimits
from lakestream.protocol.api.errors import ApiError
from lakestream.stream.core.account_limits import check_consumers, check_reserved, check_size, check_streams, lowest
from lakestream.stream.core.config import StreamConfig
from tests.unit.api_world import ApiWorld

pytestmark = pytest.mark.unit

STORAGES = ("memory", "file")


def refused(check: Any, *args: Any) -> int:
    """Return the err_code of the refusal; 0 for none."""
    try:
        check(*args)
    except ApiError as error:
        return error.err_code
    return 0


def config(storage: str = "file", **fields: Any) -> StreamConfig:
    return StreamConfig(name="S", storage=storage, **fields)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------- each limit
@pytest.mark.parametrize(("limit", "others", "code"), [(-1, 9, 0), (0, 9, 0), (2, 1, 0), (2, 2, 10027), (2, 3, 10027)])
def test_streams_are_counted(limit: int, others: int, code: int) -> None:
    assert refused(check_streams, JetStreamLimits(max_streams=limit), others) == code


@pytest.mark.parametrize(("limit", "asked", "code"), [(-1, 9, 0), (0, 9, 0), (2, 2, 0), (2, -1, 0), (2, 3, 10026)])
def test_a_stream_may_not_allow_more_consumers_than_its_account(limit: int, asked: int, code: int) -> None:
    assert refused(check_consumers, JetStreamLimits(max_consumers=limit), asked) == code


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(("size", "code"), [(-1, 0), (0, 0), (1, 0), (500, 0), (501, 10122)])
def test_a_stream_may_be_so_large(storage: str, size: int, code: int) -> None:
    limits = JetStreamLimits(memory_max_stream_bytes=500, disk_max_stream_bytes=500)
    assert refused(check_size, limits, config(storage, max_bytes=size)) == code
    assert refused(check_size, UNLIMITED, config(storage, max_bytes=size)) == 0


@pytest.mark.parametrize(("size", "code"), [(-1, 10113), (0, 10113), (1, 0)])
def test_a_stream_has_to_say_how_large_it_may_be(size: int, code: int) -> None:
    limits = JetStreamLimits(max_bytes_required=True, disk_max_stream_bytes=500)
    assert refused(check_size, limits, config(max_bytes=size)) == code


@pytest.mark.parametrize(("storage", "code"), [("memory", 10028), ("file", 10047)])
@pytest.mark.parametrize(
    ("limit", "size", "reserved", "replicas", "fits"),
    [
        (-1, 10**9, 10**9, 3, True),
        (0, -1, 0, 1, False),
        (0, 1, 0, 1, False),
        (1000, -1, 999, 1, True),
        (1000, -1, 1000, 1, False),
        (1000, 400, 600, 1, True),
        (1000, 401, 600, 1, False),
        (1000, 200, 600, 2, True),
        (1000, 200, 600, 3, False),
    ],
)
def test_what_streams_reserve_has_to_fit(
    storage: str, code: int, limit: int, size: int, reserved: int, replicas: int, fits: bool
) -> None:
    limits = JetStreamLimits(**{"max_memory" if storage == "memory" else "max_file": limit})
    assert refused(check_reserved, limits, config(storage, max_bytes=size), reserved, replicas) == (0 if fits else code)
    other = "file" if storage == "memory" else "memory"
    assert refused(check_reserved, limits, config(other, max_bytes=size), reserved, replicas) == 0


def test_the_lowest_of_limits_leaves_out_what_is_none() -> None:
    assert lowest(-1, 0) == 0
    assert lowest(-1, 5, 3, 0) == 3
    assert lowest() == 0


# ---------------------------------------------------------------------------------------------------- which comes first
LIMITS = JetStreamLimits(
    max_memory=10240,
    max_file=10240,
    max_streams=3,
    max_consumers=2,
    max_ack_pending=50,
    memory_max_stream_bytes=5120,
    disk_max_stream_bytes=5120,
    max_bytes_required=True,
)
REASONS: dict[str, dict[str, Any]] = {
    "consumers": {"max_consumers": 5},
    "invalid": {"max_age": -1},
    "no size": {"max_bytes": -1},
    "too large": {"max_bytes": 6000},
    "no room": {"max_bytes": 4800},
    "replicas": {"num_replicas": 3},
    "overlap": {"subjects": ["X2"]},
}
CODES = {
    "consumers": 10026,
    "invalid": 10052,
    "no size": 10113,
    "too large": 10122,
    "no room": 10047,
    "replicas": 10074,
    "overlap": 10065,
}
CREATING = ("consumers", "invalid", "no size", "too large", "replicas", "no room", "overlap")
STATED = ("consumers", "no room", "invalid", "no size", "too large", "replicas", "overlap")
UPDATING = ("invalid", "no size", "too large", "replicas", "consumers", "no room", "overlap")
PAIRS = [
    pair
    for pair in itertools.combinations(REASONS, 2)
    if len({"no size", "too large", "no room"}.intersection(pair)) < 2
]


def world(**taken: int) -> ApiWorld:
    made = ApiWorld()
    for name, size in taken.items():
        made.create(name, max_bytes=size, storage="file")
    made.engines.serve("$G", LIMITS)
    return made


def first(order: tuple[str, ...], pair: tuple[str, str]) -> int:
    return CODES[min(pair, key=order.index)]


@pytest.mark.parametrize("pair", PAIRS)
def test_the_first_refusal_of_a_creation(pair: tuple[str, str]) -> None:
    made = world(X1=4500, X2=4500)
    body = {"name": "Z", "max_bytes": 100} | REASONS[pair[0]] | REASONS[pair[1]]
    assert made.ask("STREAM.CREATE.Z", body)["error"]["err_code"] == first(CREATING, pair)
    if "too large" not in pair:  # which has no room either
        stated = made.ask("STREAM.CREATE.Z", body | {"storage": "file"})["error"]["err_code"]
        assert stated == first(STATED, pair)


@pytest.mark.parametrize("reason", REASONS)
def test_one_stream_too_many_is_refused_before_all_else(reason: str) -> None:
    made = world(X1=4500, X2=4500, X3=100)
    body = {"name": "Z", "max_bytes": 100} | REASONS[reason]
    assert made.ask("STREAM.CREATE.Z", body)["error"]["err_code"] == 10027


def test_one_that_exists_is_not_one_too_many() -> None:
    made = world(X1=4500, X2=4500, X3=100)
    assert "error" not in made.ask("STREAM.CREATE.X1", {"name": "X1", "max_bytes": 4500})
    assert made.ask("STREAM.CREATE.X1", {"name": "X1", "max_bytes": 10})["error"]["err_code"] == 10058
    assert made.ask("STREAM.CREATE.X1", {"name": "X1", "max_bytes": -1})["error"]["err_code"] == 10113


@pytest.mark.parametrize("pair", PAIRS)
def test_the_first_refusal_of_an_update(pair: tuple[str, str]) -> None:
    made = world(X1=3500, X2=3500, X3=3000)
    body = {"name": "X1", "max_bytes": 3500} | REASONS[pair[0]] | REASONS[pair[1]]
    assert made.ask("STREAM.UPDATE.X1", body)["error"]["err_code"] == first(UPDATING, pair)


def test_what_does_not_grow_stays_possible_after_a_limit_was_lowered() -> None:
    made = world(X1=4000, X2=4000)
    made.engines.serve("$G", JetStreamLimits(max_file=5000))
    assert "error" not in made.ask("STREAM.UPDATE.X1", {"name": "X1", "max_bytes": 4000, "description": "d"})
    assert made.ask("STREAM.UPDATE.X1", {"name": "X1", "max_bytes": 4001})["error"]["err_code"] == 10047
    assert "error" not in made.ask("STREAM.UPDATE.X1", {"name": "X1", "max_bytes": 1000})


def test_account_info_shows_the_limits() -> None:
    shown = world().ask("INFO")["limits"]
    assert shown == {
        "max_memory": 10240,
        "max_storage": 10240,
        "max_streams": 3,
        "max_consumers": 2,
        "max_ack_pending": 50,
        "memory_max_stream_bytes": 5120,
        "storage_max_stream_bytes": 5120,
        "max_bytes_required": True,
    }


# ---------------------------------------------------------------------------------------------------- publishing
def test_members_of_an_atomic_batch_are_weighed_together_when_it_is_committed() -> None:
    made = ApiWorld()
    made.create("S", allow_atomic=True)
    made.engines.serve("$G", JetStreamLimits(max_file=3000))

    def member(n: int, commit: bytes = b"") -> list[tuple[bytes, bytes]]:
        header = b"NATS/1.0\r\nNats-Batch-Id: u\r\nNats-Batch-Sequence: %d\r\n%b\r\n" % (n, commit)
        reply = made.send("S", b"x" * 900, header)
        made.settle()
        return made.answers(reply)

    assert [member(n) for n in (1, 2, 3)] == [[(b"", b"")]] * 3
    ((_, answer),) = member(4, b"Nats-Batch-Commit: 1\r\n")
    assert json.loads(answer)["error"]["err_code"] == 10002
    assert made.engine.streams["S"].store.msgs == 0


def test_a_duplicate_is_answered_before_a_lack_of_room() -> None:
    made = ApiWorld()
    made.create("S")
    assert made.publish("S", b"x" * 100, Nats_Msg_Id="a")["seq"] == 1
    made.engines.serve("$G", JetStreamLimits(max_file=100))
    assert made.publish("S", b"x", Nats_Msg_Id="a")["duplicate"]
    assert made.publish("S", b"x", Nats_Msg_Id="b")["error"]["err_code"] == 10002
    assert made.publish("S", b"x", Nats_Expected_Last_Sequence="7")["error"]["err_code"] == 10071
    made.engines.serve("$G", UNLIMITED)
    assert "duplicate" not in made.publish("S", b"x", Nats_Msg_Id="b")
