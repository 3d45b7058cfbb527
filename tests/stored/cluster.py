"""Stores of a cluster of three nodes, one of which was killed before the others stored more."""

from __future__ import annotations

from typing import Any

from tests.cluster.nodes import Cluster
from tests.stored.facts import known
from tests.stored.standalone import CENTURY, CONSUMERS, Filler, wait_copied

CONFIG = 'lake { seal_bytes: 16k, seal_age: "1h" }'
STREAMS: dict[str, dict[str, Any]] = {
    "THREE": {"subjects": ["three.*"], "num_replicas": 3},
    "ONE": {"subjects": ["one.*"], "num_replicas": 1},
    "WORK": {"subjects": ["work.*"], "num_replicas": 3, "retention": "workqueue"},
    "PACKED": {"subjects": ["packed.*"], "num_replicas": 3, "compression": "s2", "max_msgs_per_subject": 40},
    "KV_config": {"subjects": ["$KV.config.>"], "num_replicas": 3, "max_msgs_per_subject": 3, "allow_rollup_hdrs": True,
                  "discard": "new", "deny_delete": True},
    "MIRROR": {"mirror": {"name": "ONE"}, "num_replicas": 3},
    "BATCHES": {"subjects": ["batches.*"], "num_replicas": 3, "allow_atomic": True, "duplicate_window": CENTURY},
    "GROWN": {"subjects": ["grown.*"], "num_replicas": 1},
}  # fmt: skip
DURABLES = ("explicit", "filtered", "all", "pinned")


def fill(cluster: Cluster) -> None:
    """Create streams and consumers on all three nodes."""
    with cluster.wire(timeout=30.0) as wire:
        filler = Filler(wire)
        for name, config in STREAMS.items():
            filler.stream(name, **{"allow_direct": name != "ONE", **config})
        for name in STREAMS:
            cluster.wait_current(name)
        for name in DURABLES:
            filler.consumer("THREE", name, **_renamed(CONSUMERS[name]))
        filler.consumer("ONE", "single", ack_policy="explicit")
        filler.consumer("WORK", "worker", ack_policy="explicit")
        filler.consumer("THREE", "one_replica", ack_policy="explicit", num_replicas=1)
        store(filler, 60)
        filler.tell(filler.pull("THREE", "explicit", 10)[4])
        filler.tell(filler.pull("THREE", "all", 10)[6])
        filler.tell(filler.pull("ONE", "single", 5)[0])
        filler.tell(filler.pull("THREE", "pinned", 2, group="g")[0])
        for frame in filler.pull("WORK", "worker", 20):
            filler.tell(frame)
        filler.stream("DELETED", subjects=["deleted"], num_replicas=3)
        assert wire.api("STREAM.DELETE.DELETED", timeout=30.0)["success"]
        answer = wire.api("STREAM.UPDATE.GROWN", {"name": "GROWN", **STREAMS["GROWN"], "num_replicas": 3}, 30.0)
        assert "error" not in answer, answer
        cluster.wait_current("GROWN")


def _renamed(config: dict[str, Any]) -> dict[str, Any]:
    """Return a consumer's configuration with the subjects of stream THREE."""
    filters = {"filter_subjects": ["three.1", "three.2"]} if "filter_subjects" in config else {}
    return {**config, **filters}


def store(filler: Filler, count: int) -> None:
    """Store messages in every stream."""
    for number in range(count):
        for subject in ("three", "one", "work", "grown"):
            filler.put(f"{subject}.{number % 4}", b"%d " % number * 30, {"Number": str(number)})
        filler.put(f"packed.{number % 5}", b"packed packed packed packed %d " % number * 30)
        filler.put(f"$KV.config.{number % 6}", b"%d" % number)
        filler.put("batches.1", b"%d" % number, {"Nats-Msg-Id": f"{filler.wire.inbox} {number}"})


def go_on(cluster: Cluster) -> None:
    """Store, deliver and remove more on the nodes that run."""
    with cluster.wire(timeout=30.0) as wire:
        filler = Filler(wire)
        store(filler, 40)
        for seq in (3, 50, 70):
            assert wire.api("STREAM.MSG.DELETE.THREE", {"seq": seq}, 30.0)["success"]
        assert wire.api("STREAM.PURGE.GROWN", {"filter": "grown.1"}, 30.0)["success"]
        for frame in filler.pull("THREE", "explicit", 6)[::2]:
            filler.tell(frame)
        for frame in filler.pull("THREE", "filtered", 6):
            filler.tell(frame)
        wait_copied(wire, "MIRROR")


def facts(cluster: Cluster) -> dict[str, Any]:
    """Return what clients learn from the cluster."""
    with cluster.wire(timeout=30.0) as wire:
        wait_copied(wire, "MIRROR")
        return known(wire)
