"""Run scenarios against a server, and compare their transcripts with those of nats-server.

Belongs here: the script object that a scenario gets, its transcript, the normalization of values that differ between
runs (times, random names, ids), the register of scenarios, and the comparison. The scenarios are in `scenarios/`,
lasting differences in `differences.py`.

A scenario is a function of a `Script`. It must give the same transcript on every run against the same server: it waits
for frames, never for time to pass, and uses PING or a request as a fence. All streams are removed after it.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import json
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from tests.certificates import client_context
from tests.conformance.differences import DEFAULT_TIME_TRAVEL, DIFFERENCES, Difference
from tests.pairs import FLAGS, PASSWORD, Setup
from tests.recordings import FIRST, Transcript, plain
from tests.servers import Kind, Server
from tests.websocket import WebSocket
from tests.wire import Closed, Frame, Headers, Secure, Wire, WireTimeout, dial, pub

_TIME = re.compile(r"20(?:2[4-9]|[3-9]\d)-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{0,8}[1-9])?Z")
_ACK = re.compile(r"(\$JS\.ACK\.[^.\s]+\.[^.\s]+\.\d+\.\d+\.\d+)\.\d{19}\.(\d+)$")
_FLOW = re.compile(r"^(\$JS\.FC\.[^.]+\.[^.]+)\.[^.]+$")
_WAY_BACK = re.compile(r"\b_R_\.\w+\.\w+(\.T\b)?")
_REPLY = re.compile(r"(_INBOX\.w\d+)\.\d+")
_RELEASE = re.compile(r"\b2\.15\.[1-9]\b")
"""Releases of nats-server that transcripts do not tell apart."""
_NUMBER_KEYS = {"pause_remaining", "rtt", "active"}
_IDENTITY_KEYS = {"server_id", "git_commit", "go", "client_id", "port", "nonce", "xkey"}


class Scenario(NamedTuple):
    """Registered scenario: its id, its function, the servers' setup, and True in `recorded` if it is recorded."""

    id: str
    play: Callable[[Script], None]
    setup: Setup = FLAGS
    recorded: bool = True


SCENARIOS: list[Scenario] = []


def scenario(play: Callable[[Script], None]) -> Callable[[Script], None]:
    """Register a scenario under `<module>.<function>`."""
    SCENARIOS.append(Scenario(f"{play.__module__.rsplit('.', 1)[-1]}.{play.__name__}", play))
    return play


def configured(config: str | Setup) -> Callable[[Callable[[Script], None]], Callable[[Script], None]]:
    """Register a scenario as `scenario` does, for a pair of servers with this configuration file."""
    setup = config if isinstance(config, Setup) else Setup(config)

    def register(play: Callable[[Script], None]) -> Callable[[Script], None]:
        SCENARIOS.append(Scenario(f"{play.__module__.rsplit('.', 1)[-1]}.{play.__name__}", play, setup))
        return play

    return register


def table(
    rows: Iterable[tuple[Any, ...]], setup: Setup = FLAGS, *, recorded: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a scenario for each row; a row is its name and the arguments after the Script.

    recorded: False if the rows change with each run, so that nats-server has to run them too.
    """

    def register(play: Callable[..., None]) -> Callable[..., None]:
        module = play.__module__.rsplit(".", 1)[-1]
        for name, *arguments in rows:
            bound = functools.partial(_with_arguments, play, tuple(arguments))
            SCENARIOS.append(Scenario(f"{module}.{play.__name__}[{name}]", bound, setup, recorded))
        return play

    return register


def _with_arguments(play: Callable[..., None], arguments: tuple[Any, ...], script: Script) -> None:
    play(script, *arguments)


class Closable(Protocol):
    """A connection."""

    def close(self) -> None:
        """End it."""


Kept = TypeVar("Kept", bound=Closable)


class Script:
    """Script object of a scenario: connections to one server, and the transcript.

    Methods that send requests also record them. `wire` is the main connection, for what shall not be recorded; with
    accounts it belongs to the first of `users`, (user, account) pairs. `as_user` returns the script of another user.
    `prefix` is the API prefix of the user. Where no client logs in with a password there are no `users`, and a
    scenario removes its streams itself.
    """

    def __init__(self, server: Server, timeout: float, users: Sequence[tuple[str, str]] = FLAGS.users) -> None:
        self.server = server
        self.address = server.address
        self.timeout = timeout
        self.transcript: Transcript = []
        self._hidden: dict[str, str] = {}
        self._wires: list[Wire] = []
        self._kept: list[Closable] = []
        self._main: Wire | None = None
        self._users = dict(users)
        self._user = users[0][0] if users else ""
        self._who = ""
        self.prefix = "$JS.API"
        self._others: dict[str, Script] = {}

    def as_user(self, user: str, prefix: str = "$JS.API", account: str = "") -> Script:
        """Return this script as another user, whose entries go into the same transcript under the user's name.

        prefix: API prefix of the user, if not the usual one.
        account: account that owns the API, if not the user's own.
        """
        if user not in self._others:
            users = ((user, account or self._users.get(user, "")),)
            other = self._others[user] = Script(self.server, self.timeout, users)
            other.transcript, other._hidden, other._wires = self.transcript, self._hidden, self._wires
            other._others = self._others
            other._who = f"{user}: "
        self._others[user].prefix = prefix
        return self._others[user]

    @property
    def wire(self) -> Wire:
        """Return the main connection, opened on first use."""
        if self._main is None:
            self._main = self.connect()
        return self._main

    def connect(self, **fields: Any) -> Wire:
        """Open another connection with these CONNECT fields; it is closed at the end of the scenario.

        The user is the script's unless `user` names another one, or is None for no user. `secure` and `opened` are
        Wire's.
        """
        how = {name: fields.pop(name) for name in ("secure", "opened") if name in fields}
        user = fields.pop("user", self._user)
        if user:
            fields = {"user": user, "pass": PASSWORD, **fields}
        return self._begun(Wire(self.address, fields, self.timeout, **how))

    def websocket(self, fields: Mapping[str, str | None] | None = None, **options: Any) -> WebSocket:
        """Return a further connection over WebSocket, of whose handshake the usual header fields are changed."""
        address = self.server.host, self.server.websocket_port
        return self.keep(WebSocket(address, fields, self.timeout, **options))

    def dial(self, *, websocket: bool = False) -> socket.socket:
        """Return a further connection as a socket, to the port of clients or of WebSocket clients."""
        port = self.server.websocket_port if websocket else self.server.port
        return self.keep(dial((self.server.host, port), self.timeout))

    def secure(self, certificate: str = "", **options: Any) -> Secure:
        """Return TLS settings of a client with this certificate that trusts the authority of the servers."""
        return Secure(client_context(self.server.certificates, certificate), **options)

    def connect_bare(self, **how: Any) -> Wire:
        """Open another connection without sending CONNECT; `secure` and `opened` are Wire's."""
        return self._begun(Wire(self.address, None, self.timeout, **how))

    def keep(self, other: Kept) -> Kept:
        """Close this connection of another kind at the end of the scenario; returns it."""
        self._kept.append(other)
        return other

    def _begun(self, wire: Wire) -> Wire:
        wire.inbox = f"_INBOX.w{len(self._wires)}"
        wire.api_prefix = self.prefix
        self._wires.append(wire)
        return wire

    def close(self) -> None:
        """Close every connection."""
        for wire in [*self._wires, *self._kept]:
            wire.close()

    # ---- the transcript

    def hide(self, value: str, name: str) -> None:
        """Record this random value as `name` from now on."""
        self._hidden[value] = name

    def note(self, label: str, value: Any) -> None:
        """Record a value."""
        self.transcript.append((self._text(self._who + label), self.normal(value)))

    def normal(self, value: Any, key: str = "") -> Any:
        """Return the value without parts that differ between any two runs."""
        if isinstance(value, dict):
            return {self._text(name): self.normal(inner, name) for name, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.normal(inner) for inner in value]
        if isinstance(value, bytes):
            value = value.decode("utf-8", "backslashreplace")
        if key in _IDENTITY_KEYS and value:
            return f"<{key}>"
        if key in _NUMBER_KEYS and isinstance(value, int) and value > 0:
            return "<positive>"
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        for value, name in self._hidden.items():
            text = text.replace(value, name)
        text = _ACK.sub(r"\1.<time>.\2", text)
        text = _REPLY.sub(r"\1.<n>", text)
        text = _WAY_BACK.sub("_R_.<token>", text)
        text = _FLOW.sub(r"\1.<token>", text)
        text = _RELEASE.sub(FIRST, text)
        return _TIME.sub("<time>", text)

    def show(self, frame: Frame) -> Any:
        """Return a frame as transcript data."""
        if frame.verb not in ("MSG", "HMSG"):
            return f"{frame.verb} {frame.text}".strip()
        shown: dict[str, Any] = {"verb": frame.verb, "subject": frame.subject, "data": frame.data}
        if frame.reply:
            shown["reply"] = frame.reply
        if frame.header:
            shown["header"] = [_request_info(line) for line in _lines_of(frame.header)]
        return self.normal(shown)

    def frames(self, label: str, frames: Iterable[Frame]) -> None:
        """Record frames."""
        self.note(label, [self.show(frame) for frame in frames])

    # ---- JetStream

    def api(self, subject: str, body: Any = None, *, headers: Headers = None, wire: Wire | None = None) -> Any:
        """Send an API request (subject without `$JS.API.`; body: None, bytes, or data for JSON); record the answer."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        frame = (wire or self.wire).request(f"{self.prefix}.{subject}", data, headers)
        try:
            answer = json.loads(frame.data)
        except ValueError:
            answer = self.show(frame)
        if isinstance(body, dict) and DEFAULT_TIME_TRAVEL in (body.get("metadata") or {}):  # echoed by the scenario
            metadata = {key: value for key, value in body["metadata"].items() if key != DEFAULT_TIME_TRAVEL}
            data = json.dumps(body | {"metadata": metadata}).encode()
        self.note(f"{subject} {_short(data)}", answer)
        return answer

    def silent(self, subject: str, body: Any = None, *, for_s: float = 0.25) -> None:
        """Send an API request that must not be answered within `for_s` seconds."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            frame = self.wire.request(f"{self.prefix}.{subject}", data, timeout=for_s)
        except WireTimeout:
            self.note(f"{subject} {_short(data)}", "no answer")
        else:
            self.note(f"{subject} {_short(data)}", self.show(frame))

    def setup(self, subject: str, body: Any = None) -> Any:
        """Send an API request as preparation: it is not recorded and must succeed."""
        answer = self.wire.api(subject, body)
        if subject.startswith("STREAM.DELETE."):
            wait_for_removal(self.server, [subject.rsplit(".", 1)[1]], self._users[self._user])
        assert "error" not in answer, f"{subject}: {answer}"
        return answer

    def stream(self, name: str, subjects: Sequence[str] | None = None, **config: Any) -> None:
        """Create a stream as preparation; in memory by default."""
        fields = {"name": name, "storage": "memory", **config}
        if subjects is not None:
            fields["subjects"] = list(subjects)
        self.setup(f"STREAM.CREATE.{name}", fields)

    def consumer(self, stream: str, name: str, **config: Any) -> None:
        """Create a durable consumer as preparation; with explicit acks by default."""
        fields = {"durable_name": name, "ack_policy": "explicit", **config}
        self.setup(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": fields})

    def fill(self, subjects: Sequence[str], data: bytes | None = None, headers: Headers = None) -> None:
        """Publish one message to each subject in order as preparation; all must be acked.

        The data is `data`, or else m1, m2…
        """
        wire = self.wire
        replies = [wire.new_reply() for _ in subjects]
        bodies = [f"m{n}".encode() if data is None else data for n in range(1, len(subjects) + 1)]
        wire.send(b"".join(pub(s, d, r, headers) for s, d, r in zip(subjects, bodies, replies, strict=True)))
        for reply in replies:
            answer = wire.message(reply).json()
            assert "error" not in answer, answer

    def fill_seen(
        self,
        stream: str,
        consumer: str,
        subjects: Sequence[str],
        data: bytes | None = None,
        headers: Headers = None,
        *,
        matching: int | None = None,
    ) -> None:
        """Call `fill`, and wait until the consumer counts the matching messages.

        nats-server counts them after the ack.
        """
        awaited = self.known(stream, consumer) + (len(subjects) if matching is None else matching)
        self.fill(subjects, data, headers)
        self.wait_known(stream, consumer, awaited)

    def wait_known(self, stream: str, consumer: str, awaited: int) -> None:
        """Wait until the consumer counts `awaited` messages."""
        deadline = time.monotonic() + self.timeout
        while self.known(stream, consumer) != awaited:
            assert time.monotonic() < deadline, f"{consumer} never counted the new messages"

    def known(self, stream: str, consumer: str) -> int:
        """Return the number of messages that a consumer has delivered or counts as pending."""
        info = self.wire.api(f"CONSUMER.INFO.{stream}.{consumer}")
        return int(info["num_pending"] + info["delivered"]["consumer_seq"])

    def publish(self, subject: str, data: bytes = b"", headers: Headers = None, *, wire: Wire | None = None) -> Any:
        """Publish with a reply subject; record and return the ack."""
        frame = (wire or self.wire).request(subject, data, headers)
        self.note(f"publish {subject} {headers if isinstance(headers, dict) else ''}", self.show(frame))
        return frame.json() if frame.data else None

    def state(self, stream: str, **body: Any) -> Any:
        """Record the state in STREAM.INFO."""
        answer = self.wire.api(f"STREAM.INFO.{stream}", body or None)
        self.note(f"state of {stream} {body or ''}", answer.get("state", answer))
        return answer

    def numbers(self, stream: str, consumer: str) -> Any:
        """Record CONSUMER.INFO without the configuration."""
        answer = self.wire.api(f"CONSUMER.INFO.{stream}.{consumer}")
        numbers = {key: value for key, value in answer.items() if key not in ("config", "cluster")}
        self.note(f"numbers of {consumer}", numbers)
        return answer

    def numbers_when(self, stream: str, consumer: str, ready: Callable[[Any], bool]) -> Any:
        """Record CONSUMER.INFO once `ready` is true for it, for effects that the server produces asynchronously."""
        deadline = time.monotonic() + self.timeout
        while not ready(self.wire.api(f"CONSUMER.INFO.{stream}.{consumer}")):
            if time.monotonic() > deadline:
                self.note(f"numbers of {consumer}", "never as expected")
                break
            time.sleep(0.01)
        return self.numbers(stream, consumer)

    def state_when(self, stream: str, ready: Callable[[Any], bool]) -> Any:
        """Record the state in STREAM.INFO once `ready` is true for it."""
        self.when(stream, ready)
        return self.state(stream)

    def when(self, stream: str, ready: Callable[[Any], bool]) -> None:
        """Wait until `ready` is true for the state in STREAM.INFO; record the state if it never is."""
        deadline = time.monotonic() + self.timeout
        while not ready(self.wire.api(f"STREAM.INFO.{stream}")["state"]):
            if time.monotonic() > deadline:
                self.note(f"state of {stream}", "never as expected")
                break
            time.sleep(0.01)

    def pull(self, stream: str, consumer: str, body: Any, count: int, *, wire: Wire | None = None) -> list[Frame]:
        """Send a pull request, and record the next `count` answers (messages and statuses)."""
        wire = wire or self.wire
        reply = wire.new_reply()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        wire.publish(f"{self.prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}", data, reply)
        frames = self.collect(wire, count)
        self.frames(f"MSG.NEXT {_short(data)}", frames)
        return frames

    def collect(self, wire: Wire, count: int, *, sid: str = "") -> list[Frame]:
        """Return the next `count` messages for a sid, or for the connection's inbox (answers to pulls and direct gets).

        A frame that does not arrive in time is replaced by a frame that says so.
        """
        inbox = sid or wire.inbox_sid
        frames: list[Frame] = []
        try:
            while len(frames) < count:
                frames.append(wire.next(lambda frame: frame.sid == inbox))
        except WireTimeout:
            frames.append(Frame("MISSING"))
        except Closed:
            frames.append(Frame("CLOSED"))
        return frames

    def ack(self, frame: Frame, body: bytes = b"+ACK", *, wire: Wire | None = None) -> None:
        """Ack with a reply subject and wait for the server's confirmation; do not record it."""
        answer = (wire or self.wire).request(frame.reply, body)
        assert not answer.data, f"a confirmed ack has an empty body, not {answer.data!r}"

    def direct(self, stream: str, body: Any, count: int = 1) -> list[Frame]:
        """Send a direct get; record the next `count` answers, or with count 0 all up to and including the status."""
        wire = self.wire
        reply = wire.new_reply()
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        wire.publish(f"{self.prefix}.DIRECT.GET.{stream}", data, reply)
        if count:
            frames = self.collect(wire, count)
        else:
            frames = [wire.message(reply)]
            while not frames[-1].status:
                frames.append(wire.message(reply))
        self.frames(f"DIRECT.GET.{stream} {_short(data)}", frames)
        return frames


def _lines_of(header: bytes) -> list[str]:
    return header.decode("utf-8", "backslashreplace").split("\r\n")


def _request_info(line: str) -> Any:
    """Return a line of a header block; data about the requester of an imported service without measured values."""
    name, _, value = line.partition(": ")
    if name != "Nats-Request-Info":
        return line
    info = json.loads(value)
    info.pop("rtt", None)  # absent until it is measured
    if "id" in info:
        info["id"] = "<id>"
    return {name: info}


def _short(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return text if len(text) <= 160 else f"{text[:150]}… ({len(text)} characters)"


def remove_streams(server: Server, timeout: float, users: Sequence[tuple[str, str]] = FLAGS.users) -> None:
    """Delete every stream in the accounts of these users."""
    for user, account in users:
        fields = {"user": user, "pass": PASSWORD} if user else {}
        with Wire(server.address, fields, timeout) as wire:
            while names := wire.api("STREAM.NAMES").get("streams"):
                for name in names:
                    answer = wire.api(f"STREAM.DELETE.{name}")
                    assert answer.get("success"), answer
                wait_for_removal(server, names, account)


def wait_for_removal(server: Server, streams: Sequence[str], account: str = "$G") -> None:
    """Wait until nats-server has removed the files of deleted streams, and remove the rest.

    It removes them after its answer, and sometimes writes once more after that; a stream of the same name created
    meanwhile may find the old messages, or fail.
    """
    if server.kind is not Kind.REAL:
        return
    deadline = time.monotonic() + 0.3
    directory = server.store / "jetstream" / account / "streams"
    while any((directory / name).exists() for name in streams) and time.monotonic() < deadline:
        time.sleep(0.001)
    for name in streams:
        shutil.rmtree(directory / name, ignore_errors=True)


def play(scenario: Scenario, server: Server, timeout: float) -> Transcript:
    """Run a scenario; return its transcript. After an error the last entry says what failed."""
    script = Script(server, timeout, scenario.setup.users)
    try:
        scenario.play(script)
    except (WireTimeout, Closed, AssertionError, OSError, KeyError, IndexError, TypeError, ValueError) as error:
        script.transcript.append(("STOPPED", f"{type(error).__name__}: {error}"))
    finally:
        script.close()
    return plain(script.transcript)


def stopped(transcript: Transcript) -> str:
    """Return the error that ended the scenario; "" if it completed."""
    return str(transcript[-1][1]) if transcript and transcript[-1][0] == "STOPPED" else ""


def compare(
    scenario: str, expected: Transcript, got: Transcript, differences: Sequence[Difference] = DIFFERENCES
) -> str:
    """Return the unified diff of two transcripts; empty if they agree except for the allowed differences."""
    if json.dumps(expected, sort_keys=True) == json.dumps(got, sort_keys=True):
        return ""
    wanted, seen = (_lines(scenario, transcript, differences) for transcript in (expected, got))
    return "\n".join(difflib.unified_diff(wanted, seen, "expected", "got", lineterm="", n=4))


def _lines(scenario: str, transcript: Transcript, differences: Sequence[Difference]) -> list[str]:
    allowed = [d for d in differences if fnmatch.fnmatchcase(scenario, d.scenario)]
    lines: list[str] = []
    for label, value in transcript:
        kept = _without(value, label, [d.where for d in allowed])
        lines += [f"# {label}", *json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False).split("\n")]
    return lines


def _without(value: Any, path: str, allowed: Sequence[str]) -> Any:
    """Return the value without the parts that may differ."""

    def differs(inner: str) -> bool:
        return any(fnmatch.fnmatchcase(inner, where) for where in allowed)

    if differs(path):
        return "<may differ>"
    if isinstance(value, dict):
        paths = {key: f"{path}/{key}" for key in value}
        return {key: _without(value[key], inner, allowed) for key, inner in paths.items() if not differs(inner)}
    if isinstance(value, list):
        return [_without(inner, f"{path}/{n}", allowed) for n, inner in enumerate(value)]
    return value
