"""Tests of servers whose files fail: what was acked is there, errors are answered, other streams go on."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.faults.__main__ import TOOLS, live
from tests.faults.cluster import RULES, Nodes
from tests.faults.matrix import LOG, WAYS, at_the_stop, lives, rules
from tests.faults.plan import Action, Call, Rule
from tests.faults.servers import Site

SEED = 1
SOME = [
    Rule(Call.WRITE, LOG, Action.PART, errno.ENOSPC, skip=1),
    Rule(Call.SYNC, LOG, skip=2, times=1),
    Rule(Call.READ, LOG, Action.FLIP),
    Rule(Call.CREATE, LOG),
    Rule(Call.LINK, "lake/segments/{stream}/*"),
    Rule(Call.WRITE, LOG, Action.KILL, skip=3, times=1),
]


def test_some_ways_in_which_files_fail(tmp_path: Path) -> None:
    hits, problems = live(tmp_path / "site", SEED, SOME, at_the_stop("ENOSPC", Random(SEED)))
    assert not problems
    assert hits >= len(SOME) - 1, "a kill may come before other rules count"


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS)
def test_each_way_in_which_files_fail(tmp_path: Path, way: str) -> None:
    hits, problems = live(tmp_path / "site", SEED, rules(way, Random(SEED)), at_the_stop(way, Random(SEED)))
    assert not problems
    assert hits, "no call has failed"


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_streams_that_are_created_and_deleted_while_files_fail(tmp_path: Path) -> None:
    hits, problems = live(tmp_path / "site", SEED, lives(), [])
    assert not problems
    assert hits > len(lives()) / 2


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_nodes_whose_files_fail(tmp_path: Path) -> None:
    with Nodes(tmp_path, TOOLS) as nodes:
        for rule in RULES:
            nodes.suffer(rule)
    assert not nodes.problems
    assert all(nodes.hits.values()), nodes.hits


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path, SEED, TOOLS) as site:
        yield site


def test_answers_about_a_file_that_cannot_be_read_say_so(site: Site) -> None:
    with site.wire() as wire:
        client = site.make(wire, "S")
        site.plan.set(Rule(Call.READ, LOG.format(stream="S")))
        said = [
            client.api("STREAM.MSG.GET.S", {"seq": 1})["error"]["description"],
            client.api("STREAM.INFO.S")["error"]["description"],
            wire.request("$JS.API.DIRECT.GET.S", b'{"seq":1}').header.decode(),
            wire.request("$JS.API.CONSUMER.MSG.NEXT.S.D", b'{"batch":1,"no_wait":true}').header.decode(),
        ]
    for each in said:
        assert "cannot be read: Input/output error; the server's log names it" in each
    lines = [line for line in site.server.log().splitlines() if "cannot be read" in line and "[ERR]" in line]
    assert all(f"{site.store}/jetstream/$G/streams/S/log/" in line for line in lines)
    assert "Traceback" not in site.server.log()
    assert "  File " not in site.server.log()


def test_a_consumer_goes_on_once_its_messages_can_be_read_again(site: Site) -> None:
    with site.wire() as wire:
        client = site.make(wire, "S")
        site.plan.set(Rule(Call.READ, LOG.format(stream="S")))
        sid = wire.subscribe("inbox")
        wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.D", b'{"batch":1,"expires":20000000000}', "inbox")
        deadline = time.monotonic() + 10
        while not site.plan.hits():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        site.plan.set()
        assert wire.delivered(sid, 10).data == client.stream.messages[1].payload()
