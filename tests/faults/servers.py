"""Real servers whose files fail, and clients that record what they were told.

Belongs here: the life of one stream and its bucket under one rule of a plan, and the promises that are checked. Many
streams share a server, each with its own rule: so every case also shows that other streams are not harmed. After the
last case the server is killed, and `tests.power.audit` compares its store with what the clients were told.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.buckets import Bucket
from tests.faults.plan import SOURCE, Action, Plan, Rule
from tests.key_clients import bucket
from tests.power.audit import NoAnswer, NotStarted, audit, serving
from tests.power.facts import Message, Stream
from tests.power.journal import build
from tests.power.workload import CONFIG, DURABLE, HOUR_NS, Client
from tests.servers import Kind, Server
from tests.wire import Closed, Wire, WireTimeout, pub

TIMEOUT_S = 15.0
ACK_S = 0.5
"""Timeout for the confirmation of an ack, which a stream that takes no messages does not give."""
OTHER = "OTHER"
MARKS = ("Traceback", "internal error")
"""Words of the log that no failing file may cause."""


class Broken(Exception):
    """Raised when a promise is broken."""


class Sufferer(Client):
    """Client of a stream whose files fail: errors are answers, silence is not."""

    def __init__(
        self, wire: Wire, streams: dict[str, Stream], name: str, random: Random, secret: str, unordered: set[str]
    ) -> None:
        super().__init__(wire, streams[name], random)
        self.streams = streams
        self.secret = secret
        self.unordered = unordered
        """Streams with a delivered message whose ack was not confirmed: the ack floor stays below it."""
        self.refused = ""
        """The last refusal of a message."""

    def answer(self, subject: str, data: bytes = b"", headers: dict[str, str] | None = None) -> Any:
        """Request, and return the answer as JSON."""
        try:
            frame = self.wire.request(subject, data, headers, TIMEOUT_S)
        except WireTimeout:
            raise Broken(f"no answer to {subject} {data[:80]!r}") from None
        if self.secret.encode() in frame.data:
            raise Broken(f"an answer to a client names a path of the server: {frame.data!r}")
        return frame.json() if frame.data else {"error": {"description": f"status {frame.status}"}}

    def api(self, subject: str, body: Any = None) -> Any:
        """Request of the API, and return the answer."""
        return self.answer(f"$JS.API.{subject}", b"" if body is None else json.dumps(body).encode())

    def burst(self, count: int = 12, size: int = -1) -> None:
        """Publish messages, and await an answer for each."""
        first = self.stream.last_acked(1 << 62) + 1
        waiting: dict[str, Message] = {}
        frames = []
        self.wire.new_reply()
        for seq in range(first, first + count):
            subject = f"{self.stream.name}.{self.random.randrange(4)}"
            length = self.random.choice((0, 20, 200, 2000, 9000)) if size < 0 else size
            message = Message(seq, subject, length, time.monotonic_ns())
            reply = f"{self.wire.inbox}.s{time.monotonic_ns()}"
            waiting[reply] = message
            self.stream.messages.setdefault(seq, message)  # one that was refused may be there after a restart
            frames.append(pub(subject, message.payload(), reply))
        self.wire.send(b"".join(frames))
        while waiting:
            try:
                frame = self.wire.next(lambda frame: frame.subject in waiting, TIMEOUT_S)
            except WireTimeout:
                raise Broken(f"no answer to {len(waiting)} of {count} publishes") from None
            self._told(waiting.pop(frame.subject), frame.json() if frame.data else {"error": {"description": "none"}})

    def batch(self) -> None:
        """Publish an atomic batch."""
        first = self.stream.last_acked(1 << 62) + 1
        name = f"{time.monotonic_ns()}"
        members = [Message(first + each, f"{self.stream.name}.1", 300, time.monotonic_ns()) for each in range(3)]
        for number, message in enumerate(members, 1):
            self.stream.messages.setdefault(message.seq, message)
            headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(number)}
            if number < len(members):
                self.wire.publish(message.subject, message.payload(), headers=headers)
        headers["Nats-Batch-Commit"] = "1"
        answer = self.answer(message.subject, message.payload(), headers)
        for member in members if "error" not in answer else ():
            self._told(member, {"seq": member.seq})
        self._told(message, answer)

    def _told(self, message: Message, answer: dict[str, Any]) -> None:
        if "error" in answer:
            self.refused = answer["error"]["description"]
        elif answer["seq"] != message.seq:
            raise Broken(f"message {message.seq} got sequence {answer['seq']}: another one was stored unasked")
        else:
            message.acked_ns = time.monotonic_ns()
            self.stream.messages[message.seq] = message

    def _remove(self, messages: list[Message], api: str, body: dict[str, Any]) -> None:
        asked_ns = time.monotonic_ns()
        for message in messages:
            message.lost_ns = min(message.lost_ns, asked_ns)
        if self.api(api, body).get("success"):
            for message in messages:
                message.gone_ns = min(message.gone_ns, time.monotonic_ns())

    def consume(self, count: int = 3) -> None:
        """Take messages from the consumer, and have acks of them confirmed."""
        sid = self.wire.subscribe(inbox := f"{self.wire.inbox}-pull-{time.monotonic_ns()}")
        request = b'{"batch":%d,"no_wait":true}' % count
        self.wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.stream.name}.{DURABLE}", request, inbox)
        for _ in range(count):
            try:
                frame = self.wire.delivered(sid, TIMEOUT_S)
            except WireTimeout:
                raise Broken("no answer to a pull request") from None
            if frame.status or not frame.reply:
                break
            seq = int(frame.reply.split(".")[-4])
            message = self.stream.messages.get(seq)
            if message is None or message.payload() != frame.data:
                raise Broken(f"the consumer delivers other data as message {seq}")
            try:
                confirmed = self.wire.request(frame.reply, b"+ACK", timeout=ACK_S)
            except WireTimeout:  # an ack that is not stored is not confirmed; the message is delivered again
                self.unordered.add(self.stream.name)
                continue
            if not confirmed.status and not confirmed.data and self.stream.name not in self.unordered:
                self.stream.floors.append((seq, time.monotonic_ns()))
        self.wire.unsubscribe(sid)

    def read(self) -> None:
        """Read messages in both ways: each answer is the message, or an error."""
        held = list(self.stream.possible(time.monotonic_ns()).values())
        for message in self.random.sample(held, min(6, len(held))):
            body = b'{"seq":%d}' % message.seq
            try:
                frame = self.wire.request(f"$JS.API.DIRECT.GET.{self.stream.name}", body, timeout=TIMEOUT_S)
            except WireTimeout:
                raise Broken(f"no answer to a direct get of message {message.seq}") from None
            if not frame.status and frame.data != message.payload():
                raise Broken(f"a direct get returns other data as message {message.seq}")
            answer = self.api(f"STREAM.MSG.GET.{self.stream.name}", {"seq": message.seq})
            if "error" not in answer and len(answer["message"].get("data", "")) != -(-message.size // 3) * 4:
                raise Broken(f"a get returns other data as message {message.seq}")

    def manage(self) -> None:
        """Change the stream; create and delete a consumer."""
        name, config = self.stream.name, {**self.stream.config, "max_age": HOUR_NS + self.random.randrange(HOUR_NS)}
        self.api(f"STREAM.UPDATE.{name}", config)
        self.api(
            f"CONSUMER.DURABLE.CREATE.{name}.E",
            {"stream_name": name, "config": {"durable_name": "E", "ack_policy": "none"}},
        )
        self.api(f"STREAM.INFO.{name}")
        self.api(f"CONSUMER.DELETE.{name}.E")

    def live_and_die(self) -> None:
        """Create another stream, publish to it, and delete it."""
        name = f"{self.stream.name}X"
        config = {"name": name, "subjects": [f"{name}.*"], "allow_direct": True}
        if "error" in self.api(f"STREAM.CREATE.{name}", config):
            return
        self.streams[name] = Stream(name, config, created_ns=time.monotonic_ns())
        other = Sufferer(self.wire, self.streams, name, self.random, self.secret, self.unordered)
        other.burst(3)
        other.read()
        other.stream.deleting_ns = time.monotonic_ns()
        if self.api(f"STREAM.DELETE.{name}").get("success"):
            other.stream.deleted_ns = time.monotonic_ns()

    def act(self) -> None:
        """Do everything once, in an order of chance."""
        actions: list[Callable[[], None]] = [
            self.burst, self.burst, lambda: self.burst(5, 9000), lambda: self.burst(1), lambda: self.burst(1),
            self.batch, self.consume, self.read, self.read, self.manage, lambda: self.delete(2), self.purge,
            self.live_and_die,
        ]  # fmt: skip
        self.random.shuffle(actions)
        for action in actions:
            action()

    def delete(self, count: int) -> None:
        """Delete messages, if there are enough."""
        acked = [each for each in self.stream.messages.values() if each.acked_ns < each.lost_ns]
        for message in self.random.sample(acked, min(count, len(acked))):
            body = {"seq": message.seq, "no_erase": self.random.random() < 0.5}
            self._remove([message], f"STREAM.MSG.DELETE.{self.stream.name}", body)


class Site:
    """A server under a plan, and its streams. A context: it runs the server.

    Args:
        directory: a new one.
        seed: of the order of what clients do.
        tools: directory in which the library is built.
    """

    def __init__(self, directory: Path, seed: int, tools: Path) -> None:
        self.random = Random(seed)
        self.store = (directory / "store").resolve()
        self.store.mkdir(parents=True)
        self.plan = Plan(directory / "plan", self.store)
        environment = self.plan.environment(build(tools, SOURCE))
        self.server = Server(Kind.OURS, self.store, config=CONFIG, args=["-m", "-1"], environment=environment)
        self.streams: dict[str, Stream] = {}
        self.buckets: list[Bucket] = []
        self.problems: list[str] = []
        self.hits: dict[str, int] = {}
        self._unordered: set[str] = set()
        self._seen = 0

    def __enter__(self) -> Site:
        self.server.start()
        with self.wire() as wire:
            self.make(wire, OTHER)
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.kill()

    def wire(self) -> Wire:
        """Return a connection."""
        return Wire(self.server.address, timeout=TIMEOUT_S)

    def _client(self, wire: Wire, name: str) -> Sufferer:
        return Sufferer(wire, self.streams, name, self.random, str(self.store), self._unordered)

    def make(self, wire: Wire, name: str) -> Sufferer:
        """Create a stream with a consumer and some messages; return its client."""
        config = {"name": name, "subjects": [f"{name}.*"], "allow_direct": True, "allow_atomic": True}
        self.streams[name] = Stream(name, config, f"{name}.0")
        client = self._client(wire, name)
        answer = client.api(f"STREAM.CREATE.{name}", config)
        assert "error" not in answer, answer
        self.streams[name].created_ns = time.monotonic_ns()
        body = {"durable_name": DURABLE, "ack_policy": "explicit", "max_ack_pending": 100_000}
        answer = client.api(f"CONSUMER.DURABLE.CREATE.{name}.{DURABLE}", {"stream_name": name, "config": body})
        assert "error" not in answer, answer
        client.burst()
        return client

    def suffer(self, rule: Rule) -> None:
        """Let one stream, and a bucket, live under a rule, whose pattern says `{stream}` for their names."""
        name = f"S{len(self.streams)}"
        rule = rule._replace(pattern=rule.pattern.replace("{stream}", f"*{name}"))  # the bucket's is KV_<name>
        try:
            self._suffer(name, rule)
        except (Broken, Closed, WireTimeout, OSError) as error:
            if rule.action is not Action.KILL or isinstance(error, Broken):
                self.problems.append(f"{name}: {rule}: {type(error).__name__}: {error}")
        finally:
            self.plan.set()
        if rule.action is Action.KILL:
            self.server.kill()
            self._again()
        elif not self.server.running:
            self.problems.append(f"{name}: {rule}: the server has ended")
            self._again()
        if unanswered := self.buckets[-1].unanswered() if self.buckets else 0:
            self.problems.append(f"{name}: {rule}: {unanswered} operations on keys without an answer")

    def _again(self) -> None:
        """Start the server again: all streams take messages then."""
        if self.buckets:
            self.buckets[-1].died()
        self.server.start()
        self._seen = len(self.server.log(2000).splitlines())

    def _suffer(self, name: str, rule: Rule) -> None:
        with self.wire() as wire:
            client = self.make(wire, name)
            client.burst(5, 9000)
            client.consume()
            assert "error" not in client.api(f"STREAM.CREATE.KV_{name}", bucket(-1, name=name))
            self.buckets.append(keys := Bucket(name, self.wire, self.random))
            keys.start()
            self.plan.set(rule)
            try:
                client.act()
            finally:
                self.hits[str(rule)] = self.plan.hits()
                self.plan.set()
                keys.stop()
            if self.server.running:
                self._after(client, name)

    def _after(self, client: Sufferer, name: str) -> None:
        """Look at the stream and its server once the files are good again."""
        client.refused = ""
        client.burst(2)
        answer = client.answer(f"$KV.{name}.last", b"value")
        log = self.server.log(2000).splitlines()
        fresh, self._seen = log[self._seen :], len(log)
        page = self._told(name, client.refused, fresh)
        page += self._told(f"KV_{name}", answer["error"]["description"] if "error" in answer else "", fresh)
        if any(mark in line for line in fresh for mark in MARKS):
            raise Broken("the log has a traceback:\n" + "\n".join(fresh))
        if str(self.store) in page:
            raise Broken(f"/healthz names a path: {page}")
        other = self._client(client.wire, OTHER)
        other.burst(3)
        other.read()
        other.consume()
        if other.refused:
            raise Broken(f"another stream refuses messages: {other.refused}")

    def _told(self, name: str, refused: str, fresh: list[str]) -> str:
        """Check that a failure of a stream is told, and only that; return the page about its health.

        Args:
            refused: the refusal of a message, or "".
            fresh: the new lines of the log.
        """
        status, page = self.health(name)
        if refused:
            if status == 200 or name not in page:
                raise Broken(f"{name} refuses messages ({refused}), and /healthz says {status} {page}")
            if not any(name in line and str(self.store) in line for line in fresh):
                raise Broken(f"{name} refuses messages ({refused}), and the log names no file")
        elif status != 200:
            raise Broken(f"{name} takes messages, and /healthz says {page}")
        return page

    def health(self, name: str) -> tuple[int, str]:
        """Return status and body of /healthz for one stream."""
        url = f"http://{self.server.host}:{self.server.http_port}/healthz?account=$G&stream={name}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def end(self, *last: Rule) -> list[str]:
        """Kill the server, or stop it while these rules hold; return every broken promise once its files are good."""
        if last:
            self.plan.set(*(rule._replace(pattern=rule.pattern.replace("{stream}", "*")) for rule in last))
            self.server.stop()
            self.hits |= {f"stop: {rule}": self.plan.hits(number) for number, rule in enumerate(last)}
            if any(mark in self.server.log(2000) for mark in MARKS):
                self.problems.append("the log has a traceback:\n" + self.server.log(60))
        self.server.kill()
        self.problems += audit(self.store, list(self.streams.values()), time.monotonic_ns())
        try:
            with serving(self.store) as wire:
                self.problems += [problem for each in self.buckets for problem in each.problems(wire)]
        except (NotStarted, NoAnswer) as error:
            self.problems.append(f"the buckets cannot be read: {error}")
        return self.problems
