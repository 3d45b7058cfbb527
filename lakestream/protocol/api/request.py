"""Requests to the JetStream API and their responses.

Belongs here: what handlers see of a request, the two envelopes of a response, and the subjects of the API. Routing to
handlers is in account/api/subjects.py, the handlers in account/api.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol, TypeVar

import msgspec

from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.json_syntax import JsonError
from lakestream.protocol.api.jsonio import dumps, parse
from lakestream.protocol.client import ClientInfo

S = TypeVar("S", bound=msgspec.Struct)

API_LEVEL = 5
"""The JetStream API level of nats-server 2.15 (docs/internals/api.md#api-level)."""

NATS_VERSION = "2.15.1"
"""The nats-server release whose behaviour this server has; INFO and the metadata of streams and consumers name it."""

TYPE_PREFIX = "io.nats.jetstream.api.v1."

PREFIX = b"$JS.API."
SERVERS_QUEUE = b"_sys_"
"""Queue group of subscriptions of servers alone, as in nats-server: mirrors serve a share of the direct gets."""
LEVEL_HEADER = b"Nats-Required-Api-Level"
_NUMBER = re.compile(rb"[+-]?[0-9]+")


def prefixes(domain: str) -> list[bytes]:
    """Return the prefixes of the API: `$JS.API.`, and `$JS.<domain>.API.` with a domain."""
    return [PREFIX, b"$JS.%b.API." % domain.encode()] if domain else [PREFIX]


def level_refused(header: bytes) -> bool:
    """Return True if a header block requires an API level that this server does not have, or an invalid one."""
    if not header:
        return False
    wanted = headers.get(header, LEVEL_HEADER)
    if not wanted:
        return False
    return _NUMBER.fullmatch(wanted) is None or int(wanted[:20]) > API_LEVEL


class Where(Enum):
    """The node of a cluster that answers a request. Without a cluster there is only one."""

    HERE = "here"
    """The node that received it."""
    META = "meta"
    """The leader of the meta group."""
    STREAM = "stream"
    """The leader of the stream that the first token names; of an unknown stream the leader of the meta group."""
    REPLICA = "replica"
    """As `STREAM`, but without a leader this node if it has a replica: its data may be old."""


class Answered(Protocol):
    """Takes the responses of requests: sends and counts them."""

    strict: bool
    """Reject requests with unknown fields (`jetstream.strict`)."""
    account: str
    """The account of the API."""

    def answered(self, request: Request, body: bytes, failed: bool) -> None:
        """Send `body` to the request's reply subject, if there is one."""

    def crashed(self, request: Request, error: Exception) -> ApiError:
        """Log and count an exception that a handler of `request` raised; return the text for the client."""


class Request:
    """One API request. Exactly one of `respond` and `fail` is called, at once or later.

    Args:
        tokens: the subject's tokens at the wildcards of the route's pattern.
        body, header, reply: as received.
        client: the requester.
        kind: the response type without its common prefix (`stream_info_response`).
        empty: fields that an error response has beside the error.
        pattern: the route's pattern, by which another node finds the same handler.
        hops: the number of nodes that forwarded it.
        origin: the node that received it; "": this one.
        stage: "" as the client sent it; else what another node has done for it, see the handler.
    """

    __slots__ = (
        "_answers",
        "_empty",
        "_kind",
        "about",
        "answer_header",
        "answered",
        "body",
        "client",
        "header",
        "hops",
        "origin",
        "pattern",
        "reply",
        "stage",
        "tokens",
    )

    def __init__(
        self,
        answers: Answered,
        kind: str,
        empty: Mapping[str, Any],
        tokens: Sequence[str],
        reply: bytes,
        header: bytes,
        body: bytes,
        client: ClientInfo,
        pattern: str = "",
        hops: int = 0,
        stage: str = "",
        origin: str = "",
    ) -> None:
        self._answers, self._kind, self._empty = answers, kind, empty
        self.tokens, self.reply, self.header, self.body, self.client = tokens, reply, header, body, client
        self.pattern, self.hops, self.stage, self.origin = pattern, hops, stage, origin
        self.answer_header = b""
        """The header block of the response."""
        self.answered = False
        """True once it was answered; further responses are not sent."""
        self.about = answers.account
        """The account of the stream that the first token names; operators ask for streams of other accounts."""

    @property
    def account(self) -> str:
        """Return the account of the API."""
        return self._answers.account

    def respond(self, fields: Mapping[str, Any]) -> None:
        """Answer with these fields after `type`."""
        self._send({"type": TYPE_PREFIX + self._kind, **fields}, failed=False)

    def fail(self, error: ApiError) -> None:
        """Answer with an error."""
        self._send({"type": TYPE_PREFIX + self._kind, "error": error.as_dict(), **self._empty}, failed=True)

    def succeed(self, outcome: object) -> None:
        """Answer `"success": true`, or with the error that `outcome` is."""
        if isinstance(outcome, ApiError):
            self.fail(outcome)
        else:
            self.respond({"success": True})

    def crash(self, error: Exception) -> None:
        """Log and count an exception that escaped a handler, and answer with an internal error (500) if nothing else
        was answered. The last resort, so that no client waits in vain."""
        refusal = self._answers.crashed(self, error)
        if not self.answered:
            self.fail(refusal)

    def run(self, work: Callable[[], None]) -> None:
        """Call `work`; an ApiError that it raises is the response, any other exception an internal error."""
        try:  # a context manager for this and `steps` would take 1 µs
            try:
                work()
            except ApiError as error:
                self.fail(error)
        except Exception as error:
            self.crash(error)

    def steps(self, work: Iterator[None]) -> Iterator[None]:
        """Do the rest of a handler's work in steps, with the error handling of `run`."""
        try:
            try:
                yield from work
            except ApiError as error:
                self.fail(error)
        except Exception as error:
            self.crash(error)

    def parse(self, record: type[S], name: str = "", *, strict: bool = True) -> S:
        """Return the body as a record; see `jsonio.parse`. Raises ApiError 10025.

        `strict`: reject unknown fields, if the server does that at all.
        """
        try:
            return parse(self.body, record, name, strict=strict and self._answers.strict)
        except JsonError as error:
            raise api_error(10025, err=str(error)) from None

    def parse_if_json(self, record: type[S], name: str = "") -> S:
        """Return the body as a record, like `parse`; a body that does not begin an object or array counts as absent."""
        if self.body.lstrip(b" \t\r\n")[:1] not in (b"{", b"["):
            return record()
        return self.parse(record, name)

    @property
    def empty_body(self) -> bool:
        """Return True if the body is empty or `{}`."""
        body = self.body.strip(b" \t\r\n")
        return not self.body or (body[:1] == b"{" and body[-1:] == b"}" and not body[1:-1].strip())

    def _send(self, fields: Mapping[str, Any], failed: bool) -> None:
        if not self.answered:
            body = dumps(fields)  # before it counts as answered: `crash` answers when encoding fails
            self.answered = True
            self._answers.answered(self, body, failed)


RunHandler = Callable[[Sequence[bytes], Callable[[int], Request], Callable[[Sequence[int]], None]], bool]
"""Serves requests on one subject that came together, or returns False to leave all of them to the `Handler`. Takes the
bodies, a function that makes the request at a place, and one that answers `"success": true` to some places."""

Handler = Callable[[Request], None]
"""Serves one kind of request. May raise ApiError instead of calling `fail`."""


class HandlerRegistry(Protocol):
    """Registers handlers."""

    def route(
        self,
        pattern: str,
        kind: str,
        handler: Handler,
        *,
        empty: Mapping[str, Any] | None = None,
        level: bool = True,
        where: Where = Where.HERE,
        together: RunHandler | None = None,
    ) -> None:
        """Serve subjects that match `pattern` (after `$JS.API.`).

        Args:
            pattern: tokens with `*` and `>`; what the wildcards match becomes `Request.tokens` (`>`: one).
            kind: the response type without its common prefix.
            handler: called for each request.
            empty: fields that an error response has beside the error.
            level: check `Nats-Required-Api-Level` first (10185).
            where: the node of a cluster that answers.
            together: called for several requests without headers that this node answers; it need not serve them.
        """


class ApiPart(Protocol):
    """A group of handlers."""

    def register(self, routes: HandlerRegistry) -> None:
        """Register every route of this part."""
