"""Lasting differences between the answers of a lakestream cluster and a nats-server cluster, with their reasons.

Belongs here: differences that are intended to stay. Missing behaviour is a failing scenario, never an entry.
"""

from __future__ import annotations

from tests.conformance.differences import Difference

DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "consumers.pulling_over_any_node",
        'MSG.NEXT {"batch": 9, "no_wait": true}/3/header',
        "a replicated consumer of nats-server ends a pull that it could fill in part with 408, its others with 404",
    ),
    Difference(
        "consumer_acks.a_leader_that_is_stopped_tells_who_waits",
        "told/0/header",
        "a node that is stopped hands over first: another one leads already, and those who wait are told so",
    ),
)
