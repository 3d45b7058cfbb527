"""The directories of the workers' streams.

Belongs here: moving streams between these directories before the workers start: into those that have a worker, and so
that each has as many as the others. A move is one rename; a kill between two of them leaves every stream in one place.

    <store_dir>/jetstream               the first worker, and a server without workers
    <store_dir>/workers/<n>/jetstream   the others
"""

from __future__ import annotations

import contextlib
import os
import shutil

import msgspec

from lakestream.config.errors import StartError
from lakestream.config.options import JetStreamOptions
from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files
from lakestream.log.store.journal import KEY
from lakestream.log.store.root import DORMANT, GONE, INCOMING, RESERVED, STREAMS, StoreRoot, move
from lakestream.server.workers.worker import WORKERS, worker_store


def distribute(options: JetStreamOptions, count: int) -> list[str]:
    """Move streams to the directories of the first `count` workers, evenly. Block; no worker may run.

    Returns:
        A line for the log about each stream that was moved.

    Raises:
        StartError: another server uses a directory, or two of them have a stream of the same name.
    """
    store_dir, lines = options.store_dir, list[str]()
    known = worker_numbers(store_dir)
    if known == [0] and count == 1:
        return []
    from lakestream.server.jetstream import store_files  # loads all of JetStream

    roots: dict[int, StoreRoot] = {}
    try:
        for index in sorted({*known, *range(count)}):
            own = msgspec.structs.replace(options, store_dir=worker_store(store_dir, index))
            files = store_files(own, None, lines.append)
            roots[index] = StoreRoot.open(os.path.join(own.store_dir, "jetstream"), files)
        streams = {index: _streams(root.path) for index, root in roots.items()}
        _check(roots, streams)
        lines += [
            line for source, target, names in _plan(streams, count) for line in _move(roots, source, target, names)
        ]
    except (LogError, OSError) as error:
        raise StartError(f"Can't start JetStream: the directories of the workers cannot be used: {error}") from error
    finally:
        for root in roots.values():
            root.close()
    for index in known:
        if index >= count:
            _remove(store_dir, index)
    return lines


Name = tuple[str, str]
"""The directory names of an account and of a stream in it."""


def worker_numbers(store_dir: str) -> list[int]:
    """Return the numbers of the workers that have a directory."""
    try:
        names = os.listdir(os.path.join(store_dir, WORKERS))
    except FileNotFoundError:
        names = []
    return sorted({0, *(int(name) for name in names if name.isdecimal())})


def _streams(path: str) -> list[Name]:
    """Return the streams in a store, and the directories of deleted ones that the lake still needs."""
    found: list[Name] = []
    for account in sorted(os.listdir(path)):
        base = os.path.join(path, account, STREAMS)
        if account.partition(".")[0] not in RESERVED and os.path.isdir(base):
            found += [(account, name) for name in sorted(os.listdir(base)) if not name.endswith(INCOMING)]
    return found


def _check(roots: dict[int, StoreRoot], streams: dict[int, list[Name]]) -> None:
    seen: dict[Name, int] = {}
    for index, names in streams.items():
        for name in names:
            other = seen.setdefault(name, index)
            if other != index:
                places = " and ".join(
                    os.path.join(roots[each].path, name[0], STREAMS, name[1]) for each in (other, index)
                )
                raise StartError(f"Can't start JetStream: {places} are streams of the same name: move one of them away")


def _plan(streams: dict[int, list[Name]], count: int) -> list[tuple[int, int, list[Name]]]:
    """Return the moves: from, to, what."""
    held = {index: list(streams.get(index, ())) for index in range(count)}
    moves: list[tuple[int, int, list[Name]]] = []

    def size(index: int) -> tuple[int, int]:
        return sum(GONE not in name for _, name in held[index]), index

    for index, names in streams.items():
        for name in names if index >= count else ():
            target = min(held, key=size)
            held[target].append(name)
            moves.append((index, target, [name]))
    while size(fullest := max(held, key=lambda each: size(each)[0]))[0] > size(emptiest := min(held, key=size))[0] + 1:
        name = next(each for each in reversed(held[fullest]) if GONE not in each[1])
        held[fullest].remove(name)
        held[emptiest].append(name)
        moves.append((fullest, emptiest, [name]))
    return moves


def _move(roots: dict[int, StoreRoot], source: int, target: int, names: list[Name]) -> list[str]:
    files, lines = Files(), []
    for account, stream in names:
        here, there = (os.path.join(roots[each].path, account, STREAMS, stream) for each in (source, target))
        move(files, here, there)
        if GONE not in stream:
            lines.append(f"stream {stream}: moved from worker {source} to worker {target}")
    return lines


def _remove(store_dir: str, index: int) -> None:
    """Remove the directory of a worker that is no more, unless something else lies there."""
    store = worker_store(store_dir, index)
    for _, folders, names in os.walk(store):
        if any(name not in ("VERSION", "LOCK", KEY, DORMANT) for name in names) or "aside" in folders:
            return
    shutil.rmtree(store, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.join(store_dir, WORKERS))
