"""Tests of accounts: the account and hub of a client, and limits of connections."""

from __future__ import annotations

import pytest

from lakestream.config.account_options import AccountLimits, AccountOptions, ServiceImport, StreamImport, User
from lakestream.config.options import JetStreamOptions, Options
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Accounts
from lakestream.net.accounts.auth import (
    ANYBODY,
    REFUSED,
    STANDARD,
    Authenticator,
    Credentials,
    HashChecks,
    Login,
    Refusal,
)
from lakestream.net.turn import Turn
from lakestream.ports import Single, singly
from lakestream.protocol.accounts import UNLIMITED, JetStreamLimits
from tests.keys import proof, user_key

pytestmark = pytest.mark.unit

ANN, BOB, SID = User("ann", "a"), User("bob", "b"), User("sid", "s")
A = AccountOptions(name="A", users=(ANN,), jetstream=JetStreamLimits(max_streams=3))
B = AccountOptions(name="B", users=(BOB,))
SYS = AccountOptions(name="SYS", users=(SID,))
STORE = JetStreamOptions(store_dir="/nowhere", max_memory=1, max_file=1)


def accounts(options: Options) -> Accounts:
    return Accounts(options, Turn(lambda callback: None), Logger())


@pytest.mark.parametrize(
    ("options", "connect", "login"),
    [
        (Options(), {}, ANYBODY),
        (Options(), {"user": "who", "pass": "ever"}, ANYBODY),
        (Options(token="t"), {"auth_token": "t"}, ANYBODY),
        (Options(token="t"), {}, None),
        (Options(users=(BOB,)), {"user": "bob", "pass": "b"}, Login("$G", BOB)),
        (Options(users=(BOB,)), {}, None),
        (Options(accounts=(A, B)), {"user": "ann", "pass": "a"}, Login("A", ANN)),
        (Options(accounts=(A, B)), {"user": "bob", "pass": "b"}, Login("B", BOB)),
        (Options(accounts=(A, B)), {"user": "ann", "pass": "b"}, None),
        (Options(accounts=(A, B)), {"user": "ann"}, None),
        (Options(accounts=(A, B)), {}, None),
        (Options(accounts=(A, B), no_auth_user="bob"), {}, Login("B", BOB)),
        (Options(accounts=(A, B), no_auth_user="bob"), {"user": "ann", "pass": "a"}, Login("A", ANN)),
        (Options(accounts=(A, B), no_auth_user="bob"), {"user": "who", "pass": "a"}, None),
        (Options(accounts=(SYS,), system_account="SYS"), {}, ANYBODY),
        (Options(accounts=(SYS,), system_account="SYS"), {"user": "sid", "pass": "s"}, Login("SYS", SID)),
        (Options(accounts=(SYS,), system_account="SYS"), {"user": "who", "pass": "s"}, None),
        (Options(accounts=(SYS,), system_account="SYS", users=(BOB,)), {}, None),
        (Options(accounts=(AccountOptions(name="EMPTY"),)), {}, ANYBODY),
    ],
)
def test_the_account_and_user_of_a_client(options: Options, connect: dict[str, str], login: Login | None) -> None:
    credentials = Credentials.of(connect, nonce="", kind=STANDARD, host="")
    assert Authenticator(options, HashChecks()).check(credentials) == (login or REFUSED)


ANN_KEY = user_key("ann")
WITH_KEY = User("", "", nkey=ANN_KEY.public)
OVER_WEBSOCKET = User("web", "w", connection_types=("WEBSOCKET",))
WITH_KEYS = Options(users=(WITH_KEY, BOB, OVER_WEBSOCKET))


@pytest.mark.parametrize(
    ("connect", "nonce", "kind", "outcome"),
    [
        (proof(ANN_KEY, "n"), "n", STANDARD, Login("$G", WITH_KEY)),
        (proof(ANN_KEY, "n") | {"user": "bob", "pass": "x"}, "n", STANDARD, Login("$G", WITH_KEY)),
        (proof(ANN_KEY, "n"), "m", STANDARD, Refusal("Signature not verified")),
        (proof(ANN_KEY, ""), "", STANDARD, Refusal("Signature not verified")),
        ({"nkey": ANN_KEY.public}, "n", STANDARD, Refusal("Signature missing")),
        ({"nkey": ANN_KEY.public, "sig": "!"}, "n", STANDARD, Refusal("Signature not valid base64")),
        (proof(user_key("bob"), "n"), "n", STANDARD, REFUSED),
        (proof(user_key("bob"), "n") | {"user": "bob", "pass": "b"}, "n", STANDARD, REFUSED),
        ({"user": ANN_KEY.public, "pass": ""}, "n", STANDARD, REFUSED),
        ({"user": "web", "pass": "w"}, "n", STANDARD, REFUSED),
        ({"user": "web", "pass": "w"}, "n", "WEBSOCKET", Login("$G", OVER_WEBSOCKET)),
    ],
)
def test_users_with_keys(connect: dict[str, str], nonce: str, kind: str, outcome: Login | Refusal) -> None:
    authenticator = Authenticator(WITH_KEYS, HashChecks())
    assert authenticator.challenges
    assert authenticator.check(Credentials.of(connect, nonce=nonce, kind=kind, host="")) == outcome


def test_the_user_without_credentials_may_have_a_key() -> None:
    authenticator = Authenticator(Options(users=(WITH_KEY,), no_auth_user=ANN_KEY.public), HashChecks())
    assert authenticator.anonymous == Login("$G", WITH_KEY)


@pytest.mark.parametrize(
    ("connect", "known", "shown"),
    [
        ({}, "", ""),
        ({"auth_token": "secret"}, "", 'Token "[REDACTED]"'),
        ({"user": "ann", "pass": "secret"}, "", 'User "ann"'),
        ({"user": "ann", "jwt": "secret"}, "", 'User "ann"'),
        ({"user": "ann", "jwt": "secret"}, "UABC", 'JWT User "UABC"'),
        ({"nkey": "UABC", "user": "ann", "jwt": "secret", "sig": "secret"}, "U", 'Nkey "UABC"'),
    ],
)
def test_what_the_log_shows_of_credentials(connect: dict[str, str], known: str, shown: str) -> None:
    assert Credentials.of(connect, nonce="", kind=STANDARD, host="").shown(known) == shown


@pytest.mark.parametrize(
    ("options", "jetstream"),
    [
        (Options(), {"$G": None, "$SYS": None}),
        (Options(jetstream=STORE), {"$G": UNLIMITED, "$SYS": None}),
        (Options(jetstream=STORE, accounts=(SYS,), system_account="SYS"), {"$G": UNLIMITED, "SYS": None}),
        (Options(jetstream=STORE, accounts=(A, B)), {"$G": None, "$SYS": None, "A": A.jetstream, "B": None}),
        (Options(accounts=(A, B)), {"$G": None, "$SYS": None, "A": None, "B": None}),
    ],
)
def test_which_accounts_have_jetstream(options: Options, jetstream: dict[str, JetStreamLimits | None]) -> None:
    assert {account.name: account.jetstream for account in accounts(options)} == jetstream


def test_the_global_account_sees_to_the_server_until_one_is_configured() -> None:
    assert accounts(Options()).alone
    assert not accounts(Options(accounts=(A,))).alone
    assert not accounts(Options(accounts=(SYS,), system_account="SYS")).alone
    assert accounts(Options(accounts=(SYS,), system_account="SYS")).system.name == "SYS"


def test_an_account_takes_no_more_clients_than_it_may() -> None:
    class Client:
        def __init__(self, number: int) -> None:
            self.id = number

    few = accounts(Options(accounts=(AccountOptions(name="F", limits=AccountLimits(max_connections=2)),))).of("F")
    first, second, third = Client(1), Client(2), Client(3)
    assert few.admit(first)  # type: ignore[arg-type]
    assert few.admit(second)
    assert not few.admit(third)  # type: ignore[arg-type]
    assert few.admit(first), "who is in already counts once"  # type: ignore[arg-type]
    few.forget(second)  # type: ignore[arg-type]
    assert few.admit(third)  # type: ignore[arg-type]


def test_the_hubs_of_two_accounts_know_nothing_of_each_other() -> None:
    both = accounts(Options(accounts=(A, B)))
    heard: list[str] = []
    both.bus("A").subscribe(b"s", singly(lambda *_: heard.append("A")))
    both.bus("B").subscribe(b"s", singly(lambda *_: heard.append("B")))
    assert both.bus("A").send(Single(b"s", payload=b"x"))
    assert heard == ["A"]
    assert not both.default.hub.send(Single(b"s", payload=b"x"))


def test_accounts_come_and_go_with_the_configuration() -> None:
    some = accounts(Options(jetstream=STORE, accounts=(A,)))
    hub = some.of("A").hub
    assert some.configure(Options(jetstream=STORE, accounts=(A, B))) == []
    assert some.of("A").hub is hub, "who is connected stays"
    (gone,) = some.configure(Options(jetstream=STORE, accounts=(B,)))
    assert (gone.name, gone.jetstream) == ("A", None)


def test_what_only_another_node_knows_has_a_hub_and_nothing_else() -> None:
    there = accounts(Options(jetstream=STORE)).of("ELSEWHERE")
    assert there.jetstream is None
    assert not there.connections
    assert not there.hub.send(Single(b"s"))


@pytest.mark.parametrize(
    ("one", "own", "replaces"),
    [
        (ServiceImport(account="A", subject="$JS.API.>"), True, True),
        (ServiceImport(account="A", subject="x.>", to="$JS.API.>"), True, True),
        (ServiceImport(account="A", subject="$JS.API.>", to="js.a.>"), True, False),
        (ServiceImport(account="A", subject="$JS.API.INFO"), True, False),
        (StreamImport(account="A", subject="$JS.API.>"), True, False),
        (ServiceImport(account="A", subject="$JS.API.>"), False, True),
        (ServiceImport(account="A", subject="$JS.API.INFO"), False, True),
        (ServiceImport(account="A", subject="$JS.API.*"), False, True),
        (ServiceImport(account="A", subject="x", to="$JS.API.INFO"), False, True),
        (ServiceImport(account="A", subject="$JS.API.INFO", to="js.info"), False, False),
        (ServiceImport(account="A", subject="$JS.API.CONSUMER.>"), False, False),
        (StreamImport(account="A", subject="$JS.API.INFO"), False, False),
    ],
)
def test_an_import_replaces_an_accounts_api_or_where_it_has_no_streams_that_of_the_info(
    one: ServiceImport | StreamImport, own: bool, replaces: bool
) -> None:
    options = AccountOptions(name="B", jetstream=UNLIMITED if own else None, imports=(one,))
    these = accounts(Options(accounts=(A, options), jetstream=STORE))
    assert these.replaces_api(these.of("B")) is replaces
