"""Build lakestream-spark.jar from the Java sources beside this file.

Belongs here: the compiler's command line and the archive. `make jar` runs it. The same sources and the same major
version of javac give the same bytes: order and times of files are fixed, nothing is compressed. The manifest has the
hash of the sources and the version of the compiler.

    python jvm/build.py                 writes packages/spark/lakestream_spark/jvm/lakestream-spark.jar
    python jvm/build.py elsewhere.jar
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from lakestream_spark import jars

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
RELEASE = "17"
"""Oldest Java version that the classes support, which is the oldest that Spark supports."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
_SOURCES, _COMPILER = "Sources-BLAKE2", "Build-Jdk-Spec"


def sources() -> list[Path]:
    """Return the Java files, in the same order on every machine."""
    return sorted(SOURCES.rglob("*.java"), key=lambda path: path.relative_to(SOURCES).as_posix())


def digest() -> str:
    """Return a hash of the sources that does not depend on line ends."""
    found = hashlib.blake2b(digest_size=20)
    for path in sources():
        text = path.read_bytes().replace(b"\r\n", b"\n")
        name = path.relative_to(SOURCES).as_posix().encode()
        found.update(b"%d %s %d\n%s" % (len(name), name, len(text), text))
    return found.hexdigest()


def javac() -> str | None:
    """Return the compiler of JAVA_HOME, or else the one on PATH; None if only a Java runtime is installed."""
    home = os.environ.get("JAVA_HOME")
    return (shutil.which("javac", path=os.path.join(home, "bin")) if home else None) or shutil.which("javac")


def compiler_version(program: str) -> str:
    """Return the compiler's major version."""
    answer = subprocess.run([program, "-version"], capture_output=True, text=True, check=True)
    found = re.search(r"javac (\d+)", answer.stdout + answer.stderr)
    if found is None:
        raise SystemExit(f"{program} does not say which version it is: {answer.stdout}{answer.stderr}")
    return found.group(1)


def manifest(jar: Path) -> dict[str, str]:
    """Return the main attributes in a JAR's manifest."""
    with zipfile.ZipFile(jar) as archive:
        lines = archive.read("META-INF/MANIFEST.MF").decode().splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line)


def built_from(jar: Path) -> tuple[str | None, str | None]:
    """Return (hash of the sources, major version of the compiler) of a JAR."""
    attributes = manifest(jar)
    return attributes.get(_SOURCES), attributes.get(_COMPILER)


def build(target: Path, program: str) -> None:
    """Compile the sources and pack the classes.

    Raises:
        SystemExit: the compiler is too old, or has printed an error.
    """
    import pyspark

    version = compiler_version(program)
    if int(version) < int(RELEASE):
        raise SystemExit(f"{program} is version {version}; the JAR needs javac {RELEASE} or newer")
    classpath = [
        os.path.join(os.path.dirname(pyspark.__file__), "jars", "*"),
        *jars.ensure_delta(),
        *jars.ensure_cloud("azure"),
        *jars.ensure_iceberg(),
    ]
    with tempfile.TemporaryDirectory() as work:
        command = [program, "--release", RELEASE, "-proc:none", "-encoding", "UTF-8", "-g:source,lines"]
        command += ["-Xlint:all,-classfile,-path", "-Werror", "-d", work, "-cp", os.pathsep.join(classpath)]
        done = subprocess.run([*command, *map(str, sources())], check=False)
        if done.returncode != 0:
            raise SystemExit(f"javac failed with exit code {done.returncode}")
        _pack(Path(work), target, version)


def _pack(classes: Path, target: Path, version: str) -> None:
    head = f"Manifest-Version: 1.0\r\n{_COMPILER}: {version}\r\n{_SOURCES}: {digest()}\r\n\r\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.tmp")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_entry("META-INF/MANIFEST.MF"), head)
        for path in sorted(classes.rglob("*.class"), key=lambda path: path.relative_to(classes).as_posix()):
            archive.writestr(_entry(path.relative_to(classes).as_posix()), path.read_bytes())
    os.replace(partial, target)


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.create_system = 3
    entry.external_attr = 0o644 << 16
    return entry


def main(arguments: list[str]) -> None:
    """Build the JAR and print its path."""
    target = Path(arguments[0]) if arguments else Path(jars.own())
    program = javac()
    if program is None:
        raise SystemExit("the JAR needs a Java compiler: install a JDK 17 or newer, or point JAVA_HOME at one")
    build(target, program)
    print(target)


if __name__ == "__main__":
    main(sys.argv[1:])
