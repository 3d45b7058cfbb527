"""Auth callout (ADR-26): requests, answers, and their effect on the client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from cryptography import x509

from tests.certificates import PLACE
from tests.conformance.harness import Script, configured, table
from tests.conformance.leaf_peer import LeafPeer, shown
from tests.conformance.logins import (
    Fields,
    attempt,
    fenced,
    heard,
    judged,
    may,
    only,
    told,
    user_info,
    with_nkey,
    with_token,
)
from tests.keys import (
    ISSUED_AT,
    NO_LIMITS,
    SERVER,
    CurveKey,
    Key,
    account_jwt,
    account_key,
    callout_response,
    claims_of,
    operator_config,
    operator_jwt,
    operator_key,
    scope,
    user_jwt,
    user_key,
    without,
)
from tests.pairs import Setup
from tests.servers import LOG_LINES_KEPT
from tests.wire import Frame, Wire, WireTimeout, pub

ISSUER, STRANGER, APP_SIGNER, APP_SCOPE = (account_key(f"callout {name}") for name in ("issuer", "no", "app", "scope"))
CURVE = CurveKey("callout")
KEYED = user_key("callout keyed")


def _config(more: str, account: str = "account: AUTH") -> Setup:
    return Setup(
        f"""\
system_account: SYS
authorization {{
  timeout: 1
  auth_callout {{ issuer: {ISSUER.public}, auth_users: [auth], {account}, {more} }}
}}
accounts {{
  AUTH {{ users: [{{user: auth, password: p}}, {{user: local, password: p}}] }}
  APP {{ users: [{{user: member, password: p}}, {{nkey: {KEYED.public}}}] }}
  OTHER {{}}
  SYS {{ users: [{{user: sys, password: p}}] }}
}}
""",
        (),
    )


PLAIN = _config("")
ENCRYPTED = _config(f"xkey: {CURVE.public}")
ALLOWED = _config("allowed_accounts: [APP]")

# ---------------------------------------------------------------------- an operator's accounts

OPERATOR = operator_key("callout operator")
SYSTEM, AUTH, APP, OUTSIDE = (account_key(f"callout {name}") for name in ("SYS", "AUTH", "APP", "OUTSIDE"))
SERVICE, CLIENT = user_key("callout service"), user_key("callout client")


def _operated(more: str = "", **authorization: Any) -> Setup:
    tokens = {
        SYSTEM.public: account_jwt(SYSTEM, "SYS", OPERATOR),
        AUTH.public: account_jwt(
            AUTH, "AUTH", OPERATOR, authorization={"auth_users": [SERVICE.public], **authorization}
        ),
        APP.public: account_jwt(
            APP,
            "APP",
            OPERATOR,
            signing_keys=[APP_SIGNER.public, scope(APP_SCOPE, "r", {"pub": {"allow": ["a.>", "$SYS.REQ.USER.INFO"]}})],
        ),
        OUTSIDE.public: account_jwt(OUTSIDE, "OUTSIDE", OPERATOR),
    }
    trusted = operator_jwt(OPERATOR, system_account=SYSTEM.public)
    return Setup(operator_config(trusted, tokens, SYSTEM.public, f"authorization {{ timeout: 1 }}\n{more}"), ())


OPERATED = _operated(allowed_accounts=[APP.public])
OPERATED_ANY = _operated(allowed_accounts=["*"])
OPERATED_ENCRYPTED = _operated(allowed_accounts=["*"], xkey=CURVE.public)

BEARER_TOKEN = user_jwt(CLIENT, "sentinel", AUTH, bearer_token=True)
SENTINELED = _operated(
    f"default_sentinel: {BEARER_TOKEN}\nleafnodes {{ listen: '127.0.0.1:-1' }}\n", allowed_accounts=["*"]
)
SENTINEL = with_token(CLIENT, user_jwt(CLIENT, "sentinel", AUTH, pub={"deny": [">"]}, sub={"deny": [">"]}))
BEARER = only(jwt=BEARER_TOKEN, user="bob", **{"pass": "pw"})

# ---------------------------------------------------------------------- the service

Request = dict[str, Any]
Answer = Callable[[Request], str]


def _service(t: Script) -> Wire:
    operated = "nonce" in t.connect_bare().info and "operator" in (t.server.config or "")
    login = with_token(SERVICE, user_jwt(SERVICE, "s", AUTH)) if operated else only(user="auth", **{"pass": "p"})
    wire = attempt(t, "service", login)
    assert wire
    wire.subscribe("$SYS.REQ.USER.AUTH")
    wire.ping()
    return wire


def _asked(service: Wire) -> tuple[Frame, Request]:
    frame = service.message("$SYS.REQ.USER.AUTH")
    sender = frame.headers.get("Nats-Server-Xkey")
    return frame, claims_of((CURVE.open(frame.data, sender) if sender else frame.data).decode())


def _token(request: Request, signer: Any = ISSUER, account: str | None = "APP", **nats: Any) -> str:
    """Return a token for the user of the request."""
    claims = {"aud": account, **nats.pop("claims", {})}
    fields = {"type": "user", "pub": {}, "sub": {}, **NO_LIMITS, **nats}
    name = fields.pop("name", "bob")
    return str(signer.signed(request["nats"]["user_nkey"], name, fields, **claims))


def _answer(request: Request, signer: Any = ISSUER, **fields: Any) -> str:
    server = request["nats"]["server_id"]["id"]
    return callout_response(request["nats"]["user_nkey"], server, signer, **fields)


def _accept(**nats: Any) -> Answer:
    return lambda request: _answer(request, jwt=_token(request, **nats))


def accepted(request: Request) -> str:
    """Return an answer that lets the user of a request into APP."""
    return _accept()(request)


def _with(changes: dict[str, Any], **fields: Any) -> Answer:
    """Return an answer whose own claims are changed."""
    return lambda request: _answer(request, claims=changes, **{"jwt": _token(request), **fields})


def _decided(t: Script, fields: Fields, answer: Answer, label: str = "CONNECT") -> Wire | None:
    """Record the result of a login that the service answers with `answer`."""
    service = _service(t)
    wire = t.connect_bare()
    wire.connect(fields(wire.info.get("nonce", "")), b"PING\r\n")
    frame, request = _asked(service)
    data = answer(request).encode()
    sender = frame.headers.get("Nats-Server-Xkey")
    before = set(t.server.log(LOG_LINES_KEPT).splitlines())
    service.publish(frame.reply, CURVE.seal(data, sender) if sender else data)
    t.hide(request["nats"]["user_nkey"], "<user_nkey>")
    t.hide(request["nats"]["server_id"]["id"], "<server>")
    admitted = judged(t, label, wire)
    if admitted is None:
        t.note("warnings", _warnings(t, before))
    return admitted


def _warnings(t: Script, before: set[str], timeout: float = 0.5) -> list[str]:
    """Return new warnings of the log; they name no connection and follow its refusal."""
    deadline = time.monotonic() + timeout
    while True:
        lines = [line for line in t.server.log(LOG_LINES_KEPT).splitlines() if line not in before and "[WRN]" in line]
        if lines or time.monotonic() > deadline:
            return [line[line.index("[WRN]") :] for line in lines]
        time.sleep(0.005)


BOB = only(user="bob", name="me", **{"pass": "pw"})

_ANSWERS: list[tuple[str, Answer]] = [
    ("accepted", _accept()),
    ("without_a_name", _accept(name="")),
    ("with_permissions", _accept(pub={"allow": ["a", "$SYS.REQ.USER.INFO"]}, sub={"allow": ["_INBOX.>"]})),
    ("with_responses", _accept(sub={"allow": ["_INBOX.>"]}, resp={"max": 2, "ttl": 1_000_000_000})),
    ("with_payload", _accept(payload=100)),
    ("with_tags", _accept(tags=["a:b"])),
    ("into_the_account_of_the_service", _accept(account="AUTH")),
    ("into_the_global_account", _accept(account="$G")),
    ("into_the_system_account", _accept(account="SYS")),
    ("into_an_account_without_users", _accept(account="OTHER")),
    ("into_an_unknown_account", _accept(account="NONE")),
    ("into_no_account", _accept(account=None)),
    ("into_the_name_in_lower_case", _accept(account="app")),
    ("expired_token", _accept(claims={"exp": ISSUED_AT + 1})),
    ("token_of_later", _accept(claims={"nbf": 4_000_000_000})),
    ("token_of_another_issuer", _accept(signer=STRANGER)),
    ("token_with_an_issuer_account", _accept(issuer_account=ISSUER.public)),
    ("from_elsewhere", _accept(src=["10.0.0.0/8"])),
    ("over_websocket", _accept(allowed_connection_types=["WEBSOCKET"])),
    ("over_tcp", _accept(allowed_connection_types=["STANDARD"])),
    ("never_today", _accept(times=[{"start": "00:00:00", "end": "00:00:01"}], times_location="UTC")),
    ("bearer", _accept(bearer_token=True)),
    ("token_of_another_user", lambda r: _answer(r, jwt=user_jwt(CLIENT, "bob", ISSUER, claims={"aud": "APP"}))),
    ("token_is_garbage", lambda r: _answer(r, jwt="garbage")),
    ("token_was_changed", lambda r: _answer(r, jwt=without(_token(r), name="root"))),
    ("token_is_an_accounts", lambda r: _answer(r, jwt=account_jwt(ISSUER, "A", operator_key("x")))),
    ("an_error", lambda r: _answer(r, error="not today")),
    ("an_error_and_a_token", lambda r: _answer(r, error="not today", jwt=_token(r))),
    ("neither", lambda r: _answer(r)),
    ("answer_of_another_issuer", lambda r: _answer(r, signer=STRANGER, jwt=_token(r))),
    ("answer_to_another_server", _with({"aud": "NOBODY"})),
    ("answer_to_another_real_server", _with({"aud": Key(SERVER, "callout other").public})),
    ("answer_to_no_server", _with({"aud": None})),
    ("answer_about_another_user", _with({"sub": CLIENT.public})),
    ("answer_about_nobody", _with({"sub": None})),
    ("answer_has_expired", _with({"exp": ISSUED_AT + 1})),
    ("answer_with_an_issuer_account", _with({}, issuer_account=ISSUER.public)),
    ("answer_is_a_token", _token),
    ("answer_is_garbage", lambda r: "garbage"),
    ("answer_is_empty", lambda r: ""),
    ("answer_was_changed", lambda r: without(_answer(r, jwt=_token(r)), name="x")),
    ("answer_of_another_type", lambda r: _answer(r, jwt=_token(r), type="user")),
]


@table(_ANSWERS, PLAIN)
def answers(t: Script, answer: Answer) -> None:
    if wire := _decided(t, BOB, answer):
        told(t, wire)
        user_info(t, wire)
        may(t, wire, ("a", "b"), ("a",))


@table([row for row in _ANSWERS if row[0] in ("accepted", "an_error", "answer_is_garbage")], ENCRYPTED)
def encrypted_answers(t: Script, answer: Answer) -> None:
    if wire := _decided(t, BOB, answer):
        told(t, wire)


@configured(ENCRYPTED)
def an_answer_that_is_not_encrypted(t: Script) -> None:
    service = _service(t)
    wire = t.connect_bare()
    wire.connect({"user": "bob"}, b"PING\r\n")
    frame, request = _asked(service)
    t.note("sealed", [frame.data[:4], frame.headers["Nats-Server-Xkey"][0], len(frame.headers["Nats-Server-Xkey"])])
    t.note("the key of INFO", frame.headers["Nats-Server-Xkey"] == wire.info["xkey"])
    t.note("the key of the request", request["nats"]["server_id"].get("xkey") == wire.info["xkey"])
    service.publish(frame.reply, _accept()(request).encode())
    judged(t, "plain", wire)


@configured(ENCRYPTED)
def an_answer_encrypted_to_another(t: Script) -> None:
    service = _service(t)
    wire = t.connect_bare()
    wire.connect({"user": "bob"}, b"PING\r\n")
    frame, request = _asked(service)
    service.publish(frame.reply, CURVE.seal(_accept()(request).encode(), CurveKey("another").public))
    judged(t, "to another", wire)


@table([("APP", "APP"), ("AUTH", "AUTH"), ("OTHER", "OTHER"), ("$G", "$G")], ALLOWED)
def accounts_that_are_allowed(t: Script, account: str) -> None:
    if wire := _decided(t, BOB, _accept(account=account)):
        told(t, wire)


_CLIENTS: list[tuple[str, Fields]] = [
    ("password", BOB),
    ("token", only(auth_token="secret")),
    ("nothing", only()),
    ("everything", only(
        user="u", auth_token="t", jwt="j", sig="s", nkey="n", lang="l", version="v", name="me", **{"pass": "p"}
    )),
    ("key_of_the_configuration", with_nkey(KEYED)),
    ("key_of_nobody", with_nkey(CLIENT)),
    ("user_beside_the_service", only(user="local", **{"pass": "p"})),
    ("user_of_another_account", only(user="member", **{"pass": "p"})),
    ("user_of_the_system_account", only(user="sys", **{"pass": "p"})),
]  # fmt: skip


def _shown(request: Request, *, now: float) -> Request:
    """Return the request without values that differ each time."""
    t = request["nats"]
    request["exp"] = f"iat + {request['exp'] - request['iat']}"
    request["iat"] = abs(request["iat"] - now) < 5
    request["jti"] = len(request["jti"])
    request["iss"] = "<server>" if request["iss"] == t["server_id"]["id"] else request["iss"]
    request["sub"] = request["sub"] if request["sub"] != t["user_nkey"] else "<user_nkey>"
    t["server_id"] = {**t["server_id"], "id": "<server>"}
    t["user_nkey"] = t["user_nkey"][0], len(t["user_nkey"])
    t["client_info"]["id"] = "<id>"
    if "sig" in t["connect_opts"]:
        t["connect_opts"]["sig"] = len(t["connect_opts"]["sig"])
    if "nonce" in t.get("client_info", {}):
        t["client_info"]["nonce"] = len(t["client_info"]["nonce"])
    return request


def _requested(t: Script, fields: Fields) -> None:
    service = _service(t)
    wire = t.connect_bare()
    wire.connect(fields(wire.info.get("nonce", "")), b"PING\r\n")
    try:
        frame, request = _asked(service)
    except WireTimeout:
        judged(t, "nobody is asked", wire)
        return
    t.note("header", sorted(frame.headers))
    if "Nats-Server-Xkey" not in frame.headers:
        head = frame.data.decode().split(".")[0]
        t.note("head", head)
    t.note("reply", frame.reply.split(".")[0])
    t.note("request", _shown(request, now=time.time()))
    service.publish(frame.reply, b"")
    judged(t, "CONNECT", wire)


@table(_CLIENTS, PLAIN)
def requests(t: Script, fields: Fields) -> None:
    _requested(t, fields)


@table([row for row in _CLIENTS if row[0] in ("password", "nothing")], ENCRYPTED)
def encrypted_requests(t: Script, fields: Fields) -> None:
    _requested(t, fields)


@table([("sentinel", SENTINEL), ("bearer", BEARER)], OPERATED_ANY)
def operated_requests(t: Script, fields: Fields) -> None:
    _requested(t, fields)


@configured(PLAIN)
def the_service_itself_is_not_asked_about(t: Script) -> None:
    wire = attempt(t, "the service", only(user="auth", **{"pass": "p"}))
    assert wire
    told(t, wire)
    attempt(t, "with a wrong password", only(user="auth", **{"pass": "x"}))


@configured(PLAIN)
def without_the_service_nobody_gets_in(t: Script) -> None:
    began = time.monotonic()
    attempt(t, "CONNECT", BOB)
    t.note("after a second", 0.8 < time.monotonic() - began < 1.8)


@configured(PLAIN)
def a_service_that_is_silent(t: Script) -> None:
    service = _service(t)
    wire = t.connect_bare()
    wire.connect({"user": "bob"}, b"PING\r\n")
    frame, request = _asked(service)
    judged(t, "CONNECT", wire)
    service.publish(frame.reply, _accept()(request).encode())
    t.frames("a late answer", service.ping())


@configured(PLAIN)
def what_comes_before_the_answer_waits(t: Script) -> None:
    service = _service(t)
    wire = t.connect_bare()
    wire.connect({"user": "bob"}, b"SUB a 1\r\n" + pub("a", b"m") + b"PING\r\n")
    frame, request = _asked(service)
    service.publish(frame.reply, _accept()(request).encode())
    t.frames("CONNECT", heard(wire))


@configured(PLAIN)
def a_token_that_expires_ends_the_connection(t: Script) -> None:
    wire = _decided(t, BOB, lambda request: _accept(claims={"exp": int(time.time()) + 2})(request))
    assert wire
    t.frames("until closed", heard(wire))


@configured(PLAIN)
def a_second_connect_is_decided_too(t: Script) -> None:
    service = _service(t)
    wire = t.connect_bare()
    for number, answer in enumerate((_accept(pub={"allow": ["a"]}), _accept(pub={"allow": ["b"]}))):
        wire.connect({"user": f"bob{number}"}, b"PING\r\n")
        frame, request = _asked(service)
        service.publish(frame.reply, answer(request).encode())
        t.frames(f"CONNECT {number}", heard(wire))
        fenced(t, wire, "PUB a", pub("a", b"m"))


@configured(PLAIN)
def clients_may_not_ask(t: Script) -> None:
    """The callout subject is reserved in the account of the service alone."""
    service = _service(t)
    service.publish("$SYS.REQ.USER.AUTH", b"x")
    t.frames("in the account of the service", service.ping())
    wire = t.connect_bare()
    wire.connect({"user": "bob"}, b"PING\r\n")
    frame, request = _asked(service)
    service.publish(frame.reply, _accept()(request).encode())
    heard(wire)
    wire.publish("$SYS.REQ.USER.AUTH", b"x")
    wire.ping()
    t.frames("in another", service.ping())


def _secured(verify: str) -> Setup:
    files = f'cert_file: "{PLACE}/server.pem", key_file: "{PLACE}/server.key", ca_file: "{PLACE}/ca.pem"'
    return Setup(f"tls {{ {files}, verify: {verify} }}\n{_config('').config}", ())


def _told_of_tls(t: Script, certificate: str) -> None:
    secure = t.secure(certificate)
    service = t.connect_bare(secure=secure)
    service.connect({"user": "auth", "pass": "p"}, b"PING\r\n")
    t.frames("service", heard(service))
    service.subscribe("$SYS.REQ.USER.AUTH")
    service.ping()
    wire = t.connect_bare(secure=secure)
    wire.connect({"user": "bob"}, b"PING\r\n")
    frame, request = _asked(service)
    told = request["nats"]["client_tls"]
    told["cipher"] = told["cipher"].startswith("TLS_")  # up to both libraries
    told["verified_chains"] = [
        [x509.load_pem_x509_certificate(pem.encode()).subject.rfc4514_string() for pem in chain]
        for chain in told.get("verified_chains", ())
    ]
    t.note("TLS", told)
    service.publish(frame.reply, b"")
    judged(t, "CONNECT", wire)


@configured(_secured("true"))
def a_request_tells_of_tls(t: Script) -> None:
    _told_of_tls(t, "odd")


@table([("certificate", "odd"), ("none", "")], _secured("optional"))
def a_request_tells_of_tls_that_asks_for_certificates(t: Script, certificate: str) -> None:
    _told_of_tls(t, certificate)


@configured(Setup(f"http: '127.0.0.1:-1'\n{_config('').config}", ()))
def who_was_let_in_is_shown(t: Script) -> None:
    wire = _decided(t, BOB, _accept())
    assert wire
    [page] = t.server.page(f"/connz?auth=1&cid={wire.info['client_id']}")["connections"]
    t.note("connz", {key: page.get(key) for key in ("authorized_user", "account", "issuer_key", "name_tag", "jwt")})


# ---------------------------------------------------------------------- operator mode


def _bound(signer: Any, account: Any = APP, **nats: Any) -> Answer:
    """Return an answer with a user of an account of the operator."""
    fields = {"issuer_account": account.public} if signer is not account else {}
    return lambda request: _answer(request, AUTH, jwt=_token(request, signer, None, **{**fields, **nats}))


_OPERATED: list[tuple[str, Answer]] = [
    ("of_the_account", _bound(APP)),
    ("of_its_signing_key", _bound(APP_SIGNER)),
    ("of_its_scope", lambda r: _answer(r, AUTH, jwt=APP_SCOPE.signed(
        r["nats"]["user_nkey"], "bob", {"type": "user", "issuer_account": APP.public}
    ))),
    ("of_the_account_of_the_service", lambda r: _answer(r, AUTH, jwt=_token(r, AUTH, None))),
    ("of_an_account_that_is_not_allowed", _bound(OUTSIDE, OUTSIDE)),
    ("of_a_stranger", _bound(STRANGER, STRANGER)),
    ("by_audience", lambda r: _answer(r, AUTH, jwt=_token(r, AUTH, APP.public))),
    ("answer_of_another_account", lambda r: _answer(r, APP, jwt=_token(r, APP, None))),
    ("an_error", lambda r: _answer(r, AUTH, error="not today")),
    ("garbage", lambda r: "garbage"),
    ("with_permissions", _bound(APP, pub={"allow": ["a", "$SYS.REQ.USER.INFO"]}, sub={"allow": ["_INBOX.>"]})),
]  # fmt: skip


@table([(f"{kind}_{name}", fields, answer) for kind, fields in (("sentinel", SENTINEL), ("bearer", BEARER))
        for name, answer in _OPERATED], OPERATED)  # fmt: skip
def operated_answers(t: Script, fields: Fields, answer: Answer) -> None:
    if wire := _decided(t, fields, answer):
        told(t, wire)
        user_info(t, wire)
        may(t, wire, ("a", "b"))


@table(_OPERATED[:2] + _OPERATED[4:5], OPERATED_ENCRYPTED)
def operated_encrypted_answers(t: Script, answer: Answer) -> None:
    if wire := _decided(t, SENTINEL, answer):
        told(t, wire)


@table(
    [
        ("nothing", only()),
        ("password", BOB),
        ("a_user_of_another_account", with_token(CLIENT, user_jwt(CLIENT, "c", APP))),
        ("a_token_of_a_stranger", with_token(CLIENT, user_jwt(CLIENT, "c", STRANGER))),
        ("a_wrong_signature", only(jwt=user_jwt(CLIENT, "c", AUTH), sig="x")),
        ("an_expired_sentinel", with_token(CLIENT, user_jwt(CLIENT, "c", AUTH, claims={"exp": ISSUED_AT + 1}))),
        ("the_service", with_token(SERVICE, user_jwt(SERVICE, "c", AUTH))),
    ],
    OPERATED,
)
def operated_logins_that_are_not_asked_about(t: Script, fields: Fields) -> None:
    if wire := attempt(t, "CONNECT", fields):
        told(t, wire)


@table(
    [
        ("nothing", only()),
        ("password", BOB),
        ("the_sentinel", SENTINEL),
        ("a_user_of_another_account", with_token(CLIENT, user_jwt(CLIENT, "c", APP))),
        ("a_token_of_a_stranger", with_token(CLIENT, user_jwt(CLIENT, "c", STRANGER))),
    ],
    SENTINELED,
)
def a_sentinel_for_those_without_a_token(t: Script, fields: Fields) -> None:
    _requested(t, fields)


@configured(SENTINELED)
def a_leaf_node_is_asked_about(t: Script) -> None:
    service = _service(t)
    fields = {"jwt": BEARER_TOKEN, "user": "leafy"}
    peer = t.keep(LeafPeer((t.server.host, t.server.leaf_port), fields, timeout=t.timeout))
    frame, request = _asked(service)
    t.note("request", _shown(json.loads(json.dumps(request)), now=time.time()))
    service.publish(frame.reply, _bound(APP)(request).encode())
    t.note("told", shown(peer.heard()))
    t.note("account", peer.infos[-1]["remote_account"])
