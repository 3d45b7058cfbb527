#!/usr/bin/env python3
"""Install Python packages into this interpreter's environment, with uv and with pip's settings.

    .venv/bin/python packages/install.py -e . --no-deps ...       arguments of `pip install`

uv fetches and unpacks side by side; pip works on one processor, and took three times as long (2 minutes for the tools
of developers). uv reads none of pip's settings, so those that say where packages come from are passed on. Where uv is
not to be had, or fails (pip has settings that it lacks), pip installs. Needs Python 3.11 and pip.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

# pip's setting, and uv's environment variable for the same. A setting stands under any section of pip's files.
SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "proxy": "ALL_PROXY",
    "cert": "SSL_CERT_FILE",
}
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def environment() -> dict[str, str]:
    """Return the environment for uv: ours, and pip's settings where it has none of its own."""
    lines = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=False).stdout.splitlines()
    found: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition("=")
        name = SETTINGS.get(key.rpartition(".")[2])
        if name:
            found[name] = " ".join(value.strip("'\"").replace("\\n", " ").split())
    return found | os.environ


def main() -> None:
    """Install, and exit as the installer does."""
    arguments = sys.argv[1:]
    if importlib.util.find_spec("uv") is not None:
        uv = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--no-build-isolation"]
        if not subprocess.run([*uv, *arguments], env=environment(), check=False).returncode:
            return
        print("== install: uv failed; pip tries it", flush=True)
    os.execv(sys.executable, [*PIP, "install", "--no-compile", "--no-build-isolation", *arguments])


if __name__ == "__main__":
    main()
