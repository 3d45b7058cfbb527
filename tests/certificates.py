"""X.509 certificates for tests, made by code when a test needs them: nothing that is kept can expire.

What belongs here: an authority that writes certificates and keys as PEM files, and the certificates that tests of TLS
share, by name. Keys are elliptic (P-256): they are made in less than a millisecond.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import ipaddress
import re
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PLACE = "@certificates@"
"""Stands in a configuration for the directory of the certificates."""

_DAY = datetime.timedelta(days=1)
_BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
_ATTRIBUTES = {
    "C": NameOID.COUNTRY_NAME,
    "ST": NameOID.STATE_OR_PROVINCE_NAME,
    "L": NameOID.LOCALITY_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "CN": NameOID.COMMON_NAME,
    "DC": NameOID.DOMAIN_COMPONENT,
    "UID": NameOID.USER_ID,
    "SERIALNUMBER": NameOID.SERIAL_NUMBER,
    "EMAIL": NameOID.EMAIL_ADDRESS,
}
_TOGETHER = re.compile(r"\+(?=[A-Z]+=)")
_Key = ec.EllipticCurvePrivateKey


def name(*parts: str) -> x509.Name:
    """Return a distinguished name of `KEY=value` parts, in this order; `A=1+B=2` is one relative name of two values."""
    return x509.Name([x509.RelativeDistinguishedName([_attribute(p) for p in _TOGETHER.split(part)]) for part in parts])


def _attribute(part: str) -> x509.NameAttribute[str]:
    key, _, value = part.partition("=")
    return x509.NameAttribute(_ATTRIBUTES[key], value)


def _alternative(text: str) -> x509.GeneralName:
    kind, _, value = text.partition(":")
    match kind:
        case "DNS":
            return x509.DNSName(value)
        case "IP":
            return x509.IPAddress(ipaddress.ip_address(value))
        case "URI":
            return x509.UniformResourceIdentifier(value)
        case "email":
            return x509.RFC822Name(value)
    raise ValueError(text)


class Authority:
    """A certificate authority that writes what it issues into a directory.

    Args:
        directory: for the files; `<name>.pem` and `<name>.key` of each certificate.
        title: its common name, and the name of its file.
    """

    def __init__(self, directory: Path, title: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = name(f"CN={title}")
        self.path = directory / f"{title}.pem"
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        certificate = self._builder(self._name, self._key, (-1, 3650)).add_extension(constraints, critical=True)
        self.path.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: tuple[float, float]
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + days[0] * _DAY)
            .not_valid_after(now + days[1] * _DAY)
        )

    def issue(
        self,
        title: str,
        subject: Sequence[str] = (),
        alternatives: Sequence[str] = (),
        *,
        days: tuple[float, float] = (-1, 365),
        usages: Sequence[x509.ObjectIdentifier] = _BOTH,
    ) -> None:
        """Write a certificate and its key.

        alternatives: subject alternative names such as `DNS:localhost` or `email:a@b`.
        days: from when until when it is valid, from now on.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(name(*subject), key, days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if alternatives:
            names = x509.SubjectAlternativeName([_alternative(text) for text in alternatives])
            builder = builder.add_extension(names, critical=False)
        (self._directory / f"{title}.pem").write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        (self._directory / f"{title}.key").write_bytes(_key_pem(key))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: _Key, password: bytes = b"") -> bytes:
    how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


HERE = ("DNS:localhost", "IP:127.0.0.1", "IP:::1")
USERS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "ann": (("CN=ann",), ("email:ann@example.com",)),
    "two_emails": (("CN=two",), ("email:first@example.com", "email:second@example.com")),
    "dns": (("CN=dns",), ("DNS:host.example.com", "DNS:other.example.com")),
    "uri": (("CN=uri",), ("URI:spiffe://example.com/service",)),
    "subject": (("C=DE", "O=Example", "OU=First", "CN=subject"), ()),
    "everything": (
        ("O=Example", "CN=everything"),
        ("email:every@example.com", "DNS:every.example.com", "URI:spiffe://example.com/every"),
    ),
    "components": (("DC=com", "DC=example", "OU=Users", "CN=components"), ()),
    "several": (("CN=several+UID=7",), ()),
    "odd": (('O=Smith, "J" + Sons', "CN= odd#;<>\\ "), ()),
    "long": (("C=DE", "ST=Bavaria", "L=Munich", "O=Example", "OU=a", "OU=b", "SERIALNUMBER=5", "CN=long"), ()),
    "nameless": ((), ()),
    "stranger": (("CN=nobody knows me",), ()),
}
"""Client certificates: subject and alternative names."""


def write(directory: Path) -> None:
    """Write the certificates that tests share. They are made once in a process: that takes 30 times as long.

    `ca` signs the servers (`server`, `second`, `inner` for a.example, `expired`) and the clients of `USERS`; `other` is
    an authority that nobody trusts, which signs `foreign` and `impostor`.
    """
    directory.mkdir()
    for title, content in _shared().items():
        (directory / title).write_bytes(content)


@functools.cache
def _shared() -> dict[str, bytes]:
    """Make the files that tests share."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        ca, other = Authority(directory, "ca"), Authority(directory, "other")
        ca.issue("server", ["CN=localhost"], HERE)
        ca.issue("second", ["CN=second"], HERE)
        ca.issue("inner", ["CN=a.example"], ["DNS:a.example", "DNS:*.inner.example"])
        ca.issue("expired", ["CN=expired"], HERE, days=(-10, -1))
        ca.issue("only_server", ["CN=only"], HERE, usages=(ExtendedKeyUsageOID.SERVER_AUTH,))
        for title, (subject, alternatives) in USERS.items():
            ca.issue(title, subject, alternatives)
        ca.issue("late", ["CN=late"], ["email:ann@example.com"], days=(-10, -1))
        ca.issue("early", ["CN=early"], ["email:ann@example.com"], days=(1, 10))
        other.issue("foreign", ["CN=foreign"], HERE)
        other.issue("impostor", ["CN=ann"], ["email:ann@example.com"])
        (directory / "encrypted.key").write_bytes(_key_pem(ec.generate_private_key(ec.SECP256R1()), b"secret"))
        (directory / "empty.pem").write_bytes(b"")
        (directory / "garbage.pem").write_bytes(b"this is no certificate\n")
        (directory / "bundle.pem").write_bytes((directory / "server.pem").read_bytes() + ca.path.read_bytes())
        return {path.name: path.read_bytes() for path in directory.iterdir()}


def fingerprint(directory: Path, title: str) -> str:
    """Return the SHA-256 of a certificate's SubjectPublicKeyInfo in hexadecimal, as `pinned_certs` has it."""
    key = x509.load_pem_x509_certificate((directory / f"{title}.pem").read_bytes()).public_key()
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def client_context(directory: Path, certificate: str = "", *, trust: str = "ca") -> ssl.SSLContext:
    """Return a client's TLS settings.

    certificate: its own, if it has one. trust: the authority that it trusts; "": it believes every server.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if trust:
        context.load_verify_locations(directory / f"{trust}.pem")
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(directory / f"{certificate}.pem", directory / f"{certificate}.key")
    return context
