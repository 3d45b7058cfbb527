"""Settings of S3 clients for a lake in an object store.

Belongs here: the settings of Hadoop's S3 client (s3a) that follow from the environment, under the names of the AWS
tools (AWS_ENDPOINT_URL, AWS_REGION), so that Spark uses the same store as object_storage.py. Credentials are not among
them: the AWS SDK finds them on each machine, in its environment or from its instance, and those that Spark would copy
from the environment into its own configuration are blanked out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from lakestream.lake.errors import UnsupportedLake

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
}
"""Settings of every Spark over an object store; spark_conf/cluster has the same."""

_COPIED = (
    "fs.s3.awsAccessKeyId",
    "fs.s3.awsSecretAccessKey",
    "fs.s3n.awsAccessKeyId",
    "fs.s3n.awsSecretAccessKey",
    "fs.s3a.access.key",
    "fs.s3a.secret.key",
    "fs.s3a.session.token",
)


def settings(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return Spark settings for a lake in an object store.

    Args:
        environ: the environment, `os.environ` when not given.

    Raises:
        UnsupportedLake: the endpoint carries credentials.
    """
    environ = os.environ if environ is None else environ
    found = dict(SETTINGS)
    found.update({f"spark.hadoop.{name}": "" for name in _COPIED})
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    where = endpoint(environ)
    if where is not None:
        found["spark.hadoop.fs.s3a.endpoint"] = where
        found["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(where.startswith("https:")).lower()
        virtual = environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("1", "true", "yes")
        found["spark.hadoop.fs.s3a.path.style.access"] = str(not virtual).lower()
        region = region or DEFAULT_REGION
    if region:
        found["spark.hadoop.fs.s3a.endpoint.region"] = region
    return found


def endpoint(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the object store's address; None for Amazon's own.

    Raises:
        UnsupportedLake: the address carries credentials.
    """
    environ = os.environ if environ is None else environ
    found = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    if not found:
        return None
    if "@" in found:
        raise UnsupportedLake("AWS_ENDPOINT_URL", "credentials belong into AWS_ACCESS_KEY_ID and the like, not here")
    return found.rstrip("/")
