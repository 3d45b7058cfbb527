"""The mirror, or the sources, of one stream, as one part of it.

Belongs here: beginning and ending sessions with origins (with leadership, and with the configuration), the operations
and positions that all replicas keep, the part of the checkpoint, and what INFO shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from lakestream.protocol.api.errors import invalid
from lakestream.protocol.api.jsonio import shown
from lakestream.protocol.decoding import PackDecoder
from lakestream.stream.core.config import StreamConfig, StreamSource
from lakestream.stream.core.effect import STREAM_SOURCE
from lakestream.stream.core.feature import NEVER, Feature, Stored
from lakestream.stream.core.operations import Fork, Near, Operation, Restored
from lakestream.stream.core.publish import PublishRule
from lakestream.stream.core.stream import StreamCore
from lakestream.stream.mirroring.clone import (
    AS_OF,
    LIMITS,
    Clones,
    CloneSession,
    apply_fork,
    can_begin_as_clone,
    moment,
)
from lakestream.stream.mirroring.mirror import Mirror
from lakestream.stream.mirroring.origin import Origin, key_of
from lakestream.stream.mirroring.session import OriginSession
from lakestream.stream.mirroring.sources import SOURCE, Merge, Positions, Source, read_source, refuse_source


class _State(msgspec.Struct):
    sources: list[tuple[str, int, str, int]] = []
    """See `Positions.dump`."""
    near: bool = False
    """See `Mirroring.near`."""


_STATE = PackDecoder(_State)


class Mirroring(Feature):
    """The mirror, or the sources, of one stream."""

    operations = (Near, Fork)
    rules = (PublishRule(refuse_source, frozenset({STREAM_SOURCE}), single=70, replicated=60, member=70),)
    effects = ((STREAM_SOURCE, read_source),)

    def __init__(self, host: StreamCore, merge: Merge) -> None:
        self._host, self._merge = host, merge
        self._config = host.config
        self.positions = Positions()
        """Positions in the sources, by what is committed."""
        self.near = False
        """True if the mirror has been near its origin under some leader: known to every replica."""
        self.clones: Clones | None = None
        """Creates clones as the bases of mirrors; None without a lake."""
        self.copying = False
        """True if messages of origins are stored here: there is one, and this node leads."""
        self._running: list[Mirror | Source] = []
        self._leads = False

    # ------------------------------------------------------------------ entries are applied
    def configure(self, config: StreamConfig) -> None:
        """Take the stream's configuration; sessions that it does not change go on."""
        before = [key_of(source) for source in self._config.sources]
        self._added([key for key in map(key_of, config.sources) if key not in before])
        self._config = config
        if self._leads:
            self._adjust()

    def apply(self, operation: Operation) -> object:
        """Apply `Near` or `Fork`. Raise NoBase if what a mirror began with is not known here."""
        if isinstance(operation, Fork):
            if apply_fork(self._host.store, self._config, operation):
                self._host.rebased()
        elif not self.near:
            self.near = True
            self._host.updated()
        return None

    def applied(self, operation: Operation, own: bool) -> None:
        """Note the end of a restore: which sources the archive's stream had is not known."""
        if isinstance(operation, Restored):
            self._added([key_of(source) for source in self._config.sources])

    def _added(self, keys: Sequence[str]) -> None:
        """Begin new sources at the stream's last message if its first ones are gone; see `Positions.added`."""
        store = self._host.store
        if store.first_seq > 1 and store.last_time:
            self.positions.added(keys, store.last_time)

    def stored(self, stored: Stored) -> None:
        for effect in stored.effects:
            where = SOURCE.of(effect)
            if where is not None:
                self.positions.note(where)

    # ------------------------------------------------------------------ leading begins and ends
    def lead(self, recovered: bool) -> None:
        self._leads = True
        self._adjust()

    def follow(self) -> None:
        self._leads = False
        for one in self._running:
            one.session.end()
        self._running, self.copying = [], False

    def stop(self, deleted: bool) -> None:
        """End with the stream on this node. `deleted`: origins need not keep their consumers for it."""
        if deleted:
            for one in self._running:
                one.session.end(remove=True)
            self._running = []
        self.follow()

    def _adjust(self) -> None:
        """Begin and end sessions as the configuration says."""
        config, before, self._running = self._config, list(self._running), []
        if not config.sealed:
            mirror = config.mirror
            for source in config.sources if mirror is None else [mirror]:
                self._run(source, mirror is not None, before)
        self.copying = bool(self._running)
        for gone in before:
            gone.session.end(remove=True)

    def _run(self, source: StreamSource, mirror: bool, before: list[Mirror | Source]) -> None:
        """Go on with the session of a source if it is in `before`, else begin one."""
        key = key_of(source)
        for one in before:
            if isinstance(one, Mirror) is mirror and key_of(one.source) == key:
                one.source = source  # its start is decided already
                before.remove(one)
                self._running.append(one)
                return
        host = self._host
        origin = Origin(source, host.account, host.name, mirror=mirror)
        begun: Mirror | Source
        if mirror:
            begun = Mirror(origin, host.pipeline, host.proposer, self._came_near)
            begun.session = CloneSession(host, origin, begun, lambda: self.clones)
        else:
            begun = Source(origin, self.positions, self._merge, host.proposer, host.reader, host.clock)
            begun.session = OriginSession(origin, begun, host.bus, host.clock, host.pipeline)
        self._running.append(begun)
        begun.session.begin()

    def _came_near(self) -> None:
        """Tell all replicas that the mirror is near its origin."""
        if not self.near:
            self._host.propose(Near())
        elif not self._host.replicated:
            self._host.updated()  # known since before a restart, and true again

    # ------------------------------------------------------------------ questions of the API
    def check_update(self, config: StreamConfig) -> None:
        """Raise ApiError for a configuration that does not fit a clone under way, or that changes its moment."""
        if self._config.mirror is None:
            return
        fits = config.mirror == self._config.mirror and can_begin_as_clone(config)
        fits = fits and all(getattr(config, name) == getattr(self._config, name) for name in LIMITS)
        if self._cloning and not fits:
            why = "the mirror's copy of its origin is being made"
            raise invalid(f"{why}; try again when it is there, or delete the mirror")
        if config.mirror is not None and moment(config) != moment(self._config):
            raise invalid(f"{AS_OF} of a mirror can not be changed; delete it and make another")

    @property
    def _cloning(self) -> bool:
        """Return True if the mirror may begin with a clone soon."""
        return any(isinstance(one.session, CloneSession) and one.session.cloning for one in self._running)

    @property
    def reads_from(self) -> str:
        """Return the origin that answers reads while the clone with which the mirror begins is made, "" for none.

        Followers do not know whether a clone is made: they assume it where one may be.
        """
        mirror = self._config.mirror
        if mirror is None or mirror.filter_subject or mirror.subject_transforms or self._host.store.last_seq:
            return ""
        waits = self._cloning if self._leads else can_begin_as_clone(self._config)
        return mirror.name if waits and not moment(self._config) else ""

    @property
    def answers_for(self) -> str:
        """Return the origin whose direct gets this replica answers too, "" for none."""
        mirror = self._config.mirror
        if mirror is None or mirror.external is not None or not self._config.mirror_direct:
            return ""
        near = any(isinstance(one, Mirror) and one.near for one in self._running)
        # A replica still answers after its leader was near, as for its own stream; so does a sealed mirror, which
        # makes no progress.
        stays = self._host.replicated or self._config.sealed
        return mirror.name if near or (self.near and stays) else ""

    def acts_at(self) -> int:
        return NEVER if self._config.mirror is None and not self._config.sources else 0

    # ------------------------------------------------------------------ state
    def dump(self) -> dict[str, object]:
        return {"sources": self.positions.dump(), "near": self.near}

    def load(self, checkpoint: bytes) -> None:
        state = _STATE.decode(checkpoint)
        self.positions.load(state.sources)
        self.near = state.near

    def info(self) -> dict[str, Any]:
        """Return the fields `mirror` or `sources` of StreamInfo; nothing for other streams."""
        if self._config.mirror is not None:
            return {"mirror": self._shown(self._config.mirror)}
        if self._config.sources:
            return {"sources": [self._shown(source) for source in self._config.sources]}
        return {}

    def _shown(self, source: StreamSource) -> dict[str, Any]:
        one = next((one for one in self._running if one.source == source), None)
        fields: dict[str, Any] = {"name": source.name}
        if source.external is not None:
            fields["external"] = shown(source.external)
        fields["lag"] = one.session.lag if one is not None else 0
        if one is not None and one.seq:
            fields["seq"] = one.seq
        fields["active"] = one.session.active_ns() if one is not None else -1
        error = self._host.failed or (None if one is None else one.session.error)
        if error is not None:
            fields["error"] = error.as_dict()
        if source.filter_subject:
            fields["filter_subject"] = source.filter_subject
        if source.subject_transforms:
            fields["subject_transforms"] = [shown(each) for each in source.subject_transforms]
        return fields
