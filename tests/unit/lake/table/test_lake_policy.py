"""Tests of table policies in a stream's metadata, and of the resulting layouts."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.lake.errors import BadPolicy
from lakestream.lake.table import policy, schema
from lakestream.lake.table.policy import Partition
from lakestream.lake.table.schema import Layout
from lakestream_spark.write import layouts
from lakestream_spark.write.table import table_properties

pytestmark = pytest.mark.unit


def test_metadata_of_others_asks_for_nothing() -> None:
    assert policy.parse({"owner": "me", "_nats.req.level": "0"}) == policy.StreamPolicy()


def test_every_setting_is_understood() -> None:
    found = policy.parse(
        {
            "lakestream.retention": "archive",
            "lakestream.partition": "tokens:1, 3",
            "lakestream.time_travel": "30d",
            "lakestream.on_delete": "keep",
            "lakestream.json_schema": " price DOUBLE ",
            "lakestream.properties.delta.enableChangeDataFeed": "true",
        }
    )
    assert found.archive
    assert found.keep_table
    assert found.partition == Partition("tokens", tokens=(1, 3))
    assert found.time_travel_ns == 30 * 86_400 * 1_000_000_000
    assert found.json_schema == "price DOUBLE"
    assert table_properties(found) == {
        "delta.enableChangeDataFeed": "true",
        "lakestream.retention": "archive",
        "lakestream.time_travel": str(30 * 86_400 * 1_000_000_000),
        "delta.logRetentionDuration": "interval 720 hours",
        "delta.deletedFileRetentionDuration": "interval 720 hours",
        "lakestream.on_delete": "keep",
        "lakestream.json_schema": "price DOUBLE",
    }


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("lakestream.consistency", "strong", "not one of eventual, linearizable"),
        ("lakestream.reserve", "no", "not one of on, off"),
        ("lakestream.retention", "forever", "not one of follow, archive"),
        ("lakestream.partition", "hash", "not one of auto, subject"),
        ("lakestream.partition", "tokens:0", "up to 4 different positions"),
        ("lakestream.partition", "tokens:1,1", "up to 4 different positions"),
        ("lakestream.partition", "tokens:1,2,3,4,5", "up to 4 different positions"),
        ("lakestream.partition", "bucket:0", "from 1 to 64"),
        ("lakestream.partition", "bucket:65", "from 1 to 64"),
        ("lakestream.partition", "bucket:²", "from 1 to 64"),
        ("lakestream.time_travel", "30 days", "not a duration"),
        ("lakestream.time_travel", "30m", "below 1h"),
        ("lakestream.time_travel", "99999999w", "292 years"),
        ("lakestream.on_delete", "move", "not one of drop, keep"),
        ("lakestream.json_schema", " ", "price DOUBLE"),
        ("lakestream.retain", "follow", "no such setting"),
        ("lakestream.properties.", "x", "property is expected"),
        ("lakestream.properties.delta.columnMapping.mode", "name", "NULLs"),
        ("lakestream.properties.delta.enableRowTracking", "true", "`seq` names a row for good"),
        ("lakestream.properties.delta.feature.clustering", "supported", "lakestream.partition: bucket"),
        ("lakestream.properties.delta.feature.variantType", "supported", "Polars cannot read"),
        ("lakestream.properties.delta.feature.v2Checkpoint", "supported", "who can read"),
        ("lakestream.properties.lakestream.uid", "x", "property is expected"),
        ("lakestream.properties.Location", "/tmp", "property is expected"),
        ("lakestream.properties.delta.setTransactionRetentionDuration", "interval 1 hour", "position"),
        ("lakestream.properties.delta.checkpointInterval", "soon", "a number of commits"),
        ("lakestream.properties.delta.dataSkippingNumIndexedCols", "0", "4 or more"),
        ("lakestream.properties.delta.logRetentionDuration", "30 days", "interval 30 days"),
        ("lakestream.properties.delta.ColumnMapping.mode", "name", "NULLs"),
        ("lakestream.properties.DELTA.feature.v2Checkpoint", "supported", "who can read"),
    ],
)
def test_nonsense_is_refused_in_words(key: str, value: str, text: str) -> None:
    with pytest.raises(BadPolicy, match=text) as caught:
        policy.parse({key: value})
    assert str(caught.value).startswith(key)


def test_a_configuration_in_a_segment_is_understood() -> None:
    config = msgspec.json.encode({"name": "S", "metadata": {"lakestream.partition": "bucket:16"}, "max_msgs": -1})
    assert policy.of_config(config).partition == Partition("bucket", buckets=16)
    assert policy.of_config(b"") == policy.of_config(b"{}") == policy.StreamPolicy()
    with pytest.raises(BadPolicy):
        policy.of_config(b"[")


AUTO, BY_SUBJECT, TOKENS, BUCKET = Partition(), Partition("subject"), Partition("tokens", (2,)), Partition("bucket")


@pytest.mark.parametrize(
    ("asked", "subjects", "kind"),
    [
        (AUTO, 50, "subject"),
        (AUTO, 51, "bucket"),
        (AUTO, 1_000_000, "bucket"),
        (BY_SUBJECT, 1_000, "subject"),
        (BY_SUBJECT, 1_001, "bucket"),
        (TOKENS, 1_000_000, "tokens"),
        (BUCKET, 1, "bucket"),
    ],
)
def test_the_rule_by_number_of_subjects(asked: Partition, subjects: int, kind: str) -> None:
    assert layouts.wanted_partition(asked, subjects).kind == kind


def test_a_table_leaves_buckets_only_when_something_else_is_asked_for() -> None:
    buckets = Layout("bucket", bounds=("m",))
    assert layouts.wanted_partition(AUTO, 3, buckets, "auto").kind == "bucket"
    assert layouts.wanted_partition(BY_SUBJECT, 3, buckets, "auto").kind == "subject"
    assert layouts.layout_agrees(buckets, layouts.wanted_partition(AUTO, 3, buckets, "auto"), AUTO, "auto")
    assert not layouts.layout_agrees(buckets, Partition("bucket", buckets=16), Partition("bucket", buckets=16), "auto")
    assert layouts.layout_agrees(buckets, Partition("bucket", buckets=16), Partition("bucket", buckets=16), "bucket:16")
    assert not layouts.layout_agrees(Layout("tokens", (1,)), TOKENS, TOKENS, "tokens:1")


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=8), max_size=300), st.integers(1, 64))
def test_bounds_cut_subjects_into_ranges_in_the_order_of_their_bytes(subjects: list[str], buckets: int) -> None:
    bounds = layouts.choose_bounds(subjects, buckets)
    assert len(bounds) < buckets or not bounds
    assert [bound.encode() for bound in bounds] == sorted({bound.encode() for bound in bounds})
    ordered = sorted(set(subjects), key=str.encode)
    numbers = [schema.bucket_of(subject, bounds) for subject in ordered]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(len(bounds) + 1)) or not ordered
    if len(ordered) >= 8 * buckets:
        sizes = [numbers.count(number) for number in range(buckets)]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("value", ["bucket:" + "1" * 5000, "tokens:" + "1" * 5000])
def test_a_number_of_thousands_of_digits_is_refused_like_any_other(value: str) -> None:
    # int() raises a ValueError for it, which was not handled: the stream's requests were never answered again.
    with pytest.raises(BadPolicy):
        policy.parse({"lakestream.partition": value})


def test_schemas_and_payloads_that_are_not_kept_are_understood() -> None:
    found = policy.parse({"lakestream.schema": " orders@3 ", "lakestream.data": "drop-when-typed"})
    assert (found.schema, found.drop_data) == ("orders@3", True)
    assert policy.parse({"lakestream.schema": '{"a.>": "orders"}'}).drop_data is False
    assert table_properties(found) == {}


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({"lakestream.schema": "no name"}, "lakestream.schema"),
        ({"lakestream.schema": "@other"}, "@confluent"),
        ({"lakestream.data": "drop"}, "drop-when-typed"),
        ({"lakestream.data": "drop-when-typed"}, "needs lakestream.schema"),
        (
            {"lakestream.data": "drop-when-typed", "lakestream.schema": "a", "lakestream.json_schema": "a INT"},
            "excludes lakestream.json_schema",
        ),
    ],
)
def test_schemas_that_make_no_sense_are_refused(metadata: dict[str, str], text: str) -> None:
    with pytest.raises(BadPolicy, match=text):
        policy.parse(metadata)
