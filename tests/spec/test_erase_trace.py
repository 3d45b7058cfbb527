"""Tests that the relation of Erase.tla permits the model's steps, and refuses each that a guard forbids.

`tests/lake/test_erase_trace.py` checks runs of the compactor and the maintainer, which need Spark.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spec.erase_trace import (
    Asked,
    Committed,
    Cut,
    Deleted,
    EraseRelation,
    Expired,
    Forgotten,
    Noted,
    OfTable,
    Registered,
    Removed,
    Seqs,
    Unregistered,
    Writing,
    Written,
)
from tests.spec.trace import NotPermitted

pytestmark = pytest.mark.unit

T, C = "lake/T", "lake/C"


def rows(*seqs: int) -> Seqs:
    return frozenset(seqs)


def file(name: str, *seqs: int, table: str = T) -> Written:
    return Written("", table, f"{table}/{name}", rows(*seqs))


def commit(
    version: int, added: dict[str, Seqs] | None = None, removed: tuple[str, ...] = (), table: str = T
) -> Committed:
    """Return a commit; names of files are those below T."""
    named = tuple((f"{T}/{name}", dead) for name, dead in (added or {}).items())
    return Committed("", table, version, named, tuple(f"{T}/{name}" for name in removed))


WRITTEN = [file("a", 1, 2, 3), commit(0, {"a": rows()})]
DELETED = [Asked("", T, rows(2)), commit(1, {"a": rows(2)}, ("a",))]
NOTED = [Noted("", T, "note", rows(2))]
REWRITTEN = [file("b", 1, 3), commit(2, {"b": rows()}, ("a",))]
GONE = [Deleted("", T, f"{T}/a")]
FORGOTTEN = [Forgotten("", T, "note")]
ERASED = [*WRITTEN, *DELETED, *NOTED, *REWRITTEN, *GONE, *FORGOTTEN]
REGISTERED, MADE = (Registered("", T, C, 1, made) for made in (False, True))
CLONED = commit(0, {"a": rows(2)}, table=C)

RUNS: dict[str, list[OfTable]] = {
    "an erasure": ERASED,
    "VACUUM": [*WRITTEN, *DELETED, *REWRITTEN, Expired("", T, 2), *GONE],
    "a clone that is gone": [
        *WRITTEN, *DELETED, REGISTERED, CLONED, MADE, *NOTED, *REWRITTEN, Unregistered("", T, C), *GONE, *FORGOTTEN,
    ],
    "a clone with files of its own": [
        *WRITTEN, *DELETED, REGISTERED, CLONED, MADE, *NOTED, *REWRITTEN, file("own", 1, 2, 3, table=C),
        Committed("", C, 1, ((f"{C}/own", rows(2)),), (f"{T}/a",)), Cut("", C, 1), *GONE, *FORGOTTEN,
    ],
    "a table that is removed": [*ERASED, Removed("", T), *WRITTEN],
    "the file of a killed writer": [*WRITTEN, *DELETED, *NOTED, *REWRITTEN, file("young", 2, 3), *GONE,
                                    Deleted("", T, f"{T}/young"), *FORGOTTEN],
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_the_model_is_permitted(name: str) -> None:
    relation = EraseRelation()
    relation.run(RUNS[name])
    assert sum(relation.steps.values()) == len(RUNS[name])


REFUSED: list[tuple[str, list[OfTable]]] = [
    ("NotesFirst", [*WRITTEN, *NOTED]),
    ("ForgetsLast", [*WRITTEN, *DELETED, *NOTED, *REWRITTEN, *FORGOTTEN]),
    ("Erase", [*WRITTEN, *DELETED, file("y", 2), *NOTED, Deleted("", T, f"{T}/y")]),
    ("NewestIsWhole", [*WRITTEN, *GONE]),
    ("NewestIsWhole", [*WRITTEN, commit(1, {"x": rows()})]),
    ("KeepsTheRetention", [*WRITTEN, *DELETED, *REWRITTEN, Expired("", T, 1), *GONE]),
    ("KnowsNewClones", [*WRITTEN, *DELETED, REGISTERED, *REWRITTEN, Expired("", T, 2), *GONE]),
    ("KnowsClones", [*WRITTEN, *DELETED, REGISTERED, CLONED, MADE, *NOTED, *REWRITTEN, *GONE]),
    ("Register", [*WRITTEN, *DELETED, *NOTED, *REWRITTEN, *GONE, REGISTERED]),
    (
        "SparesTheYoung",
        [*WRITTEN, *DELETED, file("y", 1, 3), Writing("", T, f"{T}/y"), Deleted("", T, f"{T}/y")],
    ),
    (
        "SparesTheYoung",
        [*WRITTEN, *DELETED, file("y", 1, 3), Deleted("", T, f"{T}/y"), commit(2, {"y": rows()}, ("a",))],
    ),
    (
        "TakesTheNextVersion",
        [*WRITTEN, *DELETED, *NOTED, *REWRITTEN, file("y", 2), Deleted("", T, f"{T}/y"), commit(3, {"y": rows(2)})],
    ),
    ("OthersStay", [*WRITTEN, file("b", 1), commit(1, {"b": rows()}, ("a",))]),
    ("OthersStay", [*WRITTEN, commit(1, {"a": rows(2)}, ("a",))]),
    ("ErasedIsGone", [*ERASED, file("c", 2)]),
]


@pytest.mark.parametrize(("guard", "events"), REFUSED, ids=[f"{at}-{guard}" for at, (guard, _) in enumerate(REFUSED)])
def test_a_step_that_the_model_does_not_have_is_refused(guard: str, events: list[OfTable]) -> None:
    with pytest.raises(NotPermitted) as refused:
        EraseRelation().run(events)
    assert refused.value.guard == guard
    assert f"step {len(events)}," in str(refused.value)


def test_all_guards_of_the_model_of_erasures_refuse_something() -> None:
    model = Path(__file__).with_name("Erase.tla").read_text()
    guards = {guard for guard, _ in REFUSED}
    assert all(guard in model for guard in guards)
    head, _, _ = model.partition("VARIABLES")
    constants = {line.split(",")[0].split()[0] for line in head.partition("sets one to FALSE.")[2].splitlines() if line}
    assert constants
    assert constants <= guards
