"""The unmodified npm package `nats` against the server under test; what it does is in js/client.cjs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.servers import Server

pytestmark = pytest.mark.conformance

HERE = Path(__file__).parent / "js"
TIMEOUT_S = 60
TESTS = (
    "core",
    "publish",
    "streams",
    "directGet",
    "fetch",
    "consume",
    "consumers",
    "orderedConsumer",
    "pushSubscribe",
    "orderedPush",
    "kvPutGet",
    "kvCreateUpdate",
    "kvDeletePurge",
    "kvHistoryKeys",
    "kvWatch",
    "objectStore",
)


@pytest.fixture(scope="module")
def node() -> str:
    """Node, with the pinned package installed beside the script."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.fail(
            "node or npm is missing: install Node.js 20 or later with npm, for example "
            "`apt-get install nodejs npm`, or from nodejs.org",
            pytrace=False,
        )
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]["nats"]
    manifest = HERE / "node_modules" / "nats" / "package.json"
    if not manifest.exists() or json.loads(manifest.read_text())["version"] != wanted:
        install = [npm, "ci", "--no-audit", "--no-fund"]
        done = subprocess.run(install, cwd=HERE, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.fail(f"`npm ci` in {HERE} failed:\n{done.stdout}{done.stderr}", pytrace=False)
    return node


def test_every_test_of_the_script_is_run(node: str) -> None:
    listed = subprocess.run([node, "client.cjs", "--list"], cwd=HERE, capture_output=True, text=True, check=True)
    assert tuple(listed.stdout.split()) == TESTS


@pytest.mark.parametrize("name", TESTS)
def test_npm_nats(node: str, server: Server, name: str) -> None:
    command = [node, "client.cjs", server.url, name]
    try:
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"{name} hung: {error.stderr!r}", pytrace=False)
    if done.returncode:
        pytest.fail(f"{name}\n{done.stdout}{done.stderr}", pytrace=False)
