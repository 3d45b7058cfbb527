"""One Spark for all tests of the stage, which run in one process; only tests of the jobs start others."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakestream.lake.storage import lake as lakes
from lakestream.log.sealing.keys import share
from lakestream_spark import session as sessions

SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Settings for small data: plans are interpreted, since compiling one takes longer than running it.

The jobs' own Sparks compile them.
"""


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Yield a session like the compactor's, without features that cost more than they save with a few hundred rows."""
    share(["key of the tests"])  # a JVM takes it once, for encrypted tables
    session = sessions.session("lakestream tests", extra=SMALL, iceberg=True)
    yield session
    session.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Return the root of an empty lake, with blanks and non-ASCII characters in its path."""
    root = tmp_path / "lake of $X #1"
    lakes.require(str(root), create=True)
    return root


def job() -> Path:
    """Return the path of the compactor's program."""
    found = importlib.util.find_spec("lakestream")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parents[1] / "jobs" / "compact.py"
