"""Tests of account configurations that need servers of their own: users' accounts, and streams after a restart.

Each is compared with nats-server, as the scenarios are.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import CompareScripts
from tests.conformance.harness import Script
from tests.pairs import FLAGS, Setup
from tests.servers import Server
from tests.wire import Closed, Wire

pytestmark = pytest.mark.conformance

_SHOWN = ("auth_required", "remote_account", "acc_is_sys", "max_payload")


def _login(t: Script, label: str, **fields: Any) -> Wire | None:
    """Connect; record INFO before and after the login."""
    wire = t.connect(**fields)
    t.note(f"{label}: first INFO", {key: wire.info[key] for key in _SHOWN if key in wire.info})
    try:
        t.frames(f"{label}: PING", wire.ping())
    except Closed:
        t.frames(f"{label}: closed", list(wire.waiting))
        return None
    t.note(f"{label}: INFO", [{key: info[key] for key in _SHOWN if key in info} for info in wire.told()[1:]])
    return wire


def _everybody(t: Script, *users: str | None) -> None:
    """Record which users may connect, their accounts, and if they have JetStream."""
    for user in (None, *users):
        label = user or "nobody"
        if (wire := _login(t, label, user=user)) is None:
            continue
        answer = wire.api("STREAM.NAMES")
        t.note(f"{label}: STREAM.NAMES", answer)
        subject = f"{label}.x"
        t.note(
            f"{label}: STREAM.CREATE",
            sorted(wire.api(f"STREAM.CREATE.{label}", {"name": label, "subjects": [subject], "storage": "memory"})),
        )
        t.note(f"{label}: publish", t.show(wire.request(subject, b"m")))


_SYS = "SYS { users: [{user: sys, password: p}] }"
_CONFIGURATIONS = {
    "only_the_system_account": (f"system_account: SYS\naccounts {{ {_SYS} }}\n", ("sys", "zz")),
    "only_the_usual_system_account": ('accounts { "$SYS" { users: [{user: sys, password: p}] } }\n', ("sys",)),
    "a_system_account_without_users": ("system_account: SYS\naccounts { SYS {} }\n", ()),
    "users_beside_the_system_account": (
        f"system_account: SYS\nauthorization {{ users: [{{user: u, password: p}}] }}\naccounts {{ {_SYS} }}\n",
        ("sys", "u"),
    ),
    "no_auth_user_beside_the_system_account": (
        "system_account: SYS\nno_auth_user: u\nauthorization { users: [{user: u, password: p}] }\n"
        f"accounts {{ {_SYS} }}\n",
        ("sys", "u"),
    ),
    "no_auth_user_in_an_account": (
        "no_auth_user: a\naccounts { A { users: [{user: a, password: p}, {user: b, password: p}], jetstream: enabled }"
        "\nB { users: [{user: c, password: p}] } }\n",
        ("a", "b", "c", "zz"),
    ),
    "no_auth_user_without_jetstream": (
        "no_auth_user: a\naccounts { A { users: [{user: a, password: p}] }\n"
        "B { users: [{user: b, password: p}], jetstream: enabled } }\n",
        ("a", "b"),
    ),
    "accounts_without_users": ("accounts { A {}, B { jetstream: enabled } }\n", ()),
    "jetstream_in_no_account": (
        "accounts { A { users: [{user: a, password: p}] }, B { users: [{user: b, password: p}] } }\n",
        ("a", "b"),
    ),
    "an_account_beside_users_of_none": (
        "authorization { users: [{user: u, password: p}] }\n"
        "accounts { A { users: [{user: a, password: p}], jetstream: enabled } }\n",
        ("a", "u"),
    ),
    "hashed_passwords": (
        "accounts { A { jetstream: enabled, users: [{user: a, "
        'password: "$2a$04$wgHfymmv5vshOwod9QD0JO3fr1LSNp43XWfzYHTqW.Dus8nu0jUvq"}] } }\n',
        ("a",),
    ),
}


@pytest.mark.parametrize("name", _CONFIGURATIONS)
def test_who_is_where(name: str, compare_scripts: CompareScripts) -> None:
    config, users = _CONFIGURATIONS[name]
    compare_scripts(Setup(config), lambda t: _everybody(t, *users))


_ONE = "A { users: [{user: a, password: p}], jetstream: enabled }"
_OTHER = "B { users: [{user: b, password: p}], jetstream: enabled }"


def _restarted(server: Server, config: str) -> None:
    server.stop()
    server.config = config or None
    server.start()


def test_streams_are_there_again_after_a_restart(compare_scripts: CompareScripts) -> None:
    """After a restart each stream is in its account.

    Streams of a removed account stay on disk until it is added again.
    """
    both = f"accounts {{ {_ONE}\n{_OTHER} }}\n"

    def script(t: Script) -> None:
        server = t.server
        for user, count in (("a", 3), ("b", 5)):
            with _client(server, user) as wire:
                answer = wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "file"})
                assert "error" not in answer
                for _ in range(count):
                    assert wire.request("s", user.encode()).json()["stream"] == "S"
                wire.api(
                    "CONSUMER.CREATE.S.c",
                    {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}},
                )
        _shown(t, "a", "b")
        _restarted(server, both)
        _shown(t, "a", "b")
        _restarted(server, f"accounts {{ {_OTHER} }}\n")
        _shown(t, "b")
        _restarted(server, f"accounts {{ A {{ users: [{{user: a, password: p}}] }}\n{_OTHER} }}\n")
        _shown(t, "a", "b")
        _restarted(server, "")
        _shown(t, "")
        _restarted(server, both)
        _shown(t, "a", "b")

    compare_scripts(Setup(both, (("a", "A"), ("b", "B"))), script)


def test_streams_of_before_there_were_accounts(compare_scripts: CompareScripts) -> None:
    """A server that gets accounts stops serving its earlier streams; without accounts it serves them again."""

    def script(t: Script) -> None:
        server = t.server
        with _client(server, "") as wire:
            wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "file"})
            wire.request("s", b"m")
        _shown(t, "")
        _restarted(server, f"accounts {{ {_ONE} }}\n")
        _shown(t, "a")
        with _client(server, "a") as wire:
            wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "file"})
            for _ in range(2):
                wire.request("s", b"m")
        _restarted(server, "")
        _shown(t, "")
        _restarted(server, 'accounts { "$SYS" { users: [{user: sys, password: p}] } }\n')
        _shown(t, "")
        _restarted(server, f"accounts {{ {_ONE} }}\n")
        _shown(t, "a")

    compare_scripts(FLAGS, script)


def _client(server: Server, user: str) -> Wire:
    return Wire(server.address, {"user": user, "pass": "p"} if user else {})


def _shown(t: Script, *users: str) -> None:
    """Record the streams, consumers and messages that each user finds."""
    for user in users:
        with _client(t.server, user) as wire:
            for subject in ("STREAM.INFO.S", "CONSUMER.INFO.S.c", "STREAM.NAMES", "INFO"):
                answer = wire.api(subject)
                answer.pop("api", None)
                t.note(f"{user}: {subject}", answer)
            answer = wire.api("STREAM.MSG.GET.S", {"seq": 1})
            t.note(f"{user}: first message", answer)
