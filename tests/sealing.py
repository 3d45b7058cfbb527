"""Encrypted stores in campaigns: with LAKESTREAM_TEST_KEY every simulated or failing store is an encrypted one.

Belongs here: wrapping the files of a node in a test that has no server process; tests/servers.py does it for servers.

With it, tests/servers.py gives all keys to programs that look into stores and lakes.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from lakestream.log.format.files import Files
from lakestream.log.sealing.files import SealedFiles
from lakestream.log.sealing.keys import Keyring, from_environment
from lakestream.log.sealing.stores import opened_store
from tests.servers import KEY


def files_of(store: Path) -> Files:
    """Return the files of a server's store directory, encrypted or not."""
    return opened_store(str(store / "jetstream"), Files(), from_environment())


def sealed(files: Files, root: str, name: str, life: int) -> Files:
    """Return the files of the store below `root`, encrypted with a key of its own if the campaign asks for it.

    Random bytes follow from `name` and `life`, another number at each start: a step does the same when it is repeated.
    """
    if not KEY:
        return files
    random = Random(f"{name} {life}").randbytes
    return SealedFiles(files, root, Keyring([f"{KEY}-{name}"], ("aes", "chachapoly")[life % 2], random))
