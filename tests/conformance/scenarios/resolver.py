"""Directory resolver: requests about account tokens, and effects of updates on connected clients."""

from __future__ import annotations

import hashlib
import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from tests.conformance.harness import Script, configured, table
from tests.conformance.logins import admitted, attempt, claims_answer, fenced, heard, may, with_token
from tests.keys import (
    ISSUED_AT,
    Key,
    account_jwt,
    account_key,
    activation_jwt,
    claims_of,
    operator_jwt,
    operator_key,
    scope,
    user_jwt,
    user_key,
    without,
)
from tests.pairs import Setup
from tests.wire import Frame, Wire, WireTimeout, pub

OPERATOR, SIGNER, STRANGER = (operator_key(f"resolver {name}") for name in ("O", "signer", "stranger"))
SYSTEM, KEPT = account_key("resolver SYS"), account_key("resolver KEPT")
SYSTEM_USER, U, V = (user_key(f"resolver {name}") for name in ("system", "u", "v"))
SYSTEM_TOKEN = account_jwt(SYSTEM, "SYS", OPERATOR)
KEPT_TOKEN = account_jwt(KEPT, "KEPT", OPERATOR)
TRUSTED = operator_jwt(OPERATOR, system_account=SYSTEM.public, signing_keys=[SIGNER.public])
SILENT_S = 0.3


def directory(options: str = "", kind: str = "full") -> Setup:
    """Return the setup of a directory resolver with these options."""
    return Setup(
        f"operator: {TRUSTED}\nhttp: '127.0.0.1:-1'\nresolver: {{type: {kind}, dir: $TOKENS{options}}}\n"
        f"resolver_preload {{ {SYSTEM.public}: {SYSTEM_TOKEN}, {KEPT.public}: {KEPT_TOKEN} }}\n",
        (),
    )


FULL = directory()
DELETING = directory(", allow_delete: true")


def system_of(t: Script) -> Wire:
    """Return a connection of the system account."""
    return admitted(t, with_token(SYSTEM_USER, user_jwt(SYSTEM_USER, "system", SYSTEM)))


def ask(t: Script, system: Wire, subject: str, body: str = "", label: str = "") -> Any:
    """Record and return the answer to a request about tokens."""
    try:
        frame = system.request(f"$SYS.REQ.{subject}", body.encode(), timeout=SILENT_S)
        answer = claims_answer(t, frame)
    except WireTimeout:
        answer = "no answer"
    t.note(label or subject, answer)
    return answer


def deletion(*accounts: Any, signer: Key = OPERATOR, **claims: Any) -> str:
    """Return the token of a request to delete accounts."""
    nats = {"accounts": list(accounts), "type": "generic", "version": 2}
    body = {"iat": ISSUED_AT, "iss": signer.public, "sub": signer.public, "nats": nats}
    return signer.token({**body, **claims})


_UPDATED = account_key("resolver updated")
_GOOD = account_jwt(_UPDATED, "UPDATED", OPERATOR)
_UPDATES: list[tuple[str, str, str]] = [
    ("of_the_account", f"ACCOUNT.{_UPDATED.public}.CLAIMS.UPDATE", _GOOD),
    ("of_claims", "CLAIMS.UPDATE", _GOOD),
    ("by_a_signing_key", "CLAIMS.UPDATE", account_jwt(_UPDATED, "UPDATED", SIGNER)),
    ("with_a_newline", "CLAIMS.UPDATE", _GOOD + "\n"),
    ("garbage", "CLAIMS.UPDATE", "garbage"),
    ("empty", "CLAIMS.UPDATE", ""),
    ("of_an_account_garbage", f"ACCOUNT.{_UPDATED.public}.CLAIMS.UPDATE", "garbage"),
    ("a_user", "CLAIMS.UPDATE", user_jwt(U, "u", _UPDATED)),
    ("an_operator", "CLAIMS.UPDATE", TRUSTED),
    ("changed", "CLAIMS.UPDATE", without(_GOOD, name="x")),
    ("of_another_account", f"ACCOUNT.{SYSTEM.public}.CLAIMS.UPDATE", _GOOD),
    ("of_no_account", "ACCOUNT.FOO.CLAIMS.UPDATE", _GOOD),
    ("of_another_operator", "CLAIMS.UPDATE", account_jwt(account_key("resolver foreign"), "F", STRANGER)),
    ("expired", "CLAIMS.UPDATE", account_jwt(account_key("resolver expired"), "E", OPERATOR, claims={"exp": 1})),
    ("self_signed", "CLAIMS.UPDATE", account_jwt(_UPDATED, "UPDATED", _UPDATED)),
    ("of_the_system_account", "CLAIMS.UPDATE", account_jwt(SYSTEM, "SYS", OPERATOR)),
    ("with_bad_imports", "CLAIMS.UPDATE", account_jwt(
        account_key("resolver importer"), "I", OPERATOR, imports=[{"name": "x", "subject": "a..b", "type": "stream"}]
    )),
]  # fmt: skip


@table(_UPDATES, FULL)
def updates(t: Script, subject: str, token: str) -> None:
    system = system_of(t)
    ask(t, system, subject, token, "update")
    if token.startswith("ey"):
        stored = system.request(f"$SYS.REQ.ACCOUNT.{claims_of(token)['sub']}.CLAIMS.LOOKUP").data
        t.note("stored", stored == token.encode())
        t.note("stored without blanks", stored == token.strip().encode())


@configured(FULL)
def an_older_token_replaces_a_newer_one(t: Script) -> None:
    key, system = account_key("resolver older"), system_of(t)
    for issued in (ISSUED_AT + 10, ISSUED_AT):
        token = account_jwt(key, "OLDER", OPERATOR, claims={"iat": issued})
        ask(t, system, "CLAIMS.UPDATE", token, f"issued {issued - ISSUED_AT}")
        t.note("stored", system.request(f"$SYS.REQ.ACCOUNT.{key.public}.CLAIMS.LOOKUP").data == token.encode())


@configured(FULL)
def lookups(t: Script) -> None:
    system = system_of(t)
    for name, key in (
        ("the system account", SYSTEM.public),
        ("preloaded", KEPT.public),
        ("unknown", account_key("resolver none").public),
        ("garbage", "FOO"),
        ("a user", U.public),
    ):
        ask(t, system, f"ACCOUNT.{key}.CLAIMS.LOOKUP", label=name)


@configured(FULL)
def packs(t: Script) -> None:
    """PACK lists every token and ends with an empty message; a matching hash gets that message alone."""
    system = system_of(t)
    reply = system.new_reply()
    system.publish("$SYS.REQ.CLAIMS.PACK", b"", reply)
    frames = [system.message(reply)]
    while frames[-1].data:
        frames.append(system.message(reply))
    packed = dict(frame.data.decode().split("|") for frame in frames[:-1])
    t.note("the system account", packed[SYSTEM.public] == SYSTEM_TOKEN)
    t.note("preloaded", packed[KEPT.public])
    digest = bytes(32)
    for path in t.server.tokens.glob("*.jwt"):
        digest = bytes(a ^ b for a, b in zip(digest, hashlib.sha256(path.read_bytes()).digest(), strict=True))
    for label, body in (("a wrong hash", b"x" * 32), ("no hash", b"x"), ("the right hash", digest)):
        t.note(label, bool(system.request("$SYS.REQ.CLAIMS.PACK", body).data))


@configured(FULL)
def only_the_system_account_may_ask(t: Script) -> None:
    wire = admitted(t, with_token(U, user_jwt(U, "u", KEPT)))
    for subject in (
        *("CLAIMS.LIST", "CLAIMS.PACK", "CLAIMS.UPDATE", "CLAIMS.DELETE"),
        *(f"ACCOUNT.{KEPT.public}.CLAIMS.{what}" for what in ("LOOKUP", "UPDATE")),
    ):
        ask(t, wire, subject)


@configured(FULL)
def nothing_is_deleted_unless_it_is_allowed(t: Script) -> None:
    ask(t, system_of(t), "CLAIMS.DELETE", deletion(KEPT.public))
    attempt(t, "still there", with_token(U, user_jwt(U, "u", KEPT)))


_GONE = account_key("resolver none").public


@table(
    [
        ("garbage", "garbage"),
        ("empty", ""),
        ("of_no_accounts", deletion()),
        ("of_a_key_that_is_none", deletion("FOO")),
        ("of_an_unknown_account", deletion(_GONE)),
        ("of_the_system_account", deletion(SYSTEM.public)),
        ("by_another_operator", deletion(_GONE, signer=STRANGER)),
        ("by_a_signing_key", deletion(_GONE, signer=SIGNER)),
        ("not_self_signed", deletion(_GONE, sub=KEPT.public)),
        ("by_an_account", account_jwt(KEPT, "KEPT", OPERATOR)),
        ("expired", deletion(_GONE, exp=ISSUED_AT + 1)),
        ("of_a_text", deletion(_GONE, nats={"accounts": "x", "type": "generic", "version": 2})),
        ("of_nothing_said", deletion(_GONE, nats={"type": "generic", "version": 2})),
        ("of_numbers", deletion(5)),
    ],
    DELETING,
)
def deletions(t: Script, request: str) -> None:
    ask(t, system_of(t), "CLAIMS.DELETE", request)


@configured(DELETING)
def a_deleted_account_ends_its_connections(t: Script) -> None:
    key, system = account_key("resolver deleted"), system_of(t)
    token = account_jwt(key, "DELETED", OPERATOR)
    ask(t, system, "CLAIMS.UPDATE", token)
    login = with_token(U, user_jwt(U, "u", key))
    wire = attempt(t, "before", login)
    assert wire
    ask(t, system, "CLAIMS.DELETE", deletion(key.public))
    t.frames("connected", wire.until_closed())
    attempt(t, "after", login)
    ask(t, system, f"ACCOUNT.{key.public}.CLAIMS.LOOKUP")
    t.note("files", sorted(path.name.partition(".")[2] for path in t.server.tokens.glob(f"{key.public}*")))
    ask(t, system, "CLAIMS.UPDATE", token, "the same again")
    attempt(t, "with the same", login)
    ask(t, system, "CLAIMS.UPDATE", account_jwt(key, "DELETED", OPERATOR, claims={"iat": ISSUED_AT + 1}), "another")
    attempt(t, "with another", login)
    t.note("files again", sorted(path.name.partition(".")[2] for path in t.server.tokens.glob(f"{key.public}*")))


# ---------------------------------------------------------------------- those who are connected

_SCOPED, _SIGNING = account_key("resolver scope"), account_key("resolver signing")


def _scope(allowed: str) -> dict[str, Any]:
    return scope(_SCOPED, "r", {"pub": {"allow": [allowed]}})


def _by_signer(key: Key) -> str:
    return user_jwt(U, "u", _SIGNING, issuer_account=key.public)


def _by_scope(key: Key) -> str:
    return user_jwt(U, "u", _SCOPED, issuer_account=key.public, scoped=True)


_CHANGES: list[tuple[str, dict[str, Any], dict[str, Any], Any]] = [
    ("revoked", {}, {"revocations": {U.public: ISSUED_AT}}, None),
    ("revoked_earlier", {}, {"revocations": {U.public: ISSUED_AT - 1}}, None),
    ("all_revoked", {}, {"revocations": {"*": ISSUED_AT}}, None),
    ("another_revoked", {}, {"revocations": {V.public: ISSUED_AT}}, None),
    ("signing_key_gone", {"signing_keys": [_SIGNING.public]}, {}, _by_signer),
    ("signing_key_kept", {"signing_keys": [_SIGNING.public]}, {"signing_keys": [_SIGNING.public, _scope("x")]},
     _by_signer),
    ("scope_gone", {"signing_keys": [_scope("a")]}, {}, _by_scope),
    ("scope_changed", {"signing_keys": [_scope("a")]}, {"signing_keys": [_scope("b")]}, _by_scope),
    ("scope_kept", {"signing_keys": [_scope("a")]}, {"signing_keys": [_scope("a")], "tags": ["x"]}, _by_scope),
    ("bearers_forbidden", {}, {"limits": {"disallow_bearer": True}},
     lambda key: user_jwt(U, "u", key, bearer_token=True)),
    ("bearers_forbidden_to_others", {}, {"limits": {"disallow_bearer": True}}, None),
    ("no_connections", {}, {"limits": {"conn": 0}}, None),
    ("fewer_subscriptions", {}, {"limits": {"subs": 1}}, None),
    ("smaller_payload", {}, {"limits": {"payload": 1}}, None),
    ("default_permissions", {}, {"default_permissions": {"pub": {"deny": ["b"]}, "sub": {}}}, None),
    ("renamed", {}, {"name": "NEW"}, None),
    ("mapped", {}, {"mappings": {"a": [{"subject": "c", "weight": 100}]}}, None),
    ("the_same", {}, {}, None),
    ("of_another_operator", {}, {"signer": STRANGER}, None),
    ("already_expired", {}, {"claims": {"exp": ISSUED_AT + 1}}, None),
]  # fmt: skip


@table([(name, name, *rest) for name, *rest in _CHANGES], FULL)
def what_becomes_of_those_who_are_connected(
    t: Script, name: str, before: dict[str, Any], after: dict[str, Any], token: Any
) -> None:
    key, system = account_key(f"resolver {name}"), system_of(t)
    t.hide(key.public, "<account>")
    assert "data" in ask(t, system, "CLAIMS.UPDATE", _version(key, before, 0), "before")
    login = with_token(U, token(key) if token else user_jwt(U, "u", key))
    wire = admitted(t, login)
    for subject in ("s.1", "s.2", "c"):
        wire.subscribe(subject)
    heard_before = wire.ping()
    t.frames("subscribed", heard_before)
    ask(t, system, "CLAIMS.UPDATE", _version(key, after, 1), "after")
    _settled(t, wire, key)
    if not wire.closed:
        for subject in ("a", "b"):
            if not fenced(t, wire, f"PUB {subject}", pub(subject, b"xx")):
                break
    if other := attempt(t, "login", login):
        may(t, other, ("b",))
    t.note("reasons", sorted({entry["reason"] for entry in _closed(t, key)}))


def _version(key: Key, fields: dict[str, Any], number: int) -> str:
    fields = dict(fields)
    claims = {"iat": ISSUED_AT + number, **fields.pop("claims", {})}
    return account_jwt(key, fields.pop("name", "CHANGED"), fields.pop("signer", OPERATOR), claims=claims, **fields)


def _settled(t: Script, wire: Wire, key: Key) -> None:
    """Record the frames of a client after a change of its account; nats-server closes asynchronously."""
    deadline = time.monotonic() + SILENT_S
    frames: list[Frame] = []
    while time.monotonic() < deadline and not (frames and frames[-1].verb == "CLOSED"):
        try:
            wire.send(b"PING\r\n")
        except OSError:
            frames.append(Frame("CLOSED"))
            break
        frames += heard(wire)
        time.sleep(0.02)
    t.frames("connected", frames)
    if frames and frames[-1].verb == "CLOSED":
        wire.close()


def _closed(t: Script, key: Key) -> Any:
    url = f"http://127.0.0.1:{t.server.http_port}/connz?state=closed&auth=1&acc={key.public}"
    with urllib.request.urlopen(url) as page:
        return json.load(page)["connections"]


@configured(FULL)
def more_connections_than_there_may_be_now(t: Script) -> None:
    """The newest connections are closed."""
    key, system = account_key("resolver fewer"), system_of(t)
    ask(t, system, "CLAIMS.UPDATE", _version(key, {}, 0))
    wires = []
    for _ in range(4):
        wires.append(admitted(t, with_token(U, user_jwt(U, "u", key))))
        time.sleep(0.01)
    ask(t, system, "CLAIMS.UPDATE", _version(key, {"limits": {"conn": 2}}, 1))
    for number, wire in enumerate(wires):
        _settled(t, wire, key)
        t.note(f"connection {number} ended", wire.closed)


@configured(FULL)
def an_account_that_expires(t: Script) -> None:
    key, system = account_key("resolver expires"), system_of(t)
    token = account_jwt(key, "EXPIRES", OPERATOR, claims={"exp": int(time.time()) + 2})
    system.request("$SYS.REQ.CLAIMS.UPDATE", token.encode())
    login = with_token(U, user_jwt(U, "u", key))
    wire = admitted(t, login)
    t.frames("until closed", wire.until_closed())
    attempt(t, "login", login)
    t.note("reasons", sorted({entry["reason"] for entry in _closed(t, key)}))
    ask(t, system, "CLAIMS.UPDATE", account_jwt(key, "EXPIRES", OPERATOR))
    attempt(t, "with another token", login)


@configured(FULL)
def imports_follow_what_is_pushed(t: Script) -> None:
    """Imports are resolved anew with each update of the exporter."""
    exporter, importer, system = account_key("resolver exporter"), account_key("resolver importing"), system_of(t)
    exports = [{"name": "e", "subject": "e.>", "type": "stream"}]
    imports = [{"name": "e", "subject": "e.>", "account": exporter.public, "type": "stream"}]
    for number, fields in enumerate(({}, {"exports": exports}, {})):
        ask(t, system, "CLAIMS.UPDATE", _version(exporter, fields, number), f"exporter {number}")
        if not number:
            ask(t, system, "CLAIMS.UPDATE", _version(importer, {"imports": imports}, 0), "importer")
            there = admitted(t, with_token(V, user_jwt(V, "v", exporter)))
            here = admitted(t, with_token(U, user_jwt(U, "u", importer)))
            here.subscribe("e.>")
            here.ping()
        there.publish("e.x", b"%d" % number)
        there.ping()
        t.frames(f"heard {number}", here.ping())


_PRIVATE = {"name": "e", "subject": "e.>", "type": "stream", "token_req": True}


def _activated(t: Script, system: Wire, name: str, **claims: Any) -> Callable[[str], None]:
    """Make an account that imports a private stream by an activation token; return a function that publishes there and
    records if it is heard here."""
    exporter, importer = account_key(f"resolver {name} from"), account_key(f"resolver {name} to")
    token = activation_jwt(importer.public, exporter, "e.>", "stream", claims=claims)
    wanted = {"name": "e", "subject": "e.>", "account": exporter.public, "type": "stream", "token": token}
    for key, fields in ((exporter, {"exports": [_PRIVATE]}), (importer, {"imports": [wanted]})):
        system.request("$SYS.REQ.CLAIMS.UPDATE", _version(key, fields, 0).encode())
    there = admitted(t, with_token(V, user_jwt(V, "v", exporter)))
    here = admitted(t, with_token(U, user_jwt(U, "u", importer)))
    here.subscribe("e.>")
    here.ping()

    def publish(label: str) -> None:
        there.publish("e.x", label.encode())
        there.ping()
        t.note(label, [frame.data.decode() for frame in here.ping()])

    return publish


@configured(FULL)
def an_activation_that_expires(t: Script) -> None:
    """The import ends with its token, without anything that is pushed."""
    ends = int(time.time()) + 2
    publish = _activated(t, system_of(t), "activation", exp=ends)
    publish("before")
    time.sleep(ends + 1.2 - time.time())
    publish("after")


@configured(FULL)
def an_activation_that_is_revoked(t: Script) -> None:
    """The exporter revokes it in its own token, and takes that back."""
    system = system_of(t)
    publish = _activated(t, system, "revocation")
    publish("before")
    exporter, importer = account_key("resolver revocation from"), account_key("resolver revocation to")
    for number, revocations in ((1, {importer.public: ISSUED_AT}), (2, {})):
        fields = {"exports": [{**_PRIVATE, "revocations": revocations}]}
        system.request("$SYS.REQ.CLAIMS.UPDATE", _version(exporter, fields, number).encode())
        publish(f"after update {number}")


@configured(FULL)
def a_user_of_an_account_that_is_unknown(t: Script) -> None:
    """The login is refused when no server answers the lookup within the timeout."""
    wire = t.connect_bare()
    fields = with_token(U, user_jwt(U, "u", account_key("resolver none")))
    wire.connect(fields(wire.info["nonce"]), b"PING\r\n")
    t.note("until closed", sorted({t.show(frame) for frame in wire.until_closed()}))
