"""Comparison of the replicas in several stores that no server uses.

Belongs here: recovering each stream that more than one of them has as of one entry, and comparing them by digests. The
comparison of running servers is in verification.py; both judge alike (digests.py).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec

from lakestream.lake.staging.sealed import store_files
from lakestream.log.format.errors import LogError
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.raft.group.hard_state import PersistentState
from lakestream.stream.assembly import Stream
from lakestream_verify.digests import Comparison, Digests, differing
from lakestream_verify.log.findings import Finding, FindingKind, Step
from lakestream_verify.log.overlay import Overlay
from lakestream_verify.recovered import recover
from lakestream_verify.stores import StoreCheck
from lakestream_verify.streams import read_state


def compare_stores(checks: Mapping[str, StoreCheck], step: Step, every_row: bool = False) -> Iterator[Finding]:
    """Yield the findings about replicas that differ between stores, by the name of each store. Block."""
    places: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for label, check in checks.items():
        for account, name in check.streams_in()[0]:
            places[account, name][label] = check.root.stream_directory(account, name)
    for (account, name), directories in sorted(places.items()):
        if len(directories) > 1:
            with contextlib.ExitStack() as closing:
                for finding in _compare(directories, step, every_row, closing):
                    yield msgspec.structs.replace(finding, account=account, stream=name)


def _compare(
    directories: Mapping[str, str], step: Step, every_row: bool, closing: contextlib.ExitStack
) -> Iterator[Finding]:
    states: dict[str, PersistentState] = {}
    streams: dict[str, Stream] = {}
    for label, directory in directories.items():
        state, _ = read_state(store_files(), directory)
        stream = _recovered(directory, state, None, step, closing) if state is not None else None
        if state is not None and stream is not None:
            states[label], streams[label] = state, stream
    uids = {stream.uid for stream in streams.values()}
    if len(streams) < 2:
        return  # their files have findings, or they are no replicas
    if len(uids) > 1:
        what = f"streams of the same name that are not replicas of each other: {', '.join(sorted(streams))}"
        yield Finding(kind=FindingKind.REPLICA, file=next(iter(directories.values())), what=what, harmless=True)
        return
    through = min(stream.store.applied for stream in streams.values())
    for label, stream in list(streams.items()):
        if stream.store.applied > through:
            earlier = _recovered(directories[label], states[label], through, step, closing)
            streams[label] = stream if earlier is None or earlier.store.applied != through else earlier
    exact = all(stream.store.applied == through for stream in streams.values())
    if not exact:
        ends = ", ".join(f"{label} is as of entry {stream.store.applied}" for label, stream in streams.items())
        what = f"only messages that several replicas have are compared: {ends}"
        yield Finding(kind=FindingKind.REPLICA, file=next(iter(directories.values())), what=what, harmless=True)
    floor = max(stream.store.local_floor for stream in streams.values())
    voters = max(len(state.membership.voters) for state in states.values())
    comparison = Comparison(directories, voters, exact, every_row)
    digests = {label: Digests(stream, floor, step) for label, stream in streams.items()}
    yield from comparison.states({label: each.state() for label, each in digests.items()})
    ranges = {label: {each.number: each for each in found.ranges()} for label, found in digests.items()}
    for number in differing(ranges):
        yield from comparison.ranges(
            {label: {row.seq: row for row in each.rows(number)} for label, each in digests.items()}
        )


def _recovered(
    directory: str, state: PersistentState, through: int | None, step: Step, closing: contextlib.ExitStack
) -> Stream | None:
    """Return the stream of a replica as of an entry, or of its newest one; None if it cannot be recovered."""
    scratch = closing.enter_context(tempfile.TemporaryDirectory(prefix="lakestream-verify-"))
    files, commit = store_files().over(Overlay(scratch)), state.hard.commit if through is None else through
    try:
        found = recover(files, directory, state.durable, commit, step)
    except (LogError, OSError, *DECODE_ERRORS, AssertionError, LookupError, ValueError):
        return None  # a finding of its own files
    closing.callback(found.close)
    return found.stream
