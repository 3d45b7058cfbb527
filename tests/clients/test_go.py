"""Tests of the Go client: every kind of login over every transport. Needs `go`, which downloads the client once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import ServerFor
from tests.clients.ways_in import KINDS, MATRIX, Login, is_secure, url_of
from tests.servers import Server

pytestmark = [pytest.mark.conformance, pytest.mark.heavy]

SOURCES = Path(__file__).parent / "go"
BUILD_TIMEOUT_S = 300
TIMEOUT_S = 30

ways = pytest.mark.parametrize(("way", "transport"), MATRIX, ids=["-".join(each) for each in MATRIX])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built program."""
    go = shutil.which("go")
    if go is None:
        pytest.fail("the tests with the Go client need `go`, version 1.26 or newer, on PATH", pytrace=False)
    path = tmp_path_factory.mktemp("go") / "ways_in"
    done = subprocess.run(
        [go, "build", "-o", str(path), "."],
        cwd=SOURCES,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"`go build` in {SOURCES} failed:\n{done.stdout}{done.stderr}", pytrace=False)
    return path


def _run(program: Path, server: Server, transport: str, login: Login, folder: Path, *more: str) -> str:
    """Return what the program says."""
    given = {"url": url_of(server, transport), "user": login.user, "password": login.password, "token": login.token}
    for name, text in (("seed", login.seed), ("creds", login.creds)):
        if text:
            given[name] = str(folder / name)
            (folder / name).write_text(text)
    if is_secure(transport):
        given["ca"] = str(server.certificates / "ca.pem")
    if login.certificate:
        given["certificate"] = str(server.certificates / f"{login.certificate}.pem")
        given["key"] = str(server.certificates / f"{login.certificate}.key")
    flags = [f"-{name}={value}" for name, value in given.items() if value]
    flags += ["-first"] if transport == "tls_first" else []
    done = subprocess.run([str(program), *flags, *more], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return (done.stdout + done.stderr).strip()


@ways
def test_a_client_logs_in_and_works(
    program: Path, server_for: ServerFor, tmp_path: Path, way: str, transport: str
) -> None:
    server = server_for(way, transport)
    assert _run(program, server, transport, KINDS[way].login, tmp_path, f"-name={transport}") == "ok"


@ways
def test_a_wrong_login_is_refused(
    program: Path, server_for: ServerFor, tmp_path: Path, way: str, transport: str
) -> None:
    server = server_for(way, transport)
    said = _run(program, server, transport, KINDS[way].wrong, tmp_path, "-refused=authorization violation")
    assert said == "ok"
