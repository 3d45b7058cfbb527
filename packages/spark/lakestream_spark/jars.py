"""Java and the JARs that Spark needs: two of Delta, lakestream's own, and those of Iceberg or a cloud.

Belongs here: finding Java (JAVA_HOME, then PATH), the places of the JARs, and fetching them; pins.py has their names
and checksums. Delta's are those of the package `lakestream-jars` (packages/jars) if it is installed. Otherwise they are
fetched once, through Spark's own dependency resolution (Ivy), so that a site's mirror, proxy and Ivy settings apply;
later starts use the cached files and no network. lakestream's own is part of the package (its sources are in jvm/). The
settings for stock Spark programs are found here too, because the same command lines need them.

    python -m lakestream_spark.jars                fetch if need be, print the paths joined by commas (for --jars)
    python -m lakestream_spark.jars --s3           the same with Hadoop's client for S3 and the AWS SDK (13 MB)
    python -m lakestream_spark.jars --gcs          the same with Hadoop's client for Google Cloud Storage (35 MB)
    python -m lakestream_spark.jars --azure        the same with Hadoop's client for Azure (1 MB)
    python -m lakestream_spark.jars --iceberg      the same with Iceberg's library (9 MB)
    python -m lakestream_spark.jars --class-path   print them as a class path (for --driver-class-path)
    python -m lakestream_spark.jars --conf         print where spark_conf/local/spark-defaults.conf is
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import glob
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

import lakestream
from lakestream import extras
from lakestream.lake.errors import JarsMissing, JavaMissing
from lakestream_spark.pins import CLOUDS, DELTA, ICEBERG, Package, Pin

WHEEL = "lakestream_jars"
"""Optional package that contains Delta's JARs, for machines without network (packages/jars)."""
OWN = "lakestream-spark.jar"
TIMEOUT_SECONDS = 1800
"""Time limit of a download."""
_POLL_SECONDS = 0.2
_LINE_SECONDS = 10.0
"""Interval of lines about a download when stderr is no terminal."""
MINIMUM_JAVA = 17
"""Oldest Java on which Spark 4 starts."""
_JAVA_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_JAVA_HINT = (
    "install a JDK 17 or 21 (Debian, Ubuntu: apt install openjdk-17-jre-headless; Fedora: dnf install "
    "java-21-openjdk-headless; macOS: brew install openjdk@21) or point JAVA_HOME at one"
)


def directory() -> str:
    """Return the JARs' directory: in $LAKESTREAM_CACHE, else in the user's cache directory (XDG_CACHE_HOME)."""
    root = os.environ.get("LAKESTREAM_CACHE")
    if not root:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        root = os.path.join(caches, "lakestream")
    return os.path.join(root, "jars")


def own() -> str:
    """Return the path of lakestream's own JAR, whether it exists or not."""
    return str(Path(__file__).resolve().parent / "jvm" / OWN)


def ensure(cloud: str = "") -> list[str]:
    """Return the paths of all JARs that a Spark session over a lake needs, fetching missing ones.

    Args:
        cloud: the name of the lake's cloud (`pins.CLOUDS`); "" for a lake in a directory.

    Raises:
        JavaMissing: some have to be fetched and there is no Java 17 or newer.
        JarsMissing: they could not be fetched; the text carries Ivy's own last words. Or ours is not there.
    """
    if not os.path.isfile(own()):
        raise JarsMissing(f"{own()} is missing: reinstall lakestream, or build it in a checkout with `make jar`")
    return [*ensure_delta(), own(), *(ensure_cloud(cloud) if cloud else [])]


def ensure_delta() -> list[str]:
    """Return the paths of Delta's JARs, fetching missing ones. Errors: see `ensure`."""
    return _ensure(DELTA)


def ensure_cloud(cloud: str) -> list[str]:
    """Return the paths of Hadoop's client for a cloud, fetching missing ones. Errors: see `ensure`."""
    return _ensure(CLOUDS[cloud])


def ensure_iceberg() -> list[str]:
    """Return the paths of Iceberg's library, fetching missing ones. Errors: see `ensure`."""
    return _ensure(ICEBERG)


def are_cached(cloud: str = "") -> bool:
    """Return True if a Spark session starts without fetching a JAR; `cloud` as for `ensure`."""
    return _kept(DELTA.files) is not None and (not cloud or _kept(CLOUDS[cloud].files) is not None)


def _kept(files: Mapping[str, Pin]) -> list[str] | None:
    """Return the paths of the files, all in the cache or all in the package `lakestream-jars`; else None."""
    spec = importlib.util.find_spec(WHEEL)
    for place in (directory(), *((spec.submodule_search_locations or ()) if spec is not None else ())):
        paths = [os.path.join(place, name) for name in files]
        if all(map(os.path.isfile, paths)):
            return paths
    return None


def _ensure(package: Package) -> list[str]:
    kept = _kept(package.files)
    if kept is not None:
        return kept
    target = directory()
    os.makedirs(target, exist_ok=True)
    with open(os.path.join(target, ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes may start at once; one fetches, the other finds
        kept = _kept(package.files)
        if kept is None:
            _fetch(target, package)
            kept = _kept(package.files)
    if kept is None:
        missing = [name for name in package.files if not os.path.isfile(os.path.join(target, name))]
        raise JarsMissing(f"{package.coordinates} was resolved, but {', '.join(missing)} did not come with it")
    return kept


def configuration(name: str = "local") -> str:
    """Return the path of spark_conf/<name>/spark-defaults.conf: in a checkout, else in the installed distribution.

    Raises:
        JarsMissing: it is in neither place.
    """
    parts = ("spark_conf", name, "spark-defaults.conf")
    candidates = [Path(lakestream.__file__).resolve().parents[1].joinpath(*parts)]
    try:
        files = importlib.metadata.files(extras.DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    candidates += [Path(str(file.locate())) for file in files if file.parts[-3:] == parts]
    for path in candidates:
        if path.is_file():
            return str(path.resolve())
    raise JarsMissing(f"{'/'.join(parts)} is not there: looked for {', '.join(map(str, candidates))}")


def _fetch(target: str, package: Package) -> None:
    """Have spark-submit resolve the package into a temporary directory, check the files, and store them under their
    plain names."""
    extras.require("spark", "fetching the JARs")
    found = find_java()
    with tempfile.TemporaryDirectory(dir=target, prefix="ivy-") as work:
        program = os.path.join(work, "nothing.py")
        with open(program, "w") as file:
            file.write("")
        command = [*_submit(), "--packages", package.coordinates, "--exclude-packages", package.excluded]
        command += ["--conf", f"spark.jars.ivy={work}"]
        settings = os.environ.get("LAKESTREAM_IVY_SETTINGS")
        if settings:
            command += ["--conf", f"spark.jars.ivySettings={settings}"]
        environ = {**os.environ, "JAVA_HOME": found.home, "PYSPARK_PYTHON": sys.executable}
        environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # the host's name need not have an address
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            with subprocess.Popen([*command, program], stdout=subprocess.DEVNULL, stderr=output, env=environ) as child:
                try:
                    _watch(child, work, package.title, package.size)
                except subprocess.TimeoutExpired:
                    child.kill()
                    raise JarsMissing(_message(package, f"not complete after {TIMEOUT_SECONDS} s")) from None
            if child.returncode != 0:
                output.seek(0)
                raise JarsMissing(_message(package, _reason(output.read())))
        for name, pin in package.files.items():
            # Ivy puts the group before the name.
            for path in glob.glob(os.path.join(work, "jars", f"*_{name}")):
                _check(path, name, pin)
                os.replace(path, os.path.join(target, name))


def _watch(child: subprocess.Popen[bytes], work: str, title: str, total: int) -> None:
    """Wait for a download into `work`, with a progress bar on stderr, or lines if that is no terminal.

    Raises:
        TimeoutExpired: the time limit has passed.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    began = told = time.monotonic()
    if not console.is_terminal:
        console.print(f"fetching {title}: {total / 1e6:.1f} MB, once")
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"fetching {title}", total=total)
        while True:
            try:
                child.wait(_POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() - began > TIMEOUT_SECONDS:
                    raise
            have = min(_size(os.path.join(work, "cache")), total)
            progress.update(bar, completed=have)
            if not console.is_terminal and time.monotonic() - told >= _LINE_SECONDS:
                told = time.monotonic()
                rate = have / (told - began)
                rest = f", {(total - have) / rate:.0f} s left" if have else ""
                console.print(
                    f"fetching {title}: {have / 1e6:.1f} of {total / 1e6:.1f} MB, {rate / 1e6:.1f} MB/s{rest}"
                )


def _size(directory: str) -> int:
    """Return the bytes of the JARs in a directory of Ivy's, complete or not."""
    sizes = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            if name.endswith((".jar", ".jar.part")):
                with contextlib.suppress(FileNotFoundError):  # renamed just now
                    sizes += os.path.getsize(os.path.join(parent, name))
    return sizes


def _check(path: str, name: str, pin: Pin) -> None:
    """Raise JarsMissing unless a fetched file has the pinned checksum."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != pin.sha256:
        raise JarsMissing(
            f"{name} was fetched with SHA-256 {digest} instead of {pin.sha256}, and is not used: the repository or a "
            "proxy in between serves another file"
        )


def _submit() -> list[str]:
    """Return the spark-submit of the installed pyspark, without relying on PATH."""
    import pyspark

    return [os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-submit")]


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    errors = [line for line in lines if "unresolved dependency" in line or "Exception" in line or "rror" in line]
    return (errors or lines or ["no output"])[-1]


def _message(package: Package, reason: str) -> str:
    wheel = "install the wheel lakestream-jars, " if package is DELTA else ""  # it has no JARs of clouds
    return (
        f"the JARs of {package.coordinates} could not be fetched: {reason}. Check the network or the site's Ivy "
        f"settings (LAKESTREAM_IVY_SETTINGS=<ivysettings.xml>), {wheel}or put {', '.join(package.files)} into "
        f"{directory()}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the paths, fetching missing JARs; return 1 with one line on stderr on an error."""
    parser = argparse.ArgumentParser(prog="python -m lakestream_spark.jars", description="The JARs that Spark needs.")
    parser.add_argument("--conf", action="store_true", help="print the path of the settings for stock Spark programs")
    parser.add_argument("--class-path", action="store_true", help="print the paths as a class path, not with commas")
    for package in (ICEBERG, *CLOUDS.values()):
        parser.add_argument(
            package.option, dest="more", action="append_const", const=package, help=f"with {package.title}"
        )
    wanted = parser.parse_args(arguments)
    try:
        if wanted.conf:
            print(configuration())
        else:
            found = [*ensure(), *(path for package in wanted.more or () for path in _ensure(package))]
            print((os.pathsep if wanted.class_path else ",").join(found))
    except (JarsMissing, JavaMissing, extras.ExtraMissing) as error:
        print(f"lakestream: {error}", file=sys.stderr)
        return 1
    return 0


class JavaHome(msgspec.Struct, frozen=True):
    """A usable Java: the path of its `java` program, JAVA_HOME for it, and its major version."""

    program: str
    home: str
    version: int


def find_java(environ: Mapping[str, str] | None = None) -> JavaHome:
    """Return the first Java of at least version 17: JAVA_HOME's, then the one on PATH.

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
        version = java_version(program)
        if version is None:
            continue
        if version >= MINIMUM_JAVA:
            program = os.path.realpath(program)
            return JavaHome(program, os.path.dirname(os.path.dirname(program)), version)
        too_old.append(f"{program} is Java {version}")
    found = f"found only an older one ({'; '.join(too_old)})" if too_old else "found none"
    raise JavaMissing(f"the compactor needs Java {MINIMUM_JAVA} or newer and {found}: {_JAVA_HINT}")


def java_version(program: str) -> int | None:
    """Return the major version of a `java` program; None when it does not run or is not one."""
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _JAVA_VERSION.search(answer.stderr + answer.stdout)
    if match is None:
        return None
    major, minor = int(match.group(1)), match.group(2)
    return int(minor) if major == 1 and minor else major


if __name__ == "__main__":
    sys.exit(main())
