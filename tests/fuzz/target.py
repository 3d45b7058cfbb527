"""One target of fuzzing, and the promises that hold for each of its inputs.

Belongs here: the record of a target, and the check of one input: only the errors that the target names are raised, the
processor time is limited, and so is the memory in relation to the input. Equality with a twin or of a round trip is an
assertion in the target itself.
"""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
CORPORA = Path(__file__).parent / "corpora"
LIMIT_S = 1.0
"""Limit of the processor time for one input, with instrumentation (s)."""
BASE_BYTES = 8 << 20
"""Memory that an input may take whatever its length (8 MiB): buffers of fixed size, caches that are filled."""
BYTES_PER_BYTE = 2000
"""Memory that an input may take per byte of its length: a Python object for each byte, with its container."""


class Broken(AssertionError):
    """Raised for an input that breaks a promise."""


class Target(NamedTuple):
    """A function of bytes that comes from outside.

    Attributes:
        name: of the target and of its corpus.
        reads: its name in the documentation.
        run: handles one input; leaves nothing behind that changes the next one.
        errors: the errors that it may raise.
        seeds: makes valid inputs, from which mutation starts.
        words: tokens of the language, for mutation.
        longest: maximum length of an input in bytes.
    """

    name: str
    reads: str
    run: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: Callable[[], Sequence[bytes]]
    words: Sequence[bytes] = ()
    longest: int = 4096


def check(target: Target, data: bytes) -> None:
    """Run one input. Raise what the target does not name, and Broken if it takes too long."""
    began = time.thread_time()
    with contextlib.suppress(*target.errors):
        target.run(data)
    took = time.thread_time() - began
    if took > LIMIT_S:
        raise Broken(f"{took:.1f} s of the processor's time for {len(data)} bytes")


def check_memory(target: Target, data: bytes) -> None:
    """Run one input a second time and raise Broken if its objects take more memory than the input allows."""
    tracemalloc.start()
    try:
        check(target, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > BASE_BYTES + BYTES_PER_BYTE * len(data):
        raise Broken(f"{peak} bytes of memory for {len(data)} bytes")


def place_of(error: BaseException) -> str:
    """Return the kind of an error and the innermost line of this repository that it passed, to tell findings apart."""
    place, step = "", error.__traceback__
    while step is not None:
        place = _line(step) or place
        step = step.tb_next
    return f"{type(error).__name__} at {place}"


def _line(step: TracebackType) -> str:
    path = Path(step.tb_frame.f_code.co_filename)
    inside = path.is_relative_to(TESTS.parent) and ".venv" not in path.parts and path.name != "target.py"
    return f"{path.relative_to(TESTS.parent)}:{step.tb_lineno}" if inside else ""


def corpus(name: str) -> dict[str, bytes]:
    """Return the kept inputs of a target by file name."""
    return {path.name: path.read_bytes() for path in sorted((CORPORA / name).glob("*"))}
