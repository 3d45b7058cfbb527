"""Secrets in the repository: what scanners find in tracked files, and which of it is meant to be there.

    python -m tests.packages.secrets        print the list of findings as secrets.toml has it

Belongs here: the scans (detect-secrets, and forms of secrets, such as the seeds of nkeys, which it does not know) and
the list of accepted findings, each with a digest, so that another secret in the same place is a finding.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from detect_secrets import SecretsCollection
from detect_secrets.settings import transient_settings

ROOT = Path(__file__).resolve().parents[2]
ACCEPTED = Path(__file__).with_suffix(".toml")
FORMS = {
    "Seed of an nkey": re.compile(rb"\bS[UAOCNX][A-Z2-7]{56}\b"),
    "Private Key": re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/]{40}"),
    "JSON Web Token": re.compile(rb"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,}"),
    "AWS Access Key": re.compile(rb"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "Token of a host": re.compile(
        rb"\b(?:gh[pousr]_[A-Za-z0-9]{36}|glpat-[\w-]{20}|pypi-[\w-]{50,}|npm_[A-Za-z0-9]{36})"
    ),
}
"""Secrets that have a form of their own; they are looked for in all files, in a second."""
DETECTORS = (
    *("ArtifactoryDetector", "AWSKeyDetector", "AzureStorageKeyDetector", "BasicAuthDetector", "CloudantDetector"),
    *("DiscordBotTokenDetector", "GitHubTokenDetector", "GitLabTokenDetector", "IbmCloudIamDetector"),
    *(
        "IbmCosHmacDetector",
        "JwtTokenDetector",
        "KeywordDetector",
        "MailchimpDetector",
        "NpmDetector",
        "OpenAIDetector",
    ),
    *("PrivateKeyDetector", "PypiTokenDetector", "SendGridDetector", "SlackDetector", "SoftlayerDetector"),
    *("SquareOAuthDetector", "StripeDetector", "TelegramBotTokenDetector", "TwilioKeyDetector"),
)
"""All of detect-secrets but those by entropy, which find checksums, recordings and pictures, and public addresses."""


class Finding(NamedTuple):
    """A secret: the file, the kind, and the first 12 digits of its SHA-256."""

    file: str
    kind: str
    digest: str


def tracked() -> list[str]:
    """Return the tracked and the new files of the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def forms(files: list[str], root: Path = ROOT) -> set[Finding]:
    """Return the secrets in files below `root` that have a form of their own."""
    found = set()
    for name in files:
        content = (root / name).read_bytes()
        for kind, form in FORMS.items():
            found |= {Finding(name, kind, digest(secret)) for secret in form.findall(content)}
    return found


def scan(files: list[str], root: Path = ROOT) -> set[Finding]:
    """Return what detect-secrets finds in files below `root`. It takes a minute for the repository."""
    with transient_settings({"plugins_used": [{"name": name} for name in DETECTORS]}):
        collection = SecretsCollection(root=str(root))
        for name in files:
            collection.scan_file(name)
        found = [(name, secret.type, (secret.secret_value or "").encode()) for name, secret in collection]
    return {Finding(name, kind, digest(value)) for name, kind, value in found}


def digest(secret: bytes) -> str:
    """Return the digest of a secret by which it is accepted."""
    return hashlib.sha256(secret).hexdigest()[:12]


def accepted() -> tuple[set[Finding], dict[str, str]]:
    """Return the accepted findings, and the folders of which all is accepted, with their reasons."""
    listed = tomllib.loads(ACCEPTED.read_text())
    return {Finding(*line.split(" | ")) for line in listed["findings"]}, listed["folders"]


def unexpected(found: set[Finding]) -> Iterator[Finding]:
    """Yield the findings that are not accepted, in order."""
    known, folders = accepted()
    for each in sorted(found - known):
        if not any(Path(each.file).match(pattern) for pattern in folders):
            yield each


def main() -> None:
    """Print the findings."""
    folders = accepted()[1] if ACCEPTED.exists() else {}
    files = tracked()
    for each in sorted(forms(files) | scan(files)):
        if not any(Path(each.file).match(pattern) for pattern in folders):
            print(f'    "{" | ".join(each)}",')


if __name__ == "__main__":
    main()
