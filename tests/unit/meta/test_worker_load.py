"""Tests of the decision which stream moves to another worker."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.meta.worker_load import BUSY, HOT_LOOKS, LEAST_GAIN, QUIET_LOOKS, Balancer, WorkerLoad

pytestmark = pytest.mark.unit


def looks(balancer: Balancer, loads: Mapping[str, WorkerLoad], number: int) -> list[tuple[str, str] | None]:
    return [balancer.look(loads) for _ in range(number)]


TWO_BUSY = {"a": WorkerLoad(0.9, {"big": 0.5, "small": 0.3}), "b": WorkerLoad(0.1)}


def test_the_stream_that_evens_it_out_best_moves_once_a_worker_was_busy_for_long() -> None:
    found = looks(Balancer(), TWO_BUSY, HOT_LOOKS)
    assert found == [None] * (HOT_LOOKS - 1) + [("big", "b")]


def test_a_worker_that_was_busy_now_and_then_keeps_its_streams() -> None:
    balancer = Balancer()
    for _ in range(10):
        assert looks(balancer, TWO_BUSY, HOT_LOOKS - 1) == [None] * (HOT_LOOKS - 1)
        balancer.look({"a": WorkerLoad(BUSY), "b": WorkerLoad(0.1)})


def test_the_only_busy_stream_of_a_worker_stays() -> None:
    loads = {"a": WorkerLoad(0.95, {"only": 0.9}), "b": WorkerLoad(0.05)}
    assert looks(Balancer(), loads, 50) == [None] * 50


def test_nothing_moves_to_a_worker_that_is_as_busy() -> None:
    loads = {"a": WorkerLoad(0.9, {"x": 0.3, "y": 0.3}), "b": WorkerLoad(0.85, {"z": 0.6})}
    assert looks(Balancer(), loads, 50) == [None] * 50


def test_a_worker_that_is_busy_with_its_clients_alone_has_nothing_to_give() -> None:
    assert looks(Balancer(), {"a": WorkerLoad(1.0), "b": WorkerLoad(0.0)}, 50) == [None] * 50


def test_after_a_move_there_is_none_for_a_while() -> None:
    balancer = Balancer()
    looks(balancer, TWO_BUSY, HOT_LOOKS)
    found = looks(balancer, TWO_BUSY, 100)
    assert found.index(("big", "b")) >= QUIET_LOOKS


def test_of_several_workers_the_busiest_gives_to_the_idlest() -> None:
    loads = {
        "a": WorkerLoad(0.8, {"p": 0.4}),
        "b": WorkerLoad(0.95, {"q": 0.4}),
        "c": WorkerLoad(0.3),
        "d": WorkerLoad(0.1),
    }
    assert looks(Balancer(), loads, HOT_LOOKS)[-1] == ("q", "d")


SHARES = st.floats(0, 1)


@given(st.dictionaries(st.sampled_from("abcd"), st.lists(SHARES, max_size=4), min_size=2))
def test_each_move_makes_the_busiest_worker_less_busy_so_it_ends(shares: dict[str, list[float]]) -> None:
    held = {name: {f"{name}{at}": share for at, share in enumerate(each)} for name, each in shares.items()}
    balancer, moves = Balancer(), 0
    for _ in range(2000):
        loads = {name: WorkerLoad(sum(streams.values()), streams) for name, streams in held.items()}
        found = balancer.look(loads)
        if found is None:
            continue
        uid, target = found
        source = next(name for name, streams in held.items() if uid in streams)
        before = max(loads[source].share, loads[target].share)
        held[target][uid] = held[source].pop(uid)
        assert max(sum(held[source].values()), sum(held[target].values())) <= before - LEAST_GAIN + 1e-9
        moves += 1
    assert moves <= 16
