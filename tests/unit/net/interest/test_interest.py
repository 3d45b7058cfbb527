"""Tests of the interest graph compared with a simple matcher, of its caches, and of watches on subjects."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lakestream.net.interest.cache import MAX_CACHED_SUBJECT
from lakestream.net.interest.interest import SAMPLE_EVERY, Interest
from lakestream.net.interest.subscription import Match, Subscription
from lakestream.protocol.subjects import matches, subscribable

pytestmark = pytest.mark.unit


def subscription(subject: bytes, queue: bytes = b"", sid: bytes = b"1") -> Subscription:
    return Subscription(cast(Any, None), subject, queue, sid)


def shape(match: Match) -> tuple[Counter[Subscription], dict[bytes, Counter[Subscription]]]:
    groups = {}
    for group in match.queues:
        name = group[0].queue
        assert name not in groups, "one group told twice"
        assert all(sub.queue == name for sub in group)
        groups[name] = Counter(group)
    return Counter(match.plain), groups


def naive(subs: list[Subscription], subject: bytes) -> tuple[Counter[Subscription], dict[bytes, Counter[Subscription]]]:
    plain: Counter[Subscription] = Counter()
    groups: dict[bytes, Counter[Subscription]] = {}
    for sub in subs:
        if matches(sub.subject, subject):
            if sub.queue:
                groups.setdefault(sub.queue, Counter())[sub] += 1
            else:
                plain[sub] += 1
    return plain, groups


def graph(*subjects: bytes) -> Interest:
    interest = Interest()
    for subject in subjects:
        assert interest.insert(subscription(subject))
    return interest


def found(interest: Interest, subject: bytes) -> list[bytes]:
    return sorted(sub.subject for sub in interest.match(subject).plain)


# ---------------------------------------------------------------------- matches
@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (b"a", [b"*", b">", b"a"]),
        (b"a.b", [b"*.b", b">", b"a.*", b"a.>", b"a.b"]),
        (b"a.b.c", [b">", b"a.*.c", b"a.>"]),
        (b"a.x", [b">", b"a.*", b"a.>"]),
        (b"x.b", [b"*.b", b">"]),
        (b"a*", [b"*", b">", b"a*"]),
        # Wildcards in published subjects are ordinary tokens.
        (b"a.*", [b">", b"a.*", b"a.>"]),
        (b"a.>", [b">", b"a.*", b"a.>"]),
        (b"*", [b"*", b">"]),
        (b">", [b"*", b">"]),
        # A subject with an empty token has no subscribers.
        (b"", []),
        (b".", []),
        (b"a.", []),
        (b".b", []),
        (b"a..b", []),
        (b"a..", []),
        (b"..", []),
    ],
)
def test_a_subject_reaches(subject: bytes, expected: list[bytes]) -> None:
    interest = graph(b"a", b"a.b", b"a.*", b"a.>", b">", b"*", b"*.b", b"a.*.c", b"a*")
    for _ in range(3 * SAMPLE_EVERY):
        assert found(interest, subject) == expected


def test_an_empty_last_token_matches_no_known_inbox() -> None:
    interest = graph(b"x.y.*")
    assert found(interest, b"x.y.1") == [b"x.y.*"]
    assert found(interest, b"x.y.") == []


def test_members_of_a_group_are_one_group_whatever_filter_they_used() -> None:
    interest = Interest()
    for subject in (b"a.b", b"a.*", b"a.>", b"*.b"):
        interest.insert(subscription(subject, b"q"))
    interest.insert(subscription(b"a.b", b"r"))
    match = interest.match(b"a.b")
    assert match.plain == []
    assert sorted((group[0].queue, len(group)) for group in match.queues) == [(b"q", 4), (b"r", 1)]


def test_a_subscription_counts_once_and_is_gone_once_removed() -> None:
    for subject in (b"a.b", b"a.*", b"a.>", b"*.b", b"*", b">"):
        for queue in (b"", b"q"):
            interest, sub = Interest(), subscription(subject, queue)
            assert not interest.remove(sub)
            assert interest.insert(sub)
            assert not interest.insert(sub)
            assert len(interest) == 1
            assert interest.remove(sub)
            assert not interest.remove(sub)
            assert len(interest) == 0
            assert not interest.interest(b"a.b")


def test_a_match_stays_as_it_is_while_subscriptions_go() -> None:
    interest = graph(b"a.b")
    first, second = subscription(b"a.*"), subscription(b"a.*", b"q")
    interest.insert(first)
    interest.insert(second)
    match = interest.match(b"a.b")
    before = shape(match)
    for sub in [*match.plain, *match.queues[0]]:
        interest.remove(sub)
    assert shape(match) == before
    assert shape(interest.match(b"a.b")) == (Counter(), {})


def test_removing_everything_leaves_nothing_behind() -> None:
    interest = Interest()
    subs = [subscription(subject, queue) for queue in (b"", b"q") for subject in FILTERS]
    for sub in subs:
        interest.insert(sub)
    for sub in subs:
        interest.remove(sub)
    assert not interest._literals
    assert not interest._stars
    assert not interest._below
    assert not interest._literals_under
    assert interest._trie._root.empty()


# ---------------------------------------------------------------------- against the simple matcher
WORDS = [b"a", b"b", b"c"]
FILTERS = [
    b".".join(words)
    for words in [
        *[[a] for a in [*WORDS, b"*", b">"]],
        *[[a, b] for a in [*WORDS, b"*"] for b in [*WORDS, b"*", b">"]],
        *[[a, b, c] for a in [*WORDS, b"*"] for b in [*WORDS, b"*"] for c in [*WORDS, b"*", b">"]],
    ]
]
short = st.lists(st.sampled_from([*WORDS, b"*", b"*", b">"]), min_size=1, max_size=5)
deep = st.lists(st.sampled_from([b"a", b"a", b"b", b"*"]), min_size=3, max_size=7)
filters = st.one_of(short, deep, deep.map(lambda words: [*words, b">"])).map(b".".join)
subjects = st.one_of(
    st.lists(st.sampled_from([*WORDS, b"*", b">", b""]), min_size=1, max_size=5),
    st.lists(st.sampled_from([b"a", b"a", b"b", b""]), min_size=4, max_size=8),
).map(b".".join)


class Graph(RuleBasedStateMachine):
    """Random subscriptions that come and go while subjects are matched, with caches that are always full."""

    @initialize(cached=st.sampled_from([2, 3, 16, 8192]))
    def start(self, cached: int) -> None:
        self.interest = Interest(max_cached=cached)
        self.subs: list[Subscription] = []

    @rule(pattern=filters.filter(subscribable), queue=st.sampled_from([b"", b"", b"q", b"r"]))
    def subscribe(self, pattern: bytes, queue: bytes) -> None:
        sub = subscription(pattern, queue)
        assert self.interest.insert(sub)
        self.subs.append(sub)

    @precondition(lambda self: self.subs)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        sub = self.subs.pop(data.draw(st.integers(0, len(self.subs) - 1)))
        assert self.interest.remove(sub)

    @rule(subject=subjects, times=st.sampled_from([1, 1, 20]))
    def publish(self, subject: bytes, times: int) -> None:
        expected = naive(self.subs, subject)
        for _ in range(times):
            assert shape(self.interest.match(subject)) == expected
        assert self.interest.interest(subject) == bool(expected[0] or expected[1])
        assert self.interest.interest(subject, b"q") == (b"q" in expected[1])

    @rule(subjects=st.lists(subjects, min_size=5, max_size=20))
    def publish_many(self, subjects: list[bytes]) -> None:
        for subject in subjects:
            assert shape(self.interest.match(subject)) == naive(self.subs, subject)

    @invariant()
    def caches_are_bounded_and_agree(self) -> None:
        interest = self.interest
        interest._caches.check()
        assert len(interest._inboxes) <= len(interest._stars)
        assert len(interest) == len(self.subs)


Graph.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestGraph = Graph.TestCase


# One token is a prefix of another one.
SMALL_WORLD = [b".".join(words) for n in range(1, 5) for words in itertools.product([b"a", b"ab"], repeat=n)]
SMALL_FILTERS = [
    pattern
    for n in range(1, 5)
    for words in itertools.product([b"a", b"ab", b"*", b">"], repeat=n)
    if subscribable(pattern := b".".join(words))
]
# The forms of inboxes, streams and consumers occur more often than those with wildcards in the middle.
common = st.sampled_from([b"a", b"a.a", b"a.ab", b"a.*", b"a.a.*", b"a.a.a", b"a.>", b"a.a.>", b"a.a.a.>", b"a.a.a.*"])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.one_of(common, st.sampled_from(SMALL_FILTERS)), st.booleans()), max_size=14),
    st.sampled_from([5, 8192]),
)
def test_after_every_change_every_subject_is_matched_anew(changes: list[tuple[bytes, bool]], cached: int) -> None:
    # All subjects are matched and cached before each change, so that an entry that is not invalidated shows at once.
    interest, present = Interest(max_cached=cached), {}
    for pattern, queued in [*changes, *reversed(changes)]:
        sub = present.pop((pattern, queued), None)
        if sub is not None:
            interest.remove(sub)
        else:
            sub = present[pattern, queued] = subscription(pattern, b"q" if queued else b"")
            interest.insert(sub)
        expected = [naive(list(present.values()), subject) for subject in SMALL_WORLD]
        for _ in range(2):
            assert [shape(interest.match(subject)) for subject in SMALL_WORLD] == expected
        interest._caches.check()
    assert not present


@settings(max_examples=150, deadline=None)
@given(st.lists(filters.filter(subscribable), max_size=12), st.lists(subjects, max_size=40))
def test_any_set_of_filters_matches_as_the_naive_matcher_says(patterns: list[bytes], published: list[bytes]) -> None:
    interest, subs = Interest(max_cached=8), [subscription(pattern) for pattern in patterns]
    for sub in subs:
        interest.insert(sub)
    for subject in published + published:
        assert shape(interest.match(subject)) == naive(subs, subject)


# ---------------------------------------------------------------------- caches
def test_subjects_that_never_repeat_leave_no_trace() -> None:
    interest = graph(b"_INBOX.x.*", b"$JS.ACK.>", b"$JS.API.>", b"$KV.b.>", b"$KV.c.>", b"orders.>", b"$JS.API.D.G.S.>")
    for i in range(3000):
        for subject in (
            b"_INBOX.x.%d",
            b"$JS.ACK.S.C.1.%d.7.0",
            b"$KV.b.key.%d.x",
            b"$KV.b.%d",
            b"orders.%d",
            b"nobody.%d.x",
            b"$JS.API.D.G.S.%d",
        ):
            interest.match(subject % i)
    assert len(interest._subjects) == 0
    assert len(interest._heads) + len(interest._firsts) + len(interest._seconds) + len(interest._inboxes) < 20


def test_acks_leave_no_trace_where_only_some_streams_listen() -> None:
    interest = graph(b"$JS.ACK.S.>", b"$JS.ACK.*.*.S.>", b"$JS.ACK.T.>", b"dev.*.temp.*.>")
    for i in range(3000):
        assert found(interest, b"$JS.ACK.S.C.1.%d.%d.7.0" % (i, i)) == [b"$JS.ACK.S.>"]
        assert found(interest, b"$JS.ACK.hub.hash.S.C.%d.7.0.0" % i) == [b"$JS.ACK.*.*.S.>"]
        assert found(interest, b"$JS.ACK.U.C.1.%d.7.0" % i) == []
        assert found(interest, b"$JS.ACK.S.C") == [b"$JS.ACK.S.>"]
        assert found(interest, b"dev.1.temp.x.%d.y" % i) == [b"dev.*.temp.*.>"]
    caches = interest._caches
    caches.check()
    assert caches._deep_count + len(caches.heads) + len(caches.subjects) < 20


def test_a_flood_of_prefixes_is_bounded_and_leaves_other_subjects_cached() -> None:
    interest = Interest(max_cached=50)
    for filter_ in (b"$JS.ACK.S.>", b"$JS.ACK.*.*.S.>", b"dev.all.*.*.x"):
        interest.insert(subscription(filter_))
    for i in range(1000):
        interest.match(b"$JS.ACK.S.C.1.%d" % i)
        interest.match(b"dev.all.%d.a.b.c" % i)
        assert interest._caches._deep_count <= 50
    interest._caches.check()
    assert b"$JS.ACK.S.C.1" in interest._deeps[b"$JS"][b"$JS.ACK"].matches


def test_a_subject_that_repeats_is_cached_whole() -> None:
    interest = graph(b"orders.>")
    for i in range(10 * SAMPLE_EVERY):
        interest.match(b"orders.new")
        interest.match(b"orders.%d" % i)
    assert list(interest._subjects) == [b"orders.new"]


@pytest.mark.parametrize("form", [b"_INBOX.%d.*", b"_INBOX.%d", b"_INBOX.x.%d.*", b"_INBOX.%d.>"])
def test_inboxes_that_come_and_go_leave_the_other_subjects_cached(form: bytes) -> None:
    interest = graph(b"orders.new", b"a.*.c", b"a.>")
    hot = [b"orders.new", b"a.b.c", b"a.b.d"]
    matches_before = [interest.match(subject) for subject in hot]
    for i in range(1000):
        sub = subscription(form % i)
        interest.insert(sub)
        reply = sub.subject.replace(b"*", b"1").replace(b">", b"1.2")
        assert interest.match(reply).plain == [sub]
        interest.remove(sub)
        assert interest.match(reply).plain == []
    assert all(interest._subjects[subject] is match for subject, match in zip(hot, matches_before, strict=True))
    interest._caches.check()
    assert len(interest._subjects) + len(interest._heads) + len(interest._inboxes) + len(interest._firsts) < 20


def test_the_caches_are_bounded_however_long_and_many_the_subjects_are() -> None:
    interest = Interest(max_cached=100)
    interest.insert(subscription(b"*.*.c"))
    interest.insert(subscription(b"a.*.*.*"))
    interest.insert(subscription(b"q.r.s.t"))
    for i in range(1000):
        interest.match(b"%d.x.c" % i)
        interest.match(b"a.%d.x.y" % i)
        interest.match(b"%d.x.%b" % (i, b"y" * MAX_CACHED_SUBJECT))
        interest.match(b"q.r.%d%b.x" % (i, b"y" * MAX_CACHED_SUBJECT))
        interest.match(b"q.r.%d.x" % i)
    interest._caches.check()
    assert interest._heads
    assert max(map(len, [*interest._subjects, *interest._heads])) <= MAX_CACHED_SUBJECT
    assert interest.match(b"7.x.c").plain


# ---------------------------------------------------------------------- bound and watch
def test_only_a_subscriber_of_the_very_subject_binds() -> None:
    interest = graph(b">", b"d.*")
    assert not interest.bound(b"d.x")
    in_group = subscription(b"d.x", b"q")
    interest.insert(in_group)
    assert not interest.bound(b"d.x")
    assert interest.bound(b"d.x", b"q")
    assert not interest.bound(b"d.x", b"r")
    plain = subscription(b"d.x")
    interest.insert(plain)
    assert interest.bound(b"d.x")
    interest.remove(plain)
    interest.remove(in_group)
    assert not interest.bound(b"d.x")
    assert not interest.bound(b"d.x", b"q")
    assert interest.interest(b"d.x")


def test_a_watcher_is_called_for_changes_only() -> None:
    interest = Interest()
    plain: list[bool] = []
    queued: list[bool] = []
    watch = interest.watch(b"d.x", b"", plain.append)
    interest.watch(b"d.x", b"q", queued.append)
    first, second, member = subscription(b"d.x"), subscription(b"d.x"), subscription(b"d.x", b"q")
    for sub in (first, second, subscription(b"d.x", b"r"), subscription(b"d.*"), subscription(b"d.y")):
        interest.insert(sub)
    assert (plain, queued) == ([True], [])
    interest.insert(member)
    assert (plain, queued) == ([True], [True])
    interest.remove(first)
    assert plain == [True]
    interest.remove(second)
    assert plain == [True, False]
    watch.cancel()
    watch.cancel()
    interest.insert(first)
    interest.remove(member)
    assert (plain, queued) == ([True, False], [True, False])


def test_a_watch_that_begins_with_interest_is_called_when_it_ends() -> None:
    interest = graph()
    sub = subscription(b"d.x")
    interest.insert(sub)
    told: list[bool] = []
    interest.watch(b"d.x", b"", told.append)
    interest.remove(sub)
    assert told == [False]


def test_a_watcher_may_change_interest_and_end_watches_while_it_is_called() -> None:
    interest = Interest()
    told: list[tuple[str, bool]] = []
    extra = subscription(b"d.x")

    def first(value: bool) -> None:
        told.append(("first", value))
        third.cancel()
        interest.remove(sub)

    interest.watch(b"d.x", b"", first)
    interest.watch(b"d.x", b"", lambda value: told.append(("second", value)))
    third = interest.watch(b"d.x", b"", lambda value: told.append(("third", value)))
    sub = subscription(b"d.x")
    interest.insert(sub)
    # By the second watcher's turn the interest was gone again: nothing had changed for it.
    assert told == [("first", True), ("first", False)]
    interest.insert(extra)
    assert told[2:] == [("first", True), ("second", True)]


def test_an_answer_for_all_below_a_prefix_ends_with_the_next_subscription() -> None:
    interest = graph(b"$JS.ACK.>", b"$JS.API.>")
    for number in range(3):
        assert found(interest, b"$JS.ACK.S.c.%d" % number) == [b"$JS.ACK.>"]
    for nobody in (b"$JS.ACK.", b"$JS.ACK..c", b"$JS.ACK.S.", b"$JS.ACK"):
        assert found(interest, nobody) == []
    one = subscription(b"$JS.ACK.S.c.7")
    interest.insert(one)
    assert found(interest, b"$JS.ACK.S.c.7") == [b"$JS.ACK.>", b"$JS.ACK.S.c.7"]
    assert found(interest, b"$JS.ACK.S.c.8") == [b"$JS.ACK.>"]
    interest.remove(one)
    assert found(interest, b"$JS.ACK.S.c.7") == [b"$JS.ACK.>"]


def test_figures_count_subscriptions_and_what_the_caches_hold() -> None:
    graph = Interest()
    subs = [subscription(b"a"), subscription(b"a", b"q"), subscription(b"b.*"), subscription(b"c.>")]
    for sub in subs:
        graph.insert(sub)
    assert graph.figures() == (4, 4, 0, 0, 0, 0)
    for subject in (b"a", b"a", b"b.1", b"b.2", b"c.1.2", b"none.1"):
        graph.match(subject)
    found = graph.figures()
    assert (found.subscriptions, found.inserts, found.misses) == (4, 4, 4)
    assert (found.cached, found.fanouts, found.max_fanout) == (4, 2 + 1 + 1, 2)
    graph.remove(subs[0])
    assert graph.figures()[:2] == (3, 4)
