"""Finding a Java that Spark can use.

Belongs here: the search (JAVA_HOME, then PATH), the version check, and the sentence for a user who has none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping

import msgspec

from lakestream.lake.errors import JavaMissing

MINIMUM = 17
"""Oldest Java that Spark 4 starts on."""

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_HINT = (
    "install a JDK 17 or 21 (Debian, Ubuntu: apt install openjdk-17-jre-headless; Fedora: dnf install "
    "java-21-openjdk-headless; macOS: brew install openjdk@21) or point JAVA_HOME at one"
)


class Java(msgspec.Struct, frozen=True):
    """A usable Java: the path of its `java` program, JAVA_HOME for it, and its major version."""

    program: str
    home: str
    version: int


def find(environ: Mapping[str, str] | None = None) -> Java:
    """The first Java of at least version 17: JAVA_HOME's, then the one on PATH.

    Args:
        environ: the environment to search, `os.environ` when not given.

    Raises:
        JavaMissing: there is none; the text says what was found instead and how to install one.
    """
    environ = os.environ if environ is None else environ
    candidates = []
    if environ.get("JAVA_HOME"):
        candidates.append(os.path.join(environ["JAVA_HOME"], "bin", "java"))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        candidates.append(on_path)
    too_old = []
    for program in candidates:
        version = version_of(program)
        if version is None:
            continue
        if version >= MINIMUM:
            program = os.path.realpath(program)
            return Java(program, os.path.dirname(os.path.dirname(program)), version)
        too_old.append(f"{program} is Java {version}")
    found = f"found only an older one ({'; '.join(too_old)})" if too_old else "found none"
    raise JavaMissing(f"the compactor needs Java {MINIMUM} or newer and {found}: {_HINT}")


def version_of(program: str) -> int | None:
    """Major version of a `java` program; None when it does not run or is not one."""
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    if match is None:
        return None
    major, minor = int(match.group(1)), match.group(2)
    return int(minor) if major == 1 and minor else major
