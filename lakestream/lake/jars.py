"""The two Delta JARs that Spark needs.

Belongs here: which they are, where they are kept, and how they get there: once, through Spark's own dependency
resolution (Ivy), so that a site's mirror, proxy and Ivy settings apply. Later starts use the kept files and no network.

    python -m lakestream.lake.jars          fetch if need be, print the paths joined by commas (for spark-submit --jars)
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import subprocess
import sys
import tempfile

from lakestream.lake import java
from lakestream.lake.errors import JarsMissing, JavaMissing

SCALA = "2.13"
DELTA = "4.4.0"
PACKAGE = f"io.delta:delta-spark_4.2_{SCALA}:{DELTA}"
FILES = (f"delta-spark_4.2_{SCALA}-{DELTA}.jar", f"delta-storage-{DELTA}.jar")
# Spark brings these in versions of its own, or only Unity Catalog needs them.
_EXCLUDED = "io.unitycatalog:*,org.apache.*:*,com.*:*,*:delta-kernel*"
TIMEOUT_SECONDS = 600


def directory() -> str:
    """Where the JARs are kept: $LAKESTREAM_CACHE, else the user's cache directory (XDG_CACHE_HOME)."""
    root = os.environ.get("LAKESTREAM_CACHE")
    if not root:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        root = os.path.join(caches, "lakestream")
    return os.path.join(root, "jars")


def present() -> list[str] | None:
    """Paths of the kept JARs; None unless all are there. Touches no network and needs no Java."""
    paths = [os.path.join(directory(), name) for name in FILES]
    return paths if all(map(os.path.isfile, paths)) else None


def ensure() -> list[str]:
    """Paths of the JARs, fetched now if they are not there yet.

    Raises:
        JavaMissing: they have to be fetched and there is no Java 17 or newer.
        JarsMissing: they could not be fetched; the text carries Ivy's own last words.
    """
    kept = present()
    if kept is not None:
        return kept
    target = directory()
    os.makedirs(target, exist_ok=True)
    with open(os.path.join(target, ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes may start at once; one fetches, the other finds
        kept = present()
        if kept is None:
            _fetch(target)
            kept = present()
    if kept is None:
        raise JarsMissing(f"{PACKAGE} was resolved, but not all of {', '.join(FILES)} came with it")
    return kept


def _fetch(target: str) -> None:
    """Let spark-submit resolve the package into a directory of its own, then keep the files under their plain names."""
    found = java.find()
    with tempfile.TemporaryDirectory(dir=target, prefix="ivy-") as work:
        program = os.path.join(work, "nothing.py")
        with open(program, "w") as file:
            file.write("")
        command = [*_submit(), "--packages", PACKAGE, "--exclude-packages", _EXCLUDED]
        command += ["--conf", f"spark.jars.ivy={work}"]
        settings = os.environ.get("LAKESTREAM_IVY_SETTINGS")
        if settings:
            command += ["--conf", f"spark.jars.ivySettings={settings}"]
        environ = {**os.environ, "JAVA_HOME": found.home, "PYSPARK_PYTHON": sys.executable}
        environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        try:
            done = subprocess.run(
                [*command, program], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=environ, check=False
            )
        except subprocess.TimeoutExpired:
            raise JarsMissing(_message(f"no answer within {TIMEOUT_SECONDS} s")) from None
        if done.returncode != 0:
            raise JarsMissing(_message(_reason(done.stderr)))
        for name in FILES:
            # Ivy puts the group before the name.
            for path in glob.glob(os.path.join(work, "jars", f"*_{name}")):
                partial = os.path.join(target, f".{name}.tmp")
                shutil.copyfile(path, partial)
                os.replace(partial, os.path.join(target, name))


def _submit() -> list[str]:
    """The spark-submit of the installed pyspark, without relying on PATH."""
    import pyspark

    return [os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-submit")]


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    telling = [line for line in lines if "unresolved dependency" in line or "Exception" in line or "rror" in line]
    return (telling or lines or ["no output"])[-1]


def _message(reason: str) -> str:
    return (
        f"the Delta JARs ({PACKAGE}) could not be fetched: {reason}. Check the network or the site's Ivy settings "
        f"(LAKESTREAM_IVY_SETTINGS=<ivysettings.xml>), or put {' and '.join(FILES)} into {directory()}"
    )


def main() -> int:
    """Fetch if need be and print the paths; 1 with one line on stderr when that fails."""
    try:
        print(",".join(ensure()))
    except (JarsMissing, JavaMissing) as error:
        print(f"lakestream: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
