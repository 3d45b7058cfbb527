"""Tests of the subject mapping of imports, and of nats-server 2.15.1's refusals of mismatched subjects."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.config.account_options import StreamImport
from lakestream.config.sharing import ImportSubjects, local_subject
from lakestream.protocol.subjects import covers, is_literal, matches
from lakestream.protocol.transforms import TransformError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("subject", "to", "ours", "theirs_at", "ours_at"),
    [
        (b"s.>", b"", b"s.>", b"s.1.2", b"s.1.2"),
        (b"s.>", b"l.>", b"l.>", b"s.1.2", b"l.1.2"),
        (b"t.*.*", b"l.*.*", b"l.*.*", b"t.1.2", b"l.1.2"),
        (b"t.*.*", b"l.$2.$1", b"l.*.*", b"t.1.2", b"l.2.1"),
        (b"t.*.*", b"l.{{wildcard(2)}}.{{ Wildcard( 1 ) }}", b"l.*.*", b"t.1.2", b"l.2.1"),
        (b"ev.a.*", b"mapped.$1", b"mapped.*", b"ev.a.b", b"mapped.b"),
        (b"t.*.x.>", b"a.$1.>", b"a.*.>", b"t.q.x.c.d", b"a.q.c.d"),
        (b"tok.IMP.get", b"tok", b"tok", b"tok.IMP.get", b"tok"),
        (
            b"r.x.>",
            local_subject(StreamImport(account="A", subject="r.x.>", prefix="via")),
            b"via.r.x.>",
            b"r.x.1",
            b"via.r.x.1",
        ),
        (
            b"r.x.>",
            local_subject(StreamImport(account="A", subject="r.x.>", prefix="via.")),
            b"via.r.x.>",
            b"r.x.1",
            b"via.r.x.1",
        ),
    ],
)
def test_names_there_and_here(subject: bytes, to: bytes, ours: bytes, theirs_at: bytes, ours_at: bytes) -> None:
    subjects = ImportSubjects(subject, to)
    assert (subjects.theirs, subjects.ours) == (subject, ours)
    assert subjects.to_ours(theirs_at) == ours_at
    assert subjects.to_theirs(ours_at) == theirs_at


def test_filters_translate_too() -> None:
    subjects = ImportSubjects(b"t.*.*", b"l.$2.$1")
    assert subjects.to_theirs(b"l.*.b") == b"t.b.*"
    assert ImportSubjects(b"ev.>", b"via.ev.>").to_theirs(b"via.ev.*.k") == b"ev.*.k"


@pytest.mark.parametrize(
    ("subject", "to", "ours", "asked"),
    [
        (b"q.1.2", b"l.>", b"l.>", b"l.any.thing"),
        (b"q.1.2", b"l", b"l", b"l"),
        (b"q.$2.$1", b"l.*.*", b"l.*.*", b"l.1.2"),
        (b"w.$1.z", b"v.*", b"v.*", b"v.k"),
    ],
)
def test_a_service_of_one_subject_may_have_a_filter_for_a_name(
    subject: bytes, to: bytes, ours: bytes, asked: bytes
) -> None:
    subjects = ImportSubjects(subject, to, constant=True)
    assert subjects.ours == ours
    assert subjects.to_theirs(asked) == subject


@pytest.mark.parametrize(
    ("subject", "to", "text"),
    [
        (b"s.>", b"l", "invalid subject"),
        (b"r.>", b"l.*", "invalid subject"),
        (b"t.*.*", b"l.$2", "invalid mapping destination: not using all of the token wildcard(s) in l.$2"),
        (b"t.*.*", b"l.*", "invalid mapping destination: not using all of the token wildcard(s) in l.$1"),
        (b"t.*.*", b"l", "invalid mapping destination: not using all of the token wildcard(s) in l"),
        (b"q.*.*", b"l.$1", "invalid mapping destination: not using all of the token wildcard(s) in l.$1"),
        (b"s.>", b"l.$1.s.>", "invalid mapping destination: wildcard index out of range in $1: [1]"),
        (b"r.*", b"l.*.*", "invalid mapping destination: wildcard index out of range in $2: [2]"),
        (b"r.*", b"l.$0", "invalid mapping destination: wildcard index out of range in $0: [0]"),
        (b"r.*", b"l.$99999999999999999999999", "wildcard index out of range"),
    ],
)
def test_names_that_do_not_fit(subject: bytes, to: bytes, text: str) -> None:
    with pytest.raises(TransformError) as refused:
        ImportSubjects(subject, to)
    assert text in str(refused.value)


words = st.sampled_from([b"a", b"b", b"c"])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([b"a", b"*"]), min_size=1, max_size=5), st.booleans(), st.randoms(), st.data())
def test_there_and_back_is_the_same(shape: list[bytes], rest: bool, order: object, data: st.DataObject) -> None:
    """A subject mapped to the local name and back is unchanged, whatever the order of the wildcards."""
    stars = shape.count(b"*")
    numbers = data.draw(st.permutations(range(1, stars + 1)))
    tail = [b">"] if rest else []
    subjects = ImportSubjects(b".".join([*shape, *tail]), b".".join([b"x", *[b"$%d" % n for n in numbers], *tail]))
    more = data.draw(st.lists(words, min_size=1, max_size=2)) if rest else []
    there = b".".join([data.draw(words) if token == b"*" else token for token in shape] + more)
    here = subjects.to_ours(there)
    assert is_literal(subjects.ours) is (not stars and not rest)
    assert matches(subjects.ours, here)
    assert matches(subjects.theirs, there)
    assert subjects.to_theirs(here) == there
    assert covers(subjects.theirs, subjects.to_theirs(subjects.ours))
