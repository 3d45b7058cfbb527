"""Tests of the recorder (no operation below the root is missed) and its disk (a loss is what POSIX permits)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.power.conftest import Record
from tests.power.disk import Image, Loss, PowerDisk
from tests.power.journal import Journal, Kind, RecordingFailed, build


def test_a_replay_of_every_way_to_change_files_gives_the_same_directory(record: Record) -> None:
    journal, disk = record(
        """
fd = os.open("plain", os.O_RDWR | os.O_CREAT)
os.write(fd, b"one two"); os.pwrite(fd, b"ONE", 0)
os.writev(fd, [b" three", b" four"]); os.pwritev(fd, [b"!", b"?"], 3)
os.lseek(fd, 40, 0); os.write(os.dup(fd), b"behind a hole"); os.ftruncate(fd, 45); os.fsync(fd)
again = os.open(os.getcwd() + "/../root/./plain", os.O_WRONLY | os.O_APPEND)
os.write(again, b"appended"); os.close(again)
os.mkdir("dir"); os.makedirs("dir/deep/er")
shutil.copyfile("plain", "dir/copied"); os.copy_file_range(fd, os.open("dir/ranged", os.O_CREAT | os.O_WRONLY), 20, 3)
open("buffered", "w").write("text" * 5000); open("buffered", "w").write("shorter")
os.posix_fallocate(os.open("sized", os.O_CREAT | os.O_WRONLY), 10, 90)
os.link("plain", "dir/second name")
os.rename("buffered", "dir/renamed"); os.replace("dir/renamed", "dir/deep/er/moved")
os.rename("dir/deep", "shallow"); open("shallow/er/x", "wb").write(b"x"); os.truncate("shallow/er/x", 9)
at = os.open("shallow", os.O_RDONLY)
os.mkdir("a", dir_fd=at); os.rename("er/x", "a/y", src_dir_fd=at, dst_dir_fd=at)
nameless = os.open(".", os.O_TMPFILE | os.O_RDWR); os.write(nameless, b"named later")
os.link(f"/proc/self/fd/{nameless}", "named", src_dir_fd=at)
open("gone", "w").close(); os.unlink("gone"); os.makedirs("going/on"); shutil.rmtree("going")
os.system("cp plain copied; mv named renamed; echo more >> copied; mkdir -p sub/sub; ln plain sub/hard; rm sub/hard")
if not os.fork():
    os.write(fd, b"by a child"); os._exit(0)
os.wait()
"""
    )
    assert disk.seen().differences(Image.read(journal.root)) == []


def test_operations_of_several_processes_and_threads_are_in_their_order(record: Record) -> None:
    journal, disk = record(
        """
import contextlib, threading
fd = os.open("shared", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
children = [os.fork() for _ in range(2)]
def work():
    for n in range(200):
        os.write(fd, b"%d %d\\n" % (os.getpid(), n)); os.pwrite(os.open("same", os.O_CREAT | os.O_RDWR), b"%d" % n, 0)
threads = [threading.Thread(target=work) for _ in range(2)]
[each.start() for each in threads]; [each.join() for each in threads]
with contextlib.suppress(ChildProcessError):
    while os.wait(): pass
"""
    )
    assert disk.seen().differences(Image.read(journal.root)) == []
    times = [operation.time_ns for operation in journal.operations()]
    assert times == sorted(times)
    assert len({operation.pid for operation in journal.operations()}) == 4


@pytest.mark.parametrize(
    "program",
    [
        "import mmap; fd = os.open('m', os.O_CREAT | os.O_RDWR); os.write(fd, b'x'); mmap.mmap(fd, 1)",
        "import ctypes; ctypes.CDLL(None).fopen(b'stdio', b'w')",
        "open('../outside', 'w').close(); os.rename('../outside', 'inside')",
        "os.symlink('a', 'b')",
    ],
)
def test_what_cannot_be_recorded_fails_the_recording(record: Record, program: str) -> None:
    with pytest.raises(RecordingFailed):
        record(program)


def test_content_is_durable_once_it_was_synced_and_names_once_their_directory_was(record: Record) -> None:
    _, disk = record(
        """
def sync(path):
    fd = os.open(path, os.O_RDONLY); os.fsync(fd); os.close(fd)
def put(path, content, synced=True):
    fd = os.open(path, os.O_CREAT | os.O_WRONLY); os.write(fd, content)
    if synced: os.fsync(fd)
    os.close(fd)
put("both", b"both"); put("unsynced", b"cached", False); os.mkdir("dir"); put("dir/inside", b"1"); sync(".")
put("nameless", b"synced"); put("both", b"BO", False)
os.mkdir("lost"); put("lost/child", b"2"); sync("lost")
put("old", b"3"); os.mkdir("to"); sync("."); os.rename("old", "to/new"); os.unlink("unsynced"); put("late", b"4")
"""
    )
    synced = disk.lose(Loss.SYNCED, Random(1))
    assert synced.files == {
        "both": b"both",
        "unsynced": b"",
        "nameless": b"synced",
        "lost/child": b"2",
        "old": b"3",
    }
    assert disk.lose(Loss.NAMES, Random(1)).files == {
        "both": b"both",
        "dir/inside": b"1",
        "nameless": b"synced",
        "lost/child": b"2",
        "to/new": b"3",
        "late": b"4",
    }
    assert disk.lose(Loss.ZEROS, Random(1)).files["both"] == b"\0\0th"
    torn = [disk.lose(Loss.TORN, Random(seed)) for seed in range(50)]
    assert len({image.files["both"] for image in torn}) > 2
    assert all(("old" in image.files) != ("to/new" in image.files) for image in torn), "a rename is one step"
    assert {"late" in image.files for image in torn} == {True, False}


def test_a_sync_covers_what_was_written_before_it_began(record: Record) -> None:
    journal, _ = record(
        "fd = os.open('f', os.O_CREAT | os.O_WRONLY); os.write(fd, b'1'); os.write(fd, b'2'); os.fsync(fd)"
    )
    operations = journal.operations()
    assert [operation.kind for operation in operations] == [Kind.CREATE, Kind.WRITE, Kind.WRITE, Kind.SYNC]
    disk = PowerDisk(journal)
    for operation in operations[:-1]:
        disk.apply(operation)
    inode = disk.root.names["f"]
    inode.sync(before=operations[2].at)
    assert inode.durable == b"1"


def test_an_image_becomes_a_directory(record: Record, tmp_path: Path) -> None:
    journal, disk = record("os.makedirs('a/b'); open('a/b/c', 'w').write('d'); os.mkdir('empty')")
    disk.seen().write(tmp_path / "image")
    assert Image.read(tmp_path / "image").differences(Image.read(journal.root)) == []


def test_a_process_that_is_killed_has_recorded_what_it_did(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    library = build(tmp_path_factory.getbasetemp())
    journal = Journal.begin(library, tmp_path / "journal", tmp_path / "root")
    program = (
        "import os\nfd = os.open('f', os.O_CREAT | os.O_WRONLY)\nprint(flush=True)\nwhile True: os.write(fd, b'x' * 99)"
    )
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=journal.root,
            env={**os.environ, **journal.environment(library)},
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.read(1)
        with journal.held(library):
            process.kill()
            process.wait()
        process.stdout.close()
        disk = PowerDisk(journal)
        for operation in journal.operations():
            disk.apply(operation)
        assert disk.seen().differences(Image.read(journal.root)) == []
