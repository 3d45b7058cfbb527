"""Account tokens: imports, exports, activations and JetStream limits."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.harness import Script, configured, table
from tests.conformance.logins import admitted, attempt, claims_answer, with_token
from tests.conformance.operators import (
    EXPORTER,
    FOREIGN,
    IMPORTS,
    OPERATED,
    OTHER_OPERATOR,
    SYSTEM,
    SYSTEM_USER,
    TIERS,
    A,
    U,
)
from tests.keys import Key, account_jwt, account_key, user_jwt, user_key
from tests.wire import Wire, WireTimeout

SILENT_S = 0.25


def _user_of(t: Script, account: Key, user: Key = U) -> Wire:
    return admitted(t, with_token(user, user_jwt(user, "u", account)))


def _id(name: str) -> str:
    return name.lower().replace(" ", "_")


@table([(_id(name), name) for name in IMPORTS], OPERATED)
def imports(t: Script, name: str) -> None:
    importer, exporter = account_key(name), _user_of(t, EXPORTER)
    system = _user_of(t, SYSTEM, SYSTEM_USER)
    wire = attempt(t, "CONNECT", with_token(U, user_jwt(U, "u", importer)))
    if wire is None:
        return
    detail = system.request(f"$SYS.REQ.ACCOUNT.{importer.public}.INFO").json()["data"]
    shown = [entry for entry in detail.get("imports", []) if entry["account"] != SYSTEM.public]
    for entry in shown:
        entry["jwt"] = "jwt" in entry
    t.note("imports", sorted(shown, key=lambda entry: str(entry.get("subject"))))
    t.note("complete", detail.get("complete"))
    for subject in (">", "_INBOX.in"):
        wire.subscribe(subject)
    wire.ping()
    subjects = ("open.a", "private.a", "private.b", "revoked.a", f"mine.{account_key('MINE').public}.a", "nothing.a")
    for subject in subjects:
        exporter.publish(subject, b"m")
    exporter.ping()
    t.frames("heard", [frame for frame in wire.ping() if not frame.subject.startswith("$SYS")])
    for subject in ("ask.>", "by.>"):
        exporter.subscribe(subject)
    exporter.ping()
    for subject in ("ask.open", "ask.private", "ask.many", "there.open", "old.open", "by.ask"):
        wire.publish(subject, b"q", "_INBOX.in")
    wire.ping()
    asked = exporter.ping()
    t.frames("asked", asked)
    for frame in asked:
        for number in range(2):
            exporter.publish(frame.reply, b"answer %d to %s" % (number, frame.subject.encode()))
    exporter.ping()
    t.frames("answers", [frame for frame in wire.ping() if frame.subject == "_INBOX.in" and frame.data != b"q"])


@configured(OPERATED)
def exports_are_shown(t: Script) -> None:
    system = _user_of(t, SYSTEM, SYSTEM_USER)
    detail = system.request(f"$SYS.REQ.ACCOUNT.{EXPORTER.public}.INFO").json()["data"]
    t.note("exports", sorted(detail["exports"], key=lambda entry: str(entry["subject"])))


_STREAMS: tuple[dict[str, Any], ...] = (
    {"name": "M", "subjects": ["m"], "storage": "memory"},
    {"name": "F", "subjects": ["f"], "storage": "file", "max_bytes": 4096},
    {"name": "BIG", "subjects": ["big"], "storage": "file", "max_bytes": 100_000},
    {"name": "R3", "subjects": ["r3"], "storage": "memory", "num_replicas": 3},
    {"name": "LAST", "subjects": ["last"], "storage": "memory", "max_bytes": 1024},
)


@table([(_id(name), name) for name in TIERS], OPERATED)
def jetstream(t: Script, name: str) -> None:
    wire = _user_of(t, account_key(name))

    def ask(subject: str, body: Any = None) -> Any:
        frame = wire.request(f"$JS.API.{subject}", b"" if body is None else json.dumps(body).encode())
        answer = frame.json() if frame.data else t.show(frame)
        answer.pop("api", None)  # it counts what was asked before, too
        return answer

    t.note("INFO", ask("INFO"))
    made = []
    for config in _STREAMS:
        answer = ask(f"STREAM.CREATE.{config['name']}", config)
        if "config" in answer:
            made.append(config["name"])
        t.note(f"STREAM.CREATE.{config['name']}", answer.get("error", sorted(answer)))
    for number in range(3):
        if "M" in made:
            body = {"stream_name": "M", "config": {"durable_name": f"c{number}", "ack_policy": "explicit"}}
            answer = ask(f"CONSUMER.CREATE.M.c{number}", body)
            t.note(f"CONSUMER.CREATE.M.c{number}", answer.get("error", sorted(answer)))
    for size in (1000, 3000, 3000):
        for subject in ("m", "f"):
            if subject.upper() in made:
                frame = wire.request(subject, b"x" * size)
                t.note(f"{size} bytes to {subject}", frame.json() if frame.data else t.show(frame))
    t.note("INFO with streams", ask("INFO"))
    for name in made:
        ask(f"STREAM.DELETE.{name}")


@configured(OPERATED)
def what_users_may_ask_the_system(t: Script) -> None:
    wire = _user_of(t, A)
    for subject in (
        "$SYS.REQ.SERVER.PING",
        "$SYS.REQ.CLAIMS.LIST",
        f"$SYS.REQ.ACCOUNT.{A.public}.CLAIMS.LOOKUP",
        f"$SYS.REQ.ACCOUNT.{A.public}.CLAIMS.UPDATE",
        f"$SYS.REQ.ACCOUNT.{A.public}.INFO",
    ):
        try:
            t.note(subject, t.show(wire.request(subject, timeout=SILENT_S)))
        except WireTimeout:
            t.note(subject, "no answer")


@configured(OPERATED)
def what_the_system_is_told(t: Script) -> None:
    """Advisories name accounts by their keys, and users by theirs."""
    system = _user_of(t, SYSTEM, SYSTEM_USER)
    system.subscribe(f"$SYS.ACCOUNT.{A.public}.>")
    system.ping()
    wire = _user_of(t, A, user_key("told"))
    for what in ("CONNECT", "DISCONNECT"):
        event = system.message(f"$SYS.ACCOUNT.{A.public}.{what}").json()
        client = event["client"]
        client["jwt"] = "jwt" in client and len(client["jwt"].split("."))
        for key in ("start", "stop", "id", "rtt"):
            client.pop(key, None)
        t.note(what, {"client": client, "reason": event.get("reason")})
        wire.close()


@configured(OPERATED)
def a_resolver_in_memory_answers(t: Script) -> None:
    """A MEMORY resolver answers only ACCOUNT.*.CLAIMS.UPDATE."""
    system = _user_of(t, SYSTEM, SYSTEM_USER)
    for subject, body in (
        (f"ACCOUNT.{A.public}.CLAIMS.LOOKUP", b""),
        (f"ACCOUNT.{account_key('none').public}.CLAIMS.LOOKUP", b""),
        (f"ACCOUNT.{A.public}.CLAIMS.UPDATE", b"garbage"),
        (f"ACCOUNT.{FOREIGN.public}.CLAIMS.UPDATE", account_jwt(FOREIGN, "FOREIGN", OTHER_OPERATOR).encode()),
        ("CLAIMS.UPDATE", b"garbage"),
        ("CLAIMS.LIST", b""),
        ("CLAIMS.PACK", b""),
        ("CLAIMS.DELETE", b"garbage"),
    ):
        t.note(f"{subject} {len(body)}", claims_answer(t, system.request(f"$SYS.REQ.{subject}", body)))
