"""Audit of a server on the image of a crash against what its clients had been told.

Belongs here: starting the server, reading everything, comparing, and compacting the image. replay.py chooses the
images.
"""

from __future__ import annotations

import base64
import contextlib
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from lakestream.lake.storage import paths
from tests.lake.tables import rows
from tests.power.facts import NEVER, Message, Stream
from tests.power.lake_job import LakeJob
from tests.power.workload import CONFIG, DURABLE
from tests.servers import configured
from tests.wire import Closed, Frame, Wire, WireTimeout, header_block, pub

START_S = 60.0
TIMEOUT_S = 30.0
SHOWN = 5
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["lakestream.cli.serve", "lakestream.server.node", "deltalake", "pyarrow.parquet"])


class NotStarted(Exception):
    """Raised when the server exits instead of serving."""


class NoAnswer(Exception):
    """Raised when the server does not answer."""


def _serve(arguments: Sequence[str], log: str) -> None:
    """Run `lakestream serve`; a fork of a process that has imported it starts in a fraction of the time."""
    from lakestream.cli.serve import serve

    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.exit(serve(arguments))


class Forked:
    """Server on a store, in a fork. Its log is `log`, which is begun anew."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._log = log
        log.unlink(missing_ok=True)
        self._process = _forks.Process(target=_serve, args=(arguments, str(log)))
        self._process.start()

    def port(self) -> int:
        """Return the port for clients of the server once it is ready. Raise NotStarted."""
        deadline = time.monotonic() + START_S
        while not (found := _port(self._log)):
            if not self._process.is_alive() or time.monotonic() > deadline:
                raise NotStarted(self.tail())
            time.sleep(0.005)
        return found

    def tail(self) -> str:
        """Return the last lines of the log."""
        return "\n".join(self._log.read_text().splitlines()[-SHOWN:]) if self._log.exists() else "it said nothing"

    def kill(self) -> None:
        """Kill the server and wait for its end."""
        self._process.kill()
        self._process.join()


@contextlib.contextmanager
def serving(image: Path) -> Iterator[Wire]:
    """Run a server on a store; kill it at the end."""
    config = image.with_suffix(".conf")
    config.write_text(configured(CONFIG, image))
    arguments = ["-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(image), "-c", str(config)]
    server = Forked(arguments, image.with_suffix(".log"))
    try:
        with Wire(("127.0.0.1", server.port()), timeout=TIMEOUT_S) as wire:
            try:
                yield wire
            except (Closed, WireTimeout) as error:
                raise NoAnswer(f"{type(error).__name__}: {server.tail()}") from error
    finally:
        server.kill()


def _port(log: Path) -> int:
    """Return the port in the log of a ready server; 0 until it is ready."""
    text = log.read_text() if log.exists() else ""
    if "Server is ready" not in text:
        return 0
    return int(text.split("Listening for client connections on 127.0.0.1:")[1].split("\n")[0])


def audit(image: Path, streams: Sequence[Stream], at_ns: int) -> list[str]:
    """Start a server on an image; return messages that are lost, have come back or were never published."""

    def look(wire: Wire) -> list[str]:
        return [f"{stream.name}: {problem}" for stream in streams for problem in audit_stream(wire, stream, at_ns)]

    return _with_server(image, look)


def _with_server(image: Path, look: Callable[[Wire], list[str]]) -> list[str]:
    """Return the problems that `look` finds in a server on an image, or the one that there is none."""
    try:
        with serving(image) as wire:
            return look(wire)
    except NotStarted as error:
        return [f"the server does not start: {error}"]
    except NoAnswer as error:
        return [f"the server does not answer: {error}"]


def audit_stream(wire: Wire, stream: Stream, at_ns: int) -> Iterator[str]:
    """Yield what differs in a stream from what its clients had been told."""
    if stream.deleted_ns < at_ns:
        if "error" not in wire.api(f"STREAM.INFO.{stream.name}"):
            yield "was deleted and is back"
        return
    if not stream.created_ns < at_ns <= stream.deleting_ns:
        return
    info = wire.api(f"STREAM.INFO.{stream.name}")
    if "error" in info:
        yield f"is gone: {info['error']['description']}"
        return
    yield from _compare(stream, read(wire, stream, stream.present(at_ns), stream.copies == 1), at_ns)
    yield from _configured(wire, stream, info["config"].get("description", ""), at_ns)
    if floor := stream.floor(at_ns):
        consumer = wire.api(f"CONSUMER.INFO.{stream.name}.{DURABLE}")
        reached = consumer["ack_floor"]["stream_seq"] if "ack_floor" in consumer else consumer
        if not isinstance(reached, int) or reached < floor:
            yield f"consumer {DURABLE} was at {floor} and is at {reached}"
    if stream.probe:
        yield from _publish(wire, stream, at_ns)


def _configured(wire: Wire, stream: Stream, description: str, at_ns: int) -> Iterator[str]:
    """Yield acknowledged updates, consumers and deletions of consumers that are lost."""
    asked = [version.number for version in stream.versions if version.asked_ns < at_ns]
    acked = [version.number for version in stream.versions if version.acked_ns < at_ns]
    found = int(description or 0)
    if not max(acked, default=0) <= found <= max(asked, default=0):
        yield f"updates through {acked} were acknowledged, and the configuration is that of {found}"
    for consumer in stream.consumers:
        there = "error" not in wire.api(f"CONSUMER.INFO.{stream.name}.{consumer.name}")
        if there and consumer.deleted_ns < at_ns:
            yield f"consumer {consumer.name} was deleted and is back"
        if not there and consumer.created_ns < at_ns <= consumer.deleting_ns:
            yield f"consumer {consumer.name} is gone"


def _publish(wire: Wire, stream: Stream, at_ns: int) -> Iterator[str]:
    """Publish to the stream and yield a problem unless the message gets a new sequence."""
    ack = wire.request(stream.probe, b"after the crash").json()
    last = stream.last_acked(at_ns)
    if ack.get("seq", 0) <= last:
        yield f"sequence {last} was acked, and the next message gets {ack}"
    else:  # from the leader: another replica may not have it yet
        answer = wire.api(f"STREAM.MSG.GET.{stream.name}", {"seq": ack["seq"]})
        if base64.b64decode(answer.get("message", {}).get("data", "")) != b"after the crash":
            yield f"the message after the crash reads {answer}"


def _compare(stream: Stream, held: dict[int, Frame], at_ns: int) -> Iterator[str]:
    present, possible = stream.present(at_ns), stream.possible(at_ns)
    lost = sorted(seq for seq in present if seq not in held or held[seq].status)
    if lost:
        first = held.get(lost[0])
        said = "" if first is None else f", of the first it says {first.header!r}"
        yield f"{len(lost)} of {len(present)} messages lost: {_some(lost)}{said}"
    doubtful = Counter(
        (each.subject, each.payload()) for each in stream.doubtful if each.asked_ns < at_ns <= each.gone_ns
    )
    wrong: list[int] = []
    unknown: list[int] = []
    for seq, frame in held.items():
        if frame.status or (seq in possible and _is(frame, possible[seq])):
            continue
        content = frame.headers["Nats-Subject"], frame.data
        if seq not in present and doubtful[content]:
            doubtful[content] -= 1  # it may be there once
        else:
            (wrong if seq in possible else unknown).append(seq)
    if wrong:
        yield f"{len(wrong)} messages have other content: {_some(wrong)}"
    if unknown and "mirror" not in stream.config:  # a mirror is observed only now and then
        yield f"{len(unknown)} messages are there that were removed, or never sent: {_some(unknown)}"


def _is(frame: Frame, message: Message) -> bool:
    return (frame.headers["Nats-Subject"], frame.data) == (message.subject, message.payload())


def _some(sequences: Sequence[int]) -> str:
    return ", ".join(map(str, sequences[:SHOWN])) + (" …" if len(sequences) > SHOWN else "")


def read(wire: Wire, stream: Stream, expected: Iterable[int], direct: bool = True) -> dict[int, Frame]:
    """Return all messages of a stream by sequence, with the error for each expected message that cannot be read.

    `direct`: by direct gets, if the stream has them. A replica that answers them may be a little behind the others.
    """
    held: dict[int, Frame] = {}
    if not direct or stream.config.get("allow_direct") is False:
        state = wire.api(f"STREAM.INFO.{stream.name}")["state"]
        sequences = {*range(state["first_seq"], state["last_seq"] + 1), *expected}
        held = _get(wire, stream, sequences, direct=False)
        return {seq: frame for seq, frame in held.items() if seq in expected or not frame.status}
    first, failed = 1, False
    while not failed:
        reply = wire.new_reply()
        wire.publish(f"$JS.API.DIRECT.GET.{stream.name}", b'{"seq":%d,"batch":1000}' % first, reply)
        while not (frame := wire.message(reply)).status:
            first = int(frame.headers["Nats-Sequence"]) + 1
            held[first - 1] = frame
        if frame.status == 404 or frame.headers.get("Nats-Num-Pending") == "0":
            break
        failed = frame.status != 204
    return {**held, **_get(wire, stream, set(expected) - set(held))}


def _get(wire: Wire, stream: Stream, sequences: Iterable[int], direct: bool = True) -> dict[int, Frame]:
    """Request messages one by one, with all requests in flight at once."""
    subject = f"$JS.API.{'DIRECT.GET' if direct else 'STREAM.MSG.GET'}.{stream.name}"
    replies = {seq: wire.new_reply() for seq in sorted(sequences)}
    wire.send(b"".join(pub(subject, b'{"seq":%d}' % seq, reply) for seq, reply in replies.items()))
    got = {seq: wire.message(reply) for seq, reply in replies.items()}
    return got if direct else {seq: _as_direct(frame) for seq, frame in got.items()}


def _as_direct(frame: Frame) -> Frame:
    """Return the answer to MSG.GET in the form of a direct get's answer."""
    answer = frame.json()
    if "error" in answer:
        return frame._replace(header=f"NATS/1.0 {answer['error']['code']} {answer['error']['description']}".encode())
    message = answer["message"]
    header = header_block({"Nats-Subject": message["subject"], "Nats-Sequence": str(message["seq"])})
    return frame._replace(header=header, data=base64.b64decode(message.get("data", "")))


def audit_compaction(image: Path, streams: Sequence[Stream], at_ns: int, job: LakeJob) -> list[str]:
    """Let server and compactor work on an image; return how the tables then differ from the streams.

    Deletes of the server's reach the tables with the next seal, so the last commits are awaited.
    """

    def look(wire: Wire) -> list[str]:
        problems = []
        for stream in streams:
            if stream.created_ns < at_ns < stream.deleting_ns == NEVER and stream.probe:
                problem = _compact_until_equal(wire, image / "lake", stream, job)
                problems += [f"{stream.name}: {problem}"] if problem else []
        return problems

    return _with_server(image, look)


def _compact_until_equal(wire: Wire, lake: Path, stream: Stream, job: LakeJob) -> str:
    table = paths.table(str(lake), stream.name)
    problem = ""
    for _ in range(5):
        failures = job.compact(lake)
        held = {seq: frame for seq, frame in read(wire, stream, ()).items() if not frame.status}
        try:
            found = rows(table) if Path(table, "_delta_log").is_dir() else []
        except Exception as error:  # of three libraries; the table is damaged, and another commit may repair it
            problem = f"the table cannot be read: {error}"
            continue
        alive = [row for row in found if row.get("removed_time_ns") is None]
        problem = ""
        if failures:
            problem = f"compaction: {failures}"
        elif len({row["seq"] for row in found}) != len(found):
            problem = "rows are in the table twice"
        elif any(held[row["seq"]].data != row["data"] for row in alive if row["seq"] in held):
            problem = "rows have other content"
        elif (there := {row["seq"] for row in alive}) != set(held):
            problem = f"rows {_some(sorted(there ^ set(held)))} are in table or stream only"
        if not problem:
            return ""
        time.sleep(0.4)  # the next segment is sealed by seal_age
    return problem
