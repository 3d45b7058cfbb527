"""Tests of the cluster options of nats.conf and of the flags."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.config.cluster import CLUSTER, CLUSTER_HARMLESS, CLUSTER_MISSING, route_url
from lakestream.config.conf import ConfError
from lakestream.config.errors import StartError
from lakestream.config.loading import reload
from lakestream.config.options import SECOND, BoundPorts, ClusterOptions, Options, RouteUrl, TlsOptions
from lakestream.config.settings import read_settings
from lakestream.net.identity import Identity
from lakestream.net.peers.cluster import client_urls
from lakestream.net.peers.peers import parse_address
from tests.certificates import write
from tests.unit.conf_files import Load

pytestmark = pytest.mark.unit

TLS = "tls { cert_file: '@/server.pem', key_file: '@/server.key'"
"""Begins a block; `@` stands for the directory of the certificates."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the directory of the certificates."""
    directory = tmp_path_factory.mktemp("cluster") / "certificates"
    write(directory)
    return str(directory)


@pytest.fixture
def options(options: Load, place: str) -> Load:
    """Return a function `options(text of nats.conf, flags)`."""
    return lambda text, line="": options(text and text.replace("@/", f"{place}/"), line)


def cluster(options: Options) -> ClusterOptions:
    """Return the cluster options, without the warning about an open cluster."""
    warnings = tuple(warning for warning in options.cluster.warnings if "knows the cluster's name" not in warning)
    return msgspec.structs.replace(options.cluster, warnings=warnings)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("port: 6222", {"port": 6222}),
        ("name: C, listen: '10.0.0.1:6222'", {"name": "C", "host": "10.0.0.1", "port": 6222}),
        ("listen: -1, host: localhost", {"port": -1, "host": "localhost"}),
        ("port: 1, routes: [nats-route://a:5]", {"port": 1, "routes": (RouteUrl("a", 5),)}),
        (
            "port: 1, routes: ['nats-route://u:p%40x@a:5,nats://b', '[::1]:7']",
            {"port": 1, "routes": (RouteUrl("a", 5, "u", "p@x"), RouteUrl("b", 6222), RouteUrl("::1", 7))},
        ),
        ("port: 1, routes: [a, 'a:6222', nats://a:6222]", {"port": 1, "routes": (RouteUrl("a", 6222),)}),
        (
            "port: 1, authorization { username: u, pass: p, timeout: 500ms }",
            {"port": 1, "user": "u", "password": "p", "auth_timeout_ns": SECOND // 2},
        ),
        (
            f"port: 1, {TLS}, ca_file: '@/ca.pem', verify: true, insecure: true, timeout: 5, min_version: '1.3' }}",
            {
                "port": 1,
                "tls": TlsOptions(
                    cert_file="@/server.pem",
                    key_file="@/server.key",
                    ca_file="@/ca.pem",
                    verify=True,
                    insecure=True,
                    timeout_ns=5 * SECOND,
                    min_version="1.3",
                ),
            },
        ),
        (
            f"port: 1, {TLS}, timeout: -1, pinned_certs: ['{'A' * 64}'] }}",
            {
                "port": 1,
                "tls": TlsOptions(
                    cert_file="@/server.pem",
                    key_file="@/server.key",
                    timeout_ns=SECOND // 1000,
                    pinned_certs=("a" * 64,),
                ),
            },
        ),
        ("port: 1, advertise: 'h:9', no_advertise: true", {"port": 1, "advertise": "h:9", "no_advertise": True}),
        ("port: 1, cluster_advertise: h", {"port": 1, "advertise": "h:6222"}),
        ("port: 1, connect_retries: 7", {"port": 1, "connect_retries": 7}),
        ("port: 1, connect_retries: -1", {"port": 1}),
    ],
)
def test_keys_of_the_block_become_options(options: Load, place: str, block: str, expected: dict[str, Any]) -> None:
    if "tls" in expected:
        files = {
            name: getattr(expected["tls"], name).replace("@", place) for name in ("cert_file", "key_file", "ca_file")
        }
        expected = expected | {"tls": msgspec.structs.replace(expected["tls"], **files)}
    assert cluster(options(f"cluster {{ {block}, insecure: true }}")) == ClusterOptions(**expected, insecure=True)


@pytest.mark.parametrize("text", ["cluster {}", "cluster { name: C }", "cluster { port: 0 }", "port: 1"])
def test_without_a_port_there_is_no_cluster_but_its_name(options: Load, text: str) -> None:
    assert options(text).cluster == ClusterOptions(name="C" if "C" in text else "")


def test_keys_without_effect_warn_with_file_and_line(options: Load) -> None:
    made = options("cluster {\n listen: '127.0.0.1:1'\n pool_size: 5\n compression: s2_fast, ping_interval: 5s }")
    assert [re.sub(r"^.*/nats\.conf:", "", warning) for warning in made.warnings[:-1]] == [
        f'{line}: "{key}" has no effect here'
        for line, key in ((3, "pool_size"), (4, "compression"), (4, "ping_interval"))
    ]


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ("name: 'a b'", "cluster name cannot contain spaces"),
        ("routes: 'nats://h:1'", "must be an array of URLs"),
        ("routes: ['nats://h:x']", 'error parsing route url ["nats://h:x"]'),
        ("routes: ['nats://h:70000']", "the port must be from 1 to 65535"),
        ("routes: ['nats://']", "has no host; write nats-route://host:port"),
        ("listen: h", "could not parse address"),
        ("authorization { users: [{user: a, password: b}] }", "does not allow multiple users"),
        ("authorization { token: t }", "does not support tokens"),
        ("authorization { user: u }", "needs both user and password"),
        ("authorization { permissions: {import: a} }", "trust each other"),
        ("tls { cert_file: x }", "missing 'key_file' in TLS configuration"),
        ("tls { cert_file: x, key_file: y }", "error parsing X509 certificate/key pair: open x: no such file"),
        ("tls { insecure: true }", "missing 'cert_file' in TLS configuration"),
        ("tls { pinned_certs: [a] }", "'pinned_certs' key a does not look like"),
        ("tls { verify_and_map: true }", "missing 'cert_file' in TLS configuration"),
        ("tls { verify_cert_and_check_known_urls: true }", "missing 'cert_file' in TLS configuration"),
        ("tls { certs: [{cert_file: a, key_file: b}] }", '"certs" is not supported: use cert_file and key_file'),
        ("advertise: 'h:x'", "the port must be"),
        ("permissions { import: a }", '"permissions" is not supported: nodes of a cluster trust each other'),
        ("route: []", 'did you mean "routes"?'),
    ],
)
def test_a_wrong_block_is_refused_with_file_and_line(options: Load, block: str, words: str) -> None:
    with pytest.raises(ConfError) as caught:
        options(f"\ncluster {{ {block} }}")
    assert re.search(r"/nats\.conf:2(:\d+)?: ", str(caught.value))
    assert words in str(caught.value)


def test_the_block_is_a_map(options: Load) -> None:
    with pytest.raises(ConfError, match="Expected map to define cluster, got string"):
        options("cluster: C")


# ---------------------------------------------------------------------- flags


LOGIN = {"user": "u", "password": "p"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--cluster nats://127.0.0.1:6222", {"host": "127.0.0.1", "port": 6222}),
        ("--cluster nats://u:p@127.0.0.1:-1", {"host": "127.0.0.1", "port": -1, "user": "u", "password": "p"}),
        ("--cluster_listen nats://u:p@0.0.0.0:1 --cluster_name C", {"port": 1, "name": "C", **LOGIN}),
        (
            "--cluster nats://u:p@h:1 --routes nats://a:1,b:2",
            {"host": "h", "port": 1, "routes": (RouteUrl("a", 1), RouteUrl("b", 2)), **LOGIN},
        ),
        (
            "--cluster nats://u:p@h:1 --cluster_advertise x:5 --no_advertise --connect_retries 3",
            {"host": "h", "port": 1, "advertise": "x:5", "no_advertise": True, "connect_retries": 3, **LOGIN},
        ),
    ],
)
def test_flags_make_a_cluster_without_a_file(options: Load, line: str, expected: dict[str, Any]) -> None:
    assert cluster(options(None, line)) == ClusterOptions(**expected)


def test_flags_win_over_the_block(options: Load) -> None:
    text = "cluster { name: C, port: 1, routes: [nats://a:1], authorization { user: u, password: p } }"
    made = cluster(options(text, "--cluster nats://h:2 --cluster_name D --routes nats://b:2"))
    expected = ClusterOptions(name="D", host="h", port=2, routes=(RouteUrl("b", 2),), user="u", password="p")
    assert made == expected


def test_an_empty_flag_turns_the_cluster_of_the_file_off(options: Load) -> None:
    assert options("cluster { port: 1, routes: [nats://a:1] }", "--cluster=").cluster == ClusterOptions()


def test_a_name_alone_makes_no_cluster(options: Load) -> None:
    assert options(None, "--cluster_name C").cluster == ClusterOptions(name="C")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--routes nats://a:1", "solicited routes require cluster capabilities, e.g. --cluster"),
        ("--cluster nats://h", "--cluster 'nats://h' has no port; write nats://host:port"),
        ("--cluster nats://h:x", "--cluster: 'nats://h:x': the port"),
        ("--cluster nats://u@h:1", "expected cluster password to be set"),
        ("--cluster nats://h:1 --routes nats://", "--routes: 'nats://' has no host"),
        ("--cluster nats://h:1 --cluster_advertise h:x", "--cluster_advertise: 'h:x': the port"),
        ("-js -sd x --cluster nats://u:p@h:1 --cluster_name C", "jetstream cluster requires `server_name` to be set"),
        ("-js -sd x --cluster nats://u:p@h:1 -n a", "jetstream cluster requires `cluster.name` to be set"),
    ],
)
def test_wrong_flags_are_refused_with_what_to_do(options: Load, line: str, words: str) -> None:
    with pytest.raises(StartError) as caught:
        options(None, line)
    assert words in str(caught.value)


# ---------------------------------------------------------------------- authorization

OPEN = "any server that knows the cluster's name can join at"


@pytest.mark.parametrize("listen", ["port: 1", "listen: '10.0.0.1:1'", "listen: 'node1:1'", "listen: '[::]:1'"])
def test_a_cluster_that_anybody_can_join_is_refused(options: Load, listen: str) -> None:
    for more in ("", f", {TLS} }}"):  # the system's authorities sign any certificate
        with pytest.raises(StartError, match=OPEN) as caught:
            options(f"cluster {{ name: C, {listen}{more} }}")
        assert "set cluster { authorization { user, password } }" in str(caught.value)
        assert "cluster { insecure: true }" in str(caught.value)
    with pytest.raises(StartError, match=OPEN):
        options(None, "--cluster nats://0.0.0.0:1")


@pytest.mark.parametrize("more", ["authorization { user: u, password: p }", f"{TLS}, ca_file: '@/ca.pem' }}"])
def test_a_cluster_with_a_password_or_certificates_may_listen_anywhere(options: Load, more: str) -> None:
    made = options(f"cluster {{ name: C, port: 1, {more} }}")
    assert made.warnings == ()


@pytest.mark.parametrize("block", ["port: 1, insecure: true", "listen: '127.0.0.1:1'", "listen: '[::1]:1'"])
def test_an_open_cluster_that_is_wanted_or_local_is_warned_of(options: Load, block: str) -> None:
    (warning,) = options(f"cluster {{ name: C, {block} }}").warnings
    assert OPEN in warning


def test_a_reload_cannot_open_the_cluster_to_anybody(options: Load) -> None:
    before = options("cluster { name: C, port: 1, authorization { user: u, password: p } }")
    Path(before.config_file).write_text("cluster { name: C, port: 1 }")
    with pytest.raises(StartError, match=OPEN):
        reload(before)


# ---------------------------------------------------------------------- reload

BEFORE = "cluster { name: C, port: 1, routes: [a], authorization { user: u, password: p } }"


def test_a_reload_takes_over_routes_and_password(options: Load) -> None:
    before = options(BEFORE)
    Path(before.config_file).write_text(BEFORE.replace("[a]", "[a, b]").replace("password: p", "password: q"))
    after, changed = reload(before)
    assert set(changed) == {"cluster", "config_digest"}
    assert (cluster(after).routes, cluster(after).password) == ((RouteUrl("a", 6222), RouteUrl("b", 6222)), "q")


def test_a_reload_takes_the_port_that_was_found_for_a_free_one(options: Load) -> None:
    before = options(BEFORE.replace("port: 1", "port: -1"))
    Path(before.config_file).write_text(BEFORE.replace("port: 1", "port: 7000"))
    after, changed = reload(before, BoundPorts(cluster=7000))
    assert changed == ["config_digest"]
    assert cluster(after).port == -1
    Path(before.config_file).write_text(BEFORE.replace("port: 1", "port: -1"))
    assert reload(after, BoundPorts(cluster=7000))[1] == ["config_digest"]
    Path(before.config_file).write_text(BEFORE.replace("port: 1", "port: 7001"))
    with pytest.raises(StartError, match="config reload not supported for cluster port: old=-1, new=7001"):
        reload(before, BoundPorts(cluster=7000))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BEFORE.replace("name: C", "name: D"), "a reload cannot change 'cluster.name'; restart"),
        (BEFORE.replace("port: 1", "port: 2"), "config reload not supported for cluster port: old=1, new=2"),
        (BEFORE.replace("port: 1", f"port: 1, {TLS} }}"), "cannot change 'cluster.tls'"),
        ("debug: true", "a reload cannot turn the cluster on or off"),
    ],
)
def test_a_reload_refuses_what_needs_a_restart(options: Load, place: str, text: str, words: str) -> None:
    before = options(BEFORE)
    Path(before.config_file).write_text(text.replace("@/", f"{place}/"))
    with pytest.raises(StartError) as caught:
        reload(before)
    assert words in str(caught.value)


# ---------------------------------------------------------------------- any input

keys = st.sampled_from([*CLUSTER, *CLUSTER_MISSING, *CLUSTER_HARMLESS, "x"])
values = st.sampled_from(
    ["5", "-1", "a", "'1s'", "true", "[]", "[a]", "['a:x']", "{}", "{user: a}", "2.5", "''", "['']"]
)


@given(st.dictionaries(keys, values, max_size=5))
def test_any_value_of_any_key_gives_options_or_a_start_error(
    tmp_path_factory: pytest.TempPathFactory, pairs: dict[str, str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any_cluster.conf"
    path.write_text("cluster {\n" + "\n".join(f"{key}: {value}" for key, value in pairs.items()) + "\n}")
    with contextlib.suppress(StartError):
        assert isinstance(read_settings(str(path))["cluster"], ClusterOptions)


@given(st.text(max_size=30))
def test_any_text_is_a_route_or_refused_with_a_reason(text: str) -> None:
    try:
        url = route_url(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - both ways out are fine
        return
    assert url.host
    assert 0 < url.port < 65536


@given(st.text(max_size=20))
def test_an_address_that_another_node_tells_is_taken_or_not(text: str) -> None:
    url = parse_address(text)
    assert url is None or parse_address(url.address) == url


def identity(host: str = "0.0.0.0", advertise: tuple[str, int] | None = None) -> Identity:
    return Identity(
        server_id="N",
        server_name="n",
        host=host,
        port=4222,
        max_payload=1,
        jetstream=False,
        domain="",
        auth_required=False,
        advertise=advertise,
    )


def test_clients_get_the_configured_address_or_that_of_the_listener() -> None:
    assert client_urls(identity(advertise=("h", 5))) == ("h:5",)
    assert client_urls(identity(advertise=("::1", 5))) == ("[::1]:5",)
    assert client_urls(identity("127.0.0.1")) == ("127.0.0.1:4222",)
    assert client_urls(identity("::1")) == ("[::1]:4222",)
    assert all(re.fullmatch(r"\S+:4222", url) for url in client_urls(identity()))
