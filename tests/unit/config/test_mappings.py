"""Tests of an account's subject mappings."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.config.account_options import Destination, SubjectMapping
from lakestream.config.mappings import Mappings
from lakestream.protocol.transforms import TransformError

pytestmark = pytest.mark.unit


def mapping(subject: str, *destinations: tuple[str, int] | tuple[str, int, str]) -> SubjectMapping:
    return SubjectMapping(subject, tuple(Destination(*each) for each in destinations))


def shares(mappings: SubjectMapping, subject: bytes, cluster: str = "") -> dict[bytes, int]:
    """Return the number of messages per destination, of a hundred with each random number once."""
    numbers = iter(range(100))
    drawing = Mappings([mappings], cluster, lambda: next(numbers))
    return dict(Counter(drawing.apply(subject) for _ in range(100)))


@pytest.mark.parametrize(
    ("one", "subject", "wanted"),
    [
        (mapping("a", ("b", 100)), b"a", {b"b": 100}),
        (mapping("a", ("b", 100)), b"a.b", {b"a.b": 100}),
        (mapping("a"), b"a", {b"a": 100}),
        (mapping("a", ("b", 10)), b"a", {b"b": 10, b"a": 90}),
        (mapping("a", ("a", 20)), b"a", {b"a": 20, b"": 80}),
        (mapping("a", ("a", 0)), b"a", {b"": 100}),
        (mapping("a", ("a", 20), ("b", 30)), b"a", {b"a": 20, b"b": 30, b"": 50}),
        (mapping("a.*", ("b.$1", 30), ("c.$1", 50)), b"a.x", {b"b.x": 30, b"c.x": 50, b"a.x": 20}),
        (mapping("a.*.>", ("b.$1.>", 30)), b"a.x.y.z", {b"b.x.y.z": 30, b"a.x.y.z": 70}),
        (mapping("a.>", ("b.>", 100)), b"a.*", {b"b.*": 100}),
        (mapping("a.*", ("b.$1", 100)), b"a.>", {b"a.>": 100}),
        (mapping("a.>", ("b.>", 100)), b"a..c", {b"a..c": 100}),
        (mapping("a", ("b", 40, "X"), ("c", 100, "Y")), b"a", {b"a": 100}),
    ],
)
def test_shares(one: SubjectMapping, subject: bytes, wanted: dict[bytes, int]) -> None:
    assert shares(one, subject) == wanted


@pytest.mark.parametrize(
    ("cluster", "wanted"), [("X", {b"b": 40, b"a": 60}), ("Y", {b"c": 100}), ("Z", {b"d": 100}), ("", {b"d": 100})]
)
def test_a_cluster_has_ways_of_its_own(cluster: str, wanted: dict[bytes, int]) -> None:
    assert shares(mapping("a", ("d", 100), ("b", 40, "X"), ("c", 100, "Y")), b"a", cluster) == wanted


def test_the_literal_subject_goes_first_then_the_order_of_the_configuration() -> None:
    mappings = Mappings(
        [mapping("o.*", ("star", 100)), mapping("o.>", ("rest.>", 100)), mapping("o.a", ("literal", 100))]
    )
    assert [mappings.apply(subject) for subject in (b"o.a", b"o.b", b"o.a.b", b"p")] == [
        b"literal",
        b"star",
        b"rest.a.b",
        b"p",
    ]


def test_what_is_mapped_is_not_mapped_again() -> None:
    mappings = Mappings([mapping("a", ("b", 100)), mapping("b", ("c", 100))])
    assert mappings.apply(b"a") == b"b"


def test_a_subject_with_its_own_mapping_is_told_apart_from_one_without() -> None:
    mappings = Mappings([mapping("a", ("a", 100))])
    assert mappings.mapped(b"a") == b"a"
    assert mappings.mapped(b"b") is None


def test_a_subject_that_would_become_too_long_stays() -> None:
    mappings = Mappings([mapping("a.*", (".".join(["$1"] * 50), 100))])
    assert mappings.apply(b"a." + b"x" * 4000) == b"a." + b"x" * 4000


@pytest.mark.parametrize(
    ("one", "error"),
    [
        (mapping("a", ("b", 50), ("b", 20)), 'duplicate entry for "b"'),
        (mapping("a", ("b", 60), ("c", 50)), "total weight needs to be <= 100"),
        (mapping("a", ("b", 60, "X"), ("c", 50, "X")), "total weight needs to be <= 100"),
        (mapping("a", ("b.*", 100)), "invalid subject"),
        (mapping("ov.>", ("ov.rest", 100)), "invalid subject"),
        (mapping("a.*", ("b.$2", 100)), "invalid mapping destination: wildcard index out of range in $2: [2]"),
        (mapping("a.*", ("b.{{foo(1)}}", 100)), "invalid mapping destination: unknown function in {{foo(1)}}"),
    ],
)
def test_what_can_not_be(one: SubjectMapping, error: str) -> None:
    with pytest.raises(TransformError) as raised:
        Mappings([one])
    assert str(raised.value) == error


def test_shown_as_nats_server_shows_them() -> None:
    mappings = Mappings(
        [
            mapping("w", ("w2", 50), ("w1", 20)),
            mapping("half.*", ("h.$1", 10)),
            mapping("cl", ("c.here", 40, "X")),
        ]
    )
    assert mappings.shown() == {
        "cl": [
            {"subject": "cl", "weight": 100},
            {"subject": "c.here", "weight": 40, "cluster": "X"},
            {"subject": "cl", "weight": 100, "cluster": "X"},
        ],
        "half.*": [{"subject": "h.$1", "weight": 10}, {"subject": "half.$1", "weight": 100}],
        "w": [
            {"subject": "w1", "weight": 20},
            {"subject": "w", "weight": 50},
            {"subject": "w2", "weight": 100},
        ],
    }


@given(st.lists(st.integers(0, 100), max_size=5).filter(lambda weights: sum(weights) <= 100))
def test_every_message_goes_where_its_weight_says(weights: list[int]) -> None:
    one = mapping("a", *((f"d{n}", weight) for n, weight in enumerate(weights)))
    wanted = {b"d%d" % n: weight for n, weight in enumerate(weights) if weight}
    if left := 100 - sum(weights):
        wanted[b"a"] = left
    assert shares(one, b"a") == wanted
