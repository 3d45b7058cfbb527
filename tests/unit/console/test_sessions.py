"""Tests of the console's sessions and of the limit of failed logins, with a clock that the test moves."""

from __future__ import annotations

import pytest

from lakestream_console.client import ConsoleError
from lakestream_console.sessions import (
    FAILURES_NS,
    IDLE_NS,
    LIFETIME_NS,
    LOOK_NS,
    MAX_ADDRESSES,
    MAX_FAILURES,
    MAX_LOGINS,
    MAX_SESSIONS,
    ConsoleSession,
    LoginLimit,
    Sessions,
)
from tests.unit.consumer_world import VirtualClock

pytestmark = pytest.mark.unit


class Client:
    """The client of a session, which only notes that it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def ended() -> list[ConsoleSession]:
    return []


@pytest.fixture
def sessions(clock: VirtualClock, ended: list[ConsoleSession]) -> Sessions:
    return Sessions(clock, ended.append)


def begin(sessions: Sessions, *, by_login: bool = True) -> tuple[str, ConsoleSession]:
    return sessions.add(Client(), by_login=by_login)  # type: ignore[arg-type]


def test_only_the_browser_has_the_id(sessions: Sessions) -> None:
    identifier, session = begin(sessions)
    assert len(identifier) == len(session.csrf) == 43
    assert sessions.find(identifier) is session
    for wrong in ("", "x", identifier[:-1], identifier + "x", session.csrf, session.key.hex()):
        assert sessions.find(wrong) is None
    assert identifier.encode() not in session.key
    assert len({begin(sessions)[0] for _ in range(20)}) == 20


def test_the_csrf_text(sessions: Sessions) -> None:
    _, session = begin(sessions)
    assert session.has_csrf(session.csrf)
    assert not any(session.has_csrf(wrong) for wrong in ("", "x", session.csrf[:-1], "ü"))


def test_a_session_that_is_not_used_ends(sessions: Sessions, clock: VirtualClock, ended: list[ConsoleSession]) -> None:
    identifier, session = begin(sessions)
    clock.advance(IDLE_NS - 1)
    assert sessions.find(identifier) is session
    clock.advance(IDLE_NS - 1)
    assert ended == []
    clock.advance(LOOK_NS + 1)
    assert ended == [session]
    assert session.client.closed  # type: ignore[attr-defined]
    assert sessions.find(identifier) is None


def test_it_is_over_before_the_next_look(sessions: Sessions, clock: VirtualClock, ended: list[ConsoleSession]) -> None:
    clock.advance(1)
    begin(sessions)
    clock.advance(LOOK_NS // 2)
    identifier, session = begin(sessions)
    clock.time += IDLE_NS
    assert sessions.find(identifier) is None
    assert ended == [session]


def test_an_open_stream_of_events_is_a_use(sessions: Sessions, clock: VirtualClock) -> None:
    identifier, session = begin(sessions)
    session.streams = 1
    clock.advance(3 * IDLE_NS)
    assert sessions.find(identifier) is session


def test_no_session_lives_forever(sessions: Sessions, clock: VirtualClock) -> None:
    identifier, session = begin(sessions)
    session.streams = 1
    clock.advance(LIFETIME_NS - 1)
    assert sessions.find(identifier) is session
    clock.advance(1)
    assert sessions.find(identifier) is None


def test_sessions_with_a_login_are_not_displaced(sessions: Sessions, ended: list[ConsoleSession]) -> None:
    held = [begin(sessions)[0] for _ in range(MAX_SESSIONS - 1)]
    _, anonymous = begin(sessions, by_login=False)
    begin(sessions)
    assert ended == [anonymous]
    with pytest.raises(ConsoleError, match="64 sessions already"):
        begin(sessions)
    with pytest.raises(ConsoleError) as refused:
        begin(sessions, by_login=False)
    assert refused.value.status == 503
    assert all(sessions.find(identifier) is not None for identifier in held)


def test_the_session_that_was_not_used_for_longest_makes_room(
    sessions: Sessions, clock: VirtualClock, ended: list[ConsoleSession]
) -> None:
    held = [begin(sessions, by_login=False) for _ in range(MAX_SESSIONS)]
    clock.advance(1)
    for identifier, _ in held[:3] + held[4:]:
        sessions.find(identifier)
    begin(sessions, by_login=False)
    assert ended == [held[3][1]]


def test_the_end_of_a_session_is_told_once(sessions: Sessions, ended: list[ConsoleSession]) -> None:
    _, session = begin(sessions)
    sessions.end(session)
    sessions.end(session)
    assert ended == [session]


def fail(limit: LoginLimit, host: str) -> None:
    limit.begin(host)
    limit.end(host, succeeded=False)


def test_failed_logins(clock: VirtualClock) -> None:
    limit = LoginLimit(clock)
    for _ in range(MAX_FAILURES):
        fail(limit, "10.0.0.1")
        clock.advance(1)
    with pytest.raises(ConsoleError) as refused:
        limit.begin("10.0.0.1")
    assert refused.value.status == 429
    fail(limit, "10.0.0.2")
    clock.advance(FAILURES_NS)
    fail(limit, "10.0.0.1")


def test_logins_that_succeed_do_not_count(clock: VirtualClock) -> None:
    limit = LoginLimit(clock)
    for _ in range(3 * MAX_FAILURES):
        limit.begin("10.0.0.1")
        limit.end("10.0.0.1", succeeded=True)


def test_one_client_has_all_addresses_of_its_network(clock: VirtualClock) -> None:
    limit = LoginLimit(clock)
    for number in range(MAX_FAILURES):
        fail(limit, f"2001:db8::{number}")
    with pytest.raises(ConsoleError, match="wait a minute"):
        limit.begin("2001:db8::ffff")
    fail(limit, "2001:db8:1::1")


def test_logins_at_the_same_time_are_limited(clock: VirtualClock) -> None:
    limit = LoginLimit(clock)
    for number in range(MAX_LOGINS):
        limit.begin(f"10.0.0.{number}")
    with pytest.raises(ConsoleError) as refused:
        limit.begin("10.0.1.1")
    assert refused.value.status == 503
    limit.end("10.0.0.1", succeeded=False)
    limit.begin("10.0.1.1")


def test_addresses_are_limited(clock: VirtualClock) -> None:
    limit = LoginLimit(clock)
    for number in range(MAX_ADDRESSES + 100):
        fail(limit, f"10.0.{number // 256}.{number % 256}")
    assert len(limit._failures) == MAX_ADDRESSES
