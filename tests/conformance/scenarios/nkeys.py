"""Logins of nkey users of the configuration."""

from __future__ import annotations

import json
import string
import time
import urllib.request
from typing import Any

from tests.conformance.harness import Script, configured, table
from tests.conformance.logins import (
    Fields,
    admitted,
    attempt,
    encodings,
    heard,
    in_either_alphabet,
    may,
    only,
    told,
    user_info,
    with_nkey,
)
from tests.keys import Key, account_key, proof, user_key
from tests.pairs import Setup

ANN, BOB, WEB, TCP, ACC, STRANGER = (user_key(name) for name in ("ann", "bob", "web", "tcp", "acc", "stranger"))
ACCOUNT = account_key("ann")

NKEYS = Setup(
    f"""\
accounts {{
  A {{
    users: [
      {{nkey: {ANN.public}}}
      {{nkey: {BOB.public}, permissions: {{publish: ["b.>", "$SYS.REQ.USER.INFO"], subscribe: ["_INBOX.>", "q g"]}}}}
      {{nkey: {WEB.public}, allowed_connection_types: [WEBSOCKET]}}
      {{nkey: {TCP.public}, allowed_connection_types: [standard, MQTT]}}
      {{user: u, password: p}}
    ]
  }}
  B {{ nkey: {ACCOUNT.public}, users: [{{nkey: {ACC.public}}}] }}
}}
""",
    (),
)
OPEN = Setup("max_payload: 1MB\n", ())


def _with_signature(name: str) -> Fields:
    return lambda nonce: {"nkey": ANN.public, "sig": encodings(ANN)[name](nonce)}


_LOGINS: list[tuple[str, Fields]] = [
    *((f"signature_{name}", _with_signature(name)) for name in encodings(ANN)),
    ("no_signature", only(nkey=ANN.public)),
    ("signature_of_another", lambda nonce: {"nkey": ANN.public, "sig": BOB.sign(nonce)}),
    ("signature_alone", lambda nonce: {"sig": ANN.sign(nonce)}),
    ("nothing", only()),
    ("unknown", with_nkey(STRANGER)),
    ("garbage", lambda nonce: {"nkey": "UABC", "sig": ANN.sign(nonce)}),
    ("lower_case", lambda nonce: {"nkey": ANN.public.lower(), "sig": ANN.sign(nonce)}),
    ("key_of_an_account", with_nkey(ACCOUNT)),
    ("as_user_name", only(user=ANN.public, **{"pass": ""})),
    ("as_token", only(auth_token=ANN.public)),
    ("with_a_password_too", with_nkey(ANN, user="u", **{"pass": "p"})),
    ("with_a_wrong_password_too", with_nkey(ANN, user="u", **{"pass": "x"})),
    ("unknown_with_a_password_too", with_nkey(STRANGER, user="u", **{"pass": "p"})),
    ("password_alone", only(user="u", **{"pass": "p"})),
    ("with_a_token_too", with_nkey(ANN, jwt="garbage")),
    ("of_the_second_account", with_nkey(ACC)),
    ("only_over_websocket", with_nkey(WEB)),
    ("over_tcp", with_nkey(TCP)),
]


@table(_LOGINS, NKEYS)
def logins(t: Script, fields: Fields) -> None:
    if wire := attempt(t, "CONNECT", fields):
        told(t, wire)
        user_info(t, wire)


@configured(NKEYS)
def forms_of_base64(t: Script) -> None:
    in_either_alphabet(t, ANN, nkey=ANN.public)


@configured(NKEYS)
def the_nonce(t: Script) -> None:
    wires = [t.connect_bare() for _ in range(8)]
    nonces = [wire.info["nonce"] for wire in wires]
    t.note("lengths", [len(nonce) for nonce in nonces])
    t.note("different", len(set(nonces)))
    t.note("letters", sorted(set("".join(nonces)) - set(f"{string.ascii_letters}{string.digits}-_")))
    wire = admitted(t, with_nkey(ANN))
    t.note("in the INFO after CONNECT", ["nonce" in info for info in wire.told()])


@configured(OPEN)
def without_users_there_is_no_nonce(t: Script) -> None:
    wire = t.connect_bare()
    t.note("INFO", {key: key in wire.info for key in ("nonce", "auth_required", "xkey")})
    attempt(t, "with a key", with_nkey(ANN))
    attempt(t, "with a token", only(jwt="garbage", sig="garbage"))


@configured(NKEYS)
def what_its_permissions_say(t: Script) -> None:
    wire = admitted(t, with_nkey(BOB))
    may(t, wire, ("b.x", "c", "b"), ("q g", "q", "q h", "_INBOX.x", "b.x"))


@configured(NKEYS)
def a_second_connect_is_another_login(t: Script) -> None:
    wire = admitted(t, with_nkey(ANN))
    for label, key in (
        ("the same", ANN),
        ("with permissions", BOB),
        ("of another account", ACC),
        ("unknown", STRANGER),
    ):
        wire.connect(proof(key, wire.info["nonce"]), b"PING\r\n")
        t.frames(label, frames := heard(wire))
        if frames and frames[-1].verb == "CLOSED":
            return
        t.note(f"{label}: account", wire.infos[-1].get("remote_account"))
        may(t, wire, ("c",))


@configured(NKEYS)
def a_nonce_is_of_one_connection(t: Script) -> None:
    nonce = t.connect_bare().info["nonce"]
    attempt(t, "signed for another connection", lambda _: proof(ANN, nonce))


PAGES = 'http: "127.0.0.1:-1"\n'
ANONYMOUS = Setup(
    f"""{PAGES}no_auth_user: {ANN.public}
authorization {{ users: [{{nkey: {ANN.public}}}, {{user: u, password: p}}] }}
""",
    (),
)


def _who(t: Script, fields: Fields) -> None:
    """Record what is said to a login, and the user that the page of connections names."""
    name = f"login {time.monotonic_ns()}"
    attempt(t, "CONNECT", lambda nonce: {**fields(nonce), "name": name})
    deadline = time.monotonic() + t.timeout
    while time.monotonic() < deadline:
        pages = t.server.page("/connz?auth=1&state=any")["connections"]
        if shown := [each for each in pages if each.get("name") == name]:
            break
        time.sleep(0.01)
    t.note("user", [each.get("authorized_user") for each in shown])


@table(
    [
        ("nothing", only()),
        ("password_alone", only(**{"pass": "p"})),
        ("signature_alone", lambda nonce: {"sig": ANN.sign(nonce)}),
        ("jwt", only(jwt="garbage")),
        ("token", only(auth_token="x")),
        ("password", only(user="u", **{"pass": "p"})),
        ("unknown", with_nkey(STRANGER)),
    ],
    ANONYMOUS,
)
def no_auth_user_with_a_key(t: Script, fields: Fields) -> None:
    _who(t, fields)


@table(
    [
        ("right", only(auth_token="secret")),
        ("wrong", only(auth_token="x")),
        ("beside_a_user", only(auth_token="secret", user="u")),
        ("none", only()),
    ],
    Setup(f"{PAGES}authorization {{ token: secret }}\n", ()),
)
def tokens_are_not_shown(t: Script, fields: Fields) -> None:
    _who(t, fields)


# ------------------------------------------------------------------------------------------------ proxies
PROXY, OTHER_PROXY = user_key("proxy"), user_key("another proxy")
PROXIES = Setup(
    f"""\
http: "127.0.0.1:-1"
proxies {{ trusted: [ {{ key: {account_key("unused").public} }}, {{ public_key: {PROXY.public} }} ] }}
accounts {{
  A {{
    users: [
      {{nkey: {ANN.public}, proxy_required: true}}
      {{user: needs, password: p, proxy_required: true}}
      {{user: free, password: p}}
    ]
  }}
}}
""",
    (),
)
TOKEN_THROUGH_A_PROXY = Setup(
    f"""\
http: "127.0.0.1:-1"
proxies {{ trusted: [ {{ key: {PROXY.public} }} ] }}
authorization {{ token: secret, proxy_required: true }}
""",
    (),
)


def _through(key: Key | None, **fields: str) -> Fields:
    """Return the fields of CONNECT that a proxy with this key passes on; None: there is no proxy."""
    return lambda nonce: fields | ({"proxy_sig": key.sign(nonce)} if key is not None else {})


def _ann_through(key: Key | None) -> Fields:
    return lambda nonce: {"nkey": ANN.public, "sig": ANN.sign(nonce)} | _through(key)(nonce)


NEEDS, WRONG, FREE = {"user": "needs", "pass": "p"}, {"user": "needs", "pass": "x"}, {"user": "free", "pass": "p"}
_PROXIED: list[tuple[str, Fields]] = [
    ("needed_and_there", _through(PROXY, **NEEDS)),
    ("needed_and_absent", _through(None, **NEEDS)),
    ("not_trusted", _through(OTHER_PROXY, **NEEDS)),
    ("not_base64", only(proxy_sig="!!!", **NEEDS)),
    ("of_another_nonce", only(proxy_sig=PROXY.sign("nonce"), **NEEDS)),
    ("a_wrong_password", _through(None, **WRONG)),
    ("a_wrong_password_through_it", _through(PROXY, **WRONG)),
    ("not_needed", _through(None, **FREE)),
    ("not_needed_and_there", _through(PROXY, **FREE)),
    ("not_needed_and_not_trusted", _through(OTHER_PROXY, **FREE)),
    ("nkey", _ann_through(PROXY)),
    ("nkey_without", _ann_through(None)),
    ("nobody", _through(PROXY)),
]


def _shown(t: Script, path: str, name: str) -> Any:
    """Return what /connz shows of the newest connection."""
    with urllib.request.urlopen(f"http://127.0.0.1:{t.server.http_port}/connz?{path}") as answer:
        return max(json.load(answer)["connections"], key=lambda one: one["cid"]).get(name)


@table(_PROXIED, PROXIES)
def logins_through_proxies(t: Script, fields: Fields) -> None:
    if wire := attempt(t, "CONNECT", fields):
        told(t, wire)
        t.note("proxy", _shown(t, "auth=1", "proxy"))
    else:
        t.note("reason", _shown(t, "state=closed", "reason"))


@table(
    [
        ("there", _through(PROXY, auth_token="secret")),
        ("absent", _through(None, auth_token="secret")),
        ("absent_and_wrong", _through(None, auth_token="x")),
    ],
    TOKEN_THROUGH_A_PROXY,
)
def the_token_through_a_proxy(t: Script, fields: Fields) -> None:
    if not attempt(t, "CONNECT", fields):
        t.note("reason", _shown(t, "state=closed", "reason"))
