"""Concurrent clients of the keys of a bucket, which record every answer that they get.

Belongs here: the operations of Key-Value on the wire (ADR-8: put, create, update, delete, get from the stream's leader,
direct get), by many clients at the same time, and their history. The tests inject failures; tests/linearizable.py
checks the history.
"""

from __future__ import annotations

import base64
import math
import random
import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tests.linearizable import NEVER, Operation, Outcome, explain, out_of_order
from tests.wire import Closed, Frame, Wire, WireTimeout

CLIENTS = 16
KEYS = 4
BUCKET = "linear"
STREAM = f"KV_{BUCKET}"
NO_MESSAGE = 10037
WRONG_LAST = 10071
NO_RESPONDERS = 503
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
VALUE = "Value"
"""Header that carries a marker's value; its payload is empty, as clients make it."""
PAUSE_S = 0.05
"""Pause between two attempts to connect."""
JOIN_S = 30.0

_SEQUENCE = re.compile(r"wrong last sequence: (\d+)$")


class DirectRead(NamedTuple):
    """Answer to a direct get, which may be stale but must once have been true. Fields as in `Operation`."""

    key: str
    began: float
    ended: float
    value: str
    seq: int


class History:
    """Operations and answers of all clients. Each client appends its own; read it after they have stopped."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.direct: list[DirectRead] = []
        self.declined: list[Operation] = []
        """Writes that were answered with 503 No Responders."""
        self.surprises: list[str] = []
        """Error answers that are not an outcome of an operation."""

    def note(self, operation: Operation) -> None:
        """Append an operation."""
        self.operations.append(operation)

    def died(self, at: float) -> None:
        """End the pending operations at `at`, when the only server was dead: later they can have no effect."""
        kept = []
        for each in self.operations:
            if each.ended == NEVER:
                if each.began >= at:
                    continue
                each = each._replace(ended=at)
            kept.append(each)
        self.operations = kept

    def count(self, outcome: Outcome) -> int:
        """Count the writes with this outcome."""
        return sum(each.write and each.outcome is outcome for each in self.operations)

    def check_declined(self, stored: dict[int, tuple[str, str]]) -> None:
        """Assert that no write answered with 503 is stored."""
        values = {value: seq for seq, (_, value) in stored.items()}
        taken = [(each, values[each.value]) for each in self.declined if each.value in values]
        assert not taken, f"{len(taken)} of {len(self.declined)} declined writes are stored: {taken[:3]}"

    def resolve(self, stored: dict[int, tuple[str, str]]) -> None:
        """Set the outcome of every write from the stream's messages: (key, value) by sequence."""
        by_value = {value: seq for seq, (_, value) in stored.items()}
        resolved = []
        for each in self.operations:
            if each.outcome is Outcome.UNKNOWN:
                if each.value not in by_value:
                    continue
                each = each._replace(outcome=Outcome.OK, seq=by_value[each.value])
            resolved.append(each)
        self.operations = resolved

    def take_direct_gets_as_reads(self) -> None:
        """Treat direct gets as reads: with a single server no answer may be stale."""
        for key, began, ended, value, seq in self.direct:
            self.note(Operation(key, began, ended, value, False, None, Outcome.OK, seq))

    def check(self) -> str:
        """Check that the history is linearizable; return a line of figures."""
        violation = explain(self.operations)
        assert violation is None, str(violation)
        unordered = out_of_order(self.operations)
        assert not unordered, f"a later write has an earlier sequence: {unordered[:3]}"
        reads = sum(not each.write for each in self.operations)
        kinds = ", ".join(f"{self.count(outcome)} {outcome.value}" for outcome in Outcome)
        return f"{reads} reads, writes {kinds}, {len(self.direct)} direct gets"

    def check_direct(self, stored: dict[int, tuple[str, str]]) -> None:
        """Assert that every direct get returned a value stored before the answer, and none from the future."""
        began = {each.value: each.began for each in self.operations if each.write}
        for each in self.direct:
            if each.seq:
                assert stored.get(each.seq) == (each.key, each.value), f"never stored: {each}"
                assert began.get(each.value, -math.inf) <= each.ended, f"read before it was written: {each}"


class Client(threading.Thread):
    """Client that does one random operation at a time until it is stopped, and reconnects when it has to.

    Args:
        number: index of the client.
        history: receives the operations.
        connect: opens a connection; raises OSError or the like while no server is there.
        rng: random number generator.
        keep: let markers keep the messages before them, so that the stream shows all writes afterwards.
        insist: reconnect after a lost connection; otherwise stop.
        rest_s: pause between two operations, so that the machine is not the bottleneck.
        epoch_s: use new keys after this time, which keeps the history of each one short; 0 for never.
        bucket: name of the bucket.
        consistently: let every second direct get ask for the newest value, which counts as a read.
    """

    def __init__(
        self,
        number: int,
        history: History,
        connect: Callable[[], Wire],
        rng: random.Random,
        *,
        keep: bool,
        insist: bool,
        rest_s: float = 0.0,
        epoch_s: float = 0.0,
        bucket: str = BUCKET,
        consistently: bool = False,
    ) -> None:
        super().__init__(daemon=True, name=f"client {number}")
        self.number = number
        self.failure: BaseException | None = None
        self._history = history
        self._connect = connect
        self._rng = rng
        self._keep = keep
        self._insist = insist
        self._rest_s = rest_s
        self._epoch_s = epoch_s
        self._bucket = bucket
        self._consistently = consistently
        self.unanswered = 0
        """Operations that had no answer within the timeout of the connection."""
        self._stopped = threading.Event()
        self._written = 0
        self._last: dict[str, int] = {}
        """Last known sequence of each key."""
        self.answered = 0

    def run(self) -> None:
        """Work until `stop`, or until the connection is lost."""
        try:
            while not self._stopped.is_set():
                try:
                    with self._connect() as wire:
                        while not self._stopped.is_set():
                            self._step(wire)
                except (OSError, Closed, WireTimeout) as error:
                    self.unanswered += isinstance(error, WireTimeout)
                    if not self._insist:
                        return
                    self._stopped.wait(PAUSE_S)
        except BaseException as error:  # raised again by the test, which runs in another thread
            self.failure = error

    def stop(self) -> None:
        """Stop after the current operation."""
        self._stopped.set()

    def _step(self, wire: Wire) -> None:
        epoch = f"e{int(time.monotonic() // self._epoch_s)}" if self._epoch_s else ""
        key = f"{epoch}k{self._rng.randrange(KEYS)}"
        drawn = self._rng.random()
        if drawn < 0.3:
            self._get(wire, key)
        elif drawn < 0.4:
            self._direct_get(wire, key)
        elif drawn < 0.5:
            self._write(wire, key, None)
        elif drawn < 0.6:
            self._write(wire, key, 0)
        elif drawn < 0.92:
            self._write(wire, key, self._last.get(key, 0))
        else:
            marker = self._rng.choice(("DEL", "PURGE"))
            self._write(wire, key, self._rng.choice((None, self._last.get(key, 0))), marker)
        self.answered += 1
        if self._rest_s:
            self._stopped.wait(self._rest_s)

    # ---- writing

    def _write(self, wire: Wire, key: str, expected: int | None, marker: str = "") -> None:
        self._written += 1
        value = f"{self.number}-{self._written}-{self._rng.randrange(1 << 32):x}"
        headers = {} if expected is None else {EXPECTED: str(expected)}
        if marker:
            headers |= {"KV-Operation": marker, VALUE: value}
            if marker == "PURGE" and not self._keep:
                headers["Nats-Rollup"] = "sub"
        data = b"" if marker else value.encode()
        operation = Operation(key, time.monotonic(), NEVER, value, True, expected, Outcome.UNKNOWN, 0, self.number)
        try:
            answer = wire.request(f"$KV.{self._bucket}.{key}", data, headers or None)
        except BaseException:
            self._history.note(operation)
            raise
        told = self._told(operation._replace(ended=time.monotonic()), answer)
        if told is not None:
            self._history.note(told)
            self._last[key] = told.seq or self._last.get(key, 0)

    def _told(self, operation: Operation, answer: Frame) -> Operation | None:
        """Return the operation with the outcome that the answer gives.

        None if the write did not happen and shows nothing.
        """
        if answer.status == NO_RESPONDERS:
            self._history.declined.append(operation)
            return None
        fields: dict[str, Any] = answer.json()
        error = fields.get("error")
        if error is None:
            return operation._replace(outcome=Outcome.OK, seq=fields["seq"])
        if error["err_code"] == WRONG_LAST and (named := _SEQUENCE.search(error["description"])):
            return operation._replace(outcome=Outcome.REFUSED, seq=int(named[1]))
        self._history.surprises.append(str(error))
        return operation._replace(ended=NEVER)

    # ---- reading

    def _get(self, wire: Wire, key: str) -> None:
        began = time.monotonic()
        answer = wire.api(f"STREAM.MSG.GET.KV_{self._bucket}", {"last_by_subj": f"$KV.{self._bucket}.{key}"})
        ended = time.monotonic()
        if "message" in answer:
            seq, value = answer["message"]["seq"], _value_of_json(answer["message"])
        elif answer.get("error", {}).get("err_code") == NO_MESSAGE:
            seq, value = 0, ""
        else:
            self._history.surprises.append(str(answer))
            return
        self._last[key] = seq
        self._history.note(Operation(key, began, ended, value, False, None, Outcome.OK, seq, self.number))

    def _direct_get(self, wire: Wire, key: str) -> None:
        read = self._consistently and self._rng.random() < 0.5
        headers = {"Nats-Consistency": "linearizable"} if read else None
        began = time.monotonic()
        answer = wire.request(f"$JS.API.DIRECT.GET.KV_{self._bucket}.$KV.{self._bucket}.{key}", b"", headers)
        ended = time.monotonic()
        if answer.status == NO_RESPONDERS:
            return
        if answer.status == 404:
            self._read(read, DirectRead(key, began, ended, "", 0))
            return
        if answer.status:
            self._history.surprises.append(f"direct get: {answer.header!r}")
            return
        fields = answer.headers
        value = fields.get(VALUE) or answer.data.decode()
        seq = int(fields["Nats-Sequence"])
        self._last[key] = max(seq, self._last.get(key, 0))
        self._read(read, DirectRead(key, began, ended, value, seq))

    def _read(self, linearizable: bool, got: DirectRead) -> None:
        key, began, ended, value, seq = got
        if linearizable:
            self._history.note(Operation(key, began, ended, value, False, None, Outcome.OK, seq, self.number))
        else:
            self._history.direct.append(got)


def _value_of_json(message: dict[str, Any]) -> str:
    header = base64.b64decode(message.get("hdrs", ""))
    return Frame("HMSG", header=header).headers.get(VALUE) or base64.b64decode(message.get("data", "")).decode()


def stored(wire: Wire, name: str = BUCKET) -> dict[int, tuple[str, str]]:
    """Return the stream's messages, as this connection's server has them: (key, value) by sequence."""
    found: dict[int, tuple[str, str]] = {}
    while True:
        reply = wire.new_reply()
        body = b'{"seq":%d,"batch":1000}' % (max(found, default=0) + 1)
        wire.publish(f"$JS.API.DIRECT.GET.KV_{name}", body, reply)
        while not (frame := wire.message(reply)).status:
            fields = frame.headers
            key = fields["Nats-Subject"].rpartition(".")[2]
            found[int(fields["Nats-Sequence"])] = key, fields.get(VALUE) or frame.data.decode()
        if frame.status == 404 or frame.headers["Nats-Num-Pending"] == "0":
            return found


def bucket(history: int = 1, replicas: int = 1, name: str = BUCKET) -> dict[str, Any]:
    """Return the bucket's stream configuration as clients make it; `history` -1 keeps all messages."""
    return {
        "name": f"KV_{name}",
        "subjects": [f"$KV.{name}.>"],
        "max_msgs_per_subject": history,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "num_replicas": replicas,
    }


def finish(clients: Iterable[Client]) -> None:
    """Wait until the clients have stopped; raise the first error of any."""
    for client in clients:
        client.join(JOIN_S)
        assert not client.is_alive(), f"{client.name} hangs"
        if client.failure is not None:
            raise client.failure
