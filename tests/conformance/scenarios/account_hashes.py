"""Subjects that name an account by its hash: `{{account-hash()}}` and the functions beside it."""

from __future__ import annotations

from typing import Any

from lakestream.protocol.subjects import short_hash
from tests.conformance.harness import Script, configured, table
from tests.conformance.leaf_peer import LeafPeer, shown
from tests.conformance.logins import admitted, with_token
from tests.keys import Key, account_jwt, account_key, operator_config, operator_jwt, operator_key, user_jwt, user_key
from tests.pairs import Setup
from tests.wire import Wire

_CONFIG = """\
http: "127.0.0.1:-1"
accounts {
  A { users: [{user: a, password: p}]
    mappings: { "from.{{account-hash()}}": "to.{{account-hash()}}.x", "{{Account-Hash()}}.*": "$1.{{account-hash()}}" }
    exports: [{stream: "ev.{{account-hash()}}.>"}, {service: "ask.{{account-hash()}}"}]
  }
  B { users: [{user: b, password: p}]
    imports: [
      {stream: {account: A, subject: "ev.{{account-hash-import()}}.>"}, to: "got.{{account-hash()}}.>"}
      {stream: {account: A, subject: "ev.{{account-hash-import()}}.a"}, prefix: "{{account-hash()}}"}
      {service: {account: A, subject: "ask.{{account-hash-import()}}"}
        to: "{{account-hash()}}.{{account-hash-import()}}"}
    ]
  }
  SYS { users: [{user: sys, password: p}] }
}
system_account: SYS
"""
HASHES = Setup(_CONFIG, ())
GLOBAL = Setup('mappings { "from": "to.{{account-hash()}}" }\n')


def _user(t: Script, user: str) -> Wire:
    wire = t.connect(user=user)
    wire.ping()
    return wire


def _all(wire: Wire) -> Wire:
    wire.subscribe(">")
    wire.ping()
    return wire


def _heard(t: Script, label: str, wire: Wire) -> None:
    t.frames(label, [frame for frame in wire.ping() if not frame.subject.startswith("$SYS")])


@configured(HASHES)
def mappings(t: Script) -> None:
    wire = _all(_user(t, "a"))
    t.note("of the account", t.server.page("/accountz?acc=A")["account_detail"]["mappings"])
    hashed = next(iter(t.server.page("/accountz?acc=A")["account_detail"]["mappings"])).partition(".")[0]
    for subject in (f"from.{hashed}", f"{hashed}.s", "from.{{account-hash()}}", "from"):
        wire.publish(subject, b"x")
        _heard(t, subject, wire)


@configured(HASHES)
def imports(t: Script) -> None:
    exporter, importer, system = _user(t, "a"), _all(_user(t, "b")), _user(t, "sys")
    detail = system.request("$SYS.REQ.ACCOUNT.B.INFO").json()["data"]
    shown = [entry for entry in detail.get("imports", []) if entry["account"] == "A"]
    t.note("imports", sorted(shown, key=str))
    theirs = next(entry["subject"] for entry in shown if entry["type"] == "stream").split(".")[1]
    for subject in (f"ev.{theirs}.a", f"ev.{theirs}.b.c", "ev.other.a"):
        exporter.publish(subject, b"x")
    exporter.ping()
    _heard(t, "heard", importer)
    exporter.subscribe(f"ask.{theirs}")
    exporter.ping()
    ours = next(entry["to"] for entry in shown if entry["type"] == "service")
    importer.publish(ours, b"?", "_INBOX.in")
    importer.ping()
    t.frames("asked", exporter.ping())


@configured(GLOBAL)
def a_mapping_of_the_global_account(t: Script) -> None:
    wire = _all(t.wire)
    wire.publish("from", b"x")
    _heard(t, "heard", wire)


@table(
    [
        ("stream_source", {"subject_transform": {"src": "a.{{account-hash()}}", "dest": "b"}}),
        ("stream_destination", {"subject_transform": {"src": "a.*", "dest": "b.{{wildcard(1)}}.{{account-hash()}}"}}),
        ("republish", {"republish": {"src": "a.>", "dest": "{{account-hash-import()}}.>"}}),
        ("subjects", {"subjects": ["{{account-hash()}}.>"]}),
    ]
)
def elsewhere(t: Script, fields: dict[str, Any]) -> None:
    t.api("STREAM.CREATE.S", {"name": "S", "subjects": ["a.*"], **fields})


# ---------------------------------------------------------------------- leaf nodes
@configured(Setup("leafnodes { listen: '127.0.0.1:-1' }\n", ()))
def subjects_that_a_leaf_node_denies(t: Script) -> None:
    """The hub replaces the functions: `account` is that of the leaf node, `leaf_remote` the one that it joined."""
    subjects = ["own.{{account-hash()}}", "hub.{{account-hash-leaf-remote()}}", "no.{{account-hash-import()}}"]
    peer = LeafPeer((t.server.host, t.server.leaf_port), {"remote_account": "X", "deny_pub": subjects})
    t.keep(peer)
    wire = t.connect(user=None)
    peer.send(b"LS+ >\r\n")
    peer.heard()
    for subject in ("own", "hub", "no"):
        for account in ("X", "$G"):
            wire.publish(f"{subject}.{short_hash(account)}", b"x")
    wire.ping()
    t.note("heard", shown(peer.heard()))


# ---------------------------------------------------------------------- accounts of an operator
OPERATOR, SYSTEM, EXPORTER, IMPORTER, U = (
    operator_key("hash"),
    account_key("hash SYS"),
    account_key("hash exporter"),
    account_key("hash importer"),
    user_key("u"),
)


def _entry(subject: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"name": subject, "subject": subject, "type": kind, **fields}


def _imported(subject: str, kind: str, **fields: Any) -> dict[str, Any]:
    return _entry(subject, kind, account=EXPORTER.public, **fields)


TOKENS = {
    SYSTEM.public: account_jwt(SYSTEM, "SYS", OPERATOR),
    EXPORTER.public: account_jwt(
        EXPORTER,
        "EXPORTER",
        OPERATOR,
        exports=[
            _entry("ev.{{account-hash()}}.>", "stream"),
            _entry("ask.{{account-hash()}}", "service"),
            _entry("bad.{{account-hash(1)}}", "stream"),
        ],
        mappings={"from": [{"subject": "to.{{account-hash()}}", "weight": 100}]},
    ),
    IMPORTER.public: account_jwt(
        IMPORTER,
        "IMPORTER",
        OPERATOR,
        imports=[
            _imported("ev.{{account-hash-import()}}.>", "stream", local_subject="got.>"),
            _imported("ask.{{account-hash-import()}}", "service", local_subject="ask.{{account-hash()}}"),
            _imported("ev.{{account-hash-leaf-remote()}}.>", "stream"),
        ],
    ),
}
OPERATED = Setup(operator_config(operator_jwt(OPERATOR, system_account=SYSTEM.public), TOKENS, SYSTEM.public), ())


def _of(t: Script, account: Key) -> Wire:
    return admitted(t, with_token(U, user_jwt(U, "u", account)))


@configured(OPERATED)
def accounts_of_an_operator(t: Script) -> None:
    exporter, importer = _all(_of(t, EXPORTER)), _all(_of(t, IMPORTER))
    exporter.publish("from", b"x")
    [frame] = [frame for frame in exporter.ping() if not frame.subject.startswith("$SYS")]
    t.note("mapped", frame.subject)
    theirs = frame.subject.split(".")[1]
    for subject in (f"ev.{theirs}.a", "bad.a"):
        exporter.publish(subject, b"x")
    exporter.ping()
    _heard(t, "heard", importer)
