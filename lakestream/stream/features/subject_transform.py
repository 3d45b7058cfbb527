"""Subject transforms: a stream keeps messages under other subjects than they were published to.

Belongs here: applying `subject_transform` of a configuration.
"""

from __future__ import annotations

from lakestream.protocol.transforms import Transform
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.feature import Feature


class SubjectTransform(Feature):
    """The subject transform of one stream."""

    def __init__(self) -> None:
        self._configured = False
        self._transform: Transform | None = None

    def configure(self, config: StreamConfig) -> None:
        change = config.subject_transform
        self._configured = change is not None
        self._transform = Transform(change.src.encode(), change.dest.encode()) if change and change.dest else None

    def active(self, hook: str) -> bool:
        return hook != "renamed" or self._transform is not None

    def judges_every_message(self) -> bool:
        return self._configured

    def renamed(self, subject: bytes) -> bytes:
        """Return the subject that the transform makes of this one; one that it does not select stays."""
        renamed = None if self._transform is None else self._transform.apply(subject)
        return subject if renamed is None else renamed
