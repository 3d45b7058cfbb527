"""Tests of mirrors and sources of every form after a restart and after a kill, compared with those of nats-server.

Compared are their messages, their INFO, and the effects of changes on either side before and after.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from typing import Any

import pytest

from tests.cluster.nodes import until
from tests.conftest import Recorded, StartServer
from tests.copied import read
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.conformance

SOON_S = 90.0
"""Timeout; nats-server waits up to 12 s between two attempts."""
MIRRORS: dict[str, dict[str, Any]] = {
    "ALL": {"name": "O"},
    "FILTERED": {"name": "O", "filter_subject": "o.1"},
    "MAPPED": {"name": "O", "subject_transforms": [{"src": "o.*", "dest": "m.{{wildcard(1)}}"}]},
    "SELECTED": {"name": "O", "subject_transforms": [{"src": "o.1", "dest": "one"}, {"src": "o.2", "dest": ""}]},
    "LATE": {"name": "O", "opt_start_seq": 5},
    "AGAIN": {"name": "ALL"},
    "OFSUM": {"name": "SUM"},
}
SOURCES: dict[str, list[dict[str, Any]]] = {
    "SUM": [{"name": "O"}],
    "PARTS": [{"name": "O", "filter_subject": "o.1"}, {"name": "O", "filter_subject": "o.2"}],
    "RENAMED": [{"name": "O", "subject_transforms": [{"src": "o.*", "dest": "s.{{wildcard(1)}}"}]}],
    "BEGUN": [{"name": "O", "opt_start_seq": 6}],
    "DRAINED": [{"name": "W"}],
}
_IDENTITY = re.compile(rb"(Nats-Stream-Source: .*) \w{8}\r\n")
State = dict[str, Any]


def _ok(wire: Wire, subject: str, body: Any = None) -> Any:
    answer = wire.api(subject, body)
    assert "error" not in answer, (subject, answer)
    return answer


def _build(wire: Wire) -> None:
    _ok(wire, "STREAM.CREATE.O", {"name": "O", "subjects": ["o.*"], "storage": "file"})
    _ok(wire, "STREAM.CREATE.W", {"name": "W", "subjects": ["w"], "retention": "workqueue"})
    _publish(wire, 1, 10)
    for name, sources in SOURCES.items():
        _ok(wire, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"own.{name}"], "sources": sources})
    for name, mirror in MIRRORS.items():
        _ok(wire, f"STREAM.CREATE.{name}", {"name": name, "mirror": mirror})


def _publish(wire: Wire, first: int, count: int) -> None:
    """Publish `count` messages with numbers from `first` on, with and without headers."""
    for number in range(first, first + count):
        fields = {"Nats-Msg-Id": f"id{number}", "Nats-Expected-Stream": "O", "Kind": "k"} if number % 3 == 0 else None
        assert "error" not in wire.request(f"o.{number % 4}", b"%d" % number, fields).json()
        assert "error" not in wire.request("w", b"%d" % number).json()


def _arrived(server: Server, last: dict[str, int]) -> None:
    """Wait until these numbers are the last ones of each copy, and the work queue is empty."""

    def there() -> bool:
        with Wire(server.address, timeout=20) as wire:
            for name, number in last.items():
                newest = read(wire, name)
                if not newest or max(int(message.data) for message in newest.values()) != number:
                    raise ValueError(f"{name}: {sorted(newest)[-3:]}")
            if wire.api("STREAM.INFO.W")["state"]["messages"]:
                raise ValueError("the queue is not empty")
        return True

    until(there, "all copies have what they want", SOON_S)


def _last(through: int) -> dict[str, int]:
    """Return the last number that each copy takes if numbers through this one are published."""

    def of(*kinds: int) -> int:
        return max(number for number in range(1, through + 1) if number % 4 in kinds)

    every = dict.fromkeys((*MIRRORS, *SOURCES), through)
    return every | {"FILTERED": of(1), "SELECTED": of(1, 2), "PARTS": of(1, 2)}


def _known(server: Server, names: Iterable[str]) -> dict[str, State]:
    """Return messages and INFO of these copies; for a stream with several sources without their order."""
    known: dict[str, State] = {}
    with Wire(server.address, timeout=20) as wire:
        times = {seq: message.time_ns for seq, message in read(wire, "O").items()}
        for name in names:
            messages = read(wire, name)
            shown = [
                [seq, each.subject.decode(), _IDENTITY.sub(rb"\1 ID\r\n", each.header).decode(), each.data.decode()]
                for seq, each in messages.items()
            ]
            if name == "PARTS":
                shown = sorted([0, subject, header, data] for _, subject, header, data in shown)
            info = _ok(wire, f"STREAM.INFO.{name}", {"deleted_details": True})
            state = {key: value for key, value in info["state"].items() if not key.endswith("_ts")}
            state.pop("consumer_count")
            copied = [info["mirror"]] if "mirror" in info else sorted(info["sources"], key=str)
            for each in copied:
                each["active"] = each["active"] >= 0
            mirrored = name in MIRRORS and MIRRORS[name]["name"] == "O"
            at_origins = mirrored and all(times.get(seq, one.time_ns) == one.time_ns for seq, one in messages.items())
            known[name] = {"messages": shown, "state": state, "of": copied, "origin's times": at_origins}
    return known


def _play(server: Server, how: signal.Signals) -> list[dict[str, State]]:
    """Run the steps; return the state before and after the restart. One of the mirrors becomes an ordinary stream."""
    others = [name for name in (*MIRRORS, *SOURCES) if name != "LATE"]
    with Wire(server.address, timeout=20) as wire:
        _build(wire)
    _arrived(server, _last(10))
    with Wire(server.address, timeout=20) as wire:
        _ok(wire, "STREAM.MSG.DELETE.O", {"seq": 7})  # copied already, so the copies keep it
        _ok(wire, "STREAM.MSG.DELETE.ALL", {"seq": 2})  # must not be copied again
        _ok(wire, "STREAM.PURGE.SUM")  # the position in its source is known without a message
        _ok(wire, "STREAM.PURGE.FILTERED", {"keep": 1})
        assert "error" not in wire.request("own.BEGUN", b"0").json()
        _ok(wire, "STREAM.UPDATE.LATE", {"name": "LATE", "subjects": ["late"]})
    told = [_known(server, others)]
    if how is signal.SIGKILL:
        server.kill()
    else:
        server.stop(how)
    server.start()
    with Wire(server.address, timeout=20) as wire:
        until(lambda: "state" in wire.api("STREAM.INFO.O"), "the origin is there", SOON_S)
        _publish(wire, 11, 9)
    _arrived(server, {name: number for name, number in _last(19).items() if name in others})
    with Wire(server.address, timeout=20) as wire:
        assert "error" not in wire.request("late", b"0").json()
        late = [message.data.decode() for message in read(wire, "LATE").values()]
    return [*told, _known(server, others), {"LATE": {"messages": late}}]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_copies_go_on_where_they_were(start_server: StartServer, recorded: Recorded, how: signal.Signals) -> None:
    expected = recorded(lambda: _play(start_server(of=Kind.REAL), how))
    got = _play(start_server(), how)
    for before, after in zip(expected, got, strict=True):
        for name, state in before.items():
            assert after[name] == state, name
