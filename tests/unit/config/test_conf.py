"""Tests of nats.conf: the grammar, and errors with their places."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.config.conf import MAX_DEPTH, ConfError, Item, load, parse, size_bytes
from lakestream.config.errors import StartError

pytestmark = pytest.mark.unit


def plain(value: Any) -> Any:
    """Return a tree without its places."""
    if isinstance(value, Item):
        return plain(value.value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def read(text: str, **environ: str) -> Any:
    return plain(parse(text, "nats.conf", environ))


def refused(text: str, **environ: str) -> str:
    with pytest.raises(ConfError) as caught:
        parse(text, "nats.conf", environ)
    return str(caught.value)


# Each line was checked with nats-server 2.15.1 (-t -c), except where the comment says otherwise.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("port: 5", {"port": 5}),
        ("port = 5", {"port": 5}),
        ("port 5", {"port": 5}),
        ('"port": 5', {"port": 5}),
        ("'port' 5", {"port": 5}),
        ("port 5, host a", {"port": 5, "host": "a"}),
        ("port: 5; host: a", {"port": 5, "host": "a"}),
        ("port: 5 # comment\n// another\nhost: a # b", {"port": 5, "host": "a"}),
        ("port: 5\r\nhost: a\r\n", {"port": 5, "host": "a"}),
        ("{\nport: 5\n}\n", {"port": 5}),
        ("port: 5 }", {"port": 5}),
        ("", {}),
        ("\n# nothing\n", {}),
        ("jetstream {domain: a}", {"jetstream": {"domain": "a"}}),
        ("jetstream\n{\ndomain: a\n}\n", {"jetstream": {"domain": "a"}}),
        ("jetstream:{domain:a}", {"jetstream": {"domain": "a"}}),
        ("jetstream{domain:a}", {"jetstream": {"domain": "a"}}),  # nats-server takes `jetstream{domain` for the key
        ("jetstream {domain: a; strict: true,}", {"jetstream": {"domain": "a", "strict": True}}),
        ("jetstream {domain: a}, port: 5", {"jetstream": {"domain": "a"}, "port": 5}),
        ("tags: [a, b]", {"tags": ["a", "b"]}),
        ("tags: [a\nb\n]", {"tags": ["a", "b"]}),
        ("tags: [a,\n b,\n]", {"tags": ["a", "b"]}),
        ("tags: [1,2]", {"tags": [1, 2]}),  # nats-server fails on a number before `]`
        ("tags: []", {"tags": []}),
        ("users: [{user: a}, {user: b}]", {"users": [{"user": "a"}, {"user": "b"}]}),
        ("name: nats://foo#bar", {"name": "nats://foo#bar"}),
        ("name: a //b", {"name": "a"}),
        ('name: "a b"', {"name": "a b"}),
        ("name: 'a\\b'", {"name": "a\\b"}),
        (r'name: "a\n\t\"\\\x41"', {"name": 'a\n\t"\\A'}),
        ('name: "a\nb"', {"name": "a\nb"}),
        ("name: (\nline one\n  two\n)\nport: 5", {"name": "\nline one\n  two\n", "port": 5}),
        ("name: 5.5.5.5", {"name": "5.5.5.5"}),
        ("name: 127.0.0.1:4222", {"name": "127.0.0.1:4222"}),
        ("name: 5a", {"name": "5a"}),
        ("name: 500ms", {"name": "500ms"}),
        ("name: $2a$11$abc", {"name": "$2a$11$abc"}),
        ("a: yes, b: OFF, c: True, d: trueish", {"a": True, "b": False, "c": True, "d": "trueish"}),
        (
            "a: -1, b: 2k, c: 2kb, d: 1KiB, e: 1MB, f: 3G",
            {"a": -1, "b": 2000, "c": 2048, "d": 1024, "e": 1048576, "f": 3000000000},
        ),
        ("a: 2.5", {"a": 2.5}),
        ("a: 2026-01-02T03:04:05Z", {"a": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)}),
        ("a: 1\na: 2", {"a": 2}),
        ("x: 5\nport: $x", {"x": 5, "port": 5}),
        ("x: 5\nj { y: $x, z: $y }", {"x": 5, "j": {"y": 5, "z": 5}}),
        ("x: 5\nj { x: 6, z: [$x] }", {"x": 5, "j": {"x": 6, "z": [6]}}),
        ('name: "$x"', {"name": "$x"}),
    ],
)
def test_grammar(text: str, expected: Any) -> None:
    assert read(text) == expected


def test_a_variable_falls_back_to_the_environment_and_is_parsed_there() -> None:
    assert read("port: $PORT", PORT="4333") == {"port": 4333}
    assert read("tags: $TAGS", TAGS="[a, b]") == {"tags": ["a", "b"]}
    assert read("port: $ONE", ONE="$TWO", TWO="7") == {"port": 7}


def test_a_key_that_a_variable_refers_to_is_marked_as_used() -> None:
    items = parse("x: 5\ny: 6\nport: $x", "nats.conf", {})
    assert items["x"].used
    assert not items["y"].used


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("port: 5 x", "1: 'Expected a top-level value to end with a new line, comment or EOF, but got 'x' instead.'"),
        ("a: 1\nj {\n b: 1\n", "4: 'Unexpected EOF processing map.'"),
        (
            "port: [\n",
            """2: 'Expected an array value terminator "," or an array terminator "]", but got '\0' instead.'""",
        ),
        ("\nport:\n5", "3: 'Expected value but found new line'"),
        ("a: 1\n= 5", "2: 'Unexpected key separator '=''"),
        ('a: 1\nb: "x', "2: 'Unexpected EOF.'"),
        ("a: 'x\n", "2: 'Unexpected EOF.'"),
        ("a: (\nfoo\n", "3: 'Unexpected EOF processing block.'"),
        (
            'a: "\\q"',
            "1: 'Invalid escape character 'q'. Only the following escape characters are allowed: "
            "\\xXX, \\t, \\n, \\r, \\\", \\\\.'",
        ),
        ("t: [a,,b]", "1: 'Unexpected array value terminator ','.'"),
        (
            "t: [a b]",
            """1: 'Expected an array value terminator "," or an array terminator "]", but got 'b' instead.'""",
        ),
        (
            "a { b: 5 c: 6 }",
            """1: 'Expected a map value terminator "," or a map terminator "}", but got 'c' instead.'""",
        ),
    ],
)
def test_errors_of_the_grammar_are_those_of_nats_server(text: str, error: str) -> None:
    assert refused(text) == f"Parse error on line {error}"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("\n\nport: $nope", "variable reference for 'nope' on line 3 can not be found"),
        ("port", "config is invalid (nats.conf:1:4)"),
        ("port\n", "config is invalid (nats.conf:2:1)"),
        ("a: 1\nport", "config is invalid (nats.conf:2:5)"),
        ("a: 99999999999999999999", "integer '99999999999999999999' is out of the range"),
        ("a: 16E", "integer '16E' is out of the range"),
        ("a: 2026-13-02T03:04:05Z", "expected Zulu formatted DateTime, but got '2026-13-02T03:04:05Z'"),
        (
            "\ninclude nofile.conf",
            "error parsing include file 'nofile.conf', open nofile.conf: no such file or directory",
        ),
        ("include ", "error parsing include file '', include needs the name of a file"),
    ],
)
def test_errors_of_values_and_includes(text: str, error: str) -> None:
    assert refused(text) == error


def test_what_looks_like_a_number_may_be_a_word() -> None:
    assert read("a: 9e9") == {"a": "9e9"}


def test_a_variable_that_refers_to_itself_is_refused() -> None:
    assert refused("port: $A", A="$B", B="$A").endswith("variable reference cycle for 'A'")


def test_nesting_is_limited() -> None:
    assert str(MAX_DEPTH) in refused("a: " + "[" * 5000)
    assert str(MAX_DEPTH) in refused("a {" * 5000)
    assert read("a: " + "[" * 20 + "]" * 20)["a"]


def test_includes_are_relative_to_the_including_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "main.conf").write_text("port: 1\nx: 9\ninclude sub/users.conf\nj { include 'sub/more.conf' }\nhost: b")
    (tmp_path / "sub" / "users.conf").write_text("include ./more.conf\nhost: a\n")
    (tmp_path / "sub" / "more.conf").write_text("deep: 3")
    tree = load(str(tmp_path / "main.conf"))
    assert plain(tree) == {"port": 1, "x": 9, "deep": 3, "host": "b", "j": {"deep": 3}}
    assert (tree["deep"].file, tree["deep"].line) == (str(tmp_path / "sub" / "more.conf"), 1)


def test_an_error_in_an_included_file_names_that_file(tmp_path: Path) -> None:
    (tmp_path / "main.conf").write_text("port: 1\ninclude more.conf")
    (tmp_path / "more.conf").write_text("\n\na: [")
    with pytest.raises(ConfError) as caught:
        load(str(tmp_path / "main.conf"))
    assert str(caught.value).startswith("error parsing include file 'more.conf', Parse error on line 3: ")


def test_a_file_that_includes_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_text("\ninclude b.conf")
    (tmp_path / "b.conf").write_text("include a.conf")
    with pytest.raises(ConfError, match=r"include file 'b\.conf', .*include file 'a\.conf', it includes itself"):
        load(str(tmp_path / "a.conf"))


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="no such file"):
        load(str(tmp_path / "none.conf"))
    (tmp_path / "binary.conf").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StartError, match="not UTF-8"):
        load(str(tmp_path / "binary.conf"))


def test_a_byte_order_mark_is_part_of_the_first_key(tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_bytes(b"\xef\xbb\xbfport: 5")
    assert plain(load(str(tmp_path / "a.conf"))) == {"\ufeffport": 5}


def test_an_empty_variable_of_the_environment_is_an_empty_text() -> None:
    assert read("a: $PW, b: [$PW, $BLANK]", PW="", BLANK=" \t") == {"a": "", "b": ["", ""]}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: -abc", "1: 'Expected a digit but got 'a'.'"),
        ("a { b: - }", "1: 'Expected a digit but got ' '.'"),
        ("a: -\n", "2: 'Expected a digit but got '\\n'.'"),
        ("a: -.5", "1: 'Floats must start with a digit, not '.'.'"),
        ("a: 5.x", "1: 'Floats must have a digit after the '.', but got 'x' instead.'"),
        ("a: -5x", "1: 'Expected a top-level value to end with a new line, comment or EOF, but got 'x' instead.'"),
        ("a: 1.5x", "1: 'Expected a top-level value to end with a new line, comment or EOF, but got 'x' instead.'"),
        ("a: 1.2.3x", "1: 'Expected a top-level value to end with a new line, comment or EOF, but got 'x' instead.'"),
        ("a: 1-a", "1: 'All ISO8601 dates must be in full Zulu form.'"),
        ("a: 2026-5", "1: 'Expected digit in ISO8601 datetime, but found '\0' instead.'"),
        ("a: 2026-05-01 ", "1: 'Expected 'T' in ISO8601 datetime, but found ' ' instead.'"),
    ],
)
def test_a_word_that_begins_like_a_number_is_refused_unless_it_is_one(text: str, error: str) -> None:
    assert refused(text) == f"Parse error on line {error}"


def test_other_words_may_begin_with_digits() -> None:
    assert read("a: 3x, b: 0K1abc, c: -5kx, d: 10.0.0.1:4222, e: 1.5") == {
        "a": "3x",
        "b": "0K1abc",
        "c": "-5kx",
        "d": "10.0.0.1:4222",
        "e": 1.5,
    }


def assert_tree_or_conf_error(text: str) -> None:
    wrong = ""
    try:
        assert isinstance(parse(text, "nats.conf", {"A": "[1", "B": "$B"}), dict)
    except ConfError as error:
        wrong = str(error)
    place = re.search(r"on line (\d+)|nats\.conf:(\d+)", wrong)
    if place is not None:
        assert 1 <= int(place[1] or place[2]) <= text.count("\n") + 1
    else:
        assert re.match(r"$|integer |expected Zulu|error parsing include|variable reference cycle", wrong), wrong


@given(st.text())
def test_random_text_gives_a_tree_or_a_conf_error(text: str) -> None:
    assert_tree_or_conf_error(text)


_WORDS = st.sampled_from(
    [
        *"{}[]():=,;\"'#$\\ \n",
        "include ",
        "port",
        "$A",
        "$B",
        "5",
        "-",
        "k",
        "kb",
        "true",
        "//",
        "\\x4",
        "(\n",
        "\n)\n",
        "2a$",
    ]
)


@given(st.lists(_WORDS, max_size=60).map("".join))
def test_random_punctuation_gives_a_tree_or_a_conf_error(text: str) -> None:
    assert_tree_or_conf_error(text)


_SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(st.characters(codec="utf-8", exclude_characters="\r")),
)
_TREES = st.dictionaries(
    st.text("abcdefgh_", min_size=1).filter(lambda key: key != "include"),
    st.recursive(
        _SCALARS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("xyz", min_size=1), inner, max_size=4),
        max_leaves=12,
    ),
    max_size=6,
)


def written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, list):
        return "[" + ", ".join(written(item) for item in value) + "]"
    return "{" + "\n".join(f'"{key}": {written(item)}' for key, item in value.items()) + "}"


@given(_TREES)
def test_what_is_written_is_read_back(tree: dict[str, Any]) -> None:
    assert read("\n".join(f"{key}: {written(value)}" for key, value in tree.items())) == tree


@pytest.mark.parametrize(
    ("text", "size"), [("1K", 1024), ("64M", 64 << 20), ("10g", 10 << 30), ("2T", 2 << 40), ("5 MiB", 5 << 20)]
)
def test_sizes_are_binary(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "1", "1X", "-1K", "1.5G", "K", "9" * 30 + "T", "99999999999T"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|syntax"):
        size_bytes(text)
