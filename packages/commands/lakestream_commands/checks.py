"""Checks of a machine and a configuration, for `lakestream doctor`.

Belongs here: one function for each check, which returns its findings. A check changes nothing: what it writes, it
removes. doctor.py runs them and shows the result.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import errno
import importlib.util
import os
import secrets
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from lakestream import native
from lakestream.cli.terminal import seconds, size
from lakestream.config.errors import reason_of
from lakestream.config.options import FREE_PORT, Options, RemoteTls, TlsOptions
from lakestream.extras import DISTRIBUTION, MODULES, load
from lakestream.lake.errors import JavaMissing, LakeError
from lakestream.lake.storage import paths
from lakestream.lake.storage.clouds.known import cloud_of
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import Storage
from lakestream.spark import ENTRY_POINTS
from lakestream_commands.monitor import Monitor, MonitorFailed

Level = Literal["ok", "warn", "fail"]

SYNCS = 40
"""fsyncs that are measured, at most."""
SYNC_SECONDS = 2.0
"""Time for all of them."""
SYNC_BYTES = 4096
SLOW_SYNC_S = 0.020
FAST_SYNC_S = 20e-6
"""A faster sync than this does not reach a disk."""
CLOCK_SECONDS = 0.3
"""Time over which the clocks are compared."""
CLOCK_STEP_S = 0.005
SKEW_WARN_S, SKEW_FAIL_S = 1.0, 60.0
SPARE_FILES = 1000
"""Files that a server has open besides its connections."""
CERTIFICATE_DAYS = 30
LEAST_FREE_BYTES = 1 << 30
FULL_BYTES = 100 << 20
_IN_MEMORY = ("tmpfs", "ramfs")
_OVER_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p")
_TIME_ERROR, _STA_UNSYNC = 5, 0x40
"""From <sys/timex.h>: the result of ntp_adjtime, and a bit of the status, of a clock that is not synchronised."""


class CheckFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a check. `remedy`: what to do; `data`: figures for scripts."""

    check: str
    level: Level
    text: str
    remedy: str = ""
    data: dict[str, Any] = {}


def _ok(check: str, text: str, **data: Any) -> CheckFinding:
    return CheckFinding(check=check, level="ok", text=text, data=data)


def _warn(check: str, text: str, remedy: str, **data: Any) -> CheckFinding:
    return CheckFinding(check=check, level="warn", text=text, remedy=remedy, data=data)


def _fail(check: str, text: str, remedy: str, **data: Any) -> CheckFinding:
    return CheckFinding(check=check, level="fail", text=text, remedy=remedy, data=data)


# ---------------------------------------------------------------------------- the installation


def python() -> Iterator[CheckFinding]:
    """Check the interpreter and the event loop."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.platform != "win32" and importlib.util.find_spec("uvloop") is None:
        yield _warn("python", f"Python {version} without uvloop", "pip install uvloop: it doubles the throughput")
    else:
        yield _ok("python", f"Python {version} with uvloop", version=version)


def compiled() -> Iterator[CheckFinding]:
    """Check that the compiled loops over messages serve."""
    if native.NATIVE:
        yield _ok("native", "the compiled module lakestream.native serves")
    else:
        yield _warn(
            "native",
            f"the compiled module does not serve: {native.WHY}; its slower twin in Python does",
            "unset LAKESTREAM_NATIVE, or install a C compiler and then lakestream again (pip install --force-reinstall "
            "--no-deps --no-binary lakestream lakestream)",
        )


def extras() -> Iterator[CheckFinding]:
    """Check which extras of the package are installed."""
    installed = {name: all(map(_has_module, modules)) for name, modules in MODULES.items()}
    missing = [name for name, there in installed.items() if not there]
    text = f"installed: {', '.join(name for name, there in installed.items() if there) or 'none'}"
    if missing:
        text += f"; not installed: {', '.join(missing)}"
    if not installed["lake"]:
        yield _warn(
            "extras",
            text,
            "without the extra lake this machine runs servers only; for the compactor and SQL: pip install "
            f"'{DISTRIBUTION}[lake]'",
            missing=missing,
        )
    else:
        yield _ok("extras", text, missing=missing)


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def java(options: Options) -> Iterator[CheckFinding]:
    """Check for a Java that runs the compactor, and its JARs."""
    if not (options.jetstream is not None and options.lake.enabled):
        yield _ok("java", "not needed: there is no lake")
        return
    if not _has_module("pyspark"):
        yield _ok("java", "not needed: no compactor is installed here")
        return
    jars = load(ENTRY_POINTS, "jars", "lake", "the compactor")
    try:
        found = jars.find_java()
        yield _ok("java", f"Java {found.version} ({found.home})", version=found.version, home=found.home)
    except JavaMissing as error:
        text, _, remedy = str(error).partition(": ")
        yield _fail("java", text, remedy)
    cloud = cloud_of(lake_of(options))
    if not os.path.isfile(jars.own()):
        yield _fail("jars", f"{jars.own()} is missing", "reinstall lakestream")
    elif jars.are_cached("" if cloud is None else cloud.name):
        yield _ok("jars", f"Delta's JARs are in {jars.directory()}")
    else:
        command = f"python -m lakestream_spark.jars{'' if cloud is None else f' --{cloud.name}'}"
        yield _warn(
            "jars", f"Delta's JARs are not in {jars.directory()}", f"the first start fetches them; or: {command}"
        )


# ---------------------------------------------------------------------------- the lake


def lake_of(options: Options) -> str:
    """Return the address of the lake."""
    store = options.jetstream.store_dir if options.jetstream is not None else "data"
    return paths.root(options.lake.url or os.path.join(store, "lake"))


def lake(options: Options) -> Iterator[CheckFinding]:
    """Check that files can be written to the lake, atomically and only once; and the store's clock."""
    if not (options.jetstream is not None and options.lake.enabled):
        yield _ok("lake", "off: streams stay in their logs")
        return
    root = lake_of(options)
    cloud = cloud_of(root)
    local = cloud is None
    place = _existing(root) if local else root
    name = f"_doctor-{secrets.token_hex(6)}"
    probe = f"{place}/{name}"
    storage: Storage | None = None
    try:
        storage = open_storage(probe if local else root)
        storage.make_directory(probe)
        yield from _probed(storage, probe, root, place)
    except (LakeError, OSError) as error:
        reason = (
            f"{error.filename}: {reason_of(error)}" if isinstance(error, OSError) and error.filename else str(error)
        )
        remedy = (
            f"let this user write to {place}, or name another lake (lake.url, --lake)"
            if cloud is None
            else f"check the address, the network, and the credentials in the environment ({cloud.address}) with the "
            "rights to list, read, write and delete"
        )
        yield _fail("lake", f"{root}: {reason}", remedy)
    finally:
        if storage is not None:
            with contextlib.suppress(LakeError, OSError):
                storage.delete_tree(probe)
                if local:
                    shutil.rmtree(probe, ignore_errors=True)


def _probed(storage: Storage, probe: str, root: str, place: str) -> Iterator[CheckFinding]:
    file, wanted = f"{probe}/a", secrets.token_bytes(64)
    began = time.perf_counter()
    created = storage.create(file, wanted)
    took = time.perf_counter() - began
    entry = storage.stat(file)
    now_ns = time.time_ns()
    again = storage.create(file, b"other")
    if not created or again or storage.read(file) != wanted or entry is None:
        yield _fail(
            "lake",
            f"{root}: a file was written twice, though it existed (no conditional writes)",
            "use a store with conditional PUT (If-None-Match), or a local file system with hard links",
        )
        return
    if storage.local:
        storage.write(file, b"new")
        storage.move(file, f"{probe}/b")
        if storage.read(f"{probe}/b") != b"new" or storage.exists(file):
            yield _fail("lake", f"{root}: a rename is not atomic", "use a local file system")
            return
        how = "write, link and rename work"
    else:
        if storage.swap(file, b"new", entry.tag) is None or storage.swap(file, b"late", entry.tag) is not None:
            yield _fail(
                "lake", f"{root}: conditional writes are not honoured (If-Match)", "use a store that supports them"
            )
            return
        how = "write and conditional write work"
    where = root if place == root else f"{root} (to be created in {place})"
    yield _ok("lake", f"{where}: {how}, {seconds(took)} a write", url=root, write_seconds=took)
    yield from _skew("clock of the lake", (entry.modified_ns - now_ns) / 1e9, slack=1.0 + took)


def _existing(path: str) -> str:
    """Return the path, or the nearest directory above it that exists."""
    while not os.path.isdir(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def _in_the_way(path: str) -> str:
    """Return why a directory cannot be made at a path: a part of it is something else; or ""."""
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return "" if os.path.isdir(path) else f"{path} is not a directory"


# ---------------------------------------------------------------------------- clocks


def clock() -> Iterator[CheckFinding]:
    """Check that the wall clock runs evenly, and that the system keeps it synchronised."""
    wall, steady = time.time(), time.monotonic()
    time.sleep(CLOCK_SECONDS)
    drift = (time.time() - wall) - (time.monotonic() - steady)
    if abs(drift) > CLOCK_STEP_S:
        yield _warn(
            "clock",
            f"the wall clock moved by {drift * 1000:+.1f} ms against the monotonic clock within {CLOCK_SECONDS:g} s",
            "let NTP slew the clock instead of stepping it; message times follow the wall clock",
            drift_seconds=drift,
        )
        return
    synchronised = _is_synchronised()
    if synchronised is False:
        yield _warn(
            "clock",
            "runs evenly, but the system says that it is not synchronised",
            "start chronyd or systemd-timesyncd; nodes and readers compare times",
            synchronised=False,
        )
    else:
        state = "synchronised by NTP" if synchronised else "the system does not tell if it is synchronised"
        yield _ok("clock", f"runs evenly, {state}", synchronised=synchronised, drift_seconds=drift)


def _is_synchronised() -> bool | None:
    """Return True if the kernel's clock is disciplined; None if the system does not tell."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        timex = ctypes.create_string_buffer(512)  # struct timex, all zeros: read only
        state = libc.ntp_adjtime(timex)
    except (OSError, AttributeError):
        return None
    if state < 0 or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    status = int.from_bytes(timex.raw[40:44], sys.byteorder)
    return not (state == _TIME_ERROR or status & _STA_UNSYNC)


def _skew(check: str, difference: float, slack: float) -> Iterator[CheckFinding]:
    """Report the difference of another clock to ours; `slack` is the uncertainty of the measurement."""
    skew = max(abs(difference) - slack, 0.0)
    text = f"{difference:+.3f} s against this machine's"
    remedy = "synchronise both clocks by NTP"
    if skew > SKEW_FAIL_S:
        yield _fail(check, text, remedy, skew_seconds=difference)
    elif skew > SKEW_WARN_S:
        yield _warn(check, text, remedy, skew_seconds=difference)
    else:
        yield _ok(check, text, skew_seconds=difference)


def server(monitor: Monitor, required: bool) -> Iterator[CheckFinding]:
    """Check a running server's health and clock; without a server there is no finding unless one is required."""
    try:
        before = time.time()
        page = monitor.page("varz")
        after = time.time()
        health = monitor.page("healthz", strict=1)
    except MonitorFailed as error:
        if required:
            yield _fail("server", str(error), "start the server, or leave --monitor out")
        return
    if "server_id" not in page.body:
        if required:
            yield _fail("server", f"{monitor.url} is not the monitoring port of a NATS server", "name the right port")
        return
    name = page.body.get("server_name")
    if health.status == 200:
        yield _ok("server", f"{name} at {monitor.url} is healthy")
    else:
        yield _fail("server", f"{name} at {monitor.url}: {health.body.get('error')}", "see the server's log")
    with contextlib.suppress(ValueError):
        told = datetime.datetime.fromisoformat(_micros(str(page.body.get("now", "")))).timestamp()
        yield from _skew("clock of the server", told - (before + after) / 2, slack=(after - before) / 2)


def _micros(text: str) -> str:
    """Return an RFC 3339 time with at most six digits of a second, as Python reads it."""
    head, dot, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return f"{head}{dot}{digits[:6]}{rest[len(digits) :]}"


# ---------------------------------------------------------------------------- the disk


def sync(options: Options) -> Iterator[CheckFinding]:
    """Measure fsync in the store's directory, and say which ack rates it allows."""
    if options.jetstream is None:
        yield _ok("fsync", "not needed: JetStream is off")
        return
    place = _existing(options.jetstream.store_dir)
    if trouble := _in_the_way(options.jetstream.store_dir):
        yield _fail("fsync", trouble, "choose another store_dir")
        return
    kind = _file_system(place)
    try:
        times = _sync_times(place)
    except OSError as error:
        yield _fail("fsync", f"{place}: {reason_of(error)}", f"let this user write to {options.jetstream.store_dir}")
        return
    half, worst = statistics.median(times), max(times)
    most = 1 / half
    text = (
        f"{seconds(half)} (longest {seconds(worst)}) in {place}: no more than {most:,.0f} acks/s one after the other; "
        "`lakestream bench js` measures what a server reaches"
    )
    data = {"median_seconds": half, "longest_seconds": worst, "acks_per_second": round(most), "file_system": kind}
    if kind in _IN_MEMORY:
        yield _warn(
            "fsync",
            f"{place} is in memory ({kind})",
            "choose a store_dir on a disk: acked messages must survive",
            **data,
        )
    elif kind in _OVER_NETWORK:
        yield _warn("fsync", f"{text}; {kind} is a network file system", "choose a local disk for the store", **data)
    elif half < FAST_SYNC_S:
        yield _warn(
            "fsync", text, "so fast a sync hardly reaches a disk: check the mount options and the drive's cache", **data
        )
    elif half > SLOW_SYNC_S:
        yield _warn(
            "fsync", text, "use a faster disk (SSD with power loss protection), or publish with more in flight", **data
        )
    else:
        yield _ok("fsync", text, **data)


def _sync_times(place: str) -> list[float]:
    flush: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
    times: list[float] = []
    block = secrets.token_bytes(SYNC_BYTES)
    with tempfile.NamedTemporaryFile(dir=place, prefix=".lakestream-doctor-") as file:
        until = time.perf_counter() + SYNC_SECONDS
        while len(times) < SYNCS and (not times or time.perf_counter() < until):
            os.write(file.fileno(), block)
            began = time.perf_counter()
            flush(file.fileno())
            times.append(time.perf_counter() - began)
    return times


def _file_system(place: str) -> str:
    """Return the type of the file system, or ""."""
    path, found, longest = os.path.realpath(place), "", -1
    with contextlib.suppress(OSError), open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            _, point, kind, *_ = line.split(" ")
            if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) > longest:
                found, longest = kind, len(point)
    return found


def disk(options: Options) -> Iterator[CheckFinding]:
    """Check the free space of the store's disk against max_file_store."""
    jetstream = options.jetstream
    if jetstream is None:
        yield _ok("disk", "not needed: JetStream is off")
        return
    from lakestream.config.loading import size_of

    place = _existing(jetstream.store_dir)
    found = os.statvfs(place)
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    used = size_of(os.path.join(jetstream.store_dir, "jetstream"))
    text = f"{size(free)} free of {size(total)}, max_file_store {size(jetstream.max_file)} ({size(used)} used)"
    data = {"free_bytes": free, "used_bytes": used, "max_file_store": jetstream.max_file}
    if free < FULL_BYTES:
        yield _fail("disk", text, f"make room on the disk of {place}, or move the store", **data)
    elif jetstream.max_file - used > free:
        yield _warn(
            "disk", text, "the disk is full before the limit is reached: lower max_file_store, or add space", **data
        )
    elif free < LEAST_FREE_BYTES:
        yield _warn("disk", text, f"make room on the disk of {place}", **data)
    else:
        yield _ok("disk", text, **data)


# ---------------------------------------------------------------------------- the system


def files(options: Options) -> Iterator[CheckFinding]:
    """Check the limit of open files against the connections that the configuration allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = options.max_connections + SPARE_FILES
    data = {"soft": soft, "hard": hard, "wanted": wanted}
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        yield _ok(
            "files", f"{soft:,} open files" if soft != resource.RLIM_INFINITY else "no limit of open files", **data
        )
        return
    remedy = f"`ulimit -n {wanted}` (LimitNOFILE={wanted} in a systemd unit), or lower max_connections"
    yield _warn(
        "files", f"{soft:,} open files, fewer than max_connections {options.max_connections:,} needs", remedy, **data
    )


def ports(options: Options) -> Iterator[CheckFinding]:
    """Check that the ports of the listeners are free, or name the program that has them."""
    listeners = [
        ("clients", options.host, options.port),
        ("monitoring", options.http_host or options.host, options.http_port),
        ("monitoring with TLS", options.http_host or options.host, options.https_port),
        ("cluster", options.cluster.host, options.cluster.port),
        ("leaf nodes", options.leafnodes.host, options.leafnodes.port),
        ("WebSocket", options.websocket.host, options.websocket.port),
    ]
    free = []
    for what, host, port in listeners:
        if port in (0, FREE_PORT):
            continue
        error = _trouble_of(host, port)
        if error is None:
            free.append(f"{port} ({what})")
            continue
        reason = reason_of(error).lower()
        if error.errno != errno.EADDRINUSE:
            remedy = (
                "choose a port above 1023, or give the server CAP_NET_BIND_SERVICE"
                if isinstance(error, PermissionError)
                else "choose an address of this machine, or 0.0.0.0"
            )
            yield _fail("ports", f"port {port} ({what}) on {host}: {reason}", remedy, port=port)
            continue
        holder = _holder(port)
        if holder is not None and holder[1]:
            yield _ok("ports", f"port {port} ({what}) is that of a running server, process {holder[0]}", port=port)
        else:
            by = f" by process {holder[0]} ({holder[2]})" if holder is not None else ""
            remedy = f"stop that program, or choose another port for {what}"
            yield _fail("ports", f"port {port} ({what}) on {host}: {reason}{by}", remedy, port=port)
    if free:
        yield _ok("ports", f"free: {', '.join(free)}")


def _trouble_of(host: str, port: int) -> OSError | None:
    """Return the error of listening at an address, or None."""
    host = host or "0.0.0.0"
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error
    return None


def _holder(port: int) -> tuple[int, bool, str] | None:
    """Return (pid, is a NATS server, program) of the process that listens on a port; None if it cannot be found."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as lines:
            for fields in (line.split() for line in lines):
                if len(fields) > 9 and fields[3] == "0A" and fields[1].endswith(f":{port:04X}"):
                    inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return None
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{descriptor}") in inodes:
                    return (int(pid), *_program(pid))
    return None


def _program(pid: str) -> tuple[bool, str]:
    """Return (is a NATS server, name) of a process. Its arguments may have passwords and are not shown."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = [os.path.basename(word.decode("utf-8", "replace")) for word in file.read().split(b"\0")[:3]]
    ours = any(word in ("lakestream", "nats-server", "lakestream.cli.main") for word in words)
    return ours, words[0] if words else "?"


# ---------------------------------------------------------------------------- certificates


def certificates(options: Options) -> Iterator[CheckFinding]:
    """Check when the certificates of the configuration expire."""
    looked = set()
    for what, file in _certificate_files(options):
        if file and file not in looked:
            looked.add(file)
            yield _certificate(what, file)
    if not looked:
        yield _ok("tls", "no certificates are configured")


def _certificate_files(options: Options) -> Iterator[tuple[str, str]]:
    blocks: list[tuple[str, TlsOptions | RemoteTls | None]] = [
        ("clients", options.tls),
        ("cluster", options.cluster.tls),
        ("leaf nodes", options.leafnodes.tls),
        ("WebSocket", options.websocket.tls),
    ]
    blocks += [(f"remote {remote.name}", remote.tls) for remote in options.remotes]
    blocks += [(f"leaf remote {each.dial.urls[0].shown}", each.dial.tls) for each in options.leafnodes.remotes]
    for what, tls in blocks:
        if tls is not None:
            yield what, tls.cert_file
            yield f"authorities of {what}", tls.ca_file
            for cert, _ in tls.certs if isinstance(tls, TlsOptions) else ():
                yield what, cert


def _certificate(what: str, file: str) -> CheckFinding:
    from cryptography import x509

    try:
        with open(file, "rb") as stream:
            found = x509.load_pem_x509_certificates(stream.read())
    except (OSError, ValueError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        return _fail("tls", f"{what}: {file}: {reason}", "name a PEM file with a certificate")
    now = datetime.datetime.now(datetime.UTC)
    first = min(found, key=lambda each: each.not_valid_after_utc)
    left = (first.not_valid_after_utc - now).total_seconds() / 86_400
    day = first.not_valid_after_utc.date().isoformat()
    data = {"file": file, "expires": first.not_valid_after_utc.isoformat(), "days": round(left, 1)}
    renew = f"renew {file}, then reload the server (`lakestream serve -sl reload=PID`)"
    if left < 0:
        return _fail("tls", f"{what}: {file} expired on {day}", renew, **data)
    if any(each.not_valid_before_utc > now for each in found):
        return _fail("tls", f"{what}: {file} is not valid yet", "check the clock, or wait until it is", **data)
    if left < CERTIFICATE_DAYS:
        return _warn("tls", f"{what}: {file} expires in {left:.0f} days, on {day}", renew, **data)
    return _ok("tls", f"{what}: {file} is valid until {day}", **data)
