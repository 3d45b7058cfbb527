"""Tests of valid and invalid mirrors and sources beyond the scenarios: cost of large graphs, and alternates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lakestream.meta.assignments import AssignStream, MetaState, RemoveStream
from lakestream.meta.cluster import ClusterShown
from lakestream.protocol.api.errors import ApiError
from lakestream.stream.core.config import StreamConfig, StreamSource
from lakestream.stream.mirroring.origin_rules import check_filters, checked_origins


def _sourcing(name: str, *origins: str) -> StreamConfig:
    return StreamConfig(name=name, sources=[StreamSource(name=origin) for origin in origins])


def test_a_lattice_of_sources_is_looked_through_once() -> None:
    """The number of paths doubles with each level."""
    levels = 60
    streams = {
        f"{side}{level}": _sourcing(f"{side}{level}", f"a{level - 1}", f"b{level - 1}")
        for level in range(1, levels)
        for side in "ab"
    } | {"a0": StreamConfig(name="a0"), "b0": StreamConfig(name="b0")}
    looked_at: list[str] = []

    def get(name: str) -> StreamConfig | None:
        looked_at.append(name)
        assert len(looked_at) <= 4 * levels
        return streams.get(name)

    checked_origins(_sourcing("top", f"a{levels - 1}", f"b{levels - 1}"), get)
    assert set(looked_at) == set(streams)


def test_a_cycle_behind_a_lattice_is_found() -> None:
    streams = {"a": _sourcing("a", "c"), "b": _sourcing("b", "c"), "c": _sourcing("c", "top")}
    with pytest.raises(ApiError, match="detected cycle"):
        checked_origins(_sourcing("top", "a", "b"), streams.get)


def test_filters_are_looked_at_for_new_streams_only() -> None:
    config = StreamConfig(name="S", sources=[StreamSource(name="O", filter_subject="a..b")])
    assert checked_origins(config, lambda name: None) is config
    with pytest.raises(ApiError, match=r"subject filter 'a\.\.b' for the source: invalid subject"):
        check_filters(config)


def _cluster() -> Any:
    """Return a node with the attributes that `ClusterShown` uses."""
    return SimpleNamespace(
        name="C",
        meta=SimpleNamespace(state=MetaState(), as_of=0),
        config_of=lambda assignment: msgspec.json.decode(assignment.config, type=StreamConfig),
    )


def _apply(cluster: Any, op: AssignStream | RemoveStream) -> None:
    cluster.meta.as_of += 1
    cluster.meta.state.apply(op, cluster.meta.as_of)


def test_alternates_follow_the_assignments() -> None:
    cluster = _cluster()
    alternates = ClusterShown(cluster)
    for name, config in (
        ("O", StreamConfig(name="O")),
        ("N", StreamConfig(name="N", mirror=StreamSource(name="O"))),
        ("M", StreamConfig(name="M", mirror=StreamSource(name="O"))),
    ):
        assert alternates.alternates("$G", "O", "") == []
        _apply(cluster, AssignStream(f"uid-{name}", "$G", name, msgspec.json.encode(config), ("n1",), 1))
        if name == "N":
            assert [each["name"] for each in alternates.alternates("$G", "O", "")] == ["O", "N"]
            _apply(cluster, RemoveStream("uid-N"))
    found = alternates.alternates("$G", "O", "D")
    assert found == [{"name": name, "domain": "D", "cluster": "C"} for name in ("O", "M")]
    assert alternates.alternates("OTHER", "O", "") == alternates.alternates("$G", "M", "") == []
    cluster.meta.state = MetaState()  # as after a transfer of the whole state
    assert alternates.alternates("$G", "O", "") == []
