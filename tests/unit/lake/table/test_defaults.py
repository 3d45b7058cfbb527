"""Tests of the defaults of streams' metadata by name."""

from __future__ import annotations

import pytest

from lakestream.lake.errors import BadPolicy
from lakestream.lake.table import defaults

pytestmark = pytest.mark.unit

TRAVEL, LAKE, RETENTION = "lakestream.time_travel", "lakestream.lake", "lakestream.retention"


def test_buckets_have_a_past_of_seven_days_by_default() -> None:
    assert defaults.of_name("KV_conf", {}) == {TRAVEL: "7d"}
    assert defaults.of_name("OBJ_files", {}) == {TRAVEL: "7d"}
    assert defaults.of_name("ORDERS", {}) == {}


def test_the_first_pattern_that_has_a_key_decides_it() -> None:
    configured = {"KV_tmp*": {TRAVEL: "off"}, "KV_*": {TRAVEL: "30d", RETENTION: "archive"}, "*": {LAKE: "off"}}
    assert defaults.of_name("KV_tmp1", configured) == {TRAVEL: "off", RETENTION: "archive", LAKE: "off"}
    assert defaults.of_name("KV_conf", configured) == {TRAVEL: "30d", RETENTION: "archive", LAKE: "off"}
    assert defaults.of_name("ORDERS", configured) == {LAKE: "off"}


def test_patterns_are_case_sensitive() -> None:
    assert defaults.of_name("kv_conf", {"Tmp?": {LAKE: "off"}}) == {}
    assert defaults.of_name("Tmp1", {"Tmp?": {LAKE: "off"}}) == {LAKE: "off"}


def test_a_request_goes_before_the_defaults() -> None:
    assert defaults.of_creation({TRAVEL: "off", "mine": "x"}, None, {TRAVEL: "7d", LAKE: "off"}) == {
        TRAVEL: "off",
        "mine": "x",
        LAKE: "off",
    }


def test_a_repeated_creation_takes_what_the_stream_has() -> None:
    existing = {TRAVEL: "30d", "mine": "x"}
    assert defaults.of_creation({"mine": "x"}, existing, {TRAVEL: "7d", LAKE: "off"}) == existing
    assert defaults.of_creation({}, {}, {TRAVEL: "7d"}) == {}  # a bucket from before the defaults
    assert defaults.of_creation({TRAVEL: "1d"}, existing, {}) == {TRAVEL: "1d"}  # and so the creation is refused


def test_an_update_leaves_the_stream_in_or_out_of_the_lake() -> None:
    assert defaults.of_update({}, {LAKE: "off", TRAVEL: "30d"}, {TRAVEL: "7d"}) == {LAKE: "off", TRAVEL: "7d"}
    assert defaults.of_update({}, {}, {LAKE: "off", TRAVEL: "7d"}) == {TRAVEL: "7d"}


def test_settings_are_those_of_the_metadata() -> None:
    assert defaults.checked({"time_travel": "30d", "lake": "on"}) == {TRAVEL: "30d", LAKE: "on"}
    for wrong in ({"time_travel": "yes"}, {"lake": "no"}, {"tables": "x"}, {"clone_as_of": "5"}):
        with pytest.raises(BadPolicy, match=f"lakestream.{next(iter(wrong))}"):
            defaults.checked(wrong)
