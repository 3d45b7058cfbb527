"""The kinds of files that a server keeps.

Belongs here: a pattern for each kind of file in a store directory, a lake, a directory of tokens or a backup; those
that the campaign damages, and those that it leaves out, with the reason. A file that matches no pattern fails a test,
so that a new kind of file becomes part of the campaign.
"""

from __future__ import annotations

import re

_STREAM = r"jetstream/[^/]+/streams/[^/]+"
_TABLE = r"lake/(accounts/[^/]+/)?streams/[^/]+"
_STAGED = r"lake/(accounts/[^/]+/)?segments/[^/]+/[^/]+"

DAMAGED = {
    "store version": r"jetstream/VERSION",
    "segment": rf"{_STREAM}/log/\d{{20}}\.seg",
    "outline": rf"{_STREAM}/log/\d{{20}}\.outline",
    "checkpoint": rf"{_STREAM}/checkpoint",
    "synced mark": rf"{_STREAM}/synced",
    "base: outline": rf"{_STREAM}/base/\d{{20}}-\d+\.outline",
    "base: checkpoint": rf"{_STREAM}/base/checkpoint",
    "note of a deleted stream": rf"{_STREAM}/leaving",
    "member: assigned stream": rf"{_STREAM}/replica",
    "member: hard state": rf"{_STREAM}/raft",
    "assignments: segment": r"(jetstream/)?_meta_/log/\d{20}\.seg",
    "assignments: checkpoint": r"(jetstream/)?_meta_/checkpoint",
    "assignments: hard state": r"(jetstream/)?_meta_/raft",
    "lake: id": r"lake/_lake\.json",
    "lake: staged segment": rf"{_STAGED}/\d{{20}}-\d{{20}}\.seg",
    "lake: identity of a staging directory": rf"{_STAGED}/stream\.json",
    "table: commit": rf"{_TABLE}/_delta_log/\d{{20}}\.json",
    "table: checkpoint": rf"{_TABLE}/_delta_log/\d{{20}}\.checkpoint\.parquet",
    "table: hint": rf"{_TABLE}/_delta_log/_last_checkpoint",
    "table: data file": rf"{_TABLE}/([^_/][^/]*/)*[^/]+\.parquet",
    "table: deletion vector": rf"{_TABLE}/(.+/)?deletion_vector_[^/]+\.bin",
    "table: removals of a commit": rf"{_TABLE}/_departures/\d{{20}}\.parquet",
    "table: note of an erasure": rf"{_TABLE}/_erasures/[^/]+\.json",
    "backup": r"backup/stream\.tar\.s2",
    "token of an account": r"tokens/A[A-Z0-9]{55}\.jwt",
}
"""Kinds that the campaign damages, by name."""

LEFT_OUT = {
    r"jetstream/LOCK": "empty; only its lock matters",
    r"jetstream/created\.journal(\.2)?": "records last a second; damaged in tests/unit/log/store/test_journal.py",
    r"jetstream/_meta_\.dormant": "lasts from a stop to the next start; damaged in tests/unit/meta/test_dormant.py",
    rf"(jetstream/)?(_meta_/|[^/]+/streams/[^/]+/)?sealing\.key|{_STAGED}/[0-9a-f]{{32}}\.key": "keys of encrypted "
    "stores; damaged in tests/unit/log/sealing/test_sealed_files.py",
    rf"{_TABLE}/_sealing\.key": "keys of encrypted tables; damaged in tests/unit/lake/table/test_encryption.py",
    r"(jetstream/)?_meta_/lost": "a number; see test_each_file_of_the_assignments_is_verified",
    rf"({_STREAM}|(jetstream/)?_meta_)/aside": "entries behind damage, until the replica has recovered; damaged in "
    "tests/unit/raft/group/test_group_damage.py",
    rf"{_STREAM}/(sending-|repairing-|verifying-)\d+/.*": "copies for and from another node; a start removes them",
    rf"{_STREAM}/index\.cold.*": "has no name while it is open",
    rf"{_STREAM}\.incoming/.*": "from another node; used only once it is complete",
    r"lake/.*\.crc": "of Hadoop and Delta; the server does not read it",
    r"lake/_compactor/.*": "Spark's own checkpoint of the compactor",
    r"lake/(.*/)?_[a-z]+\.lock|lake/_locks/.*": "empty; only its lock matters",
    r"lake/(_servers/.*|_server\.json)": "addresses; written again at each start",
    r"lake/_clones/.*": "read by compactor and maintainer only",
    r"lake/(accounts/[^/]+/)?schemas/.*": "read by the compactor, and by `lakestream schema restore`",
    r"lake/_removed/.*|lake/(accounts/[^/]+/)?kept/.*": "a table that was moved: its files have the same kinds",
    rf"{_STAGED}/(deleted|clone\.json|cloned\.json|damaged\.json)": "a mark without content, or for the compactor",
    r"jetstream/[^/]+/aside/.*": "never read",
}
"""Patterns of the files that are not damaged, with the reason."""


def kind_of(file: str) -> str:
    """Return the kind of a file by its path below a store directory, "" for none."""
    return next((kind for kind, pattern in DAMAGED.items() if re.fullmatch(pattern, file)), "")


def left_out(file: str) -> bool:
    """Return True if the campaign leaves a file out."""
    return any(re.fullmatch(pattern, file) for pattern in LEFT_OUT)
