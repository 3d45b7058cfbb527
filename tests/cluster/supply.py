"""Power supply of a cluster's nodes: one that loses it keeps what it had synced.

Belongs here: the recorders of running nodes, and the stores that a power loss leaves. The model of the disk is in
tests/power.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.cluster.nodes import Cluster, Node
from tests.power.disk import Loss, PowerDisk
from tests.power.journal import Journal, build


class Power:
    """Power supply of the nodes: what they sync is recorded, so that a node can lose all that it had not synced."""

    def __init__(self, cluster: Cluster, tools: Path) -> None:
        built = build(tools)
        cluster.directory.mkdir(parents=True, exist_ok=True)
        self._recorders: dict[str, tuple[Journal, Path]] = {}
        for node in cluster.nodes:
            # A copy for each, because a library in this process holds one journal at a time.
            library = shutil.copy(built, node.store.with_suffix(".so"))
            journal = Journal.begin(library, node.store.with_suffix(".journal"), node.store)
            node.environment |= journal.environment(library)
            self._recorders[node.name] = journal, library

    def off(self, nodes: Sequence[Node], loss: Loss) -> int:
        """Cut the power of these nodes at one moment: each keeps what this kind of loss leaves.

        Return the number of files that are not as the processes saw them.
        """
        with contextlib.ExitStack() as held:
            for node in nodes:
                journal, library = self._recorders[node.name]
                held.enter_context(journal.held(library))
            for node in nodes:
                node.kill()
        return sum(self._lose(node, loss) for node in nodes)

    def covers(self, node: Node) -> bool:
        """Return True if the node can still lose its power: each can once."""
        return node.name in self._recorders

    def leave(self, node: Node) -> None:
        """Record a stopped node no longer: its files are changed past the recorder, or it has lost its power once."""
        if recorder := self._recorders.pop(node.name, None):
            journal, library = recorder
            for name in journal.environment(library):
                node.environment.pop(name)
            journal.path.unlink()

    def _lose(self, node: Node, loss: Loss) -> int:
        journal, _ = self._recorders[node.name]
        disk = PowerDisk(journal)
        for operation in journal.operations():
            disk.apply(operation)
        left = disk.lose(loss, Random(node.number))
        shutil.rmtree(node.store)
        left.write(node.store)
        self.leave(node)
        return len(left.differences(disk.seen()))
