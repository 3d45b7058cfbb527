"""Decisions on the entries of a catalog."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.lake.catalogs.keeper import ALTER, CREATE, DROP
from lakestream.lake.table.schema import LAKE_PROPERTY, TABLE_PROPERTY
from lakestream_catalogs.entries import (
    MAX_NAME,
    CatalogEntry,
    Column,
    Table,
    database_of,
    plain_location,
    table_name,
)
from lakestream_catalogs.plan import FOREIGN, NONE, EntryChange, plan
from tests.unit.catalogs.memory import MemoryCatalog

LAKE = "a1b2"
RENDER = MemoryCatalog().render


def table(stream: str, *columns: str, **properties: str) -> Table:
    key = f"streams/{stream}"
    made = tuple(Column(name, "long") for name in ("seq", *columns))
    return Table(key, f"/lake/{key}", "$G", stream, f"Stream {stream}", made, (), {TABLE_PROPERTY: key, **properties})


def kinds(changes: list[EntryChange]) -> dict[str, str]:
    return {change.entry.name: change.kind for change in changes}


def applied(changes: list[EntryChange], entries: dict[str, CatalogEntry]) -> None:
    """Make the changes."""
    for change in changes:
        if change.kind == DROP:
            del entries[change.entry.name]
        elif change.kind in (CREATE, ALTER):
            assert (change.entry.name in entries) == (change.kind == ALTER)
            entries[change.entry.name] = change.entry


def test_new_tables_are_created_changed_ones_altered_and_those_that_are_gone_dropped() -> None:
    entries: dict[str, CatalogEntry] = {}
    applied(plan([table("ORDERS"), table("OLD")], [], LAKE, RENDER), entries)
    assert sorted(entries) == ["old", "orders"]
    changes = plan([table("ORDERS", "price"), table("NEW")], list(entries.values()), LAKE, RENDER)
    assert kinds(changes) == {"old": DROP, "new": CREATE, "orders": ALTER}
    assert [change.reason for change in changes if change.kind == ALTER] == ["columns"]
    applied(changes, entries)
    again = plan([table("ORDERS", "price"), table("NEW")], list(entries.values()), LAKE, RENDER)
    assert kinds(again) == {"new": NONE, "orders": NONE}


def test_entries_of_others_stay_and_keep_their_names_and_places() -> None:
    taken = CatalogEntry("orders", "/elsewhere")
    same_place = CatalogEntry("by_hand", "file:/lake/streams/EVENTS")
    other_lake = CatalogEntry("audit", "/other", properties={LAKE_PROPERTY: "ffff", TABLE_PROPERTY: "streams/AUDIT"})
    tables = [table("ORDERS"), table("EVENTS"), table("AUDIT")]
    changes = plan(tables, [taken, same_place, other_lake], LAKE, RENDER)
    names = {change.table.stream: (change.kind, change.entry.name) for change in changes if change.table is not None}
    assert names["EVENTS"] == (FOREIGN, "by_hand")
    assert names["ORDERS"][0] == CREATE
    assert names["ORDERS"][1].startswith("orders_")
    assert names["AUDIT"][1].startswith("audit_")


def test_properties_of_other_programs_stay_and_do_not_count() -> None:
    [change] = plan([table("ORDERS")], [], LAKE, RENDER)
    read = msgspec.structs.replace(change.entry, properties={**change.entry.properties, "trino_version": "9"})
    assert kinds(plan([table("ORDERS")], [read], LAKE, RENDER)) == {"orders": NONE}
    [altered] = plan([table("ORDERS", **{"lakestream.uid": "u"})], [read], LAKE, RENDER)
    assert (altered.kind, altered.reason) == (ALTER, "properties")
    assert altered.entry.properties["trino_version"] == "9"
    stale = msgspec.structs.replace(read, properties={**read.properties, "lakestream.old": "1"})
    [altered] = plan([table("ORDERS")], [stale], LAKE, RENDER)
    assert "lakestream.old" not in altered.entry.properties


def test_the_entry_of_a_table_that_cannot_be_read_stays() -> None:
    [change] = plan([table("ORDERS")], [], LAKE, RENDER)
    assert plan([], [change.entry], LAKE, RENDER, unread={"streams/ORDERS"}) == []
    assert kinds(plan([], [change.entry], LAKE, RENDER)) == {"orders": DROP}


def test_an_entry_follows_a_lake_that_moves() -> None:
    [change] = plan([table("ORDERS")], [], LAKE, RENDER)
    moved = msgspec.structs.replace(table("ORDERS"), path="/srv/streams/ORDERS")
    [altered] = plan([moved], [change.entry], LAKE, RENDER)
    assert (altered.kind, altered.reason, altered.entry.location) == (ALTER, "location", "/srv/streams/ORDERS")


def test_of_two_streams_with_one_name_each_keeps_its_own() -> None:
    entries: dict[str, CatalogEntry] = {}
    applied(plan([table("a-b"), table("a_b")], [], LAKE, RENDER), entries)
    second = next(name for name in entries if name != "a_b")
    assert second.startswith("a_b_")
    applied(plan([table("a_b")], list(entries.values()), LAKE, RENDER), entries)
    assert list(entries) == [second]


STREAMS = st.sampled_from(["ORDERS", "orders", "a-b", "a_b", "a.b", "größe", "x" * 200])
STATES = st.dictionaries(STREAMS, st.tuples(st.sampled_from([(), ("price",), ("price", "n")]), st.booleans()))
OTHERS = st.dictionaries(
    st.sampled_from(["orders", "a_b", "other"]),
    st.sampled_from(["/x", "/lake/streams/a-b", "file:///lake/streams/a_b"]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STATES, min_size=1, max_size=4), OTHERS)
def test_any_course_of_tables_ends_with_one_entry_for_each(
    course: list[dict[str, object]], others: dict[str, str]
) -> None:
    theirs = {name: CatalogEntry(name, place, properties={"x": "y"}) for name, place in others.items()}
    entries = dict(theirs)
    for state in course:
        tables = [
            table(stream, *columns, **({"lakestream.uid": "u"} if marked else {}))
            for stream, (columns, marked) in state.items()  # type: ignore[misc]
        ]
        changes = plan(tables, list(entries.values()), LAKE, RENDER)
        applied(changes, entries)
        assert {name: entry for name, entry in entries.items() if name in theirs} == theirs
        again = plan(tables, list(entries.values()), LAKE, RENDER)
        assert {change.kind for change in again} <= {NONE, FOREIGN}
        ours = {entry.properties[TABLE_PROPERTY] for entry in entries.values() if LAKE_PROPERTY in entry.properties}
        places = {plain_location(place) for place in others.values()}
        assert ours == {each.key for each in tables if each.path not in places}
        assert all(len(name) <= MAX_NAME for name in entries)


def test_names_in_a_catalog() -> None:
    assert table_name("ORDERS") == "orders"
    assert table_name("KV_air-ports") == "kv_air_ports"
    assert len(table_name("x" * 200)) == MAX_NAME
    assert table_name("x" * 200 + "y") != table_name("x" * 200 + "z")
    assert database_of("lake", "$G") == "lake"
    assert database_of("lake", "ACME-2") == "lake_acme_2"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("file:/a%20b/c", "/a b/c"),
        ("s3a://b/p", "s3://b/p/"),
        ("file:///x/", "file:/x"),
        ("file:/a #1?/b", "file:///a%20%231%3F/b"),
        ("gcs://b/p/", "gs://b/p"),
        ("abfs://c@account.dfs.core.windows.net/p", "abfss://c@account.blob.core.windows.net/p"),
    ],
)
def test_one_place_in_two_spellings(one: str, other: str) -> None:
    assert plain_location(one) == plain_location(other)


def test_places_after_odd_characters_differ() -> None:
    assert plain_location("file:/a #1/b") != plain_location("file:/a #1/c")
