"""Keys of sealed files: master keys, the keys that they wrap, and the files of these.

Belongs here: everything that turns the text of a configuration into the key of one file. Nothing here knows which file
belongs to which stream.

    master key   text of the configuration (`jetstream { key }`); never stored
    scope key    32 random bytes for each stream, and for the rest of a store; stored wrapped by the master key
    file key     of one file: HKDF-Expand (RFC 5869) of the scope key over the file's header, which has a random id

A key file has the same content twice, COPY bytes apart, so that one flipped bit does not cost a stream:

    magic, u16 version, u16 flags, 8 bytes id of the master key, 16 bytes id of the key, 16 bytes salt, 12 bytes nonce,
    48 bytes the key under AES-256-GCM with the fields before it as associated data, u32 crc of all that

The master key wraps with HKDF(salt, text): each key file has a wrapping key of its own.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Protocol
from zlib import crc32

import msgspec

from lakestream.log.format.errors import LogError

SUFFIX = ".key"
"""Suffix of the files with keys of files that left their stream's directory; before it is the key's id."""
COPY = 4096
"""Distance of the two copies in bytes: no sector and no page holds both."""
VARIABLE = "LAKESTREAM_KEYS"
"""Environment variable with master keys, one a line, the newest first: how programs that read a lake get them."""
CIPHERS = {"chachapoly": 1, "aes": 2}
VERSION = 1
WHOLE = 1
"""Flag of a store's key: every file of the store is sealed."""

_MAGIC = b"LKSEALKY"
_HEAD = struct.Struct("<8sHH8s16s16s12s")
_SIZE = _HEAD.size + 48 + 4


class WrongKey(LogError):
    """Raised when a store or a key is sealed with a master key that is not configured."""


class Aead(Protocol):
    """An authenticated cipher with one key, as `cryptography` has them."""

    def encrypt(self, nonce: bytes, data: bytes | memoryview, associated_data: bytes | None) -> bytes:
        """Return the ciphertext and its tag of 16 bytes."""

    def decrypt(self, nonce: bytes, data: bytes | memoryview, associated_data: bytes | None) -> bytes:
        """Return the plain text. Raise InvalidTag."""


class ScopeKey(msgspec.Struct, frozen=True):
    """The key of all files of a stream, or of the rest of a store."""

    id: bytes
    secret: bytes

    def aead(self, cipher: int, header: bytes) -> Aead:
        """Return the cipher of the file with this header."""
        return _aead(cipher, hmac.digest(self.secret, b"lakestream file" + header + b"\1", "sha256"))


class KeyRecord(msgspec.Struct, frozen=True):
    """Content of a key file whose key could be unwrapped. `current`: by the newest master key."""

    key: ScopeKey
    flags: int
    current: bool


class Keyring:
    """The master keys of a process.

    Args:
        masters: their texts, the newest first; it wraps.
        cipher: of new files, a key of CIPHERS.
        random: returns so many unpredictable bytes.
    """

    def __init__(
        self, masters: Sequence[str], cipher: str = "chachapoly", random: Callable[[int], bytes] = os.urandom
    ) -> None:
        self._masters = {_master_id(text): text.encode() for text in reversed(masters)}
        self._newest = _master_id(masters[0])
        self.cipher = CIPHERS[cipher]
        self.random = random

    def new(self) -> ScopeKey:
        return ScopeKey(self.random(16), self.random(32))

    def wrap(self, key: ScopeKey, flags: int = 0) -> bytes:
        """Return the content of a key file, wrapped by the newest master key."""
        salt, nonce = self.random(16), self.random(12)
        head = _HEAD.pack(_MAGIC, VERSION, flags, self._newest, key.id, salt, nonce)
        copy = head + _wrapping(self._masters[self._newest], salt).encrypt(nonce, key.secret, head)
        copy += crc32(copy).to_bytes(4, "little")
        return copy.ljust(COPY, b"\0") + copy

    def unwrap(self, path: str, content: bytes) -> KeyRecord:
        """Return the key in a key file. Raise WrongKey; LogError if neither copy is intact."""
        from cryptography.exceptions import InvalidTag

        for at in (0, COPY):
            copy = content[at : at + _SIZE]
            if not _is_intact(copy):
                continue
            _magic, version, flags, master, key_id, salt, nonce = _HEAD.unpack_from(copy)
            if version != VERSION:
                raise LogError(f"{path} has version {version}, this release reads {VERSION}: run a newer lakestream")
            text = self._masters.get(master)
            if text is None:
                raise WrongKey(
                    f"{path} was sealed with another key (its id is {master.hex()}, the configured one is "
                    f"{self._newest.hex()}); set jetstream {{ key }} to that key, or prev_key to change it"
                )
            try:
                secret = _wrapping(text, salt).decrypt(nonce, copy[_HEAD.size : -4], copy[: _HEAD.size])
            except InvalidTag:
                continue
            return KeyRecord(ScopeKey(key_id, secret), flags, master == self._newest)
        raise LogError(f"{path} is damaged: neither of its two copies holds a key; restore it from a backup")


def id_in(content: bytes) -> bytes:
    """Return the id of the key in a key file, or b"" if neither copy is intact."""
    for at in (0, COPY):
        copy = content[at : at + _SIZE]
        if _is_intact(copy):
            found: bytes = _HEAD.unpack_from(copy)[4]
            return found
    return b""


def share(masters: Sequence[str], environment: MutableMapping[str, str] = os.environ) -> None:
    """Let this process, and those that it starts, read what is sealed with these keys in a lake."""
    there = environment.get(VARIABLE, "").split("\n")
    environment[VARIABLE] = "\n".join(dict.fromkeys(text for text in [*masters, *there] if text))


def from_environment(environment: Mapping[str, str] = os.environ) -> Keyring | None:
    """Return the master keys in VARIABLE, or None if there are none."""
    texts = [line for line in environment.get(VARIABLE, "").split("\n") if line]
    return Keyring(texts) if texts else None


def _is_intact(copy: bytes) -> bool:
    return len(copy) == _SIZE and copy.startswith(_MAGIC) and crc32(copy[:-4]) == int.from_bytes(copy[-4:], "little")


def _master_id(text: str) -> bytes:
    return hmac.digest(text.encode(), b"lakestream master key id", "sha256")[:8]


def _wrapping(master: bytes, salt: bytes) -> Aead:
    """Return the cipher that wraps with a master key: HKDF-SHA256 of it."""
    extracted = hmac.digest(salt, master, "sha256")
    return _aead(CIPHERS["aes"], hmac.digest(extracted, b"lakestream wrap\1", "sha256"))


def _aead(cipher: int, key: bytes) -> Aead:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305  # only where files are sealed

    return AESGCM(key) if cipher == CIPHERS["aes"] else ChaCha20Poly1305(key)
