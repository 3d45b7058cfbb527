"""Clean environments for tests of packages: virtual environments, a machine without network, built packages.

Belongs here: running pip and other programs so that nothing of this checkout, of its virtual environment or of the
user's caches takes part.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSTALL_SECONDS = 1200.0
_KEPT = ("PATH", "LANG", "JAVA_HOME", "TMPDIR", "SSL_CERT_FILE", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "GOPROXY")
_ISOLATED = ["unshare", "--net", "--map-root-user"]


def environ(home: Path, **more: str) -> dict[str, str]:
    """Return an environment with an empty home, without variables of Python and lakestream; pip's settings stay."""
    home.mkdir(parents=True, exist_ok=True)
    found = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("PIP_")}
    return {**found, "HOME": str(home), **more}


def run(command: Sequence[str | Path], env: Mapping[str, str], timeout: float = 900.0, cwd: Path | None = None) -> str:
    """Run a command; return its output. A failure fails the test with the output."""
    done = subprocess.run(
        [str(word) for word in command],
        env=dict(env),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-6000:]}"
    return done.stdout


def offline(command: Sequence[str | Path]) -> list[str | Path]:
    """Return a command line that runs in a network namespace which has a loopback interface and nothing else."""
    return [*_ISOLATED, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]


def make_venv(directory: Path, env: Mapping[str, str], *requirements: str | Path) -> Path:
    """Make a virtual environment with some packages; return its directory for programs."""
    run([sys.executable, "-m", "venv", directory], env)
    if requirements:
        run([directory / "bin" / "python", "-m", "pip", "install", *requirements], env, INSTALL_SECONDS)
    return directory / "bin"


def build(to: Path, *options: str, **environment: str) -> Path:
    """Build wheel and sdist of lakestream and the wheel of the JARs into a directory; return it."""
    command = [sys.executable, str(ROOT / "packages" / "build.py"), "--to", str(to), *options]
    subprocess.run(command, env={**os.environ, **environment}, check=True, timeout=600)
    return to
