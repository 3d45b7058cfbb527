"""Fuzz tests of the API: any bytes on any API subject get one answer, and have no other effect.

Every field of every request's record is given each of `ODD`, then `LAKESTREAM_FUZZ_ROUNDS` requests (2,000) are drawn
from `LAKESTREAM_FUZZ_SEED`. A request passes if it gets exactly one answer, JSON with or without an error, if no
exception was logged, and if a stream that no request names is unchanged.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
import pytest

from lakestream.account.api import consumers, messages, streams, transfer
from lakestream.account.backup.restores import RestoreRequest
from lakestream.account.backup.snapshots import SnapshotRequest
from lakestream.account.get.query import MsgGetRequest
from lakestream.log.format.record import encode_record
from lakestream.protocol.api.request import Request
from lakestream.protocol.subjects import matches
from lakestream.server.lake.api import FlushApi
from lakestream.stream.consumer.config import CreateConsumerRequest
from lakestream.stream.consumer.pull_request import NextRequest
from lakestream.stream.core.config import StreamConfigRequest
from tests.fuzzing import ROUNDS, SEED
from tests.unit.api_world import ApiWorld
from tests.unit.odd_bodies import BODIES, DEEP, HEADERS, ODD

pytestmark = pytest.mark.unit

GROUP = 100
"""Number of requests to one world; then the other stream is compared, and a new world begins."""


class Asked(NamedTuple):
    """API subject, and the record as which its body is decoded."""

    subject: str
    record: type[msgspec.Struct] | None = None


REQUESTS = (
    Asked("INFO"),
    Asked("STREAM.CREATE.F", StreamConfigRequest),
    Asked("STREAM.UPDATE.A", StreamConfigRequest),
    Asked("STREAM.INFO.A", streams.StreamInfoRequest),
    Asked("STREAM.NAMES", streams.StreamNamesRequest),
    Asked("STREAM.LIST", streams.StreamNamesRequest),
    Asked("STREAM.DELETE.F"),
    Asked("STREAM.PURGE.A", messages.StreamPurgeRequest),
    Asked("STREAM.MSG.GET.A", MsgGetRequest),
    Asked("STREAM.MSG.DELETE.A", messages.MsgDeleteRequest),
    Asked("STREAM.SNAPSHOT.A", SnapshotRequest),
    Asked("STREAM.RESTORE.R", RestoreRequest),
    *(Asked(f"STREAM.{verb}.A") for verb in ("LEADER.STEPDOWN", "PEER.REMOVE", "PEER.EVACUATE", "CANCEL_MOVE")),
    Asked("CONSUMER.CREATE.A", CreateConsumerRequest),
    Asked("CONSUMER.CREATE.A.n", CreateConsumerRequest),
    Asked("CONSUMER.CREATE.A.n.a.>", CreateConsumerRequest),
    Asked("CONSUMER.DURABLE.CREATE.A.n", CreateConsumerRequest),
    Asked("CONSUMER.NAMES.A", consumers.PageRequest),
    Asked("CONSUMER.LIST.A", consumers.PageRequest),
    Asked("CONSUMER.INFO.A.c"),
    Asked("CONSUMER.DELETE.A.n"),
    Asked("CONSUMER.PAUSE.A.c", consumers.PauseRequest),
    Asked("CONSUMER.RESET.A.c", consumers.ResetRequest),
    Asked("CONSUMER.UNPIN.A.c", consumers.UnpinRequest),
    *(Asked(f"CONSUMER.{verb}.A.c") for verb in ("LEADER.STEPDOWN", "PEER.REMOVE", "PEER.EVACUATE")),
)
"""Subjects under `$JS.API.`: each is answered once, in JSON."""

GIVEN: dict[str, dict[str, Any]] = {
    "STREAM.CREATE": {"name": "F", "subjects": ["f"]},
    "STREAM.UPDATE": {"name": "A", "subjects": ["a.>"], "allow_direct": True},
    "STREAM.RESTORE": {"config": {"name": "R", "subjects": ["r"]}, "state": {"messages": 1, "last_seq": 1}},
    "CONSUMER.CREATE": {"stream_name": "A", "config": {"ack_policy": "explicit"}},
    "CONSUMER.DURABLE": {"stream_name": "A", "config": {"ack_policy": "explicit", "durable_name": "n"}},
    "CONSUMER.UNPIN": {"group": "g"},
    "STREAM.MSG": {"seq": 1},
    "STREAM.SNAPSHOT": {"deliver_subject": "away"},
}
"""Required fields of a request, without which its other fields are not checked; by the first two tokens."""


def fields_of(record: type[msgspec.Struct] | None, depth: int = 3) -> Iterator[tuple[str, ...]]:
    """Yield every field of a record as a path of names, including nested records; "" stands for the entry of a list."""
    hints = get_type_hints(record) if record is not None else {}
    for name, hint in hints.items():
        yield (name,)
        for inner in (hint, *get_args(hint)):
            if depth and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                between = ("",) if get_origin(hint) is list else ()
                yield from ((name, *between, *path) for path in fields_of(inner, depth - 1))


def body_of(given: dict[str, Any], path: tuple[str, ...], value: str) -> bytes:
    """Return a body with the fields `given` and, at `path`, the JSON text `value`.

    "" in a path is a list's one entry.
    """
    text = value
    for position, name in reversed(list(enumerate(path))):
        around: Any = given
        for before in path[:position]:
            around = around.get(before, {}) if isinstance(around, dict) else {}
        rest = {key: held for key, held in around.items() if key != name} if isinstance(around, dict) else {}
        if name:
            members = [f"{json.dumps(key)}:{json.dumps(held)}" for key, held in rest.items()]
            text = "{" + ",".join([*members, f"{json.dumps(name)}:{text}"]) + "}"
        else:
            text = f"[{text}]"
    return text.encode("utf-8", "surrogatepass")


def given_for(subject: str) -> dict[str, Any]:
    return GIVEN.get(".".join(subject.split(".")[:2]), {})


class Fuzzed:
    """World with stream A, which requests are about, and stream GOOD, which none names."""

    def __init__(self) -> None:
        self.world = world = ApiWorld()
        self.flush, self.transfer = FlushApi(world.engine, None), transfer.TransferApi(world.engine)
        world.fill(10)
        world.create("GOOD", subjects=["good"])
        world.publish("good", b"x")
        for stream, name in (("A", "c"), ("GOOD", "g")):
            config = {
                "durable_name": name,
                "ack_policy": "explicit",
                "priority_policy": "pinned_client",
                "priority_groups": ["g"],
            }
            made = world.ask(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
            assert "error" not in made, made
        self._tasks: list[asyncio.Future[Any]] = []
        self.before = self.good()

    def good(self) -> list[Any]:
        """Return all answers about stream GOOD."""
        ask = self.world.ask
        answers = [ask("STREAM.INFO.GOOD", {"subjects_filter": ">"}), ask("CONSUMER.INFO.GOOD.g")]
        answers.append(ask("STREAM.MSG.GET.GOOD", {"seq": 1}))
        for answer in answers:
            answer.pop("ts", None)
        return answers

    async def settle(self) -> None:
        """Run until only clients and the clock are awaited."""
        world, quiet = self.world, 0
        while quiet < 4:
            quiet = 0 if world.clock.soon or world.io.waiting or world.clock.spawned else quiet + 1
            world.settle()
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks += [asyncio.ensure_future(work) for work in world.clock.spawned]
            world.clock.spawned.clear()
            if self._tasks:
                await asyncio.sleep(0)
            else:
                break

    async def answers(self, subject: str, body: bytes, header: bytes = b"") -> list[bytes]:
        reply = self.world.send(subject, body, header)
        await self.settle()
        found = [payload for _, payload in self.world.answers(reply)]
        self.world.client.got.clear()
        return found

    async def end(self) -> None:
        """Assert that nothing waits any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def check(self, subject: str, body: bytes, header: bytes = b"") -> dict[str, Any]:
        """Send a request; assert that it gets exactly one answer in JSON and logs no error."""
        answers = await self.answers(f"$JS.API.{subject}", body, header)
        assert len(answers) == 1, (subject, body[:300], header[:300], answers)
        answer = json.loads(answers[0])
        assert isinstance(answer, dict), answer
        assert answer["type"].startswith("io.nats.jetstream.api.v1."), answer
        self.unharmed(subject, body, header)
        return answer

    def unharmed(self, subject: str, body: bytes, header: bytes = b"") -> None:
        assert not self.world.log.errors, (subject, body[:300], header[:300], self.world.log.errors)
        assert not self.world.api.internal_errors

    def tidy(self) -> None:
        """Remove what requests have created, so that each request finds the same state."""
        engine = self.world.engine
        for name in [name for name in engine.streams if name not in ("A", "GOOD")]:
            assert "error" not in self.world.ask(f"STREAM.DELETE.{name}")
        for name in [name for name in engine.streams["A"].consumers if name != "c"]:
            assert "error" not in self.world.ask(f"CONSUMER.DELETE.A.{name}")


Case = Callable[[Fuzzed], Coroutine[Any, Any, Any]]


async def in_groups(cases: list[Case]) -> None:
    for start in range(0, len(cases), GROUP):
        fuzzed = Fuzzed()
        for case in cases[start : start + GROUP]:
            await case(fuzzed)
            fuzzed.tidy()
        assert fuzzed.good() == fuzzed.before
        assert fuzzed.world.publish("good", b"y")["seq"] == 2
        await fuzzed.end()


def checked(subject: str, body: bytes, header: bytes = b"") -> Case:
    return lambda fuzzed: fuzzed.check(subject, body, header)


@pytest.mark.parametrize("asked", REQUESTS, ids=lambda asked: asked.subject)
async def test_any_value_of_any_field_is_answered(asked: Asked) -> None:
    given = given_for(asked.subject)
    bodies = [body_of(given, path, value) for path in fields_of(asked.record) for value in ODD]
    cases = [checked(asked.subject, body) for body in (*bodies, *BODIES)]
    await in_groups(cases + [checked(asked.subject, b"{}", header) for header in HEADERS])


def test_the_requests_are_all_that_the_api_has() -> None:
    routes = ApiWorld().api._routes
    named = [f"{asked.subject}." for asked in REQUESTS]
    missing = [pattern for pattern in routes if not any(matches(pattern.encode(), n[:-1].encode()) for n in named)]
    assert not missing


SILENT = ("a", "STREAM.NONE.x", "CONSUMER.X", "META.x", "ACCOUNT.x", "SERVER.x", "STREAM.INFO.A.b")
"""Subjects under `$JS.API.` that are not answered, whatever the body."""


async def test_what_is_no_request_is_silent() -> None:
    fuzzed = Fuzzed()
    for subject in SILENT:
        for body in (*BODIES, *(value.encode() for value in ODD)):
            assert await fuzzed.answers(f"$JS.API.{subject}", body) == []
    fuzzed.unharmed("", b"")


def _numbered(rng: random.Random) -> str:
    """Draw the last tokens of an ack subject."""
    values = ("0", "1", "2", "-1", "1.5", "x", "", "9" * 30, "18446744073709551616", "²")
    return ".".join(rng.choice(values) for _ in range(rng.choice((5, 5, 5, 4, 6))))


SAID = (b"", b"+ACK", b"+OK", b"-NAK", b"+WPI", b"+TERM", b"+NXT", b"-NAK ", b"+NXT ", b"+TERM ", b"+", b"\xff")
DELAYS = (b"1e400", b"-5s", b"9" * 40, b"9" * 5000 + b"s", b"1.5h", b"NaN", b"\xff", b"1h1h", "٣s".encode())


async def test_acks_and_pulls_of_any_form_harm_nothing() -> None:
    rng = random.Random(SEED)
    bodies = [*BODIES, *(value.encode("utf-8", "replace") for value in ODD), *DELAYS]
    bodies += [body_of({}, path, value) for path in fields_of(NextRequest) for value in ODD]
    bodies += [b'{"delay":%b}' % value.encode("utf-8", "replace") for value in ODD]
    fuzzed = Fuzzed()
    for number in range(len(bodies)):
        said = rng.choice(SAID) + bodies[number]
        found = await fuzzed.answers("$JS.API.CONSUMER.MSG.NEXT.A.c", bodies[number], rng.choice(HEADERS))
        assert len(found) <= 1
        for prefix in ("$JS.ACK.A.c.", "$JS.ACK.dom.acc.A.c.", "$JS.ACK.x.y."):
            assert len(await fuzzed.answers(prefix + _numbered(rng), said)) <= 1
        await fuzzed.answers("$JS.ACK.A.c.1.1.1.1.1", said)
        await fuzzed.answers(rng.choice(("$JS.FC.A.c.x", "$JS.FC.A", "$JS.FC.a.b.A.c.x")), said, rng.choice(HEADERS))
        fuzzed.unharmed("acks", bodies[number])
    assert len(await fuzzed.answers("$JS.API.CONSUMER.MSG.NEXT.A.c", b'{"no_wait":true,"x":' + DEEP.encode())) == 1
    assert fuzzed.good() == fuzzed.before
    await fuzzed.end()


async def test_direct_gets_of_any_form_are_answered() -> None:
    fuzzed = Fuzzed()
    fields = list(fields_of(MsgGetRequest))
    bodies = [body_of({}, path, value) for path in fields for value in ODD]
    bodies += [body_of({"seq": 1, "batch": 2, "multi_last": ["a.>"]}, path, value) for path in fields for value in ODD]
    for body in (*bodies, *BODIES):
        for subject in ("DIRECT.GET.A", "DIRECT.GET.A.a.1", "DIRECT.GET.A.>"):
            assert await fuzzed.answers(f"$JS.API.{subject}", body), (subject, body[:100])
            fuzzed.unharmed(subject, body)
    assert fuzzed.good() == fuzzed.before
    await fuzzed.end()


async def test_what_a_pull_or_a_direct_get_lets_escape_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    fuzzed = Fuzzed()

    def escapes(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("lakestream.stream.consumer.pull.parse_next", escapes)
    monkeypatch.setattr("lakestream.account.get.direct.read_request", escapes)
    for subject in ("CONSUMER.MSG.NEXT.A.c", "DIRECT.GET.A", "DIRECT.GET.A.a.1"):
        reply = fuzzed.world.send(f"$JS.API.{subject}", b"{}")
        fuzzed.world.settle()
        assert [header for header, _ in fuzzed.world.answers(reply)] == [b"NATS/1.0 500 Internal Server Error\r\n\r\n"]
    assert len(fuzzed.world.log.errors) == 3


RULES = (
    *("Nats-Msg-Id", "Nats-Expected-Stream", "Nats-Expected-Last-Msg-Id", "Nats-Expected-Last-Sequence"),
    *("Nats-Expected-Last-Subject-Sequence", "Nats-Expected-Last-Subject-Sequence-Subject", "Nats-Rollup", "Nats-TTL"),
    *(
        "Nats-Batch-Id",
        "Nats-Batch-Sequence",
        "Nats-Batch-Commit",
        "Nats-Incr",
        "Nats-Schedule",
        "Nats-Schedule-Target",
    ),
    *("Nats-Schedule-Source", "Nats-Schedule-TTL", "Nats-Schedule-Time-Zone", "Nats-Schedule-Next", "Nats-Scheduler"),
    *("Nats-Marker-Reason", "Nats-Stream-Source", "Nats-Trace-Dest", "Nats-Schedule-Rollup", "Nats-Last-Stream"),
)
WORDS = ("sub", "all", "never", "commit", "1s", "@every 1s", "@every 1.5h", "@at 2026", "* * * * * *", "eob", "purge")


async def test_publishes_with_any_headers_are_answered() -> None:
    rng = random.Random(SEED)
    fuzzed = Fuzzed()
    config = {"allow_msg_ttl": True, "allow_atomic": True, "allow_msg_schedules": True, "allow_rollup_hdrs": True}
    fuzzed.world.create("P", subjects=["p.>"], allow_batched=True, subject_delete_marker_ttl=10**9, **config)
    fuzzed.world.create("C", subjects=["c"], allow_msg_counter=True)
    values = [value.encode("utf-8", "replace") for value in (*ODD, *WORDS)] + [*DELAYS]
    values = [value for value in values if b"\n" not in value and len(value) < 10_000]
    for number in range(ROUNDS):
        names = rng.sample(RULES, rng.choice((1, 1, 2, 3, 4)))
        block = b"".join(b"%b: %b\r\n" % (name.encode(), rng.choice(values)) for name in names)
        subject = rng.choice(("p.1", "p.2", "c"))
        found = await fuzzed.answers(subject, rng.choice((b"", b"x")), b"NATS/1.0\r\n%b\r\n" % block)
        assert len(found) <= 1, (block, found)
        fuzzed.unharmed(subject, b"", block)
        if not number % 100:
            fuzzed.world.clock.advance(10**9)
    assert fuzzed.good() == fuzzed.before
    await fuzzed.end()


async def test_the_lakes_requests_are_answered() -> None:
    fuzzed = Fuzzed()
    bodies = [*BODIES, *(body_of({}, path, value) for path in fields_of(transfer.ExportRequest) for value in ODD)]
    record = encode_record(11, 0, b"a.1", b"", b"x")
    bodies += [record[:10], record + b"x", encode_record(1 << 63, 1 << 62, b"\xff..>", b"NATS", b"")]
    numbers = ("1.5.1", "-1.0.0", f"{'9' * 19}.{'9' * 19}.{'9' * 19}", "11.0.5", "x.y.z", "1", "11.0.0", "²")
    for body in bodies:
        for subject in ("EXPORT.A", "IMPORT.A", "FLUSH.A", "EXPORT.NONE", *(f"IMPORT1.A.{n}.a.1" for n in numbers)):
            found = await fuzzed.answers(f"$LAKE.API.{subject}", body)
            assert len(found) == 1 or (not found and "IMPORT1" in subject), (subject, body[:100], found)
            fuzzed.unharmed(subject, body)
    assert fuzzed.good() == fuzzed.before
    await fuzzed.end()


def _value(rng: random.Random, depth: int = 0) -> str:
    kind = rng.randrange(6 if depth < 4 else 3)
    if kind == 3:
        return "[" + ",".join(_value(rng, depth + 1) for _ in range(rng.randrange(4))) + "]"
    if kind == 4:
        names = [rng.choice(("a", "name", "Name", "seq", "\\ud800", "")) for _ in range(rng.randrange(4))]
        return "{" + ",".join(f'"{name}":{_value(rng, depth + 1)}' for name in names) + "}"
    return rng.choice(ODD)


def _made_up(rng: random.Random, asked: Asked) -> bytes:
    """Draw a body with several invalid fields and duplicates, perhaps truncated or with a byte changed."""
    given = {key: json.dumps(value) for key, value in given_for(asked.subject).items()}
    members = [f'"{key}":{value}' for key, value in given.items()]
    paths = list(fields_of(asked.record)) or [("x",)]
    for path in rng.choices(paths, k=rng.randrange(5)):
        inner = body_of({}, path, _value(rng)).decode("utf-8", "replace")
        members.insert(rng.randrange(len(members) + 1), inner[1:-1])
    body = ("{" + ",".join(members) + "}").encode("utf-8", "replace")
    if rng.random() < 0.3:
        at = rng.randrange(len(body))
        body = rng.choice((body[:at], body[:at] + rng.randbytes(1) + body[at + 1 :], body + body[at:]))
    return body


async def test_requests_by_chance_are_answered() -> None:
    rng = random.Random(SEED)
    cases = []
    for _ in range(ROUNDS):
        asked = rng.choice(REQUESTS)
        cases.append(checked(asked.subject, _made_up(rng, asked), rng.choice(HEADERS) if rng.random() < 0.2 else b""))
    await in_groups(cases)


def test_a_pause_that_no_time_can_show_is_refused_and_stops_nothing() -> None:
    """A pause that no time can express is refused.

    Accepted, it would be logged but could not be read back: the stream would stop for good.
    """
    fuzzed = Fuzzed()
    for until in ("9999-12-31T23:59:59.9-23:59", "0000-01-01T00:00:00+23:59"):
        assert fuzzed.world.error("CONSUMER.PAUSE.A.c", {"pause_until": until})[:2] == (500, 10104)
        config = {"name": "n", "ack_policy": "explicit", "pause_until": until}
        made = fuzzed.world.ask("CONSUMER.CREATE.A.n", {"stream_name": "A", "config": config})
        assert made["config"]["pause_until"] == until
        fuzzed.tidy()
    assert fuzzed.world.publish("a.1")["seq"] == 11


def _escape(request: Request) -> None:
    raise ZeroDivisionError("what the client sent")


async def test_an_exception_of_a_handler_is_answered_logged_and_counted() -> None:
    world = ApiWorld()
    world.api.route("STREAM.BROKEN.*", "stream_broken_response", _escape)
    answer = world.ask("STREAM.BROKEN.x", b"what the client sent")
    (line,) = world.log.errors  # one line: no traceback, and no part of the request
    digest = hashlib.sha256(b"x\0\0what the client sent").hexdigest()[:16]
    wanted = {
        "code": 500,
        "err_code": 10051,
        "description": f"internal error, see the server's log for request {digest}",
    }
    assert answer == {"type": "io.nats.jetstream.api.v1.stream_broken_response", "error": wanted}
    assert line.startswith(
        f"API request STREAM.BROKEN.* {digest} of account $G: internal error: ZeroDivisionError at test_"
    )
    assert "what the client sent" not in line
    assert (world.api.internal_errors, world.api.errors) == (1, 1)


async def test_an_exception_after_the_answer_is_no_second_answer() -> None:
    world = ApiWorld()

    def answers_first(request: Request) -> None:
        request.respond({"success": True})
        _escape(request)

    world.api.route("STREAM.BROKEN.*", "stream_broken_response", answers_first)
    assert world.ask("STREAM.BROKEN.x") == {"type": "io.nats.jetstream.api.v1.stream_broken_response", "success": True}
    assert world.api.internal_errors == 1


async def test_an_exception_in_a_turn_lets_the_next_one_begin() -> None:
    world = ApiWorld()
    world.create("A")

    def later(request: Request) -> None:
        world.engine.turns.take("S $G A", request, lambda over: _escape(request))

    world.api.route("STREAM.BROKEN.*", "stream_broken_response", later)
    sent = [world.send("$JS.API.STREAM.UPDATE.A", {"name": "A"}), world.send("$JS.API.STREAM.BROKEN.A")]
    sent.append(world.send("$JS.API.STREAM.UPDATE.A", {"name": "A", "description": "d"}))
    world.settle()
    answers = [json.loads(world.answers(reply)[0][1]) for reply in sent]
    assert [answer.get("error", {}).get("code") for answer in answers] == [None, 500, None]
    assert world.stream("A").failed is None
