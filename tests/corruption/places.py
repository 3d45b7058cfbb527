"""The places of the campaign: directories with every kind of file.

Belongs here: how each place is made, which of its files are damaged, and who judges. A place is small enough that every
byte of it is damaged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from tests.corruption import lake, members, reads, standalone
from tests.corruption.cases import Case, MakeJudge, cases_of

FEATURES = {
    "S": "stream with outlines and segments, checkpoint, synced mark, store version",
    "Q": "work queue with a consumer",
    "Z": "compressed stream",
    "T": "stream with time travel",
}
LEADER, FOLLOWER = "leader", "follower"


class Place(msgspec.Struct, frozen=True):
    """A place.

    Attributes:
        name: name on the command line.
        campaign: one of `tests.campaigns.NAMES`.
        what: contents, in a few words.
        build: make it in a directory that does not exist.
        files: return the files to damage.
        judge: make the judge of its cases.
        masks: damages per byte: "fzc" for flip, zero and cut, "fz", "c", or "1": one of the three in turn.
        step: damage only every so many bytes.
    """

    name: str
    campaign: str
    what: str
    build: Callable[[Path], None]
    files: Callable[[Path], list[str]]
    judge: MakeJudge
    masks: str = "fzc"
    step: int = 1

    def cases(self, place: Path, seed: int) -> list[Case]:
        """Return the cases of the place, once it is built."""
        files = self.files(place)
        found = [case for case in cases_of(place, files, seed) if case.offset % self.step == 0]
        chosen = {"fz": (0, 1), "c": (2,), "fzc": (0, 1, 2)}
        if self.masks == "1":
            return [case for at, case in enumerate(found) if at % 3 == at // 3 % 3]
        return [case for at, case in enumerate(found) if at % 3 in chosen[self.masks]]


def _store(stream: str, killed: bool) -> Place:
    def files(place: Path) -> list[str]:
        mine = f"/{stream}/"
        every = standalone.files_of(place)
        return [name for name in every if mine in name or (stream == "S" and name.count("/") < 4)]

    state = "killed" if killed else "stopped"
    return Place(
        name=f"{state}-{stream.lower()}",
        campaign="corruption",
        what=f"a {state} server's {FEATURES[stream]}",
        build=partial(standalone.build, killed=killed, names=f"{stream}B"),
        files=files,
        judge=partial(standalone.StoreJudge, repairs=not killed),
        masks="c" if killed else "fz",
    )


def _running() -> Place:
    stopped = _store("S", killed=False)
    return Place(
        name="running-s",
        campaign="corruption",
        what=f"a running server's {FEATURES['S']}, every eighth byte",
        build=stopped.build,
        files=stopped.files,
        judge=standalone.RunningStoreJudge,
        step=8,
    )


def _table(name: str, stream: str, what: str, *patterns: str, step: int = 1) -> Place:
    return Place(
        name=name,
        campaign="corruption",
        what=what,
        build=lambda place: lake.build(place, stream),
        files=lambda place: lake.files_of(place, *patterns),
        judge=partial(lake.TableJudge, stream=stream),
        masks="1",
        step=step,
    )


def _replica(role: str) -> Place:
    return Place(
        name=f"replica-{role}",
        campaign="cluster-corruption",
        what=f"all files of the {role}'s replica of a stream on three nodes",
        build=members.build_replicas,
        files=partial(members.files_of_replica, leads=role == LEADER),
        judge=members.ReplicaJudge,
        masks="1",
    )


PLACES = {
    each.name: each
    for each in (
        *(_store(stream, killed=False) for stream in "SQZT"),
        *(_store(stream, killed=True) for stream in "SZ"),
        _running(),
        _table(
            "table",
            "PAST",
            "a table with deletion vectors and time travel: commits, data files, removals, identity",
            "lake/_lake.json",
            "lake/segments/**/stream.json",
            "lake/streams/PAST/_delta_log/*[03].json",
            "lake/streams/PAST/dM/*.parquet",
            "lake/streams/PAST/*/*.bin",
            "lake/streams/PAST/_departures/*152.parquet",
            "lake/streams/PAST/_erasures/*",
        ),
        _table(
            "clone",
            "CLONE",
            "a clone's table: hint, staged segments, small commits",
            "lake/streams/CLONE/_delta_log/_last_checkpoint",
            "lake/streams/CLONE/_delta_log/*3.json",
            "lake/segments/CLONE/*/*34-*.seg",
        ),
        _table(
            "checkpoint",
            "CLONE",
            "the Parquet checkpoint of a table, every eighth byte",
            "lake/streams/CLONE/_delta_log/*.checkpoint.parquet",
            step=8,
        ),
        Place(
            name="base",
            campaign="corruption",
            what="a clone's base, and what is kept of a deleted stream",
            build=lambda place: lake.build(place, "PART", "OWED"),
            files=lambda place: lake.files_of(
                place, "jetstream/*/streams/PART/base/*", "jetstream/*/streams/*/leaving"
            ),
            judge=lake.LakeJudge,
            masks="1",
        ),
        Place(
            name="server",
            campaign="corruption",
            what="a server with tables on a damaged lake, every 64th byte",
            build=lambda place: lake.build(place, "PAST", "PART"),
            files=lambda place: lake.files_of(place, "lake/**/*"),
            judge=lake.LakeJudge,
            masks="1",
            step=64,
        ),
        Place(
            name="reads",
            campaign="corruption",
            what="a backup, and the tokens of accounts",
            build=reads.build,
            files=lambda place: lake.files_of(place, "**/*"),
            judge=reads.ReadsJudge,
        ),
        _replica(FOLLOWER),
        _replica(LEADER),
        Place(
            name="replica-running",
            campaign="cluster-corruption",
            what="files of a leader's and a follower's replica while the nodes run, every eighth byte",
            build=members.build_replicas,
            files=members.files_of_replicas,
            judge=members.RunningReplicaJudge,
            masks="1",
            step=8,
        ),
        Place(
            name="assignments",
            campaign="cluster-corruption",
            what="all files of one of three nodes' assignments",
            build=members.build_assignments,
            files=members.files_of_assignments,
            judge=members.AssignmentsJudge,
            masks="1",
        ),
    )
}
