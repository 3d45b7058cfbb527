"""Verification of streams while the server runs, on request.

Belongs here: `$LAKE.API.VERIFY.<stream>`, and the calls of other nodes about the replicas here. Both are served by
packages/verify, which is loaded with the first request.

The request is one of the stream's own account, as those of import, export and flush are: whoever may publish to its
subject may ask, and it shows nothing of other accounts. Its body may be empty, or JSON (`VerifyOptions`). The
node that leads the stream answers once, at the end; with `progress` every second before that, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from lakestream import extras
from lakestream.account.engine import Engine
from lakestream.meta.node import MetaNode
from lakestream.ports import ClientInfo, Io, Single, singly
from lakestream.protocol.api.errors import ApiError

VERIFY = "$LAKE.API.VERIFY."
RESPONSE_TYPE = "io.lakestream.api.v1.verify_response"


class Checks(Protocol):
    """The checks of this node's replicas (`Running` of packages/verify). `calls`: those it serves, by method."""

    calls: dict[str, Callable[[bytes, Callable[[bytes], None]], None]]

    def stop(self) -> None:
        """End all of them."""


class Asked(Protocol):
    """A verification under way that this node answers (`Verification` of packages/verify)."""

    def cancel(self) -> None:
        """End it."""


def _load(name: str) -> Any:
    return extras.load("lakestream.verification", name, "verify", "verification of a running server")


class Verifier:
    """The verifications on this node.

    Args:
        lake: root of the lake; "" without.
        rate: bytes of logs in a second; 0: any.
        most: replicas verified at the same time; 0: none are.
        background: returns threads that do nothing else.
    """

    def __init__(self, node: MetaNode, lake: str, rate: int, most: int, background: Callable[[], Io]) -> None:
        self._node, self.most = node, most

        def load() -> Any:
            _load("verification")  # `VerifyApi` uses it next
            return _load("running")

        self.running: extras.LatePart[Checks] = extras.LatePart(
            node.shared.io.submit, load, lambda made: made(node, lake, background(), rate, most)
        )
        self.asked: dict[str, Asked] = {}
        """Requests under way that this node answers, by the stream's uid."""
        for method in ("open", "run", "poll", "rows", "close", "refill"):
            self._serve(f"verify.{method}")

    def _serve(self, method: str) -> None:
        def called(node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
            self.running.use(lambda running: running.calls[method](body, answer), self._node.shared.log.warn)

        self._node.peers.serve(method, called)

    def stop(self) -> None:
        """End all verifications."""
        for each in self.asked.values():
            each.cancel()
        if self.running.part is not None:
            self.running.part.stop()


class VerifyApi:
    """Serves the requests for one engine's streams."""

    def __init__(self, engine: Engine, verifier: Verifier) -> None:
        self.engine, self.verifier = engine, verifier
        self._subscription = engine.bus.subscribe(f"{VERIFY}*".encode(), singly(engine.when_open(self._asked)))

    def close(self) -> None:
        """Stop listening."""
        self._subscription.cancel()

    def _asked(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        if not reply:
            return
        name = subject.rpartition(b".")[2].decode("utf-8", "replace")

        def begin(_: Checks) -> None:
            try:
                _load("verification").begin(self, name, reply, body)
            except ApiError as error:
                self.answer(name, reply, {"error": error.as_dict()})

        def missing(text: str) -> None:
            self.answer(name, reply, {"error": ApiError(503, 0, text).as_dict()})

        self.verifier.running.use(begin, missing)

    def answer(self, name: str, reply: bytes, fields: dict[str, Any]) -> bool:
        """Answer a request; return False if nobody listens any more."""
        who = {"stream": name, "account": self.engine.account, "server": self.engine.server_name}
        body = msgspec.json.encode({"type": RESPONSE_TYPE, **who, **fields})
        return self.engine.bus.send(Single(reply, payload=body))
