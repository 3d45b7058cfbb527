"""Tests of `tls` blocks: their keys, and the texts of errors, which are nats-server's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lakestream.config.errors import StartError
from lakestream.config.options import SECOND, TlsOptions
from tests.certificates import write
from tests.unit.conf_files import Load

pytestmark = pytest.mark.unit

PIN = "a" * 64
PINS = "hex-encoded sha256 of DER encoded SubjectPublicKeyInfo"
PAIR = "error parsing X509 certificate/key pair"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of certificates."""
    directory = tmp_path_factory.mktemp("tls") / "certificates"
    write(directory)
    return directory


def tls(options: Load, inside: str) -> TlsOptions:
    made = options(f"tls {{ {inside} }}").tls
    assert made is not None
    return made


def refused(options: Load, block: str) -> str:
    """Return the error of a block, without its place in the file."""
    with pytest.raises(StartError) as caught:
        options(block)
    return re.sub(r"^.*?/nats\.conf:\d+:\d+: ", "", str(caught.value))


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ("", {}),
        ("timeout: 0.5", {"timeout_ns": SECOND // 2}),
        ("timeout: 3", {"timeout_ns": 3 * SECOND}),
        ("timeout: 250ms", {"timeout_ns": SECOND // 4}),
        ("timeout: 0", {"timeout_ns": 2 * SECOND}),
        ("handshake_first: true", {"first": True}),
        ("handshake_first: off", {}),
        ("first: on", {"first": True}),
        ("immediate: Auto", {"first": True, "fallback_ns": SECOND // 20}),
        ("handshake_first: 300ms", {"first": True, "fallback_ns": 3 * SECOND // 10}),
        ("handshake_first: '-1s'", {"first": True}),
        ("min_version: '1.3'", {"min_version": "1.3"}),
        ("curve_preferences: [X25519, CurveP256]", {"curves": ("X25519", "CurveP256")}),
        (
            "cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]",
            {"cipher_suites": ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",)},
        ),
        (
            "allow_insecure_cipher_suites: true, cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]",
            {"cipher_suites": ("TLS_RSA_WITH_RC4_128_SHA",)},
        ),
        (f"pinned_certs: ['{PIN.upper()}', '{PIN}']", {"pinned_certs": (PIN,)}),
        ("pinned_certs: []", {}),
        ("connection_rate_limit: 5", {"rate_limit": 5}),
        ("connection_rate_limit: -5", {}),
        ("verify: Optional, verify_and_map: false", {"verify_optional": True}),
        ("verify: true, verify_and_map: true", {"verify": True, "verify_and_map": True}),
        ("ocsp_peer: false, insecure: true, certs: []", {"insecure": True}),
    ],
)
def test_keys_become_options(options: Load, inside: str, expected: dict[str, Any]) -> None:
    assert tls(options, inside) == TlsOptions(**expected)


def test_several_certificates(options: Load, place: Path) -> None:
    pairs = tuple((f"{place}/{name}.pem", f"{place}/{name}.key") for name in ("server", "second"))
    written = ", ".join(f'{{cert_file: "{certificate}", key_file: "{key}"}}' for certificate, key in pairs)
    assert tls(options, f"certificates: [{written}]").certs == pairs


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        ("cert_file: 5, key_file: k", "error parsing tls config, expected 'cert_file' to be filename"),
        ("verify: x", "error parsing tls config, expected 'verify' to be a boolean or 'optional'"),
        ("verify: 1", "error parsing tls config, expected 'verify' to be a boolean or 'optional'"),
        (
            "verify: optional, verify_and_map: true",
            "error parsing tls config, cannot combine 'verify: optional' with options requiring client certificates",
        ),
        (
            "verify_cert_and_check_known_urls: true",
            "verify_cert_and_check_known_urls not supported in this context",
        ),
        ("timeout: x", "error parsing tls config, 'timeout' time: invalid duration \"x\""),
        ("timeout: []", "error parsing tls config, 'timeout' wrong type"),
        ("handshake_first: soon", 'field "handshake_first"\'s value "soon" is invalid'),
        ("handshake_first: 5", 'field "handshake_first" should be a boolean or a string, got int64'),
        ("min_version: '1.1'", "error parsing tls config: unsupported TLS version: TLS 1.1"),
        ("min_version: '1.4'", "error parsing tls config: unknown version: 1.4"),
        ("min_version: 1.3", "error parsing tls config: 'min_version' wrong type: 1.3"),
        ("cipher_suites: [NOPE]", "unrecognized cipher NOPE"),
        ("cipher_suites: []", "error parsing tls config, 'cipher_suites' cannot be empty"),
        (
            "cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]",
            "insecure cipher suites configured without 'allow_insecure_cipher_suites' option set: "
            "TLS_RSA_WITH_RC4_128_SHA",
        ),
        ("curve_preferences: [P-256]", "unrecognized curve preference P-256"),
        ("curve_preferences: []", "error parsing tls config, 'curve_preferences' cannot be empty"),
        ("pinned_certs: x", f"error parsing tls config, expected 'pinned_certs' to be a list of {PINS}"),
        ("pinned_certs: [abc]", f"error parsing tls config, 'pinned_certs' key abc does not look like {PINS}"),
        ("connection_rate_limit: 1.5", "error parsing tls config, 'connection_rate_limit' wrong type"),
        ("certs: {}", "error parsing certificates config: unsupported type map[string]interface {}"),
        ("certs: [x]", "error parsing certificates config: unsupported type string"),
        (
            "certs: [{cert_file: a}]",
            "error parsing certificates config: both 'cert_file' and 'cert_key' options are required",
        ),
        ("certs: [{cert_file: a, key_file: b, x: c}]", 'error parsing tls config, unknown field "x"'),
        ("cert_store: WindowsCurrentUser", "cert_store not compatible with current operating system"),
        ("cert_store: x", "cert store type not implemented"),
        ("cert_match: x", '"cert_match" is not supported: use cert_file and key_file'),
        ("foo: 1", 'error parsing tls config, unknown field "foo"'),
        ("ocsp_peer: true", "OCSP peer verification for client connections requires TLS verify (mTLS) to be enabled"),
        (
            "verify: true, ocsp_peer: true",
            '"ocsp_peer" is not supported: use short-lived client certificates, or pinned_certs',
        ),
        ("cert_file: a", "missing 'key_file' in TLS configuration"),
        ("key_file: a", "missing 'cert_file' in TLS configuration"),
    ],
)
def test_wrong_keys(options: Load, inside: str, text: str) -> None:
    assert refused(options, f"tls {{ {inside} }}") == text


@pytest.mark.parametrize(
    ("certificate", "key", "text"),
    [
        ("nope.pem", "server.key", f"{PAIR}: open {{}}/nope.pem: no such file or directory"),
        ("", "server.key", f"{PAIR}: read {{}}/: is a directory"),
        ("server.pem", "second.key", f"{PAIR}: tls: private key does not match public key"),
        ("empty.pem", "server.key", f"{PAIR}: tls: failed to find any PEM data in certificate input"),
        ("garbage.pem", "server.key", f"{PAIR}: tls: failed to find any PEM data in certificate input"),
        ("server.pem", "empty.pem", f"{PAIR}: tls: failed to find any PEM data in key input"),
        (
            "server.key",
            "server.pem",
            f"{PAIR}: tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM "
            "inputs may have been switched",
        ),
        (
            "server.pem",
            "second.pem",
            f"{PAIR}: tls: found a certificate rather than a key in the PEM for the private key",
        ),
    ],
)
def test_files_that_cannot_be_used(options: Load, place: Path, certificate: str, key: str, text: str) -> None:
    block = f'tls {{ cert_file: "{place}/{certificate}", key_file: "{place}/{key}" }}'
    assert refused(options, block) == text.format(place)


def test_an_encrypted_key_is_refused_without_asking_for_its_password(options: Load, place: Path) -> None:
    block = f'tls {{ cert_file: "{place}/server.pem", key_file: "{place}/encrypted.key" }}'
    assert refused(options, block).startswith(f"{PAIR}: tls: failed to parse private key: ")


def test_certificates_of_a_list_are_counted_and_stand_alone(options: Load, place: Path) -> None:
    good = f'{{cert_file: "{place}/server.pem", key_file: "{place}/server.key"}}'
    bad = '{cert_file: "/nope.pem", key_file: "/nope.key"}'
    assert refused(options, f"tls {{ certs: [{good}, {bad}] }}") == (
        f"{PAIR} 2/2: open /nope.pem: no such file or directory"
    )
    both = f'tls {{ cert_file: "{place}/server.pem", key_file: "{place}/server.key", certs: [{good}] }}'
    assert refused(options, both) == "error parsing tls config, cannot combine 'cert_file' option with 'certs' option"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("nope.pem", "open {}/nope.pem: no such file or directory"),
        ("garbage.pem", "failed to parse root ca certificate"),
    ],
)
def test_authorities_that_cannot_be_used(options: Load, place: Path, file: str, text: str) -> None:
    assert refused(options, f'tls {{ ca_file: "{place}/{file}" }}') == text.format(place)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("ocsp: true", '"ocsp" is not supported: certificates are sent without an OCSP response'),
        ("ocsp: {mode: always}", '"ocsp" is not supported: certificates are sent without an OCSP response'),
        ("ocsp: {mode: x}", "error parsing ocsp config: unsupported ocsp mode string"),
        ("ocsp: {foo: 1}", "error parsing ocsp config: unsupported field string"),
        ("ocsp: 5", "error parsing ocsp config: unsupported type int64"),
        ("ocsp_cache: {type: x}", "error parsing OCSP peer cache config, unknown type [x]"),
        ("ocsp_cache: local", '"ocsp_cache" is not supported: certificates are not checked by OCSP'),
    ],
)
def test_ocsp_is_refused_by_name(options: Load, line: str, text: str) -> None:
    assert refused(options, line) == text


@pytest.mark.parametrize(
    "line", ["ocsp: false", "ocsp: {mode: never}", "ocsp_cache: false", "ocsp_cache: {type: none}"]
)
def test_ocsp_that_is_off_is_accepted(options: Load, line: str) -> None:
    assert options(line).tls is None
