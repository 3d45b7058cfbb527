"""The Python client for programs without an event loop, by the name that programs know.

Belongs here: the names of `lakestream_client.sync`, which is loaded when one is asked for.
"""

from __future__ import annotations

from lakestream import extras
from lakestream.client import ENTRY_POINTS

__getattr__ = extras.forwarding(__name__, ENTRY_POINTS, "sync", "client")
