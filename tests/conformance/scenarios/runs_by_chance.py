"""Random packets of many publishes: who receives what, what streams store, and which acks come.

A server may take the publishes of a packet together instead of one by one; a client must not be able to tell. The
choices depend on the seed alone, so that both servers get the same. Order is compared within each subscription.
"""

from __future__ import annotations

import random
from typing import Any

from tests.conformance.harness import Script, table
from tests.pairs import Setup
from tests.wire import Wire, pub

SENT = ("r.1", "r.2", "r.3", "r.deep.er", "$KV.b.k", "s.1", "s.2", "t.1", "n.1", "none", "none.2")
LISTENED = ("r.1", "r.*", "r.>", "r.deep.*", "*.*", "s.*", "$KV.>", "t.1", "n.*")
STREAMS: tuple[dict[str, Any], ...] = (
    {"name": "R", "subjects": ["r.>"], "max_msgs_per_subject": 3},
    {"name": "S", "subjects": ["s.1", "s.2"], "max_msgs": 9, "discard": "new", "max_msg_size": 40},
    {"name": "T", "subjects": ["t.*"], "no_ack": True, "storage": "memory"},
    {"name": "N", "subjects": ["n.1"], "republish": {"src": "n.*", "dest": "again.{{wildcard(1)}}"}},
)
WITH_HEADERS: tuple[dict[str, Any], ...] = (
    {"name": "R", "subjects": ["r.>"], "max_msgs_per_subject": 3, "allow_msg_ttl": True, "allow_rollup_hdrs": True},
    {"name": "S", "subjects": ["s.1", "s.2"], "max_bytes": 1500, "discard": "new", "max_msg_size": 120},
    {"name": "N", "subjects": ["n.1"], "max_msgs": 9, "discard": "new", "discard_new_per_subject": True}
    | {"max_msgs_per_subject": 4, "duplicate_window": 1_000_000_000},
)
HEADERS: tuple[dict[str, tuple[str, ...]], ...] = (
    {},
    {"trace": ("x",)},
    {"Nats-Msg-Id": tuple(map(str, range(60)))},
    {"Nats-Msg-Id": tuple(map(str, range(60))), "Nats-TTL": ("1h", "never", "2m", "x", "")},
    {"Nats-TTL": ("1h",)},
    {"Nats-Expected-Stream": ("R", "R", "R", "S")},
    {"Nats-Expected-Last-Sequence": tuple(map(str, range(12)))},
    {"Nats-Expected-Last-Subject-Sequence": ("0", "0", "1", "2", "3")},
    {"Nats-Rollup": ("sub",)},
)
"""Header names with the values among which a message chooses."""
FENCES = {"R": "r.fence", "S": "s.1", "N": "n.1"}
"""A subject of each stream that acks."""
CONNECTS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {"echo": False},
    {"verbose": True},
)
PACKETS = 12

USERS = Setup(
    """\
accounts {
  A {
    jetstream: enabled
    users: [
      {user: a, password: p}
      {user: few, password: p, permissions: {publish: ["r.*", "s.1", "n.>", "none.>", "$JS.API.INFO"]}}
      {user: most, password: p, permissions: {publish: {deny: ["r.2", "t.>", "$KV.b.*"]}}}
      {user: blind, password: p, permissions: {publish: {deny: "r.1"}, subscribe: {deny: ["r.2", "r.deep.>"]}}}
      {user: answers, password: p,
       permissions: {
         publish: ["r.1", "r.fence", "s.1", "n.1", "$JS.API.INFO"], allow_responses: {max: 2, expires: "5m"}
       }}
    ]
  }
  M {
    jetstream: enabled
    mappings: {
      "m.1": "r.1", "m.2": "$NRG.x", "r.2": "r.3", "r.deep.*": "n.deep.{{wildcard(1)}}", "p.*": "r.{{partition(3,1)}}"
      "s.2": "s.1", "none.*": "{{wildcard(1)}}.none", "$KV.b.*": "$KV.b.other", "t.1": {dest: "t.2", weight: "100%"}
    }
    users: [
      {user: m, password: p}
      {user: mapped, password: p, permissions: {publish: {deny: ["r.3", "r.0", "m.1", "s.2"]}}}
      {user: again, password: p, permissions: {publish: {allow: ">", deny: "none"}, allow_responses: true}}
    ]
  }
}
""",
    (("a", "A"), ("m", "M")),
)
LOGINS: dict[str, tuple[str, ...]] = {
    "": ("",),
    "a": ("a", "few", "most", "blind", "answers", "answers"),
    "m": ("m", "mapped", "again"),
}
"""The users of clients, by the user of the account's streams."""
MORE_SENT = {"": (), "a": (), "m": ("m.1", "m.2", "p.1", "p.2")}


class _Client:
    """A connection with its subscriptions."""

    def __init__(self, t: Script, rng: random.Random, owner: str) -> None:
        fields = rng.choice(CONNECTS)
        if owner:
            fields = fields | {"user": rng.choice(LOGINS[owner])}
        self.wire: Wire = t.connect(**fields)
        self.sent = SENT + MORE_SENT[owner]
        self.answers = fields.get("user") in ("answers", "again")
        # nats-server takes the second delivery of a message as one of the answers to it.
        count = 1 if self.answers else rng.choice((0, 1, 1, 2))
        self.sids = {self.wire.subscribe(subject): subject for subject in rng.sample(LISTENED, count)}
        self.wire.inbox_sid = self.wire.subscribe(f"{self.wire.inbox}.*")
        self.wire.ping()

    def packet(self, rng: random.Random, number: int, asked: list[str], headed: bool = False) -> bytes:
        """Return some publishes, of which neighbours often have the same subject and headers.

        asked: reply subjects so far, to which clients that may answer publish too.
        """
        names = HEADERS[0]
        parts: list[bytes] = []
        subject = rng.choice(self.sent)
        for at in range(rng.choice((1, 2, 5, 20, 60))):
            if rng.random() < 0.3:
                subject = rng.choice(self.sent)
            if self.answers and rng.random() < 0.3:
                subject = rng.choice([*asked[-40:], "ask.never"])
            data = b"%d.%d" % (number, at) + b"x" * rng.choice((0, 0, 0, 10, 50))
            reply = rng.choice(
                (f"{self.wire.inbox}.{number}-{at}", f"{self.wire.inbox}.{number}-{at}", "", "a.b.c", "$JS.x")
            )
            if asked and rng.random() < 0.3:
                reply = f"ask.{len(asked)}"
                asked.append(reply)
            if headed:
                reply = "" if reply == "$JS.x" else reply  # only later releases refuse it
                names = rng.choice(HEADERS) if rng.random() < 0.2 else names
                headers = {name: rng.choice(values) for name, values in names.items()} or None
            else:
                headers = {"Nats-Msg-Id": f"{number}.{at % 7}"} if rng.random() < 0.05 else None
            parts.append(pub(subject, data, reply, headers))
        return b"".join(parts)


@table([(str(seed), seed) for seed in range(16)])
def packets(t: Script, seed: int) -> None:
    _packets(t, random.Random(f"runs {seed}"), "")


@table([(f"{owner}-{seed}", owner, seed) for owner in ("a", "m") for seed in range(12)], USERS)
def packets_of_users(t: Script, owner: str, seed: int) -> None:
    """The same with permissions, and in an account with mappings."""
    _packets(t.as_user(owner), random.Random(f"runs {owner} {seed}"), owner)


@table([(str(seed), seed) for seed in range(12)])
def packets_with_headers(t: Script, seed: int) -> None:
    """The same with message ids, lifetimes, expectations and limits."""
    _packets(t, random.Random(f"headers {seed}"), "", headed=True)


def _packets(t: Script, rng: random.Random, owner: str, headed: bool = False) -> None:
    streams = WITH_HEADERS if headed else rng.sample(STREAMS, rng.choice((1, 2, 4)))
    fences = [FENCES[config["name"]] for config in streams if config["name"] in FENCES]
    for config in streams:
        t.wire.api(f"STREAM.CREATE.{config['name']}", config)
    clients = [_Client(t, rng, owner) for _ in range(3)]
    most = rng.choice((0, 0, 1, 7))
    asked = ["ask.0"] if owner else []
    if most and not clients[0].answers:
        clients[0].wire.unsubscribe(clients[0].wire.subscribe("r.*"), most)
        clients[0].wire.ping()
    for number in range(PACKETS):
        sender = rng.choice(clients)
        sender.wire.send(sender.packet(rng, number, asked, headed))
        # A stream has stored all of it when it acks one message more of the same client.
        for subject in fences:
            sender.wire.request(subject, b"fence")
        sender.wire.api("INFO")
    for client in clients:
        t.note("a client", _heard(t, client))
    for stream in ("R", "S", "T", "N"):
        info = t.wire.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})
        t.note(
            stream,
            {key: info.get("state", {}).get(key) for key in ("messages", "bytes", "first_seq", "last_seq", "subjects")},
        )
        for seq in range(info.get("state", {}).get("first_seq", 1), info.get("state", {}).get("last_seq", 0) + 1):
            message = t.wire.api(f"STREAM.MSG.GET.{stream}", {"seq": seq}).get("message", {})
            t.note(f"{stream} {seq}", {key: message.get(key) for key in ("subject", "data", "hdrs")})


def _heard(t: Script, client: _Client) -> dict[str, list[Any]]:
    """Return what a client has received, by subscription; other frames by their verb.

    Refusals may come before pub acks of messages that are still being stored.
    """
    heard: dict[str, list[Any]] = {}
    for frame in client.wire.ping():
        if frame.verb in ("MSG", "HMSG"):
            # A 503 comes at once, a pub ack when its stream has stored the message.
            kind = " 503" if b"503" in frame.header[:16] else ""
            if frame.data.startswith(b"{"):
                kind = f" acks of {frame.json()['stream']}"
            elif frame.subject.startswith("again."):
                kind = " republished"
            heard.setdefault(f"sub {frame.sid}{kind}", []).append(t.show(frame))
        else:
            heard.setdefault(frame.verb, []).append(frame.text)
    return {key: sorted(found, key=str) if "acks" in key else found for key, found in heard.items()}
