"""Tests of reloads of accounts, with effects on the server and on connected clients. Runs against either program."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.conformance.test_starting import wait_for
from tests.servers import Kind, Server
from tests.wire import Closed, Wire

pytestmark = pytest.mark.conformance

StartServer = Callable[..., Server]

TWO = "accounts { A {users: [{user: a, password: p}%s]%s}, S {users: [{user: s, password: p}]} }\n"
PLAIN = TWO % ("", "")
NAMED = "server_name: under-test\n"
"""Name of the server: at a reload nats-server forgets a name given by a flag, and refuses the change."""


def client(server: Server, user: str = "", password: str = "p") -> Wire:
    """Return a connected client; user "" connects without a user."""
    wire = Wire(server.address, {"user": user, "pass": password, "name": f"client-{user}"} if user else {})
    wire.ping()
    return wire


def account_of(server: Server, user: str, password: str = "p") -> str:
    """Return the account of a user, or the error of the login."""
    with Wire(server.address, {"user": user, "pass": password}) as wire:
        if told := what_became_of(wire):
            return told[0]
        return str(wire.told()[-1]["remote_account"])


def reload(server: Server, text: str) -> str:
    """Have the server reload another configuration; return its last log line about it."""
    assert server.process is not None
    server.write_config(NAMED + text)
    known = len(server.log())

    def said() -> str:
        lines = server.log()[known:].splitlines()
        return next((line for line in lines if "Reloaded server config" in line or "Failed to reload" in line), "")

    server.process.send_signal(signal.SIGHUP)
    return str(wait_for(said))


def what_became_of(wire: Wire) -> list[str]:
    """Return the errors that a client got, and "closed" if it was disconnected."""
    told: list[str] = []
    try:
        wire.send(b"PING\r\n")
        while (frame := wire.next(lambda frame: frame.verb in ("PONG", "-ERR"))).verb != "PONG":
            told.append(frame.text)
    except (Closed, OSError):
        return [*told, *(frame.text for frame in wire.waiting if frame.verb == "-ERR"), "closed"]
    return told


VIOLATION = ["'Authorization Violation'", "closed"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(PLAIN, PLAIN + "ping_max: 3", {"a": [], "s": []}, id="nothing"),
        pytest.param(
            PLAIN, PLAIN.replace("a, password: p", "a, password: q"), {"a": VIOLATION, "s": []}, id="password"
        ),
        pytest.param(TWO % (", {user: b, password: p}", ""), PLAIN, {"a": [], "b": ["closed"]}, id="user-removed"),
        pytest.param(
            PLAIN, PLAIN.replace("A {", "B {", 1), {"a": ["closed"], "s": []}, id="account-gone, user in another"
        ),
        pytest.param(PLAIN, "accounts { S {users: [{user: s, password: p}]} }", {"a": ["closed"], "s": []}, id="gone"),
        pytest.param(PLAIN, "ping_max: 3", {"a": ["closed"], "s": ["closed"]}, id="no-accounts-any-more"),
        pytest.param("ping_max: 3", PLAIN, {"": VIOLATION}, id="users-come"),
        pytest.param(
            "ping_max: 3", 'accounts { "$SYS" {users: [{user: s, password: p}]} }', {"": []}, id="system-users-come"
        ),
        pytest.param(
            "authorization { users: [{user: a, password: p}, {user: b, password: p}] }",
            "authorization { users: [{user: b, password: p}] }",
            {"a": ["closed"], "b": []},
            id="users-of-authorization",
        ),
        pytest.param(
            "authorization { users: [{user: a, password: p}, {user: b, password: p}] }",
            "authorization { users: [{user: b, password: p}] }\naccounts { A {users: [{user: a, password: p}]} }",
            {"a": ["closed"], "b": []},
            id="user-moves-into-an-account",
        ),
        pytest.param(
            PLAIN,
            TWO % ("", ", limits {max_connections: 0}"),
            {"a": ["'maximum account active connections exceeded'", "closed"], "s": []},
            id="no-connections",
        ),
        pytest.param(
            f"no_auth_user: a\n{PLAIN}",
            "no_auth_user: a\n" + PLAIN.replace("a, password: p", "a, password: q"),
            {"": VIOLATION, "a": VIOLATION, "s": []},
            id="password-of-no_auth_user",
        ),
    ],
)
def test_who_may_stay(start_server: StartServer, before: str, after: str, expected: dict[str, list[str]]) -> None:
    server = start_server(config=NAMED + before, jetstream=False)
    clients = {user: client(server, user) for user in expected}
    assert "Reloaded server configuration" in reload(server, after)
    assert {user: what_became_of(wire) for user, wire in clients.items()} == expected


def test_a_token_that_changes(start_server: StartServer) -> None:
    server = start_server(config=NAMED + "authorization { token: t }", jetstream=False)
    with Wire(server.address, {"auth_token": "t"}) as wire:
        wire.ping()
        assert "Reloaded" in reload(server, "authorization { token: t }\nping_max: 3")
        assert what_became_of(wire) == []
        assert "Reloaded" in reload(server, "authorization { token: u }")
        assert what_became_of(wire) == VIOLATION


def test_accounts_and_users_that_come(start_server: StartServer) -> None:
    server = start_server(config=NAMED + PLAIN, jetstream=False)
    stays = client(server, "a")
    both = TWO % (", {user: b, password: p}", "")
    assert "Reloaded" in reload(server, both.replace("S {", "N {users: [{user: n, password: p}]}\nS {"))
    assert [account_of(server, user) for user in ("a", "b", "n", "s")] == ["A", "A", "N", "S"]
    assert account_of(server, "zz") == "'Authorization Violation'"
    assert what_became_of(stays) == []


def test_a_wrong_file_changes_nothing(start_server: StartServer) -> None:
    server = start_server(config=NAMED + PLAIN, jetstream=False)
    stays = client(server, "a")
    for text in (
        "accounts { A {foo: 1} }",
        "accounts { A {imports: [{stream: {account: B, subject: x}}]} }",
        f"no_auth_user: zz\n{PLAIN}",
        f"no_auth_user: a\n{PLAIN}",
        f"system_account: S\n{PLAIN}",
    ):
        assert "Failed to reload" in reload(server, text)
    assert [account_of(server, user) for user in ("a", "s")] == ["A", "S"]
    assert what_became_of(stays) == []


def test_permissions_that_change(start_server: StartServer) -> None:
    server = start_server(config=NAMED + PLAIN, jetstream=False)
    with client(server, "a") as a:
        kept, lost = a.subscribe("kept"), a.subscribe("lost")
        a.ping()
        only = TWO.replace("password: p}", "password: p, permissions: {publish: [kept, lost], subscribe: kept}}", 1)
        assert "Reloaded" in reload(server, only % ("", ""))
        assert what_became_of(a) == [f'\'Permissions Violation for Subscription to "lost" (sid "{lost}")\'']
        a.publish("lost")
        a.publish("kept")
        a.publish("other")
        frames = a.ping()
        assert [frame.sid for frame in frames if frame.verb == "MSG"] == [kept]
        assert [frame.text for frame in frames if frame.verb == "-ERR"] == [
            "'Permissions Violation for Publish to \"other\"'"
        ]
        assert "Reloaded" in reload(server, PLAIN)
        a.publish("other")
        assert a.ping() == []


def test_imports_and_mappings_that_change(start_server: StartServer) -> None:
    server = start_server(config=NAMED + PLAIN, jetstream=False)
    with client(server, "a") as a, client(server, "s") as s:
        sid = a.subscribe("news.>")
        a.ping()
        linked = (TWO % ("", ', imports: [{stream: {account: S, subject: "news.>"}}]')).replace(
            "S {", 'S {exports: [{stream: "news.>"}], mappings: {raw: news.cooked}, '
        )
        for text, heard in ((linked, ["news.cooked"]), (PLAIN, []), (linked, ["news.cooked"])):
            assert "Reloaded" in reload(server, text)
            s.publish("raw", b"1")
            s.ping()
            assert [frame.subject for frame in a.ping() if frame.sid == sid] == heard


def test_jetstream_that_comes_and_goes(start_server: StartServer) -> None:
    server = start_server(config=NAMED + PLAIN)
    with client(server, "a") as a:
        assert a.api("INFO")["error"]["err_code"] == 10039
        assert "Reloaded" in reload(server, TWO % ("", ", jetstream: enabled"))
        assert a.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders"]})["type"].endswith("response")
        assert a.request("orders", b"1").json()["seq"] == 1
        assert "Reloaded" in reload(server, TWO % ("", ", jetstream {max_streams: 1, max_file: 1K}"))
        assert a.api("INFO")["limits"]["max_streams"] == 1
        assert a.api("STREAM.CREATE.MORE", {"name": "MORE", "subjects": ["more"]})["error"]["err_code"] == 10027
        assert a.request("orders", bytes(2000)).json()["error"]["err_code"] == 10002
        assert "Reloaded" in reload(server, PLAIN)
        assert a.api("STREAM.INFO.ORDERS")["error"]["err_code"] == 10039
        assert a.request("orders", b"1").status == 503
        assert "Reloaded" in reload(server, TWO % ("", ", jetstream: enabled"))
        wait_for(lambda: "state" in a.api("STREAM.INFO.ORDERS"))  # opened beside the event loop
        assert a.api("STREAM.INFO.ORDERS")["state"]["messages"] == 1
        assert a.request("orders", b"2").json()["seq"] == 2


def test_the_first_account_of_a_server_with_streams_needs_a_restart(start_server: StartServer) -> None:
    """Adding the first account to a server with streams requires a restart.

    Lakestream only: nats-server takes the streams of the global account out of service then.
    """
    server = start_server(of=Kind.OURS, config=NAMED + "ping_max: 3")
    with client(server) as nobody:
        nobody.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders"]})
        said = reload(server, PLAIN)
        assert "a reload cannot add the first account or remove the last one" in said
        assert nobody.request("orders", b"1").json()["seq"] == 1


def test_an_account_that_goes_and_comes_back_has_its_streams(start_server: StartServer) -> None:
    """An account that is removed and added again has its streams.

    Lakestream only: nats-server keeps running the streams of the removed account, where they cannot be reached.
    """
    served = TWO % ("", ", jetstream: enabled")
    server = start_server(of=Kind.OURS, config=NAMED + served)
    with client(server, "a") as a:
        a.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders"]})
        assert a.request("orders", b"1").json()["seq"] == 1
        assert "Reloaded" in reload(server, "accounts { S {users: [{user: s, password: p}]} }")
        assert what_became_of(a) == ["closed"]
    assert "Reloaded" in reload(server, served)
    with client(server, "a") as a:
        wait_for(lambda: "state" in a.api("STREAM.INFO.ORDERS"))
        assert a.request("orders", b"2").json()["seq"] == 2


def test_reloads_between_publishes_lose_none(start_server: StartServer) -> None:
    """Reloads that change another account, or only limits of this one, lose none of a client's publishes."""
    served = TWO % ("%s", ", jetstream {max_streams: %d}, exports: [{stream: orders}]")
    server = start_server(config=NAMED + served % ("", 1))
    count = 0
    with client(server, "a") as a:
        a.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders"]})
        reply = a.new_reply()
        for turn in range(12):
            for _ in range(50):
                a.publish("orders", b"%d" % turn, reply)
            text = served % (f", {{user: b{turn}, password: p}}", 1 + turn % 3)
            linked = "S {imports: [{stream: {account: A, subject: orders}}], " if turn % 2 else "S {"
            assert "Reloaded" in reload(server, text.replace("S {", linked))
            for _ in range(50):
                count += 1
                assert a.message(reply).json() == {"stream": "ORDERS", "seq": count}
        assert a.ping() == []
        assert account_of(server, "b11") == "A"
        assert account_of(server, "b10") == "'Authorization Violation'"
