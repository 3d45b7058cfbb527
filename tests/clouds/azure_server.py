"""Azurite, an emulator of Azure Blob Storage, as a process for tests.

It is an npm package, pinned in azurite/package-lock.json, and keeps its blobs in memory. It has no endpoint of the data
lake (`dfs`), so it shows accounts without a hierarchical namespace only, and no tokens of Microsoft Entra.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import subprocess
from pathlib import Path

from tests.clients import npm
from tests.store_server import StoreServer

FOLDER = Path(__file__).parent / "azurite"
PROGRAM = FOLDER / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
_LISTENS = re.compile(r"successfully listens on http://127\.0\.0\.1:(\d+)")


class AzureServer(StoreServer):
    """Azurite with one container and a generated account key."""

    container = "lakes"
    account = "lakeaccount"
    others = (
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
        "AZURE_TENANT_ID",
        "AZURE_FEDERATED_TOKEN_FILE",
        "AZURE_STORAGE_USE_EMULATOR",
    )

    def __init__(self) -> None:
        self.key = base64.b64encode(secrets.token_bytes(64)).decode()
        self.endpoint = ""
        self._process: subprocess.Popen[str] | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.key,)

    def start(self) -> None:
        npm.install(FOLDER)
        options = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck"]
        self._process = subprocess.Popen(
            [str(npm.NODE), str(PROGRAM), *options, "--disableTelemetry", "--silent"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "AZURITE_ACCOUNTS": f"{self.account}:{self.key}"},
        )
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            said.append(line)
            if found := _LISTENS.search(line):
                self.endpoint = f"http://127.0.0.1:{found[1]}/{self.account}"
                break
        else:
            raise AssertionError("".join(said))
        self._create_container()

    def _create_container(self) -> None:
        """Create the container, with a request that is signed by the account's key."""
        import email.utils
        import hashlib
        import hmac
        import urllib.request

        date, version = email.utils.formatdate(usegmt=True), "2023-11-03"
        path = f"/{self.account}/{self.container}"
        lines = ["PUT", *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{version}"]
        signed = "\n".join([*lines, f"/{self.account}{path}", "restype:container"])
        digest = hmac.digest(base64.b64decode(self.key), signed.encode(), hashlib.sha256)
        headers = {
            "x-ms-date": date,
            "x-ms-version": version,
            "Authorization": f"SharedKey {self.account}:{base64.b64encode(digest).decode()}",
        }
        url = f"{self.endpoint}/{self.container}?restype=container"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)).close()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def variables(self) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": self.account,
            "AZURE_STORAGE_ACCOUNT_KEY": self.key,
            "AZURE_STORAGE_ENDPOINT": self.endpoint,
            "AZURE_ALLOW_HTTP": "true",
        }

    def url(self, name: str) -> str:
        return f"abfss://{self.container}@{self.account}.dfs.core.windows.net/{name}"
