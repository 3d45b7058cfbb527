"""S3-compatible server process for tests and benchmarks.

The server is moto, which implements conditional writes, multipart uploads and listings as Amazon documents them. It
keeps its objects in memory.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import urllib.request
from typing import Any

from tests.store_server import StoreServer

_PROGRAM = """
import logging, sys, time
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
print(port, flush=True)
sys.stdin.read()
server.stop()
"""

AWS_VARIABLES = ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN")
"""Variables that could direct a client to another server or account; `environ` removes them."""


class S3Server(StoreServer):
    """S3 server with one bucket and generated credentials."""

    bucket = "lakes"
    program = _PROGRAM
    others = AWS_VARIABLES

    def __init__(self) -> None:
        self.access_key = f"AKIA{secrets.token_hex(8).upper()}"
        self.secret_key = secrets.token_urlsafe(30)
        self.endpoint = ""
        self._process: subprocess.Popen[str] | None = None

    @property
    def secrets(self) -> tuple[str, str]:
        """Return the credentials, which must not appear in logs."""
        return self.access_key, self.secret_key

    def start(self) -> None:
        """Start the server on a free port and create the bucket."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{self.bucket}", method="PUT")).close()

    def stop(self) -> None:
        """Stop the server and discard its objects."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None

    def variables(self) -> dict[str, str]:
        """Return the environment variables with which a client reaches the server."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def url(self, name: str) -> str:
        """Return the URL of a lake root in the bucket."""
        return f"s3://{self.bucket}/{name}"

    def put(self, url: str) -> None:
        """Put an empty object, whose key may end in a slash."""
        path = url.removeprefix("s3://")
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{path}", data=b"", method="PUT")).close()


class GuardedS3Server(S3Server):
    """S3 server with IAM and STS, which refuses what a login may not do.

    moto looks at the policies of a role, but not at that of a session. Here that of the session counts, which narrows
    the role down.

    Attributes:
        role: ARN of a role that may do everything, and that the server's user may assume.
    """

    program = (
        """
from moto.iam.access_control import AssumedRoleAccessKey
from moto.sts.models import sts_backends

def of_session(key):
    roles = sts_backends[key.account_id][key.partition].assumed_roles
    return [role.policy for role in roles if role.access_key_id == key._access_key_id]

AssumedRoleAccessKey.collect_policies = of_session
"""
        + _PROGRAM
    )
    role = ""

    def start(self) -> None:
        super().start()
        import boto3

        def policy(**more: Any) -> str:
            return json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", **more}]})

        login = {"aws_access_key_id": self.access_key, "aws_secret_access_key": self.secret_key}
        iam = boto3.client("iam", region_name="us-east-1", endpoint_url=self.endpoint, **login)
        iam.create_user(UserName="lake")
        iam.put_user_policy(UserName="lake", PolicyName="all", PolicyDocument=policy(Resource="*"))
        key = iam.create_access_key(UserName="lake")["AccessKey"]
        self.access_key, self.secret_key = key["AccessKeyId"], key["SecretAccessKey"]
        trust = policy(Principal={"AWS": "*"})
        self.role = iam.create_role(RoleName="readers", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
        url, kind = f"{self.endpoint}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(url, b"0", kind, method="POST")).close()
