"""Amazon S3 and stores that speak its protocol.

Belongs here: settings under the names of the AWS tools (AWS_ENDPOINT_URL, AWS_REGION), so that every client uses the
same store. Credentials are not among them: object_store and the AWS SDK find them on each machine, in its environment
(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), by a web identity, from the container or the instance;
those that Spark would copy from the environment into its own configuration are blanked out.

Source: Amazon S3 API, "Conditional writes" (If-None-Match, If-Match), "ListObjectsV2".
"""

from __future__ import annotations

import os
from typing import Any

from lakestream.lake.errors import UnsupportedLake
from lakestream.lake.storage.clouds import urls
from lakestream.lake.storage.clouds.cloud import Cloud, Environment

CREDENTIALS_CHAIN = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
DEFAULT_REGION = "us-east-1"

SETTINGS = {
    "spark.hadoop.fs.s3a.aws.credentials.provider": CREDENTIALS_CHAIN,
    # The default read-ahead needs more memory than a small driver has.
    "spark.hadoop.fs.s3a.input.stream.type": "classic",
    # A driver that waits for minutes has lost its lease by then, and retries by itself.
    "spark.hadoop.fs.s3a.connection.establish.timeout": "10s",
    "spark.hadoop.fs.s3a.attempts.maximum": "4",
    "spark.hadoop.fs.s3a.retry.limit": "4",
    # By default it takes twenty answers 503, and waits twice as long after each: in the end for hours.
    "spark.hadoop.fs.s3a.retry.throttle.limit": "4",
}
"""Settings of every Spark over S3; spark_conf/cluster has the same."""

_COPIED = (
    "fs.s3.awsAccessKeyId",
    "fs.s3.awsSecretAccessKey",
    "fs.s3n.awsAccessKeyId",
    "fs.s3n.awsSecretAccessKey",
    "fs.s3a.access.key",
    "fs.s3a.secret.key",
    "fs.s3a.session.token",
)


class S3(Cloud):
    """Amazon S3."""

    name = "s3"
    scheme = urls.S3
    revision = "e_tag"
    credentials = "AWS_ACCESS_KEY_ID or the instance's role"
    absent = ("169.254.169.254", "MissingAccessKey", "MissingSecret", "Missing Access")
    insecure = "AWS_ALLOW_HTTP"
    address = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL"

    def endpoint(self, environ: Environment | None = None) -> str | None:
        environ = os.environ if environ is None else environ
        found = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
        if not found:
            return None
        if "@" in found:
            raise UnsupportedLake("AWS_ENDPOINT_URL", "credentials belong in AWS_ACCESS_KEY_ID and so on, not here")
        return found.rstrip("/")

    def is_virtual_hosted(self, environ: Environment) -> bool:
        """Return True if the bucket is part of the host's name at an endpoint of one's own."""
        return environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("1", "true", "yes")

    def region(self, environ: Environment) -> str:
        """Return the bucket's region; "" when it is not known."""
        found = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
        return found or (DEFAULT_REGION if self.endpoint(environ) is not None else "")

    def store(self, authority: str, client: Any, retry: Any) -> Any:
        from obstore.store import S3Store

        return S3Store(authority, client_options=client, retry_config=retry)

    def spark_path(self, path: str) -> str:
        return "s3a://" + path.removeprefix("s3://")

    def spark_settings(self, environ: Environment | None = None) -> dict[str, str]:
        environ = os.environ if environ is None else environ
        found = dict(SETTINGS)
        found.update({f"spark.hadoop.{name}": "" for name in _COPIED})
        where = self.endpoint(environ)
        if where is not None:
            found["spark.hadoop.fs.s3a.endpoint"] = where
            found["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(where.startswith("https:")).lower()
            found["spark.hadoop.fs.s3a.path.style.access"] = str(not self.is_virtual_hosted(environ)).lower()
        if region := self.region(environ):
            found["spark.hadoop.fs.s3a.endpoint.region"] = region
        return found
