"""Tests of the examples of docs/security.md: a server starts with each, and takes the way in that it is about."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.certificates import PLACE, client_context
from tests.conftest import StartServer
from tests.docs.blocks import ROOT, blocks
from tests.keys import Operator, proof, user_key
from tests.servers import Server
from tests.wire import Secure, Wire

pytestmark = pytest.mark.conformance

PAGE = ROOT / "docs" / "security.md"
OPERATOR = Operator()


def _blocks() -> list[str]:
    """Return the examples of configuration on the page."""
    return [block.text for block in blocks(PAGE) if block.language == "conf" and "shortened" not in block.reason]


def _runnable(block: str, folder: Path) -> str:
    """Return an example with the files of the tests, and with what it takes for granted."""
    block = re.sub(r'"(server|ca)\.(pem|key)"', rf'"{PLACE}/\1.\2"', block)
    block = block.replace("port: 8443", 'listen: "127.0.0.1:-1"').replace("/var/lib/lakestream/jwt", f"{folder}/jwt")
    (folder / "operator.conf").write_text(OPERATOR.config)
    block = block.replace('"operator.conf"', f'"{folder}/operator.conf"')
    return OPERATOR.config.replace("resolver: MEMORY", block) if block.startswith("resolver {") else block


@pytest.mark.parametrize("block", _blocks())
def test_a_server_starts_with_each_example(start_server: StartServer, tmp_path: Path, block: str) -> None:
    server = start_server(config=_runnable(block, tmp_path))
    with Wire(server.address, connect=None) as wire:
        assert wire.info["server_name"] == server.name


def _plain(**fields: str) -> Callable[[Server], Wire]:
    return lambda server: Wire(server.address, connect=fields)


def _nkey(server: Server) -> Wire:
    wire = Wire(server.address, connect=None)
    wire.connect(proof(user_key("docs"), wire.info["nonce"]))
    return wire


def _tls(certificate: str = "", **fields: str) -> Callable[[Server], Wire]:
    def login(server: Server) -> Wire:
        return Wire(server.address, fields, secure=Secure(client_context(server.certificates, certificate)))

    return login


@pytest.mark.parametrize(
    ("word", "login"),
    [
        ('token: "secret"', _plain(auth_token="secret")),
        ('user: ann, password: "$2a', _plain(user="ann", **{"pass": "secret"})),
        ("users: [{ nkey", _nkey),
        (
            'tls { cert_file: "server.pem", key_file: "server.key" }\nauthorization',
            _tls(user="ann", **{"pass": "s3cret"}),
        ),
        ("verify: true", _tls("ann")),
        ("include", lambda server: OPERATOR.client(server.address)),
    ],
)
def test_the_examples_let_clients_in(
    start_server: StartServer, tmp_path: Path, word: str, login: Callable[[Server], Wire]
) -> None:
    (block,) = [block for block in _blocks() if word in block]
    with login(start_server(config=_runnable(block, tmp_path))) as wire:
        assert wire.ping() == []
