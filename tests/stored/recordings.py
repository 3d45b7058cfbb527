"""Recorded directories: stores that a server wrote, packed with the facts that were read from it.

A recording is `<name>.tar.xz` beside this module: a directory `data` and the file `facts.json`. Delta logs may hold
absolute paths (a shallow clone names its origin's files, so a lake with clones must not be moved). The root is
therefore written as a placeholder when a recording is packed, and replaced with the new root when it is unpacked.
"""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent
PLACEHOLDER = b"@RECORDED-ROOT@"
CHECKPOINT = ".checkpoint.parquet"
TEXT = {".json", ".crc", ""}
"""Suffixes of text files in which the root is replaced. No other file may contain it."""


class NotMovable(Exception):
    """Raised when a binary file holds the absolute path of the recording's root."""


def archive(name: str) -> Path:
    """Return the path of a recording."""
    return HERE / f"{name}.tar.xz"


def pack(name: str, root: Path, facts: dict[str, Any]) -> int:
    """Write a recording of everything under `root`; return its size in bytes.

    Raises:
        NotMovable: a binary file contains the path of `root`.
    """
    with (
        lzma.open(archive(name), "wb", preset=9 | lzma.PRESET_EXTREME) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        _add(tar, tarfile.TarInfo("facts.json"), json.dumps(facts, sort_keys=True).encode())
        inodes: dict[int, str] = {}
        for path in sorted(root.rglob("*")):
            info = tar.gettarinfo(path, f"data/{path.relative_to(root)}")
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            if not path.is_file():
                tar.addfile(info)
                continue
            inode = path.stat().st_ino
            if inode in inodes:  # a staged segment is a hard link to one of the log
                info.type, info.linkname, info.size = tarfile.LNKTYPE, inodes[inode], 0
                tar.addfile(info)
                continue
            inodes[inode] = info.name
            info.type = tarfile.REGTYPE
            _add(tar, info, _moved(path, str(root).encode(), PLACEHOLDER))
    return archive(name).stat().st_size


def _add(tar: tarfile.TarFile, info: tarfile.TarInfo, data: bytes) -> None:
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _moved(path: Path, old: bytes, new: bytes) -> bytes:
    """Return the content of a file with the old root replaced by the new one."""
    data = path.read_bytes()
    if path.name.endswith(CHECKPOINT):
        return _moved_checkpoint(data, old.decode(), new.decode())
    if old not in data:
        return data
    if path.suffix not in TEXT:
        raise NotMovable(str(path))
    return data.replace(old, new)


def _moved_checkpoint(data: bytes, old: str, new: str) -> bytes:
    """Return a table's checkpoint with the paths replaced, or unchanged if it contains none of `old`."""
    table = pq.read_table(io.BytesIO(data))
    rows = table.to_pylist()
    changed = [
        row | {"add": row["add"] | {"path": row["add"]["path"].replace(old, new)}} if row["add"] else row
        for row in rows
    ]
    if changed == rows:
        return data
    written = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(changed, schema=table.schema), written, write_page_checksum=True)
    return written.getvalue()


def unpack(name: str, directory: Path) -> tuple[Path, dict[str, Any]]:
    """Unpack a recording into an empty directory; return its root there, and its facts."""
    with tarfile.open(archive(name), "r:xz") as tar:
        tar.extractall(directory, filter="data")
    root = directory / "data"
    for path in sorted(root.rglob("*")):
        if path.is_file() and (moved := _moved(path, PLACEHOLDER, str(root).encode())) != path.read_bytes():
            path.write_bytes(moved)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the old content
    return root, json.loads((directory / "facts.json").read_bytes())
