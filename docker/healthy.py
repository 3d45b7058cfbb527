"""Health check of the images: exit code 0 if the server, or the compactor, works.

healthy.py server       the monitoring page /healthz answers ok (LAKESTREAM_MONITOR: its address)
healthy.py compactor    a compactor holds the lock of the lake (LAKESTREAM_LAKE: the lake)
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request

MONITOR = "http://127.0.0.1:8222"
TIMEOUT_SECONDS = 4


def server() -> str:
    """Return the reason why the server is not healthy, or nothing."""
    url = os.environ.get("LAKESTREAM_MONITOR", MONITOR) + "/healthz"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS):
            return ""
    except urllib.error.HTTPError as error:
        return f"{url}: {error.code} {error.read().decode(errors='replace')}"
    except OSError as error:
        return f"{url}: {error}"


def compactor() -> str:
    """Return the reason why no compactor works on the lake, or nothing."""
    from lakestream.lake.storage import paths
    from lakestream.lake.storage.locks import COMPACTOR_LOCK, is_held

    lake = os.environ["LAKESTREAM_LAKE"]
    return "" if is_held(f"{paths.root(lake)}/{COMPACTOR_LOCK}") else f"no compactor holds the lock of {lake}"


if __name__ == "__main__":
    reason = {"server": server, "compactor": compactor}[sys.argv[1]]()
    if reason:
        sys.exit(reason)
