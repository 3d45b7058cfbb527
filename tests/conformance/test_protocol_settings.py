"""Settings of the client protocol: limits and what a reload makes of them, addresses, INFO of a cluster, lame duck."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import certificates
from tests.conformance.remotes import wait
from tests.conftest import Agree, Recorded
from tests.servers import Kind, Server
from tests.websocket import WebSocket
from tests.wire import Closed, Secure, Wire, WireTimeout, dial, pub

pytestmark = pytest.mark.conformance

StartServer = Callable[..., Server]

PAGES = 'server_name: under-test\nhttp: "127.0.0.1:-1"\n'


def _errors(wire: Wire) -> list[str]:
    """Return the errors that are told until the server closes the connection."""
    return [frame.text for frame in wire.until_closed() if frame.verb == "-ERR"]


def _reloaded(lines: list[str]) -> list[str]:
    """Return the lines of a reload's log that are about connections, or failed."""
    return [line for line in lines if "onnections" in line or "Failed" in line]


# ---------------------------------------------------------------------- limits
def test_more_connections_than_are_allowed(agree: Agree) -> None:
    def see(server: Server) -> Any:
        inside = [Wire(server.address, {}) for _ in range(2)]
        for wire in inside:
            wire.ping()
        with Wire(server.address, None) as over:
            shown = [_errors(over)]
        reasons = [each["reason"] for each in server.page("/connz?state=closed")["connections"]]
        inside.pop().close()
        wait("closed connections", lambda: server.page("/connz")["num_connections"] == 1)
        with Wire(server.address, {}) as again:
            shown.append(again.ping())
        return [shown, reasons, server.page("/varz")["max_connections"]]

    agree(see, config=f"{PAGES}max_connections: 2\n", jetstream=False)


@pytest.mark.parametrize(
    ("line", "left"),
    [("max_connections: 1", 1), ("max_connections: 3", 3), ("max_connections: 9", 4), ("", 4)],
    ids=["one", "three", "more", "usual"],
)
def test_a_reload_ends_connections_over_a_lower_maximum(agree: Agree, line: str, left: int) -> None:
    def see(server: Server) -> Any:
        wires = [Wire(server.address, {}) for _ in range(4)]
        for wire in wires:
            wire.ping()
        said = [re.sub(r".*- maximum", "maximum", each) for each in _reloaded(server.reload(PAGES + line))]
        wait("closed connections", lambda: server.page("/connz")["num_connections"] == left)
        reasons = [each["reason"] for each in server.page("/connz?state=closed")["connections"]]
        varz = server.page("/varz")
        for wire in wires:
            wire.close()
        return [sorted(said), reasons, varz["max_connections"], varz["connections"]]

    agree(see, config=f"{PAGES}max_connections: 4\n", jetstream=False)


def test_a_connection_that_a_reload_ends_is_told_why(agree: Agree) -> None:
    def see(server: Server) -> Any:
        wires = [Wire(server.address, {}) for _ in range(2)]
        for wire in wires:
            wire.ping()
        server.reload(f"{PAGES}max_connections: 1\n")
        told: list[Any] = []
        for wire in wires:
            try:
                told.append([frame.text for frame in wire.until_closed(0.5) if frame.verb == "-ERR"])
            except WireTimeout:
                told.append("connected")
        return sorted(told, key=str)

    agree(see, config=f"{PAGES}max_connections: 4\n", jetstream=False)


@pytest.mark.parametrize(
    "line", ["max_control_line: 512", "max_payload: 100", "ping_max: 5", "ping_interval: '3s'", "write_deadline: '3s'"]
)
def test_a_reload_changes_limits_of_connections(agree: Agree, line: str) -> None:
    def see(server: Server) -> Any:
        with Wire(server.address, {}) as wire:
            wire.ping()
            key = line.partition(":")[0]
            shown: list[Any] = [[each for each in server.reload(f"{PAGES}{line}\n") if key in each]]
            wire.send(b"SUB " + b"a" * 600 + b" 1\r\n" + pub("b", b"x" * 200))
            try:
                shown.append([frame.verb for frame in wire.ping()])
            except Closed:
                shown.append("closed")
        return [*shown, server.page("/varz")[key]]

    agree(see, config=PAGES, jetstream=False)


def test_a_reload_changes_the_address_that_is_advertised(agree: Agree) -> None:
    def see(server: Server) -> Any:
        shown = []
        for line in ("client_advertise: 'b.example:4444'", "client_advertise: 'c.example:x'", ""):
            said = server.reload(f"{PAGES}{line}\n")
            with Wire(server.address, None) as wire:
                shown.append([wire.info["host"], wire.info["port"] == server.port])
            shown.append([each for each in said if "Failed" in each])
        return shown

    agree(see, config=f"{PAGES}client_advertise: 'a.example:4333'\n", jetstream=False)


def test_more_subscriptions_than_are_allowed(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with Wire(server.address, {}) as wire:
            shown: list[Any] = []
            for subject in ("a", "b", "c", "d"):
                wire.subscribe(subject)
                shown.append([frame.text for frame in wire.ping()])
            wire.unsubscribe("1")
            wire.subscribe("e")
            shown.append([frame.text for frame in wire.ping()])
            for subject in ("a", "b", "c", "d", "e"):
                wire.publish(subject)
            shown.append([frame.subject for frame in wire.ping()])
        return [shown, server.page("/varz")["max_subscriptions"]]

    agree(see, config=f"{PAGES}max_subscriptions: 2\n", jetstream=False)


TLS = f"tls {{ cert_file: {certificates.PLACE}/server.pem, key_file: {certificates.PLACE}/server.key }}\n"


@pytest.mark.parametrize("tls", ["", TLS], ids=["plain", "tls"])
def test_large_messages_arrive_whole_and_in_order_among_small_ones(agree: Agree, tls: str) -> None:
    def see(server: Server) -> Any:
        shown: list[Any] = []
        context = ssl.create_default_context(cafile=str(server.certificates / "ca.pem"))
        secure = Secure(context) if tls else None
        with (
            Wire(server.address, {}, secure=secure) as receiver,
            Wire(server.address, {}, secure=secure) as sender,
        ):
            receiver.subscribe("a.>")
            receiver.ping()
            chance = random.Random(1)
            for number, size in enumerate((1, 65_536, 65_537, 5_000_000, 2, 300_000, 0, 8_000_000, 3)):
                for header in (None, {"A": "b"}):
                    data = chance.randbytes(size)
                    sender.publish(f"a.{number}", data, "reply" if number % 2 else "", header)
                    got = receiver.next(timeout=20)
                    shown.append([got.subject, got.reply, len(got.data), got.data == data, bool(got.header)])
        return shown

    agree(see, config=f"max_payload: 8000100\n{tls}", jetstream=False)


def test_many_refused_subscriptions_are_one_line_in_the_log(agree: Agree) -> None:
    def see(server: Server) -> Any:
        refused = 0
        for _ in range(2):
            with Wire(server.address, {}) as wire:
                for number in range(100):
                    wire.subscribe(f"a.{number}")
                refused += sum(frame.text == "maximum subscriptions exceeded" for frame in wire.ping())
        server.stop()
        return [refused, len(server.logged("maximum subscriptions exceeded"))]

    agree(see, config="max_subscriptions: 2\n", jetstream=False)


LINES = {
    "sub_that_fits": b"SUB " + b"a" * 510 + b" 1\r\n",
    "sub_with_one_byte_more": b"SUB " + b"a" * 511 + b" 1\r\n",
    "pub_that_fits": b"PUB " + b"a" * 510 + b" 0\r\n\r\n",
    "pub_with_one_byte_more": b"PUB " + b"a" * 511 + b" 0\r\n\r\n",
    "connect_that_fits": b'CONNECT {"name":"' + b"n" * 501 + b'"}\r\n',
    "connect_with_one_byte_more": b'CONNECT {"name":"' + b"n" * 502 + b'"}\r\n',
    "unsub": b"UNSUB " + b"a" * 513 + b"\r\n",
    "without_an_end": b"SUB " + b"a" * 513,
    "no_command": b"x" * 513,
    "info": b'INFO {"a":"' + b"x" * 600 + b'"}\r\n',
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())
def test_control_lines_as_long_as_is_allowed(agree: Agree, line: bytes) -> None:
    def see(server: Server) -> Any:
        with Wire(server.address, None) as wire:
            wire.send(line if line.startswith((b"SUB", b"PUB", b"CON", b"UNS", b"x")) else line + b"PING\r\n")
            try:
                answer = wire.next()
            except Closed:
                return "closed"
            return [answer.verb, answer.text]

    agree(see, config=f"{PAGES}max_control_line: 512\n", jetstream=False)


def test_a_client_that_answers_no_ping(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with dial(server.address, 10) as client:
            client.sendall(b'CONNECT {"verbose":false,"protocol":0}\r\nPING\r\n')
            got = b""
            while data := client.recv(65536):
                got += data
        words = [line.decode() for line in got.split(b"\r\n") if line and not line.startswith(b"INFO")]
        ended = wait("a closed connection", lambda: server.page("/connz?state=closed")["connections"])
        reasons = [each["reason"] for each in ended]
        return [words, reasons, server.page("/varz")["ping_max"]]

    agree(see, config=f'{PAGES}ping_interval: "200ms"\nping_max: 2\n', jetstream=False)


@pytest.mark.parametrize("inside", [{}, {"headers": True, "no_responders": True}, {"headers": True}])
def test_no_header_support(agree: Agree, inside: dict[str, bool]) -> None:
    def see(server: Server) -> Any:
        fields = {"headers": False, "no_responders": False, **inside}
        with Wire(server.address, fields) as wire:
            shown: list[Any] = [wire.info["headers"], wire.info.get("jetstream")]
            try:
                wire.ping()
            except Closed:
                return [*shown, "closed"]
            wire.subscribe("a")
            wire.publish("a", b"x")
            shown.append([frame.verb for frame in wire.ping()])
            shown.append(sorted(wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})))
            shown.append(sorted(wire.request("s", b"x").json()))
            wire.publish("a", b"x", headers={"A": "b"})
            try:
                shown.append([frame.verb for frame in wire.ping()])
            except Closed:
                shown.append("closed")
        ended = wait("a closed connection", lambda: server.page("/connz?state=closed")["connections"])
        return [*shown, ended[0]["reason"]]

    agree(see, config=f"{PAGES}no_header_support: true\n")


def test_counted_bytes_of_messages_with_headers(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with Wire(server.address, {"name": "counted"}) as wire:
            wire.subscribe("a.*")
            wire.send(
                pub("a.b", b"x" * 10) + pub("a.b", b"x" * 10, headers={"Key": "value"}) + pub("a.b", b"", "reply")
            )
            wire.ping()
            [shown] = server.page("/connz")["connections"]
        varz = server.page("/varz")
        names = ("in_msgs", "out_msgs", "in_bytes", "out_bytes")
        return [{name: page[name] for name in names} for page in (shown, varz)]

    agree(see, config=PAGES, jetstream=False)


@pytest.mark.parametrize("limit", ["max_buffered_msgs: 10", "max_buffered_size: 2000"])
def test_more_publishes_than_are_buffered(agree: Agree, limit: str) -> None:
    def see(server: Server) -> Any:
        with Wire(server.address, {}) as wire:
            wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
            replies = [wire.new_reply() for _ in range(3000)]
            wire.send(b"".join(pub("s", b"x" * 100, reply) for reply in replies))
            answers = [wire.message(reply).json() for reply in replies]
        refused = {json.dumps(answer["error"], sort_keys=True) for answer in answers if "error" in answer}
        logged = [line.partition("[WRN] ")[2] for line in server.log().splitlines() if "Dropping messages" in line]
        return [sorted(refused), any("seq" in answer for answer in answers), sorted(set(logged))]

    agree(see, config=f"{PAGES}jetstream {{ {limit} }}\n")


def test_more_requests_than_are_queued(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with Wire(server.address, {}) as wire:
            wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
            replies = [wire.new_reply() for _ in range(3000)]
            wire.send(b"".join(pub("$JS.API.STREAM.NAMES", b"", reply) for reply in replies))
            answered = 0
            try:
                while wire.next(lambda frame: frame.sid == wire.inbox_sid, 1.0):
                    answered += 1
            except WireTimeout:
                pass
        logged = [line.partition("[WRN] ")[2] for line in server.log().splitlines() if "queue limit" in line]
        return [0 < answered < 3000, sorted({re.sub(r"\d+", "<n>", line) for line in logged})]

    agree(see, config=f"{PAGES}jetstream {{ request_queue_limit: 3, info_queue_limit: 3 }}\n")


# ---------------------------------------------------------------------- addresses
@pytest.mark.parametrize(("host", "reached"), [("::1", "::1"), ("::", "::1"), ("::", "127.0.0.1"), ("0.0.0.0", "::1")])
def test_listening_at_ipv6(agree: Agree, host: str, reached: str) -> None:
    def see(server: Server) -> Any:
        with Wire((reached, server.port), {"name": "six"}) as wire:
            wire.ping()
            [shown] = server.page("/connz", f"[{reached}]" if ":" in reached else reached)["connections"]
            lines = [re.sub(r".*\[INF\] |:\d+$", "", line) for line in server.log().splitlines() if "Listening" in line]
            return [wire.info["host"], wire.info["client_ip"], shown["ip"], lines]

    agree(see, args=["-a", host, "-m", "-1"], jetstream=False)


@pytest.mark.parametrize("advertised", ["a.example:4333", "a.example", "[2001:db8::1]:4333"])
def test_an_address_that_is_advertised(agree: Agree, advertised: str) -> None:
    def see(server: Server) -> Any:
        with Wire(server.address, {"protocol": 1}) as wire:
            pages = [*wire.told(), server.page("/varz")]
        told = [{name: page.get(name) for name in ("host", "port", "connect_urls")} for page in pages]
        return [{**each, "port": 0 if each["port"] == server.port else each["port"]} for each in told]

    agree(see, config=f"{PAGES}client_advertise: '{advertised}'\n", jetstream=False)


# ---------------------------------------------------------------------- a cluster
def _cluster(name: str, routes: str = "", more: str = "") -> str:
    links = f'routes: ["nats-route://{routes}"]' if routes else ""
    return f"""server_name: {name}\nhttp: "127.0.0.1:-1"\n{more}
cluster {{ name: C, listen: "127.0.0.1:-1", {links} }}\n"""


def _route_address(server: Server) -> str:
    found = wait("routes", lambda: re.search(r"Listening for route connections on (\S+)", server.log()))
    return str(found[1])


def test_info_with_the_name_of_a_cluster_of_one(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with Wire(server.address, None) as wire:
            return [wire.info.get("cluster"), server.page("/varz")["cluster"]]

    agree(see, config=f"{PAGES}cluster {{ name: X }}\n", jetstream=False)


def test_a_reload_with_the_port_that_was_found(agree: Agree) -> None:
    config = f'{PAGES}cluster {{{{ name: X, listen: "127.0.0.1:{{port}}" }}}}\n'

    def see(server: Server) -> Any:
        port = _route_address(server).rpartition(":")[2]
        said = [server.reload(config.format(port=port)), server.reload(config.format(port=-1))]
        other = server.reload(config.format(port=1))
        failed = [[line for line in lines if "Failed" in line] for lines in (*said, other)]
        return [[line.partition(": old=")[0] for line in lines] for lines in failed]

    agree(see, config=config.format(port=-1), jetstream=False)


def test_listeners_at_ipv6_that_are_not_for_clients(agree: Agree) -> None:
    def see(server: Server) -> Any:
        _route_address(server)
        lines = sorted(re.sub(r":\d+$", "", line) for line in server.logged("Listening"))
        ports = [server.websocket_port, server.leaf_port]
        for port in ports:
            socket.create_connection(("::1", port), timeout=5).close()
        return [lines, all(ports)]

    config = f"""{PAGES}leafnodes {{ listen: "[::1]:-1" }}\nwebsocket {{ listen: "[::1]:-1", no_tls: true }}
cluster {{ name: X, listen: "[::1]:-1" }}\n"""
    agree(see, config=config, jetstream=False)


def test_listeners_that_launchers_of_clients_configure(agree: Agree, tmp_path: Path) -> None:
    def see(server: Server) -> Any:
        ports = server.wait_ports(tmp_path)
        _route_address(server)
        if server.kind is Kind.OURS:  # one more than in nats-server: launchers look for every listener there
            assert ports.pop("leafnodes") == [f"nats://127.0.0.1:{server.leaf_port}"]
        return [sorted(ports), sorted(re.sub(r":\d+$", "", line) for line in server.logged("Listening"))]

    config = f"""{PAGES}leafnodes {{ listen: "127.0.0.1:-1" }}\nwebsocket {{ port: -1, no_tls: true }}
cluster {{ name: X, listen: "127.0.0.1:-1" }}\n"""
    agree(see, config=config, args=["--ports_file_dir", str(tmp_path)], jetstream=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::1", "127.0.0.1"])
def test_addresses_in_the_ports_file(agree: Agree, tmp_path: Path, host: str) -> None:
    """Only those of the loopback interface are compared: others differ between machines."""

    def see(server: Server) -> Any:
        found = [urllib.parse.urlsplit(url) for url in server.wait_ports(tmp_path)["nats"]]
        local = sorted({str(url.hostname) for url in found} & {"127.0.0.1", "::1"})
        for url in found:
            if not str(url.hostname).startswith("fe80:"):  # needs the name of an interface
                assert url.port == server.port
                with Wire((str(url.hostname), server.port)) as wire:
                    wire.ping()
        return [local, [line.rpartition(":")[0] for line in server.logged("Starting http monitor")]]

    agree(see, args=["-a", host, "-m", "-1", "--ports_file_dir", str(tmp_path)], jetstream=False)


def _urls_told(start: Callable[[str], Server], more: str) -> Any:
    """Return the connect_urls that clients of one node are told when another node comes and goes."""
    first = start(_cluster("n1"))
    news, old = Wire(first.address, {"protocol": 1}), Wire(first.address, {"protocol": 0})
    news.told()
    old.ping()
    second = start(_cluster("n2", _route_address(first), more))
    names = {str(first.port): "first", str(second.port): "second"}

    def shown(info: dict[str, Any]) -> list[str]:
        return sorted(re.sub(r"\d+$", lambda found: names.get(found[0], found[0]), url) for url in info["connect_urls"])

    def wait_for(count: int) -> list[Any]:
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            news.ping()
            if len(news.infos) > 2 and len(news.infos[-1].get("connect_urls") or ()) == count:
                break
            time.sleep(0.05)
        return shown(news.infos[-1])

    told: list[Any] = [["told", wait_for(2)]]
    with Wire(second.address, None) as beyond, Wire(first.address, None) as fresh:
        told.append(["first INFO of each", shown(beyond.info), shown(fresh.info)])
    second.stop()
    told += [["told when it left", wait_for(1)], ["INFO to a client of protocol 0", len(old.infos)]]
    news.close()
    old.close()
    return told


@pytest.mark.parametrize("more", ["", "client_advertise: 'b.example:4333'"], ids=["as_it_is", "advertised"])
def test_clients_are_told_of_nodes_that_come_and_go(start_server: StartServer, recorded: Recorded, more: str) -> None:
    def start(of: dict[str, Any]) -> Callable[[str], Server]:
        return lambda config: start_server(**of, config=config, jetstream=False, name=config.split()[1])

    expected = recorded(lambda: _urls_told(start({"of": Kind.REAL}), more))
    assert json.loads(json.dumps(_urls_told(start({}), more))) == expected


def _told_over_websocket(start: Callable[[str], Server]) -> Any:
    """Return where clients over WebSocket are told to connect, by two nodes of which one advertises its address."""
    first = start(_cluster("n1", more='websocket { listen: "127.0.0.1:-1", no_tls: true }'))
    advertised = 'websocket { listen: "127.0.0.1:-1", no_tls: true, advertise: "b.example:443" }'
    second = start(_cluster("n2", _route_address(first), advertised))
    wait("both", lambda: len(first.page("/varz").get("ws_connect_urls", ())) == 2)
    told = []
    for server in (first, second):
        opened = WebSocket((server.host, server.websocket_port))
        info = json.loads(opened.next().data.decode().removeprefix("INFO "))
        opened.close()
        urls = [url.replace(str(first.websocket_port), "first") for url in info["connect_urls"]]
        told.append([sorted(urls), info["port"] == server.websocket_port, "ws_connect_urls" in info])
    return told


def test_clients_over_websocket_are_told_of_websocket_addresses(start_server: StartServer, recorded: Recorded) -> None:
    def start(of: dict[str, Any]) -> Callable[[str], Server]:
        return lambda config: start_server(**of, config=config, jetstream=False, name=config.split()[1])

    expected = recorded(lambda: _told_over_websocket(start({"of": Kind.REAL})))
    assert _told_over_websocket(start({})) == expected


# ---------------------------------------------------------------------- lame duck
@pytest.mark.heavy
def test_lame_duck_mode_over_tcp(agree: Agree) -> None:
    def see(server: Server) -> Any:
        wires = [Wire(server.address, {"protocol": protocol}) for protocol in (1, 1, 0)]
        before = [len(wire.told()) for wire in wires]
        assert server.process is not None
        server.process.send_signal(signal.SIGUSR2)
        wait("lame duck mode", lambda: server.logged("Entering lame duck mode"))
        for wire in wires:
            wire.ping()
        told = [[info.get("ldm") for info in wire.infos[count:]] for wire, count in zip(wires, before, strict=True)]
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(server.address, timeout=5)
        ended = [_errors_within(wire, 30) for wire in wires]
        lines = [line.partition("] ")[2].partition("] ")[2] for line in server.log().splitlines() if "Trapped" in line]
        return [told, ended, lines, server.stop()]

    config = f'{PAGES}lame_duck_duration: "30s"\nlame_duck_grace_period: "500ms"\n'
    agree(see, config=config, jetstream=False)


def _errors_within(wire: Wire, seconds: float) -> list[str]:
    return [frame.text for frame in wire.until_closed(seconds) if frame.verb == "-ERR"]
