"""Scenarios of a cluster's advisories."""

from __future__ import annotations

from tests.cluster.harness import ClusterScript, scenario


@scenario
def streams_and_consumers_elect_leaders(script: ClusterScript) -> None:
    wire = script.connect()
    sid = wire.subscribe("$JS.EVENT.ADVISORY.STREAM.>")
    wire.subscribe("ready")
    script.heard("ready")
    script.replicated("EL", ["el"], 3)
    script.advisories(wire, sid, ("LEADER_ELECTED.EL", "CREATED.EL"), 2)
    script.cluster.api("STREAM.DELETE.EL")
    script.advisories(wire, sid, ("DELETED.EL",), 1)


@scenario
def a_request_is_audited_once(script: ClusterScript) -> None:
    wire = script.connect()
    sid = wire.subscribe("$JS.EVENT.ADVISORY.API")
    wire.subscribe("ready")
    script.heard("ready")
    script.at(2).api("STREAM.DELETE.NOT_THERE")
    frame = wire.delivered(sid)
    said = frame.json()
    script.note("audit", {key: said.get(key) for key in ("type", "subject", "response")})
    script.note("client", {key: said["client"].get(key) for key in ("acc", "cluster", "kind", "client_type", "server")})
