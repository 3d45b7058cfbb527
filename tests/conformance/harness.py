"""Run one scripted scenario against a server, and compare what it said with what nats-server said.

What belongs here: the script that a scenario is given, its transcript, the normalising of what must differ (times,
random names, ids), the register of scenarios, and the comparison. The scenarios are in `scenarios/`; what may differ
for good is in `differences.py`.

A scenario is a function of a `Script`. It must say the same on every run against the same server: it waits for
frames, never for time to pass, and fences with PING or a request what it does not wait for. All streams are removed
after it.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tests.conformance.differences import DIFFERENCES, Difference
from tests.pairs import FLAGS, PASSWORD, Setup
from tests.recordings import Transcript, plain
from tests.servers import Kind, Server
from tests.wire import Closed, Frame, Headers, Wire, WireTimeout, pub

_TIME = re.compile(r"20(?:2[4-9]|[3-9]\d)-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{0,8}[1-9])?Z")
_ACK = re.compile(r"(\$JS\.ACK\.[^.\s]+\.[^.\s]+\.\d+\.\d+\.\d+)\.\d{19}\.(\d+)$")
_FLOW = re.compile(r"^(\$JS\.FC\.[^.]+\.[^.]+)\.[^.]+$")
_WAY_BACK = re.compile(r"\b_R_\.\w+\.\w+(\.T\b)?")
_REPLY = re.compile(r"(_INBOX\.w\d+)\.\d+")
_NUMBER_KEYS = {"pause_remaining", "rtt", "active"}
_IDENTITY_KEYS = {"server_id", "git_commit", "go", "client_id", "port", "nonce", "xkey"}


class Scenario(NamedTuple):
    """A registered script: its id, the function that plays it, with what the servers start, if it is recorded."""

    id: str
    play: Callable[[Script], None]
    setup: Setup = FLAGS
    recorded: bool = True


SCENARIOS: list[Scenario] = []


def scenario(play: Callable[[Script], None]) -> Callable[[Script], None]:
    """Register a script under `<module>.<function>`."""
    SCENARIOS.append(Scenario(f"{play.__module__.rsplit('.', 1)[-1]}.{play.__name__}", play))
    return play


def configured(config: str | Setup) -> Callable[[Callable[[Script], None]], Callable[[Script], None]]:
    """Register a script as `scenario` does, for a pair of servers with this configuration file."""
    setup = config if isinstance(config, Setup) else Setup(config)

    def register(play: Callable[[Script], None]) -> Callable[[Script], None]:
        SCENARIOS.append(Scenario(f"{play.__module__.rsplit('.', 1)[-1]}.{play.__name__}", play, setup))
        return play

    return register


def table(
    rows: Iterable[tuple[Any, ...]], setup: Setup = FLAGS, *, recorded: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a script once for each row; a row is its name and the arguments after the Script.

    recorded: False if the rows are others each time, so that nats-server has to play them too.
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


class Script:
    """What a scenario works with: connections to one server, and the transcript.

    The methods that talk also record. `wire` is the main connection for what shall not be recorded. Where there are
    accounts it is of the first user of `users`, which are users with their accounts; `as_user` gives another user's.
    `prefix` is where that user finds the API.
    """

    def __init__(self, server: Server, timeout: float, users: Sequence[tuple[str, str]] = FLAGS.users) -> None:
        self.server = server
        self.address = server.address
        self.timeout = timeout
        self.transcript: Transcript = []
        self._hidden: dict[str, str] = {}
        self._wires: list[Wire] = []
        self._main: Wire | None = None
        self._users = dict(users)
        self._user = users[0][0]
        self._who = ""
        self.prefix = "$JS.API"
        self._others: dict[str, Script] = {}

    def as_user(self, user: str, prefix: str = "$JS.API", account: str = "") -> Script:
        """This script as another user: what it records goes into the same transcript, under the user's name.

        prefix: where the user finds the API, if not at its usual place.
        account: whose API that is, if not the user's account's own.
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
        """The main connection, opened when first needed."""
        if self._main is None:
            self._main = self.connect()
        return self._main

    def connect(self, **fields: Any) -> Wire:
        """A further connection with these CONNECT fields; closed at the end of the scenario.

        It is of the script's user unless `user` names another one, or is None: nobody.
        """
        user = fields.pop("user", self._user)
        if user:
            fields = {"user": user, "pass": PASSWORD, **fields}
        return self._keep(Wire(self.address, fields, self.timeout))

    def connect_bare(self) -> Wire:
        """A further connection on which no CONNECT was sent."""
        return self._keep(Wire(self.address, None, self.timeout))

    def _keep(self, wire: Wire) -> Wire:
        wire.inbox = f"_INBOX.w{len(self._wires)}"
        wire.api_prefix = self.prefix
        self._wires.append(wire)
        return wire

    def close(self) -> None:
        """Close every connection."""
        for wire in self._wires:
            wire.close()

    # ---- the transcript

    def hide(self, value: str, name: str) -> None:
        """Show this random value as `name` from now on."""
        self._hidden[value] = name

    def note(self, label: str, value: Any) -> None:
        """Record a value."""
        self.transcript.append((self._text(self._who + label), self.normal(value)))

    def normal(self, value: Any, key: str = "") -> Any:
        """The value without what differs between any two runs."""
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
        return _TIME.sub("<time>", text)

    def show(self, frame: Frame) -> Any:
        """A frame as transcript data."""
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
        """An API request (subject without `$JS.API.`; body: None, bytes, or data for JSON); records the answer."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        frame = (wire or self.wire).request(f"{self.prefix}.{subject}", data, headers)
        try:
            answer = json.loads(frame.data)
        except ValueError:
            answer = self.show(frame)
        self.note(f"{subject} {_short(data)}", answer)
        return answer

    def silent(self, subject: str, body: Any = None, *, for_s: float = 0.25) -> None:
        """An API request that must not be answered at all within `for_s` seconds."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            frame = self.wire.request(f"{self.prefix}.{subject}", data, timeout=for_s)
        except WireTimeout:
            self.note(f"{subject} {_short(data)}", "no answer")
        else:
            self.note(f"{subject} {_short(data)}", self.show(frame))

    def setup(self, subject: str, body: Any = None) -> Any:
        """An API request that belongs to the stage, not to the play: not recorded, must succeed."""
        answer = self.wire.api(subject, body)
        if subject.startswith("STREAM.DELETE."):
            wait_for_removal(self.server, [subject.rsplit(".", 1)[1]], self._users[self._user])
        assert "error" not in answer, f"{subject}: {answer}"
        return answer

    def stream(self, name: str, subjects: Sequence[str] | None = None, **config: Any) -> None:
        """Create a stream as stage; memory storage unless said otherwise."""
        fields = {"name": name, "storage": "memory", **config}
        if subjects is not None:
            fields["subjects"] = list(subjects)
        self.setup(f"STREAM.CREATE.{name}", fields)

    def consumer(self, stream: str, name: str, **config: Any) -> None:
        """Create a durable consumer with explicit acks (unless said otherwise) as stage."""
        fields = {"durable_name": name, "ack_policy": "explicit", **config}
        self.setup(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": fields})

    def fill(self, subjects: Sequence[str], data: bytes | None = None, headers: Headers = None) -> None:
        """Publish one message to each subject, in order, as stage: all must be acked. Data: `data`, or m1, m2…"""
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
        """`fill`, and wait until the consumer counts what matches: nats-server tells its consumers after the ack."""
        awaited = self.known(stream, consumer) + (len(subjects) if matching is None else matching)
        self.fill(subjects, data, headers)
        self.wait_known(stream, consumer, awaited)

    def wait_known(self, stream: str, consumer: str, awaited: int) -> None:
        """Wait until the consumer counts so many messages."""
        deadline = time.monotonic() + self.timeout
        while self.known(stream, consumer) != awaited:
            assert time.monotonic() < deadline, f"{consumer} never counted the new messages"

    def known(self, stream: str, consumer: str) -> int:
        """How many messages a consumer has delivered, or knows to be pending."""
        info = self.wire.api(f"CONSUMER.INFO.{stream}.{consumer}")
        return int(info["num_pending"] + info["delivered"]["consumer_seq"])

    def publish(self, subject: str, data: bytes = b"", headers: Headers = None, *, wire: Wire | None = None) -> Any:
        """Publish with a reply subject; records and returns the ack."""
        frame = (wire or self.wire).request(subject, data, headers)
        self.note(f"publish {subject} {headers if isinstance(headers, dict) else ''}", self.show(frame))
        return frame.json() if frame.data else None

    def state(self, stream: str, **body: Any) -> Any:
        """Record STREAM.INFO's state."""
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
        """Record CONSUMER.INFO once `ready` holds for it (for what the server does in its own time)."""
        deadline = time.monotonic() + self.timeout
        while not ready(self.wire.api(f"CONSUMER.INFO.{stream}.{consumer}")):
            if time.monotonic() > deadline:
                self.note(f"numbers of {consumer}", "never as expected")
                break
            time.sleep(0.01)
        return self.numbers(stream, consumer)

    def state_when(self, stream: str, ready: Callable[[Any], bool]) -> Any:
        """Record STREAM.INFO's state once `ready` holds for it."""
        self.when(stream, ready)
        return self.state(stream)

    def when(self, stream: str, ready: Callable[[Any], bool]) -> None:
        """Wait until `ready` holds for STREAM.INFO's state; record it if it never does."""
        deadline = time.monotonic() + self.timeout
        while not ready(self.wire.api(f"STREAM.INFO.{stream}")["state"]):
            if time.monotonic() > deadline:
                self.note(f"state of {stream}", "never as expected")
                break
            time.sleep(0.01)

    def pull(self, stream: str, consumer: str, body: Any, count: int, *, wire: Wire | None = None) -> list[Frame]:
        """Ask for messages, and record the next `count` answers (messages and statuses alike)."""
        wire = wire or self.wire
        reply = wire.new_reply()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        wire.publish(f"{self.prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}", data, reply)
        frames = self.collect(wire, count)
        self.frames(f"MSG.NEXT {_short(data)}", frames)
        return frames

    def collect(self, wire: Wire, count: int, *, sid: str = "") -> list[Frame]:
        """The next `count` messages for a sid, or for the connection's inbox (answers of pulls and direct gets).

        What comes in time is returned; a missing frame is shown as a frame of its own.
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
        """Ack with a reply subject and wait for the server's confirmation, not recorded."""
        answer = (wire or self.wire).request(frame.reply, body)
        assert not answer.data, f"a confirmed ack has an empty body, not {answer.data!r}"

    def direct(self, stream: str, body: Any, count: int = 1) -> list[Frame]:
        """A direct get; records the next `count` answers, or with count 0 all up to and with the status."""
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
    """A line of a header block; who made a request over an import is data, without what is measured."""
    name, _, value = line.partition(": ")
    if name != "Nats-Request-Info":
        return line
    info = json.loads(value)
    info.pop("rtt", None)  # not there before it was measured
    if "id" in info:
        info["id"] = "<id>"
    return {name: info}


def _short(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return text if len(text) <= 160 else f"{text[:150]}… ({len(text)} characters)"


def remove_streams(server: Server, timeout: float, users: Sequence[tuple[str, str]] = FLAGS.users) -> None:
    """Delete every stream of these users' accounts."""
    for user, account in users:
        fields = {"user": user, "pass": PASSWORD} if user else {}
        with Wire(server.address, fields, timeout) as wire:
            while names := wire.api("STREAM.NAMES").get("streams"):
                for name in names:
                    answer = wire.api(f"STREAM.DELETE.{name}")
                    assert answer.get("success"), answer
                wait_for_removal(server, names, account)


def wait_for_removal(server: Server, streams: Sequence[str], account: str = "$G") -> None:
    """Wait until nats-server has removed the files of deleted streams, and remove what it leaves.

    It removes them after its answer, and now and then something is written once more after that; a stream of the same
    name created meanwhile may find the old messages, or fail.
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
    """The transcript of a scenario; when it could not go on, the last entry says why."""
    script = Script(server, timeout, scenario.setup.users)
    try:
        scenario.play(script)
    except (WireTimeout, Closed, AssertionError, OSError, KeyError, IndexError, TypeError, ValueError) as error:
        script.transcript.append(("STOPPED", f"{type(error).__name__}: {error}"))
    finally:
        script.close()
    return plain(script.transcript)


def stopped(transcript: Transcript) -> str:
    """Why the scenario did not come to its end, or an empty string."""
    return str(transcript[-1][1]) if transcript and transcript[-1][0] == "STOPPED" else ""


def compare(
    scenario: str, expected: Transcript, got: Transcript, differences: Sequence[Difference] = DIFFERENCES
) -> str:
    """Unified difference of two transcripts, empty when they agree but for the allowed differences."""
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
    """The value without the parts that may differ."""

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
