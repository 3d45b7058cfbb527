"""Who this server says it is where it is a client.

Belongs here: the part of CONNECT that proves who speaks, made of a remote's options and what the remote asks for in
INFO: user and password, a token, the signature of a key, credentials.
"""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

from lakestream.config.errors import reason_of
from lakestream.config.options import Address, RemoteOptions
from lakestream.protocol.nkeys import BadKeyError, credentials, key_pair


class LoginError(Exception):
    """A file with a key or credentials can not be used; the text says why."""


class Keys(NamedTuple):
    """What is signed with, and the token that goes with it; "" where there is none."""

    jwt: str = ""
    seed: str = ""


def read(options: RemoteOptions) -> Keys:
    """The keys of a remote, from the files as they are now: they are replaced before they run out. Blocks.

    Raises:
        LoginError: a file is not there, or it does not hold what it should.
    """
    file = options.credentials or options.nkey_file
    if not file:
        return Keys(seed=options.nkey)
    try:
        with open(file, "rb") as stream:
            content = stream.read()
        found = Keys(*credentials(content)) if options.credentials else Keys(seed=_seed(content))
        key_pair(found.seed)
    except OSError as error:
        raise LoginError(f"cannot read {file!r}: {reason_of(error)}") from error
    except BadKeyError as error:
        raise LoginError(f"{file!r}: {error}") from error
    return found


def _seed(content: bytes) -> str:
    """The first line of a file that may have comments."""
    lines = (line.strip() for line in content.decode("ascii", "replace").splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


def login(options: RemoteOptions, address: Address, keys: Keys, nonce: str) -> dict[str, Any]:
    """The fields of CONNECT. What the URL says goes before what the block says.

    Args:
        nonce: what INFO asks to have signed; "" where it does not.
    """
    if address.user and not address.password:
        return {"auth_token": address.user}
    if address.user:
        return {"user": address.user, "pass": address.password}
    if keys.seed:
        pair = key_pair(keys.seed)
        signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
        who = {"jwt": keys.jwt} if keys.jwt else {"nkey": pair.public}
        return who | ({"sig": signature} if nonce else {})
    if options.user:
        return {"user": options.user, "pass": options.password}
    return {"auth_token": options.token} if options.token else {}
