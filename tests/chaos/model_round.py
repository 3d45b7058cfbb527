"""A stream of a running server and its model, given the same random operations.

Belongs here: the operations on one such stream, the states allowed after a kill, and the comparison. The tests choose
servers and the number of streams.
"""

from __future__ import annotations

import base64
import random
import time
from typing import Any

from tests.chance import Chance, Delete, Publish, Purge, Step, Update
from tests.pairs import PASSWORD
from tests.servers import Kind, Server
from tests.stream_model import Answer, StreamModel
from tests.wire import Closed, Frame, Wire, WireTimeout, pub

RESTARTS = 0.02
"""Probability that a step is a restart or a kill."""


class Round:
    """One stream with its model.

    Args:
        server: the stream's server; `step` also restarts and kills it, even if others use it.
        name: name of the stream.
        seed: seed of all random choices.
        user: user whose account has the stream; "" connects without a user.
    """

    def __init__(self, server: Server, name: str, seed: str, user: str = "") -> None:
        self.server, self.name = server, name
        self.rng = random.Random(seed)
        self.chance = Chance(self.rng, ttl=self.rng.random() < 0.5, counter=self.rng.random() < 0.2, name=name)
        self.fixed = {"name": name, "subjects": [f"{name}.>"], "storage": "file"}
        self._fields = {"user": user, "pass": PASSWORD} if user else {}
        self.wire = self._connected()
        self._ask("STREAM.CREATE", self.fixed | self.chance.config)
        self.model = StreamModel(self.chance.config, name=name)
        self.last: list[str] = []
        self._after: list[StreamModel] = []
        self._got: list[Answer] = []
        # nats-server reports message 0 as lost in an empty store that never held a message.
        self._do(self.chance.first())

    def _ask(self, api: str, body: Any) -> Any:
        return self.wire.api(f"{api}.{self.name}", body)

    def _connected(self) -> Wire:
        return Wire(self.server.address, self._fields)

    def step(self) -> None:
        """Do one random operation, restart or kill."""
        if self.rng.random() < RESTARTS and self.server.kind is Kind.OURS:
            self.rng.choice((self._restart, self._kill, self._kill))()
            self.compare(whole=True)
        else:
            self.ask()

    def ask(self) -> None:
        """Do one random request."""
        self._do(self.chance.step())
        self.compare(whole=False)

    def _note(self, what: object) -> None:
        self.last = [*self.last[-8:], str(what)]

    # ------------------------------------------------------------------ requests
    def _do(self, step: Step) -> None:
        self._note(step)
        expected = self.model.play(self._named(step), time.time_ns())
        got = self._answered(step)
        assert got == expected, f"answered {got}, expected {expected}"

    def _subject(self, subject: str) -> str:
        """Return the model's subject below this stream's name, since streams of one server must not overlap."""
        return f"{self.name}.{subject}" if subject not in ("", ">") else subject

    def _named(self, step: Step) -> Step:
        """Return the operation with this stream's subjects."""
        if isinstance(step, Publish):
            other = "Nats-Expected-Last-Subject-Sequence-Subject"
            headers = {name: self._subject(value) if name == other else value for name, value in step.headers.items()}
            return Publish(self._subject(step.subject), headers, step.data)
        return step._replace(filter=self._subject(step.filter)) if isinstance(step, Purge) else step

    def _answered(self, step: Step) -> Answer:
        named = self._named(step)
        match named:
            case Publish():
                return _of_publish(self.wire.request(named.subject, named.data, named.headers or None))
            case Delete():
                answer = self._ask("STREAM.MSG.DELETE", {"seq": named.seq})
                if "error" in answer:  # the position of the sequence decides which of the two
                    assert answer["error"]["err_code"] in (10043, 10057), answer
                    return "refused", 10057
                return "deleted", 1
            case Purge():
                asked = {"filter": named.filter, "seq": named.seq, "keep": named.keep}
                answer = self._ask("STREAM.PURGE", {key: value for key, value in asked.items() if value})
                return "purged", answer["purged"]
            case Update():
                answer = self._ask("STREAM.UPDATE", self.fixed | self.chance.config)
                assert "error" not in answer, answer
                return "updated", 0

    # ------------------------------------------------------------------ restarts and kills
    def _restart(self) -> None:
        self.leave()
        self.server.stop()
        self.server.start()
        self.come_back()

    def leave(self) -> None:
        """Disconnect before a restart."""
        self._note("restart")
        self.wire.close()

    def come_back(self) -> None:
        """Connect again after a restart."""
        self.wire = self._connected()

    def _kill(self) -> None:
        self.before_kill()
        self.server.kill()
        self.server.start()
        self.after_kill()

    def before_kill(self) -> None:
        """Send publishes and read some of their answers, right before the server is killed."""
        self._note("kill")
        after, replies, out = [self.model.copy()], [], []
        for _ in range(self.rng.choice((0, 1, 5, 12))):
            step = self._named(self.chance.publish())
            assert isinstance(step, Publish)
            self._note(f"on its way: {step}")
            replies.append(self.wire.new_reply())
            out.append(pub(step.subject, step.data, replies[-1], step.headers or None))
            self.model.play(step, time.time_ns())
            after.append(self.model.copy())
        self.wire.send(b"".join(out))
        self._after, self._got = after, self._answers(replies, self.rng.randint(0, len(replies)))

    def after_kill(self) -> None:
        """Assert after a kill and restart that everything answered is stored, and nothing that was not sent."""
        self.wire.close()
        self.wire = self._connected()
        after, answers = self._after, self._got
        stored = max((seq for kind, seq in answers if kind != "refused"), default=0)
        there = self.content()
        same = [model for model in after if model.last_seq >= stored and model.content() == there]
        may = "\n".join(f"  {model.last_seq}: {model.content()}" for model in after)
        assert same, f"found {there} after answers {answers}, which may be\n{may}"
        last = self._state()["last_seq"]
        self.model = next((model for model in same if model.last_seq == last), same[0])

    def _answers(self, replies: list[str], count: int) -> list[Answer]:
        got: list[Answer] = []
        try:
            for reply in replies[:count]:
                got.append(_of_publish(self.wire.message(reply)))
        except (Closed, WireTimeout) as error:
            raise AssertionError(f"no answer to a publish: {error!r}") from error
        return got

    # ------------------------------------------------------------------ comparison
    def _state(self) -> dict[str, Any]:
        state = self._ask("STREAM.INFO", {"subjects_filter": ">", "deleted_details": True})["state"]
        names = ("messages", "bytes", "first_seq", "last_seq")
        return {name: state[name] for name in names} | {
            "deleted": state.get("deleted") or [],
            "subjects": state.get("subjects") or {},
        }

    def content(self) -> list[tuple[int, str, bytes, bytes]]:
        state = self._state()
        found = []
        for seq in range(state["first_seq"], state["last_seq"] + 1):
            answer = self._ask("STREAM.MSG.GET", {"seq": seq})
            if "error" not in answer:
                message = answer["message"]
                header, data = (base64.b64decode(message.get(name, "")) for name in ("hdrs", "data"))
                found.append((message["seq"], message["subject"], header, data))
        return found

    def compare(self, whole: bool) -> None:
        """Assert that the stream equals its model: the state, and with `whole` every message."""
        assert self._state() == self.model.state()
        if whole:
            assert self.content() == self.model.content()

    def told(self, error: Exception) -> str:
        """Return the error with the last operations, for a failure's message."""
        last = "\n  ".join(self.last)
        return f"{type(error).__name__}: {error}\n  {self.model.config}\n  {last}"


def _of_publish(frame: Frame) -> Answer:
    answer = frame.json()
    if "error" in answer:
        return "refused", answer["error"]["err_code"]
    return "duplicate" if answer.get("duplicate") else "stored", answer["seq"]
