"""Tests of subjects of the registry's API as names of schemas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.schemas.schema import check_name
from lakestream_registry.errors import RegistryError
from lakestream_registry.subjects import DEFAULT_CONTEXT, name_of, subject_of


@given(st.text(min_size=1, max_size=20, alphabet=st.sampled_from("ax_xX0123456789AF.-: /é")))
def test_each_subject_has_a_name_of_its_own(subject: str) -> None:
    if subject.removeprefix(DEFAULT_CONTEXT).startswith(":.") or subject == DEFAULT_CONTEXT:
        return
    name = name_of(subject)
    check_name(name)
    assert subject_of(name) == subject.removeprefix(DEFAULT_CONTEXT)


def test_usual_subjects_are_their_own_names() -> None:
    for subject in ("orders-value", "com.acme.Order", "a_b.c-d"):
        assert name_of(subject) == subject


@pytest.mark.parametrize("subject", ["", ":.:", ":.staging:orders", "x" * 200])
def test_subjects_that_cannot_exist_are_refused(subject: str) -> None:
    with pytest.raises(RegistryError) as refused:
        name_of(subject)
    assert (refused.value.status, refused.value.code) == (422, 42208)
