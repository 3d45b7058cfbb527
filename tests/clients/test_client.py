"""Tests of the Python client with servers: the past by direct gets, Arrow data from the lake and by NATS, errors."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from lakestream_client import (
    BadFilter,
    CannotConnect,
    Client,
    DirectGetDisabled,
    LakeNotReachable,
    NoAnswer,
    NoJetStream,
    NoSuchKey,
    NoSuchMessage,
    NoSuchStream,
    NoTimeTravel,
    PastUnavailable,
    Refused,
    TooManySubjects,
    connect,
    sync,
)
from lakestream_client.direct_get import PAGE_MESSAGES
from lakestream_client.gateway import connect_user
from lakestream_client.http_users import HttpUsers, Rejected
from tests.conftest import StartServer
from tests.s3_server import S3Server
from tests.servers import Kind, Server
from tests.unit.client.test_filters import row_fits, some_filters

pytestmark = pytest.mark.conformance

CONFIG = 'lake { seal_age: "1h" }\n'
TRAVEL = {"lakestream.time_travel": "30d"}
SUBJECTS = ["o.de", "o.de.x", "o.fr.x", "o.fr.y", "it's", "o-de", "ö.ü.%", "o.de.x.y"]
COUNT = 400


@pytest.mark.parametrize("gateway", [False, True])
async def test_a_rejected_login_leaves_no_socket(gateway: bool, start_server: StartServer) -> None:
    """nats-py leaves it open. Gateways log in for strangers, as often as these like."""
    server = start_server(config="authorization { user: a, password: b }")

    async def log_in() -> None:
        login = {"user": "a", "password": "c"}
        call = connect_user("lakestream test", server.url, False, login) if gateway else connect(server.url, **login)
        with pytest.raises((CannotConnect, nats.errors.Error)):
            await call

    await log_in()
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            await log_in()
        assert len(os.listdir("/proc/self/fd")) <= before
    finally:
        gc.enable()


async def test_a_login_in_the_url_of_a_gateway_is_not_that_of_its_users(start_server: StartServer) -> None:
    """The schema registry and the Iceberg catalog have it for themselves: `--server nats://user:password@host`."""
    server = start_server(config="authorization { user: a, password: b }")
    users = HttpUsers(server.url.replace("://", "://a:b@"), "lakestream test")
    with pytest.raises(Rejected):
        await users.find("")
    assert (await users.find(f"Basic {base64.b64encode(b'a:b').decode()}")).account == "$G"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path_factory.mktemp("ours") / "store", config=CONFIG)
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(Kind.REAL, tmp_path_factory.mktemp("real") / "store")
    server.start()
    yield server
    server.kill()


@pytest.fixture(params=[Kind.OURS, Kind.REAL], ids=lambda kind: kind.value)
def either(request: pytest.FixtureRequest) -> Server:
    """Return each of the servers."""
    found = request.getfixturevalue("ours" if request.param is Kind.OURS else "real")
    assert isinstance(found, Server)
    return found


@pytest.fixture
async def client(ours: Server) -> AsyncIterator[Client]:
    async with await connect(ours.url) as client:
        yield client


async def stream(client: Client, name: str, **config: Any) -> None:
    """Create a stream of subjects that begin with its name, anew; direct gets are allowed."""
    with contextlib.suppress(nats.js.errors.NotFoundError):
        await client.jetstream.delete_stream(name)
    config.setdefault("subjects", [f"{name}.>"])
    config.setdefault("allow_direct", True)
    await client.jetstream.add_stream(StreamConfig(name=name, **config))


async def publish(client: Client, messages: list[tuple[str, bytes]]) -> None:
    for start in range(0, len(messages), 500):
        some = messages[start : start + 500]
        await asyncio.gather(*[await client.jetstream.publish_async(subject, data) for subject, data in some])


# ------------------------------------------------------------------ Arrow
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "consumer"])
async def test_filters_through_nats_equal_filters_of_rows(either: Server, direct: bool) -> None:
    dice = random.Random(f"{direct}")
    async with await connect(either.url) as client:
        await stream(client, "F", subjects=["o.>", "it's", "o-de", "ö.>"], allow_direct=direct)
        for number in range(COUNT):
            headers = {"Tag": f"t{number}"} if number % 3 == 0 else None
            await client.jetstream.publish(dice.choice(SUBJECTS), b"%d" % number, headers=headers)
        for seq in dice.sample(range(1, COUNT), 30):
            await client.jetstream.delete_msg("F", seq)
        rows = (await client.to_arrow("F", source="nats")).to_pylist()
        assert len(rows) == COUNT - 30
        if either.kind is Kind.OURS:
            assert (await client.to_arrow("F", source="lake")).to_pylist() == rows
        times = [row["time_ns"] for row in rows]
        for _ in range(25):
            filters = some_filters(dice, SUBJECTS, times)
            found = await client.to_arrow("F", **filters, source="nats", batch_size=dice.choice([7, 100, 10_000]))
            assert found.to_pylist() == [row for row in rows if row_fits(row, filters)], filters
        if not direct:
            assert await client.jetstream.consumers_info("F") == [], "they are deleted after use"
        await client.jetstream.delete_stream("F")


async def test_every_acked_message_is_read(client: Client) -> None:
    await stream(client, "Z")
    for count in range(1, 20):
        await client.jetstream.publish(f"Z.{count % 3}", b"x")
        for source in ("lake", "nats"):
            assert (await client.to_arrow("Z", ["seq"], source=source)).column("seq").to_pylist() == [
                *range(1, count + 1)
            ]


async def test_a_large_stream_comes_in_pages_and_can_be_left(either: Server) -> None:
    async with await connect(either.url) as client:
        await stream(client, "L")
        count = 2 * PAGE_MESSAGES + 100
        await publish(client, [(f"L.{number % 5}", b"%d" % number) for number in range(count)])
        reader = await client.scan("L", ["seq", "data"], source="nats", batch_size=1000)
        first = reader.read_next_batch()  # in the event loop's own thread
        assert first.column("seq").to_pylist() == list(range(1, 1001))
        assert first.column("data")[0].as_py() == b"0"
        assert [thread.name for thread in threading.enumerate()].count("lakestream scan") == 1
        del reader
        assert "lakestream scan" not in [thread.name for thread in threading.enumerate()]
        await client.jetstream.publish("L.1", b"later")
        reader = await client.scan("L", ["seq"], source="nats")
        await client.close()
        seqs = [seq for batch in reader for seq in batch.column("seq").to_pylist()]
        assert seqs == list(range(1, count + 2)), "a reader does not need the connection"


async def test_what_consumers_deliver_is_what_is_read(client: Client) -> None:
    await stream(client, "C")
    for number in range(50):
        await client.jetstream.publish(f"C.{number % 4}", b"%d" % number, headers={"A": "1", "B": "2"})
    subscription = await client.jetstream.subscribe("C.>", ordered_consumer=True, config=ConsumerConfig())
    delivered = [await subscription.next_msg(timeout=10) for _ in range(50)]
    for source in ("lake", "nats"):
        rows = (await client.to_arrow("C", source=source)).to_pylist()
        assert [(row["seq"], row["subject"], row["data"], dict(row["headers"])) for row in rows] == [
            (each.metadata.sequence.stream, each.subject, each.data, {"A": ["1"], "B": ["2"]}) for each in delivered
        ]


def test_help_shows_the_parameters_of_a_read() -> None:
    import pydoc

    from lakestream.client import Client
    from lakestream.client.sync import SyncClient

    for name in ("scan", "to_arrow", "to_polars", "to_pandas"):
        for each in (Client, SyncClient):
            shown = pydoc.render_doc(getattr(each, name), renderer=pydoc.plaintext)
            assert all(f"{parameter}: " in shown for parameter in ("columns", "subject", "first_seq", "as_of", "where"))
    assert "the range of sequences" in str(Client.to_arrow.__doc__)


async def test_data_frames(client: Client) -> None:
    await stream(client, "D")
    await publish(client, [("D.a", b"1"), ("D.b", b"2")])
    frame = await client.to_polars("D", ["subject", "data"])
    assert frame.rows() == [("D.a", b"1"), ("D.b", b"2")]
    pandas = await client.to_pandas("D", subject="D.b")
    assert (pandas["seq"].tolist(), str(pandas["time"].dtype)) == ([2], "datetime64[us, UTC]")


async def test_a_stream_in_memory_is_read_through_nats(client: Client) -> None:
    await stream(client, "M", storage=StorageType.MEMORY)
    await publish(client, [("M.a", b"1")])
    assert (await client.to_arrow("M", ["data"])).to_pylist() == [{"data": b"1"}]
    with pytest.raises(LakeNotReachable, match=r'memory storage.*source="nats"'):
        await client.to_arrow("M", source="lake")


async def test_messages_removed_from_an_archive_are_read_on_request(client: Client) -> None:
    await stream(client, "A", max_msgs_per_subject=1, metadata={"lakestream.retention": "archive"})
    await publish(client, [(f"A.{number % 3}", b"%d" % number) for number in range(6)])
    assert (await client.to_arrow("A")).num_rows == 3, "seals a segment; an archive has times of removals by segment"
    before = time.time_ns()
    await publish(client, [(f"A.{number % 3}", b"%d" % number) for number in range(6, 9)])
    for source in ("lake", "nats"):
        left = await client.to_arrow("A", ["seq"], source=source)
        assert left.column("seq").to_pylist() == [7, 8, 9]
    kept = (await client.to_arrow("A", ["seq", "removed_time_ns"])).to_pylist()
    assert [row["seq"] for row in kept] == list(range(1, 10))
    assert [row["seq"] for row in kept if row["removed_time_ns"]] == list(range(1, 7))
    assert (await client.to_arrow("A", ["seq"], as_of=before)).column("seq").to_pylist() == [4, 5, 6]
    assert (await client.to_arrow("A", ["seq"], as_of=time.time_ns())).column("seq").to_pylist() == [7, 8, 9]
    with pytest.raises(NoTimeTravel, match=r"it is an archive.*to_arrow\(…, as_of=…\)"):
        await client.as_of("A", before).get("A.1")


# ------------------------------------------------------------------ the past
async def test_a_stream_is_read_as_it_was(client: Client) -> None:
    await stream(client, "P", max_msgs_per_subject=1, metadata=TRAVEL)
    states: list[tuple[int, dict[str, bytes]]] = []
    held: dict[str, bytes] = {}
    for number in range(40):
        subject = f"P.{number % 7}"
        await client.jetstream.publish(subject, b"%d" % number)
        held[subject] = b"%d" % number
        info = await client.jetstream.get_msg("P", number + 1)
        states.append((info.time and (await at_ns(client, number + 1)), dict(held)))
    await client.jetstream.purge_stream("P", subject="P.3")
    for seq, (ns, state) in enumerate(states, 1):
        for as_of in (client.as_of("P", seq=seq), client.as_of("P", ns)):
            assert {each.subject: each.data async for each in as_of.last()} == state
    assert (await client.as_of("P", seq=20).get("P.3")).data == b"17"
    assert {each.data async for each in client.as_of("P", seq=20).last(["P.1", "P.2"])} == {b"15", b"16"}
    assert [each.data async for each in client.as_of("P", time.time_ns()).last("P.3")] == []
    for ns, state in states[::5]:
        rows = (await client.to_arrow("P", as_of=ns)).to_pylist()
        assert {row["subject"]: row["data"] for row in rows} == state
    assert [each.data async for each in client.history("P", "P.4")] == [b"39", b"32", b"25", b"18", b"11", b"4"]
    assert [each.seq async for each in client.history("P", "P.4", limit=2)] == [40, 33]
    with pytest.raises(NoSuchMessage, match=r"no message of P\.6 as of sequence 2"):
        await client.as_of("P", seq=2).get("P.6")


async def at_ns(client: Client, seq: int) -> int:
    """Return the time of a message of stream P, to the ns."""
    (found,) = [each async for each in client.as_of("P", seq=seq).last() if each.seq == seq]
    return found.time_ns


async def test_a_bucket_is_read_as_it_was(client: Client) -> None:
    kv = await client.jetstream.create_key_value(bucket="conf", direct=True)
    config = (await client.jetstream.stream_info("KV_conf")).config
    config.metadata = TRAVEL
    await client.jetstream.update_stream(config)
    await kv.put("db.host", b"one")
    before = time.time_ns()
    await kv.put("db.host", b"two")
    await kv.put("db.port", b"1")
    await kv.delete("db.port")
    bucket = client.bucket("conf")
    assert (await bucket.at(before).get("db.host")).value == b"one"
    assert await bucket.at(before).keys() == ["db.host"]
    assert await bucket.at(seq=3).keys() == ["db.host", "db.port"]
    assert [(e.key, e.value, e.revision) async for e in bucket.at(seq=3).items("db.p*")] == []
    assert [(e.key, e.value, e.revision) async for e in bucket.at(seq=3).items("*.port")] == [("db.port", b"1", 3)]
    assert await bucket.at(seq=4).keys() == ["db.host"]
    with pytest.raises(NoSuchKey, match=r"bucket conf had no key db\.port as of sequence 4"):
        await bucket.at(seq=4).get("db.port")
    assert [e.operation async for e in bucket.history("db.port")] == ["DEL", "PUT"]
    assert [e.value async for e in bucket.history("db.host")] == [b"two", b"one"]


async def test_more_subjects_than_one_answer_may_have(client: Client) -> None:
    await stream(client, "W", max_msgs_per_subject=1, metadata=TRAVEL)
    await publish(client, [(f"W.{number}", b"old") for number in range(1500)])
    before = time.time_ns()
    await publish(client, [(f"W.{number}", b"new") for number in range(700)])
    found = {each.subject: each.data async for each in client.as_of("W", before).last()}
    assert found == {f"W.{number}": b"old" for number in range(1500)}
    await client.jetstream.purge_stream("W", subject="W.1200")
    await publish(client, [("W.more", b"")])
    later = {f"W.{number}": b"new" if number < 700 else b"old" for number in range(1500)}
    for seq, expected in ((1500, found), (2200, later), (1100, dict(list(found.items())[:1100]))):
        assert {each.subject: each.data async for each in client.as_of("W", seq=seq).last()} == expected, seq
    assert (await client.as_of("W", seq=1500).get("W.1")).data == b"old"


async def test_more_subjects_than_one_answer_may_have_without_the_lake(ours: Server, tmp_path: Path) -> None:
    """The error names the two ways out: fewer subjects, or a lake that this machine can read."""
    async with await connect(ours.url, lake=tmp_path) as client:
        await stream(client, "V", max_msgs_per_subject=1, metadata=TRAVEL)
        await publish(client, [(f"V.{number}", b"old") for number in range(1100)])
        for point in ({"seq": 1100}, {"time": time.time_ns()}):
            with pytest.raises(TooManySubjects, match=r"Ask for fewer subjects at once, or .* `lake` of connect\(\)"):
                await client.as_of("V", **point).get(">")
            assert (await client.as_of("V", **point).get("V.1")).data == b"old"


async def test_what_is_left_of_the_past_in_any_stream(either: Server) -> None:
    async with await connect(either.url) as client:
        await stream(client, "X")
        await publish(client, [(f"X.{number % 1100}", b"%d" % number) for number in range(1200)])
        with pytest.raises(NoTimeTravel, match=r"does not record.*lakestream.time_travel.*`exact=False`"):
            await client.as_of("X", seq=3).get("X.1")
        found = [each async for each in client.as_of("X", seq=1190, exact=False).last()]
        assert [each.seq for each in found] == list(range(91, 1191)), "more than 1024, in order"
        assert [each.seq async for each in client.history("X", "X.5")] == [1106, 6]
        await client.jetstream.delete_stream("X")


async def test_a_server_that_does_not_record_the_past_says_so(real: Server) -> None:
    async with await connect(real.url) as client:
        await stream(client, "Y", metadata=TRAVEL)
        await publish(client, [("Y.a", b"")])
        with pytest.raises(NoTimeTravel, match=r"not lakestream"):
            await client.as_of("Y", seq=1).get("Y.a")
        with pytest.raises(LakeNotReachable, match=r"not lakestream.*`lake` of connect"):
            await client.to_arrow("Y", as_of=time.time_ns())


# ------------------------------------------------------------------ errors
async def test_errors_say_what_to_do(client: Client) -> None:
    for read in (client.to_arrow("NONE"), client.as_of("NONE", seq=1).get("a"), anext(client.history("NONE", "a"))):
        with pytest.raises(NoSuchStream, match=r"no stream NONE in this account"):
            await read
    with pytest.raises(NoSuchStream, match=r"key-value bucket none"):
        await client.bucket("none").at(seq=1).keys()
    await stream(client, "E", allow_direct=False, metadata=TRAVEL)
    await publish(client, [("E.a", b"")])
    with pytest.raises(DirectGetDisabled, match=r"nats stream edit E --allow-direct"):
        await anext(client.history("E", "E.a"))
    for point in ({"seq": 1}, {"time": time.time_ns()}):
        assert (await client.as_of("E", **point).get("E.a")).seq == 1, "the lake has it too"
    for arguments in ({}, {"time": 1, "seq": 1}, {"seq": 0}, {"time": "then"}):
        with pytest.raises(BadFilter):
            client.as_of("E", **arguments)
    with pytest.raises(BadFilter, match=r"without wildcards"):
        await anext(client.history("E", "E.*"))
    await stream(client, "Q", retention=RetentionPolicy.WORK_QUEUE, allow_direct=False)
    await client.jetstream.add_consumer("Q", durable_name="one", ack_policy="explicit")
    await publish(client, [("Q.a", b"")])
    with pytest.raises(Refused, match=r"direct gets are not allowed"):
        await client.to_arrow("Q", source="nats")


async def test_the_past_that_was_not_recorded(client: Client) -> None:
    await stream(client, "R", max_msgs_per_subject=1)
    await publish(client, [("R.a", b"1"), ("R.a", b"2")])
    config = (await client.jetstream.stream_info("R")).config
    config.metadata = TRAVEL
    await client.jetstream.update_stream(config)
    await publish(client, [("R.a", b"3")])
    with pytest.raises(PastUnavailable, match=r"cannot be read as of sequence 1: .*The past begins"):
        await client.as_of("R", seq=1).get("R.a")


async def test_a_lake_that_is_not_here(ours: Server, tmp_path: Path) -> None:
    async with await connect(ours.url, lake=tmp_path) as client:
        await stream(client, "H")
        await publish(client, [("H.a", b"1")])
        with pytest.raises(LakeNotReachable, match=r"no lake at .*Mount the lake here"):
            await client.to_arrow("H", source="lake")
        assert (await client.to_arrow("H", ["data"])).to_pylist() == [{"data": b"1"}], "through the server"


@pytest.mark.heavy
async def test_a_lake_in_an_object_store(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3_server.enter(monkeypatch)
    config = f'lake {{ url: "{s3_server.url("lake")}", seal_age: "1h" }}\n'
    server = Server(Kind.OURS, tmp_path / "store", config=config)
    server.start()
    try:
        async with await connect(server.url) as client:
            await stream(client, "O", max_msgs_per_subject=1, metadata=TRAVEL)
            await publish(client, [(f"O.{number % 3}", b"%d" % number) for number in range(9)])
            before = time.time_ns()
            await publish(client, [("O.0", b"9")])
            assert (await client.to_arrow("O", ["seq"], source="lake")).column("seq").to_pylist() == [8, 9, 10]
            assert (await client.to_arrow("O", ["seq"], as_of=before)).column("seq").to_pylist() == [7, 8, 9]
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        async with await connect(server.url) as client:
            assert (await client.to_arrow("O", ["seq"])).num_rows == 3, "through the server"
            with pytest.raises(LakeNotReachable, match=r"stream O cannot be read from the lake: .*Mount the lake here"):
                await client.to_arrow("O", source="lake")
    finally:
        server.kill()


async def test_a_server_that_cannot_be_reached() -> None:
    began = time.monotonic()
    with pytest.raises(
        CannotConnect, match=r"cannot connect to nats://127.0.0.1:1: .*Connect call failed.*Check the address"
    ):
        await connect("nats://me:secret@127.0.0.1:1")
    assert time.monotonic() - began < 5


async def test_only_the_connection_of_the_caller_calls_back(ours: Server) -> None:
    called: list[str] = []

    async def closed() -> None:
        called.append(threading.current_thread().name)

    client = await connect(ours.url, closed_cb=closed)
    await stream(client, "K")
    await publish(client, [("K.a", b"")])
    assert (await client.to_arrow("K", source="nats")).num_rows == 1
    assert called == []
    await client.close()
    assert called == [threading.current_thread().name]


def test_logins_and_permissions(tmp_path: Path) -> None:
    config = (
        CONFIG
        + """
    accounts { A { jetstream: enabled, users: [
      { user: all, password: x },
      { user: some, password: x, permissions { publish: { deny: ["$LAKE.>", "$JS.API.DIRECT.>"] } } }
    ] }, B { users: [{ user: none, password: x }] } }
    """
    )
    server = Server(Kind.OURS, tmp_path / "store", config=config)
    server.start()
    try:
        with pytest.raises(CannotConnect, match=r"Authorization") as refused:
            sync.connect(server.url, user="all", password="secret word")
        assert "secret word" not in str(refused.value)
        with sync.connect(server.url, user="all", password="x") as client:
            client.run(client.jetstream.add_stream(StreamConfig(name="A", subjects=["A"], allow_direct=True)))
            client.run(client.jetstream.publish("A", b"1"))
            assert client.to_arrow("A", source="lake").num_rows == 1
        with sync.connect(server.url, user="some", password="x", timeout=1) as client:
            with pytest.raises(LakeNotReachable, match=r"permission"):
                client.to_arrow("A", source="lake")
            with pytest.raises(NoAnswer, match=r"permissions"):
                client.as_of("A", seq=1, exact=False).get("A")
        with sync.connect(server.url, user="none", password="x") as client, pytest.raises(NoJetStream):
            client.to_arrow("A")
    finally:
        server.kill()


# ------------------------------------------------------------------ without an event loop
def test_the_blocking_client_does_the_same(ours: Server) -> None:
    before = set(threading.enumerate())
    with sync.connect(ours.url) as client:
        js = client.jetstream
        config = StreamConfig(name="S", subjects=["S.>"], allow_direct=True, max_msgs_per_subject=1, metadata=TRAVEL)
        client.run(js.add_stream(config))
        for number in range(20):
            client.run(js.publish(f"S.{number % 3}", b"%d" % number))
        assert client.to_arrow("S", ["data"], subject="S.1").to_pylist() == [{"data": b"19"}]
        assert sum(batch.num_rows for batch in client.scan("S", source="nats")) == 3
        assert client.to_polars("S").height == len(client.to_pandas("S")) == 3
        as_of = client.as_of("S", seq=4)
        assert as_of.get("S.0").data == b"3"
        assert [each.seq for each in as_of.last()] == [2, 3, 4]
        assert [each.data for each in client.history("S", "S.2", limit=2)] == [b"17", b"14"]
        client.run(js.create_key_value(bucket="b", direct=True))
        at = client.bucket("b").at(seq=1, exact=False)
        assert at.keys() == list(at.items()) == []
        with pytest.raises(NoSuchKey):
            at.get("k")
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    ("package", "method", "purpose"),
    [
        ("polars", "to_polars", "to_polars()"),
        ("pandas", "to_pandas", "to_pandas()"),
        ("pyarrow", "to_arrow", "reading a stream as Arrow data"),
        ("deltalake", "scan", "reading the lake"),
    ],
)
def test_a_missing_package_is_named(ours: Server, package: str, method: str, purpose: str) -> None:
    program = f"""
import sys
sys.modules[{package!r}] = None  # as if it were not installed
from lakestream_client import MissingPackage
from lakestream_client.sync import connect
with connect({ours.url!r}) as client:
    client.run(client.jetstream.add_stream(name="ANY"))
    try:
        client.{method}("ANY")
    except MissingPackage as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    expected = f"{purpose} needs {package}, which is not installed: pip install 'lakestream-server[lake]'\n"
    assert done.stdout == expected, done.stderr
