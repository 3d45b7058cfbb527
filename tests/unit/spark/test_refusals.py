"""Tests of what an error of Delta says to do."""

from __future__ import annotations

import pytest

from lakestream_spark.write.errors import with_remedy

pytestmark = pytest.mark.unit


def test_a_known_error_of_delta_says_what_to_do() -> None:
    said = with_remedy("io.delta.X: [DELTA_CANNOT_MODIFY_APPEND_ONLY] This table is append-only.", "/lake/streams/S")
    assert said.endswith(
        "This table is append-only; undo it in Spark SQL with ALTER TABLE delta.`/lake/streams/S` UNSET TBLPROPERTIES "
        "('delta.appendOnly')"
    )
    newer = with_remedy("[DELTA_UNSUPPORTED_FEATURES_FOR_WRITE] it requires x.", "/lake/streams/S")
    assert newer.endswith(
        "it requires x; drop it with the program that has added it to /lake/streams/S, or upgrade lakestream"
    )


def test_other_errors_are_as_they_are() -> None:
    for reason in ("the lake is full.", "[DELTA_CONCURRENT_APPEND] retry"):
        assert with_remedy(reason, "/lake/streams/S") == reason
