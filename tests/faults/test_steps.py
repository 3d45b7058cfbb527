"""Tests of one failing file operation: nothing acked is lost, and errors name the file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lakestream.log.format.files import Files
from tests.faults import group_steps, journal_steps, meta_steps, replica_steps
from tests.faults.files import Fault
from tests.faults.store_steps import STEPS, Case, cases, check

pytestmark = pytest.mark.unit

SAMPLE = 61
FEW = 151


def broken(some: list[Case]) -> list[str]:
    """Return the cases that break a promise."""
    problems = [(case, check(case)) for case in some]
    return [f"{case}: {problem}" for case, problem in problems if problem]


def damaged_reads(step: str, suffix: str) -> list[Case]:
    """Return the cases of a step in which a read of such a file returns other bytes than were written."""
    wrong = (Fault.FLIP, Fault.SHORT)
    found = [case for case in cases(step) if case.fault in wrong and case.operation.path.endswith(suffix)]
    assert found, "the step reads no such file"
    return [case for case in found if not case.power]


def test_some_operations_of_each_step_fail() -> None:
    every = [case for step in STEPS for case in cases(step)]
    assert not broken(every[::SAMPLE])


def test_some_operations_of_each_step_fail_over_sealed_files() -> None:
    every = [case for step in STEPS for case in cases(step, sealed=True)]
    assert not broken(every[::SAMPLE])


def problems_of(some: list[Case], check: Callable[[Case], str]) -> dict[str, str]:
    """Return the broken promise of each case that breaks one."""
    return {str(case): problem for case in some if (problem := check(case))}


def test_some_operations_of_a_members_steps_fail() -> None:
    every = [case for step in group_steps.STEPS for case in group_steps.cases(step)]
    assert not problems_of(every[::SAMPLE], group_steps.check)


def test_some_operations_of_a_meta_members_steps_fail() -> None:
    every = [case for step in meta_steps.STEPS for case in meta_steps.cases(step)]
    assert not problems_of(every[::FEW], meta_steps.check)


def test_some_operations_of_the_journals_steps_fail() -> None:
    every = [case for step in journal_steps.STEPS for case in journal_steps.cases(step)]
    assert not problems_of(every[::SAMPLE], journal_steps.check)


@pytest.mark.heavy
@pytest.mark.parametrize("step", journal_steps.STEPS)
def test_every_operation_of_a_journals_step_fails_once(step: str) -> None:
    assert not problems_of(list(journal_steps.cases(step)), journal_steps.check)


def test_some_operations_of_a_replicas_steps_fail() -> None:
    every = [case for step in ("snapshot install", "clone at a follower") for case in replica_steps.cases(step)]
    assert not problems_of(every[::SAMPLE], replica_steps.check)


@pytest.mark.heavy
@pytest.mark.parametrize("step", group_steps.STEPS)
def test_every_operation_of_a_members_step_fails_once(step: str) -> None:
    assert not problems_of(list(group_steps.cases(step)), group_steps.check)


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", meta_steps.STEPS)
def test_every_operation_of_a_meta_members_step_fails_once(step: str) -> None:
    assert not problems_of(list(meta_steps.cases(step)), meta_steps.check)


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", replica_steps.STEPS)
def test_every_operation_of_a_replicas_step_fails_once(step: str) -> None:
    assert not problems_of(list(replica_steps.cases(step)), replica_steps.check)


@pytest.mark.heavy
@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_every_operation_of_a_step_fails_once(step: str, sealed: bool) -> None:
    assert not broken(list(cases(step, sealed)))


def test_a_meta_change_in_flight_is_answered_when_the_leaders_disk_fails() -> None:
    """A request whose entry was being written had no answer: only those behind it were answered."""
    some = [case for case in meta_steps.cases("meta change at the leader") if case.fault is Fault.EIO]
    assert not problems_of(some[:3], meta_steps.check)


def test_the_outlines_of_a_clone_are_written_by_the_file_layer() -> None:
    """The layer was passed by, so that none of its faults met them."""
    operations = [case.operation for case in replica_steps.cases("clone at a follower")]
    assert [each for each in operations if each.name == "write" and each.path.endswith(".outline.tmp")]


def test_a_base_that_lacks_an_outline_is_made_again() -> None:
    """Such a base was used without the subjects and times of the messages in that outline."""
    some = [case for case in replica_steps.cases("clone at a follower") if case.fault is Fault.VANISHED]
    assert not problems_of([case for case in some if "/base/" in case.operation.path], replica_steps.check)


def test_a_checkpoint_is_used_as_it_was_checked() -> None:
    """The content was read apart from what the CRC was checked on."""
    assert not broken(damaged_reads("open", "/checkpoint"))


def test_a_segment_is_not_replaced_by_what_a_damaged_read_returned() -> None:
    """The compressed file took the place of the good one."""
    assert not broken(damaged_reads("roll with compression", "1.seg")[-24:])


def test_an_outline_has_no_subjects_of_a_damaged_read() -> None:
    """Subjects and times of messages that leave the log were copied unchecked."""
    assert not broken(damaged_reads("drop", ".seg")[-12:])


def test_the_time_of_a_message_is_checked() -> None:
    """Messages expired by a time that was read without the message's checksum."""
    assert not broken(damaged_reads("read", "6.seg")[:8])


def test_errors_of_open_files_name_them(tmp_path: Path) -> None:
    path, files = str(tmp_path / "file"), Files()
    Path(path).touch()
    with files.opened(path) as fd:
        with pytest.raises(OSError, match=path) as written:
            files.write(fd, [b"x"], 0)
        with pytest.raises(OSError, match=path):
            files.truncate(fd, 1 << 62)
    assert written.value.errno == errno.EBADF
    with pytest.raises(IsADirectoryError) as read:
        files.read(str(tmp_path))
    assert os.fspath(tmp_path) in str(read.value)
