"""Figures of log writes: one observation per write and sync."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakestream.log.format.files import InlineIo
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.figures import WriteFigures
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.segment_store import open_store

pytestmark = pytest.mark.unit


def _write(directory: Path, figures: WriteFigures, options: LogOptions) -> None:
    store = open_store(str(directory), InlineIo(), options, uid="u", figures=figures)
    frames = [Frame(Kind.MESSAGES, 1, 1, 3, b"abc"), Frame(Kind.MESSAGES, 1, 2, 4, b"abcd")]
    store.log.append(frames)
    store.log.append([Frame(Kind.NOOP, 1, 3, 0, b"")])
    store.log.close()


def test_a_write_counts_all_its_messages_once_and_its_sync(tmp_path: Path) -> None:
    figures = WriteFigures()
    _write(tmp_path, figures, LogOptions())
    assert (figures.messages.read().count, figures.messages.read().sum) == (1, 7)
    assert figures.bytes.read().count == 1
    assert figures.bytes.read().sum > 7
    assert figures.sync_seconds.read().count == 2
    assert 0 < figures.sync_seconds.read().sum < 10


def test_relaxed_writes_count_no_sync(tmp_path: Path) -> None:
    figures = WriteFigures()
    _write(tmp_path, figures, LogOptions(sync_always=False))
    assert figures.messages.read().count == 1
    assert figures.sync_seconds.read().count == 0
