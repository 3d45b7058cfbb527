"""Tests of subjects and filters: validity as in nats-server 2.15.1, and set relations compared with enumeration."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.native import SubjectMatcher, SubjectSeeker, plain
from lakestream.protocol.subjects import (
    SubjectFilters,
    chooser,
    covers,
    finished,
    intersection,
    is_literal,
    literal_head,
    matches,
    overlaps,
    redundant,
    seeker,
    subscribable,
    valid_literal,
    valid_subject,
    walks,
)
from tests.fuzzing import growth

pytestmark = pytest.mark.unit


# subject, valid in SUB, valid in a stream's configuration, valid in a pedantic PUB, literal
RULES = [
    (b"a", True, True, True, True),
    (b"a.b.c", True, True, True, True),
    (b"*", True, True, False, False),
    (b">", True, True, False, False),
    (b"a.*", True, True, False, False),
    (b"a.>", True, True, False, False),
    (b"*.a", True, True, False, False),
    (b"a.*.b", True, True, False, False),
    (b"a*", True, True, True, True),
    (b"*a.b", True, True, True, True),
    (b"a.b>", True, True, True, True),
    (b"a>b", True, True, True, True),
    (b"**", True, True, True, True),
    (b">>", True, True, True, True),
    (b"a.*b.>c", True, True, True, True),
    (b"a\x00b", True, True, True, True),
    (b"a\x0bb", True, True, True, True),
    (b"\xff\xfe", True, True, True, True),
    ("é".encode(), True, True, True, True),
    (b"a\x0c", True, False, True, True),
    (b"\x0c", True, False, True, True),
    (b"", False, False, False, True),
    (b".", False, False, False, True),
    (b"a.", False, False, False, True),
    (b".a", False, False, False, True),
    (b"a..b", False, False, False, True),
    (b">.a", False, False, False, True),
    (b"a.>.b", False, False, False, True),
    (b">.>", False, False, False, False),
    (b".*", False, False, False, False),
]


@pytest.mark.parametrize(("subject", "sub", "config", "pub", "literal"), RULES)
def test_validity(subject: bytes, sub: bool, config: bool, pub: bool, literal: bool) -> None:
    assert subscribable(subject) is sub
    assert valid_subject(subject) is config
    assert valid_subject(subject, wildcards=False) is (config and literal)
    assert valid_literal(subject) is pub
    assert is_literal(subject) is literal


@pytest.mark.parametrize("blank", [b" ", b"\t", b"\r", b"\n", b"\f"])
@pytest.mark.parametrize("subject", [b"%b", b"a%b", b"a.%bb", b"%b.>"])
def test_a_configured_subject_holds_no_blank(subject: bytes, blank: bytes) -> None:
    assert not valid_subject(subject % blank)


# ---------------------------------------------------------------------- matching
@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        (b"a", b"a", True),
        (b"a", b"b", False),
        (b"*", b"a", True),
        (b"*", b"a.b", False),
        (b">", b"a.b", True),
        (b"a.>", b"a", False),
        (b"a.>", b"a.b.c", True),
        (b"a.*", b"a", False),
        (b"a.*", b"a.b", True),
        (b"a.*.c", b"a.b.c", True),
        (b"a.*.c", b"a.b.d", False),
        (b"*.*", b"a.b", True),
        (b"a*", b"ab", False),
        (b"a*", b"a*", True),
        (b"a.*", b"a.*", True),
        (b"a.*", b"a.>", True),
        (b"a.b", b"a.*", False),
        (b"a.*.b", b"a.>.b", True),
        (b">", b"a..b", False),
        (b">", b"", False),
        (b">", b".", False),
        (b"a.*", b"a.", False),
        (b"*.a", b".a", False),
    ],
)
def test_matches(pattern: bytes, subject: bytes, expected: bool) -> None:
    assert matches(pattern, subject) is expected


def by_definition(pattern: list[bytes], subject: list[bytes]) -> bool:
    """Match token by token, recursively by the definition."""
    if not pattern or not subject:
        return not pattern and not subject
    if pattern == [b">"]:
        return True
    return pattern[0] in (b"*", subject[0]) and by_definition(pattern[1:], subject[1:])


filters = (
    st.lists(st.sampled_from([b"a", b"b", b"*", b">"]), min_size=1, max_size=5).map(b".".join).filter(subscribable)
)
WORLD = [b".".join(words) for n in range(1, 7) for words in itertools.product([b"a", b"b", b"z"], repeat=n)]
"""All subjects of up to six tokens over three words: more than filters of five tokens over two can distinguish."""


@settings(max_examples=100, deadline=None)
@given(filters)
def test_matching_and_the_choice_follow_the_definition(pattern: bytes) -> None:
    words = pattern.split(b".")
    head = literal_head(pattern) if not is_literal(pattern) else b""
    begun = [subject for subject in WORLD if subject.startswith(head)]
    wanted = [subject for subject in WORLD if by_definition(words, subject.split(b"."))]
    assert chooser([pattern], head)(begun) == chooser([pattern], b"")(WORLD) == wanted
    assert plain.SubjectMatcher([pattern]).choose(WORLD) == wanted
    for subject in WORLD:
        expected = by_definition(words, subject.split(b"."))
        assert matches(pattern, subject) is expected


@settings(max_examples=100, deadline=None)
@given(st.lists(filters, min_size=1, max_size=6))
def test_many_filters_choose_what_one_of_them_matches(patterns: list[bytes]) -> None:
    wanted = {subject for subject in WORLD if any(matches(pattern, subject) for pattern in patterns)}
    assert set(SubjectMatcher(patterns).choose(WORLD)) == set(plain.SubjectMatcher(patterns).choose(WORLD)) == wanted
    ranges = walks(pattern for pattern in patterns if not is_literal(pattern))
    wild = [pattern for pattern in patterns if not is_literal(pattern)]
    chosen = [choose([subject for subject in WORLD if subject.startswith(head)]) for head, choose, _ in ranges]
    once = sorted(subject for subject in WORLD if any(matches(pattern, subject) for pattern in wild))
    assert sorted(itertools.chain.from_iterable(chosen)) == once


@pytest.mark.parametrize("matcher", [SubjectMatcher, plain.SubjectMatcher])
@pytest.mark.parametrize("subject", [b"a.+", b"a.[", b"a.\n", b"a.\xff", b"a.b\n", b"a.\0"])
def test_a_matcher_takes_every_byte_for_itself(matcher: type[plain.SubjectMatcher], subject: bytes) -> None:
    stored = [subject, subject[:-1] + b"x", subject + b"\n"]
    assert matcher([subject]).choose(stored) == [subject]
    for pattern in (b"a.*", b"a.>", b">", b"*.*"):
        assert matcher([pattern]).choose([subject]) == ([subject] if matches(pattern, subject) else [])


@pytest.mark.parametrize("matcher", [SubjectMatcher, plain.SubjectMatcher])
def test_tokens_of_a_subject_that_look_like_wildcards_are_literal(matcher: type[plain.SubjectMatcher]) -> None:
    stored = [b"a.*", b"a.>", b"*", b">", b"a.b"]
    assert matcher([b"a.*"]).choose(stored) == [b"a.*", b"a.>", b"a.b"]
    assert matcher([b"a.b", b"*"]).choose(stored) == [b"*", b">", b"a.b"]


def selected(pattern: bytes) -> frozenset[bytes]:
    words = pattern.split(b".")
    return frozenset(subject for subject in WORLD if by_definition(words, subject.split(b".")))


@settings(max_examples=200, deadline=None)
@given(filters, filters)
def test_overlaps_and_covers_follow_from_the_subjects_selected(a: bytes, b: bytes) -> None:
    left, right = selected(a), selected(b)
    assert overlaps(a, b) is bool(left & right)
    assert overlaps(b, a) is bool(left & right)
    assert covers(a, b) is (left >= right)
    assert covers(b, a) is (right >= left)
    both = intersection(a, b)
    assert both == intersection(b, a)
    assert (selected(both) if both is not None else frozenset()) == left & right


@settings(max_examples=300, deadline=None)
@given(st.lists(filters, max_size=6), filters)
def test_a_set_of_filters_overlaps_and_covers_as_its_members_do(known: list[bytes], one: bytes) -> None:
    assert SubjectFilters(known).overlap(one) is any(overlaps(other, one) for other in known)
    assert SubjectFilters(known).match(one) is any(matches(other, one) for other in known)
    assert finished(SubjectFilters(known).covering((one,))) is any(
        covers(other, one) for other in known if other != one
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(filters, max_size=6))
def test_redundant_filters_are_those_that_another_one_covers(some: list[bytes]) -> None:
    pairs = itertools.permutations(some, 2)
    assert finished(redundant(some)) is any(covers(a, b) for a, b in pairs)


def test_many_filters_are_compared_in_steps() -> None:
    """One consumer's 3,000 filters of 160 bytes kept the event loop for 25 ms."""
    many = [b"t.%b.%d.>" % (b"x" * 150, i) for i in range(3_000)]
    assert sum(1 for _ in redundant(many)) > 50


def test_a_walk_over_many_wildcards_is_interrupted_too() -> None:
    patterns = [b".".join(b"*" if number >> bit & 1 else b"a" for bit in range(12)) for number in range(1 << 12)]
    some = [one for one in patterns if one.count(b"*") == 6]  # none covers another
    assert sum(1 for _ in redundant(some)) > 100


def test_many_filters_are_compared_at_once() -> None:
    """Pairwise, ten thousand would be a hundred million comparisons on the event loop."""
    many = [b"t.%d.x" % i for i in range(4_000)]
    known = {size: SubjectFilters(many[:size]) for size in (1_000, 4_000)}

    def compare(size: int) -> None:
        assert not finished(known[size].covering(many[:size]))
        assert not any(known[size].overlap(one + b".y") for one in many[:size])

    assert growth(compare, 1_000) < 9


@pytest.mark.parametrize(
    ("a", "b", "overlap", "cover"),
    [
        (b"a.*", b"a.b", True, True),
        (b"a.b", b"a.*", True, False),
        (b"a.>", b"a", False, False),
        (b">", b"a", True, True),
        (b">", b">", True, True),
        (b"*.>", b">", True, False),
        (b"a.*", b"a.>", True, False),
        (b"a.>", b"a.*", True, True),
        (b"*.b", b"a.*", True, False),
        (b"a.*.c", b"*.b", False, False),
        (b"t.*.b", b"t.a.*", True, False),
    ],
)
def test_overlaps_and_covers(a: bytes, b: bytes, overlap: bool, cover: bool) -> None:
    assert overlaps(a, b) is overlap
    assert covers(a, b) is cover


TOKENS = st.sampled_from([b"a", b"b", b"12", b"1", b"12-x", b"7", b"70", b"-", b"!", b"~", b"/"])
STORED = st.lists(TOKENS, min_size=1, max_size=5).map(b".".join)
SOUGHT = st.lists(st.one_of(TOKENS, st.just(b"*")), min_size=2, max_size=5).map(b".".join)


@given(st.lists(SOUGHT, min_size=1, max_size=3), st.lists(STORED, max_size=40), STORED | st.just(b""))
def test_no_subject_that_matches_is_skipped(patterns: list[bytes], subjects: list[bytes], low: bytes) -> None:
    seek = seeker(patterns)
    if seek is None:
        return
    wanted = [each for each in subjects if each >= low and any(matches(pattern, each) for pattern in patterns)]
    assert low <= seek.bound(low) <= min(wanted, default=seek.bound(low))


@pytest.mark.parametrize("make", [SubjectSeeker, plain.SubjectSeeker])
@given(st.lists(SOUGHT, min_size=1, max_size=3), st.lists(STORED, max_size=40), STORED | st.just(b""), STORED)
def test_the_matches_among_names_in_order_are_found(
    make: type[plain.SubjectSeeker], patterns: list[bytes], subjects: list[bytes], low: bytes, end: bytes
) -> None:
    names, seek = sorted(subjects), make(patterns)
    for until in (b"", end):
        found, following = seek.choose(names, low, until)
        between = [each for each in names if low <= each and (not until or each < until)]
        wanted = [each for each in between if any(matches(pattern, each) for pattern in patterns)]
        assert [each for each in found if each in wanted] == list(dict.fromkeys(wanted))
        assert set(found) <= set(between)
        assert low <= following
        later = [each for each in subjects if until and each >= max(low, until)]
        assert all(following <= each for each in later if any(matches(pattern, each) for pattern in patterns))
        assert (found, following) == plain.SubjectSeeker(patterns).choose(names, low, until)


class SomeNames:
    """Leaf with these names."""

    def __init__(self, names: list[bytes], block: object) -> None:
        self.names, self.ordered, self.block = names, len(names), block

    def in_order(self) -> list[bytes]:
        return self.names


@pytest.mark.parametrize("make", [SubjectSeeker, plain.SubjectSeeker])
@given(
    st.lists(SOUGHT, min_size=1, max_size=3),
    st.sets(STORED, max_size=40),
    st.sets(STORED, max_size=5),
    st.sampled_from([None, None, 1]),
    STORED | st.just(b""),
    STORED | st.just(b""),
    st.integers(1, 4),
)
def test_a_walk_over_leaves_finds_the_matches_of_all(
    make: type[plain.SubjectSeeker],
    patterns: list[bytes],
    subjects: set[bytes],
    borders: set[bytes],
    block: object,
    low: bytes,
    end: bytes,
    most: int,
) -> None:
    lows, seek = [b"", *sorted(borders)], make(patterns)
    parts = [
        sorted(each for each in subjects if each >= first and (not after or each < after))
        for first, after in zip(lows, [*lows[1:], b""], strict=True)
    ]
    leaves = [SomeNames(names, block if at == 1 else None) for at, names in enumerate(parts)]
    found, begin, going = list[bytes](), low, low
    while True:
        some, after, at = seek.walk(lows, leaves, going, end, most)
        assert (some, after, at) == plain.SubjectSeeker(patterns).walk(lows, leaves, going, end, most)
        found += some
        if after is None:
            break
        if at >= 0:
            assert leaves[at].block is not None
            more, after = seek.choose(parts[at], after, end)
            found += more
            if at + 1 == len(lows):
                break
            after = max(after, lows[at + 1])
        assert after >= going
        going = after
    between = [each for each in sorted(subjects) if begin <= each and (not end or each < end)]
    assert [each for each in found if any(matches(one, each) for one in patterns)] == [
        each for each in between if any(matches(one, each) for one in patterns)
    ]


@given(st.lists(SOUGHT, min_size=1, max_size=3), STORED | st.just(b""))
def test_both_seekers_know_the_same_bound(patterns: list[bytes], low: bytes) -> None:
    assert SubjectSeeker(patterns).bound(low) == plain.SubjectSeeker(patterns).bound(low)


def test_seeking_goes_from_one_match_to_the_next() -> None:
    seek = seeker([b"k.*.7"])
    assert seek is not None
    assert [seek.bound(low) for low in (b"k.12.", b"k.12.7", b"k.12.70", b"k.12/")] == [
        b"k.12.7",
        b"k.12.7",
        b"k.12/",
        b"k.12/",
    ]
    assert seeker([b"k.*"]) is seeker([b"k.>"]) is None
