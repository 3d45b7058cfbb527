"""Tests of the API with odd values: any bytes on any API subject get one answer, and have no other effect.

Every field of every request's record is given each of `ODD`. A request passes if it gets exactly one answer, JSON with
or without an error, if no exception was logged, and if a stream that no request names is unchanged. Arbitrary requests
are drawn by the target `api` of tests/fuzz.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

from lakestream.account.api import transfer
from lakestream.account.get.query import MsgGetRequest
from lakestream.log.format.record import encode_record
from lakestream.protocol.api.request import Request
from lakestream.protocol.subjects import matches
from lakestream.stream.consumer.pull_request import NextRequest
from tests.fuzz.targets.api import REQUESTS, Asked, Fuzzed, given_for
from tests.fuzzing import SEED
from tests.unit.api_world import ApiWorld
from tests.unit.odd_bodies import BODIES, DEEP, HEADERS, ODD

pytestmark = pytest.mark.unit

GROUP = 100
"""Number of requests to one world; then the other stream is compared, and a new world begins."""


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
        world.engine.changes.take("S $G A", request, lambda over: _escape(request))

    world.api.route("STREAM.BROKEN.*", "stream_broken_response", later)
    sent = [world.send("$JS.API.STREAM.UPDATE.A", {"name": "A"}), world.send("$JS.API.STREAM.BROKEN.A")]
    sent.append(world.send("$JS.API.STREAM.UPDATE.A", {"name": "A", "description": "d"}))
    world.settle()
    answers = [json.loads(world.answers(reply)[0][1]) for reply in sent]
    assert [answer.get("error", {}).get("code") for answer in answers] == [None, 500, None]
    assert world.stream("A").failed is None
