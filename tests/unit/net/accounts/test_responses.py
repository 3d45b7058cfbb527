"""Tests of reply paths compared with a model: requested, answered, delivered, expired and dropped, in any order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from lakestream.config.account_options import AccountOptions, ServiceExport, ServiceImport
from lakestream.net.interest.subscription import Subscription
from lakestream.ports import ListedMessages, Single
from tests.unit.imports_world import Client, World

pytestmark = pytest.mark.unit

THRESHOLDS = {"singleton": 7, "stream": 5, "chunked": 3}
SEEDS = range(60)


@dataclass
class Requester:
    """Client with one reply subject, and the answers that it must have received."""

    client: Client
    subscription: Subscription | None
    expected: list[bytes] = field(default_factory=list)


@dataclass
class Open:
    """Open reply path in the model."""

    requester: Requester
    kind: str
    due: int


def world() -> World:
    return World(
        AccountOptions(
            name="A",
            exports=tuple(
                ServiceExport(subject=kind, response=kind, threshold_ns=threshold)  # type: ignore[arg-type]
                for kind, threshold in THRESHOLDS.items()
            ),
        ),
        AccountOptions(name="B", imports=tuple(ServiceImport(account="A", subject=kind) for kind in THRESHOLDS)),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_come_as_a_model_says(seed: int) -> None:
    chance = random.Random(seed)
    here = world()
    hub, server = here.hub("A"), here.client("A")
    server.subscribe(b"*")
    requesters = []
    for number in range(4):
        client = here.client("B")
        requesters.append(Requester(client, client.subscribe(b"inbox.%d" % number)))
    ways: dict[bytes, Open] = {}
    asked: list[bytes] = []
    for step in range(200):
        now = here.clock.now()
        what = chance.choice(("ask", "ask", "answer", "answer", "answer", "deliver", "time", "leave", "look"))
        if what == "ask":
            number = chance.randrange(len(requesters))
            kind = chance.choice(list(THRESHOLDS))
            requesters[number].client.publish(kind.encode(), b"q", b"inbox.%d" % number)
            [(_, reply, _, _)] = server.taken()
            assert reply not in asked, "no way is used twice"
            asked.append(reply)
            ways[reply] = Open(requesters[number], kind, now + THRESHOLDS[kind])
        elif what in ("answer", "deliver") and asked:
            _answer(here, chance, ways, chance.choice(asked), what, b"%d" % step)
        elif what == "time":
            here.clock.advance(chance.randrange(1, 4))
            ways = {reply: way for reply, way in ways.items() if way.due > here.clock.now()}
        elif what == "leave":
            one = chance.choice(requesters)
            if one.subscription is not None:
                here.hub("B").leave(one.subscription)
                one.subscription = None
            else:
                one.subscription = one.client.subscribe(b"inbox.%d" % requesters.index(one))
        for reply in asked:
            way = ways.get(reply)
            assert hub.interest(reply) is (way is not None and way.requester.subscription is not None)
        assert here.ways("A") == len(ways)
        for one in requesters:
            assert [payload for _, _, _, payload in one.client.taken()] == one.expected
            one.expected = []
    here.clock.advance(10)
    assert here.ways("A") == 0
    assert not [timer for timer in here.clock.timers if not timer.cancelled]


def _answer(
    here: World, chance: random.Random, ways: dict[bytes, Open], reply: bytes, how: str, payload: bytes
) -> None:
    """Send one answer or a batch of answers, and update the model."""
    hub, way = here.hub("A"), ways.get(reply)
    messages = [payload] if how == "answer" else [payload, b"", payload + b"b"][: chance.randrange(1, 4)]
    if how == "answer" and chance.random() < 0.2:
        messages = [b""]
    if how == "answer":
        assert hub.send(Single(reply, payload=messages[0])), "there is always somebody to take an answer"
        ends = not messages[0]
    else:
        found = hub.send(ListedMessages([Single(b"stored", payload=one) for one in messages], to=reply))
        assert found is (way is not None and way.requester.subscription is not None)
        ends = False
    if way is None:
        return
    if way.requester.subscription is not None:
        way.requester.expected += messages[:1] if way.kind == "singleton" else messages
    if ends or way.kind == "singleton" or way.requester.subscription is None:
        del ways[reply]
    else:
        way.due = here.clock.now() + THRESHOLDS[way.kind]
