"""Tests of failed writes and syncs (invariant 4): the log freezes for good, nothing is retried, nothing is lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lakestream.log.format.errors import LogFrozen
from lakestream.log.format.files import Files
from lakestream.log.store.segment_log import LogOptions
from tests.faults.files import FaultyFiles
from tests.unit.logkit import HeldIo, MiniStream, Model, message

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("closing")]

SMALL = LogOptions(seal_bytes=600, seal_age_ns=1 << 60, retain_bytes=0)


@pytest.mark.parametrize(("operation", "code"), [("write", errno.ENOSPC), ("write", errno.EIO), ("sync", errno.EIO)])
def test_a_failed_write_or_sync_freezes_the_log_for_good(tmp_path: Path, operation: str, code: int) -> None:
    files = FaultyFiles()
    stream = MiniStream(str(tmp_path), files=files)
    stream.publish(message(1), message(2))
    acked = stream.all()
    files.fail, files.code, files.times = operation, code, 1  # once: a second try would succeed
    stream.publish(message(3))
    assert [type(error) for error in stream.failures] == [LogFrozen]
    assert os.strerror(code) in str(stream.failures[0])
    assert "restart the server" in str(stream.failures[0])
    assert stream.all() == acked
    calls = dict(files.calls)
    for _ in range(3):
        with pytest.raises(LogFrozen):
            stream.publish(message(4))
    with pytest.raises(LogFrozen):
        stream.store.log.sync()
    assert files.calls == calls  # the disk was not called again
    assert len(stream.failures) == 1
    assert stream.group.failed is stream.failures[0]


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_what_was_acked_before_a_failure_is_there_after_a_restart(tmp_path: Path, operation: str) -> None:
    files = FaultyFiles()
    stream = MiniStream(str(tmp_path), files=files)
    stream.publish(message(1), message(2))
    acked = stream.all()
    files.fail = operation
    stream.publish(message(3))
    stream.store.close(b"never written")
    again = MiniStream(str(tmp_path))
    assert again.store.extra == b""
    assert again.all()[:2] == acked
    again.publish(message(5))
    assert again.all()[-1].data == message(5)[2]


@pytest.mark.parametrize("operation", ["write", "sync", "create", "sync_directory"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_failure_while_sealing_freezes_the_log_and_loses_nothing(tmp_path: Path, operation: str, after: int) -> None:
    files = FaultyFiles()
    stream, model = MiniStream(str(tmp_path), SMALL, files), Model()
    number = 0
    while stream.store.log.open_segment.end < SMALL.seal_bytes:  # type: ignore[union-attr]
        number += 1
        stream.publish(message(number))
        model.publish(message(number))
    files.fail, files.after = operation, after if operation in ("write", "sync") else 0
    stream.publish(message(99))
    assert [type(error) for error in stream.failures] == [LogFrozen]
    model.check(stream.store)
    again = MiniStream(str(tmp_path), SMALL)
    model.check(again.store)
    again.publish(message(7))
    model.publish(message(7))
    model.check(MiniStream(str(tmp_path), SMALL).store)


def test_a_seal_by_age_that_fails_is_reported_like_a_failed_write(tmp_path: Path) -> None:
    files = FaultyFiles()
    now = [10**18]
    stream = MiniStream(str(tmp_path), LogOptions(seal_age_ns=1000), files, now=lambda: now[0])
    stream.publish(message(1))
    files.fail = "sync"
    now[0] += 1000
    stream.store.seal_if_old()
    assert [type(error) for error in stream.failures] == [LogFrozen]
    assert not stream.group.in_flight


@pytest.mark.parametrize("operation", ["create", "write", "sync", "replace", "sync_directory"])
def test_a_checkpoint_that_fails_leaves_the_one_before_in_force(
    tmp_path: Path, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    stream, model = MiniStream(str(tmp_path), files=files), Model()
    stream.publish(message(1))
    model.publish(message(1))
    stream.store.checkpoint(b"first")
    assert stream.store.checkpoint_index == 1
    stream.publish(message(2))
    model.publish(message(2))
    files.fail, files.code = operation, errno.ENOSPC
    answers: list[BaseException | None] = []
    stream.store.checkpoint(b"second", answers.append)
    assert isinstance(answers[0], OSError)
    assert "no checkpoint was written" in caplog.text
    assert stream.store.checkpoint_index == 1
    files.fail = ""
    stream.publish(message(3))  # the log itself is intact
    model.publish(message(3))
    again = MiniStream(str(tmp_path))
    model.check(again.store)
    assert again.store.extra == b"first" if operation != "sync_directory" else b"second"
    stream.store.checkpoint(b"third", answers.append)
    assert answers[1] is None
    assert MiniStream(str(tmp_path)).store.extra == b"third"


def test_a_drop_that_fails_keeps_the_segments(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = FaultyFiles()
    stream, model = MiniStream(str(tmp_path), SMALL, files), Model()
    for number in range(1, 30):
        stream.publish(message(number))
        model.publish(message(number))
    stream.store.checkpoint(b"")
    sealed = stream.store.sealed()
    files.fail = "replace"
    assert stream.store.drop_through(1 << 60)
    assert "could not leave the log" in caplog.text
    assert stream.store.sealed() == sealed
    model.check(stream.store)
    files.fail = ""
    leaving = stream.store.drop_through(1 << 60)
    assert stream.store.sealed() == sealed[len(leaving) :]


def test_an_entry_that_does_not_follow_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    files = FaultyFiles()
    stream = MiniStream(str(tmp_path), files=files)
    stream.publish(message(1))
    calls = dict(files.calls)
    stream.group._last_index = 7
    stream.publish(message(2))
    assert isinstance(stream.failures[0], ValueError)
    assert files.calls == calls


def test_destroying_waits_for_a_write_under_way_and_nothing_is_written_after(tmp_path: Path) -> None:
    io = HeldIo()
    stream = MiniStream(str(tmp_path / "s"), io=io)
    stream.publish(message(1))
    stream.store.destroy()
    assert not (tmp_path / "s").exists()
    io.run_all()  # the write comes too late
    assert not (tmp_path / "s").exists()
    assert len(stream.failures) == 1
    assert stream.store.read(1) is None


def test_a_checkpoint_that_comes_after_the_end_does_not_write_into_a_successor(tmp_path: Path) -> None:
    io = HeldIo()
    stream = MiniStream(str(tmp_path / "s"), io=io)
    stream.publish(message(1))
    io.run_all()
    stream.store.checkpoint(b"old")
    stream.store.destroy()
    successor = MiniStream(str(tmp_path / "s"))
    io.run_all()
    successor.publish(message(2))
    assert MiniStream(str(tmp_path / "s")).store.extra == b""


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: real(fd, [b"".join(buffers)[:7]], offset))
    files = Files()
    fd = files.create(str(tmp_path / "file"))
    files.write(fd, [b"abc", b"", b"defghijklm", b"nopqrstuvwxyz"] * 3, 5)
    files.close(fd)
    assert (tmp_path / "file").read_bytes() == bytes(5) + b"abcdefghijklmnopqrstuvwxyz" * 3


def test_more_buffers_than_one_call_takes_are_written(tmp_path: Path) -> None:
    files = Files()
    fd = files.create(str(tmp_path / "file"))
    buffers = [b"%d," % number for number in range(3000)]
    files.write(fd, buffers, 0)
    assert files.read_at(fd, 1 << 20, 0) == b"".join(buffers)
    files.close(fd)
