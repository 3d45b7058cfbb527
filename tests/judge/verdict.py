"""The outside judge: histories checked by porcupine, a linearizability checker that others wrote.

Belongs here: building and running the Go program of this folder, and its verdict. The models are in models.go; the
history is the file that tests/histories records, so that both judge the same run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

FOLDER = Path(__file__).resolve().parent
BUILD_S = 300.0
JUDGE_S = 1800.0
UNDECIDED = 3
"""Exit code if some object was not decided in time."""


class NoJudge(Exception):
    """Raised if the program cannot be built here: without Go, or without its one module."""


class Count(msgspec.Struct, frozen=True):
    """Objects of one model, their operations, and how many of them no order explains or were not decided in time."""

    objects: int
    operations: int
    violations: int
    undecided: int


class Finding(msgspec.Struct, frozen=True):
    """Object that no order of its operations explains: operations that the longest order has, and the next ones."""

    model: str
    object: str
    ordered: int
    stuck: list[str]


class Verdict(msgspec.Struct, frozen=True):
    """Verdict over one history."""

    file: str
    events: int
    models: dict[str, Count]
    findings: list[Finding]
    seconds: float

    @property
    def broken(self) -> set[str]:
        """Return the models with a violation."""
        return {name for name, count in self.models.items() if count.violations}

    @property
    def undecided(self) -> int:
        """Return the number of objects that were not decided in time."""
        return sum(count.undecided for count in self.models.values())

    def __str__(self) -> str:
        lines = [
            f"porcupine: {name}: {count.objects} objects, {count.operations} operations, "
            f"{count.violations} not linearizable{f', {count.undecided} undecided' if count.undecided else ''}"
            for name, count in self.models.items()
        ]
        for each in self.findings:
            lines.append(f"  {each.model} {each.object}: {each.ordered} operations have an order; then none of")
            lines += [f"      {operation}" for operation in each.stuck]
        return "\n".join(lines)


def build(directory: Path) -> Path:
    """Build the program; return its path.

    Raises:
        NoJudge: there is no Go, or its module cannot be had.
    """
    go = shutil.which("go", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/go/bin"]))
    if go is None:
        raise NoJudge("needs Go 1.21 or newer")
    program = directory / "judge"
    environment = os.environ | {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    done = subprocess.run(
        [go, "build", "-o", str(program), "."],
        cwd=FOLDER,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    if done.returncode:
        raise NoJudge(f"cannot be built: {done.stderr.strip()[-500:]}")
    return program


def judge(program: Path, histories: Sequence[Path]) -> list[Verdict]:
    """Return the verdicts over histories."""
    command = [str(program), *map(str, histories)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=JUDGE_S, check=False)
    if done.returncode not in (0, 1, UNDECIDED):
        raise AssertionError(f"the judge failed: {done.stderr[-2000:]}")
    return [msgspec.json.decode(line, type=Verdict) for line in done.stdout.splitlines()]
