"""Scenarios of stream configurations with sources: refusals and their order, cycles, updates.

See docs/internals/streams.md#mirrors-and-sources.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.conformance.origins import ask
from tests.conformance.scenarios.mirror_config import ORIGINS, START, mapped

SECOND = 1_000_000_000
ORIGIN = {"name": "O"}
PREPARED = {"name": "c", "deliver_subject": "d"}
OTHER = {"name": "c", "deliver_subject": "e"}


def _stage(t: Script) -> None:
    t.stream("O", ["o.>"], max_msg_size=1000)
    t.stream("P", ["p.>"])


@table([(name, fields) for name, fields in ORIGINS])
def origin(t: Script, fields: dict[str, Any]) -> None:
    _stage(t)
    config = {"name": "T", "storage": "memory", "subjects": ["t.*"], "sources": [{**ORIGIN, **fields}]}
    if "error" not in ask(t, "STREAM.CREATE.T", config):
        ask(t, "STREAM.CREATE.T", config, "once more")
        ask(t, "STREAM.UPDATE.T", {**config, "max_msgs": 5}, "update of another field")
    t.api("STREAM.NAMES")


def elsewhere(**prefixes: str) -> dict[str, Any]:
    """Return a source of another API."""
    return {"name": "X", "external": prefixes}


# Each row: several sources.
SEVERAL: list[tuple[str, list[Any]]] = [
    ("none", []),
    ("null", [None]),
    ("empty", [{}]),
    ("two", [ORIGIN, {"name": "P"}]),
    ("the_same", [ORIGIN, ORIGIN]),
    ("the_same_and_a_bad_one", [ORIGIN, ORIGIN, {"name": ".."}]),
    ("all_and_a_part", [ORIGIN, {**ORIGIN, "filter_subject": "o.a"}]),
    ("parts", [{**ORIGIN, "filter_subject": "o.a"}, {**ORIGIN, "filter_subject": "o.b"}]),
    ("parts_overlap", [{**ORIGIN, "filter_subject": "o.>"}, {**ORIGIN, "filter_subject": "o.b"}]),
    ("the_same_part", [{**ORIGIN, "filter_subject": "o.a"}, {**ORIGIN, "filter_subject": "o.a"}]),
    ("all_in_two_ways", [{**ORIGIN, "filter_subject": ">"}, ORIGIN]),
    ("nothing_transformed", [{**ORIGIN, "subject_transforms": mapped(("", ""))}, ORIGIN]),
    ("other_starts", [{**ORIGIN, "opt_start_seq": 1}, {**ORIGIN, "opt_start_time": START}]),
    (
        "other_destinations",
        [
            {**ORIGIN, "subject_transforms": mapped(("o.a", "x"))},
            {**ORIGIN, "subject_transforms": mapped(("o.a", "y"))},
        ],
    ),
    (
        "a_filter_and_a_transform_to_nothing",
        [{**ORIGIN, "subject_transforms": mapped(("o.a", ""))}, {**ORIGIN, "filter_subject": "o.a"}],
    ),
    (
        "another_order",
        [
            {**ORIGIN, "subject_transforms": mapped(("o.a", ""), ("o.b", ""))},
            {**ORIGIN, "subject_transforms": mapped(("o.b", ""), ("o.a", ""))},
        ],
    ),
    ("here_and_elsewhere", [ORIGIN, {**ORIGIN, "external": {"api": "foo"}}]),
    ("elsewhere_twice", [elsewhere(api="foo"), elsewhere(api="bar")]),
    ("elsewhere_to_other_subjects", [elsewhere(api="foo", deliver="q"), elsewhere(api="foo", deliver="r")]),
    ("elsewhere_of_no_prefix", [{**ORIGIN, "external": {"api": ""}}, ORIGIN]),
    ("elsewhere_no_name", [{"name": "", "external": {"api": "foo"}}]),
    ("delivery_over_a_source", [ORIGIN, elsewhere(api="foo", deliver="o.y")]),
    ("delivery_over_a_source_before", [elsewhere(api="foo", deliver="o"), ORIGIN]),
    ("delivery_over_a_source_and_itself", [ORIGIN, elsewhere(api="foo", deliver="o"), {"name": "T"}]),
    ("delivery_beside_a_source", [ORIGIN, elsewhere(api="foo", deliver="q.y")]),
    ("api_over_a_source", [ORIGIN, elsewhere(api="o.y")]),
    ("delivery_over_own_subjects", [elsewhere(api="foo", deliver="t")]),
    ("api_over_own_subjects", [elsewhere(api="t")]),
    ("own_api_and_a_bad_name", [elsewhere(api="$JS.API"), {"name": ".."}]),
    ("bad_filters", [{**ORIGIN, "filter_subject": "o.*"}, {**ORIGIN, "filter_subject": ".."}, {"name": "P"}]),
    ("the_same_bad_filter", [{**ORIGIN, "filter_subject": "a..b"}, {**ORIGIN, "filter_subject": "a..b"}]),
    ("prepared", [{**ORIGIN, "consumer": PREPARED}]),
    ("prepared_and_not", [{**ORIGIN, "consumer": PREPARED}, ORIGIN]),
    ("prepared_twice", [{**ORIGIN, "consumer": PREPARED}, {**ORIGIN, "consumer": PREPARED}]),
    ("prepared_to_two_subjects", [{**ORIGIN, "consumer": PREPARED}, {**ORIGIN, "consumer": OTHER}]),
    ("prepared_at_two_origins", [{**ORIGIN, "consumer": PREPARED}, {"name": "P", "consumer": PREPARED}]),
    (
        "prepared_and_another_to_the_same",
        [{**ORIGIN, "consumer": PREPARED}, {**ORIGIN, "consumer": {**PREPARED, "name": "f"}}],
    ),
    (
        "prepared_once_more_with_a_transform",
        [
            {**ORIGIN, "consumer": PREPARED},
            {**ORIGIN, "consumer": OTHER, "subject_transforms": mapped(("o.b", "x"))},
        ],
    ),
    (
        "prepared_twice_with_transforms",
        [
            {**ORIGIN, "consumer": PREPARED, "subject_transforms": mapped(("o.a", "x"))},
            {**ORIGIN, "consumer": PREPARED, "subject_transforms": mapped(("o.b", "x"))},
        ],
    ),
    ("prepared_here_and_elsewhere", [{**elsewhere(api="zz"), "consumer": PREPARED}, {**ORIGIN, "consumer": PREPARED}]),
    ("prepared_empty_before_a_bad_name", [{**ORIGIN, "consumer": {}}, {"name": ".."}]),
    ("prepared_empty_behind_a_bad_name", [{"name": ".."}, {**ORIGIN, "consumer": {}}]),
]


@table(SEVERAL)
def several(t: Script, sources: list[Any]) -> None:
    _stage(t)
    config = {"name": "T", "storage": "memory", "subjects": ["t.>"], "sources": sources}
    if "error" not in ask(t, "STREAM.CREATE.T", config):
        ask(t, "STREAM.CREATE.T", config, "once more")
        for one in sources:
            ask(t, "STREAM.UPDATE.T", {**config, "sources": [one]}, f"only {one}")


# Each row: fields of the stream beside its sources.
STREAMS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("no_subjects", {}, {}),
    ("subjects", {"subjects": ["t"]}, {}),
    ("subjects_of_the_origin", {"subjects": ["o.a"]}, {}),
    ("no_subject", {"subjects": ["a..b"]}, {}),
    ("no_subject_and_bad_name", {"subjects": ["a..b"]}, {"name": ".."}),
    ("no_subject_and_itself", {"subjects": ["a", "a"]}, {"name": "T"}),
    ("no_subject_and_too_small", {"subjects": ["a..b"], "max_msg_size": 9}, {}),
    ("taken_subjects_and_bad_filter", {"subjects": ["o.x"]}, {"filter_subject": "a..b"}),
    ("counter", {"allow_msg_counter": True}, {}),
    ("schedules", {"allow_msg_schedules": True}, {}),
    ("schedules_and_bad_name", {"allow_msg_schedules": True}, {"name": ".."}),
    ("atomic_and_batched", {"allow_atomic": True, "allow_batched": True}, {}),
    ("first_seq", {"first_seq": 10}, {}),
    ("workqueue", {"retention": "workqueue"}, {}),
    ("interest", {"retention": "interest"}, {}),
    ("discard_new", {"discard": "new", "max_msgs": 2}, {}),
    ("mirror_direct", {"mirror_direct": True}, {}),
    ("markers", {"subject_delete_marker_ttl": SECOND}, {}),
    ("duplicate_window", {"duplicate_window": 5 * SECOND}, {}),
    ("max_age", {"max_age": SECOND}, {}),
    ("max_age_below_the_window", {"max_age": SECOND, "duplicate_window": 2 * SECOND}, {}),
    ("max_msg_size_below", {"max_msg_size": 999}, {}),
    ("max_msg_size_equal", {"max_msg_size": 1000}, {}),
    ("max_msg_size_of_itself", {"max_msg_size": 3}, {"name": "T"}),
    ("max_msg_size_of_unlimited", {"max_msg_size": 3}, {"name": "P"}),
    ("max_msg_size_elsewhere", {"max_msg_size": 3}, {"external": {"api": "foo"}}),
    ("max_msg_size_and_transform", {"max_msg_size": 9, "subject_transform": {"src": "a..b", "dest": "c"}}, {}),
    ("transform_and_bad_filter", {"subject_transform": {"src": "a..b", "dest": "c"}}, {"filter_subject": "a..b"}),
    ("republish", {"republish": {"src": ">", "dest": "o.>"}}, {}),
    ("republish_to_itself", {"subjects": ["t.>"], "republish": {"src": ">", "dest": "t.>"}}, {}),
    ("sealed", {"sealed": True}, {}),
    ("replicas", {"num_replicas": 3}, {}),
]


@table([(f"{name}{'-pedantic' * strict}", *row, strict) for name, *row in STREAMS for strict in (False, True)])
def stream(t: Script, fields: dict[str, Any], of: dict[str, Any], pedantic: bool) -> None:
    _stage(t)
    config = {"name": "T", "storage": "memory", "sources": [{**ORIGIN, **of}], "pedantic": pedantic, **fields}
    ask(t, "STREAM.CREATE.T", config)


FORMS: tuple[Any, ...] = ("O", {"name": "O"}, 5, ["O"], None, [[]])


@table([(str(form), form) for form in FORMS])
def forms(t: Script, form: Any) -> None:
    ask(t, "STREAM.CREATE.T", {"name": "T", "storage": "memory", "sources": form})


def _filter(pattern: str) -> dict[str, Any]:
    return {"filter_subject": pattern}


def _maps(source: str, destination: str) -> dict[str, Any]:
    return {"subject_transforms": mapped((source, destination))}


# Each row: the filter with which F sources from G, and that of G from F.
LOOPS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("all", {}, {}),
    ("all_by_a_filter", _filter(">"), {}),
    ("what_the_other_stores", _filter("g.>"), _filter("f.>")),
    ("only_there", _filter("g.>"), {}),
    ("only_here", {}, _filter("f.>")),
    ("own", _filter("f.>"), _filter("f.>")),
    ("others", _filter("g.>"), _filter("g.>")),
    ("others_by_all", _filter("g.>"), _filter(">")),
    ("nobodys", _filter("x.>"), _filter("y.>")),
    ("one_of_own", _filter("f.a"), _filter("f.>")),
    ("own_to_one", _filter("f.>"), _filter("f.a")),
    ("mapped_and_own", _maps("g.>", "f.>"), _filter("f.>")),
    ("mapped", _maps("g.>", "q.>"), _maps("f.>", "r.>")),
    ("mapped_to_nothing", _maps("g.>", ""), _maps("f.>", "")),
    ("elsewhere", {"external": {"api": "foo"}}, {}),
]


@table(LOOPS)
def loop(t: Script, there: dict[str, Any], here: dict[str, Any]) -> None:
    t.stream("F", ["f.>"], sources=[{"name": "G", **there}])
    ask(
        t,
        "STREAM.CREATE.G",
        {"name": "G", "storage": "memory", "subjects": ["g.>"], "sources": [{"name": "F", **here}]},
    )
    ask(
        t,
        "STREAM.UPDATE.F",
        {"name": "F", "storage": "memory", "subjects": ["f.>"], "sources": [{"name": "F", **here}]},
    )


# Each row: streams in the order of creation: name, subjects, mirror, sources.
CHAINS: list[tuple[str, list[tuple[str, str, str, list[str]]]]] = [
    ("three_in_a_ring", [("A", "a", "", ["B"]), ("B", "b", "", ["C"]), ("C", "c", "", ["A"])]),
    ("three_in_a_row", [("C", "c", "", []), ("B", "b", "", ["C"]), ("A", "a", "", ["B"])]),
    ("a_short_cut", [("D", "d", "", []), ("C", "c", "", ["D"]), ("B", "b", "", ["C"]), ("A", "a", "", ["B", "D"])]),
    (
        "two_ways_of_one_length",
        [("D", "d", "", []), ("B", "", "", ["D"]), ("C", "", "", ["D"]), ("A", "", "", ["B", "C"])],
    ),
    ("origin_and_its_mirror", [("D", "d", "", []), ("X", "", "D", []), ("A", "", "", ["X", "D"])]),
    (
        "origin_and_the_mirror_of_its_mirror",
        [("D", "d", "", []), ("X", "", "D", []), ("Y", "", "X", []), ("A", "", "", ["Y", "D"])],
    ),
    ("mirrors_of_each_other", [("A", "", "B", []), ("B", "", "A", [])]),
    ("three_mirrors", [("A", "", "B", []), ("B", "", "C", []), ("C", "", "A", [])]),
    ("a_source_of_its_mirror", [("A", "a", "", ["M"]), ("M", "", "A", [])]),
    ("a_mirror_of_what_has_it_as_source", [("M", "", "A", []), ("A", "a", "", ["M"])]),
]


@table(CHAINS)
def chain(t: Script, streams: list[tuple[str, str, str, list[str]]]) -> None:
    for name, subject, mirror, sources in streams:
        config: dict[str, Any] = {"name": name, "storage": "memory"}
        if subject:
            config["subjects"] = [subject]
        if mirror:
            config["mirror"] = {"name": mirror}
        if sources:
            config["sources"] = [{"name": each} for each in sources]
        answer = t.wire.api(f"STREAM.CREATE.{name}", config)
        t.note(f"{name} of {mirror}{sources}", answer.get("error", "made"))


# Each row: the present stream, and a series of updates.
UPDATES: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
    ("more_and_fewer", {"sources": [ORIGIN]}, [{"sources": [ORIGIN, {"name": "P"}]}, {"sources": [{"name": "P"}]}, {}]),
    ("subjects", {"sources": [ORIGIN]}, [{"sources": [ORIGIN], "subjects": ["t"]}, {"sources": [ORIGIN]}]),
    ("to_a_mirror", {"sources": [ORIGIN]}, [{"mirror": ORIGIN}]),
    ("first_source", {"subjects": ["t"]}, [{"subjects": ["t"], "sources": [ORIGIN]}, {"sources": [ORIGIN]}]),
    ("itself", {"subjects": ["t"]}, [{"subjects": ["t"], "sources": [{"name": "T"}]}]),
    ("bad_transform", {"subjects": ["t"]}, [{"sources": [{**ORIGIN, "subject_transforms": mapped(("o.*", "x.$3"))}]}]),
    ("bad_filter", {"subjects": ["t"]}, [{"subjects": ["t"], "sources": [{**ORIGIN, "filter_subject": "a..b"}]}]),
    ("prepared", {"sources": [ORIGIN]}, [{"sources": [{**ORIGIN, "consumer": PREPARED}]}]),
    ("too_small", {"sources": [ORIGIN]}, [{"sources": [ORIGIN], "max_msg_size": 5}]),
    ("the_same_twice", {"sources": [ORIGIN]}, [{"sources": [ORIGIN, ORIGIN]}]),
    ("schedules", {"subjects": ["t"], "allow_msg_schedules": True}, [{"subjects": ["t"], "sources": [ORIGIN]}]),
]


@table(UPDATES)
def update(t: Script, first: dict[str, Any], then: list[dict[str, Any]]) -> None:
    _stage(t)
    plain = {"name": "T", "storage": "memory"}
    ask(t, "STREAM.CREATE.T", {**plain, **first})
    for fields in then:
        kept = {name: value for name, value in first.items() if name == "allow_msg_schedules"}
        answer = t.wire.api("STREAM.UPDATE.T", {**plain, **kept, **fields})
        t.note(f"update {fields}", answer.get("config", answer))


@scenario
def a_stream_that_becomes_an_origin_later(t: Script) -> None:
    t.stream("A", ["a"], sources=[{"name": "B"}])
    ask(t, "STREAM.CREATE.B", {"name": "B", "storage": "memory", "subjects": ["b"], "sources": [{"name": "A"}]})
    ask(t, "STREAM.CREATE.B", {"name": "B", "storage": "memory", "subjects": ["b"], "max_msg_size": 5})
    ask(t, "STREAM.UPDATE.A", {"name": "A", "storage": "memory", "sources": [{"name": "B"}], "max_msg_size": 4})
