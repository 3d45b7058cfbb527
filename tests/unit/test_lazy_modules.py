"""Tests of postponed and left out modules, in programs of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_postponed_module_is_loaded_by_its_first_use() -> None:
    found = run(
        "import sys\n"
        "from lakestream.lazy_modules import postpone\n"
        "postpone('wave')\n"
        "import wave\n"
        "import wave as again\n"
        "print('open' in wave.__dict__, wave is again)\n"
        "print(wave.Error.__name__, 'open' in wave.__dict__)\n"
        "from wave import open\n"
        "import wave as third\n"
        "print(third.open is open is wave.open, hasattr(wave, 'none'))\n"
        "postpone('wave'); postpone('no_such_module')\n"
        "print(sys.modules['wave'] is third, 'no_such_module' in sys.modules)\n"
    )
    assert found.split("\n") == ["False True", "Error True", "True False", "True False"]


def test_a_module_that_is_left_out_cannot_be_imported() -> None:
    found = run(
        "from lakestream.lazy_modules import leave_out\n"
        "from importlib.util import find_spec\n"
        "leave_out('wave'); leave_out('no_such_module')\n"
        "try:\n"
        "    import wave\n"
        "except ImportError as error:\n"
        "    print(error.name)\n"
        "print(find_spec('wave') is not None, find_spec('no_such_module'))\n"
    )
    assert found.split("\n") == ["wave", "True None"], "what is installed is known all the same (extras.py)"


def test_a_query_at_the_command_line_does_without_aiohttp() -> None:
    """Importing it takes longer than a query; nats-py needs it for WebSockets."""
    found = run(
        "import sys\n"
        "from lakestream_client.lake.flusher import FlushFailed, Flusher\n"
        "try:\n"
        "    Flusher(['nats://127.0.0.1:1'.split()]).flush('ORDERS', 5)\n"
        "except FlushFailed:\n"
        "    print('aiohttp.client' in sys.modules)\n"
    )
    assert found == "False"
