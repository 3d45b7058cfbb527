"""Google Cloud Storage.

Belongs here: settings that follow from the environment. Credentials are Application Default Credentials in every
client: the file that GOOGLE_APPLICATION_CREDENTIALS names (a service account's key), that of `gcloud auth
application-default login`, or the machine's service account.

Source: Cloud Storage XML API, "x-goog-if-generation-match"; "Request preconditions".
"""

from __future__ import annotations

import os
from typing import Any

from lakestream.lake.errors import UnsupportedLake
from lakestream.lake.storage.clouds import urls
from lakestream.lake.storage.clouds.cloud import Cloud, Environment

SETTINGS = {
    "spark.hadoop.fs.gs.impl": "org.apache.hadoop.fs.gs.GoogleHadoopFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.gs.impl": "org.apache.hadoop.fs.gs.Gs",
    "spark.hadoop.fs.gs.auth.type": "APPLICATION_DEFAULT",
}
"""Settings of every Spark over Google Cloud Storage; spark_conf/cluster has the same."""


class Gcs(Cloud):
    """Google Cloud Storage."""

    name = "gcs"
    scheme = urls.GCS
    revision = "version"
    credentials = "GOOGLE_APPLICATION_CREDENTIALS or the instance's service account"
    absent = ("169.254.169.254", "metadata.google.internal", "/computeMetadata/")
    insecure = "GOOGLE_ALLOW_HTTP"
    address = "GOOGLE_APPLICATION_CREDENTIALS"

    def endpoint(self, environ: Environment | None = None) -> str | None:
        environ = os.environ if environ is None else environ
        found = environ.get("GOOGLE_BASE_URL")
        if found and "@" in found:
            raise UnsupportedLake("GOOGLE_BASE_URL", "credentials belong in GOOGLE_APPLICATION_CREDENTIALS, not here")
        return found.rstrip("/") if found else None

    def store(self, authority: str, client: Any, retry: Any) -> Any:
        from obstore.store import GCSStore

        where = self.endpoint()
        config: Any = {} if where is None else {"base_url": where}
        return GCSStore(authority, config=config, client_options=client, retry_config=retry)

    def spark_path(self, path: str) -> str:
        return path

    def spark_settings(self, environ: Environment | None = None) -> dict[str, str]:
        self.endpoint(environ)
        return dict(SETTINGS)

    def delta_options(self) -> dict[str, str]:
        where = self.endpoint()
        found = {} if where is None else {"google_base_url": where}
        return found | ({"allow_http": "true"} if self.allows_http() else {})
