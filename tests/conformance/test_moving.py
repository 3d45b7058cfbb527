"""Tests of docs/moving.md as written: its configuration, its commands, its steps by hand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.conformance.remotes import create, fixed_port, messages, publish, state, wait, wait_link
from tests.conformance.test_move import Move, durable
from tests.conftest import StartServer
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = [pytest.mark.conformance, pytest.mark.heavy]

PAGE = Path(__file__).parents[2] / "docs" / "moving.md"
LOGIN = {"user": "mover", "pass": "s3cret"}


def blocks(language: str) -> list[str]:
    """Return the code blocks of the page before its part about leaf nodes."""
    part = PAGE.read_text().split("## From lakestream to nats-server")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", part, re.DOTALL | re.MULTILINE)


def arguments(command: str) -> list[str]:
    """Return the arguments of a command of the page after the servers."""
    words = shlex.split(command)
    assert words[:2] == ["lakestream", "move"]
    return [word for word in words[2:] if word not in ("--from", "--to") and not word.startswith("nats://")]


@pytest.fixture
def old(start_server: StartServer) -> Server:
    return fixed_port(start_server(of=Kind.REAL, config="authorization { user: mover, password: s3cret }"))


@pytest.fixture
def new(start_server: StartServer, old: Server) -> Server:
    """Return a lakestream with the remote of the page."""
    (block,) = blocks("conf")
    remote = block.replace("old.example:4222", f"127.0.0.1:{old.port}")
    server = start_server(of=Kind.OURS, config=f"lake: false\nhttp: 127.0.0.1:-1\n{remote}")
    wait_link(server)
    return server


def fill(there: Wire) -> None:
    """Create a stream, a bucket and a consumer."""
    create(there, "ORDERS", subjects=["orders.>"], duplicate_window=60_000_000_000)
    publish(there, "orders.a", *(b"%d" % number for number in range(1, 11)))
    durable(there, "ORDERS", "billing")
    create(there, "KV_settings", subjects=["$KV.settings.>"], max_msgs_per_subject=5, allow_rollup_hdrs=True)
    publish(there, "$KV.settings.a", b"1", b"2")


def test_the_commands_of_the_page_move_streams(old: Server, new: Server) -> None:
    rehearsal, *_ = blocks("sh")
    words = arguments(rehearsal)
    assert words == ["ORDERS,KV_*", "--dry-run"]
    login = ("--from-user", "mover", "--from-password", "s3cret")
    with Wire(old.address, LOGIN) as there:
        fill(there)
        origin = messages(there, "ORDERS")
    assert Move(old.url, new.url, *words, *login).end() == 0
    with Wire(new.address) as here:
        assert here.api("STREAM.NAMES")["total"] == 0
    run = Move(old.url, new.url, *words[:1], *login)
    assert run.end() == 0, run.report()
    with Wire(new.address) as here:
        assert messages(here, "ORDERS") == origin
        assert state(here, "KV_settings")["messages"] == 2
        assert here.api("CONSUMER.INFO.ORDERS.billing")["num_pending"] == 10


def test_the_backup_of_the_page(start_server: StartServer) -> None:
    there, here = start_server(of=Kind.OURS, config="lake: false"), start_server(of=Kind.REAL)
    with Wire(there.address) as wire:
        fill(wire)
    run = Move(there.url, here.url, *arguments(blocks("sh")[2]), "--quiet", "300ms")
    assert run.end() == 0, run.report()
    with Wire(here.address) as wire:
        assert (state(wire, "ORDERS")["last_seq"], state(wire, "KV_settings")["messages"]) == (10, 2)


def test_the_options_and_events_of_the_page_are_those_of_the_command() -> None:
    from typer.main import get_command

    from lakestream.cli.app import app

    command = get_command(app).commands["move"]  # type: ignore[attr-defined]
    known = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    page = PAGE.read_text()
    named = set(re.findall(r"`(--[a-z-]+)", page)) - {"--js-domain"}
    assert named - known == set()
    assert {name for name in known if f"`{name}" not in page} <= {"--server", "--help"}
    source = Path(__file__).parents[2] / "lakestream" / "cli" / "move"
    events = set(re.findall(r'\.say\(\s*"(\w+)"', "".join(path.read_text() for path in source.glob("*.py"))))
    assert {event for event in events if f"`{event}`" not in page} == set()


def test_the_steps_by_hand(old: Server, new: Server) -> None:
    with Wire(old.address, LOGIN) as there:
        fill(there)
        origin = messages(there, "ORDERS")
    with Wire(new.address) as here:
        here.api_prefix = "$JS.old.API"
        config = here.api("STREAM.INFO.ORDERS")["config"]
        (consumer,) = here.api("CONSUMER.LIST.ORDERS")["consumers"]
        here.api_prefix = "$JS.API"
        fields = {
            key: config[key] for key in config if key not in ("subjects", "duplicate_window", "placement", "name")
        }
        create(here, "ORDERS", **fields, mirror={"name": "ORDERS", "external": {"api": "$JS.old.API"}})

        def whole() -> bool:
            mirror = here.api("STREAM.INFO.ORDERS")["mirror"]
            return mirror["lag"] == 0 and 0 <= mirror["active"] < 2_000_000_000

        wait("lag 0", whole)
        assert "error" not in here.api("STREAM.UPDATE.ORDERS", config)
        start = {"deliver_policy": "by_start_sequence", "opt_start_seq": consumer["ack_floor"]["stream_seq"] + 1}
        durable(here, "ORDERS", "billing", **start)
        assert messages(here, "ORDERS") == origin
        assert here.request("orders.a", b"11").json()["seq"] == 11
