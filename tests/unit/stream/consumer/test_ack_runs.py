"""Acks that come together: the same outcome as one by one, whatever is among them."""

from __future__ import annotations

from typing import Any

import pytest

from lakestream.protocol.commands import Single
from lakestream.protocol.parser import Parser
from lakestream.protocol.publishes import Publishes
from tests.unit.consumer_world import CLIENT, SECOND, World

STORED = 30
ACK = "PUB $JS.ACK.S.c.1.{0}.{0}.1.0 4\r\n+ACK\r\n"
KINDS = {
    "ascending": "".join(ACK.format(seq) for seq in range(1, 9)),
    "out of order": "".join(ACK.format(seq) for seq in (5, 3, 9, 1, 2, 12)),
    "repeated": "".join(ACK.format(seq) for seq in (1, 1, 2, 2, 2, 4)),
    "without payload": "".join(f"PUB $JS.ACK.S.c.1.{seq}.{seq}.1.0 0\r\n\r\n" for seq in range(1, 6)),
    "with a nak": ACK.format(1) + "PUB $JS.ACK.S.c.1.2.2.1.0 4\r\n-NAK\r\n" + ACK.format(3),
    "of another consumer": ACK.format(1) + "PUB $JS.ACK.S.d.1.2.2.1.0 4\r\n+ACK\r\n" + ACK.format(3),
    "of no consumer": ACK.format(1) + "PUB $JS.ACK.S.none.1.2.2.1.0 4\r\n+ACK\r\n" + ACK.format(3),
    "with a reply": ACK.format(1) + "PUB $JS.ACK.S.c.1.2.2.1.0 _INBOX.me.x 4\r\n+ACK\r\n" + ACK.format(3),
    "no numbers": ACK.format(1) + "PUB $JS.ACK.S.c.1.+2.2.1.0 4\r\n+ACK\r\n" + ACK.format(3),
    "too few tokens": ACK.format(1) + "PUB $JS.ACK.S.c.1.2.2.1 4\r\n+ACK\r\n" + ACK.format(3),
    "shifted": ACK.format(1) + "PUB $JS.ACK.S.c.1.2.2.1 0\r\n\r\nPUB $JS.ACK.S.c.1.3.3.1.0.0 0\r\n\r\n" + ACK.format(4),
    "not delivered": ACK.format(1) + ACK.format(25) + ACK.format(3),
    "version 2": "".join(f"PUB $JS.ACK._.hash.S.c.1.{seq}.{seq}.1.0.token 4\r\n+ACK\r\n" for seq in range(1, 5)),
}
CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "explicit": ({}, {}),
    "all": ({}, {"ack_policy": "all"}),
    "full": ({}, {"max_ack_pending": 20}),
    "sampled": ({}, {"sample_freq": "100%"}),
    "interest": ({"retention": "interest"}, {}),
    "work queue": ({"retention": "workqueue"}, {}),
}


def outcome(text: str, stream: dict[str, Any], config: dict[str, Any], *, together: bool) -> tuple[object, ...]:
    world = World()
    world.stream(**stream)
    names = ["c"] if stream.get("retention") == "workqueue" else ["c", "d"]
    consumers = [world.consumer(name, **config) for name in names]
    world.store(*["s.a"] * STORED)
    for name in names:
        world.next({"batch": 20, "expires": 3600 * SECOND}, name)
    world.publish("$JS.ACK.S.c.1.20.20.1.0", b"+WPI")  # the consumer is known from now on
    world.client.taken()
    commands = Parser().feed(text.encode())
    assert len(commands) == 1
    assert isinstance(commands[0], Publishes)
    if together:
        list(world.hub.route_run(None, CLIENT, commands[0], 0, len(commands[0])))
    else:
        for each in commands[0].messages():
            assert isinstance(each, Single)
            world.hub.route(None, CLIENT, Single(each.subject, each.reply, b"", each.payload))
    got = [(one.subject, one.seq) if one.reply else one for one in world.client.taken()]
    ledgers = [(each.ledger.pending, each.ledger.deadline, each.ledger.floor()) for each in consumers]
    deltas = [each.ledger.take_delta() for each in consumers]
    state = world.ask("STREAM.INFO.S", {"deleted_details": True})["state"]
    return got, ledgers, deltas, state, [world.numbers(name) for name in names]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("kind", KINDS)
def test_acks_that_come_together(kind: str, config: str) -> None:
    together, single = (outcome(KINDS[kind], *CONFIGS[config], together=way) for way in (True, False))
    assert together == single


def test_plain_acks_are_taken_as_a_run() -> None:
    world = World()
    world.stream()
    consumer = world.consumer()
    world.store(*["s.a"] * STORED)
    world.next({"batch": 20, "expires": 3600 * SECOND})
    world.publish("$JS.ACK.S.c.1.20.20.1.0", b"+ACK")
    (run,) = Parser().feed(KINDS["ascending"].encode())
    assert isinstance(run, Publishes)
    assert consumer.acks.ack_run([1, 2, 3])
    assert not consumer.acks.ack_run([4, 21])
    list(world.hub.route_run(None, CLIENT, run, 0, len(run)))
    assert world.numbers() == ((20, 20), (8, 8), 11, 0, 10)
