"""The Python client for programs without an event loop, by the name that programs know.

Belongs here: the names of `lakestream_client.sync`, which is loaded when one is asked for.
"""

from __future__ import annotations

from typing import Any

from lakestream import extras
from lakestream.client import ENTRY_POINTS


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(extras.load(ENTRY_POINTS, "sync", "client", "lakestream.client.sync"), name)
