"""Section `scale` of `make bench`: work on large streams and on many, and the longest wait of other clients meanwhile.

Belongs here: the rows, each a function that fills what it needs and does one kind of work, and the probe: a process of
its own with a connection that sends a PING, a direct get and a publish in turn. The longest of their round trips is the
row's stall. Sizes are a tenth of those that the figures' titles name, besides the 5,000 streams; `--full` takes all of
them as they are.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import multiprocessing.connection
import resource
import select
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.figures import OURS, A, B, Section
from tests.bench.load import (
    ACKED,
    WINDOW,
    Address,
    Connection,
    Counter,
    Refused,
    blocks,
    percentile,
    pipelined,
    processor_s,
    publish,
    resident_mib,
)
from tests.bench.sections import ALWAYS, GOT, Plan, alternating
from tests.servers import Kind, Server

TENTH = 10
"""Sizes are divided by this unless `--full` is given."""
SUBJECTS, GROUP = 1_000_000, 1_000
"""Subjects `k.<number>.<of a group>`, and the size of a group."""
FILTERS = 300
DELETED = 5_000_000
COPIED = 1_000_000
"""Messages of each of `SOURCES` streams, and a fifth of a mirror's."""
SOURCES = 5
IDS = 5_000_000
EXPIRING = 1_000_000
STREAMS, CHURNED, CONNECTIONS = 5_000, 3_000, 800
FAN_CONNECTIONS, FAN_SUBSCRIPTIONS, FAN_MESSAGES = 50, 5_000, 1_000
PURGES = 1_000
REPEATS = 5
PART = 100_000
"""Frames that are made at once."""
IDLE_S = 5.0
PROBE_S = 0.001
"""Pause between two round trips of the probe."""
LIMIT_S = 600
TTL_S = 2
PAYLOAD = b"x" * 64
OPEN_FILES = 8_192

Found = dict[str, float]
Work = Callable[[Server, int, Found], None]


# ---------------------------------------------------------------------- the probe


def _probe(address: Address, ours: multiprocessing.connection.Connection) -> None:
    """Make round trips until the other end says so; answer with all their times in seconds."""
    gc.disable()
    with Connection(address) as client:
        get = publish(b"$JS.API.DIRECT.GET.PROBE", client.inbox + b".g", b'{"last_by_subj":"probe"}')
        put = publish(b"probe", client.inbox + b".p", PAYLOAD)
        took: list[float] = []
        ours.send(None)
        while not ours.poll(PROBE_S):
            for frame, mark in ((b"PING\r\n", b"PONG\r\n"), (get, GOT), (put, ACKED)):
                began = time.perf_counter()
                client.send(frame)
                while mark not in client.receive():
                    pass
                took.append(time.perf_counter() - began)
        ours.send(took)


@contextmanager
def watched(server: Server, found: Found, key: str, works: int = 1) -> Iterator[None]:
    """Note the seconds of the block and the server's processor time, both divided by its works, and in ms the 99th
    percentile and longest of the waits."""
    with Connection(server.address) as client:
        client.stream("PROBE", ["probe"], max_msgs=1)
        client.send(publish(b"probe", client.inbox + b".p", PAYLOAD))
        client.count(ACKED, 1)
    ours, its = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(target=_probe, args=(server.address, its), daemon=True)
    process.start()
    try:
        ours.recv()
        began, spent = time.perf_counter(), processor_s(pid(server))
        yield
        found[f"scale_{key}"] = (time.perf_counter() - began) / works
        found[f"scale_{key}_cpu_us"] = (processor_s(pid(server)) - spent) / works * 1e6
        ours.send(None)
        took = sorted(ours.recv())
        found[f"scale_{key}_p99"] = percentile(took, 0.99) * 1e3
        found[f"scale_{key}_stall"] = took[-1] * 1e3
    finally:
        process.terminate()
        process.join()


def pid(server: Server) -> int:
    """Return the number of the server's process."""
    assert server.process is not None
    return server.process.pid


# ---------------------------------------------------------------------- rows


def subject(number: int) -> bytes:
    """Return a subject of the stream K."""
    return b"k.%d.%d" % divmod(number, GROUP)


Frame = Callable[[int], bytes]
"""Makes message number n of a load."""


def send(client: Connection, frame: Frame, messages: int, mark: bytes = ACKED, window: int = WINDOW) -> None:
    """Send messages 0, 1, … with many in flight. Their frames are made in parts: a load repeats what it has."""
    for first in range(0, messages, PART):
        count = min(PART, messages - first)
        part = blocks(lambda number, first=first: frame(first + number), window, count)  # type: ignore[misc]
        pipelined(client, part, mark, most=count)


def filled(client: Connection, name: str, frame: Frame, messages: int, **config: object) -> None:
    """Create a stream of subjects `<name>.>` in small letters, and publish to it."""
    client.stream(name, [f"{name.lower()}.>"], **config)
    send(client, frame, messages)


def keys(client: Connection, subjects: int) -> Frame:
    """Return publishes to the subjects of the stream K, in turn."""
    return lambda n: publish(subject(n % subjects), b"%s.%d" % (client.inbox, n), PAYLOAD)


def lookups(server: Server, tenth: int, found: Found) -> None:
    """Ask for some of many subjects: literal keys, wildcards, STREAM.INFO, consumers."""
    count = SUBJECTS // tenth
    with Connection(server.address) as client:
        filled(client, "K", keys(client, count), count)
        step = count // GROUP
        literal = [subject(n * step + n % step).decode() for n in range(GROUP)]
        with watched(server, found, "literal", REPEATS):
            for _ in range(REPEATS):
                client.multi_last("K", literal, GROUP)
        with watched(server, found, "wildcard", REPEATS):
            for turn in range(REPEATS):
                client.multi_last("K", [f"k.*.{turn}"], step)
        with watched(server, found, "info", REPEATS):
            for turn in range(REPEATS):
                answer = client.api("STREAM.INFO.K", {"subjects_filter": f"k.*.{turn}"})
                assert len(answer["state"]["subjects"]) == step
        with watched(server, found, "filters"):
            chosen = [f"k.*.{number}" for number in range(FILTERS)]
            client.read("K", b"MSG k.", FILTERS * step, filter_subjects=chosen)
        with watched(server, found, "watch"):
            client.read("K", b"MSG k.", count, deliver_policy="last_per_subject", filter_subject="k.>")


def purges(server: Server, tenth: int, found: Found) -> None:
    """Purge single keys, one at a time. They are a tenth of those of `lookups`: B syncs for each publish, too."""
    count = SUBJECTS // 10 // tenth
    with Connection(server.address) as client:
        filled(client, "K", keys(client, count), count)
        step = count // PURGES
        with watched(server, found, "purge", PURGES):
            for number in range(PURGES):
                client.api("STREAM.PURGE.K", {"filter": subject(number * step).decode()})


def deletes(server: Server, tenth: int, found: Found) -> None:
    """Delete every tenth message, with many requests in flight."""
    count = DELETED // tenth
    with Connection(server.address) as client:
        filled(client, "K", keys(client, SUBJECTS // tenth), count)

        def request(number: int) -> bytes:
            body = b'{"seq":%d,"no_erase":true}' % (number * 10 + 1)
            return publish(b"$JS.API.STREAM.MSG.DELETE.K", client.inbox + b".d", body)

        wanted = count // 10
        with watched(server, found, "deletes", wanted):
            send(client, request, wanted, b'"success":true', window=500)


def lowered(server: Server, tenth: int, found: Found) -> None:
    """Lower max_msgs_per_subject from 10 to 1."""
    count = SUBJECTS // tenth
    with Connection(server.address) as client:
        filled(client, "K", keys(client, count), 10 * count, max_msgs_per_subject=10)
        config = client.api("STREAM.INFO.K")["config"]
        with watched(server, found, "lowered"):
            client.api("STREAM.UPDATE.K", {**config, "max_msgs_per_subject": 1})
            until(client, "K", count)


def until(client: Connection, stream: str, messages: int) -> None:
    """Wait until a stream has so many messages."""
    while int(client.api(f"STREAM.INFO.{stream}")["state"]["messages"]) != messages:
        time.sleep(0.02)


def expiry(server: Server, tenth: int, found: Found) -> None:
    """Publish messages with a TTL beside others; wait until they have expired."""
    count = EXPIRING // tenth
    with Connection(server.address) as client:
        filled(client, "K", keys(client, SUBJECTS // tenth), 5 * count, allow_msg_ttl=True)
        with watched(server, found, "expiry"):
            send(client, headed(client, b"Nats-TTL: %ds" % TTL_S), count)
            until(client, "K", 5 * count)


def headed(client: Connection, line: bytes) -> Frame:
    """Return publishes with a header line; `%d` in it is the message's number."""

    def frame(number: int) -> bytes:
        header = b"NATS/1.0\r\n%s\r\n\r\n" % (line % number if b"%d" in line else line)
        body = header + PAYLOAD
        return b"HPUB k.a.%d %s.%d %d %d\r\n%s\r\n" % (
            number % GROUP, client.inbox, number, len(header), len(body), body,
        )  # fmt: skip

    return frame


def ids(server: Server, tenth: int, found: Found) -> None:
    """Publish messages with message ids; compare processor time and memory with messages without them."""
    count = IDS // tenth
    with Connection(server.address) as client:
        client.stream("K", ["k.>"], duplicate_window=120_000_000_000)
        size = resident_mib(pid(server))
        with watched(server, found, "ids", count):
            send(client, headed(client, b"Nats-Msg-Id: %d"), count)
        found["scale_ids_bytes"] = (resident_mib(pid(server)) - size) * (1 << 20) / count


def copies(server: Server, tenth: int, found: Found) -> None:
    """Create a stream with sources, and a mirror; wait until they have caught up."""
    count = COPIED // tenth
    with Connection(server.address) as client:
        for number in range(SOURCES):

            def frame(n: int, origin: int = number) -> bytes:
                return publish(b"o%d.%d" % (origin, n % 100), b"%s.%d" % (client.inbox, n), PAYLOAD)

            filled(client, f"O{number}", frame, count)
        with watched(server, found, "sources"):
            client.api("STREAM.CREATE.ALL", {"name": "ALL", "sources": [{"name": f"O{n}"} for n in range(SOURCES)]})
            until(client, "ALL", SOURCES * count)
        with watched(server, found, "mirror"):
            client.api("STREAM.CREATE.COPY", {"name": "COPY", "mirror": {"name": "ALL"}, "mirror_direct": True})
            until(client, "COPY", SOURCES * count)


def streams(server: Server, tenth: int, found: Found) -> None:
    """Create many streams, all of them; restart the server; leave it alone."""
    count = STREAMS
    with Connection(server.address) as client, watched(server, found, "streams"):
        for number in range(count):
            if number == count - count // 10:
                began = time.perf_counter()
            client.stream(f"S{number}", [f"s{number}.>"])
        found["scale_streams_last"] = (time.perf_counter() - began) / (count // 10) * 1e3
    began = time.perf_counter()
    server.stop()
    server.start(timeout=LIMIT_S)
    with Connection(server.address) as client:
        client.api(f"STREAM.INFO.S{count - 1}")
    found["scale_restart"] = time.perf_counter() - began
    time.sleep(IDLE_S)
    before = processor_s(pid(server))
    time.sleep(IDLE_S)
    found["scale_idle"] = (processor_s(pid(server)) - before) / IDLE_S * 100


def churn(server: Server, tenth: int, found: Found) -> None:
    """Make streams, consumers and connections, and end them."""
    with Connection(server.address) as client, watched(server, found, "churn"), ExitStack() as stack:
        for number in range(CHURNED // tenth):
            client.stream(f"S{number}", [f"s{number}.>"])
            config = {"durable_name": "c", "ack_policy": "explicit"}
            client.api(f"CONSUMER.CREATE.S{number}.c", {"stream_name": f"S{number}", "config": config})
        for _ in range(5):
            with ExitStack() as others:
                for _ in range(CONNECTIONS // tenth):
                    others.enter_context(Connection(server.address))
        for number in range(0, CHURNED // tenth, 3):
            client.api(f"STREAM.DELETE.S{number}")
        stack.enter_context(Connection(server.address))


def fan(server: Server, tenth: int, found: Found) -> None:
    """Publish core messages to many subscriptions of some connections."""
    with ExitStack() as stack:
        readers = [stack.enter_context(Connection(server.address)) for _ in range(FAN_CONNECTIONS)]
        client = stack.enter_context(Connection(server.address))
        each = FAN_SUBSCRIPTIONS // FAN_CONNECTIONS // tenth
        for reader in readers:
            reader.send(b"".join(b"SUB fan.out %d\r\n" % (number + 2) for number in range(each)))
            reader.round_trip()
        counters = {reader.fileno(): (reader, Counter(b"MSG fan.out ")) for reader in readers}
        poll = select.epoll()
        for number in counters:
            poll.register(number, select.EPOLLIN)
        with watched(server, found, "fan"):
            client.send(publish(b"fan.out", b"", PAYLOAD) * FAN_MESSAGES)
            while counters:
                for number, _ in poll.poll(LIMIT_S):
                    reader, counter = counters[number]
                    try:
                        counter.feed(reader.receive())
                    except (ConnectionError, Refused):
                        raise RuntimeError(f"closed: {FAN_CONNECTIONS - len(counters)} had all messages") from None
                    if counter.seen == each * FAN_MESSAGES:
                        poll.unregister(number)
                        del counters[number]
        poll.close()


SYNCED: tuple[Work, ...] = (purges, streams, churn)
"""Those measured against B, too: their requests are on disk before the answer."""

ROWS: tuple[Work, ...] = (lookups, purges, deletes, lowered, expiry, ids, copies, streams, churn, fan)


def measured(work: Work, kind: str, tenth: int = TENTH) -> tuple[Found, list[str]]:
    """Do one kind of work on an empty server; return its figures and the server's warnings of stalls."""
    found: Found = {}
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as directory:
        config = ALWAYS if kind == B else None
        server = Server(Kind.OURS if kind == OURS else Kind.REAL, Path(directory) / "store", config=config)
        server.start(timeout=LIMIT_S)
        try:
            work(server, tenth, found)
        finally:
            log = server.log()
            server.kill()
    return found, [line for line in log.splitlines() if "All clients waited" in line]


def scale(plan: Plan, found: Section) -> None:
    """Run every row on either server."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))
    rounds = min(plan.rounds, 3)
    for work in ROWS:
        plan.say(work.__name__)

        def once(kind: str, work: Work = work) -> Found:
            figures, stalls = measured(work, kind, 1 if plan.full else TENTH)
            plan.say(f"{kind}: {json.dumps({name: float(f'{value:.3g}') for name, value in figures.items()})}")
            for line in stalls:
                plan.say(line)
            return figures

        kinds = (OURS, A, B) if work in SYNCED else (OURS, A)
        alternating(plan, found, kinds, once, rounds=rounds, limit_s=LIMIT_S)
