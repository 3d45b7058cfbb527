"""Tests of options of flags and file together: precedence, conversion, errors with file and line, reload."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.config.account_options import User
from lakestream.config.conf import ConfError
from lakestream.config.errors import StartError
from lakestream.config.loading import RELOADABLE, default_max_file, reload
from lakestream.config.options import (
    MIB,
    SECOND,
    AuditOptions,
    BoundPorts,
    ConsoleOptions,
    JetStreamOptions,
    LakeOptions,
    Options,
    OtelOptions,
    PostgresOptions,
    SqlOptions,
)
from lakestream.config.settings import TOP, TOP_HARMLESS, TOP_MISSING, read_settings
from tests.unit.conf_files import Load

pytestmark = pytest.mark.unit


def test_defaults_are_those_of_nats_server(options: Load) -> None:
    assert options(None) == Options()
    plain = Options()
    assert (plain.host, plain.port, plain.http_port, plain.jetstream) == ("0.0.0.0", 4222, 0, None)
    assert (plain.max_payload, plain.max_control_line, plain.max_pending) == (MIB, 4096, 64 * MIB)
    assert (plain.ping_interval_ns, plain.ping_max, plain.auth_timeout_ns) == (120 * SECOND, 2, 2 * SECOND)


def test_acks_wait_for_the_disk_unless_the_file_says_otherwise(options: Load) -> None:
    assert _jetstream(options("jetstream {}")).sync_always
    assert not _jetstream(options("jetstream {}")).shows_sync_always
    always = _jetstream(options("jetstream { sync_interval: always }"))
    assert (always.sync_always, always.shows_sync_always) == (True, True)
    relaxed = _jetstream(options("jetstream { sync_interval: 10s }"))
    assert (relaxed.sync_always, relaxed.sync_interval_ns) == (False, 10 * SECOND)


def _jetstream(options: Options) -> JetStreamOptions:
    assert options.jetstream is not None
    return options.jetstream


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("port: 4333", {"port": 4333}),
        ("PORT: -1\nServer_Name: x", {"port": -1, "server_name": "x"}),
        ("listen: 127.0.0.1:4333", {"host": "127.0.0.1", "port": 4333}),
        ("listen: 4333", {"port": 4333}),
        ('listen: ":4333"', {"port": 4333}),
        ('listen: "[::1]:4333"', {"host": "::1", "port": 4333}),
        ("net: localhost", {"host": "localhost"}),
        ("http: 8222", {"http_port": 8222}),
        ('http: "localhost:8222"', {"http_host": "localhost", "http_port": 8222}),
        ("monitor_port: -1", {"http_port": -1}),
        ("http_base_path: foo/x/", {"http_base_path": "/foo/x"}),
        ("max_payload: 2MB", {"max_payload": 2 * MIB}),
        ("max_connections: -1", {"max_connections": 0}),
        ("max_subscriptions: 5", {"max_subscriptions": 5}),
        ("ping_interval: 500ms", {"ping_interval_ns": SECOND // 2}),
        ('ping_interval: "1m30s"', {"ping_interval_ns": 90 * SECOND}),
        ("ping_interval: 2m", {}),
        ("ping_interval: 3m", {"ping_interval_ns": 180 * SECOND}),
        (
            "lame_duck_duration: 40s, lame_duck_grace_period: 0s",
            {"lame_duck_duration_ns": 40 * SECOND, "lame_duck_grace_ns": 0},
        ),
        ("debug: yes, trace: on, logtime: off", {"debug": True, "trace": True, "logtime": False}),
        ("log_file: a.log, pidfile: a.pid", {"log_file": "a.log", "pid_file": "a.pid"}),
        ("logfile_size_limit: 1k, log_max_num: 3", {"log_size_limit": 1000, "log_max_num": 3}),
        ("syslog: true, remote_syslog: 'tcp://h:1'", {"syslog": True, "remote_syslog": "tcp://h:1"}),
        ("server_tags: [a, 'b c']", {"server_tags": ("a", "b c")}),
        ('server_tags: "a,b"', {"server_tags": ("a", "b")}),
        ("server_metadata: { rack: r1 }", {"server_metadata": {"rack": "r1"}}),
        ("authorization { token: t, timeout: 0.5 }", {"token": "t", "auth_timeout_ns": SECOND // 2}),
        ("authorization { user: a, password: b }", {"users": (User("a", "b"),), "single_user": True}),
        (
            "authorization { users: [{user: a, pass: b}, {user: c, pass: $2a$11$x}] }",
            {"users": (User("a", "b"), User("c", "$2a$11$x"))},
        ),
        (
            "lake { url: s3://bucket/l, seal_bytes: 1M, seal_age: 2s, retain_bytes: 0, poll: 100ms }",
            {
                "lake": LakeOptions(
                    url="s3://bucket/l", seal_bytes=10**6, seal_age_ns=2 * SECOND, retain_bytes=0, poll_ns=SECOND // 10
                )
            },
        ),
        (
            'lake { compactor_metrics: "0.0.0.0:9464" }',
            {"lake": LakeOptions(compactor_metrics_host="0.0.0.0", compactor_metrics_port=9464)},
        ),
        (
            'lake { spark_connect { listen: "0.0.0.0:15003", token: "abc" } }',
            {"lake": LakeOptions(spark_connect_host="0.0.0.0", spark_connect_port=15003, spark_connect_token="abc")},
        ),
        ('lake { catalogs: "hive://metastore/events" }', {"lake": LakeOptions(catalogs=("hive://metastore/events",))}),
        (
            'lake { catalogs: ["hive://metastore:9083", "glue://eu-central-1"] }',
            {"lake": LakeOptions(catalogs=("hive://metastore:9083", "glue://eu-central-1"))},
        ),
        ('otel { endpoint: "http://127.0.0.1:4318" }', {"otel": OtelOptions(endpoint="http://127.0.0.1:4318")}),
        (
            "lake { staged_grace: 0, staged_grace_bytes: 2M }",
            {"lake": LakeOptions(staged_grace_ns=0, staged_grace_bytes=2 * 10**6)},
        ),
        ("no_header_support: true", {"no_header_support": True}),
        ("sql: true", {"sql": SqlOptions(enabled=True)}),
        (
            "sql { max_time: 5s, max_rows: 10, memory: 1GiB, flight: 8815 }",
            {"sql": SqlOptions(enabled=True, max_time_ns=5 * SECOND, max_rows=10, memory=1 << 30, flight_port=8815)},
        ),
        (
            'sql { postgres { listen: "0.0.0.0:5432", max_connections: 5 } }',
            {"sql": SqlOptions(enabled=True, postgres=PostgresOptions(host="0.0.0.0", port=5432, max_connections=5))},
        ),
        ("sql { enabled: false }", {}),
        (
            'sql { row_permissions: false, mask_key: "k" }',
            {"sql": SqlOptions(enabled=True, row_permissions=False, mask_key="k")},
        ),
        ("audit: true", {"audit": AuditOptions(enabled=True)}),
        (
            "audit { max_bytes: 5MB, max_age: 720h }",
            {"audit": AuditOptions(enabled=True, max_bytes=5 << 20, max_age_ns=30 * 86400 * 10**9)},
        ),
        ("console: false", {"console": ConsoleOptions(enabled=False)}),
        ("console { enabled: false }", {"console": ConsoleOptions(enabled=False)}),
        (
            "console { allowed_hosts: [a.example, b.example], without_certificate: true }",
            {"console": ConsoleOptions(allowed_hosts=("a.example", "b.example"), without_certificate=True)},
        ),
        ("console { allowed_hosts: a.example }", {"console": ConsoleOptions(allowed_hosts=("a.example",))}),
        ("console { history: 2h }", {"console": ConsoleOptions(history_ns=2 * 3600 * SECOND)}),
        ("store_dir: x", {}),
        ("accounts {}, websocket {}, cluster {}", {}),
    ],
)
def test_keys_of_the_file(options: Load, text: str, expected: dict[str, Any]) -> None:
    made = options(text)
    differing = {
        name
        for name in Options.__struct_fields__
        if name not in ("flags", "config_file", "config_digest") and getattr(made, name) != getattr(Options(), name)
    }
    assert {name: getattr(made, name) for name in differing} == expected


@pytest.mark.parametrize("text", ['jetstream { store_dir: "a\0b" }', 'server_name: "a\0b"', 'log_file: "a\0b"'])
def test_a_text_with_a_nul_byte_is_refused(options: Load, text: str) -> None:
    with pytest.raises(StartError, match="must not contain a NUL byte"):
        options(text)


def test_the_jetstream_block(options: Load, tmp_path: Path) -> None:
    made = _jetstream(
        options(
            f"jetstream {{ store_dir: '{tmp_path}', max_mem: 1G, max_file: '10G', domain: hub, strict: false\n"
            "request_queue_limit: 9\ninfo_queue_limit: 10\nmax_buffered_msgs: 11\nmax_buffered_size: 12k\n"
            "max_index_memory: 64MB\n"
            "limits { duplicate_window: 1m, max_ack_pending: 7, max_request_batch: 8, default_max_consumers: -1\n"
            "batch { max_inflight_per_stream: 2, max_inflight_total: 3, max_msgs: 4, timeout: 5s } }\n"
            "}"
        )
    )
    assert made == JetStreamOptions(
        store_dir=str(tmp_path),
        max_memory=10**9,
        max_file=10 << 30,
        domain="hub",
        strict=False,
        request_queue_limit=9,
        info_queue_limit=10,
        max_buffered_msgs=11,
        max_buffered_size=12_000,
        max_index_memory=64 << 20,
        duplicate_window_ns=60 * SECOND,
        max_ack_pending=7,
        max_request_batch=8,
        default_max_consumers=-1,
        batches_per_stream=2,
        batches_total=3,
        batch_max_msgs=4,
        batch_timeout_ns=5 * SECOND,
    )


@pytest.mark.parametrize(
    ("text", "line", "on"),
    [
        ("port: 1", "", False),
        ("port: 1", "-js", True),
        ("jetstream {}", "", True),
        ("jetstream: enabled", "", True),
        ("jetstream: true", "", True),
        ("jetstream: disabled", "", False),
        ("jetstream { enabled: false }", "", False),
        ("jetstream { enabled: false }", "-js", True),
        ("jetstream {}", "-js=false", False),
        ("store_dir: x", "", False),
        ("store_dir: x", "-js", True),
        ("port: 1", "-sd x", False),
    ],
)
def test_when_jetstream_is_on(options: Load, text: str, line: str, on: bool) -> None:
    assert (options(text, line).jetstream is not None) is on


def test_where_the_store_is(options: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _jetstream(options(None, "-js -sd here")).store_dir == str(tmp_path / "here")
    assert _jetstream(options("store_dir: top", "-js")).store_dir == str(tmp_path / "top")
    assert not _jetstream(options(None, "-js -sd here")).temporary_store
    assert _jetstream(options(None, "-js")).temporary_store
    assert options(None, "-js --lake rel").lake.url == str(tmp_path / "rel")


def test_a_flag_wins_over_the_file(options: Load) -> None:
    made = options(
        "port: 1, host: a, server_name: f, http: 1, debug: true\n"
        "authorization { token: t }\nlake { url: /f, poll: 5s }",
        "-js -p 2 -a b -n g -m 3 -D=false --user u --pass p --lake /g",
    )
    assert (made.port, made.host, made.server_name, made.http_port, made.debug) == (2, "b", "g", 3, False)
    assert (made.users, made.token) == ((User("u", "p"),), "")
    assert made.lake == LakeOptions(url="/g", poll_ns=5 * SECOND)
    assert options("authorization { user: a, pass: b }", "--auth t").users == ()


def test_keys_without_effect_warn_with_file_and_line(options: Load) -> None:
    made = options("port: 1\nmax_traced_msg_len: 5\njetstream { meta_compact: 5\n limits { max_ha_assets: 3 } }")
    assert [re.sub(r"^.*/nats\.conf:", "", warning) for warning in made.warnings] == [
        '2: "max_traced_msg_len" has no effect here',
        '3: "meta_compact" has no effect here',
        '4: "max_ha_assets" has no effect here',
    ]


def test_odd_forms_leave_a_notice_with_file_and_line(options: Load) -> None:
    made = options("port: 1\nping_interval: 5\nwrite_deadline: 3")
    assert (made.ping_interval_ns, made.write_deadline_ns) == (5 * SECOND, 3 * SECOND)
    assert [re.sub(r"^.*/nats\.conf:", "", notice) for notice in made.notices] == [
        f'{line}:1: invalid use of field "{key}": {key} should be converted to a duration'
        for line, key in ((2, "ping_interval"), (3, "write_deadline"))
    ]
    (notice,) = options("# nothing").notices
    assert notice.endswith("nats.conf: config has no values or is empty")


def test_every_wrong_setting_is_told_but_what_is_not_served_only_once_all_else_is_right(options: Load) -> None:
    def told(text: str) -> list[str]:
        with pytest.raises(ConfError) as caught:
            options(text)
        return [re.sub(r"^.*/nats\.conf:", "", line) for line in str(caught.value).split("\n")]

    assert told("foo: 1\ngateway { name: g }\njetstream { bar: 1, zip: 2 }") == [
        '1:0: unknown field "foo"',
        '3:13: unknown field "bar"',
        '3:21: unknown field "zip"',
    ]
    assert [line.split(":")[2] for line in told("prof_port: 1\ngateway { name: g }")] == [
        ' "prof_port" is not supported',
        ' "gateway" is not supported',
    ]


def test_an_error_does_not_show_the_value_that_may_be_a_password(options: Load) -> None:
    with pytest.raises(ConfError) as caught:
        options("authorization { user: a, password: 123456 }")
    assert "123456" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("port: 1\n\njetstrem {}", 3, 'unknown field "jetstrem", did you mean "jetstream"?'),
        ("jetstream {\n store_dirr: x\n}", 2, 'unknown field "store_dirr", did you mean "store_dir"?'),
        ("authorization { user: a\npasword: b }", 2, 'did you mean "password"?'),
        ("authorization { users: [\n{user: c, foo: e}] }", 2, 'unknown field "foo"'),
        ("jetstream { limits { foo: 3 } }", 1, 'unknown field "foo"'),
        ("x: 5", 1, 'unknown field "x"'),
        ("port: abc", 1, '"port" must be a whole number, not a string'),
        ("port: 2.5", 1, "must be a whole number"),
        ("port: true", 1, "must be a whole number, not a boolean"),
        ("server_name: 5", 1, "must be a string"),
        ("\nserver_name: 'a b'", 2, "cannot contain spaces"),
        ("debug: 'yes'", 1, "must be true or false"),
        ("listen: foo", 1, "could not parse address"),
        ("listen: '127.0.0.1:x'", 1, 'could not parse port "x"'),
        ("listen: 'a:b:5'", 1, 'could not parse address string "a:b:5"'),
        ("ping_interval: 5x", 1, "invalid duration"),
        ("ping_interval: '-1s'", 1, "must not be negative"),
        ("ping_interval: [1]", 1, "not an array"),
        ("ping_interval: 99999999999999999", 1, "too long"),
        ("lame_duck_duration: 5s", 1, "minimum is 30 seconds"),
        ("lame_duck_grace_period: '-1s'", 1, "needs to be positive"),
        ("max_payload: 5000000000", 1, "max_payload value is too big"),
        ("max_subscriptions: -2", 1, "from -1"),
        ("jetstream: foo", 1, "Expected 'enabled' or 'disabled'"),
        ("jetstream: 1", 1, "Expected map, bool or string to define JetStream, got int64"),
        ("jetstream { max_mem: 12q }", 1, "must end in K, M, G, T"),
        ("jetstream { tpm: { keys_file: x } }", 1, "cannot be kept in a TPM"),
        ("jetstream { limits { batch { timeout: soon } } }", 1, "invalid duration"),
        ("jetstream { limits { batch { max_size: 1 } } }", 1, 'unknown field "max_size"'),
        ("authorization: 5", 1, "must be a map"),
        ("authorization { user: a, pass: b, token: c }", 1, "Cannot have a user/pass and token"),
        ('lake { spark_connect { token: "a;b" } }', 1, "as it is a part of clients' URLs"),
        ('lake { spark_connect: "nowhere" }', 1, 'could not parse address string "nowhere"'),
        ("authorization { user: a, users: [] }", 1, "Can not have a single user/pass and a users array"),
        ("authorization { users: [{user: c}, {user: c}] }", 1, 'Duplicate user "c" detected'),
        ("authorization { users: [{pass: c}] }", 1, "User entry requires a user"),
        ("authorization { users: [{nkey: U}] }", 1, "Not a valid public nkey for a user"),
        ("authorization { pass: c }", 1, "requires a user"),
        ("gateway { name: g }", 1, '"gateway" is not supported: clusters are not joined'),
        ("mqtt: 5", 1, "Expected mqtt to be a map, got int64"),
        ("mqtt { ack_pending: 5 }", 1, 'unknown field "ack_pending"'),
        ("mqtt { max_ack_pending: 70000 }", 1, "invalid value 70000, should in [0..65535] range"),
        ("resolver: NOTHING", 1, "error parsing account resolver, should be MEM or"),
        ("server_tags: [1, 2]", 1, "must be a string"),
        ("server_tags: 5", 1, "error parsing tags: unsupported type int64"),
        ("store_dir: x\njetstream { store_dir: y }", 1, "Duplicate 'store_dir' configuration"),
        ("otel { endpoint: collector }", 1, "URL of an OTLP/HTTP collector"),
        ("lake { seal_byte: 5 }", 1, 'did you mean "seal_bytes"?'),
        ("lake { seal_bytes: 0 }", 1, "more than 0"),
        ("lake { retain_bytes: -1 }", 1, "negative"),
        ("lake {\n url: ftp://bucket/lake }", 2, "it must be a directory"),
        ("lake: 's3://k:s@bucket'", 1, "credentials belong in the environment"),
    ],
)
def test_a_wrong_file_is_refused_with_file_and_line(options: Load, text: str, line: int, words: str) -> None:
    with pytest.raises(ConfError) as caught:
        options(text)
    message = str(caught.value)
    assert re.search(rf"/nats\.conf:{line}(:\d+)?: ", message), message
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("jetstream { domain: a.b }", "", "invalid domain name: may not contain ., * or >"),
        ("jetstream { domain: ACK }", "", 'invalid domain name: "ACK" is reserved'),
        ("lame_duck_grace_period: 3m", "", "lame duck grace period (3m0s) should be strictly lower"),
        ("jetstream { store_dir: a }", "-sd b", "Duplicate 'store_dir' configuration"),
        (None, "--pass b", "--pass needs --user"),
        (None, "--user a --auth b", "cannot be used together"),
        (None, "-c /none.conf", "no such file"),
        ("max_payload: 100MB", "", "cannot be higher than max_pending"),
    ],
)
def test_contradictions_are_refused(options: Load, text: str | None, line: str, words: str) -> None:
    with pytest.raises(StartError) as caught:
        options(text, line)
    assert words in str(caught.value)


@given(
    st.dictionaries(
        st.sampled_from([*TOP, *TOP_MISSING, *TOP_HARMLESS, "x"]),
        st.sampled_from(
            ["5", "-1", "a", "'1s'", "true", "[]", "[a]", "{}", "{user: a}", "{url: b}", "2.5", "1G", "''"]
        ),
        max_size=5,
    )
)
def test_any_value_of_any_key_gives_settings_or_a_start_error(
    tmp_path_factory: pytest.TempPathFactory, pairs: dict[str, str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.conf"
    path.write_text("\n".join(f"{key}: {value}" for key, value in pairs.items()))
    with contextlib.suppress(StartError):
        assert set(read_settings(str(path))) <= set(Options.__struct_fields__)


def test_the_digest_is_that_of_the_file(options: Load) -> None:
    assert options("port: 1").config_digest == options("port: 1").config_digest
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", options("port: 1").config_digest)
    assert options("port: 1").config_digest != options("port: 2").config_digest


def test_the_file_limit_counts_what_the_store_already_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store" / "jetstream"
    store.mkdir(parents=True)
    (store / "a.seg").write_bytes(b"x" * 4000)
    free = 8000

    class Disk:
        f_bavail, f_frsize = free, 1

    monkeypatch.setattr("os.statvfs", lambda path: Disk)
    assert default_max_file(str(tmp_path / "store")) == (free + 4000) // 4 * 3
    assert default_max_file(str(tmp_path / "not" / "there")) == free // 4 * 3


@pytest.mark.parametrize("flag", ["--no_console", "-no-console", "--no_console=true"])
def test_a_flag_turns_the_console_off(options: Load, flag: str) -> None:
    made = options("console { allowed_hosts: a.example }", flag)
    assert made.console == ConsoleOptions(enabled=False, allowed_hosts=("a.example",))
    assert options(None, flag).console == ConsoleOptions(enabled=False)
    assert options(None, "--no_console=false").console == ConsoleOptions()


def test_reload_tells_what_changed(options: Load) -> None:
    before = options("debug: false\njetstream {}", "-p 5")
    Path(before.config_file).write_text("debug: true\nport: 6\nmax_payload: 1000\njetstream {}")
    after, changed = reload(before)
    assert set(changed) == {"debug", "max_payload", "config_digest"}
    assert (after.debug, after.max_payload) == (True, 1000)
    assert after.port == 5, "the flag still wins"
    assert after.jetstream == before.jetstream


@pytest.mark.parametrize(
    "text",
    [
        "port: {}",
        "leafnodes {{ port: {} }}",
        "websocket {{ port: {}, no_tls: true }}",
        "cluster {{ insecure: true, port: {} }}",
    ],
)
def test_a_reload_takes_a_free_port_and_the_one_that_was_found_for_the_same(options: Load, text: str) -> None:
    bound = BoundPorts(clients=7000, cluster=7000, leafnodes=7000, websocket=7000)
    for first, then in ((-1, 7000), (7000, -1)):
        before = options(text.format(first))
        Path(before.config_file).write_text(text.format(then))
        assert reload(before, bound)[1] == ["config_digest"]
        Path(before.config_file).write_text(text.format(7001))
        with pytest.raises(StartError, match="reload"):
            reload(before, bound)


def test_reload_refuses_what_needs_a_restart(options: Load) -> None:
    before = options("port: 5")
    Path(before.config_file).write_text("port: 6")
    with pytest.raises(StartError, match="a reload cannot change 'port'"):
        reload(before)
    Path(before.config_file).write_text("port: [")
    with pytest.raises(ConfError):
        reload(before)
    with pytest.raises(StartError, match="no configuration file"):
        reload(Options())


def test_reloadable_options_exist() -> None:
    assert set(Options.__struct_fields__) >= RELOADABLE


def test_options_do_not_change(options: Load) -> None:
    with pytest.raises(AttributeError):
        options(None).port = 5  # type: ignore[misc]
    assert msgspec.structs.replace(options(None), port=5).port == 5


def test_the_format_of_the_log(options: Load) -> None:
    assert not options("").log_json
    assert options("log { format: json }").log_json
    assert not options("log: {format: text}").log_json
    with pytest.raises(StartError, match=r"log format 'xml' is not known; there are text and json"):
        options("log { format: xml }")
