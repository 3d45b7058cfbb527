"""How the monitoring pages write what is no plain number.

Belongs here: spans of time in nats-server's form, and the memory of this process.
"""

from __future__ import annotations

import os

from lakestream.config.options import SECOND


def uptime_text(ns: int) -> str:
    """A span as nats-server shows it: `3d4h5m6s`, `5m6s`, `6s`."""
    seconds = max(0, ns) // SECOND
    text, started = "", False
    for unit, size in (("y", 31_536_000), ("d", 86_400), ("h", 3600), ("m", 60)):
        number, seconds = divmod(seconds, size)
        started = started or bool(number)
        if started:
            text += f"{number}{unit}"
    return f"{text}{seconds}s"


def resident_bytes() -> int:
    """Memory of this process in RAM."""
    try:
        with open("/proc/self/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        # No /proc here: the peak is the next best that the system tells.
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
