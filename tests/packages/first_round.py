"""The first minutes of a new user after the installation, as a program: `up`, a message, SQL, and `demo`.

    python -m tests.packages.first_round PROGRAM DIRECTORY [--demo]

It runs in the network namespace that the program shall have, so it is a process of its own.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.wire import Wire

START_SECONDS = 60.0
COMPACT_SECONDS = 240.0
MESSAGES = 50


def main() -> None:
    """Run the round; an assertion fails the process."""
    program, directory = sys.argv[1], Path(sys.argv[2])
    directory.mkdir()
    with (directory / "log").open("wb") as log:
        command = [program, "up", "-a", "127.0.0.1", "-p", "-1", "-sd", "data", "--ports_file_dir", "."]
        server = subprocess.Popen(command, cwd=directory, stdout=log, stderr=subprocess.STDOUT)
    try:
        publish(address(server, directory))
        wait_for_table(program, directory)
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
        print((directory / "log").read_text())
    assert code == 0, code
    assert sorted(path.name for path in directory.iterdir()) == ["data", "log"]
    if "--demo" in sys.argv:
        done = subprocess.run(
            [program, "demo", "--flights", "2000"], cwd=directory, timeout=COMPACT_SECONDS, check=False
        )
        assert done.returncode == 0, done.returncode


def address(server: subprocess.Popen[bytes], directory: Path) -> tuple[str, int]:
    """Return the address of the server once it is up."""
    file = directory / f"nats-server_{server.pid}.ports"
    deadline = time.monotonic() + START_SECONDS
    while not file.exists() or not file.read_text().endswith("}"):
        assert server.poll() is None, (directory / "log").read_text()
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.05)
    host, _, port = json.loads(file.read_text())["nats"][0].removeprefix("nats://").rpartition(":")
    return host, int(port)


def publish(server: tuple[str, int]) -> None:
    """Make a stream and publish into it; all messages are acked."""
    with Wire(server, timeout=30) as wire:
        assert "error" not in wire.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.*"]})
        for number in range(MESSAGES):
            reply = wire.new_reply()
            wire.publish(f"orders.{number % 3}", b"%d" % number, reply)
            assert json.loads(wire.message(reply, 30.0).data)["seq"] == number + 1


def wait_for_table(program: str, directory: Path) -> None:
    """Wait until the compactor has committed the messages, as SQL on the table alone shows it."""
    query = "SELECT count(*) AS n FROM delta.`streams/ORDERS`"
    fresh = [program, "sql", "--lake", "data/lake", "--format", "csv", "-q", query]
    shown = subprocess.run(fresh, cwd=directory, capture_output=True, text=True, timeout=120, check=False)
    assert shown.stdout.split()[-1:] == [str(MESSAGES)], (shown, (directory / "log").read_text())
    deadline = time.monotonic() + COMPACT_SECONDS
    while True:
        done = subprocess.run([*fresh, "--committed"], cwd=directory, capture_output=True, text=True, check=False)
        if done.stdout.split()[-1:] == [str(MESSAGES)]:
            return
        assert time.monotonic() < deadline, (done, (directory / "log").read_text())
        time.sleep(1)


if __name__ == "__main__":
    main()
