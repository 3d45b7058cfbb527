"""Tests of log lines about permission violations, and of reloads of permissions, compared with nats-server."""

from __future__ import annotations

import json
import random
import re
import signal
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import bcrypt
import pytest

from tests.conformance.user_rules import USER_RULES
from tests.conftest import Recorded
from tests.servers import Kind, Server
from tests.wire import Frame, Wire

pytestmark = pytest.mark.conformance

StartServer = Callable[..., Server]
QUIET = '"verbose":false,"pedantic":false,"headers":true,"no_responders":true'
_VIOLATION = re.compile(r"\[ERR\] \S+ - cid:\d+ - (.*Violation.*)$")


def _client(server: Server, user: str, **fields: object) -> Wire:
    wire = Wire(server.address, {"user": user, "pass": "p", **fields})
    wire.ping()
    return wire


def _until(server: Server, text: str) -> str:
    """Poll the server's log until it contains `text`; return it."""
    deadline = time.monotonic() + 10
    while text not in (log := server.log()):
        assert time.monotonic() < deadline, f"{text!r} was not logged"
        time.sleep(0.01)
    return log


def _errors(frames: list[Frame]) -> list[str]:
    return [frame.text for frame in frames if frame.verb == "-ERR"]


# ---------------------------------------------------------------------- the log
def _logged(server: Server) -> list[str]:
    for fields in (
        '"user":"pub_string","pass":"p","name":"nm","lang":"go","version":"1.2.3"',
        '"user":"pub_string","pass":"p","name":"a\\"b"',
        '"user":"pub_string","pass":"p"',
        '"user":"sub_string","pass":"p","lang":"x","version":"2"',
    ):
        with Wire(server.address, None) as wire:
            wire.send(f"CONNECT {{{QUIET},{fields}}}\r\n".encode())
            for subject in (b"no", b"a.b _R_.x", b'n\x01"\xc3\xa9', b"no\xff", b"$NRG.x", b"no _R_.x"):
                wire.send(b"PUB %b 0\r\n\r\n" % subject)
            wire.send(b"SUB no 1\r\nSUB no group 2\r\nSUB a.b _sys_ s3\r\nSUB a..b 4\r\n")
            wire.ping()
    log = _until(server, "SID 4")
    return [match[1] for line in log.splitlines() if (match := _VIOLATION.search(line))]


def test_what_the_log_says_of_who_may_not(start_server: StartServer, recorded: Recorded) -> None:
    """The log line of a violation names the client, its name and language, and its account and user."""
    expected = recorded(lambda: _logged(start_server(of=Kind.REAL, config=USER_RULES.config)))
    got = _logged(start_server(config=USER_RULES.config))
    assert expected
    assert got == expected


def test_the_log_names_nobody_who_did_not_say_who_it_is(start_server: StartServer, recorded: Recorded) -> None:
    def logged(server: Server) -> list[str]:
        for fields in ("", ',"name":"nm"'):
            with Wire(server.address, None) as wire:
                wire.send(f"CONNECT {{{QUIET}{fields}}}\r\n".encode())
                wire.send(b"PUB $NRG.x 0\r\n\r\nPUB x $JS.ACK.y 0\r\n\r\nSUB x _sys_ 1\r\n")
                wire.ping()
        log = _until(server, '"nm" - Subscription Violation')
        return [match[1] for line in log.splitlines() if (match := _VIOLATION.search(line))]

    expected = recorded(lambda: logged(start_server(of=Kind.REAL)))
    assert expected
    assert logged(start_server()) == expected


# ---------------------------------------------------------------------- reload
ACCOUNT = """server_name: under-test
accounts { A { users: [{user: ann, password: p}, {user: bob, password: p}]%s } }"""
ALL = ACCOUNT % ""
LESS = """server_name: under-test
accounts { A { users: [
  {user: ann, password: p, permissions: {subscribe: {deny: ["s.x", "s.>"]}, publish: {deny: "q"}}}
  {user: bob, password: p}
] } }"""


def _reload(server: Server, config: str, *, times: int = 1) -> None:
    assert server.process is not None
    server.write_config(config)
    server.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 10
    while server.log().count("Reloaded server configuration") < times:
        assert time.monotonic() < deadline, server.log(20)
        time.sleep(0.01)


def _taken_away(server: Server) -> list[object]:
    ann, bob = _client(server, "ann"), _client(server, "bob")
    for subject in ("s.>", "free", "s.x", "s.*"):
        ann.subscribe(subject)
    ann.ping()
    _reload(server, LESS)
    told = sorted(_errors(ann.ping()))
    for subject in ("free", "s.x", "s.y"):
        bob.publish(subject)
    bob.ping()
    heard = [[frame.subject, frame.sid] for frame in ann.ping()]
    ann.publish("q")
    ann.subscribe("s.>")
    refused = _errors(ann.ping())
    _reload(server, ALL, times=2)
    ann.publish("q")
    ann.subscribe("s.>")
    free = _errors(ann.ping())
    bob.publish("s.x")
    bob.ping()
    again = sorted([frame.subject, frame.sid] for frame in ann.ping())
    removed = sorted(line.split("[INF] ")[1] for line in server.log().splitlines() if "Removed sub" in line)
    return [told, heard, refused, free, again, removed]


def test_a_reload_takes_permissions_away_and_gives_them_back(start_server: StartServer, recorded: Recorded) -> None:
    expected = recorded(lambda: _taken_away(start_server(of=Kind.REAL, config=ALL)))
    got = _taken_away(start_server(config=ALL))
    assert expected[0]
    assert got == expected


def test_a_reload_maps_for_those_who_are_connected(start_server: StartServer) -> None:
    server = start_server(config=ALL)
    ann = _client(server, "ann")
    ann.subscribe(">")
    for times, (mappings, subject) in enumerate(
        [("", "o"), (', mappings: {"o": "n"}', "n"), (', mappings: {"o": "m"}', "m"), ("", "o")]
    ):
        if times:
            _reload(server, ACCOUNT % mappings, times=times)
        ann.publish("o")
        assert [frame.subject for frame in ann.ping()] == [subject]


def test_a_reload_that_changes_nothing_of_a_user_keeps_its_answers(start_server: StartServer) -> None:
    permissions = "{subscribe: svc, allow_responses: true}"
    config = f"accounts {{ A {{ users: [{{user: ann, password: p, permissions: {permissions}}}%s] }} }}"
    server = start_server(config=config % ", {user: bob, password: p}")
    ann, bob = _client(server, "ann"), _client(server, "bob")
    sid = ann.subscribe("svc")
    ann.ping()
    bob.publish("svc", b"", "back")
    ann.delivered(sid)
    _reload(server, config % ", {user: bob, password: p}, {user: cid, password: p}")
    ann.publish("back")
    assert not ann.ping()
    ann.publish("back")
    assert _errors(ann.ping()) == ["'Permissions Violation for Publish to \"back\"'"]


# ---------------------------------------------------------------------- before CONNECT
def test_who_listens_before_its_connect_keeps_only_what_its_user_may(start_server: StartServer) -> None:
    server = start_server(
        config="""no_auth_user: any
        accounts { A { users: [
          {user: any, password: p}, {user: ann, password: p, permissions: {subscribe: {allow: ["a.>"], deny: "a.no"}}}
        ] }, B { users: [{user: bob, password: p, permissions: {subscribe: "b"}}] } }"""
    )
    for user, kept in (("ann", ["a.yes"]), ("bob", ["b"])):
        with Wire(server.address, None) as wire, _client(server, "any") as any_, _client(server, "bob") as bob:
            wire.send(b"SUB > 1\r\nSUB a.* 2\r\nSUB b 3\r\nPING\r\n")
            wire.until("PONG")
            wire.send(f'CONNECT {{{QUIET},"user":"{user}","pass":"p"}}\r\n'.encode())
            assert len(_errors(wire.ping())) == 3 - len(kept)
            for subject in ("a.yes", "a.no", "b", "c"):
                any_.publish(subject)
                bob.publish(subject)
            any_.ping()
            bob.ping()
            assert [frame.subject for frame in wire.ping()] == kept


def test_a_user_who_may_nothing_can_still_connect(start_server: StartServer) -> None:
    nothing = '{publish: {deny: ">"}, subscribe: {deny: ">"}}'
    server = start_server(config=f"accounts {{ A {{ users: [{{user: ann, password: p, permissions: {nothing}}}] }} }}")
    wire = _client(server, "ann")
    wire.publish("a")
    wire.subscribe("a")
    assert len(_errors(wire.ping())) == 2


# ---------------------------------------------------------------------- a cluster
IN_A_CLUSTER = """cluster { name: X, listen: "127.0.0.1:-1" }
http: "127.0.0.1:-1"
accounts { A { users: [{user: ann, password: p}], mappings: {
  "a": [{dest: a.main, weight: 100%}, {dest: a.here, weight: 100%, cluster: X}
        {dest: a.there, weight: 100%, cluster: Y}]
  "b": [{dest: b.main, weight: 100%}, {dest: b.there, weight: 100%, cluster: Y}]
  "c.*": [{dest: "c.here.$1", weight: 100%, cluster: X}]
  "d.*.>": [{dest: "d.there.$1.>", weight: 30%, cluster: Y}]
  "e.*": [{dest: "e1.$1", weight: 0%}, {dest: "e2.$1", weight: 100%}]
} } }"""


def _mapped(server: Server) -> list[Any]:
    ann = _client(server, "ann")
    ann.subscribe(">")
    ann.ping()
    for subject in ("a", "b", "c.x", "d.x.y", "e.x", "f"):
        ann.publish(subject)
    heard = [frame.subject for frame in ann.ping()]
    url = f"http://127.0.0.1:{server.http_port}/accountz?acc=A"
    with urllib.request.urlopen(url) as page:
        mappings = json.load(page)["account_detail"]["mappings"]
    # nats-server lists the clusters of a subject in undefined order.
    return [heard, {key: sorted(ways, key=lambda way: way.get("cluster", "")) for key, ways in mappings.items()}]


def test_mappings_of_a_cluster(start_server: StartServer, recorded: Recorded) -> None:
    expected = recorded(lambda: _mapped(start_server(of=Kind.REAL, config=IN_A_CLUSTER, jetstream=False)))
    assert expected[0][0] == "a.here"
    assert _mapped(start_server(config=IN_A_CLUSTER, jetstream=False)) == expected


# ---------------------------------------------------------------------- the global account
GLOBAL = """
authorization {
  default_permissions: { publish: "def.>", subscribe: ["def.>", "to.>"] }
  users: [
    {user: ann, password: p}
    {user: bob, password: p, permissions: {publish: {allow: ["b.>", "to.x"], deny: "b.no"}, subscribe: {deny: ">"}}}
  ]
}
mappings: { "from.*": "to.$1" }
"""


def _in_the_global_account(server: Server) -> object:
    ann, bob = _client(server, "ann"), _client(server, "bob")
    said: list[list[Any]] = []
    for wire in (ann, bob):
        for subject in ("def.a", "b.a", "b.no", "from.x", "from.y", "to.x"):
            wire.publish(subject)
            said.append([subject, _errors(wire.ping())])
        for subject in ("def.*", "to.x", "from.x", "b.a"):
            wire.subscribe(subject)
            said.append([subject, _errors(wire.ping())])
    bob.publish("from.x")
    said.append(["bob", [frame.subject for frame in bob.ping()]])
    said.append(["ann", [frame.subject for frame in ann.ping()]])
    log = _until(server, 'bob" - Subscription Violation - Subject "b.a"')
    return [said, [match[1] for line in log.splitlines() if (match := _VIOLATION.search(line))]]


def test_users_and_mappings_of_the_global_account(start_server: StartServer, recorded: Recorded) -> None:
    expected = recorded(lambda: _in_the_global_account(start_server(of=Kind.REAL, config=GLOBAL)))
    assert _in_the_global_account(start_server(config=GLOBAL)) == expected


# ---------------------------------------------------------------------- random permissions
class _Chance:
    """Draws users with permissions, and their operations, without the cases that are intentionally different."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.users = {f"u{number}": self._permissions() for number in range(24)}
        self.published = {user: [self._literal() for _ in range(12)] for user in self.users}
        self.subscribed = {user: [self._subscription() for _ in range(12)] for user in self.users}
        self.sent = [self._literal() for _ in range(30)]

    def _literal(self) -> str:
        return ".".join(self._rng.choices("ab", k=self._rng.randint(1, 3)))

    def _pattern(self) -> str:
        tokens = self._rng.choices("ab*", k=self._rng.randint(1, 3))
        return ".".join([*tokens[:2], ">"] if self._rng.random() < 0.25 else tokens)

    def _subscription(self) -> tuple[str, str]:
        subject = ".".join(self._rng.choices("ab*", k=self._rng.randint(1, 3)))
        return subject, self._rng.choice(["", "", "g.1", "g.2", "h"])

    def _entries(self, make: Callable[[], str], queues: bool = False) -> str:
        entries = [make() for _ in range(self._rng.randint(1, 4))]
        if queues:
            entries = [entry + self._rng.choice(["", "", " g.*", " h"]) for entry in entries]
        return json.dumps(entries)

    def _permissions(self) -> str:
        def some(*parts: str) -> str:
            chosen = [part for part in parts if self._rng.random() < 0.7]
            return "{" + ", ".join(chosen) + "}"

        publish = some(f"allow: {self._entries(self._pattern)}", f"deny: {self._entries(self._pattern)}")
        listen = some(f"allow: {self._entries(self._pattern, True)}", f"deny: {self._entries(self._literal)}")
        return some(f"publish: {publish}", f"subscribe: {listen}")

    @property
    def config(self) -> str:
        users = "\n".join(f"{{user: {user}, password: p, permissions: {said}}}" for user, said in self.users.items())
        return f"accounts {{ A {{ users: [{{user: any, password: p}}\n{users}] }} }}"


def _tried(server: Server, chance: _Chance) -> list[object]:
    said: list[object] = []
    sender = _client(server, "any")
    for user in chance.users:
        wire = _client(server, user)
        for subject in chance.published[user]:
            wire.publish(subject)
        for subject, queue in chance.subscribed[user]:
            wire.subscribe(subject, queue)
        said.append([user, _errors(wire.ping())])
        for subject in chance.sent:
            sender.publish(subject, b"x")
        sender.ping()
        # The member of a group that gets a message is random.
        told = {(frame.subject, _group(chance, user, frame.sid)) for frame in wire.ping()}
        said.append([list(each) for each in sorted(told)])
        for sid in range(len(chance.subscribed[user])):
            wire.unsubscribe(str(sid + 1))
        wire.ping()  # so that the next client's groups are its own
        wire.close()
    return said


def _group(chance: _Chance, user: str, sid: str) -> str:
    subject, queue = chance.subscribed[user][int(sid) - 1]
    return queue or subject


@pytest.mark.parametrize("seed", range(3))
def test_permissions_by_chance(start_server: StartServer, recorded: Recorded, seed: int) -> None:
    chance = _Chance(seed)
    expected = recorded(lambda: _tried(start_server(of=Kind.REAL, config=chance.config), chance))
    got = _tried(start_server(config=chance.config), chance)
    assert got == expected
    assert any(frames for frames in expected[1::2])


# ---------------------------------------------------------------------- hashed passwords
HASH = bcrypt.hashpw(b"s3cret", bcrypt.gensalt(12)).decode()


def _hashed(password: str) -> bytes:
    return f'CONNECT {{{QUIET},"user":"u","pass":"{password}"}}\r\n'.encode()


def test_commands_behind_a_hashed_password_wait_for_it(start_server: StartServer) -> None:
    server = start_server(config=f'authorization {{users: [{{user: u, password: "{HASH}"}}]}}', jetstream=False)
    with Wire(server.address, None) as wire, Wire(server.address, None) as wrong:
        # All in one write: the hash takes some 200 ms, and nothing may be answered before it is compared.
        wire.send(_hashed("s3cret") + b"SUB a 1\r\nPUB a 2\r\nhi\r\n")
        wrong.send(_hashed("guess") + b"SUB a 1\r\nPUB a 2\r\nno\r\n")
        assert wire.delivered("1").data == b"hi"
        told = [frame.text for frame in wrong.until_closed() if frame.verb != "INFO"]
        assert told == ["'Authorization Violation'"]
        assert wire.ping() == []


def test_the_authentication_timeout_ends_with_connect(start_server: StartServer) -> None:
    users = f'users: [{{user: u, password: "{HASH}"}}]'
    # Comparing takes 250 ms.
    server = start_server(config=f'authorization {{timeout: "100ms", {users}}}', jetstream=False)
    with Wire(server.address, None) as wire:
        wire.send(_hashed("s3cret"))
        assert wire.ping() == []


def test_other_clients_are_served_while_a_hash_is_compared(start_server: StartServer) -> None:
    config = f'authorization {{users: [{{user: u, password: "{HASH}"}}, {{user: plain, password: p}}]}}'
    server = start_server(config=config, jetstream=False)
    with _client(server, "plain") as plain, Wire(server.address, None) as slow:
        slow.send(_hashed("s3cret") + b"PUB done 0\r\n\r\n")
        plain.subscribe("done")
        plain.ping()
        slow.send(b"PING\r\n")
        assert plain.message("done").data == b""
        slow.until("PONG")
