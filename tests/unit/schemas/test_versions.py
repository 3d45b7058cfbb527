"""Property test of all codecs: random schemas and payloads, against decoders that are not ours."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakestream.schemas.codec import codec_of
from lakestream.schemas.schema import Format, Schema
from tests.unit.versions_world import named, versions

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("format", get_args(Format))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_columns_have_the_fields_of_payloads(format: Format, data: st.DataObject) -> None:
    version = data.draw(versions(format))
    codec = codec_of(Schema("s", 1, format, version.text))
    sent = data.draw(st.lists(version.payloads, min_size=1, max_size=5))
    batch = [payload for payload, _ in sent]
    decoded = codec.decode(batch)
    misfits = {each.row for each in decoded.misfits}
    rows = decoded.columns.to_pylist() if codec.record.fields else [{}] * len(batch)
    for row, (_, fields) in enumerate(sent):
        assert (row in misfits) == (fields is None)
        if fields is not None:
            assert named(codec.record, rows[row]) == fields
    formats = codec.formats(decoded.columns, [None if row in misfits else each for row, each in enumerate(batch)])
    for row, given_back in enumerate(codec.encode(decoded.columns, formats).to_pylist()):
        assert given_back in (None, batch[row])
