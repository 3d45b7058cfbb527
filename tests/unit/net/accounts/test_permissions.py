"""Tests of permissions: the rules compared with a simple implementation, and responses with a model."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.config.account_options import AllowResponses, Permissions, SubjectRule
from lakestream.net.accounts.permissions import MAX_ANSWER_BYTES, MAX_REMEMBERED, ReplyPermissions, Rules
from lakestream.protocol.subjects import matches

pytestmark = pytest.mark.unit

UNIVERSE = [".".join(tokens) for n in (1, 2, 3) for tokens in product("ab", repeat=n)]
"""All subjects of up to three tokens over two letters."""

PATTERN = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3).map(".".join) | st.lists(
    st.sampled_from(["a", "b", "*"]), max_size=2
).map(lambda tokens: ".".join([*tokens, ">"]))
QUEUE = st.sampled_from(["g", "h", "v.1", "v.2"])
QUEUE_PATTERN = st.sampled_from(["g", "v.*", "v.1", ">"])
ENTRY = PATTERN | st.tuples(PATTERN, QUEUE_PATTERN).map(" ".join)
ENTRIES = st.lists(ENTRY, max_size=3).map(tuple)
PATTERNS = st.lists(PATTERN, max_size=3).map(tuple)


def selects(pattern: str, subject: str) -> bool:
    return matches(pattern.encode(), subject.encode())


@given(allow=st.none() | PATTERNS, deny=PATTERNS)
def test_publishing_is_what_is_allowed_without_what_is_denied(
    allow: tuple[str, ...] | None, deny: tuple[str, ...]
) -> None:
    rules = Rules(Permissions(publish=SubjectRule(allow, deny)))
    for subject in UNIVERSE * 2:  # from the cache the second time
        wanted = allow is None or any(selects(entry, subject) for entry in allow)
        wanted = wanted and not any(selects(entry, subject) for entry in deny)
        assert rules.may_publish(subject.encode()) == wanted, subject


@given(allow=st.none() | ENTRIES, deny=ENTRIES, subject=PATTERN, queue=QUEUE | st.just(""))
def test_denied_subjects_are_not_delivered(
    allow: tuple[str, ...] | None, deny: tuple[str, ...], subject: str, queue: str
) -> None:
    rules = Rules(Permissions(subscribe=SubjectRule(allow, deny)))
    if not rules.may_subscribe(subject.encode(), queue.encode()):
        return
    filtered = rules.filtered(subject.encode())
    heard = [each for each in UNIVERSE if selects(subject, each) and not (filtered and rules.hides(each.encode()))]
    if allow is not None:
        whole = [entry.split(" ")[0] for entry in allow]
        assert any(all(selects(entry, each) for each in heard) for entry in whole)
    denied = [entry for entry in deny if " " not in entry]
    assert not [each for each in heard if any(selects(entry, each) for entry in denied)]


@given(allow=PATTERNS.filter(bool), subject=st.sampled_from(UNIVERSE))
def test_a_subject_that_is_allowed_may_be_subscribed_to_in_any_group(allow: tuple[str, ...], subject: str) -> None:
    rules = Rules(Permissions(subscribe=SubjectRule(allow)))
    wanted = any(selects(entry, subject) for entry in allow)
    assert rules.may_subscribe(subject.encode()) == wanted
    assert rules.may_subscribe(subject.encode(), b"group") == wanted


@pytest.mark.parametrize(
    ("entries", "subject", "queue", "wanted"),
    [
        (("q.* g",), "q.a", "g", True),
        (("q.* g",), "q.a", "h", False),
        (("q.* g",), "q.a", "", False),
        (("q.* g", "q.a"), "q.a", "", True),
        (("q.* g", "q.a"), "q.a", "h", False),
        (("q.*   v.*",), "q.a", "v.1", True),
        (("q.* v.*",), "q.a", "v.1.2", False),
        (("q.* v.*",), "q.a", "v.*", True),
        (("q.* >",), "q.a", "any.group", True),
        (("q.*",), "q.>", "", False),
        (("q.>",), "q.*", "", True),
        (("*.a",), "q.*", "", False),
        ((), "q", "", False),
        (("a.>",), "a..b", "", False),
    ],
)
def test_queue_groups_and_wildcards(entries: tuple[str, ...], subject: str, queue: str, wanted: bool) -> None:
    rules = Rules(Permissions(subscribe=SubjectRule(entries)))
    assert rules.may_subscribe(subject.encode(), queue.encode()) == wanted


def test_what_is_denied_stays_so_when_a_group_is_denied_by_name() -> None:
    rules = Rules(Permissions(subscribe=SubjectRule(deny=("a", "a g"))))
    assert not any(rules.may_subscribe(b"a", queue) for queue in (b"", b"g", b"h"))


def test_what_is_denied_in_part_is_filtered_even_where_only_some_of_it_is_subscribed_to() -> None:
    rules = Rules(Permissions(subscribe=SubjectRule(deny=("d.*.x", "q.* g"))))
    assert rules.may_subscribe(b"d.a.*")
    assert rules.filtered(b"d.a.*")
    assert not rules.filtered(b"d.a.y")
    assert not rules.filtered(b"q.*")
    assert rules.hides(b"d.a.x")
    assert not rules.hides(b"q.a")


def test_with_allow_responses_publishing_is_denied_unless_allowed() -> None:
    assert not Rules(Permissions(responses=AllowResponses())).may_publish(b"a")
    assert not Rules(Permissions(publish=SubjectRule(deny=("b",)), responses=AllowResponses())).may_publish(b"a")
    assert Rules(Permissions(publish=SubjectRule(("a",)), responses=AllowResponses())).may_publish(b"a")


def test_decisions_are_forgotten_not_gathered_without_end() -> None:
    rules = Rules(Permissions(publish=SubjectRule(("a.*",)), subscribe=SubjectRule(deny=("b.*",))))
    for n in range(2 * MAX_REMEMBERED + 1):
        assert rules.may_publish(b"a.%d" % n)
        assert rules.hides(b"b.%d" % n)
    assert len(rules._may_publish) <= MAX_REMEMBERED
    assert len(rules._hidden) <= MAX_REMEMBERED


def test_decisions_for_long_subjects_are_not_kept() -> None:
    rules = Rules(Permissions(publish=SubjectRule(("a.*",)), subscribe=SubjectRule(deny=("a.*",))))
    for _ in range(2):
        assert rules.may_publish(b"a." + b"x" * 1000)
        assert rules.hides(b"a." + b"x" * 1000)
    assert not rules._may_publish
    assert not rules._hidden


# ---------------------------------------------------------------------- responses
def test_open_reply_subjects_take_no_more_than_so_many_bytes() -> None:
    answers = ReplyPermissions(AllowResponses(1, -1))
    replies = [b"%d." % number + b"x" * 4000 for number in range(MAX_ANSWER_BYTES // 4000 + 100)]
    for now, reply in enumerate(replies):
        answers.received(reply, now)
    assert len(answers) * 4000 <= MAX_ANSWER_BYTES + 8000
    assert not answers.spend(replies[0], 1)
    assert answers.spend(replies[-1], 1)


@pytest.mark.parametrize(
    ("reply", "permitted"),
    [
        (b"r", True),
        (b"$JS.API.STREAM.PURGE.S", False),
        (b"$JS.hub.API.STREAM.PURGE.S", False),
        (b"$JS.ACK.API.c.1.1.1.1.0", True),
        (b"$JS.FC.S.c.x", True),
        (b"$JSC.R.x", True),
    ],
)
def test_no_answer_is_a_request_to_jetstream(reply: bytes, permitted: bool) -> None:
    answers = ReplyPermissions(AllowResponses(1, -1))
    answers.received(reply, 0)
    assert answers.spend(reply, 1) is permitted


EVENT = st.tuples(st.sampled_from(["received", "spend", "wait"]), st.sampled_from([b"r1", b"r2", b"r3", b"r4"]))


@given(
    events=st.lists(EVENT, max_size=60),
    most=st.sampled_from([-1, 0, 1, 2, 3]),
    expires=st.sampled_from([-1, 0, 1, 5]),
    room=st.sampled_from([2, 100]),
)
def test_answers_against_a_model(events: list[tuple[str, bytes]], most: int, expires: int, room: int) -> None:
    answers = ReplyPermissions(AllowResponses(most, expires), room)
    model: dict[bytes, list[int]] = {}
    now, allowed = 0, most or 1
    for what, reply in events:
        if what == "wait":
            now += 2
        elif what == "received":
            model.pop(reply, None)
            if len(model) >= room:
                del model[min(model, key=lambda each: model[each][0])]
            model[reply] = [now, 0]
            now += 1  # so that the ages differ
            answers.received(reply, model[reply][0])
        else:
            came, count = model.get(reply, [now, 0])
            wanted = reply in model and (allowed < 0 or count < allowed) and not 0 < expires < now - came
            if wanted:
                model[reply][1] += 1
            assert answers.spend(reply, now) == wanted
        assert len(answers) <= room
