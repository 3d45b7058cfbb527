"""Scenarios of nodes that fail and come back."""

from __future__ import annotations

from tests.cluster.harness import SETTLE_S, ClusterScript, breaking
from tests.cluster.nodes import until
from tests.wire import WireTimeout

OFFLINE_S = 20.0
UNAVAILABLE = 10008


@breaking
def a_follower_is_gone(script: ClusterScript) -> None:
    script.replicated("GF", ["gf"], 3)
    script.fill(["gf"] * 3)
    gone = script.cluster.followers("GF")[0]
    gone.kill()
    script.publish("gf", b"without")

    def missed() -> bool:
        replicas = script.cluster.stream_cluster("GF")["replicas"]
        current = {replica["name"]: replica["current"] and not replica.get("offline") for replica in replicas}
        return sorted(current.values()) == [False, True] and not current[gone.name]

    until(missed, "one replica that is not current", OFFLINE_S)
    script.note("cluster", script.cluster.stream_cluster("GF"))
    script.state("GF")
    gone.start()
    script.settled("GF")
    script.state("GF")


@breaking
def the_leader_is_gone(script: ClusterScript) -> None:
    script.replicated("GL", ["gl"], 3)
    script.consumer("GL", "c")
    script.fill_seen("GL", "c", ["gl"] * 4)
    for frame in script.pull("GL", "c", {"batch": 2}, 2):
        script.ack(frame)
    gone = script.leader("GL")
    gone.kill()
    until(lambda: script.leader("GL") is not gone, "another leader", OFFLINE_S)
    until(lambda: "seq" in script.wire.request("gl", b"after").json(), "an ack", OFFLINE_S)
    until(lambda: "error" not in script.cluster.api("CONSUMER.INFO.GL.c", timeout=1.0), "a consumer", OFFLINE_S)
    script.pull("GL", "c", {"batch": 2, "expires": 2_000_000_000}, 2)
    gone.start()
    script.cluster.wait_current("GL", SETTLE_S)
    script.settled("GL")


@breaking
def without_a_majority_nothing_is_promised(script: ClusterScript) -> None:
    script.replicated("QL", ["ql"], 3)
    script.consumer("QL", "c")
    script.fill(["ql"] * 2)
    script.cluster.lead("QL", script.cluster.nodes[0])
    for node in script.cluster.nodes[1:]:
        node.kill()
    try:
        frame = script.wire.request("ql", b"into the void", timeout=1.0)
        script.note("acked without a majority", "seq" in frame.data.decode())
    except WireTimeout:
        script.note("acked without a majority", False)

    def given_up() -> bool:
        answer = script.wire.api("STREAM.CREATE.NEW", {"name": "NEW", "subjects": ["new"]}, 3.0)
        return (answer.get("error") or {}).get("err_code") == UNAVAILABLE

    until(given_up, "a cluster that says that it is unavailable", OFFLINE_S)

    def leaderless() -> bool:
        return not (script.wire.api("STREAM.INFO.QL").get("cluster") or {}).get("leader")

    until(leaderless, "no stream leader", OFFLINE_S)

    def consumer_leaderless() -> bool:  # nats-server's consumers have groups of their own, which notice it themselves
        return "error" in script.wire.api("CONSUMER.INFO.QL.c", timeout=3.0)

    until(consumer_leaderless, "no consumer leader", OFFLINE_S)
    for subject, body in (
        ("STREAM.NAMES", None),
        ("STREAM.LIST", None),
        ("STREAM.INFO.QL", None),
        ("STREAM.DELETE.QL", None),
        ("STREAM.MSG.GET.QL", {"seq": 1}),
        ("STREAM.LEADER.STEPDOWN.QL", None),
        ("CONSUMER.INFO.QL.c", None),
        ("INFO", None),
    ):
        script.api(subject, body)
    script.frames("publish", [script.wire.request("ql", b"x")])
    for node in script.cluster.nodes[1:]:
        node.start()
    script.cluster.wait_ready()


@breaking
def a_stream_of_one_replica_is_gone_with_its_node(script: ClusterScript) -> None:
    script.replicated("G1", ["g1"], 1, placement={"tags": ["az:c"]})
    script.fill(["g1"] * 2)
    gone = script.cluster.nodes[2]
    script.cluster.nodes[2].kill()
    until(lambda: script.cluster.meta_leader() is not gone, "a meta leader", OFFLINE_S)

    def answered() -> bool:
        return "streams" in script.wire.api("STREAM.NAMES", timeout=1.0)

    until(answered, "names", OFFLINE_S)
    script.api("STREAM.NAMES")
    gone.start()
    until(lambda: "state" in script.wire.api("STREAM.INFO.G1", timeout=1.0), "the stream again", SETTLE_S)
    script.state("G1")
    script.publish("g1", b"again")
