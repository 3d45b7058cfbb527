"""Leaf node protocol of the listening server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tests.conformance.harness import Script, configured, table
from tests.conformance.leaf_peer import READ_SIZE, SETTLE_S, USUAL, LeafPeer, lmsg, shown
from tests.conformance.operators import REVOKED_AT
from tests.keys import (
    account_jwt,
    account_key,
    login,
    operator_config,
    operator_jwt,
    operator_key,
    user_jwt,
    user_key,
)
from tests.pairs import Setup
from tests.wire import Wire

KEY, OTHER = user_key("leaf"), user_key("leaf other")

_LISTEN = "leafnodes {{ listen: '127.0.0.1:-1'\n{} }}\n"

OPEN = Setup(_LISTEN.format(""), ())
NAMED = Setup("cluster { name: HUB }\n" + _LISTEN.format(""), ())
STRICT = Setup(_LISTEN.format("min_version: 2.99.0"), ())
ISOLATED = Setup(_LISTEN.format("isolate_leafnode_interest: true"), ())
UNCOMPRESSED = Setup(_LISTEN.format("compression: off"), ())
DOMAIN = Setup("jetstream { domain: hub }\n" + _LISTEN.format(""), ())
SINGLE = Setup(_LISTEN.format("authorization { user: u, password: p, timeout: 1 }"), ())
_USERS = f"""\
accounts {{
  A {{
    users: [
      {{user: a, password: p}}, {{nkey: {KEY.public}}}
      {{user: web, password: p, allowed_connection_types: [WEBSOCKET]}}
      {{user: leaf, password: p, allowed_connection_types: [LEAFNODE]}}
      {{user: some, password: p, permissions: {{
        publish: {{allow: ["p.>", "both.>"], deny: "p.no"}}, subscribe: {{allow: ["s.>", "both.>"], deny: "s.no"}}
      }}}}
      {{user: answers, password: p, permissions: {{subscribe: "s.>", allow_responses: true}}}}
    ]
    exports: [{{stream: "ev.>"}}, {{service: "ask"}}]
    mappings: {{ "from": "to" }}
  }}
  B {{
    users: [{{user: b, password: p}}]
    imports: [{{stream: {{account: A, subject: "ev.>"}}, prefix: "via"}}, {{service: {{account: A, subject: "ask"}}}}]
  }}
  FEW {{ users: [{{user: few, password: p}}], limits {{ max_leafnodes: 1, max_subscriptions: 30 }} }}
  NONE {{ users: [{{user: none, password: p}}], limits {{ max_leafnodes: 0 }} }}
}}
"""

ACCOUNTS = Setup(
    _USERS
    + _LISTEN.format(
        "authorization { users: [{user: la, password: p, account: A}, {user: lb, password: p, account: B}] }"
    ),
    (),
)
CLIENTS = Setup(_USERS + _LISTEN.format(""), ())

OPERATOR = operator_key("leaf operator")
SYSTEM, TENANT, LIMITED = (account_key(f"leaf {name}") for name in ("SYS", "TENANT", "LIMITED"))
_CHANGES: dict[str, dict[str, Any]] = {
    "revoked": {"revocations": {KEY.public: REVOKED_AT + 10**9}},
    "no_leaf_nodes": {"limits": {"leaf": 0}},
    "one_leaf_node": {"limits": {"leaf": 1}},
    "small_messages": {"limits": {"payload": 2}},
    "nothing": {},
}
"""Claims of later tokens of accounts, each for an account of its own."""
_CHANGED = {name: account_key(f"leaf {name}") for name in _CHANGES}
OPERATED = Setup(
    operator_config(
        operator_jwt(OPERATOR, system_account=SYSTEM.public),
        {
            SYSTEM.public: account_jwt(SYSTEM, "SYS", OPERATOR),
            TENANT.public: account_jwt(TENANT, "TENANT", OPERATOR, revocations={OTHER.public: REVOKED_AT}),
            LIMITED.public: account_jwt(LIMITED, "LIMITED", OPERATOR, limits={"leaf": 0}),
            **{key.public: account_jwt(key, name, OPERATOR) for name, key in _CHANGED.items()},
        },
        SYSTEM.public,
        _LISTEN.format(""),
    ),
    (),
)

Login = Callable[[dict[str, Any]], dict[str, Any]]


def _peer(t: Script, connect: Any = USUAL) -> LeafPeer:
    return t.keep(LeafPeer((t.server.host, t.server.leaf_port), connect, timeout=t.timeout))


def _linked(t: Script, **fields: Any) -> LeafPeer:
    """A leaf node that is connected; its first subscriptions have been read."""
    peer = _peer(t, fields)
    peer.heard()
    return peer


def _client(t: Script, user: str = "") -> Wire:
    wire = t.connect(user=user or None)
    wire.ping()
    return wire


def _info(t: Script, info: dict[str, Any]) -> dict[str, Any]:
    named = {**info, "ip": "<address>" if "ip" in info else None}
    if "leafnode_urls" in info:
        named["leafnode_urls"] = len(info["leafnode_urls"])
    return {key: value for key, value in named.items() if value is not None}


def _told(t: Script, label: str, peer: LeafPeer, *, system: bool = False) -> bool:
    """Record what a leaf node hears up to now; False if the connection ended."""
    frames = peer.heard()
    t.note(label, shown(frames, system=system))
    return not frames or frames[-1].verb != "CLOSED"


# ---------------------------------------------------------------------- the first words


def _infos(t: Script) -> None:
    peer = _peer(t, {"user": "la", "pass": "p"} if "la," in t.server.config else {"user": "u", "pass": "p"})
    t.note("INFO", _info(t, peer.info))
    t.note("nonce", len(peer.info.get("nonce", "")))
    t.note("first subscriptions", shown(peer.heard(), system=True))
    t.note("later INFO", [_info(t, info) for info in peer.infos[1:]])


@configured(OPEN)
def first_words(t: Script) -> None:
    _infos(t)


@configured(NAMED)
def first_words_of_a_named_cluster(t: Script) -> None:
    _infos(t)


@configured(DOMAIN)
def first_words_with_a_domain(t: Script) -> None:
    _infos(t)


@configured(SINGLE)
def first_words_with_a_password(t: Script) -> None:
    _infos(t)


@configured(ACCOUNTS)
def first_words_of_an_account(t: Script) -> None:
    _infos(t)


@configured(OPEN)
def first_subscriptions_are_those_of_clients(t: Script) -> None:
    wire = _client(t)
    for subject, queue in (("a", ""), ("a", ""), ("b.*", ""), ("c.>", ""), ("q", "g"), ("q", "g"), ("q", "h")):
        wire.subscribe(subject, queue)
    wire.ping()
    t.note("subscriptions", shown(_peer(t).heard()))


# ---------------------------------------------------------------------- interest


@configured(OPEN)
def subscriptions_are_told_as_they_change(t: Script) -> None:
    wire, peer = _client(t), _linked(t)
    sids = {}
    for label, subject, queue in (
        ("one", "a", ""),
        ("a second", "a", ""),
        ("a wildcard", "a.*", ""),
        ("a queue", "q", "g"),
        ("a second member", "q", "g"),
        ("another queue", "q", "h"),
        ("a request's", "_INBOX.x.*", ""),
    ):
        sids[label] = wire.subscribe(subject, queue)
        wire.ping()
        t.note(label, shown(peer.settled()))
    for label, sid in sids.items():
        wire.unsubscribe(sid)
        wire.ping()
        t.note(f"without {label}", shown(peer.settled()))


@configured(OPEN)
def a_client_that_leaves_takes_its_subscriptions(t: Script) -> None:
    wire, peer = _client(t), _linked(t)
    for subject, queue in (("a", ""), ("q", "g")):
        wire.subscribe(subject, queue)
    wire.ping()
    t.note("there", shown(peer.settled()))
    wire.close()
    time.sleep(SETTLE_S)
    t.note("gone", shown(peer.settled()))


_HEADERS = {"A": "b"}


@configured(OPEN)
def messages_to_a_leaf_node(t: Script) -> None:
    wire, peer = _client(t), _linked(t)
    peer.send(b"LS+ a\r\nLS+ w.*\r\nLS+ q g 1\r\nLS+ q h 2\r\nLS+ both\r\nLS+ both g 1\r\n")
    peer.heard()
    for label, subject, data, reply, headers in (
        ("plain", "a", b"x", "", None),
        ("empty", "a", b"", "", None),
        ("with reply", "a", b"x", "r", None),
        ("with headers", "a", b"x", "", _HEADERS),
        ("with both", "a", b"x", "r", _HEADERS),
        ("wildcard", "w.x", b"x", "", None),
        ("queues", "q", b"x", "", None),
        ("queues with reply", "q", b"x", "r", None),
        ("queues with headers", "q", b"x", "r", _HEADERS),
        ("a queue and others", "both", b"x", "", None),
        ("nobody", "z", b"x", "", None),
    ):
        wire.publish(subject, data, reply, headers)
        wire.ping()
        t.note(label, [_in_order(entry) for entry in shown(peer.heard())])


def _in_order(entry: list[Any]) -> list[Any]:
    """A message with its queues in order: they come in any."""
    words = entry[1:]
    if "|" in words or "+" in words:
        at = words.index("|") + 1 if "|" in words else words.index("+") + 2
        queues = [word for word in words[at:] if isinstance(word, str)]
        words = [*words[:at], *sorted(queues), *words[at + len(queues) :]]
    return [entry[0], *words]


@configured(OPEN)
def messages_from_a_leaf_node(t: Script) -> None:
    wire, peer = _client(t), _linked(t)
    for subject, queue in (("a", ""), ("w.*", ""), ("q", "g"), ("q", "h"), ("b", ""), ("b", "g")):
        wire.subscribe(subject, queue)
    wire.ping()
    peer.heard()
    for label, data in (
        ("plain", lmsg("a", b"x")),
        ("empty", lmsg("a")),
        ("with reply", lmsg("a r", b"x")),
        ("with headers", lmsg("a", b"x", _HEADERS)),
        ("with both", lmsg("a r", b"x", _HEADERS)),
        ("wildcard", lmsg("w.x", b"x")),
        ("a queue", lmsg("q | g", b"x")),
        ("a queue with reply", lmsg("q + r g", b"x")),
        ("two queues", lmsg("q | g h", b"x")),
        ("two queues with reply and headers", lmsg("q + r g h", b"x", _HEADERS)),
        ("a queue that is not named", lmsg("q", b"x")),
        ("a queue that is unknown", lmsg("q | z", b"x")),
        ("a queue and others", lmsg("b | g", b"x")),
        ("others without the queue", lmsg("b", b"x")),
        ("nobody", lmsg("z", b"x")),
    ):
        peer.send(data)
        peer.heard()
        t.note(label, sorted((t.show(frame) for frame in wire.ping()), key=str))


@configured(OPEN)
def a_request_and_its_answer(t: Script) -> None:
    wire, peer = _client(t), _linked(t)
    peer.send(b"LS+ ask\r\n")
    peer.heard()
    reply = wire.new_reply()
    wire.publish("ask", b"?", reply)
    wire.ping()
    t.note("asked", shown(peer.settled()))
    peer.send(lmsg(reply, b"!"))
    peer.heard()
    t.frames("answered", wire.ping())
    peer.send(b"LS- ask\r\n")
    peer.heard()
    t.frames("nobody", [wire.request("ask", b"?")])


@table(
    [
        ("as_many", "1", "1", 1000),
        ("three_times", "1", "3", 500),
        ("very_many", "2000", "6000", 500),
        ("more_than_can_be_told", "999999999", "3000000000", 1000),
        ("no_number", "x", "1", 1000),
        ("none", "0", "4", 400),
    ],
    OPEN,
)
def members_of_a_queue_group_behind_two_leaf_nodes(t: Script, first: str, second: str, share: int) -> None:
    """Of 2,000 messages the first of them gets about `share`; the third is told of all members together."""
    wire, peers = _client(t), [_linked(t, name=name, cluster=name) for name in ("one", "two", "three")]
    for peer, weight in zip(peers, (first, second), strict=False):
        peer.send(f"LS+ work g {weight}\r\n".encode())
        peer.heard()
    t.note("told", shown(peers[2].heard()))
    for _ in range(2000):
        wire.publish("work")
    wire.ping()
    got = [sum(frame.verb == "LMSG" for frame in peer.heard()) for peer in peers]
    t.note("shares", [sum(got), abs(got[0] - share) < 100, got[2]])


@table(
    [
        ("another", '{"acc":"OTHER","svc":"S","id":5}', "r"),
        ("its_own", '{"acc":"$G","user":"ann"}', "r"),
        ("none", '{"user":"ann"}', "r"),
        ("of_a_wrong_type", '{"acc":5}', "r"),
        ("without_a_reply", '{"acc":"OTHER"}', ""),
    ],
    OPEN,
)
def a_leaf_node_names_an_account(t: Script, info: str, reply: str) -> None:
    """A leaf node speaks for the account that it has joined alone."""
    wire, peer = _client(t), _linked(t)
    wire.subscribe("a")
    wire.ping()
    peer.heard()
    peer.send(lmsg(f"a {reply}".strip(), b"x", {"Before": "b", "Nats-Request-Info": info, "After": "a"}))
    peer.heard()
    t.frames("a client hears", wire.ping())


_SYSTEM = "accounts { SYS { users: [{user: sys, password: p}] } }\nsystem_account: SYS\n"


@configured(Setup(_SYSTEM + _LISTEN.format(""), ()))
def subscribers_behind_a_leaf_node_are_counted(t: Script) -> None:
    wire, peer = _client(t, "sys"), _linked(t, user="sys", **{"pass": "p"})
    wire.subscribe("foo", "g")
    wire.subscribe("foo.bar")
    wire.ping()
    for told in ("LS+ foo", "LS+ foo g 3", "LS+ foo.*", "LS+ foo.* g 2", "LS- foo g", "LS+ > g 4"):
        peer.send(f"{told}\r\n".encode())
        peer.heard()
        asked = ("foo", "foo g", "foo h", "foo.bar", "foo.bar g", "foo.* g", "> g")
        t.note(told, [wire.request("$SYS.DEBUG.SUBSCRIBERS", subject.encode()).data.decode() for subject in asked])


@configured(OPEN)
def interest_that_changes(t: Script) -> None:
    """Said twice, taken back once, taken back without being said, and weights."""
    wire, peer = _client(t), _linked(t)
    for data in (
        *(b"LS+ a\r\n", b"LS+ a\r\n", b"LS- a\r\n", b"LS- a\r\n", b"LS- never\r\n"),
        *(b"LS+ a g 2\r\n", b"LS+ a g 5\r\n", b"LS- a g\r\n", b"LS+ a g x\r\n", b"LS- a g 1\r\n", b"LS+ a g\r\n"),
    ):
        peer.send(data)
        if not _told(t, data.decode().strip(), peer):
            return
        wire.publish("a", b"x")
        wire.ping()
        t.note("heard", shown(peer.heard()))


@configured(OPEN)
def messages_of_one_leaf_node_for_another(t: Script) -> None:
    first, second = _linked(t), _linked(t, server_id="NSECOND", name="second", cluster="second")
    first.send(b"LS+ a\r\nLS+ q g 3\r\n")
    first.heard()
    t.note("told", shown(second.settled()))
    second.send(lmsg("a r", b"x"))
    second.heard()
    t.note("heard", shown(first.settled()))
    first.send(lmsg("a", b"x"))
    first.heard()
    t.note("its own", shown(first.heard()))
    first.send(b"LS- a\r\n")
    first.heard()
    t.note("taken back", shown(second.settled()))
    first.close()
    t.note("gone", shown(second.settled()))


@configured(OPEN)
def one_that_is_isolated_is_told_nothing_of_others(t: Script) -> None:
    first = _linked(t)
    first.send(b"LS+ a\r\n")
    first.heard()
    wire = _client(t)
    wire.subscribe("c")
    wire.ping()
    second = _peer(t, {"server_id": "NSECOND", "name": "second", "cluster": "second", "isolate": True})
    t.note("told", shown(second.heard()))
    first.send(b"LS+ b\r\n")
    first.heard()
    t.note("told later", shown(second.settled()))


@configured(ISOLATED)
def all_are_isolated(t: Script) -> None:
    first = _linked(t)
    first.send(b"LS+ a\r\n")
    first.heard()
    second = _peer(t, {"server_id": "NSECOND", "name": "second", "cluster": "second"})
    t.note("told", shown(second.heard()))
    t.note("INFO", sorted(second.infos[-1]))


# ---------------------------------------------------------------------- who may not

_ID = {"server_id": "NSECOND", "name": "second", "cluster": "second"}


@configured(OPEN)
def a_loop_is_found(t: Script) -> None:
    peer = _peer(t)
    peer.send(f"LS+ {peer.loop_subject()}\r\n".encode())
    t.note("until closed", shown(peer.until_closed()))


@table(
    [
        ("the_same", {}),
        ("another_id", {"server_id": "NOTHER"}),
        ("another_name", {"name": "other"}),
        ("another_account_of_its", {"remote_account": "X"}),
    ],
    OPEN,
)
def the_same_leaf_node_twice(t: Script, fields: dict[str, Any]) -> None:
    first = _linked(t)
    second = _peer(t, fields)
    _told(t, "second", second)
    _told(t, "first", first)


_ODD: list[tuple[str, dict[str, Any]]] = [
    ("nothing_but_the_version", dict.fromkeys(("server_id", "name", "cluster", "headers", "protocol"))),
    ("without_a_version", {"version": None}),
    ("an_old_version", {"version": "2.0.0"}),
    ("a_bad_version", {"version": "x"}),
    ("without_a_protocol", {"protocol": None}),
    ("without_headers", {"headers": False}),
    ("without_a_name", {"name": None}),
    ("cluster_with_a_blank", {"cluster": "a b"}),
    ("a_clients", {"lang": "go", "verbose": False}),
    ("a_hub", {"is_hub": True}),
    ("compressed_without_asking", {"compress_mode": "s2_fast"}),
    ("without_compression_said", {"compress_mode": None}),
    ("denies", {"deny_pub": ["d.>"]}),
    ("with_jetstream", {"jetstream": True}),
    ("with_a_domain", {"jetstream": True, "domain": "leaf"}),
    ("unknown_fields", {"foo": 1}),
    ("a_password_that_nobody_wants", {"user": "u", "pass": "p"}),
]


@table(_ODD, OPEN)
def odd_words(t: Script, fields: dict[str, Any]) -> None:
    peer = _peer(t, fields)
    if _told(t, "CONNECT", peer, system=True):
        wire = _client(t)
        wire.subscribe("d.x")
        wire.subscribe("a")
        wire.ping()
        t.note("subscriptions", shown(peer.settled()))
        peer.send(b"LS+ d.y\r\nLS+ b\r\n" + lmsg("d.x", b"x") + lmsg("a", b"x"))
        if _told(t, "after messages", peer):
            t.frames("a client hears", wire.ping())
            for subject in ("d.y", "b"):
                wire.publish(subject, b"x", "", {"A": "b"})
            wire.ping()
            t.note("heard", shown(peer.heard()))


@configured(STRICT)
def a_version_that_is_too_old(t: Script) -> None:
    t.note("until closed", shown(_peer(t).until_closed()))


@configured(NAMED)
def the_name_of_the_hubs_cluster(t: Script) -> None:
    t.note("until closed", shown(_peer(t, {"cluster": "HUB"}).until_closed()))


@table(
    [
        ("unknown_verb", b"FOO\r\n"),
        ("pub", b"PUB a 1\r\nx\r\n"),
        ("sub", b"SUB a 1\r\n"),
        ("ls_without_a_subject", b"LS+\r\n"),
        ("ls_with_a_bad_weight", b"LS+ a g x\r\n"),
        ("ls_with_too_many_words", b"LS+ a g 1 2\r\n"),
        ("ls_with_a_bad_subject", b"LS+ a..b\r\n"),
        ("lmsg_without_a_size", b"LMSG a\r\n"),
        ("lmsg_with_a_bad_size", b"LMSG a x\r\n"),
        ("lmsg_with_a_negative_size", b"LMSG a -1\r\n"),
        ("lmsg_without_crlf", b"LMSG a 1\r\nxyz\r\n"),
        ("lmsg_too_large", b"LMSG a 1048577\r\n"),
        ("lmsg_plus_without_a_queue", b"LMSG a + r 1\r\nx\r\n"),
        ("lmsg_with_a_wildcard", lmsg("a.*", b"x")),
        ("hmsg_with_sizes_reversed", b"HMSG a 20 5\r\n" + b"x" * 20 + b"\r\n"),
        ("second_connect", LeafPeer.hello()),
        ("info", b'INFO {"server_id":"X"}\r\n'),
        ("error", b"-ERR 'no'\r\n"),
        ("ok", b"+OK\r\n"),
        ("lower_case", b"ls+ a\r\nlmsg b 1\r\nx\r\n"),
        ("rs", b"RS+ $G a\r\n"),
        ("long_line", b"LS+ " + b"a" * 5000 + b"\r\n"),
    ],
    OPEN,
)
def odd_frames(t: Script, data: bytes) -> None:
    peer = _linked(t)
    t.note("told", shown(peer.heard(data)))


@table(
    [
        ("garbage", b"GET / HTTP/1.1\r\n\r\n"),
        ("ls", b"LS+ a\r\n"),
        ("ping", b"PING\r\n"),
        ("message", lmsg("a", b"x")),
        ("connect_of_no_json", b"CONNECT {\r\n"),
        ("connect_of_a_client", b'CONNECT {"verbose":false,"lang":"go","version":"1","protocol":1}\r\n'),
    ],
    OPEN,
)
def instead_of_connect(t: Script, data: bytes) -> None:
    peer = _peer(t, None)
    peer.send(data)
    t.note("told", shown(peer.until_closed()))


@configured(OPEN)
def a_leaf_node_at_the_port_of_clients(t: Script) -> None:
    wire = t.connect_bare()
    wire.send(LeafPeer.hello())
    t.frames("until closed", wire.until_closed())


@configured(SINGLE)
def nothing_is_said_in_time(t: Script) -> None:
    t.note("until closed", shown(_peer(t, None).until_closed()))


# ---------------------------------------------------------------------- logins


def _login(t: Script, connect: Any) -> None:
    peer = _peer(t, connect)
    if _told(t, "CONNECT", peer):
        t.note("INFO", _info(t, peer.infos[-1]))


_PASSWORDS: list[tuple[str, dict[str, Any]]] = [
    (name, {"user": user, "pass": password} if user else {})
    for name, user, password in (
        ("of_the_listener", "la", "p"),
        ("of_the_listener_other", "lb", "p"),
        ("wrong", "la", "x"),
        ("unknown", "zz", "p"),
        ("of_a_client", "a", "p"),
        ("nobody", "", ""),
    )
]


@table(_PASSWORDS, ACCOUNTS)
def logins_of_the_listener(t: Script, fields: dict[str, Any]) -> None:
    _login(t, fields)


@table(
    [
        *_PASSWORDS,
        ("only_websocket", {"user": "web", "pass": "p"}),
        ("only_leaf_nodes", {"user": "leaf", "pass": "p"}),
        ("some", {"user": "some", "pass": "p"}),
        ("answers", {"user": "answers", "pass": "p"}),
        ("no_leaf_nodes", {"user": "none", "pass": "p"}),
        ("key", lambda info: {"nkey": KEY.public, "sig": KEY.sign(info["nonce"])}),
        ("wrong_key", lambda info: {"nkey": OTHER.public, "sig": OTHER.sign(info["nonce"])}),
        ("wrong_signature", lambda info: {"nkey": KEY.public, "sig": OTHER.sign(info["nonce"])}),
    ],
    CLIENTS,
)
def logins_of_clients(t: Script, fields: Any) -> None:
    _login(t, fields)


@table(
    [
        ("good", {"user": "u", "pass": "p"}),
        ("wrong", {"user": "u", "pass": "x"}),
        ("nobody", {}),
        ("token", {"auth_token": "p"}),
    ],
    SINGLE,
)
def logins_with_one_password(t: Script, fields: dict[str, Any]) -> None:
    _login(t, fields)


def _with_token(token: str, key: Any = KEY) -> Login:
    return lambda info: {"jwt": token, "sig": key.sign(info["nonce"])}


@table(
    [
        ("good", _with_token(user_jwt(KEY, "leaf", TENANT))),
        ("over_leaf_nodes", _with_token(user_jwt(KEY, "leaf", TENANT, allowed_connection_types=["LEAFNODE"]))),
        ("over_standard", _with_token(user_jwt(KEY, "leaf", TENANT, allowed_connection_types=["STANDARD"]))),
        ("wrong_signature", _with_token(user_jwt(KEY, "leaf", TENANT), OTHER)),
        ("revoked", _with_token(user_jwt(OTHER, "leaf", TENANT), OTHER)),
        ("expired", _with_token(user_jwt(KEY, "leaf", TENANT, claims={"exp": 1_700_000_001}))),
        ("bearer", lambda info: {"jwt": user_jwt(KEY, "leaf", TENANT, bearer_token=True)}),
        ("with_permissions", _with_token(user_jwt(KEY, "leaf", TENANT, pub={"allow": ["p.>"]}, sub={"deny": ["n"]}))),
        ("where_there_may_be_none", _with_token(user_jwt(KEY, "leaf", LIMITED))),
        ("of_the_system_account", _with_token(user_jwt(KEY, "leaf", SYSTEM))),
        ("nothing", lambda info: {}),
    ],
    OPERATED,
)
def logins_with_tokens(t: Script, fields: Login) -> None:
    _login(t, fields)


@configured(OPERATED)
def a_token_that_expires(t: Script) -> None:
    token = user_jwt(KEY, "leaf", TENANT, claims={"exp": int(time.time()) + 2})
    peer = _peer(t, _with_token(token))
    assert _told(t, "CONNECT", peer)
    t.note("until closed", shown(peer.until_closed()))


@table([(name, name) for name in _CHANGES], OPERATED)
def an_account_changes(t: Script, name: str) -> None:
    key, admin = _CHANGED[name], user_key("leaf admin")
    system = t.keep(login((t.server.host, t.server.port), admin, user_jwt(admin, "admin", SYSTEM)))
    peers = []
    for other in ("first", "second"):
        peers.append(_peer(t, lambda info, other=other: {"name": other, **_with_token(user_jwt(KEY, "u", key))(info)}))
        peers[-1].heard()

    def update(**claims: Any) -> None:
        token = account_jwt(key, name, OPERATOR, **claims)
        answer = system.request(f"$SYS.REQ.ACCOUNT.{key.public}.CLAIMS.UPDATE", token.encode()).json()
        t.note("updated", answer["data"]["code"])

    update(**_CHANGES[name])
    for which, peer in zip(("first", "second"), peers, strict=True):
        t.note(which, shown(peer.settled()))
        t.note(f"{which} sends", shown(peer.heard(lmsg("x", b"more"))))
    update()


@configured(OPERATED)
def requests_about_one_leaf_node(t: Script) -> None:
    admin = user_key("leaf admin")
    system = t.keep(login((t.server.host, t.server.port), admin, user_jwt(admin, "admin", SYSTEM)))
    peer = _peer(t, _with_token(user_jwt(KEY, "leaf", TENANT)))
    peer.heard()
    for request in ("LDM", "KICK", "KICK"):
        body = json.dumps({"cid": peer.info["client_id"]}).encode()
        answer = system.request(f"$SYS.REQ.SERVER.{system.info['server_id']}.{request}", body).json()
        t.note(request, answer.get("error"))
        t.note(f"told at {request}", shown(peer.settled()))


@configured(CLIENTS)
def what_permissions_let_through(t: Script) -> None:
    wire = _client(t, "a")
    for subject in ("p.>", "p.x", "s.x", "both.x", "z"):
        wire.subscribe(subject)
    wire.ping()
    peer = _peer(t, {"user": "some", "pass": "p"})
    _told(t, "first subscriptions", peer)
    for subject in ("p.x", "both.x", "p.no", "s.x", "z"):
        peer.send(lmsg(subject, b"x"))
        ended = not _told(t, f"LMSG {subject}", peer)
        t.frames(f"a client hears {subject}", wire.ping())
        if ended:
            peer = _peer(t, {"user": "some", "pass": "p"})
            peer.heard()
    for subject in ("s.x", "both.x", "s.no", "p.x", "z", ">", "s.>"):
        peer.send(f"LS+ {subject}\r\n".encode())
        if not _told(t, f"LS+ {subject}", peer):
            peer = _peer(t, {"user": "some", "pass": "p"})
            peer.heard()
    for subject in ("s.x", "s.no", "s.y", "p.x", "both.x", "z"):
        wire.publish(subject, b"x")
        wire.ping()
        t.note(f"heard {subject}", shown(peer.settled()))


@configured(CLIENTS)
def permissions_to_answer(t: Script) -> None:
    wire = _client(t, "a")
    reply = wire.new_reply()
    wire.ping()
    peer = _peer(t, {"user": "answers", "pass": "p"})
    peer.send(b"LS+ s.x\r\n")
    peer.heard()
    wire.publish("s.x", b"?", reply)
    wire.ping()
    t.note("asked", shown(peer.settled()))
    for number in range(2):
        peer.send(lmsg(reply, b"%d" % number))
        _told(t, f"answer {number}", peer)
    t.frames("answers", wire.ping())


@configured(ACCOUNTS)
def accounts_do_not_hear_each_other(t: Script) -> None:
    a, b = _peer(t, {"user": "la", "pass": "p"}), _peer(t, {"user": "lb", "pass": "p", **_ID})
    for peer in (a, b):
        peer.send(b"LS+ x\r\nLS+ via.ev.>\r\nLS+ ask\r\n")
        peer.heard()
    wire_a, wire_b = _client(t, "a"), _client(t, "b")
    for label, wire, subject in (("a", wire_a, "x"), ("b", wire_b, "x"), ("a stream", wire_a, "ev.1")):
        wire.publish(subject, label.encode())
        wire.ping()
        t.note(f"{label}: a", shown(a.settled()))
        t.note(f"{label}: b", shown(b.settled()))
    reply = wire_b.new_reply()
    wire_b.publish("ask", b"?", reply)
    wire_b.ping()
    for label, peer in (("a", a), ("b", b)):
        frames = [frame for frame in peer.settled() if frame.verb in ("LMSG", "HMSG")]
        t.note(f"asked {label}", [[frame.verb, frame.words[0], frame.data] for frame in frames])
    b.send(lmsg("ask r.1", b"?"))
    b.heard()
    frames = [frame for frame in a.settled() if frame.verb in ("LMSG", "HMSG")]
    t.note("asked by a leaf node", [[frame.verb, frame.words[0], frame.data] for frame in frames])


@configured(ACCOUNTS)
def mappings_of_the_account(t: Script) -> None:
    wire = _client(t, "a")
    for subject in ("from", "to"):
        wire.subscribe(subject)
    wire.ping()
    peer = _peer(t, {"user": "la", "pass": "p"})
    peer.heard()
    peer.heard(b"LS+ from\r\nLS+ to\r\n" + lmsg("from", b"of a leaf node"))
    t.frames("a client hears", wire.ping())
    wire.publish("from", b"of a client")
    t.frames("a client hears itself", wire.ping())
    t.note("a leaf node hears", shown(peer.settled()))


@configured(CLIENTS)
def so_many_leaf_nodes(t: Script) -> None:
    first = _peer(t, {"user": "few", "pass": "p"})
    _told(t, "first", first)
    second = _peer(t, {"user": "few", "pass": "p", **_ID})
    t.note("second", shown(second.until_closed()))


# ---------------------------------------------------------------------- JetStream and compression


@table(
    [
        ("no_jetstream", {}),
        ("jetstream", {"jetstream": True}),
        ("a_domain", {"jetstream": True, "domain": "leaf"}),
        ("the_hubs_domain", {"jetstream": True, "domain": "hub"}),
    ],
    DOMAIN,
)
def domains(t: Script, fields: dict[str, Any]) -> None:
    peer = _peer(t, fields)
    t.note("first subscriptions", shown(peer.heard(), system=True))
    peer.send(b"LS+ r.>\r\n")
    for subject in ("$JS.API.INFO", "$JS.hub.API.INFO", "$JS.leaf.API.INFO"):
        peer.send(lmsg(f"{subject} r.{subject}"))
        answers = [frame for frame in peer.settled() if frame.verb == "LMSG" and frame.words[0].startswith("r.")]
        t.note(subject, [[*frame.words, _of_account(frame.data)] for frame in answers])
    wire = _client(t)
    peer.send(b"LS+ $JS.leaf.API.>\r\nLS+ $JS.API.>\r\n")
    peer.heard()
    for subject in ("$JS.leaf.API.INFO", "$JS.API.INFO"):
        wire.publish(subject, b"", wire.new_reply())
        wire.ping()
        t.note(f"a client asks {subject}", [frame.words[0] for frame in peer.settled() if frame.verb == "LMSG"])


def _of_account(data: bytes) -> Any:
    """Account info, without the count of all requests."""
    answer = json.loads(data)
    answer.pop("api", None)
    return answer


S2_START = b"\xff\x06\x00\x00S2sTwO"


@table(
    [(mode, mode) for mode in ("off", "not supported", "accept", "s2_fast", "s2_better", "s2_best", "s2_auto", "s2_x")],
    OPEN,
)
def compression(t: Script, mode: str) -> None:
    peer = _peer(t, None)
    t.note("offered", peer.info["compression"])
    peer.send(b'INFO {"server_id":"","client_id":1,"compression":"%s"}\r\n' % mode.encode())
    first = peer.raw(len(S2_START))
    t.note("compressed", first == S2_START)
    if first != S2_START:
        t.note("told", [(first + peer.raw(READ_SIZE)).decode()])


@table([(mode, mode) for mode in ("off", "s2_fast")], UNCOMPRESSED)
def compression_that_is_off(t: Script, mode: str) -> None:
    peer = _peer(t, None)
    t.note("offered", peer.info.get("compression"))
    peer.send(b'INFO {"server_id":"","client_id":1,"compression":"%s"}\r\n' % mode.encode())
    peer.send(LeafPeer.hello())
    t.note("told", shown(peer.until_closed())[-2:])
