"""The sender of a message.

Belongs here: the facts about a client that travel with its messages, the subjects that it may see, how advisories show
it, and the trace that a traced message carries (`Nats-Trace-Dest`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from lakestream.protocol.gotime import format_time

TRACE_DESTINATION = b"Nats-Trace-Dest"
TRACE_DISABLED = b"trace disabled"
"""Value of `Nats-Trace-Dest` in stored messages, so that reading them from the stream does not trace them again."""


class Sight(msgspec.Struct, frozen=True):
    """Subjects that a user may receive: those that a filter of `allow` matches (None: every one) and none of `deny`."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()


def sees_everything(subscribe: Mapping[str, Any] | None) -> bool:
    """Return True if a rule for subscribing, as `$SYS.REQ.USER.INFO` shows it, hides no message: whoever hands out the
    files of a table gives them to such users alone."""
    rule = subscribe or {}
    allow = rule.get("allow")
    return (not allow or ">" in allow) and all(" " in each.strip() for each in rule.get("deny") or ())


class ClientInfo(msgspec.Struct, frozen=True):
    """The client that sent a message: shown in advisories, and the account whose streams it reaches.

    Attributes:
        start_ns: time of the connection, ns since the epoch; 0: unknown.
        rtt_ns: round-trip time of its last PING, or of its CONNECT; 0: unknown.
        service: the account whose service import brought the message here; "": the client's own account.
        issuer_key, name_tag, tags, jwt: of the token of a user that an account signed. `jwt` is only shown to accounts
            to which the user's account shares its identity; "" also for bearers, whose tokens are secret.
        answers: of a message to a subject that somebody else has chosen (an answer, a delivery): JetStream's API under
            another name does not take it.
        sees: what it may receive by subscribing, any of them; None: everything.
        roles: the name of a user that logged in, and its tags, each with `tag:` before it.
    """

    id: int
    host: str
    account: str
    user: str = ""
    name: str = ""
    lang: str = ""
    version: str = ""
    kind: str = "Client"
    start_ns: int = 0
    rtt_ns: int = 0
    service: str = ""
    issuer_key: str = ""
    name_tag: str = ""
    tags: tuple[str, ...] = ()
    jwt: str = ""
    answers: bool = False
    sees: tuple[Sight, ...] | None = None
    roles: tuple[str, ...] = ()


class Trace(Protocol):
    """The trace of one message, as a stream reports to it."""

    @property
    def only(self) -> bool:
        """Return True if the message is traced without being delivered or stored."""

    def reached(self, stream: str) -> None:
        """Note that a stream received the message; the trace is sent after `settled`."""

    def settled(self, subject: bytes = b"", *, unwanted: bool = False, error: str = "") -> None:
        """Note the stream's decision.

        Args:
            subject: under which the message is stored.
            unwanted: no consumer is interested, so the message is not kept.
            error: why the message is rejected.
        """


class TracedClient(ClientInfo, frozen=True, kw_only=True):
    """The sender of a traced message."""

    trace: Trace


def traced(client: ClientInfo, trace: Trace) -> TracedClient:
    """Return `client` with the trace of one of its messages."""
    fields = {name: getattr(client, name) for name in ClientInfo.__struct_fields__}
    return TracedClient(**fields, trace=trace)


def client_shown(client: ClientInfo, server: str, cluster: str = "", *, token: bool = False) -> dict[str, Any]:
    """Return the client as advisories show it. `server` is the node that it is connected to; `token`: with its JWT."""
    fields: dict[str, Any] = {
        "start": format_time(client.start_ns) if client.start_ns else "",
        "host": client.host,
        "id": client.id,
        "acc": client.account,
        "svc": client.service,
        "user": client.user,
        "name": client.name,
        "lang": client.lang,
        "ver": client.version,
        "rtt": client.rtt_ns,
        "server": server,
        "cluster": cluster,
        "jwt": client.jwt if token else "",
        "issuer_key": client.issuer_key,
        "name_tag": client.name_tag,
        "tags": list(client.tags),
        "kind": client.kind,
        "client_type": "nats" if client.kind == "Client" else "",
    }
    return {name: value for name, value in fields.items() if value}
