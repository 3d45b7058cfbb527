"""Which exports give a subject.

Belongs here: finding the exports of one account that cover what somebody imports, among however many there are. Whether
such an export is for the importer is checks.py's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from lakestream.config.account_options import ServiceExport, StreamExport
from lakestream.protocol.subjects import covers

Export = TypeVar("Export", StreamExport, ServiceExport, StreamExport | ServiceExport)


class ExportIndex(Generic[Export]):
    """Exports of one kind, of one account. Their subjects must be valid."""

    def __init__(self, exports: Iterable[Export]) -> None:
        # A node is a dict by token; b"", which is no token, has the exports that end there.
        self._root: dict[bytes, Any] = {}
        for export in exports:
            node = self._root
            for token in export.subject.encode().split(b"."):
                node = node.setdefault(token, {})
            node.setdefault(b"", []).append(export)

    def narrowest(self, subject: bytes) -> list[Export]:
        """The exports that cover a valid filter, but for those that cover more than another one which does so."""
        found = self._covering(subject)
        subjects = {export.subject.encode() for export in found}
        wider = {one for one in subjects if any(one != other and covers(one, other) for other in subjects)}
        return [export for export in found if export.subject.encode() not in wider]

    def _covering(self, subject: bytes) -> list[Export]:
        found: list[Export] = []
        nodes = [self._root]
        for token in subject.split(b"."):
            for node in nodes:
                found += node.get(b">", {}).get(b"", ())
            if token == b">":
                return found
            nodes = [node[name] for node in nodes for name in {token, b"*"} if name in node]
        for node in nodes:
            found += node.get(b"", ())
        return found
