"""Kinds of damage to the files of three stopped nodes.

Belongs here: the ways in which a file is damaged, the kinds of damage that a case draws, and the proof from the files
alone that a stream has to be whole again: each entry of its log is intact on one node, and nothing else is damaged.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from lakestream.log.format.frame import LENGTH_AT
from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.meta.meta import DIRECTORY
from lakestream.raft.group.hard_state import NAME as HARD_STATE
from tests.cluster.nemesis import frames_of, written
from tests.cluster.nodes import Node
from tests.damage.prepared import ALONE, STREAMS, TABLED

META = ""
"""In the place of a stream's name: the files of the meta group."""
SECTOR = 512
BLOCK = 4096
NEAR = 12
"""Entries before the newest one that are damaged on purpose."""


class Harm(NamedTuple):
    """One damage: of which node, of which stream's file (`META`: of the meta group), and in which way."""

    node: str
    stream: str
    file: str
    way: str

    def __str__(self) -> str:
        return f"{self.node} {self.stream or 'meta'} {self.file}: {self.way}"


# ---- ways


def flip(path: Path, dice: Random) -> None:
    """Flip one to eight bits."""
    content = bytearray(path.read_bytes())
    for _ in range(dice.choice((1, 1, 2, 8))):
        content[dice.randrange(written(str(path)))] ^= 1 << dice.randrange(8)
    path.write_bytes(content)


def zero(path: Path, dice: Random) -> None:
    """Fill a sector, or a block of eight, with zeros."""
    _fill(path, dice, bytes)


def garble(path: Path, dice: Random) -> None:
    """Fill a sector, or a block of eight, with random bytes."""
    _fill(path, dice, dice.randbytes)


def _fill(path: Path, dice: Random, content: Callable[[int], bytes]) -> None:
    size = written(str(path))
    begin = dice.randrange(0, size, SECTOR)
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(content(min(dice.choice((SECTOR, BLOCK)), size - begin)))


def swap(path: Path, dice: Random) -> None:
    """Let two sectors change places; flip a bit of a file that has only one."""
    content = bytearray(path.read_bytes())
    begins = range(0, written(str(path)) - SECTOR + 1, SECTOR)
    if len(begins) < 2:
        flip(path, dice)
        return
    one, other = (slice(begin, begin + SECTOR) for begin in dice.sample(begins, 2))
    content[one], content[other] = content[other], content[one]
    path.write_bytes(content)


def cut(path: Path, dice: Random) -> None:
    """Cut a file anywhere."""
    with path.open("r+b") as file:
        file.truncate(dice.randrange(written(str(path))))


def empty(path: Path, dice: Random) -> None:
    """Cut a file to nothing."""
    path.write_bytes(b"")


def remove(path: Path, dice: Random) -> None:
    """Remove a file."""
    path.unlink()


WAYS = (flip, flip, flip, zero, garble, swap, cut, empty, remove)
IN_PLACE = (flip, zero, garble, swap)


# ---- a case's files


@dataclass
class Scene:
    """The files of a case, and what has been done to them.

    Attributes:
        nodes: stopped.
        old: directory with older copies of their stores.
        dice: decides everything.
    """

    nodes: Sequence[Node]
    old: Path
    dice: Random
    harms: list[Harm] = field(default_factory=list)
    _spoiled: dict[str, dict[str, set[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    _entries: dict[tuple[str, str], dict[int, tuple[Path, int]]] = field(default_factory=dict)
    _unproven: set[str] = field(default_factory=set)

    @property
    def harmed(self) -> set[str]:
        """Return the streams with a damage, and `META`."""
        return {harm.stream for harm in self.harms}

    def directory(self, node: Node, stream: str) -> Path:
        """Return the directory of a replica, or of the meta group."""
        return node.stream_directory(stream) if stream else node.store / "jetstream" / DIRECTORY

    def files(self, node: Node, stream: str, pattern: str = "*") -> list[Path]:
        """Return the files of a replica, or of the meta group, that hold something."""
        found = self.directory(node, stream).rglob(pattern)
        return sorted(path for path in found if path.is_file() and written(str(path)))

    def harm(self, node: Node, stream: str, path: Path, way: Callable[[Path, Random], None]) -> None:
        """Damage a file."""
        way(path, self.dice)
        self.note(node, stream, path, way.__name__)

    def note(self, node: Node, stream: str, path: Path, way: str) -> None:
        """Record a damage after which nothing proves that the stream has to be whole."""
        self.harms.append(Harm(node.name, stream, str(path.relative_to(self.directory(node, stream))), way))
        self._unproven.add(stream)

    def entries(self, node: Node, stream: str) -> dict[int, tuple[Path, int]]:
        """Return file and offset of each entry in a node's log as it was before any damage."""
        key = (node.name, stream)
        if key not in self._entries:
            paths = sorted((self.directory(node, stream) / "log").glob("*.seg"))
            self._entries[key] = {index: (path, at) for path in paths for index, at in frames_of(path).items()}
        return self._entries[key]

    def spoil(self, node: Node, stream: str, index: int) -> None:
        """Damage an entry, if the node's log has it."""
        if found := self.entries(node, stream).get(index):
            path, at = found
            content = bytearray(path.read_bytes())
            content[at + LENGTH_AT - 1 - self.dice.randrange(4)] ^= 4  # of the crc, as some frames have no body
            path.write_bytes(content)
            self._spoiled[stream][node.name].add(index)
            self.harms.append(Harm(node.name, stream, path.name, f"entry {index}"))

    def newest(self, stream: str) -> int:
        """Return the newest entry that two of the nodes have."""
        return sorted(max(self.entries(node, stream), default=0) for node in self.nodes)[1]

    def is_provable(self, stream: str) -> bool:
        """Return True if only entries of the stream are damaged, and a node has each of them intact."""
        if META in self.harmed or stream in self._unproven or stream == ALONE:
            return stream not in self.harmed and META not in self.harmed
        spoiled = self._spoiled[stream]
        if stream == TABLED and len(spoiled) == len(self.nodes):
            return False  # its first entries have left the log: a damaged member needs the state of another one
        for index in set().union(*spoiled.values()):
            # The last entry of a node that is behind may be one that was replaced: nothing behind it tells.
            having = [node.name for node in self.nodes if self.entries(node, stream).keys() >= {index, index + 1}]
            if index < self.newest(stream) and all(index in spoiled[name] for name in having):
                return False
            if all(index in spoiled[node.name] for node in self.nodes if index in self.entries(node, stream)):
                return False
        return True

    def some(self, most: int = 3) -> list[Node]:
        """Return one to `most` nodes."""
        return self.dice.sample(list(self.nodes), self.dice.randint(1, most))

    def stream(self) -> str:
        """Return a stream with three replicas."""
        return self.dice.choice([name for name in STREAMS if name != ALONE])


# ---- kinds


def _anything(scene: Scene) -> None:
    """Any file of any stream, on all nodes, in any way; two streams are spared."""
    streams = scene.dice.sample(list(STREAMS), len(STREAMS) - 2)
    for node in scene.nodes:
        for _ in range(scene.dice.randint(1, 5)):
            stream = META if scene.dice.random() < 0.05 else scene.dice.choice(streams)
            pattern = scene.dice.choice(("*", "*.seg"))
            if found := scene.files(node, stream, pattern):
                scene.harm(node, stream, scene.dice.choice(found), scene.dice.choice(WAYS))


def _segments(scene: Scene) -> None:
    """Several segments of one or two streams, on all nodes, in place."""
    for stream in {scene.stream(), scene.stream()}:
        for node in scene.nodes:
            for _ in range(scene.dice.randint(1, 3)):
                if found := scene.files(node, stream, "*.seg"):
                    scene.harm(node, stream, scene.dice.choice(found), scene.dice.choice(IN_PLACE))


def _apart(scene: Scene) -> None:
    """Entries of one stream, each of them on one node only; some of them near the end."""
    stream = scene.stream()
    near = list(range(max(scene.newest(stream) - NEAR, 1), scene.newest(stream) + 1))
    everywhere = [index for index in scene.entries(scene.nodes[0], stream) if index not in near]
    left = [*near, *scene.dice.sample(everywhere, min(NEAR, len(everywhere)))]
    scene.dice.shuffle(left)
    for node in scene.nodes:
        for _ in range(scene.dice.randint(1, 3)):
            scene.spoil(node, stream, left.pop())


def _newest(scene: Scene) -> None:
    """The newest entry that all nodes have on two of them, and perhaps one before it on the third."""
    stream = scene.stream()
    newest = min(max(scene.entries(node, stream)) for node in scene.nodes)
    *two, third = scene.dice.sample(list(scene.nodes), 3)
    for node in two:
        scene.spoil(node, stream, newest)
    if scene.dice.random() < 0.5:
        scene.spoil(third, stream, newest - scene.dice.randint(1, NEAR))


def _lost(scene: Scene) -> None:
    """One entry on all nodes, and others on single ones."""
    stream = scene.stream()
    index = scene.newest(stream) - scene.dice.randrange(NEAR)
    for node in scene.nodes:
        scene.spoil(node, stream, index)
    for node in scene.some():
        scene.spoil(node, stream, index - scene.dice.randint(1, NEAR))


def _checkpoints(scene: Scene) -> None:
    """The checkpoints of a stream on one to three nodes, perhaps beside a segment."""
    _files(scene, CHECKPOINT)


def _hard_states(scene: Scene) -> None:
    """Both copies in the files `raft` of a stream on one to three nodes, perhaps beside a segment."""
    _files(scene, HARD_STATE)


def _files(scene: Scene, name: str) -> None:
    having = [each for each in STREAMS if each != ALONE and all(scene.files(node, each, name) for node in scene.nodes)]
    stream = scene.dice.choice(having or [scene.stream()])  # a killed node may not have come to a checkpoint
    for node in scene.some():
        for path in scene.files(node, stream, name):
            scene.harm(node, stream, path, scene.dice.choice((empty, remove, _first_bytes)))
    if scene.dice.random() < 0.3:
        node = scene.some()[0]
        if found := scene.files(node, stream, "*.seg"):
            scene.harm(node, stream, found[-1], flip)


def _first_bytes(path: Path, dice: Random) -> None:
    """Overwrite the beginning of each block of 16 KiB: no copy in the file is left."""
    with path.open("r+b") as file:
        for begin in range(0, path.stat().st_size, 4 * BLOCK):
            file.seek(begin)
            file.write(dice.randbytes(8))


def _meta(scene: Scene) -> None:
    """Files of the meta group on one to three nodes."""
    for node in scene.some():
        for _ in range(scene.dice.randint(1, 2)):
            if found := scene.files(node, META):
                scene.harm(node, META, scene.dice.choice(found), scene.dice.choice(WAYS))


def _old_files(scene: Scene) -> None:
    """One file of a stream on each of one to three nodes becomes its older copy."""
    stream = scene.stream()
    for node in scene.some():
        paths = [path for path in scene.files(node, stream) if _older(scene, node, path).exists()]
        changed = [path for path in paths if path.read_bytes() != _older(scene, node, path).read_bytes()]
        if changed:
            path = scene.dice.choice(changed)
            shutil.copy(_older(scene, node, path), path)
            scene.note(node, stream, path, "older copy")


def _rolled_back(scene: Scene) -> None:
    """A stream's whole directory becomes its older copy on one node; perhaps another one has a damage, too.

    Two nodes with older copies are a majority that knows of nothing else, if the third one starts last.
    """
    stream = scene.stream()
    newest = scene.newest(stream)
    node, other = scene.dice.sample(list(scene.nodes), 2)
    directory = scene.directory(node, stream)
    shutil.rmtree(directory)
    shutil.copytree(_older(scene, node, directory), directory)
    scene.note(node, stream, directory, "older copy")
    if scene.dice.random() < 0.6:
        scene.spoil(other, stream, newest - scene.dice.randrange(NEAR))


def _older(scene: Scene, node: Node, path: Path) -> Path:
    return scene.old / node.name / path.relative_to(node.store)


def _states(scene: Scene) -> None:
    """The checkpoints of the two nodes with the longest logs, of the stream whose first messages are in its table."""
    for node in sorted(scene.nodes, key=lambda node: max(scene.entries(node, TABLED), default=0))[1:]:
        for path in scene.files(node, TABLED, CHECKPOINT):
            scene.harm(node, TABLED, path, scene.dice.choice((empty, remove, _first_bytes)))


KINDS: dict[str, Callable[[Scene], None]] = {
    "anything": _anything,
    "segments": _segments,
    "apart": _apart,
    "newest": _newest,
    "lost": _lost,
    "checkpoints": _checkpoints,
    "hard states": _hard_states,
    "meta": _meta,
    "old files": _old_files,
    "rolled back": _rolled_back,
}
"""Kinds of damage, by name."""
SINGLE = {"states": _states}
"""Kinds that are not drawn."""
