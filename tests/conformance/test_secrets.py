"""Secrets of logins of every kind, which no log line, page, event or error may show."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

import bcrypt
import pytest

from tests.conformance.leaf_peer import LeafPeer
from tests.conformance.scenarios.callouts import ISSUER, accepted
from tests.conftest import StartServer
from tests.keys import (
    Key,
    account_jwt,
    account_key,
    claims_of,
    creds,
    operator_config,
    operator_jwt,
    operator_key,
    proof,
    user_jwt,
    user_key,
)
from tests.servers import Kind, Server
from tests.websocket import WebSocket
from tests.wire import Closed, Wire, WireTimeout

pytestmark = pytest.mark.conformance

PAGES = ("varz", "connz?auth=1&subs=detail&state=any", "accountz", "accstatz?unused=1", "subsz?subs=1", "leafz?subs=1")
LOUD = "http: '127.0.0.1:-1'\ndebug: true\ntrace: true\n"
OPEN = "websocket { host: 127.0.0.1, port: -1, no_tls: true, WEB }\nleafnodes { host: 127.0.0.1, port: -1, LEAF }\n"
TAP = ("$SYS.ACCOUNT.>", "$SYS.SERVER.>")

Fields = Mapping[str, Any] | Callable[[dict[str, Any]], Mapping[str, Any]]


class Seen:
    """Everything that a server tells: to clients, to the system account, on its pages and in its log."""

    def __init__(self, server: Server, tap: Wire) -> None:
        self._server, self._tap = server, tap
        self._texts: list[str] = []
        self.admitted: list[bool] = []
        for subject in TAP:
            tap.subscribe(subject)
        tap.ping()

    def keep(self, text: str) -> None:
        """Add what a client was told."""
        self._texts.append(text)

    def client(self, fields: Fields, *, over: WebSocket | None = None) -> None:
        """Log a client in; errors are kept, and it asks who it is."""
        wire = Wire(self._server.address, None, timeout=3, opened=over)
        given = fields(wire.info) if callable(fields) else fields
        try:
            wire.connect(dict(given))
            wire.ping()
            self._texts.append(repr(wire.request("$SYS.REQ.USER.INFO", b"", timeout=3)))
            self._pages()
            self.admitted.append(True)
        except (Closed, WireTimeout, AssertionError) as error:
            self._texts.append(repr(error))
            self.admitted.append(False)
        finally:
            self._texts.append(repr(list(wire.waiting)) + repr(wire.info))
            wire.close()

    def leaf(self, fields: Fields) -> None:
        """Log a leaf node in."""
        peer = LeafPeer((self._server.host, self._server.leaf_port), fields)
        peer.send(b"PING\r\n")
        with contextlib.suppress(OSError, AssertionError, TimeoutError):
            self._texts.append(repr(peer.heard(b"PING\r\n")))
        self._texts.append(repr(peer.infos))
        self._pages()
        peer.close()

    def _pages(self) -> None:
        accounts = [one["name"] if isinstance(one, dict) else one for one in self._server.page("/accountz")["accounts"]]
        for page in (*PAGES, *(f"accountz?acc={name}" for name in accounts)):
            url = f"http://{self._server.host}:{self._server.http_port}/{page}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                self._texts.append(answer.read().decode())

    def texts(self) -> str:
        """Return all of it."""
        self._pages()
        for page in ("CONNZ", "VARZ", "ACCOUNTZ"):
            self._texts.append(repr(self._tap.request(f"$SYS.REQ.SERVER.PING.{page}", b'{"auth":true}')))
        self._tap.ping()
        self._texts.append("\n".join(repr(frame) for frame in self._tap.waiting))
        said = [line for line in self._server.log(100_000).splitlines() if not line.startswith("---")]
        return "\n".join([*self._texts, *said])


def _check(seen: Seen, secrets: list[str]) -> None:
    shown = seen.texts()
    assert "authentication error" in shown, "failed logins are in the log"
    assert '"reason"' in shown, "and in events and pages"
    assert [secret for secret in secrets if secret in shown] == []


def test_configured_secrets_are_shown_nowhere(start_server: StartServer) -> None:
    nkey, stranger = user_key("nkey"), user_key("stranger")
    hashed = bcrypt.hashpw(b"s3cret-hashed", bcrypt.gensalt(4)).decode()
    users = f"{{user: plain, password: s3cret-plain}}, {{user: hashed, password: '{hashed}'}}, {{nkey: {nkey.public}}}"
    config = (
        f"{LOUD}accounts {{ A {{ users: [{users}] }}, SYS {{ users: [{{user: sys, password: s3cret-sys}}] }} }}\n"
        "system_account: SYS\n"
        + OPEN.replace("WEB", "user_cookie: u, pass_cookie: p, token_cookie: t, jwt_cookie: j").replace(
            "LEAF", "authorization { user: leaf, password: s3cret-leaf, account: A }"
        )
    )
    server = start_server(of=Kind.OURS, config=config.replace(", jwt_cookie: j", ""), jetstream=False)
    with Wire(server.address, {"user": "sys", "pass": "s3cret-sys"}) as tap:
        seen = Seen(server, tap)
        for fields in (
            {"user": "plain", "pass": "s3cret-plain"},
            {"user": "plain", "pass": "s3cret-wrong"},
            {"user": "hashed", "pass": "s3cret-hashed"},
            {"user": "hashed", "pass": "s3cret-wrong"},
            {"auth_token": "s3cret-token"},
            {"jwt": "s3cret-jwt"},
        ):
            seen.client(fields)
        for key in (nkey, stranger):
            seen.client(lambda info, key=key: proof(key, info["nonce"]))  # type: ignore[misc]
        assert seen.admitted == [True, False, True, False, False, False, True, False]
        for password in ("s3cret-plain", "s3cret-wrong"):
            cookie = f"u=plain; p={password}; t=s3cret-cookie"
            socket = WebSocket((server.host, server.websocket_port), {"Cookie": cookie})
            seen.client({}, over=socket)
        assert seen.admitted[-2:] == [True, False]
        for password in ("s3cret-leaf", "s3cret-wrong"):
            seen.leaf({"user": "leaf", "pass": password})
        _check(seen, ["s3cret", hashed, hashed[-20:], nkey.seed, stranger.seed])


def test_the_token_of_a_server_is_shown_nowhere(start_server: StartServer) -> None:
    config = f"{LOUD}authorization {{ token: s3cret-token }}\n"
    server = start_server(of=Kind.OURS, config=config, jetstream=False)
    for token in ("s3cret-token", "s3cret-wrong"):
        wire = Wire(server.address, None, timeout=3)
        with contextlib.suppress(Closed, WireTimeout):
            wire.connect({"auth_token": token})
            wire.ping()
        for page in PAGES:
            url = f"http://{server.host}:{server.http_port}/{page}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                assert "s3cret" not in answer.read().decode()
        assert "s3cret" not in repr(list(wire.waiting))
        wire.close()
    server.stop()  # all that it logged has been read then
    said = [line for line in server.log(10_000).splitlines() if not line.startswith("---")]
    assert any("authentication error" in line for line in said)
    assert not [line for line in said if "s3cret" in line]


def test_tokens_of_users_are_shown_nowhere(start_server: StartServer) -> None:
    operator, account, system = operator_key("secrets"), account_key("secrets"), account_key("secrets system")
    user, system_user = user_key("secrets user"), user_key("secrets system user")
    tokens = {system.public: account_jwt(system, "SYS", operator), account.public: account_jwt(account, "A", operator)}
    more = LOUD + OPEN.replace("WEB", "jwt_cookie: j").replace("LEAF", "")
    config = operator_config(operator_jwt(operator, system_account=system.public), tokens, system.public, more)
    server = start_server(of=Kind.OURS, config=config, jetstream=False)
    bearer = user_jwt(user, "bearer", account, bearer_token=True)
    dead_bearer = user_jwt(user, "old", account, bearer_token=True, claims={"exp": 1})
    signed, dead = user_jwt(user, "user", account), user_jwt(user, "dead", account, claims={"exp": 1})

    def of(key: Key, token: str) -> Fields:
        return lambda info: proof(key, info["nonce"], token)

    tap = Wire(server.address, None)
    tap.connect(dict(proof(system_user, tap.info["nonce"], user_jwt(system_user, "sys", system))))
    with tap:
        seen = Seen(server, tap)
        for fields in (of(user, signed), of(user, dead), {"jwt": bearer}, {"jwt": dead_bearer}, {"jwt": signed}):
            seen.client(fields)
        assert seen.admitted == [True, False, True, False, False]
        for token in (bearer, dead_bearer):
            seen.client({}, over=WebSocket((server.host, server.websocket_port), {"Cookie": f"j={token}"}))
        assert seen.admitted[-2:] == [True, False]
        for token in (signed, dead):
            seen.leaf(of(user, token))
        seen.leaf({"jwt": bearer})
        texts = [bearer, dead_bearer, dead]
        _check(seen, [user.seed, system_user.seed, creds(signed, user), *texts, *(one.split(".")[2] for one in texts)])


def test_passwords_of_a_callout_are_shown_nowhere(start_server: StartServer) -> None:
    config = (
        f"{LOUD}authorization {{ auth_callout {{ issuer: {ISSUER.public}, auth_users: [auth, sys], "
        "account: AUTH } }\n"
        "accounts { AUTH { users: [{user: auth, password: s3cret-auth}] }, APP {}, "
        "SYS { users: [{user: sys, password: s3cret-sys}] } }\nsystem_account: SYS\n"
    )
    server = start_server(of=Kind.OURS, config=config, jetstream=False)
    with (
        Wire(server.address, {"user": "sys", "pass": "s3cret-sys"}) as tap,
        Wire(server.address, {"user": "auth", "pass": "s3cret-auth"}) as service,
    ):
        seen = Seen(server, tap)
        service.subscribe("$SYS.REQ.USER.AUTH")
        service.ping()
        for lets_in in (True, False):
            wire = Wire(server.address, None, timeout=3)
            wire.connect({"user": "bob", "pass": "s3cret-bob", "auth_token": "s3cret-token"}, b"PING\r\n")
            frame = service.message("$SYS.REQ.USER.AUTH")
            answer = accepted(claims_of(frame.data.decode())) if lets_in else "s3cret-answer"
            service.publish(frame.reply, answer.encode())
            with contextlib.suppress(Closed, WireTimeout):
                wire.until("PONG")
            seen.keep(repr(list(wire.waiting)))
            wire.close()
        _check(seen, ["s3cret"])
