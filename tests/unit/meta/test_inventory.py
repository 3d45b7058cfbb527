"""The index of the streams that a new one is checked against."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from lakestream.meta.assignments import Assignment, AssignStream, ChangeStream, MetaState, RemoveStream
from lakestream.meta.inventory import AccountInventory, Inventory, Owners
from lakestream.protocol.subjects import overlaps
from lakestream.stream.core.config import StreamConfig

_config = msgspec.json.Decoder(StreamConfig)


class _Decoding:
    """Counts the configurations that are decoded."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def config_of(self, assignment: Assignment) -> StreamConfig:
        self.names.append(assignment.name)
        return _config.decode(assignment.config)


def _encoded(name: str, *subjects: str, **fields: object) -> bytes:
    return msgspec.json.encode(StreamConfig(name=name, subjects=list(subjects), **fields))  # type: ignore[arg-type]


def _assign(state: MetaState, name: str, *subjects: str, account: str = "A", **fields: object) -> None:
    config = _encoded(name, *subjects, **fields)
    state.apply(AssignStream(f"u-{account}-{name}", account, name, config, ("n1", "n2"), 1), len(state.by_uid) + 1)


def test_overlaps_are_those_of_each_pair_of_subjects() -> None:
    """Any set of subjects, as it grows and shrinks, against a comparison of each with each."""
    random = Random(13)
    subjects = ["a.>", ">", "*.>", "b.a.>"]
    subjects += [".".join(random.choices("ab*", k=random.randint(1, 3))) for _ in range(60)]
    owners, held = Owners(), dict[tuple[bytes, str], None]()
    for _ in range(600):
        subject, name = random.choice(subjects).encode(), random.choice("XYZ")
        if (subject, name) in held:
            owners.remove(subject, name)
            del held[subject, name]
        elif len(held) < 12:
            owners.add(subject, name)
            held[subject, name] = None
        asked = random.choice(subjects).encode()
        assert set(owners.overlapping(asked)) == {owner for one, owner in held if overlaps(one, asked)}, (asked, held)
    for subject, name in held:
        owners.remove(subject, name)
    assert not owners._root, "nothing is left of subjects that were removed"


@pytest.mark.parametrize(
    ("others", "taken"),
    [
        ([["a.b"]], True),
        ([["x"], ["*.c", "a.>"]], True),
        ([["a.c"], ["b"], ["a"]], False),
    ],
)
def test_subjects_of_other_streams_are_taken(others: list[list[str]], taken: bool) -> None:
    streams = AccountInventory()
    for at, subjects in enumerate(others):
        streams.put(f"O{at}", StreamConfig(name=f"O{at}", subjects=subjects))
    streams.put("N", StreamConfig(name="N", subjects=["a.b"]))  # the stream itself does not count
    assert streams.overlaps(StreamConfig(name="N", subjects=["q", "a.b"])) is taken


def test_a_change_costs_the_streams_that_it_changes() -> None:
    state, decoding, inventory = MetaState(), _Decoding(), Inventory()
    for at in range(100):
        _assign(state, f"S{at}", f"s{at}.>")
    inventory.renew(state, decoding.config_of)
    decoding.names.clear()
    _assign(state, "NEW", "new.>")
    inventory.renew(state, decoding.config_of)
    state.apply(ChangeStream("u-A-S7", _encoded("S7", "seven"), ("n1",)), 200)
    state.apply(RemoveStream("u-A-S8"), 201)
    inventory.renew(state, decoding.config_of)
    inventory.renew(state, decoding.config_of)
    assert decoding.names == ["NEW", "S7"]
    streams = inventory.of("A")
    asked = ("new.x", "s7.x", "seven", "s8.x", "s9.x")
    taken = [one for one in asked if streams.overlaps(StreamConfig(name="N", subjects=[one]))]
    assert taken == ["new.x", "seven", "s9.x"]
    assert (streams.streams(), inventory.holds["n1"], inventory.holds["n2"]) == (100, 100, 99)


def test_reserved_bytes_are_those_of_the_other_streams() -> None:
    state, inventory = MetaState(), Inventory()
    _assign(state, "A", max_bytes=100, num_replicas=1)
    _assign(state, "B", max_bytes=30, num_replicas=3)
    _assign(state, "M", max_bytes=5, storage="memory")
    _assign(state, "F", max_bytes=7, num_replicas=1, account="OTHER")
    inventory.renew(state, _Decoding().config_of)
    streams = inventory.of("A")
    assert streams.reserved("file", lambda replicas: replicas) == 190
    assert streams.reserved("file", lambda replicas: replicas, beside="A") == 90
    assert streams.reserved("file", lambda replicas: 1, "R3") == 30
    assert streams.reserved("memory", lambda replicas: 1) == 5
    assert inventory.all_reserved("file", beside=("A", "B")) == 107
    assert (streams.streams("R1"), streams.streams("R3"), streams.streams("R1", beside="A")) == (2, 1, 1)
    assert inventory.reserved["file", "n1"] == 137


def test_proposed_changes_count_until_they_end() -> None:
    state, inventory = MetaState(), Inventory()
    _assign(state, "A", "a")
    inventory.renew(state, _Decoding().config_of)
    inventory.propose("A", StreamConfig(name="A", subjects=["b"]))
    inventory.propose("A", StreamConfig(name="NEW", subjects=["new"]))

    def taken() -> list[bool]:
        return [inventory.of("A").overlaps(StreamConfig(name="N", subjects=[one])) for one in ("a", "b", "new")]

    assert taken() == [False, True, True]
    inventory.proposed("A", "A")  # it failed
    _assign(state, "NEW", "new")
    inventory.renew(state, _Decoding().config_of)
    inventory.proposed("A", "NEW")
    assert taken() == [True, False, True]


def test_another_state_replaces_all_that_was_known() -> None:
    before, after, inventory = MetaState(), MetaState(), Inventory()
    _assign(before, "A", "a")
    _assign(after, "B", "b")
    inventory.renew(before, _Decoding().config_of)
    inventory.renew(after, _Decoding().config_of)
    assert list(inventory.of("A").configs) == ["B"]
    assert inventory.leads["n1"] == 1
