"""URLs of lakes in object stores.

Belongs here: the spellings that are accepted, and the canonical one that lakestream uses everywhere. Nothing here makes
a request or knows a lake's layout.

    canonical                                                 also accepted
    s3://bucket/prefix                                        s3a:// s3n://
    gs://bucket/prefix                                        gcs://
    abfss://container@account.dfs.core.windows.net/prefix     abfs://, and az://container/prefix with
                                                              AZURE_STORAGE_ACCOUNT_NAME
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from lakestream.lake.errors import UnsupportedLake

S3 = "s3"
GCS = "gs"
AZURE = "abfss"

SPELLINGS = {
    "s3": S3,
    "s3a": S3,
    "s3n": S3,
    "gs": GCS,
    "gcs": GCS,
    "abfss": AZURE,
    "abfs": AZURE,
    "az": AZURE,
    "azure": AZURE,
}
"""The canonical scheme of each accepted one."""
FORMS = "s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
"""The forms of URLs, for messages."""
ACCOUNT_VARIABLE = "AZURE_STORAGE_ACCOUNT_NAME"
AZURE_DOMAIN = "core.windows.net"

_BUCKET = re.compile(r"^[A-Za-z0-9][A-Za-z0-9.\-_]{1,254}$")
_CONTAINER = re.compile(r"^[a-z0-9$][a-z0-9$\-]{1,62}$")
_ACCOUNT = re.compile(r"^[a-z0-9]{3,24}$")
_HOST = re.compile(r"^([a-z0-9]{3,24})\.(?:dfs|blob)\.([a-z0-9.\-]+)$")


def canonical(url: str, environ: Mapping[str, str] | None = None) -> str:
    """Return a URL in the canonical spelling, without a trailing slash; one of an unknown kind with a small scheme.

    A URL az://container/prefix stays as it is when the environment names no account.

    Args:
        environ: the environment, `os.environ` when not given.
    """
    scheme, _, rest = url.partition("://")
    scheme, rest = scheme.lower(), rest.rstrip("/")
    known = SPELLINGS.get(scheme)
    if known != AZURE:
        return f"{known or scheme}://{rest}"
    authority, slash, path = rest.partition("/")
    container, at, host = authority.partition("@")
    if at:
        found = _HOST.match(host.lower())
        host = f"{found[1]}.dfs.{found[2]}" if found else host
    else:
        account = (os.environ if environ is None else environ).get(ACCOUNT_VARIABLE, "")
        if not _ACCOUNT.match(account):
            return f"az://{rest}"
        host = f"{account}.dfs.{AZURE_DOMAIN}"
    return f"{AZURE}://{container}@{host}{slash}{path}"


def check_authority(url: str) -> None:
    """Check the part of a canonical URL before its path.

    Raises:
        UnsupportedLake: it carries credentials, or cannot name a bucket; the text repeats no credentials.
    """
    scheme, _, rest = url.partition("://")
    authority = rest.partition("/")[0]
    if scheme == "az":
        if "@" in rest:
            raise _credentials(scheme)
        raise UnsupportedLake(
            url, f"set {ACCOUNT_VARIABLE}, or write {AZURE}://container@account.dfs.{AZURE_DOMAIN}/prefix"
        )
    if scheme not in (S3, GCS, AZURE):
        if "@" in rest:
            raise _credentials(scheme)
        raise UnsupportedLake(url, f"it must be a directory (a path or a file: URL), {FORMS}")
    name = authority
    if scheme == AZURE:
        name, _, host = authority.partition("@")
        if ":" in name or "@" in host:
            raise _credentials(scheme)
        if not _HOST.match(host):
            raise UnsupportedLake(
                f"{scheme}://{name}@…", f"write {AZURE}://container@account.dfs.{AZURE_DOMAIN}/prefix"
            )
    elif "@" in rest:
        raise _credentials(scheme)
    if not (_CONTAINER if scheme == AZURE else _BUCKET).match(name):
        kind = "container" if scheme == AZURE else "bucket"
        raise UnsupportedLake(url, f"{name!r} is not a valid {kind} name")


def account_of(authority: str) -> tuple[str, str, str]:
    """Return (container, account, domain) of a canonical URL's authority in Azure."""
    container, _, host = authority.partition("@")
    account, _, domain = host.partition(".dfs.")
    return container, account, domain


def _credentials(scheme: str) -> UnsupportedLake:
    return UnsupportedLake(f"{scheme}://…", "credentials belong in the environment, not into the address")
