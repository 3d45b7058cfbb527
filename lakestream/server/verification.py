"""Verification of streams while the server runs, on request.

Belongs here: `$LAKE.API.VERIFY.<stream>`, and the calls of other nodes about the replicas here. The checks are in
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
from lakestream.ports import ClientInfo, Io, Single, Subscribed, singly
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.decoding import DECODE_ERRORS

VERIFY = "$LAKE.API.VERIFY."
RESPONSE_TYPE = "io.lakestream.api.v1.verify_response"
PROGRESS_NS = 1_000_000_000
"""Interval of messages about the progress (1 s)."""
MOST_ASKED = 64
"""Maximum number of requests under way that this node answers; further ones fail (503)."""


class Checks(Protocol):
    """The checks of this node's replicas (`Running` of packages/verify). `calls`: those it serves, by method."""

    calls: dict[str, Callable[[bytes, Callable[[bytes], None]], None]]

    def stop(self) -> None:
        """End all of them."""


class Asked(Protocol):
    """A verification under way that this node answers (`Verification` of packages/verify)."""

    def begin(self) -> None:
        """Begin with it."""

    def cancel(self) -> None:
        """End it."""

    def progress(self) -> list[dict[str, Any]]:
        """Return how far each replica is."""


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
        self._node, self._lake, self._rate, self._background = node, lake, rate, background
        self.most = most
        self._running: Checks | None = None
        self.asked: dict[str, Asked] = {}
        """Requests under way that this node answers, by the stream's uid."""
        for method in ("open", "run", "poll", "rows", "close", "refill"):
            self._serve(f"verify.{method}")

    def _serve(self, method: str) -> None:
        def called(node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
            self.when_loaded(lambda running: running.calls[method](body, answer), self._node.shared.log.warn)

        self._node.peers.serve(method, called)

    def when_loaded(self, then: Callable[[Checks], None], missing: Callable[[str], object]) -> None:
        """Call `then` once the checks are loaded: at the first request in a thread, as that takes some 0.1 s. Call
        `missing` with what to install where they are not to be had."""
        if self._running is not None:
            then(self._running)
            return

        def load() -> Any:
            _load("verification")  # `VerifyApi` uses it next
            return _load("running")

        def loaded(made: Any, error: BaseException | None) -> None:
            if isinstance(error, extras.ExtraMissing):
                missing(str(error))
                return
            if error is not None:
                raise error
            if self._running is None:
                self._running = made(self._node, self._lake, self._background(), self._rate, self.most)
            then(self._running)

        self._node.shared.io.submit(load, loaded)

    def stop(self) -> None:
        """End all verifications."""
        for each in self.asked.values():
            each.cancel()
        if self._running is not None:
            self._running.stop()


class VerifyApi:
    """Serves the requests for one engine's streams."""

    def __init__(self, engine: Engine, verifier: Verifier) -> None:
        self._engine, self._verifier = engine, verifier
        self._bus, self._clock = engine.bus, engine.clock
        self._subscription: Subscribed = self._bus.subscribe(
            f"{VERIFY}*".encode(), singly(engine.when_open(self._asked))
        )

    def close(self) -> None:
        """Stop listening."""
        self._subscription.cancel()

    def _asked(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        if not reply:
            return
        name = subject.rpartition(b".")[2].decode("utf-8", "replace")

        def fail(error: ApiError) -> None:
            self._answer(name, reply, {"error": error.as_dict()})

        def begin(_: Checks) -> None:
            try:
                self._begin(name, reply, body)
            except ApiError as error:
                fail(error)

        self._verifier.when_loaded(begin, lambda text: fail(ApiError(503, 0, text)))

    def _begin(self, name: str, reply: bytes, body: bytes) -> None:
        stream = self._engine.node.asked_here(self._engine.account, name)
        if stream is None:
            return
        checks = _load("verification")
        try:
            options = checks.decode_options(body)
        except DECODE_ERRORS as error:
            raise ApiError(400, 10025, str(error)) from None
        asked, uid = self._verifier.asked, stream.uid
        replica = self._engine.node.replicas.by_uid.get(uid)
        if replica is None or stream.closed:
            raise api_error(10059)
        if not self._verifier.most:
            raise ApiError(503, 0, "this server verifies nothing on request (max_verifications: 0)")
        if uid in asked:
            raise ApiError(503, 0, f"stream {name} is being verified already; try again later")
        if len(asked) >= MOST_ASKED:
            raise ApiError(503, 0, f"{MOST_ASKED} streams are being verified already; try again later")

        def done(outcome: dict[str, Any] | ApiError) -> None:
            asked.pop(uid, None)
            fields = {"error": outcome.as_dict()} if isinstance(outcome, ApiError) else {"done": True, **outcome}
            self._answer(name, reply, fields)

        verification: Asked = checks.Verification(self._engine.node, replica, options, done)
        asked[uid] = verification
        if options.progress:
            self._clock.call_later(PROGRESS_NS, lambda: self._progress(name, uid, reply, verification))
        verification.begin()

    def _progress(self, name: str, uid: str, reply: bytes, verification: Asked) -> None:
        """Tell the client how far it is; end a verification that nobody waits for any more."""
        if self._verifier.asked.get(uid) is not verification:
            return
        if not self._answer(name, reply, {"nodes": verification.progress()}):
            verification.cancel()
            return
        self._clock.call_later(PROGRESS_NS, lambda: self._progress(name, uid, reply, verification))

    def _answer(self, name: str, reply: bytes, fields: dict[str, Any]) -> bool:
        who = {"stream": name, "account": self._engine.account, "server": self._engine.server_name}
        body = msgspec.json.encode({"type": RESPONSE_TYPE, **who, **fields})
        return self._bus.send(Single(reply, payload=body))
