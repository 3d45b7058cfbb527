"""`lakestream rotate-key`: changing the master key of an encrypted store.

Belongs here: the command and its output. What it does is in log/sealing/stores.py and lake/staging/sealed.py.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from lakestream.cli.terminal import JsonOption, complain, print_json
from lakestream.config.errors import StartError
from lakestream.config.loading import load
from lakestream.config.options import Flags
from lakestream.lake.errors import LakeError
from lakestream.log.format.errors import LogError


def rotate_key(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The server's configuration, with key and prev_key.")],
    as_json: JsonOption = False,
) -> None:
    """Change the key of an encrypted store from `prev_key` to `key`, while its server is stopped.

    The keys of streams, and those beside staged segments, are wrapped anew; no data is rewritten. A start of the server
    does the same.
    """
    from lakestream.lake.staging import sealed
    from lakestream.log.sealing.keys import Keyring
    from lakestream.log.sealing.stores import rotate_store
    from lakestream.server.workers.stores import worker_numbers
    from lakestream.server.workers.worker import worker_store

    try:
        options = load(Flags(config=file))
        jetstream = options.jetstream
        if jetstream is None or not jetstream.prev_encryption_key:
            raise StartError(f"{file} has no jetstream {{ key, prev_key }}: set the new key and the one before")
        keys = Keyring([jetstream.encryption_key, jetstream.prev_encryption_key], jetstream.cipher)
        changed = 0
        for number in worker_numbers(jetstream.store_dir):
            changed += rotate_store(os.path.join(worker_store(jetstream.store_dir, number), "jetstream"), keys)
        staged = 0
        if options.lake.enabled:
            staged = sealed.rotate(options.lake.url or os.path.join(jetstream.store_dir, "lake"), keys)
    except (StartError, LogError, LakeError, OSError) as error:
        complain(error)
        raise typer.Exit(1) from None
    if as_json:
        print_json({"directories": changed, "staged": staged})
    else:
        print(f"the keys of {changed} directories and {staged} staging areas have the new key; prev_key can go")
