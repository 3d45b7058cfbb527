"""Direct gets that come together: the same answers as one by one, whatever is among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakestream.account.get.direct import Gets
from lakestream.ports import Single
from lakestream.protocol.parser import Parser
from lakestream.protocol.publishes import Publishes
from tests.unit.consumer_world import CLIENT, Message, World

GET = "PUB $JS.API.DIRECT.GET.S.s.{0} _INBOX.me.{1} 0\r\n\r\n"
KINDS = {
    "several keys": "".join(GET.format(key, key) for key in (3, 1, 2, 9)),
    "one key again": "".join(GET.format(3, at) for at in range(5)),
    "a missing key": GET.format(1, 1) + GET.format(77, 2) + GET.format(3, 3),
    "a wildcard": GET.format(1, 1) + GET.format("*", 2) + GET.format(3, 3),
    "a wildcard that is a subject too": GET.format(1, 1) + GET.format(">", 2) + GET.format(3, 3),
    "without a reply": GET.format(1, 1) + "PUB $JS.API.DIRECT.GET.S.s.2 0\r\n\r\n" + GET.format(3, 3),
    "with a body": GET.format(1, 1) + "PUB $JS.API.DIRECT.GET.S.s.2 _INBOX.me.2 2\r\n{}\r\n" + GET.format(3, 3),
    "of another stream": GET.format(1, 1) + GET.format(2, 2).replace("GET.S.", "GET.X.") + GET.format(3, 3),
    "with an empty token": GET.format(1, 1) + GET.format("2.", 2) + GET.format(3, 3),
    "to several inboxes": GET.format(1, 1) + GET.format(2, 2).replace(".me.", ".you.") + GET.format(3, 3),
}


def answers(text: str, directory: Path, *, together: bool) -> list[Message]:
    world = World(directory)
    if not world.engine.streams:
        world.stream(allow_direct=True, max_msgs_per_subject=1)
        for key in [*range(10), 3, 5]:
            header = "NATS/1.0\r\nA: b\r\n\r\n" * (key % 2)
            world.publish(f"s.{key}", b"x" * key, header=header)
        world.publish("s.>", b"not the last")
        world.publish("s.4", b"the last")
        world.clock.turn()
    world.client.subscribe("_INBOX.you.*")
    (run,) = Parser().feed(text.encode())
    assert isinstance(run, Publishes)
    if together:
        list(world.hub.route_run(None, CLIENT, run, 0, len(run)))
    else:
        for each in run.messages():
            world.hub.route(None, CLIENT, Single(each.subject, each.reply, b"", each.payload))
    return world.client.taken()


@pytest.mark.parametrize("kind", KINDS)
def test_direct_gets_that_come_together(kind: str, tmp_path: Path) -> None:
    single = answers(KINDS[kind], tmp_path, together=False)
    assert single
    assert answers(KINDS[kind], tmp_path, together=True) == single


def test_many_large_answers_are_not_made_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream(allow_direct=True)
    world.store("s.3", data=b"x" * (1 << 20))
    (run,) = Parser().feed(KINDS["one key again"].encode())
    assert isinstance(run, Publishes)
    gets = Gets(world.engine.streams["S"], 1 << 20, world.engine.shared.share)._by_subjects(
        len("$JS.API.DIRECT.GET.S.")
    )
    assert gets(run, 0, 3)
    assert len(world.client.taken()) == 3
    assert not gets(run, 0, 5)
    list(world.hub.route_run(None, CLIENT, run, 0, len(run)))
    assert len(world.client.taken()) == 5
