"""Messages of the server itself: their heads, and replies to requests for monitoring pages.

Belongs here: the description of this server in a message, its number, the envelope of an event; and reading requests
as queries of the pages. The contents are in requests.py and events.py.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from lakestream.ops.monitoring.monitored import FEATURE_FLAGS, Monitored
from lakestream.ops.monitoring.query import BadQuery, Query
from lakestream.ports import Clock
from lakestream.protocol import headers, s2
from lakestream.protocol.api.json_syntax import JsonError, end_of_value, next_value
from lakestream.protocol.api.jsonio import clean, dumps, parse
from lakestream.protocol.api.request import NATS_VERSION
from lakestream.protocol.gotime import format_time
from lakestream.protocol.nuid import nuid


class SystemMessages:
    """Makes messages of the server; their heads are numbered in order."""

    def __init__(self, node: Monitored, clock: Clock) -> None:
        self._node, self._clock = node, clock
        self._numbers = itertools.count(1)

    def server(self) -> dict[str, Any]:
        """Return the description of this server in a message, with a number of its own."""
        identity, options = self._node.identity, self._node.options
        page: dict[str, Any] = {
            "name": identity.server_name,
            "host": identity.shown_address[0],
            "id": identity.server_id,
        }
        if cluster := self._node.cluster.name:
            page["cluster"] = cluster
        if identity.domain:
            page["domain"] = identity.domain
        page["ver"] = NATS_VERSION
        if options.server_tags:
            page["tags"] = list(options.server_tags)
        if options.server_metadata:
            page["metadata"] = options.server_metadata
        page["feature_flags"] = FEATURE_FLAGS
        # nats-server's first flag: JetStream is on.
        page |= {"jetstream": identity.jetstream, "flags": int(identity.jetstream)}
        return page | {"seq": next(self._numbers), "time": format_time(self._clock.now())}

    def event(self, kind: str) -> dict[str, Any]:
        """Return the envelope of an event: type, id, time and server."""
        return {
            "type": f"io.nats.server.advisory.v1.{kind}",
            "id": nuid(),
            "timestamp": format_time(self._clock.now()),
            "server": self.server(),
        }

    # ------------------------------------------------------------------ replies
    def answer(self, kind: str, body: bytes, found: Found, key: str = "data") -> bytes | None:
        """Return the reply to a request for a page; None: no reply from this server."""
        try:
            asked = read(kind, body)
        except JsonError as error:
            return self.refusal(400, str(error))
        if not concerns(self._node, asked.fields):
            return None
        try:
            data = found(asked)
            return None if data is None else dumps({"server": self.server(), key: data})
        except BadQuery as error:
            return self.refusal(500, str(error), key)
        except Exception as error:  # last resort: the requester gets a reply
            self._node.log.exception(f"system request for {kind}: internal error", error)
            return self.refusal(500, "internal error, see the server's log", key)

    def done(self, error: str = "") -> bytes:
        """Return the reply to a command, with the error if it failed."""
        return self.refusal(500, error) if error else dumps({"server": self.server()})

    def refusal(self, code: int, text: str, without: str = "") -> bytes:
        """Return a reply with an error in the place of `without`."""
        nothing = {without: None} if without else {}
        error = {"code": code, "description": text}
        return dumps({"server": self.server()} | nothing | {"error": error})


_STATES = ("open", "closed", "any")

_GZIP = 16 + zlib.MAX_WBITS
"""The format of gzip for zlib."""
_SNAPPY = b"\xff\x06\x00\x00sNaPpY"
"""Magic of a stream in snappy's framing; its chunks are S2's."""

_GO = {bool: "bool", str: "string", int: "int", list: "[]string"}

_WORDS: Final[dict[type, Callable[[Any], str]]] = {
    bool: lambda value: "true" if value else "",
    str: lambda value: value,
    int: str,
}

Names = dict[str, tuple[str, type]]
"""By field of a request: the page's parameter and its type."""

_FILTER: Names = {
    "server_name": ("", str),
    "cluster": ("", str),
    "host": ("", str),
    "domain": ("", str),
    "tags": ("", list),
    "exact_match": ("", bool),
}
"""Fields that select the servers that answer: all given ones must match."""

_PAGED: Names = {"offset": ("offset", int), "limit": ("limit", int)}

OPTIONS: Final[dict[str, Names]] = {
    "Connz": {
        "sort": ("sort", str),
        "auth": ("auth", bool),
        "subscriptions": ("subs", bool),
        "subscriptions_detail": ("", bool),
        "cid": ("cid", int),
        "state": ("", int),
        "user": ("user", str),
        "acc": ("acc", str),
        "filter_subject": ("filter_subject", str),
        "mqtt_client": ("mqtt_client", str),
        **_PAGED,
    },
    "Subsz": {"subscriptions": ("subs", bool), "account": ("acc", str), "test": ("test", str), **_PAGED},
    "Routez": {"subscriptions": ("subs", bool), "subscriptions_detail": ("", bool)},
    "Jsz": {
        "account": ("acc", str),
        "accounts": ("accounts", bool),
        "streams": ("streams", bool),
        "consumer": ("consumers", bool),
        "config": ("config", bool),
        "direct_consumer": ("direct-consumers", bool),
        "leader_only": ("leader-only", bool),
        "stream_leader_only": ("stream-leader-only", bool),
        "raft": ("raft", bool),
        **_PAGED,
    },
    "Leafz": {"subscriptions": ("subs", bool), "account": ("acc", str)},
    "Gatewayz": {"name": ("", str), "accounts": ("", bool), "account_name": ("", str)},
    "Raftz": {"account": ("acc", str), "group": ("group", str)},
    "Lakez": {"account": ("acc", str), "stream": ("stream", str), "commits": ("commits", int), **_PAGED},
    "Ipqueuesz": {"all": ("all", bool), "filter": ("filter", str)},
    "Profilez": {"name": ("name", str), "debug": ("", int), "duration": ("", int)},
    "Accountz": {"account": ("acc", str)},
    "AccountStatz": {"accounts": ("", list), "include_unused": ("", bool)},
    "Healthz": {
        "js-enabled": ("js-enabled", bool),
        "js-enabled-only": ("js-enabled-only", bool),
        "js-server-only": ("js-server-only", bool),
        "js-meta-only": ("js-meta-only", bool),
        "leaf-remotes-connected": ("leaf-remotes-connected", bool),
        "account": ("account", str),
        "stream": ("stream", str),
        "consumer": ("consumer", str),
        "details": ("details", bool),
        "strict": ("strict", bool),
    },
}
"""Fields of a request beside the filter, by page. Pages that are not listed have none."""


class _Nothing(msgspec.Struct):
    """A body that is not JSON, or not an object, in nats-server's errors."""


class SystemRequest(NamedTuple):
    """A decoded request: the query of the page, and every field as it came."""

    query: Query
    fields: dict[str, Any]


def read(kind: str, body: bytes) -> SystemRequest:
    """Decode the options of a request; unknown fields are skipped.

    Raises:
        JsonError: with nats-server's texts.
    """
    if not body:
        return SystemRequest(Query(), {})
    if not body.strip(b" \t\r\n"):
        raise JsonError("unexpected end of JSON input")
    root = f"{kind}EventOptions"
    try:
        end = end_of_value(body, next_value(body, 0))
    except JsonError as error:
        raise error.as_lenient() from None
    rest = body[next_value(body, end) :].decode("utf-8", "replace")
    if rest:  # even another value, which the API's decoder takes
        raise JsonError(f"invalid character '{rest[0]}' after top-level value")
    parse(body, _Nothing, root, strict=False)  # rejects anything but an object
    names, given = _FILTER | OPTIONS.get(kind, {}), json.loads(body.decode("utf-8", "replace"), parse_int=_int) or {}
    fields = {
        key.lower(): _cleaned(value) for key, value in given.items() if key.lower() in names and value is not None
    }
    for key, value in fields.items():
        kind_of = names[key][1]
        fits = isinstance(value, kind_of) and (kind_of is bool or not isinstance(value, bool))
        if not fits or (key == "cid" and value < 0):
            raise JsonError(_mismatch(f"{root}.{key}", value, "uint64" if key == "cid" else _GO[kind_of]))
    values = {
        name: _WORDS[type(fields[key])](fields[key]) for key, (name, _) in names.items() if name and key in fields
    }
    if fields.get("subscriptions_detail"):
        values["subs"] = "detail"
    if "state" in fields:
        values["state"] = _STATES[fields["state"]] if 0 <= fields["state"] < len(_STATES) else ""
    return SystemRequest(Query(**values), fields)


def _int(literal: str) -> float:
    """Return an integer; beyond what any field takes, and int() reads, a float, which none takes."""
    return int(literal) if len(literal) < 25 else float(literal)


def _cleaned(value: object) -> Any:
    if isinstance(value, list):
        return [_cleaned(each) for each in value]
    return clean(value) if isinstance(value, str) else value


def _mismatch(path: str, value: object, go_type: str) -> str:
    words = {bool: "bool", str: "string", list: "array", dict: "object"}.get(type(value), "number")
    if words == "number" and go_type in ("int", "uint64"):
        words = f"number {value}"
    return f"json: cannot unmarshal {words} into Go struct field {path} of type {go_type}"


def concerns(node: Monitored, fields: dict[str, Any]) -> bool:
    """Return True if the fields of a request select this server."""
    identity, exact = node.identity, bool(fields.get("exact_match"))
    host = identity.shown_address[0]
    names = (("server_name", identity.server_name), ("host", host), ("cluster", node.cluster.name))
    for key, own in names:
        wanted = fields.get(key)
        if wanted and (wanted != own if exact else wanted not in own):
            return False
    if fields.get("domain") and fields["domain"] != identity.domain:
        return False
    return all(tag in node.options.server_tags for tag in fields.get("tags", ()))


Found = Callable[[SystemRequest], Any]
"""The reply's data; None: no reply from this server. Raises BadQuery, which is sent to the client."""


def encoded(header: bytes, body: bytes) -> tuple[bytes, bytes]:
    """Return header and payload of a reply, in an encoding that the request's header accepts."""
    accepted = headers.get(header, b"Accept-Encoding") if header else None
    if not accepted:
        return b"", body
    if b"snappy" in accepted or b"s2" in accepted:
        name, body = b"snappy", _SNAPPY + s2.encode(body)
    elif b"gzip" in accepted:
        name, body = b"gzip", zlib.compress(body, wbits=_GZIP)
    else:
        name = b"identity"
    return headers.build([(b"Content-Encoding", name)]), body
