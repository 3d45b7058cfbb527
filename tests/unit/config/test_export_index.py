"""Tests of the lookup of exports by subject."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.config.account_options import StreamExport
from lakestream.config.sharing import ExportIndex
from lakestream.protocol.subjects import covers

pytestmark = pytest.mark.unit

_FILTERS = st.builds(
    lambda tokens, rest: ".".join([*tokens, *([">"] if rest or not tokens else [])]),
    st.lists(st.sampled_from(["a", "b", "*"]), max_size=3),
    st.booleans(),
)


@given(st.lists(_FILTERS, max_size=8), _FILTERS)
def test_the_narrowest_that_cover(exports: list[str], wanted: str) -> None:
    covering = {one for one in exports if covers(one.encode(), wanted.encode())}
    narrowest = {
        one for one in covering if not any(one != other and covers(one.encode(), other.encode()) for other in covering)
    }
    found = ExportIndex([StreamExport(subject=one) for one in exports]).narrowest(wanted.encode())
    assert sorted(export.subject for export in found) == sorted(one for one in exports if one in narrowest)


def test_exports_of_one_subject_are_all_found() -> None:
    twice = [StreamExport(subject="a", accounts=("B",)), StreamExport(subject="a", accounts=("C",))]
    assert ExportIndex(twice).narrowest(b"a") == twice
    assert ExportIndex(twice).narrowest(b"b") == []
