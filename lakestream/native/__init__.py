"""Loops over many messages: parse, encode, split and frame a whole run of them in one call.

Belongs here: the choice between the compiled module (`fast.pyx`, built by setup.py if a C compiler is there) and its
twin in Python (`plain.py`). Both have the same functions with the same results. The environment variable
`LAKESTREAM_NATIVE=off`, read when this package is imported, chooses the twin.
"""

from __future__ import annotations

import os
import sys

__all__ = ["NATIVE", "WHY", "encode_run", "frame_acks", "frame_run", "parse_run"]

WHY: str = ""
"""Reason why the twin serves; empty when the compiled module does."""

try:
    if os.environ.get("LAKESTREAM_NATIVE") == "off":
        raise ImportError("LAKESTREAM_NATIVE is off")
    if sys.byteorder != "little":
        raise ImportError("this machine is big-endian")
    from lakestream.native._fast import encode_run, frame_acks, frame_run, parse_run
except ImportError as error:
    WHY = str(error)
    from lakestream.native.plain import encode_run, frame_acks, frame_run, parse_run

NATIVE: bool = not WHY
"""The compiled module serves."""
