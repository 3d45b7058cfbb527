"""The flush request, by which readers have a server stage what it has.

Belongs here: its subject and its answer, the files that name the servers of a lake (`_servers/`), and logins to these.
packages/client has the client.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.storage import paths
from lakestream.lake.storage.storage import Storage
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder

if TYPE_CHECKING:
    import ssl

FLUSH, LAST = "$LAKE.API.FLUSH.", "$LAKE.API.LAST."
"""Followed by a stream's name: requests to stage what there is, and for the last message of each subject."""
RESPONSE_TYPE = "io.lakestream.api.v1.flush_response"
NOT_FOUND = 10059
FLUSH_WAIT_NS = 5_000_000_000
"""Time that a query over NATS, or of the console, waits for an answer (5 s)."""


class BadCredentials(LakeError):
    """Raised when the files of a login cannot be used."""


class ServerFile(msgspec.Struct, frozen=True):
    """Content of a file in `_servers/`: a server of the lake and its client URLs. It never has credentials."""

    server_id: str
    server_name: str
    urls: list[str]


_SERVER_FILE = JsonDecoder(ServerFile)


class ServerCredentials(msgspec.Struct, frozen=True):
    """Login to a server.

    Attributes:
        creds: path of a credentials file.
        nkey: path of a file with the seed of a user key.
        tls_cert, tls_key: PEM files of a client certificate.
        tls_ca: PEM file of the authorities that sign the server's certificate; "": the system's.
        tls_first: TLS begins before the server's greeting.
    """

    user: str = ""
    password: str = ""
    token: str = ""
    creds: str = ""
    nkey: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    tls_first: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ServerCredentials:
        """Return the credentials among the options of a data source or a command."""
        found = {name: options[name] for name in cls.__struct_fields__ if name != "tls_first" and options.get(name)}
        return cls(**found, tls_first=options.get("tls_first") == "true")

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for nats-py.

        Raises:
            BadCredentials: a file is missing, or a certificate does not load.
        """
        values = {
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "user_credentials": self.creds,
            "nkeys_seed": self.nkey,
        }
        found: dict[str, Any] = {name: value for name, value in values.items() if value}
        try:
            for file in filter(None, (self.creds, self.nkey)):
                os.stat(file)
            if self.tls_ca or self.tls_cert or self.tls_first:
                found["tls"] = self.tls_context()
                found["tls_handshake_first"] = self.tls_first
        except OSError as error:  # also ssl's errors
            files = ", ".join(filter(None, (self.creds, self.nkey, self.tls_ca, self.tls_cert, self.tls_key)))
            raise BadCredentials(f"cannot log in with {files}: {error}") from None
        return found

    def tls_context(self) -> ssl.SSLContext:
        """Return the context of TLS with these certificates."""
        import ssl

        context = ssl.create_default_context(cafile=self.tls_ca or None)
        if self.tls_cert:
            context.load_cert_chain(self.tls_cert, self.tls_key or None)
        return context


class _Error(msgspec.Struct):
    code: int
    err_code: int = 0
    description: str = ""


class FlushAnswer(msgspec.Struct, frozen=True):
    """Answer of a server: everything of stream `uid` through `last_index` (`last_seq`) is staged or in the table.

    `account`: the stream's account, which is the asking user's; "": the server is older than accounts. `lake_id`: the
    id of the server's lake; "": the server is older than lake ids.
    """

    stream: str = ""
    uid: str = ""
    last_index: int = 0
    last_seq: int = 0
    lake: str = ""
    server_id: str = ""
    account: str = ""
    lake_id: str = ""
    error: _Error | None = None

    @property
    def is_refusal(self) -> bool:
        """Return True if the answer is an error that no other server of the lake would answer differently."""
        return self.error is not None and self.error.code in (400, 404)


FLUSHED = JsonDecoder(FlushAnswer)


def named_servers(storage: Storage) -> list[ServerFile]:
    """Return the servers that the lake names, the one started last first.

    They may include servers that ended without removing their files. Unreadable files are left out.
    """
    entries = [entry for entry in storage.list(paths.servers(storage.root)) if entry.name.endswith(".json")]
    entries.sort(key=lambda entry: entry.modified_ns, reverse=True)
    found = (_read(storage, path) for path in [*(entry.path for entry in entries), paths.server_file(storage.root)])
    return [server for server in found if server is not None and server.urls]


def name_server(storage: Storage, server: ServerFile) -> None:
    """Write a server's file, replacing its earlier one."""
    storage.write(_file_of(storage, server), msgspec.json.encode(server))
    older = _read(storage, paths.server_file(storage.root))
    if older is not None and (older.server_name == server.server_name or set(older.urls) & set(server.urls)):
        storage.delete(paths.server_file(storage.root))


def unname_server(storage: Storage, server: ServerFile) -> None:
    """Remove a server's file, unless it is another server's by now."""
    path = _file_of(storage, server)
    found = _read(storage, path)
    if found is not None and found.server_id == server.server_id:
        storage.delete(path)


def _file_of(storage: Storage, server: ServerFile) -> str:
    """Return a server's file. A server without a configured name is named by its id, which is new at each start."""
    named = server.server_name != server.server_id
    return paths.server(storage.root, server.server_name if named else server.urls[0].rpartition("/")[2])


def _read(storage: Storage, path: str) -> ServerFile | None:
    try:
        return _SERVER_FILE.decode(storage.read(path))
    except (FileNotFoundError, NotADirectoryError, *DECODE_ERRORS):
        return None


def plain_url(url: str) -> str:
    """Return a URL without user information."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
