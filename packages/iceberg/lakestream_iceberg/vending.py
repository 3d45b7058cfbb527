"""Credentials with which a client reads the files of one table in an object store, and nothing else, for an hour.

Belongs here: the request to AWS STS, or to a store that speaks its protocol, the policy of a table, and the settings of
Iceberg's clients. The policy narrows a role down to the table's directory, so the role may read the whole lake.

Source: AWS STS API, "AssumeRole"; IAM, "Policies with variables and tags"; Iceberg REST catalog, `storage-credentials`.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import OrderedDict

import msgspec

from lakestream import extras
from lakestream.lake.errors import UnsupportedLake
from lakestream.lake.storage.clouds.s3 import S3

LIFE_S = 3600
"""Life of credentials (1 h): the most that STS gives to a role by way of another role."""
RENEWED_S = LIFE_S / 2
"""Life that is left at least of credentials that are given to another request."""
MAX_REMEMBERED = 1_000
"""Number of tables whose credentials are remembered; the oldest go."""
REQUEST_S = 5
"""Time for an answer of STS."""
_SPECIAL = re.compile(r"[*?$]")


class Vended(msgspec.Struct, frozen=True):
    """Credentials for a table. `prefix`: the URL of its directory; `expires_ms`: their end, ms since the epoch."""

    prefix: str
    config: dict[str, str]
    expires_ms: int


def policy(partition: str, prefix: str) -> str:
    """Return the policy that allows to read below a URL, as JSON.

    Args:
        partition: of AWS, such as `aws`.
        prefix: `s3://<bucket>/<directory>/`.
    """
    bucket, _, key = prefix.removeprefix("s3://").partition("/")
    key = _SPECIAL.sub(lambda found: f"${{{found[0]}}}", key) + "*"
    place = f"arn:{partition}:s3:::{bucket}"
    listing = {"StringLike": {"s3:prefix": [key]}}
    statements = [
        {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": [f"{place}/{key}"]},
        {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": [place], "Condition": listing},
    ]
    return msgspec.json.encode({"Version": "2012-10-17", "Statement": statements}).decode()


class Vending:
    """Gets credentials for tables. Used by several threads.

    Args:
        lake: the lake's root.
        role: ARN of the role; stores that have no roles take any.

    Raises:
        UnsupportedLake: the lake is not in S3.
        ExtraMissing: boto3 is not installed.
    """

    def __init__(self, lake: str, role: str) -> None:
        if not lake.startswith("s3://"):
            raise UnsupportedLake(lake, "--vend-role is for lakes in S3: leave it out")
        extras.require("catalogs", "--vend-role")
        import boto3
        from botocore.config import Config

        self._partition = role.split(":")[1] if role.startswith("arn:") else "aws"
        self._role, self._cloud = role, S3()
        config = Config(connect_timeout=REQUEST_S, read_timeout=REQUEST_S, retries={"max_attempts": 2})
        self._sts = boto3.client("sts", region_name=self._cloud.region(os.environ) or None, config=config)
        self._known: OrderedDict[str, Vended] = OrderedDict()
        self._guard = threading.Lock()

    def credentials(self, table: str) -> Vended:
        """Return credentials for the table at a URL. Raises OSError."""
        with self._guard:
            found = self._known.get(table)
        if found is None or found.expires_ms < (time.time() + RENEWED_S) * 1000:
            found = self._asked(f"{table}/")
            with self._guard:
                self._known[table] = found
                self._known.move_to_end(table)
                while len(self._known) > MAX_REMEMBERED:
                    self._known.popitem(last=False)
        return found

    def _asked(self, prefix: str) -> Vended:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self._sts.assume_role(
                RoleArn=self._role,
                RoleSessionName="lakestream-iceberg",
                DurationSeconds=LIFE_S,
                Policy=policy(self._partition, prefix),
            )["Credentials"]
        except (BotoCoreError, ClientError) as error:
            raise OSError(f"no credentials from STS for {self._role}: {error}") from None
        expires_ms = int(answer["Expiration"].timestamp() * 1000)
        config = {
            "s3.access-key-id": answer["AccessKeyId"],
            "s3.secret-access-key": answer["SecretAccessKey"],
            "s3.session-token": answer["SessionToken"],
            "s3.session-token-expires-at-ms": str(expires_ms),
        }
        return Vended(prefix, config | self._address(), expires_ms)

    def _address(self) -> dict[str, str]:
        """Return the settings by which a client finds the store."""
        found = {}
        if region := self._cloud.region(os.environ):
            found = {"client.region": region, "s3.region": region}
        if (endpoint := self._cloud.endpoint()) is not None:
            found["s3.endpoint"] = endpoint
            found["s3.path-style-access"] = str(not self._cloud.is_virtual_hosted(os.environ)).lower()
        return found
