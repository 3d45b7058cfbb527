"""The directory resolver on a hub: order, questions to others, and limits."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from lakestream.logging import Logger
from lakestream.net.accounts import directory_resolver
from lakestream.net.accounts.directory_resolver import BUSY, DirectoryResolver
from lakestream.net.accounts.resolver import Answer, Missing
from lakestream.net.accounts.token_files import TokenFiles
from lakestream.net.hub import Hub
from lakestream.net.turn import Turn
from lakestream.ports import ClientInfo, Single, singly
from tests.keys import ISSUED_AT, account_jwt, account_key, operator_key
from tests.unit.api_world import WaitingClock
from tests.unit.logkit import HeldIo

pytestmark = pytest.mark.unit

OPERATOR = operator_key("directory")
A, B = account_key("directory A"), account_key("directory B")
SECOND = 10**9


class World:
    def __init__(self, directory: Path, limit: int = 10) -> None:
        self.io, self.clock = HeldIo(), WaitingClock()
        self.hub = Hub(Turn(lambda callback: None), Logger(), "SYS")
        self.files = TokenFiles(str(directory), limit)
        self.resolver = DirectoryResolver(
            self.files, self.hub, self.io, self.clock, Logger(), timeout_ns=2 * SECOND, interval_ns=SECOND
        )
        self.asked: list[tuple[bytes, bytes]] = []
        self.answers: list[Answer] = []
        self.hub.subscribe(b"$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP", singly(self._ask))

    def _ask(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        self.asked.append((subject, reply))

    def lookup(self, key: Any = A) -> None:
        self.resolver.lookup(key.public, self.answers.append)
        self.io.run_all()

    def answer(self, number: int, token: str) -> None:
        self.hub.send(Single(self.asked[number][1], payload=token.encode()))
        self.io.run_all()


def token(key: Any, issued: int = 0) -> str:
    return account_jwt(key, "X", OPERATOR, claims={"iat": ISSUED_AT + issued})


def test_reads_and_writes_are_done_one_after_the_other(tmp_path: Path) -> None:
    world = World(tmp_path)
    done: list[object] = []
    world.resolver.store(A.public, token(A), done.append)
    world.resolver.read(A.public, lambda text, error: done.append(text))
    assert len(world.io.waiting) == 1
    world.io.run_all()
    assert done == ["", token(A)]


def test_a_missing_token_is_asked_for_stored_and_given(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.lookup()
    assert world.asked[0][0] == f"$SYS.REQ.ACCOUNT.{A.public}.CLAIMS.LOOKUP".encode()
    for useless in ("", "garbage", token(B)):
        world.answer(0, useless)
    assert world.answers == []
    world.answer(0, token(A))
    assert (world.answers, world.files.read(A.public)) == ([token(A)], token(A))
    world.answer(0, token(A, 1))
    assert world.files.read(A.public) == token(A)


def test_without_an_answer_in_time_there_is_no_token(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.lookup()
    world.clock.advance(2 * SECOND)
    assert world.answers == [Missing("fetching jwt timed out")]


def test_only_later_tokens_of_other_servers_are_taken(tmp_path: Path) -> None:
    world = World(tmp_path)
    changed: list[tuple[str, str]] = []
    world.resolver.changed = lambda account, text: changed.append((account, text))
    world.files.write(A.public, token(A, 5))
    sent: list[bytes] = []
    world.hub.subscribe(b"to", singly(lambda subject, reply, header, payload, client: sent.append(payload)))
    world.resolver.send_all(b"to")
    world.io.run_all()
    assert sent == [f"{A.public}|{token(A, 5)}".encode(), b""]
    inbox = next(each.subject for each in world.hub.interest_graph.subscriptions() if each.subject.endswith(b".pack"))
    for text in (token(A), token(A, 6), "garbage"):
        world.hub.send(Single(inbox, payload=f"{A.public}|{text}".encode()))
    world.hub.send(Single(inbox, payload=f"{B.public}|{token(B)}".encode()))
    world.hub.send(Single(inbox))
    world.io.run_all()
    assert changed == [(A.public, token(A, 6)), (B.public, token(B))]


def test_so_much_may_wait_for_the_directory(tmp_path: Path) -> None:
    world = World(tmp_path)
    errors: list[str] = []
    for _ in range(directory_resolver.MAX_QUEUED + 2):  # one is under way
        world.resolver.read(A.public, lambda text, error: errors.append(error))
    assert errors == [BUSY]


def test_so_many_questions_may_wait_for_an_answer(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(directory_resolver.MAX_LOOKUPS + 1):
        world.lookup()
    assert world.answers == [Missing("too many accounts are looked up")]
    assert len(world.asked) == directory_resolver.MAX_LOOKUPS


def test_a_directory_that_cannot_be_written_fails_the_push_alone(tmp_path: Path) -> None:
    world = World(tmp_path / "gone")
    errors: list[str] = []
    world.resolver.store(A.public, token(A), errors.append)
    world.resolver.read(A.public, lambda text, error: errors.append(f"{text!r} {error}"))
    world.io.run_all()
    assert errors == ["No such file or directory", "'' "]


def test_a_cache_looks_for_old_tokens_from_time_to_time(tmp_path: Path) -> None:
    (tmp_path / f"{A.public}.jwt").write_text(token(A))
    os.utime(tmp_path / f"{A.public}.jwt", (time.time() - 59,) * 2)
    io, clock, hub = HeldIo(), WaitingClock(), Hub(Turn(lambda callback: None), Logger(), "SYS")
    files = TokenFiles(str(tmp_path), 10, evicts=True, ttl_ns=60 * SECOND)
    files.open([])
    DirectoryResolver(files, hub, io, clock, Logger(), timeout_ns=SECOND, ttl_ns=60 * SECOND)
    assert files.accounts() == [A.public]
    os.utime(tmp_path / f"{A.public}.jwt", (time.time() - 61,) * 2)
    files.open([])
    for _ in range(2):
        clock.advance(8 * SECOND)
        io.run_all()
    assert files.accounts() == []
