"""Programs under the system call filter of a systemd unit, where no systemd runs.

Belongs here: reading the restrictions that systemd enforces with seccomp (SystemCallFilter, MemoryDenyWriteExecute,
RestrictAddressFamilies) from a unit, applying them to this process by libseccomp, and starting the program. Everything
else that a unit confines needs systemd.

    python -m tests.packages.confined UNIT PROGRAM ARGUMENTS…
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ALLOW = 0x7FFF0000
ERRNO = 0x00050000
EQUAL, MASKED_EQUAL = 4, 7
"""Comparisons of libseccomp: SCMP_CMP_EQ, SCMP_CMP_MASKED_EQ."""
WRITE, EXECUTE = 0x2, 0x4
"""Protections of memory: PROT_WRITE, PROT_EXEC."""
SHM_EXEC = 0o100000
MAPS = ("mmap", "mmap2")
PROTECTS = ("mprotect", "pkey_mprotect")


class Comparison(ctypes.Structure):
    """A condition on an argument of a system call (struct scmp_arg_cmp)."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operation", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def settings(unit: Path, name: str) -> list[str]:
    """Return the values of a setting of a unit, in their order."""
    lines = unit.read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{name}=")]


def calls(group: str) -> set[str]:
    """Return the system calls of a group such as @system-service; of a name, that name."""
    if not group.startswith("@"):
        return {group}
    shown = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager", group], capture_output=True, text=True, check=True
    ).stdout
    words = [line.strip() for line in shown.splitlines()[1:] if line.strip() and not line.strip().startswith("#")]
    return set().union(*(calls(word) for word in words))


def allowed(unit: Path) -> set[str]:
    """Return the system calls that a unit allows."""
    found: set[str] = set()
    for value in settings(unit, "SystemCallFilter"):
        named = set().union(*(calls(group) for group in value.removeprefix("~").split()))
        found = found - named if value.startswith("~") else found | named
    return found


def confine(unit: Path) -> None:
    """Apply the filter to this process and its children; calls that are not allowed fail with EPERM."""
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(ERRNO | errno.EPERM)))

    def allow(name: str, *conditions: Comparison) -> None:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:  # of another architecture
            return
        array = (Comparison * len(conditions))(*conditions)
        done = library.seccomp_rule_add_array(context, ctypes.c_uint32(ALLOW), number, len(conditions), array)
        assert done == 0, f"{name}: {os.strerror(-done)}"

    no_code = settings(unit, "MemoryDenyWriteExecute") == ["yes"]
    families = [getattr(socket, name) for value in settings(unit, "RestrictAddressFamilies") for name in value.split()]
    for name in allowed(unit):
        if name in MAPS and no_code:
            for protection in (0, WRITE, EXECUTE):
                allow(name, Comparison(2, MASKED_EQUAL, WRITE | EXECUTE, protection))
        elif name in PROTECTS and no_code:
            allow(name, Comparison(2, MASKED_EQUAL, EXECUTE, 0))
        elif name == "shmat" and no_code:
            allow(name, Comparison(2, MASKED_EQUAL, SHM_EXEC, 0))
        elif name == "socket" and families:
            for family in families:
                allow(name, Comparison(0, EQUAL, family, 0))
        else:
            allow(name)
    done = library.seccomp_load(context)
    assert done == 0, os.strerror(-done)


def main(arguments: Sequence[str]) -> None:
    """Confine this process, then become the program."""
    unit, *command = arguments
    confine(Path(unit))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
