"""Images without a Docker daemon: the steps of a Dockerfile, run in a root directory.

Belongs here: a reader of Dockerfiles, and `Image`, which carries out FROM, RUN, COPY, ENV, ARG, WORKDIR and USER in a
directory with a Debian of debootstrap, and starts what ENTRYPOINT and CMD say as Docker would: as USER, in namespaces
of its own, with a read-only root, an empty /tmp and a volume.

FROM is the one step that differs: no registry of images is needed, because `python:<version>-slim-<suite>` is that
suite of Debian with its own Python and a virtual environment at /usr/local, which has pip as the image has it. Layers,
image metadata and the seccomp profile of Docker are not tested.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

STEP_SECONDS = 1500
START_SECONDS = 60.0
_STEP = """
set -eu
mount --make-rprivate /
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
exec chroot --userspec="$OWNER" "$ROOT" sh -c 'cd "$0" && eval "$1"' "$DIRECTORY" "$1"
"""
_ENTER = """
set -eu
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
mount --bind "$VOLUME" "$ROOT/data"
mount -t tmpfs tmpfs "$ROOT/tmp"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
mount -o remount,bind,ro "$ROOT"
ip link set lo up
exec chroot --userspec="$OWNER" "$ROOT" sh -c 'cd "$0" && exec "$@"' "$DIRECTORY" "$@"
"""


class Step(msgspec.Struct, frozen=True):
    """One instruction of a Dockerfile: its word in capitals, and its text."""

    word: str
    text: str


def read(dockerfile: Path) -> list[Step]:
    """Return the instructions of a Dockerfile, with continued lines joined."""
    lines = (line for line in dockerfile.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#"))
    text = "\n".join(lines).replace("\\\n", " ")
    return [Step(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines())]


class Image:
    """An image as a root directory.

    Args:
        base: a Debian with Python; it is copied.
        root: the new root, which does not exist yet.
        context: the build context.
        arguments: values of ARG.
    """

    def __init__(self, base: Path, root: Path, context: Path, arguments: Mapping[str, str] | None = None) -> None:
        subprocess.run(["cp", "-a", "--reflink=auto", str(base), str(root)], check=True)
        self.root = root
        self.context = context
        self.environ = {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.arguments = dict(arguments or {})
        self.directory = "/"
        self.user = "0:0"
        self.entry: list[str] = []
        self.command: list[str] = []
        self.health: list[str] = []

    def build(self, steps: list[Step]) -> None:
        """Carry out the instructions in their order."""
        for step in steps:
            match step.word:
                case "RUN":
                    self._run(step.text)
                case "COPY":
                    self._copy(step.text.split())
                case "ENV":
                    self.environ.update(dict(pair.split("=", 1) for pair in shlex.split(step.text)))
                case "ARG":
                    name, _, value = step.text.partition("=")
                    self.arguments.setdefault(name, value.strip('"'))
                case "WORKDIR":
                    self.directory = step.text
                    self._inside(step.text).mkdir(parents=True, exist_ok=True)
                case "USER":
                    self.user = step.text
                case "ENTRYPOINT":
                    self.entry = json.loads(step.text)
                case "CMD":
                    self.command = json.loads(step.text)
                case "HEALTHCHECK":
                    self.health = json.loads(step.text[step.text.index("[") :])
                case "FROM" | "VOLUME" | "EXPOSE":
                    pass
                case word:
                    raise ValueError(f"the instruction {word} of a Dockerfile is not carried out here")

    def _inside(self, path: str) -> Path:
        return self.root / os.path.normpath(os.path.join(self.directory, path)).lstrip("/")

    def _run(self, script: str) -> None:
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _STEP, "sh", script]
        own = {"ROOT": str(self.root), "OWNER": self.user, "DIRECTORY": self.directory}
        environ = {**pip_settings(), **self.environ, **self.arguments, **own}
        done = subprocess.run(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=STEP_SECONDS, check=False
        )
        assert done.returncode == 0, f"RUN {script}\n{done.stdout.decode(errors='replace')[-6000:]}"

    def _copy(self, words: list[str]) -> None:
        *sources, target = words
        place = self._inside(target)
        for source in sources:
            path = self.context / source
            if path.is_dir():
                shutil.copytree(path, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                into = place / path.name if target.endswith("/") or len(sources) > 1 else place
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, into)

    def start(
        self, volume: Path, *arguments: str, network: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a container: ENTRYPOINT with the arguments, or CMD, in namespaces of its own, with a read-only root.

        Args:
            volume: mounted at /data.
            arguments: in the place of CMD.
            network: network namespace of another container, instead of a new one with a loopback interface.
            environ: further variables.
        """
        command = [*self.entry, *(arguments or self.command)]
        join = [] if network is None else ["nsenter", f"--net={network}"]
        new = ["--net"] if network is None else []
        unshare = [*join, "unshare", "--mount", *new, "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER, "sh"]
        own = {"ROOT": str(self.root), "VOLUME": str(volume), "OWNER": self.user, "DIRECTORY": self.directory}
        variables = {**self.environ, "HOME": "/data", **(environ or {}), **own}
        return subprocess.Popen([*unshare, *command], env=variables, stdin=subprocess.DEVNULL)

    def execute(self, container: subprocess.Popen[bytes], *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a container, as `docker exec` does."""
        uid, gid = self.user.split(":")
        enter = ["nsenter", "--target", str(main_process(container)), "--mount", "--net", "--pid", "--root", "--wd"]
        enter += ["--setuid", uid, "--setgid", gid, *command]
        return subprocess.run(enter, env=self.environ, capture_output=True, text=True, timeout=120, check=False)


def network_of(container: subprocess.Popen[bytes]) -> Path:
    """Return the network namespace of a container, for others that join it."""
    return Path(f"/proc/{main_process(container)}/ns/net")


def main_process(container: subprocess.Popen[bytes]) -> int:
    """Return the process id of process 1 of a container."""
    children = Path(f"/proc/{container.pid}/task/{container.pid}/children")
    deadline = time.monotonic() + START_SECONDS
    while not (found := children.read_text().split()):
        assert time.monotonic() < deadline, "the container did not start"
        time.sleep(0.05)
    return int(found[0])


def pip_settings() -> dict[str, str]:
    """Return the variables of pip and of proxies, which a build has from its builder."""
    names = [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]
    return {name: os.environ[name] for name in names if name != "PIP_FIND_LINKS"}


def debian(root: Path, suite: str) -> Path:
    """Make a Debian with Python and pip in `root`, in the place of the image of FROM; return it."""
    packages = "--include=python3,python3-venv,libpython3-dev,ca-certificates,adduser"  # as Python's image has them
    command = ["debootstrap", "--variant=minbase", packages, suite, str(root)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=STEP_SECONDS, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-3000:]
    shutil.copy("/etc/resolv.conf", root / "etc")
    # Authorities that this machine trusts besides Debian's, such as a site's; Java's package takes them from there.
    own = "usr/local/share/ca-certificates"
    if Path("/", own).is_dir():
        shutil.copytree(Path("/", own), root / own, dirs_exist_ok=True)
    subprocess.run(["chroot", str(root), "update-ca-certificates"], check=True, capture_output=True)
    (root / "etc" / "hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")  # as Docker makes it
    subprocess.run(["chroot", str(root), "python3", "-m", "venv", "/usr/local"], check=True)
    return root


def suites(steps: list[Step]) -> Iterator[str]:
    """Yield the suite of Debian of each FROM."""
    for step in steps:
        if step.word == "FROM":
            found = re.fullmatch(r"python:\d+\.\d+\.\d+-slim-(\w+)", step.text)
            assert found, f"{step.text} is not a pinned image of Python"
            yield found[1]
