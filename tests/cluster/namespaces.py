"""Nodes in network namespaces of their own: real interfaces, real packet loss. Needs root and `ip netns`.

Belongs here: creating and removing namespaces on one bridge, and dropping the packets from one to another. Packets are
dropped by a wrong permanent neighbour entry (an unused MAC address), which needs no packet filter in the kernel, works
in one direction alone, and causes no error. `tc netem` adds delays where the kernel has it.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

NOBODY = "02:00:00:00:00:fe"


def _ip(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=check)


@functools.cache
def available() -> bool:
    """Return True if namespaces, bridges and veth pairs can be created here."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        with_one = Namespaces(1)
    except subprocess.CalledProcessError:
        return False
    with_one.close()
    return True


@functools.cache
def netem_available() -> bool:
    """Return True if the kernel can delay packets."""
    if not available() or shutil.which("tc") is None:
        return False
    spaces = Namespaces(1)
    try:
        return spaces.delay(0, 1).returncode == 0
    finally:
        spaces.close()


class Namespaces:
    """`count` namespaces, each with one address on a bridge to which this process's own namespace is connected too.

    Raises:
        CalledProcessError: the system refuses; everything created so far is removed again.
    """

    def __init__(self, count: int) -> None:
        tag = os.getpid() % 0xFFFF
        self.bridge = f"lsb{tag:x}"
        self.names = [f"ls{tag:x}n{number}" for number in range(count)]
        net = f"10.{64 + tag % 128}.{(tag >> 7) % 256}"
        self.addresses = [f"{net}.{number + 1}" for number in range(count)]
        self.gateway = f"{net}.254"
        try:
            _ip("link", "add", self.bridge, "type", "bridge")
            _ip("addr", "add", f"{self.gateway}/24", "dev", self.bridge)
            _ip("link", "set", self.bridge, "up")
            for name, address in zip(self.names, self.addresses, strict=True):
                self._add(name, address)
        except subprocess.CalledProcessError:
            self.close()
            raise

    def _add(self, name: str, address: str) -> None:
        _ip("netns", "add", name)
        _ip("link", "add", f"{name}h", "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", f"{name}h", "master", self.bridge, "up")
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "link", "set", "eth0", "up")

    def prefix(self, number: int) -> list[str]:
        """Return the prefix of a command that shall run in a namespace."""
        return ["ip", "netns", "exec", self.names[number]]

    def cut(self, sender: int, receiver: int) -> None:
        """Drop all packets from one to another."""
        where = (self.addresses[receiver], "lladdr", NOBODY, "dev", "eth0", "nud", "permanent")
        _ip("-n", self.names[sender], "neigh", "replace", *where)

    def restore(self, sender: int, receiver: int) -> None:
        """Deliver packets from one to another again."""
        name, address = self.names[sender], self.addresses[receiver]
        _ip("-n", name, "neigh", "del", address, "dev", "eth0", check=False)

    def delay(self, number: int, milliseconds: float) -> subprocess.CompletedProcess[str]:
        """Delay everything that a namespace sends (0: no delay); needs netem."""
        command = ["netem", "delay", f"{milliseconds}ms"] if milliseconds else ["pfifo"]
        tc = ["tc", "-n", self.names[number], "qdisc", "replace", "dev", "eth0", "root", *command]
        return subprocess.run(tc, capture_output=True, text=True, check=False)

    def close(self) -> None:
        """Remove everything; processes in the namespaces must have exited."""
        for name in self.names:
            _ip("link", "del", f"{name}h", check=False)
            _ip("netns", "del", name, check=False)
        _ip("link", "del", self.bridge, check=False)
