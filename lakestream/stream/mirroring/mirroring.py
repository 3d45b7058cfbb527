"""What a stream copies from others: the part that its leader has of a mirror, or of sources.

Belongs here: when sessions begin and end (with leadership, and with the configuration), and what INFO shows of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakestream.protocol.api.jsonio import shown
from lakestream.stream.core.config import StreamConfig, StreamSource
from lakestream.stream.mirroring.clone import Clones, can_begin_as_copy, moment
from lakestream.stream.mirroring.mirror import Mirror
from lakestream.stream.mirroring.origin import key_of
from lakestream.stream.mirroring.source_state import Positions
from lakestream.stream.mirroring.sources import Source

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream


class Copying:
    """The sessions of one stream. A part of it: see `Part`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.positions = Positions()
        """How far the stream has come in its sources, by what is committed."""
        self.near = False
        """Whether the mirror has been close to its origin under some leader: what the other replicas go by."""
        self.clones: Clones | None = None
        """Who gets mirrors copies to begin with; None without a lake."""
        self._at_work: list[Mirror | Source] = []
        self._started = False

    # ------------------------------------------------------------------ life
    def start(self) -> None:
        """See `Part.start`."""
        self._started = True
        self.adopt(self._stream.config)

    def stop(self) -> None:
        """See `Part.stop`."""
        self._started = False
        for one in self._at_work:
            one.session.end()
        self._at_work = []

    def removed(self) -> None:
        """The stream is gone for good: no origin need keep anything for it. Before `stop`."""
        for one in self._at_work:
            one.session.end(remove=True)
        self._at_work = []

    def adopt(self, config: StreamConfig) -> None:
        """Take a configuration: what is copied as before goes on."""
        if not self._started:
            return
        stream, before = self._stream, list(self._at_work)
        self._at_work = []
        kind: type[Mirror | Source] = Mirror
        if config.sealed:
            wanted = []
        elif config.mirror is not None:
            wanted = [config.mirror]
        else:
            wanted, kind = config.sources, Source
        for source in wanted:
            key = key_of(source)
            one = next((other for other in before if isinstance(other, kind) and key_of(other.source) == key), None)
            if one is not None:
                one.source = source  # where it was to begin has been decided
                before.remove(one)
                self._at_work.append(one)
                continue
            one = kind(stream, source)
            self._at_work.append(one)
            one.session.begin()
        for gone in before:
            gone.session.end(remove=True)

    def came_near(self) -> None:
        """A leader says that the mirror is close to its origin."""
        if not self.near:
            self.near = True
            self._stream.on_updated(self._stream)

    @property
    def cloning(self) -> bool:
        """Whether the mirror may be about to begin with a copy."""
        return any(isinstance(one, Mirror) and one.session.copying for one in self._at_work)

    @property
    def reads_from(self) -> str:
        """The origin that is read while the copy with which the mirror begins is being made; "" when there is none.

        Replicas that do not lead do not know whether one is: they go by what could be.
        """
        stream = self._stream
        mirror = stream.config.mirror
        if mirror is None or mirror.filter_subject or mirror.subject_transforms or stream.store.last_seq:
            return ""
        waits = self.cloning if self._started else can_begin_as_copy(stream.config)
        return mirror.name if waits and not moment(stream.config) else ""

    @property
    def answers_for(self) -> str:
        """The origin whose direct gets this replica answers too; "" when there is none."""
        mirror = self._stream.config.mirror
        if mirror is None or mirror.external is not None or not self._stream.config.mirror_direct:
            return ""
        near = any(isinstance(one, Mirror) and one.near for one in self._at_work)
        # A replica that has been as its leader was goes on answering, as it does for its own stream; so does a mirror
        # that is sealed, which comes no nearer.
        stays = self._stream.replicated or self._stream.config.sealed
        return mirror.name if near or (self.near and stays) else ""

    # ------------------------------------------------------------------ what INFO shows
    def info(self) -> dict[str, Any]:
        """The fields `mirror` or `sources` of StreamInfo; nothing for other streams."""
        config = self._stream.config
        if config.mirror is not None:
            return {"mirror": self._shown(config.mirror)}
        if config.sources:
            return {"sources": [self._shown(source) for source in config.sources]}
        return {}

    def _shown(self, source: StreamSource) -> dict[str, Any]:
        one = next((one for one in self._at_work if one.source == source), None)
        fields: dict[str, Any] = {"name": source.name}
        if source.external is not None:
            fields["external"] = shown(source.external)
        fields["lag"] = one.session.lag if one is not None else 0
        if one is not None and one.seq:
            fields["seq"] = one.seq
        fields["active"] = one.session.active_ns() if one is not None else -1
        if one is not None and one.session.error is not None:
            fields["error"] = one.session.error.as_dict()
        if source.filter_subject:
            fields["filter_subject"] = source.filter_subject
        if source.subject_transforms:
            fields["subject_transforms"] = [shown(each) for each in source.subject_transforms]
        return fields
