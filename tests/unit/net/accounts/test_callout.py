"""Auth callouts without a server: requests and answers, and requests under way."""

from __future__ import annotations

from typing import Any

import pytest

from lakestream.config.account_options import (
    AccountOptions,
    CalloutOptions,
    Permissions,
    SubjectRule,
)
from lakestream.config.options import Options
from lakestream.logging import Logger
from lakestream.net.accounts import callout
from lakestream.net.accounts.auth import CALLOUT_SUBJECT, REFUSED, Credentials, Login, Outcome, Refusal
from lakestream.net.accounts.callout import Asker, Callouts, ConfiguredRuling, request_of
from lakestream.net.hub import Hub
from lakestream.net.identity import Identity
from lakestream.net.turn import Turn
from lakestream.ports import ClientInfo, Single, singly
from lakestream.protocol import headers
from lakestream.protocol.nkeys import SERVER, new_curve_key, new_key
from tests.keys import NO_LIMITS, account_key, callout_response, claims_of
from tests.unit.api_world import WaitingClock

pytestmark = pytest.mark.unit

ISSUER, SERVICE = account_key("callout issuer"), new_curve_key()
KEY, CURVE = new_key(SERVER), new_curve_key()
SECOND = 1_000_000_000


def _asker() -> Asker:
    identity = Identity(KEY.public, "name", "127.0.0.1", 4222, 1 << 20, False, "", True)
    return Asker(identity=identity, key=KEY, xkey=CURVE, cluster="C", tags=("a", "b"))


def _ruling(xkey: str = "") -> ConfiguredRuling:
    options = CalloutOptions(issuer=ISSUER.public, users=("auth",), account="AUTH", xkey=xkey)
    default = Permissions(subscribe=SubjectRule(allow=("d",)))
    accounts = (AccountOptions(name="AUTH", default_permissions=default), AccountOptions(name="APP"))
    return ConfiguredRuling(options, Options(accounts=accounts, callout=options))


def _given(**connect: Any) -> Credentials:
    return Credentials.of(connect, nonce="n", kind="STANDARD", host="1.2.3.4", id=7)


class World:
    """A hub with a service that keeps requests, and the outcomes of logins."""

    def __init__(self) -> None:
        self.hub = Hub(Turn(lambda callback: None), Logger(), "AUTH")
        self.clock = WaitingClock()
        self.asked: list[tuple[bytes, bytes]] = []
        self.outcomes: list[Outcome] = []
        self.hub.subscribe(CALLOUT_SUBJECT, singly(self._ask))
        self.callouts = Callouts(lambda name: self.hub, _asker, lambda: 2 * SECOND, self.clock, Logger())

    def _ask(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        self.asked.append((reply, payload))

    def login(self, **connect: Any) -> None:
        self.callouts.ask(_ruling(), _given(**connect), self.outcomes.append)

    def answer(self, number: int, account: str = "APP", **nats: Any) -> None:
        reply, payload = self.asked[number]
        user = claims_of(payload.decode())["nats"]["user_nkey"]
        fields = {"type": "user", "pub": {}, "sub": {}, **NO_LIMITS, **nats}
        token = ISSUER.signed(user, "bob", fields, aud=account)
        self.hub.send(Single(reply, payload=callout_response(user, KEY.public, ISSUER, jwt=token).encode()))


def test_a_login_takes_the_first_answer() -> None:
    world = World()
    world.login(user="bob")
    world.login(user="eve")
    world.answer(1)
    world.answer(1, pub={"allow": ["a"]})
    [login] = world.outcomes
    assert isinstance(login, Login)
    assert login.user is not None
    assert (login.account, login.user.name, login.user.permissions) == ("APP", "eve", None)


def test_without_an_answer_in_time_a_login_is_refused() -> None:
    world = World()
    world.login(user="bob")
    world.clock.advance(2 * SECOND)
    assert world.outcomes == [REFUSED]
    world.answer(0)
    assert world.outcomes == [REFUSED]


def test_so_many_logins_may_wait() -> None:
    world = World()
    for _ in range(callout.MAX_CALLOUTS + 1):
        world.login(user="bob")
    assert len(world.asked) == callout.MAX_CALLOUTS
    assert world.outcomes == [REFUSED]
    world.answer(0)
    world.login(user="bob")
    assert len(world.asked) == callout.MAX_CALLOUTS + 1


def test_an_answer_that_is_too_long_is_a_refusal() -> None:
    world = World()
    world.login(user="bob")
    world.hub.send(Single(world.asked[0][0], payload=b"x" * (callout.MAX_ANSWER_BYTES + 1)))
    [refusal] = world.outcomes
    assert isinstance(refusal, Refusal)
    assert "longer than" in refusal.warnings[0]


def test_users_beside_the_service_neither_ask_nor_hear_and_keep_the_default_permissions() -> None:
    world = World()
    world.login(user="bob")
    world.answer(0, account="AUTH")
    [login] = world.outcomes
    assert isinstance(login, Login)
    assert login.user is not None
    assert login.user.permissions == Permissions(
        publish=SubjectRule(deny=("$SYS.REQ.USER.AUTH", "$SYS._INBOX.>")),
        subscribe=SubjectRule(allow=("d",), deny=("$SYS.REQ.USER.AUTH", "$SYS._INBOX.>")),
    )


def test_a_request_to_a_curve_key_is_encrypted() -> None:
    request = request_of(_ruling(SERVICE.public), _asker(), _given(user="bob", **{"pass": "p"}), SECOND, 2 * SECOND)
    assert b"pass" not in request.payload
    sender = headers.get(request.header, b"Nats-Server-Xkey")
    assert sender == CURVE.public.encode()
    claims = claims_of(SERVICE.open(request.payload, sender.decode()).decode())
    assert claims["iss"] == KEY.public
    assert claims["nats"]["server_id"]["xkey"] == CURVE.public
    assert claims["nats"]["connect_opts"] == {"user": "bob", "pass": "p"}


def test_a_request_names_the_server_and_the_client() -> None:
    claims = claims_of(request_of(_ruling(), _asker(), _given(auth_token="t"), SECOND, 2 * SECOND).payload.decode())
    assert (claims["iat"], claims["exp"]) == (1, 3)
    assert {key: claims["nats"]["server_id"][key] for key in ("cluster", "tags")} == {
        "cluster": "C",
        "tags": ["a", "b"],
    }
    assert claims["nats"]["client_info"] == {
        "host": "1.2.3.4", "id": 7, "user": "[REDACTED]", "kind": "Client", "type": "nats"
    }  # fmt: skip
