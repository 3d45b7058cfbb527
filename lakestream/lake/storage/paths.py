"""Paths of a lake.

Belongs here: every path under the lake's root, and the encoding of names in them. Nothing here touches a file.

    streams/<STREAM>                                          Delta table of a stream of the default account
    accounts/<ACCOUNT>/streams/<STREAM>                       the same for another account
    segments/<STREAM>/<uid>/<first>-<last>.seg                staged segments, named by their log indexes
    segments/<STREAM>/<uid>/stream.json                       the stream's identity
    segments/<STREAM>/<uid>/deleted                           marks a deleted stream
    segments/<STREAM>/<uid>/clone.json                        request: the stream's table begins as a clone
    segments/<STREAM>/<uid>/damaged.json                      request: repair the stream's table
    accounts/<ACCOUNT>/segments/<STREAM>/<uid>/...            the same for another account
    schemas/<NAME>/<version>.json                             version of a schema (lake/table/schema_files.py)
    accounts/<ACCOUNT>/schemas/<NAME>/<version>.json          the same for another account
    _compactor/                                               the compactor's streaming checkpoint
    _lake.json                                                the lake's id
    _servers/<node>.json                                      address of a running server of the lake
    _server.json                                              the same, of older releases
    _removed/                                                 tables that are being removed
"""

from __future__ import annotations

import hashlib
import os
import re
from urllib.parse import unquote, urlsplit

from lakestream.lake.errors import UnsupportedLake
from lakestream.lake.storage.clouds import urls
from lakestream.protocol.accounts import GLOBAL_ACCOUNT

DEFAULT_ACCOUNT = GLOBAL_ACCOUNT
STREAMS = "streams"
SEGMENTS = "segments"
ACCOUNTS = "accounts"
SCHEMAS = "schemas"
CHECKPOINT = "_compactor"
REMOVED = "_removed"
KEPT = "kept"
STREAM_FILE = "stream.json"
DELETED_FILE = "deleted"
CLONE_FILE = "clone.json"
LAKE_FILE = "_lake.json"
SERVERS = "_servers"
DAMAGED_FILE = "damaged.json"
SERVER_FILE = "_server.json"
TABLE_KEY = "_sealing.key"
"""File with the key of an encrypted table, in its directory. Delta's VACUUM leaves names that begin with `_`."""
LOCKS = "_locks"
CLONES = "_clones"
DIRECTORIES = frozenset({STREAMS, SEGMENTS, ACCOUNTS, SCHEMAS, SERVERS, REMOVED, KEPT, LOCKS, CLONES})
"""Directories that a lake may have in its root."""
MARKS = (LAKE_FILE, SERVER_FILE, STREAMS, SEGMENTS, ACCOUNTS, CHECKPOINT)
"""Files and directories in a root of which one at least says that it is a lake, also of an older release."""

MAX_NAME_BYTES = 240
"""Maximum length in bytes of a directory name made of a stream or account name; a longer one is cut and ends in its
hash."""

# Classes that name what they match, and not all beyond ASCII that they do not: 0.1 ms to compile in place of 4.
_UNSAFE = re.compile(r"[\x00-#%-,./:-@\[-^`{-\x7f]")
"""All of ASCII but letters, digits, `_`, `-` and `$`."""
_SPELLED = re.compile(r"~([0-9A-Fa-f]{2})")
_PERCENT = re.compile(r"%[0-9A-Fa-f]{2}")
_ODD = re.compile(r"[\x00-#%-,/:-<>-@\[-^`{-}\x7f]")
"""All of ASCII but letters, digits, `_`, `-`, `.`, `$`, `~` and `=`."""
_PLAIN = re.compile(r"^[A-Za-z0-9_\-.$=:/@]*$")
_SEGMENT = re.compile(r"^(\d{20})-(\d{20})\.seg$")


def directory_name(name: str) -> str:
    """Encode a stream or account name as one directory name.

    Letters, digits, `_`, `-`, `$` and everything beyond ASCII stand as they are; any other character becomes `~` and
    two hex digits, because `%`, `:`, `#`, `?` and blanks mean something to one or another of the tools that read Delta
    tables by path.
    """
    spelled = _UNSAFE.sub(lambda match: f"~{ord(match.group()):02X}", name)
    raw = spelled.encode("utf-8", "surrogatepass")
    if len(raw) <= MAX_NAME_BYTES:
        return spelled
    digest = hashlib.sha256(raw).hexdigest()[:32]
    return f"{raw[: MAX_NAME_BYTES - 34].decode('utf-8', 'ignore')}~~{digest}"


def name_of(directory: str) -> str:
    """Return the stream's or account's name that a directory is named after; a name that was cut stays so."""
    return _SPELLED.sub(lambda match: chr(int(match[1], 16)), directory)


def normalise(lake: str) -> str:
    """Return the lake's root as an absolute path without a trailing slash, or as a URL when it is not a directory."""
    if lake.startswith("/") and not lake.endswith("/") and "//" not in lake and "/." not in lake:
        return lake  # most are; a start asks for each stream
    if lake.startswith("file:"):
        return os.path.abspath(unquote(urlsplit(lake).path))
    if "://" in lake:
        return urls.canonical(lake)
    return os.path.abspath(os.path.expanduser(lake))


def is_local(root: str) -> bool:
    """Return True if a root, table or other path of a lake is on this machine's file system."""
    return "://" not in root


def is_plain(path: str) -> bool:
    """Return True if every tool spells a path or URL the same way, percent-encoded or not."""
    return _PLAIN.match(path) is not None


def root(lake: str) -> str:
    """Return the lake's root as an absolute path, or as a canonical URL of a cloud (clouds/urls.py).

    Raises:
        UnsupportedLake: an address of another kind, or one whose spelling some tool that reads tables would not keep.
    """
    found = normalise(lake)
    if is_local(found):
        return local_root(found)
    urls.check_authority(found)
    prefix = found.partition("://")[2].partition("/")[2]
    for part in prefix.split("/"):
        if prefix and (not part or part in (".", "..") or _ODD.search(part) or _PERCENT.search(part)):
            raise UnsupportedLake(found, f"{part!r} cannot be part of its prefix; letters, digits, _ - . $ ~ can")
    return found


def local_root(lake: str) -> str:
    """Return the lake's root as an absolute path, for operations that need a directory.

    Raises:
        UnsupportedLake: it is not a directory on this machine, or its path has a `%XX`, which deltalake would decode.
    """
    root = normalise(lake)
    if not is_local(root):
        address = root.partition("://")[0] + "://…"
        raise UnsupportedLake(address, "this needs a directory (a path or a file: URL)")
    if _PERCENT.search(root):
        raise UnsupportedLake(lake, "a path with a percent sign before two hex digits cannot hold Delta tables")
    return root


def table(lake: str, stream: str, account: str = DEFAULT_ACCOUNT) -> str:
    """Return the path or URL of a stream's Delta table."""
    return f"{_account_root(lake, account)}/{STREAMS}/{directory_name(stream)}"


def parents(lake: str, account: str = DEFAULT_ACCOUNT) -> tuple[str, str]:
    """Return the directories that hold the tables, and the staging directories, of an account's streams."""
    root = _account_root(lake, account)
    return f"{root}/{STREAMS}", f"{root}/{SEGMENTS}"


def clone_entry(lake: str, table: str) -> str:
    """Return the path of a table's entry in the registry of clones, which is there if it is one."""
    return f"{lake}/{CLONES}/{hashlib.sha256(table.encode()).hexdigest()[:32]}.json"


def staging(lake: str, stream: str, uid: str, account: str = DEFAULT_ACCOUNT) -> str:
    """Return the staging directory of one stream. `uid` tells it from earlier streams of the same name."""
    return f"{_account_root(lake, account)}/{SEGMENTS}/{directory_name(stream)}/{uid}"


def stream_of(lake: str, path: str) -> tuple[str, str]:
    """Return (account, stream) of a path inside a stream's table or staging directory; names that were cut stay so."""
    parts = path.removeprefix(f"{normalise(lake)}/").split("/")
    account = DEFAULT_ACCOUNT
    if parts[0] == ACCOUNTS:
        account, parts = name_of(parts[1]), parts[2:]
    return account, name_of(parts[1])


def lake_of(table: str) -> tuple[str, str]:
    """Return (lake's root, account) of a stream's table, also of a retained one."""
    parts = table.split("/")[:-2]
    if len(parts) > 2 and parts[-2] == ACCOUNTS:
        return "/".join(parts[:-2]), name_of(parts[-1])
    return "/".join(parts), DEFAULT_ACCOUNT


def segment_name(first_index: int, last_index: int) -> str:
    """Return the file name of a staged segment that holds the log entries `first_index` to `last_index`."""
    return f"{first_index:020d}-{last_index:020d}.seg"


def parse_segment_name(name: str) -> tuple[int, int] | None:
    """Return (first_index, last_index) of a staged segment's file name; None for any other file."""
    match = _SEGMENT.match(name)
    return (int(match.group(1)), int(match.group(2))) if match else None


def checkpoint(root: str) -> str:
    """Return the directory of the compactor's streaming checkpoint."""
    return f"{root}/{CHECKPOINT}"


def lake_file(lake: str) -> str:
    """Return the path of the file with the lake's id."""
    return f"{normalise(lake)}/{LAKE_FILE}"


def servers(lake: str) -> str:
    """Return the directory of the files by which readers find the lake's servers."""
    return f"{normalise(lake)}/{SERVERS}"


def server(lake: str, node: str) -> str:
    """Return the path of one server's file; `node` names the server, also after a restart."""
    return f"{servers(lake)}/{directory_name(node)}.json"


def server_file(lake: str) -> str:
    """Return the path of the file by which readers found the server in releases that knew only one."""
    return f"{normalise(lake)}/{SERVER_FILE}"


def schemas(lake: str, account: str = DEFAULT_ACCOUNT) -> str:
    """Return the directory of an account's schemas."""
    return f"{_account_root(lake, account)}/{SCHEMAS}"


def schema(lake: str, name: str, version: int, account: str = DEFAULT_ACCOUNT) -> str:
    """Return the path of the document of one version of a schema."""
    return f"{schemas(lake, account)}/{directory_name(name)}/{version}.json"


def removed(lake: str, uid: str) -> str:
    """Return the path to which the table of a deleted stream is renamed before its files are deleted."""
    return f"{normalise(lake)}/{REMOVED}/{uid}"


def kept(lake: str, stream: str, uid: str, account: str = DEFAULT_ACCOUNT) -> str:
    """Return the path to which a retained table of a deleted stream is renamed when a new stream takes its name."""
    return f"{_account_root(lake, account)}/{KEPT}/{directory_name(stream)}-{uid}"


def _account_root(lake: str, account: str) -> str:
    root = normalise(lake)
    return root if account == DEFAULT_ACCOUNT else f"{root}/{ACCOUNTS}/{directory_name(account)}"
