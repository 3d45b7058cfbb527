"""Sections of `make bench` that show how cost grows: with messages, subjects, consumers, and the size of payloads.

Belongs here: curves of lakestream beside nats-server in its default mode (A), each measured once. Points are
(x, value); quantities of one section share their x.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from tests.bench.figures import OURS, A, Section
from tests.bench.load import (
    ACKED,
    BLOCK,
    Blocks,
    Connection,
    Rate,
    blocks,
    one_at_a_time,
    percentile,
    pipelined,
    publish,
    resident_mib,
)
from tests.bench.sections import GOT, Plan, Target, acked, limited, served

PAYLOAD = b"x" * 64
LIMIT_S = 1_200
"""Seconds of a curve."""
LOOK_S = 0.3
"""Seconds of a measurement at one point."""
MESSAGES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
SUBJECTS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
CONSUMERS = (1, 10, 100, 1_000)
PAYLOADS = (64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576)
QUICK_MESSAGES = 100_000
QUICK_SUBJECTS = 100_000
QUICK_CONSUMERS = 100

RATE = "publishes in flight, msgs/s"
CPU = "processor time of a publish, µs"
GET_P50 = "one direct get at a time, p50, µs"
PUBLISH_P50 = "one publish at a time, p50, µs"
MEMORY = "resident memory, MiB"
DELIVERIES = "deliveries to consumers of all messages, msgs/s"
BYTES = "publishes in flight, MiB/s"

Point = dict[str, float]
Note = Callable[[float, Point], None]


def curves(work: Callable[[Target, Plan, Note], None]) -> Callable[[Plan, Section], None]:
    """Return a section that does some work on an empty server of either kind; it notes each point."""

    def section(plan: Plan, found: Section) -> None:
        for kind in (OURS, A):
            plan.say(kind)

            def note(x: float, point: Point, kind: str = kind) -> None:
                for quantity, y in point.items():
                    found.curves.setdefault(quantity, {}).setdefault(kind, []).append((x, y))
                plan.say(f"{kind}: {x:,.0f}")

            try:
                with limited(LIMIT_S), served(kind) as target:
                    work(target, plan, note)
            except Exception as error:  # the other server's curve must not be lost
                found.errors.append(f"{kind}: {type(error).__name__}: {error}".splitlines()[0][:200])

    return section


def until(steps: Sequence[int], quick: bool, most: int) -> Sequence[int]:
    """Return the steps up to `most` if the run is quick, else all."""
    return [step for step in steps if step <= most or not quick]


def messages(target: Target, plan: Plan, note: Note) -> None:
    """Fill one stream with 100 subjects; publish and get at some numbers of stored messages."""
    with Connection(target.address) as client:
        client.stream("M", ["m.>"])
        load = blocks(acked(client, b"m", PAYLOAD))
        stored = 0
        for step in until(MESSAGES, plan.quick, QUICK_MESSAGES):
            stored += pipelined(client, load, most=step - stored).messages
            point = publishes(target, client, load)
            stored = int(client.api("STREAM.INFO.M")["state"]["messages"])
            rng = random.Random(step)
            gets = [
                publish(b"$JS.API.DIRECT.GET.M", client.inbox + b".1", b'{"seq":%d}' % rng.randint(1, stored))
                for _ in range(10_000)
            ]
            got = one_at_a_time(client, gets, GOT, LOOK_S)
            note(step, {**point, GET_P50: percentile(got, 0.5) * 1e6, MEMORY: sum(map(resident_mib, target.pids))})


def publishes(target: Target, client: Connection, load: Blocks) -> Point:
    """Return rate and processor time of publishes in flight."""
    figures = target.rated("rate", lambda: pipelined(client, load, seconds=2 * LOOK_S))
    return {RATE: figures["rate"], CPU: figures["rate_cpu_us"]}


def subjects(target: Target, plan: Plan, note: Note) -> None:
    """Fill one stream with one message on each of more and more subjects; publish to random ones and get them."""
    with Connection(target.address) as client:
        client.stream("S", ["s.>"], max_msgs_per_subject=5)
        known = 0
        for step in until(SUBJECTS, plan.quick, QUICK_SUBJECTS):
            while known < step:
                count = min(BLOCK, step - known)
                client.publish([b"s.%d" % n for n in range(known, known + count)], [PAYLOAD] * count)
                known += count
            rng = random.Random(step)
            some = [b"s.%d" % rng.randrange(step) for _ in range(50_000)]
            load = blocks(lambda n, some=some: publish(some[n % len(some)], b"%s.%d" % (client.inbox, n), PAYLOAD))
            point = publishes(target, client, load)
            reply = client.inbox + b".1"
            gets = [publish(b"$JS.API.DIRECT.GET.S." + subject, reply, b"") for subject in some[:10_000]]
            got = one_at_a_time(client, gets, GOT, LOOK_S)
            note(step, {**point, GET_P50: percentile(got, 0.5) * 1e6, MEMORY: sum(map(resident_mib, target.pids))})


def consumers(target: Target, plan: Plan, note: Note, steps: Sequence[int] = CONSUMERS) -> None:
    """Publish beside more and more push consumers: of one subject each, then of all messages."""
    with Connection(target.address) as client, Connection(target.address) as reader:
        client.stream("C", ["c.>"])
        client.stream("D", ["d.>"])
        made = 0
        for step in until(steps, plan.quick, QUICK_CONSUMERS):
            for number in range(made, step):
                for stream, wanted in (("C", f"c.{number}"), ("D", "d.>")):
                    reader.subscribe(b"to.%s.%d" % (stream.encode(), number))  # a wildcard is not taken for a receiver
                    config = {
                        "durable_name": f"c{number}", "deliver_subject": f"to.{stream}.{number}", "ack_policy": "none",
                        "deliver_policy": "new", "filter_subject": wanted,
                    }  # fmt: skip
                    client.api(f"CONSUMER.CREATE.{stream}.c{number}", {"stream_name": stream, "config": config})
            made = step
            frames = [publish(b"c.%d" % (n % step), client.inbox + b".1", PAYLOAD) for n in range(1_000)]
            before = target.used()
            took = one_at_a_time(client, frames, ACKED, LOOK_S)
            spent = (target.used() - before) / len(took) * 1e6
            reader.count(b"MSG c.", len(took))
            number = max(1, 20_000 // step)
            load = blocks(lambda n: publish(b"d.x", b"%s.%d" % (client.inbox, n), PAYLOAD), most=number)
            delivered = target.rated(
                "all",
                lambda load=load, number=number, step=step: fanned(client, reader, load, number, step),
            )
            note(step, {PUBLISH_P50: percentile(took, 0.5) * 1e6, CPU: spent, DELIVERIES: delivered["all"]})


def fanned(client: Connection, reader: Connection, load: Blocks, messages: int, consumers: int) -> Rate:
    """Publish messages that each of the consumers gets; return the rate of deliveries."""
    began = time.perf_counter()
    sent = pipelined(client, load, most=messages).messages
    reader.count(b"MSG d.x ", sent * consumers)
    return Rate(sent * consumers, time.perf_counter() - began)


def payloads(target: Target, plan: Plan, note: Note) -> None:
    """Publish messages of more and more bytes."""
    with Connection(target.address) as client:
        client.stream("P", ["p.>"], max_bytes=1 << 30)
        for size in PAYLOADS:
            load = blocks(acked(client, b"p", b"x" * size))
            point = publishes(target, client, load)
            frames = [publish(b"p.1", client.inbox + b".1", b"x" * size)]
            took = one_at_a_time(client, frames, ACKED, LOOK_S)
            megabytes = point[RATE] * size / (1 << 20)
            note(size, {BYTES: megabytes, CPU: point[CPU], PUBLISH_P50: percentile(took, 0.5) * 1e6})
