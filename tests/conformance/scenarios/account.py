"""Scenarios of account information: limits, usage and counters (docs/internals/api.md#account)."""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, scenario


def _info(t: Script) -> None:
    answer = t.wire.api("INFO")
    for counter in ("total", "errors"):  # over the server's whole life, other scenarios included
        assert isinstance(answer["api"].pop(counter), int)
    t.note("INFO", answer)


@scenario
def info_when_empty(t: Script) -> None:
    _info(t)


@scenario
def info_ignores_its_body(t: Script) -> None:
    t.note("type", t.wire.api("INFO", b"nonsense")["type"])


@scenario
def info_counts_streams_and_consumers(t: Script) -> None:
    t.stream("S", ["a"], storage="memory")
    t.stream("F", ["b"], storage="file")
    t.consumer("S", "c1")
    t.consumer("F", "c2")
    t.consumer("F", "c3")
    _info(t)


@scenario
def info_sums_storage(t: Script) -> None:
    t.stream("S", ["a"], storage="memory")
    t.stream("F", ["b"], storage="file")
    t.fill(["a"] * 10, b"x" * 100)
    t.fill(["b"] * 5, b"x" * 100)
    _info(t)
    t.setup("STREAM.PURGE.S")
    _info(t)


@scenario
def info_shows_reservations(t: Script) -> None:
    t.stream("S", ["a"], storage="memory", max_bytes=1 << 20)
    t.stream("F", ["b"], storage="file", max_bytes=1 << 21)
    _info(t)


@scenario
def requests_and_errors_are_counted(t: Script) -> None:
    def counts() -> Any:
        return t.wire.api("INFO")["api"]

    before = counts()
    t.wire.api("STREAM.INFO.NONE")
    t.wire.api("STREAM.NAMES")
    after = counts()
    t.note("requests", after["total"] - before["total"])
    t.note("errors", after["errors"] - before["errors"])
    t.note("level", after["level"])
