"""Tests of the command line of a server: flags in Go's style."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.cli.flags import OF_NATS_SERVER, SECTIONS, CommandLine, parse, usage
from lakestream.config.errors import StartError
from lakestream.config.options import Flags

pytestmark = pytest.mark.unit


def flags(line: str) -> Flags:
    return parse(line.split()).flags


def refused(line: str) -> str:
    with pytest.raises(StartError) as caught:
        parse(line.split())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("line", ["-p 4333", "--p 4333", "-p=4333", "--port=4333", "-port 4333", "--port 4333"])
def test_one_or_two_dashes_and_equals_or_blank_are_the_same(line: str) -> None:
    assert flags(line).port == 4333


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {}),
        ("-p -1", {"port": -1}),
        ("-a 127.0.0.1", {"host": "127.0.0.1"}),
        ("--addr ::1", {"host": "::1"}),
        ("--net localhost", {"host": "localhost"}),
        ("-n one", {"server_name": "one"}),
        ("--name one", {"server_name": "one"}),
        ("--server_name one", {"server_name": "one"}),
        ("-P x.pid", {"pid_file": "x.pid"}),
        ("--pid x.pid", {"pid_file": "x.pid"}),
        ("-m 8222", {"http_port": 8222}),
        ("--http_port=-1", {"http_port": -1}),
        ("-c a.conf", {"config": "a.conf"}),
        ("--config a.conf", {"config": "a.conf"}),
        ("-js", {"jetstream": True}),
        ("--jetstream=false", {"jetstream": False}),
        ("-sd /data", {"store_dir": "/data"}),
        (
            "--cluster nats://h:1 --routes=nats://a:1,nats://b:2",
            {"cluster": "nats://h:1", "routes": "nats://a:1,nats://b:2"},
        ),
        ("--cluster_listen nats://h:1 -cluster_name C", {"cluster": "nats://h:1", "cluster_name": "C"}),
        ("--cluster_advertise h:1 --client_advertise c", {"cluster_advertise": "h:1", "client_advertise": "c"}),
        ("--no_advertise --connect_retries 5", {"no_advertise": True, "connect_retries": 5}),
        ("--store_dir=/data", {"store_dir": "/data"}),
        ("-D", {"debug": True}),
        ("-V", {"trace": True}),
        ("-VV", {"trace": True}),
        ("-DV", {"debug": True, "trace": True}),
        ("-DVV", {"debug": True, "trace": True}),
        ("-l a.log", {"log_file": "a.log"}),
        ("--log a.log", {"log_file": "a.log"}),
        ("--log_size_limit 1000", {"log_size_limit": 1000}),
        ("-s -r udp://h", {"syslog": True, "remote_syslog": "udp://h"}),
        ("-T=false", {"logtime": False}),
        ("-T --logtime_utc", {"logtime": True, "logtime_utc": True}),
        ("--user a --pass b", {"user": "a", "password": "b"}),
        ("--auth=to=ken", {"token": "to=ken"}),
        ("--ports_file_dir /tmp", {"ports_file_dir": "/tmp"}),
        ("--lake s3://bucket/lake", {"lake": "s3://bucket/lake"}),
        ("-p 1 -p 2", {"port": 2}),
        ("-js -- ", {"jetstream": True}),
    ],
)
def test_each_flag_sets_its_field(line: str, expected: dict[str, Any]) -> None:
    assert flags(line) == Flags(**expected)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-h", CommandLine(show_help=True)),
        ("--help", CommandLine(show_help=True)),
        ("help", CommandLine(show_help=True)),
        ("-v", CommandLine(show_version=True)),
        ("version", CommandLine(show_version=True)),
        ("-t -c a.conf", CommandLine(flags=Flags(config="a.conf"), test_config=True)),
        ("-sl stop=12", CommandLine(signal="stop=12")),
        ("--signal reload=x.pid", CommandLine(signal="reload=x.pid")),
    ],
)
def test_flags_that_do_something_else_than_serve(line: str, expected: CommandLine) -> None:
    assert parse(line.split()) == expected


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("-foo", "flag provided but not defined: -foo"),
        ("--jetstrem", "did you mean --jetstream?"),
        ("-p", "flag needs an argument: -p"),
        ("-js -c", "flag needs an argument: -c"),
        ("-p abc", 'invalid value "abc" for flag -p'),
        ("-p=", 'invalid value "" for flag -p'),
        ("-D=maybe", 'invalid boolean value "maybe" for -D'),
        ("---p 5", "bad flag syntax: ---p"),
        ("-=5", "bad flag syntax: -=5"),
        ("extra", 'unrecognized command: "extra"'),
        ("-js true", 'unrecognized command: "true"'),
        ("-", 'unrecognized command: "-"'),
        ("-js -- extra", 'unrecognized command: "extra"'),
        ("--profile 5", "flag -profile is not supported: there is no profiling port"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(line: str, text: str) -> None:
    assert text in refused(line)


def test_a_flag_without_effect_leaves_a_warning() -> None:
    parsed = parse(["--max_traced_msg_len", "100"]).flags
    assert [warning.split()[1] for warning in parsed.warnings] == ["-max_traced_msg_len"]


@given(st.lists(st.text(max_size=12) | st.sampled_from(["-p", "-js", "--", "-D=", "-c", "=", "-h", "--lake="])))
def test_any_arguments_give_a_command_line_or_a_start_error(arguments: list[str]) -> None:
    with contextlib.suppress(StartError):
        assert isinstance(parse(arguments), CommandLine)


def test_no_name_belongs_to_two_flags() -> None:
    names = [name for _, section in SECTIONS for flag in section for name in flag.names]
    names += [name for flag in OF_NATS_SERVER for name in flag.names]
    assert len(names) == len(set(names))


def test_every_field_exists() -> None:
    known = set(Flags.__struct_fields__) | set(CommandLine.__struct_fields__)
    fields = {field for _, section in SECTIONS for flag in section for field in flag.field.split()}
    assert fields <= known


def test_the_help_names_every_flag() -> None:
    text = usage()
    for _, section in SECTIONS:
        for flag in section:
            for name in flag.names:
                assert re.search(rf"(?<![\w-])--?{name}\b", text), name
            assert flag.help in text
    assert max(map(len, text.splitlines())) <= 120
