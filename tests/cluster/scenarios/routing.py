"""Scenarios of core NATS over several nodes: subjects, queue groups, requests, cluster fields of INFO."""

from __future__ import annotations

import collections

from tests.cluster.harness import SETTLE_S, ClusterScript, responded, scenario
from tests.cluster.nodes import until
from tests.wire import Wire, WireTimeout


def _forget(*wires: Wire) -> None:
    """Discard the frames received so far, mostly the requests of `heard`."""
    for wire in wires:
        wire.ping()
        wire.waiting.clear()


@scenario
def a_message_reaches_every_subscriber_once(script: ClusterScript) -> None:
    sids = {}
    for number in (1, 2, 3):
        wire = script.at(number)
        sids[number] = [wire.subscribe(subject) for subject in ("fan.out", "fan.*", "fan.>", ">")]
        wire.ping()
    script.heard("fan.ready")
    _forget(*(script.at(number) for number in (1, 2, 3)))
    script.at(1).publish("fan.out", b"once", "reply.to", {"A": "b"})
    for number in (1, 2, 3):
        frames = [script.at(number).next(lambda f: f.subject == "fan.out") for _ in sids[number]]
        script.frames(f"at {number}", sorted(frames, key=lambda frame: int(frame.sid)))
    script.at(1).ping()


@scenario
def a_queue_group_gets_each_message_once(script: ClusterScript) -> None:
    sids = {number: script.at(number).subscribe("work", "workers") for number in (1, 2, 3)}
    script.heard("work")
    got: collections.Counter[bytes] = collections.Counter()
    _forget(*(script.at(number) for number in (1, 2, 3)))
    sender = script.connect()
    for n in range(30):
        sender.publish("work", b"%d" % n)
    sender.ping()
    for number, sid in sids.items():
        wire = script.at(number)
        try:
            while sum(got.values()) < 30:
                got[wire.next(lambda f, sid=sid: f.sid == sid, 0.5).data] += 1
        except WireTimeout:
            continue
    script.note("each once", [len(got), max(got.values())])


@scenario
def requests_are_answered_over_nodes(script: ClusterScript) -> None:
    service = script.at(3)
    sid = service.subscribe("service.echo")
    script.heard("service.echo")
    _forget(service)
    for number in (1, 2):
        wire = script.at(number)
        reply = wire.new_reply()
        wire.publish("service.echo", b"from %d" % number, reply)
        asked = service.delivered(sid)
        service.publish(asked.reply, asked.data + b" back", headers={"X": "y"})
        script.frames(f"answer at {number}", [wire.message(reply)])
    service.unsubscribe(sid)
    service.ping()
    until(lambda: not responded(script.at(1), "service.echo"), "no interest", SETTLE_S)
    script.frames("nobody", [script.at(1).request("service.echo", b"x")])


def _numbers(reader: Wire, sid: str, count: int) -> list[int]:
    """Return the numbers in the next messages of a subscription."""
    frames = [reader.next(lambda frame: frame.sid == sid and frame.data != b"heard?") for _ in range(count)]
    return [int(frame.data) for frame in frames]


@scenario
def order_is_kept_over_a_route(script: ClusterScript) -> None:
    reader = script.at(2)
    sid = reader.subscribe("ordered")
    script.heard("ordered")
    _forget(reader)
    sender = script.at(1)
    for n in range(500):
        sender.publish("ordered", b"%d" % n)
    script.note("in order", _numbers(reader, sid, 500) == list(range(500)))


@scenario
def unsub_after_a_number_of_messages(script: ClusterScript) -> None:
    reader = script.at(2)
    sid = reader.subscribe("few")
    reader.unsubscribe(sid, 2)
    reader.subscribe("ready")
    script.heard("ready")
    sender = script.at(1)
    for n in range(5):
        sender.publish("few", b"%d" % n)
    sender.ping()
    script.note("two come", _numbers(reader, sid, 2))
    try:
        reader.delivered(sid, 0.3)
        script.note("third", "came")
    except WireTimeout:
        script.note("third", "did not come")


@scenario
def info_tells_of_the_cluster(script: ClusterScript) -> None:
    for number in (1, 2, 3):
        info = script.cluster.wire(script.cluster.nodes[number - 1]).info
        urls = sorted(info.get("connect_urls") or ())
        wanted = sorted(f"{node.host}:{node.wanted_port}" for node in script.cluster.nodes)
        script.note(f"INFO of n{number}", [info.get("cluster"), info.get("server_name"), urls == wanted])
