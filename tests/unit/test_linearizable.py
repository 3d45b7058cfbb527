"""Tests of the linearizability checker: it accepts possible histories, and nothing else."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.linearizable import (
    NEVER,
    Held,
    Operation,
    Outcome,
    explain,
    informed,
    out_of_order,
)

pytestmark = pytest.mark.unit


def write(
    began: float,
    ended: float,
    value: str,
    seq: int = 0,
    on: int | None = None,
    outcome: Outcome = Outcome.OK,
    key: str = "k",
) -> Operation:
    return Operation(key, began, ended, value, True, on, outcome, seq)


def read(began: float, ended: float, value: str, seq: int) -> Operation:
    return Operation("k", began, ended, value, False, None, Outcome.OK, seq)


def refused(began: float, ended: float, value: str, on: int, seq: int) -> Operation:
    return write(began, ended, value, seq, on, Outcome.REFUSED)


def unknown(began: float, value: str, on: int | None = None, ended: float = NEVER) -> Operation:
    return write(began, ended, value, 0, on, Outcome.UNKNOWN)


def test_one_after_the_other() -> None:
    history = [read(0, 1, "", 0), write(2, 3, "a", 1, on=0), read(4, 5, "a", 1), refused(6, 7, "b", 0, 1)]
    assert explain(history) is None


def test_a_read_of_what_was_never_written() -> None:
    assert explain([write(0, 1, "a", 1), read(2, 3, "b", 1)]) is not None


def test_a_read_of_another_sequence_than_acked() -> None:
    assert explain([write(0, 1, "a", 1), read(2, 3, "a", 2)]) is not None


def test_a_stale_read() -> None:
    history = [write(0, 1, "a", 1), write(2, 3, "b", 2), read(4, 5, "a", 1)]
    assert explain(history) is not None
    late = [*history[:2], read(2.5, 5, "a", 1)]
    assert explain(late) is None, "it began before the second write was acked"


def test_a_lost_write() -> None:
    assert explain([write(0, 1, "a", 1), read(2, 3, "", 0)]) is not None


def test_two_reads_may_not_go_back() -> None:
    """A reader sees a write in flight; a later reader sees it too."""
    under_way = [write(0, 1, "a", 1), write(2, 9, "b", 2)]
    assert explain([*under_way, read(3, 4, "b", 2), read(5, 6, "b", 2)]) is None
    assert explain([*under_way, read(3, 4, "a", 1), read(5, 6, "b", 2)]) is None
    assert explain([*under_way, read(3, 4, "b", 2), read(5, 6, "a", 1)]) is not None


def test_of_two_writes_on_the_same_sequence_one_is_refused() -> None:
    first = write(0, 1, "a", 1, on=0)
    assert explain([first, write(2, 5, "b", 2, on=1), refused(2, 5, "c", 1, 2)]) is None
    assert explain([first, write(2, 5, "b", 2, on=1), write(2, 5, "c", 3, on=1)]) is not None


def test_a_refusal_is_an_observation() -> None:
    """A refusal shows a sequence that was current at some moment of the attempt and was not the expected one."""
    history = [write(0, 1, "a", 1), write(2, 3, "b", 2)]
    assert explain([*history, refused(4, 5, "c", 1, 2)]) is None
    assert explain([*history, refused(4, 5, "c", 2, 1)]) is not None, "stale"
    assert explain([*history, refused(4, 5, "c", 2, 2)]) is not None, "it had what it asked for"
    assert explain([*history, refused(4, 5, "c", 2, 7)]) is not None, "of a write that was never made"


def test_an_unknown_write_may_have_happened_or_not() -> None:
    history = [write(0, 1, "a", 1), unknown(2, "b", on=1)]
    assert explain([*history, read(3, 4, "a", 1)]) is None
    assert explain([*history, read(3, 4, "b", 2)]) is None
    assert explain([*history, read(3, 4, "a", 1), read(5, 6, "b", 2)]) is None, "it may happen late"
    assert explain([*history, read(3, 4, "b", 2), read(5, 6, "a", 1)]) is not None, "but not be taken back"


def test_an_unknown_write_may_not_happen_on_top_of_another_sequence() -> None:
    history = [write(0, 1, "a", 1), write(2, 3, "b", 2, on=1), unknown(4, "c", on=1)]
    assert explain([*history, read(5, 6, "b", 2)]) is None
    assert explain([*history, read(5, 6, "c", 3)]) is not None


def test_an_unknown_write_of_a_dead_server_comes_no_more() -> None:
    history = [write(0, 1, "a", 1), unknown(2, "b", ended=3)]
    assert explain([*history, read(4, 5, "b", 2)]) is None
    assert explain([*history, read(4, 5, "a", 1), read(6, 7, "b", 2)]) is not None


def test_a_refusal_tells_of_an_unknown_write() -> None:
    """A refusal that names another last sequence shows that an unknown write happened, even without a read of it."""
    history = [write(0, 1, "a", 1), unknown(2, "b", on=1)]
    assert explain([*history, refused(3, 4, "c", 1, 5)]) is None
    assert explain([*history, refused(3, 4, "c", 1, 5), write(5, 6, "c", 6, on=5)]) is None
    assert explain([*history, refused(3, 4, "c", 1, 5), read(5, 6, "a", 1)]) is not None
    assert explain([*history, refused(3, 4, "c", 1, 5), refused(5, 6, "d", 1, 6)]) is not None, "two sequences"
    assert explain([history[0], refused(3, 4, "c", 1, 5)]) is not None, "nobody wrote that"


def test_a_write_goes_on_from_an_unknown_one() -> None:
    """The sequence of a write that follows an unknown one determines the unknown one's, and may not be smaller."""
    history = [write(0, 1, "a", 4), unknown(2, "b")]
    assert explain([*history, write(3, 4, "c", 6, on=5)]) is None
    assert explain([*history, write(3, 4, "c", 6, on=3)]) is not None
    assert explain([*history, write(3, 4, "c", 4)]) is not None


def test_sequences_grow() -> None:
    assert explain([write(0, 1, "a", 2), write(2, 3, "b", 1)]) is not None
    assert explain([write(0, 3, "a", 2), write(0, 3, "b", 1)]) is None, "under way at the same time"


def test_keys_are_their_own() -> None:
    history = [write(0, 1, "a", 1, key="k"), write(2, 3, "b", 2, on=0, key="l"), read(4, 5, "a", 1)]
    assert explain(history) is None


def test_the_report_names_what_can_not_be_explained() -> None:
    violation = explain([write(0, 1, "a", 1), write(2, 3, "b", 2), read(4, 5, "a", 1)])
    assert violation is not None
    assert [each.value for each in violation.explained] == ["a", "b"]
    assert violation.stuck[0] == read(4, 5, "a", 1)
    assert "read 'a': ok 1" in str(violation)


def test_the_same_value_twice_is_a_mistake_of_the_test() -> None:
    with pytest.raises(AssertionError, match="written twice"):
        explain([write(0, 1, "a", 1), write(2, 3, "a", 2)])


def test_unknown_writes_without_consequences_are_left_out() -> None:
    kept = [write(0, 1, "a", 1), read(2, 3, "b", 2)]
    assert informed([*kept, unknown(1, "b"), unknown(1, "c")]) == ([*kept, write(1, NEVER, "b", 2)], set())
    stranger = refused(4, 5, "d", 2, 9)
    told, strangers = informed([*kept, unknown(1, "b"), unknown(1, "c"), stranger])
    assert unknown(1, "c") in told
    assert strangers == {9}


def test_a_chain_of_unknown_writes_of_which_only_the_last_was_named() -> None:
    history = [write(0, 1, "a", 1), unknown(2, "b", on=1), unknown(2, "c", on=2), refused(3, 4, "d", 1, 3)]
    assert explain([*history, read(5, 6, "c", 3)]) is None
    assert explain([*history, read(5, 6, "b", 2)]) is not None


def test_one_of_many_unknown_writes_happened() -> None:
    """One of many unknown writes may explain an answer; the search does not try every combination of them."""
    lost = [unknown(2, f"lost{n}", on=1 if n % 2 else None) for n in range(40)]
    history = [write(0, 1, "a", 1), *lost, *(write(n, n + 1, f"v{n}", n) for n in range(10, 400))]
    named = refused(3, 4, "d", 1, 2)
    assert explain([*history, named]) is None
    assert explain([*history, named, refused(600, 601, "e", 1, 2)]) is not None


def test_sequences_follow_the_order_of_time_over_all_keys() -> None:
    first, second = write(0, 1, "a", 2, key="k"), write(2, 3, "b", 1, key="l")
    assert out_of_order([first, second]) == [(first, second)]
    assert out_of_order([first, second._replace(began=0.5)]) == []
    assert out_of_order([second, first]) == [(first, second)]


# ---- against the definition


def _by_definition(history: list[Operation]) -> bool:
    """Return True if some choice of unknown writes, in some order, is a valid sequential history."""
    must = [each for each in history if each.outcome is not Outcome.UNKNOWN]
    may = [each for each in history if each.outcome is Outcome.UNKNOWN]
    chosen = itertools.chain.from_iterable(itertools.combinations(may, n) for n in range(len(may) + 1))
    return any(_runs(order) for some in chosen for order in itertools.permutations([*must, *some]))


def _runs(order: tuple[Operation, ...]) -> bool:
    for at, later in enumerate(order):
        if any(later.ended < earlier.began for earlier in order[:at]):
            return False
    states = {(0, "")}
    for each in order:
        states = {after for seq, value in states for after in _alone(seq, value, each)}
    return bool(states)


def _alone(seq: int, value: str, operation: Operation) -> set[tuple[int, str]]:
    """Return the possible states of a key after an operation; an unknown write may have got any sequence."""
    if not operation.write:
        return {(seq, value)} & {(operation.seq, operation.value)}
    if operation.outcome is Outcome.REFUSED:
        return {(seq, value)} if seq == operation.seq and seq != operation.expected else set()
    if operation.expected is not None and operation.expected != seq:
        return set()
    given = range(seq + 1, 16) if operation.outcome is Outcome.UNKNOWN else [operation.seq]
    return {(one, operation.value) for one in given if one > seq}


def _drawn(rng: random.Random) -> list[Operation]:
    """Draw a short history of a real key with three clients, some of its answers changed or lost."""
    history: list[Operation] = []
    held, seq = Held(0, ""), 0
    free = [0.0, 0.0, 0.0]
    for number in range(rng.randrange(2, 6)):
        client = rng.randrange(3)
        moment = max(number + rng.random(), free[client])
        began, ended = moment - rng.random() * 2, moment + rng.random() * 2
        began, free[client] = max(began, free[client]), ended
        value = f"v{number}"
        if rng.random() < 0.35:
            history.append(Operation("k", began, ended, held.value, False, None, Outcome.OK, held.seq, client))
            continue
        expected = rng.choice([None, held.seq, held.seq, rng.randrange(3)])
        if expected not in (None, held.seq):
            answer = Operation("k", began, ended, value, True, expected, Outcome.REFUSED, held.seq, client)
        else:
            seq += rng.randrange(1, 3)
            held = Held(seq, value)
            answer = Operation("k", began, ended, value, True, expected, Outcome.OK, seq, client)
        history.append(answer)
    return [_spoilt(rng, each) for each in history]


def _spoilt(rng: random.Random, operation: Operation) -> Operation:
    drawn = rng.random()
    if drawn < 0.2 and operation.write and operation.outcome is Outcome.OK:
        ended = rng.choice([NEVER, operation.ended])
        return operation._replace(outcome=Outcome.UNKNOWN, seq=0, ended=ended)
    if drawn < 0.3 and (operation.seq or not operation.write):
        return operation._replace(seq=max(0, operation.seq + rng.choice([-1, 1])))
    if drawn < 0.4 and not operation.write:
        return operation._replace(value=f"v{rng.randrange(5)}")
    return operation


def test_the_search_finds_what_the_definition_says() -> None:
    rng = random.Random(2017)
    verdicts = {True: 0, False: 0}
    for _ in range(1500):
        history = _drawn(rng)
        wanted = _by_definition(history)
        assert (explain(history) is None) == wanted, history
        verdicts[wanted] += 1
    assert min(verdicts.values()) > 300, f"too few of one kind: {verdicts}"


def test_a_long_history_with_much_at_the_same_time() -> None:
    """Sixteen concurrent writers, with one lost answer in every hundred, are checked in time."""
    rng = random.Random(16)
    history: list[Operation] = []
    held = Held(0, "")
    ends = [0.0] * 16
    for seq in range(1, 4001):
        client = min(range(16), key=ends.__getitem__)
        began, ends[client] = max(ends[client], seq - 12.0), seq + 1 + rng.random()
        lost = rng.random() < 0.01
        ended = NEVER if lost else ends[client]
        history.append(unknown(began, f"v{seq}") if lost else write(began, ended, f"v{seq}", seq))
        held = Held(seq, f"v{seq}")
        if not seq % 5:
            history.append(read(seq + 0.1, seq + 0.9, held.value, held.seq))
    assert explain(history) is None
    stale = read(5000, 5001, "v3900", 3900)
    violation = explain([*history, stale])
    assert violation is not None
    assert violation.stuck[0] == stale
