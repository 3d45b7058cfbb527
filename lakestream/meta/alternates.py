"""Where else what a stream holds may be read: the mirrors that StreamInfo names in a cluster.

Belongs here: the field `alternates` (docs/internals/api.md#streams) and the index behind it, which is made anew when
assignments have changed since it was last asked for. Whether a mirror has everything or a part is not looked at, as by
nats-server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakestream.meta.assignments import MetaState
    from lakestream.meta.node import JetStreamCluster

_MIRROR = b'"mirror":{'
"""In every assigned configuration of a mirror: configurations are encoded here."""


class Alternates:
    """The mirrors of every stream that is assigned."""

    def __init__(self, cluster: JetStreamCluster) -> None:
        self._cluster = cluster
        self._known: dict[tuple[str, str], list[str]] = {}
        self._as_of: tuple[MetaState | None, int] = (None, 0)

    def of(self, account: str, name: str, domain: str) -> list[dict[str, str]]:
        """The stream itself and its mirrors, by name; empty when it has none."""
        self._renew()
        mirrors = self._known.get((account, name), [])
        place = {"domain": domain} if domain else {}
        return [{"name": each, **place, "cluster": self._cluster.name} for each in (name, *mirrors)] if mirrors else []

    def _renew(self) -> None:
        meta = self._cluster.meta
        state, applied = meta.state, meta.store.applied if meta.store is not None else 0
        if self._as_of[0] is state and self._as_of[1] == applied:
            return
        known: dict[tuple[str, str], list[str]] = {}
        for (account, name), assignment in state.streams.items():
            if _MIRROR in assignment.config and not assignment.restoring:
                mirror = self._cluster.config_of(assignment).mirror
                if mirror is not None:
                    known.setdefault((account, mirror.name), []).append(name)
        for names in known.values():
            names.sort()
        self._known, self._as_of = known, (state, applied)
