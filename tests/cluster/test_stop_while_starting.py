"""A node that is stopped while it joins its cluster: it exits cleanly at whatever moment."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster.nodes import free_ports
from tests.servers import Kind, Server, program

pytestmark = [pytest.mark.cluster, pytest.mark.smoke]


def _config(name: str, ports: list[int], own: int) -> str:
    routes = ", ".join(f"nats-route://u:p@127.0.0.1:{port}" for port in ports)
    return (
        f'server_name: {name}\ncluster {{ name: C, listen: "127.0.0.1:{own}", routes: [{routes}]\n'
        "authorization { user: u, password: p } }\n"
    )


@pytest.mark.parametrize(
    "after", ["Starting JetStream", "Listening for client", "Server is ready", "Route connection created"]
)
def test_a_node_that_is_stopped_while_it_joins(tmp_path: Path, after: str) -> None:
    ports = free_ports(2)
    other = Server(Kind.OURS, tmp_path / "other", config=_config("other", ports, ports[0]), name="other")
    path = tmp_path / "node.conf"
    path.write_text(_config("node", ports, ports[1]))
    command = [
        *program(Kind.OURS),
        "-a",
        "127.0.0.1",
        "-p",
        "-1",
        "-js",
        "-sd",
        str(tmp_path / "node"),
        "-c",
        str(path),
    ]
    other.start()
    try:
        for delay_ms in (0, 2):
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
                assert process.stderr is not None
                for line in process.stderr:
                    if after in line:
                        break
                time.sleep(delay_ms / 1000)  # another moment of the start; there is nothing to wait for
                process.send_signal(signal.SIGTERM)
                rest = process.stderr.read()
                assert process.wait(10) == 0, rest
            assert "Traceback" not in rest
            assert rest.splitlines()[-1].endswith("Server Exiting..")
    finally:
        other.stop()
