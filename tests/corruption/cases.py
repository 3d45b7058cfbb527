"""Cases of damage, their outcomes, and the pool of processes that judges them.

Belongs here: a damage of one byte, the working copy that a case damages and that is restored afterwards, and the
distribution of cases. Judges are made once in each process.
"""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

CUT = 0
"""Mask of a case that cuts the file before its byte."""


class Case(NamedTuple):
    """One damage: XOR of the byte at `offset` of `file` with `mask`; `CUT` cuts the file there."""

    file: str
    offset: int
    mask: int


class Outcome(NamedTuple):
    """Result of a case: `kind` is detected, repaired, harmless, or why the case failed."""

    case: Case
    kind: str
    why: str = ""


GOOD = ("detected", "repaired", "harmless")


class Judge(Protocol):
    """Judge of the cases of one place."""

    def judge(self, case: Case) -> Outcome:
        """Return the outcome of a case."""
        ...


class MakeJudge(Protocol):
    """Make the judge of a place in a process."""

    def __call__(self, place: Path, scratch: Path) -> Judge: ...


def cases_of(place: Path, files: Iterable[str], seed: int) -> list[Case]:
    """Return all cases of these files: for each byte a flip of one bit, zero (a zero byte is inverted), and a cut.

    Of long runs of zeros, which only the room between the two slots of a file `raft` has, each 64th byte.
    """
    random = Random(seed)
    cases = []
    for file in files:
        content = (place / file).read_bytes()
        for offset, byte in enumerate(content):
            if offset % 64 and not any(content[max(offset - 128, 0) : offset + 128]):
                continue
            cases += [
                Case(file, offset, 1 << random.randrange(8)),
                Case(file, offset, byte or 0xFF),
                Case(file, offset, CUT),
            ]
    return cases


def damage(path: Path, case: Case) -> None:
    """Damage a file."""
    if case.mask == CUT:
        os.truncate(path, case.offset)
        return
    content = bytearray(path.read_bytes())
    content[case.offset] ^= case.mask
    path.write_bytes(bytes(content))


class Copy:
    """Working copy of a directory, in which only what a case has changed is restored.

    Args:
        original: the directory; nothing changes it.
        path: of the copy; it does not exist.
    """

    def __init__(self, original: Path, path: Path) -> None:
        self._original, self.path = original, path
        shutil.copytree(original, path)
        self._files = {name: _stamp(entry) for name, entry in _walk(str(original))}

    def restore(self, only: str = "") -> list[str]:
        """Restore the copy, or only one file; return the names of the files that had changed or vanished."""
        if only:
            self._copy(only)
            return [only]
        there = dict(_walk(str(self.path)))
        changed = [name for name, stamp in self._files.items() if name not in there or _stamp(there[name]) != stamp]
        for name in changed:
            self._copy(name)
        for name, entry in there.items():
            if name not in self._files:
                os.unlink(entry.path)
        return changed

    def missing(self) -> list[str]:
        """Return the names of the files that have vanished."""
        return [name for name in self._files if not os.path.exists(os.path.join(self.path, name))]

    def _copy(self, name: str) -> None:
        target = self.path / name
        target.unlink(missing_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(self._original / name, target)


def _walk(directory: str, below: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(os.path.join(directory, below)) as entries:
        for entry in entries:
            name = f"{below}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(directory, f"{name}/")
            else:
                yield name, entry


def _stamp(entry: os.DirEntry[str]) -> tuple[int, int]:
    found = entry.stat(follow_symlinks=False)
    return found.st_size, found.st_mtime_ns


def outcome_of(case: Case, judged: Callable[[], Outcome]) -> Outcome:
    """Return the outcome of a case, also if judging it raises an error that nothing should raise."""
    try:
        return judged()
    except Exception:
        return Outcome(case, "traceback", traceback.format_exc(limit=-8))


_JUDGES: dict[tuple[str, int], Judge] = {}


def _judge_some(make: MakeJudge, place: str, scratch: str, cases: Sequence[Case]) -> list[Outcome]:
    key = (place, os.getpid())
    if key not in _JUDGES:
        own = Path(scratch, f"{Path(place).name}-{os.getpid()}")
        own.mkdir(parents=True)
        _JUDGES[key] = make(Path(place), own)
    return [_JUDGES[key].judge(case) for case in cases]


def judged(
    make: MakeJudge, place: Path, scratch: Path, cases: Sequence[Case], processes: int, chunk: int = 100
) -> Iterator[Outcome]:
    """Yield the outcome of each case, in a pool of processes if there are several."""
    parts = [cases[at : at + chunk] for at in range(0, len(cases), chunk)]
    if processes == 1:
        for part in parts:
            yield from _judge_some(make, str(place), str(scratch), part)
        return
    with ProcessPoolExecutor(processes) as pool:
        count = len(parts)
        for outcomes in pool.map(_judge_some, [make] * count, [str(place)] * count, [str(scratch)] * count, parts):
            yield from outcomes
