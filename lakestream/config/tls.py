"""`tls { … }` blocks of nats.conf.

Belongs here: their keys, with the errors of nats-server, and checks of the files that they name. What OpenSSL makes of
them is in net/tls.py.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterable, Mapping
from typing import Any

from lakestream.config.conf import Item
from lakestream.config.errors import StartError
from lakestream.config.options import SECOND, RemoteTls, TlsOptions
from lakestream.config.values import Rule, as_duration, as_text, converted, go_kind, shown
from lakestream.protocol.goquote import quoted

AUTO_FALLBACK_NS = 50_000_000
"""`handshake_first: auto`: INFO is sent to a client that sends nothing for this long (50 ms)."""

DEFAULT_TIMEOUT_NS = 2 * SECOND

CIPHERS = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
}
"""Cipher suites of TLS 1.2 by their names in the configuration, with OpenSSL's names."""

INSECURE_CIPHERS = {
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
    "TLS_RSA_WITH_RC4_128_SHA": "RC4-SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA": "DES-CBC3-SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA": "ECDHE-RSA-RC4-SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA": "ECDHE-RSA-DES-CBC3-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA": "ECDHE-ECDSA-RC4-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
}
"""Suites that need `allow_insecure_cipher_suites`."""

CIPHERS_OF_1_3 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""Suites of TLS 1.3: always available."""

CURVES = {
    "X25519": "X25519",
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519MLKEM768": "X25519MLKEM768",
    "SecP256r1MLKEM768": "SecP256r1MLKEM768",
    "SecP384r1MLKEM1024": "SecP384r1MLKEM1024",
}
"""Curves by their names in the configuration, with OpenSSL's names."""

_ERROR = "error parsing tls config"
_PIN = re.compile(r"[0-9a-fA-F]{64}")
_PINS = "hex-encoded sha256 of DER encoded SubjectPublicKeyInfo"
_LABEL = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----")


# ---------------------------------------------------------------------- values


def _file(key: str, item: Item) -> str:
    if not isinstance(item.value, str):
        raise item.error(f"{_ERROR}, expected '{key}' to be filename")
    return item.value


def _boolean(key: str, item: Item) -> bool:
    if not isinstance(item.value, bool):
        raise item.error(f"{_ERROR}, expected '{key}' to be a boolean")
    return item.value


def _verify(key: str, item: Item) -> dict[str, bool]:
    """Convert a boolean, or `optional`: who has no certificate needs none."""
    if isinstance(item.value, str) and item.value.lower() == "optional":
        return {"verify_optional": True}
    if not isinstance(item.value, bool):
        raise item.error(f"{_ERROR}, expected 'verify' to be a boolean or 'optional'")
    return {"verify": item.value}


_KNOWN_URLS = "verify_cert_and_check_known_urls"


def _known_urls(key: str, item: Item) -> dict[str, Any]:
    if _boolean(key, item):
        raise item.error(f"{key} not supported in this context")
    return {}


def _timeout(key: str, item: Item) -> int:
    """Convert a duration; 0 means the default. With a negative one every handshake fails."""
    if isinstance(item.value, bool) or not isinstance(item.value, str | int | float):
        raise item.error(f"{_ERROR}, 'timeout' wrong type")
    try:
        return as_duration(key, item) or DEFAULT_TIMEOUT_NS
    except Exception as error:
        if isinstance(item.value, str):
            raise item.error(f"{_ERROR}, 'timeout' time: invalid duration \"{item.value}\"") from error
        raise


def _handshake_first(key: str, item: Item) -> dict[str, Any]:
    value = item.value
    if isinstance(value, bool):
        return {"first": value, "fallback_ns": 0}
    if not isinstance(value, str):
        raise item.error(f'field "{key}" should be a boolean or a string, got {go_kind(value)}')
    word = value.lower()
    if word in ("true", "on", "false", "off"):
        return {"first": word in ("true", "on"), "fallback_ns": 0}
    if word == "auto":
        return {"first": True, "fallback_ns": AUTO_FALLBACK_NS}
    try:
        return {"first": True, "fallback_ns": max(0, as_duration(key, item))}
    except Exception as error:
        raise item.error(f'field "{key}"\'s value "{value}" is invalid') from error


def _min_version(key: str, item: Item) -> str:
    if not isinstance(item.value, str):
        raise item.error(f"{_ERROR}: 'min_version' wrong type: {shown(item)}")
    if item.value in ("1.0", "1.1"):
        raise item.error(f"{_ERROR}: unsupported TLS version: TLS {item.value}")
    if item.value not in ("1.2", "1.3"):
        raise item.error(f"{_ERROR}: unknown version: {item.value}")
    return item.value


def _names(key: str, item: Item, known: Mapping[str, str], unknown: str) -> tuple[str, ...]:
    if not isinstance(item.value, list):
        raise item.error(f"interface conversion: interface {{}} is {go_kind(item.value)}, not []interface {{}}")
    if not item.value:
        raise item.error(f"{_ERROR}, '{key}' cannot be empty")
    for entry in item.value:
        if not isinstance(entry.value, str) or entry.value not in known:
            raise entry.error(f"{unknown} {shown(entry)}")
    return tuple(str(entry.value) for entry in item.value)


def _cipher_suites(key: str, item: Item) -> tuple[str, ...]:
    known = CIPHERS | INSECURE_CIPHERS | dict.fromkeys(CIPHERS_OF_1_3, "")
    return _names(key, item, known, "unrecognized cipher")


def _curves(key: str, item: Item) -> tuple[str, ...]:
    return _names(key, item, CURVES, "unrecognized curve preference")


def _pins(key: str, item: Item) -> tuple[str, ...]:
    if not isinstance(item.value, list):
        raise item.error(f"{_ERROR}, expected '{key}' to be a list of {_PINS}")
    for entry in item.value:
        if not isinstance(entry.value, str) or not _PIN.fullmatch(entry.value):
            raise entry.error(f"{_ERROR}, '{key}' key {shown(entry)} does not look like {_PINS}")
    return tuple(sorted({str(entry.value).lower() for entry in item.value}))


def _rate(key: str, item: Item) -> int:
    if isinstance(item.value, bool) or not isinstance(item.value, int):
        raise item.error(f"{_ERROR}, '{key}' wrong type")
    return max(0, item.value)


def _certs(key: str, item: Item) -> tuple[tuple[str, str], ...]:
    wrong = "error parsing certificates config"
    if not isinstance(item.value, list):
        raise item.error(f"{wrong}: unsupported type {go_kind(item.value)}")
    pairs: list[tuple[str, str]] = []
    for entry in item.value:
        if not isinstance(entry.value, dict):
            raise entry.error(f"{wrong}: unsupported type {go_kind(entry.value)}")
        files: dict[str, str] = {}
        for name, value in entry.value.items():
            if not isinstance(value.value, str):
                raise value.error(f"{wrong}: unsupported type {go_kind(value.value)}")
            if name.lower() not in ("cert_file", "key_file"):
                raise value.error(f"{_ERROR}, unknown field {quoted(name)}")
            files[name.lower()] = value.value
        if not files.get("cert_file") or not files.get("key_file"):
            raise entry.error(f"{wrong}: both 'cert_file' and 'cert_key' options are required")
        pairs.append((files["cert_file"], files["key_file"]))
    return tuple(pairs)


def _cert_store(key: str, item: Item) -> bool:
    known = isinstance(item.value, str) and item.value.lower() in ("windowscurrentuser", "windowslocalmachine")
    raise item.error(
        "cert_store not compatible with current operating system" if known else "cert store type not implemented"
    )


def _ocsp_peer(key: str, item: Item) -> bool:
    if not isinstance(item.value, bool | dict):
        raise item.error(f"error parsing ocsp peer config: unsupported type {go_kind(item.value)}")
    return item.value is not False


TLS: dict[str, Rule] = {
    "cert_file": ("cert_file", _file),
    "key_file": ("key_file", _file),
    "ca_file": ("ca_file", _file),
    "verify": ("*", _verify),
    "verify_and_map": ("verify_and_map", _boolean),
    _KNOWN_URLS: ("*", _known_urls),
    "insecure": ("insecure", _boolean),
    "timeout": ("timeout_ns", _timeout),
    **dict.fromkeys(("handshake_first", "first", "immediate"), ("*", _handshake_first)),
    "min_version": ("min_version", _min_version),
    "cipher_suites": ("cipher_suites", _cipher_suites),
    "allow_insecure_cipher_suites": ("allow_insecure", _boolean),
    "curve_preferences": ("curves", _curves),
    "pinned_certs": ("pinned_certs", _pins),
    "connection_rate_limit": ("rate_limit", _rate),
    **dict.fromkeys(("certs", "certificates"), ("certs", _certs)),
    "cert_store": ("cert_store", _cert_store),
    "ocsp_peer": ("ocsp_peer", _ocsp_peer),
}
TLS_MISSING = dict.fromkeys(
    ("cert_match", "cert_match_by", "cert_match_skip_invalid", "ca_certs_match"), "use cert_file and key_file"
)
_OF_LISTENERS = ("verify", "verify_and_map", "connection_rate_limit")
"""Keys without effect for the side that dials: it always verifies the other one's certificate."""
NOT_DIALLING = {
    **dict.fromkeys(("certs", "certificates"), "use cert_file and key_file"),
    "ocsp_peer": "use ca_file, with the one authority that signs the other side's certificate",
}
DIALLING: dict[str, Rule] = {
    **{name: rule for name, rule in TLS.items() if name not in (*_OF_LISTENERS, *NOT_DIALLING)},
    "server_name": ("server_name", as_text),
}
OCSP_NEEDS_VERIFY = "OCSP peer verification for client connections requires TLS verify (mTLS) to be enabled"


def as_tls(key: str, item: Item, *, of_nodes: bool = False) -> TlsOptions:
    """Convert the block of a listener, and check the files that it names. `of_nodes`: of the listener for routes."""
    values = _values(item, TLS | {_KNOWN_URLS: ("known_urls", _boolean)} if of_nodes else TLS)
    if values.pop("ocsp_peer", False):
        if not values.get("verify") and not values.get("verify_and_map"):
            raise StartError(OCSP_NEEDS_VERIFY)
        raise item.error('"ocsp_peer" is not supported: use short-lived client certificates, or pinned_certs')
    return _checked(item, values)


def as_dialling_tls(key: str, item: Item) -> dict[str, Any]:
    """Convert the block of a connection that this server opens, and check the files that it names."""
    if item.value is True:
        return {"tls": RemoteTls()}
    values = _values(item, DIALLING, NOT_DIALLING, _OF_LISTENERS)
    warnings, name = values.pop("warnings", []), values.pop("server_name", "")
    _checked(item, values)
    return {
        "tls": RemoteTls(server_name=name, **{key: value for key, value in values.items() if key != "fallback_ns"}),
        "warnings": warnings,
    }


def _values(
    item: Item, rules: Mapping[str, Rule], missing: Mapping[str, str] = {}, harmless: Iterable[str] = ()
) -> dict[str, Any]:
    if not isinstance(item.value, dict):
        kind = go_kind(item.value)
        raise item.error(f"interface conversion: interface {{}} is {kind}, not map[string]interface {{}}")
    unknown = f"{_ERROR}, unknown field {{}}"
    values = converted(item.value, rules, harmless=harmless, missing={**TLS_MISSING, **missing}, unknown=unknown)
    allow_insecure = values.pop("allow_insecure", False)
    insecure = [name for name in values.get("cipher_suites", ()) if name in INSECURE_CIPHERS]
    if insecure and not allow_insecure:
        names = ", ".join(insecure)
        raise item.error(
            f"insecure cipher suites configured without 'allow_insecure_cipher_suites' option set: {names}"
        )
    for present, absent in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if values.get(present) and not values.get(absent):
            raise item.error(f"missing '{absent}' in TLS configuration")
    if values.get("cert_file") and values.get("certs"):
        raise item.error(f"{_ERROR}, cannot combine 'cert_file' option with 'certs' option")
    if values.get("verify_optional") and values.get("verify_and_map"):
        raise item.error(f"{_ERROR}, cannot combine 'verify: optional' with options requiring client certificates")
    return values


def _checked(item: Item, values: Mapping[str, Any]) -> TlsOptions:
    tls = TlsOptions(**values)
    try:
        check_files(tls)
    except ValueError as error:
        raise item.error(str(error)) from error
    return tls


# ---------------------------------------------------------------------- keys beside the block

_STAPLING = "certificates are sent without an OCSP response"


def as_ocsp(key: str, item: Item) -> bool:
    """Convert `ocsp`, which can only be off."""
    wrong, mode = "error parsing ocsp config", item.value
    if isinstance(mode, dict):
        for name, entry in mode.items():
            if name.lower() not in ("mode", "url", "urls"):
                raise entry.error(f"{wrong}: unsupported field {go_kind(name)}")
            if name.lower() == "mode":
                if str(entry.value).lower() not in ("auto", "always", "must", "never"):
                    raise entry.error(f"{wrong}: unsupported ocsp mode {go_kind(entry.value)}")
                mode = str(entry.value).lower() != "never"
    elif not isinstance(mode, bool):
        raise item.error(f"{wrong}: unsupported type {go_kind(mode)}")
    if mode is not False:
        raise item.error(f'"{key}" is not supported: {_STAPLING}')
    return False


def as_ocsp_cache(key: str, item: Item) -> bool:
    """Convert `ocsp_cache`, which can only be off: responses about client certificates are not asked for."""
    kind = item.value
    if isinstance(kind, dict):
        kind = next((entry.value for name, entry in kind.items() if name.lower() == "type"), True)
        if isinstance(kind, str) and kind.lower() not in ("none", "local"):
            raise item.error(f"error parsing OCSP peer cache config, unknown type [{kind}]")
    if kind is not False and str(kind).lower() != "none":
        raise item.error(f'"{key}" is not supported: certificates are not checked by OCSP')
    return False


# ---------------------------------------------------------------------- files


def check_files(tls: TlsOptions) -> None:
    """Check the certificates, keys and authorities.

    Raises:
        ValueError: one cannot be used; the text is nats-server's.
    """
    wrong = "error parsing X509 certificate/key pair"
    if tls.cert_file:
        _check_pair(tls.cert_file, tls.key_file, wrong)
    for number, (cert_file, key_file) in enumerate(tls.certs, 1):
        _check_pair(cert_file, key_file, f"{wrong} {number}/{len(tls.certs)}")
    if tls.ca_file:
        _read(tls.ca_file)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(tls.ca_file)
        except ssl.SSLError as error:
            raise ValueError("failed to parse root ca certificate") from error


def _check_pair(cert_file: str, key_file: str, wrong: str) -> None:
    try:
        certificates, keys = _labels(_read(cert_file)), _labels(_read(key_file))
        _check_labels(certificates, keys)
        load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert_file, key_file)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH" or error.reason == "KEY_TYPE_MISMATCH":
            raise ValueError(f"{wrong}: tls: private key does not match public key") from error
        raise ValueError(f"{wrong}: tls: failed to parse private key: {error.reason or error}") from error
    except ValueError as error:
        raise ValueError(f"{wrong}: {error}") from error


def load_pair(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    """Load a certificate and its key. An encrypted key is an error: nobody is there to ask for its password.

    Raises:
        ssl.SSLError: they cannot be used.
        OSError: they cannot be read.
    """
    context.load_cert_chain(cert_file, key_file, password=lambda: b"")


def _check_labels(certificates: list[str], keys: list[str]) -> None:
    """Check the kinds of PEM blocks. Raises ValueError."""
    if "CERTIFICATE" not in certificates:
        if not certificates:
            raise ValueError("tls: failed to find any PEM data in certificate input")
        if len(certificates) == 1 and certificates[0].endswith("PRIVATE KEY"):
            raise ValueError(
                "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs "
                "may have been switched"
            )
        raise ValueError(
            'tls: failed to find "CERTIFICATE" PEM block in certificate input after skipping PEM blocks of the '
            f"following types: [{' '.join(certificates)}]"
        )
    if not any(label.endswith("PRIVATE KEY") for label in keys):
        if not keys:
            raise ValueError("tls: failed to find any PEM data in key input")
        if keys == ["CERTIFICATE"]:
            raise ValueError("tls: found a certificate rather than a key in the PEM for the private key")
        raise ValueError(
            'tls: failed to find PEM block with type ending in "PRIVATE KEY" in key input after skipping PEM blocks of '
            f"the following types: [{' '.join(keys)}]"
        )


def _labels(pem: bytes) -> list[str]:
    return [label.decode() for label in _LABEL.findall(pem)]


def _read(path: str) -> bytes:
    """Return a file's content. Raises ValueError."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except IsADirectoryError:
        raise ValueError(f"read {path}: is a directory") from None
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ValueError(f"open {path}: {reason[:1].lower()}{reason[1:]}") from error
