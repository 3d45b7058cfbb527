"""Damage of all replicas of real clusters; `python -m tests.damage` draws hundreds of cases."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.damage.__main__ import case, run
from tests.damage.judge import WHOLE, Broken, Content
from tests.damage.prepared import ENDS, Known, prepare

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

CASES = 20


def test_newest_entries_that_are_damaged_on_two_of_three_nodes_come_back(tmp_path: Path) -> None:
    result = case(prepare(tmp_path, 0), seed=1, how="newest")
    assert not result.broken, result
    assert set(result.outcomes.values()) == {WHOLE}, result


@pytest.mark.heavy
def test_a_state_that_only_a_node_behind_the_others_has_comes_back(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ENDS.index("behind"))
    result = case(prepared, seed=1, how="states")
    assert not result.broken, result
    assert set(result.outcomes.values()) == {WHOLE}, result


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_nothing_is_lost_in_silence_when_all_nodes_are_damaged(tmp_path: Path) -> None:
    first = Random().randrange(1 << 20)
    broken = [result for result in run(range(first, first + CASES), tmp_path, jobs=2) if result.broken]
    assert not broken, "\n".join(map(str, broken))


def test_a_judge_finds_what_is_lost_back_changed_or_given_twice() -> None:
    known = Known(sent={b"a": "s", b"b": "s", b"c": "s"}, acked={1: b"a", 3: b"c"}, gone={2}, last=3)

    def missing(messages: dict[int, bytes]) -> list[int]:
        return Content("S", "n1", {seq: ("s", data) for seq, data in messages.items()}).compare(known)

    assert missing({1: b"a", 3: b"c"}) == []
    assert missing({3: b"c"}) == [1]
    for messages, text in (
        ({1: b"a", 2: b"b", 3: b"c"}, "removed, and back"),
        ({1: b"a", 3: b"b"}, "another message has the acked sequence 3"),
        ({1: b"a", 3: b"C"}, "nobody published message 3"),
    ):
        with pytest.raises(Broken, match=text):
            missing(messages)


def test_a_message_that_later_ones_without_an_ack_have_pushed_out_is_not_lost() -> None:
    known = Known(sent={b"a": "s", b"b": "s", b"c": "s"}, acked={1: b"a"}, last=1, limit=2)
    assert Content("S", "n1", {2: ("s", b"b"), 3: ("s", b"c")}).compare(known) == []
    assert Content("S", "n1", {2: ("s", b"b")}).compare(known) == [1]
