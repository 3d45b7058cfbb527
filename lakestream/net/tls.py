"""TLS contexts, and what they tell of a connection.

Belongs here: contexts from the options of a `tls` block, the certificates of clients, the words of a failed handshake,
and TLS of connections that this server dials. Both sides of a route present a certificate and verify the other's, as in
nats-server; a remote may do without a certificate of this server.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import os
import socket
import ssl
import tempfile
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from lakestream.config.errors import StartError, reason_of
from lakestream.config.options import RemoteTls, RouteUrl, TlsOptions
from lakestream.config.tls import CIPHERS, CURVES, INSECURE_CIPHERS, load_pair
from lakestream.net.client_hello import GROUPS, NOT_TLS
from lakestream.protocol.gotime import format_time

if TYPE_CHECKING:
    from cryptography import x509


class TlsError(StartError):
    """Raised for a missing or invalid file; the text names it."""


# ---------------------------------------------------------------------- alerts


class _Handshake(ssl.SSLObject):
    """TLS of one connection, which keeps the alert of a failed handshake.

    OpenSSL writes an alert (`certificate expired`, `protocol version`, …) for the other side before it raises. Neither
    asyncio nor uvloop sends what is written then: they close the connection, and the other side sees its end and no
    reason. The alert goes along with the error, to be sent over a duplicate of the socket.
    """

    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            vars(error)["alert"] = self.outgoing.read()
            raise


def _alert(error: OSError) -> bytes:
    found: bytes = vars(error).get("alert", b"")
    return found


class _Context(ssl.SSLContext):
    """A context of connections that can tell the other side why their handshake failed."""

    sslobject_class = _Handshake
    pinned: tuple[str, ...] = ()
    """Keys of which the certificate of the other side, which this one dials, must have one; (): any."""

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *args, **kwargs)
        assert isinstance(made, _Handshake)
        made.outgoing = outgoing
        return made


# ---------------------------------------------------------------------- certificates

_ATTRIBUTES = {
    "2.5.4.6": "C",
    "2.5.4.8": "ST",
    "2.5.4.7": "L",
    "2.5.4.9": "STREET",
    "2.5.4.17": "POSTALCODE",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.3": "CN",
    "2.5.4.5": "SERIALNUMBER",
}
"""Attributes of a subject that are shown by name, in the order in which they are shown from the last to the first."""
_SINGLE = ("CN", "SERIALNUMBER")
"""Attributes of which the last one counts."""
DOMAIN_COMPONENT = "0.9.2342.19200300.100.1.25"

Attribute = tuple[str, str]
"""Type (a name of `_ATTRIBUTES`, else the object identifier) and value."""


class PeerCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate of a client, or one that signed it.

    Attributes:
        subject: relative distinguished names in the certificate's order.
        emails, names, uris: alternative names of the subject.
        der: the certificate itself.
        sha256, key_sha256: of the certificate and of its SubjectPublicKeyInfo (DER), hexadecimal.
    """

    subject: tuple[tuple[Attribute, ...], ...] = ()
    emails: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    der: bytes = b""
    sha256: str = ""
    key_sha256: str = ""

    @property
    def pem(self) -> str:
        """Return the certificate as text."""
        return ssl.DER_cert_to_PEM_cert(self.der)

    @property
    def known_subject(self) -> str:
        """Return the attributes of the subject that have names, as nats-server shows them: `CN=a,OU=b,O=c`."""
        return _joined(self._by_name())

    @property
    def shown_subject(self) -> str:
        """Return the whole subject as nats-server shows it: other attributes follow with their object identifiers."""
        others = [[each] for name in self.subject for each in name if each[0] not in _ATTRIBUTES.values()]
        return _joined([*others, *self._by_name()])

    @property
    def domain_components(self) -> list[str]:
        """Return the domain components of the subject (DC) in the certificate's order."""
        return [value for name in self.subject for kind, value in name if kind == DOMAIN_COMPONENT]

    def _by_name(self) -> list[list[Attribute]]:
        attributes = [each for name in self.subject for each in name]
        groups = [[each for each in attributes if each[0] == kind] for kind in _ATTRIBUTES.values()]
        return [group[-1:] if group[0][0] in _SINGLE else group for group in groups if group]


def _joined(names: list[list[Attribute]]) -> str:
    return ",".join("+".join(f"{kind}={_escaped(value)}" for kind, value in name) for name in reversed(names))


def _escaped(value: str) -> str:
    last = len(value) - 1
    return "".join(
        f"\\{char}" if char in ',+"\\<>;' or (char == " " and at in (0, last)) or (char == "#" and not at) else char
        for at, char in enumerate(value)
    )


def _peer_certificate(certificate: x509.Certificate) -> PeerCertificate:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    subject = tuple(
        tuple((_ATTRIBUTES.get(each.oid.dotted_string, each.oid.dotted_string), str(each.value)) for each in name)
        for name in certificate.subject.rdns
    )
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    der = certificate.public_bytes(Encoding.DER)
    return PeerCertificate(
        subject=subject,
        emails=tuple(names.get_values_for_type(x509.RFC822Name)),
        names=tuple(names.get_values_for_type(x509.DNSName)),
        uris=tuple(names.get_values_for_type(x509.UniformResourceIdentifier)),
        der=der,
        sha256=hashlib.sha256(der).hexdigest(),
        key_sha256=hashlib.sha256(key).hexdigest(),
    )


# ---------------------------------------------------------------------- listeners for clients

_IANA = {ours: name for name, ours in (CIPHERS | INSECURE_CIPHERS).items()}
_VERIFY_ERRORS = {
    9: "certificate has expired or is not yet valid: it is not yet valid",
    10: "certificate has expired or is not yet valid: it has expired",
    26: "certificate specifies an incompatible key usage",
}
"""Errors of OpenSSL's verification that are not about the authority."""


class TlsState(msgspec.Struct, frozen=True):
    """TLS of one connection, as monitoring shows it.

    Attributes:
        version: `1.2` or `1.3`.
        cipher: IANA's name of the cipher suite.
        first: TLS began before INFO.
        chain: the client's certificate and those that signed it; empty where none is required.
    """

    version: str
    cipher: str
    first: bool = False
    chain: tuple[PeerCertificate, ...] = ()


class ServerContext:
    """TLS of one listener for clients, with the files as they were read.

    Args:
        tls: the options, checked by `config.tls.check_files`.

    Attributes:
        context: of connections.
        not_after: end of the first certificate's validity (RFC 3339); "" without a certificate.
        warnings: lines for the log about settings without effect.

    Raises:
        TlsError: a file cannot be used.
    """

    def __init__(self, tls: TlsOptions) -> None:
        from cryptography import x509

        self.options = tls
        self._verifies = tls.needs_certificates or tls.verify_optional
        pairs = ((tls.cert_file, tls.key_file),) if tls.cert_file else tls.certs
        self._by_name: dict[str, ssl.SSLContext] = {}
        self._authorities: dict[x509.Name, x509.Certificate] = {}
        self.not_after = ""
        contexts = [self._made(*pair) for pair in pairs]
        self.context = contexts[0] if contexts else self._made("", "")
        self._has_certificate = bool(contexts)
        curves, unknown = _known(tls.curves)
        self.warnings = [f"curve_preferences: OpenSSL here does not have {curve}" for curve in unknown]
        self._by_group = {GROUPS[curve]: self._made(*(pairs or (("", ""),))[0], curve) for curve in curves[1:]}
        if self._by_group:
            self._by_group = {GROUPS[curves[0]]: self.context, **self._by_group}
        for (cert_file, _), context in zip(pairs, contexts, strict=True):
            with open(cert_file, "rb") as stream:
                certificate = x509.load_pem_x509_certificate(stream.read())
            self.not_after = self.not_after or format_time(int(certificate.not_valid_after_utc.timestamp()) * 10**9)
            if len(pairs) > 1:
                for name in _peer_certificate(certificate).names:
                    self._by_name.setdefault(name.lower(), context)
        if self._by_name:
            for context in (self.context, *self._by_group.values()):
                context.sni_callback = self._choose
        if self._verifies:
            for der in self.context.get_ca_certs(binary_form=True):
                authority = x509.load_der_x509_certificate(der)
                self._authorities[authority.subject] = authority

    @property
    def chooses_curve(self) -> bool:
        """Return True if the context depends on the curves that the client offers."""
        return bool(self._by_group)

    def context_for(self, groups: Collection[int]) -> ssl.SSLContext:
        """Return the context for a client that offers these curves: of the first configured one that is among them."""
        return next((context for group, context in self._by_group.items() if group in groups), self.context)

    def _made(self, cert_file: str, key_file: str, curve: str = "") -> ssl.SSLContext:
        tls = self.options
        context = _Context(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        # Tickets hold the client's certificate: they take 40 % of the handshake's last step (0.3 ms), and a resumed
        # session is not verified again. Clients of NATS do not resume sessions.
        context.num_tickets = 0
        _load(context, cert_file, key_file, tls.ca_file, verifies=self._verifies)
        if self._verifies:
            context.verify_mode = ssl.CERT_REQUIRED if tls.needs_certificates else ssl.CERT_OPTIONAL
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        _limit(context, tls, curve)
        return context

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        """Choose the certificate by the name that the client asked for; the first one where none has it."""
        wanted = (name or "").lower()
        chosen = self._by_name.get(wanted) or self._by_name.get(f"*.{wanted.partition('.')[2]}")
        if chosen is not None:
            connection.context = chosen

    def state(self, connection: ssl.SSLObject, *, first: bool) -> TlsState:
        """Return what there is to know of a connection whose handshake is complete."""
        version, cipher = (connection.version() or "").removeprefix("TLSv"), connection.cipher()
        name = cipher[0] if cipher is not None else ""
        return TlsState(version, _IANA.get(name, name), first, tuple(self._chain(connection)))

    def _chain(self, connection: ssl.SSLObject) -> list[PeerCertificate]:
        """Return the client's certificate, and the known authorities above it."""
        der = connection.getpeercert(binary_form=True) if self._verifies else None
        if der is None:
            return []
        from cryptography import x509

        certificate: x509.Certificate | None = x509.load_der_x509_certificate(der)
        chain: list[x509.Certificate] = []
        while certificate is not None and certificate not in chain:
            chain.append(certificate)
            certificate = self._authorities.get(certificate.issuer)
        return [_peer_certificate(each) for each in chain]

    def is_pinned(self, chain: tuple[PeerCertificate, ...]) -> bool:
        """Return True if a client with these certificates may stay (pinned_certs)."""
        pins = self.options.pinned_certs
        return not pins or (bool(chain) and chain[0].key_sha256 in pins)

    def alert(self, error: OSError) -> bytes:
        """Return the record that tells the client of a failed handshake; b"" if there is none."""
        return _alert(error)

    def failure(self, error: OSError) -> str:
        """Return the reason of a failed handshake, in the words of nats-server as far as OpenSSL tells."""
        if isinstance(error, ssl.SSLCertVerificationError):
            why = _VERIFY_ERRORS.get(error.verify_code, "certificate signed by unknown authority")
            return f"tls: failed to verify certificate: x509: {why}"
        if not isinstance(error, ssl.SSLError):
            # The event loop's timeout is a ConnectionAbortedError.
            return "i/o timeout" if isinstance(error, ConnectionAbortedError) else "EOF"
        match error.reason:
            case "PEER_DID_NOT_RETURN_A_CERTIFICATE":
                return "tls: client didn't provide a certificate"
            case "UNSUPPORTED_PROTOCOL":
                return "tls: client offered only unsupported versions"
            case "NO_SHARED_CIPHER" if not self._has_certificate:
                return "tls: no certificates configured"
            case "NO_SHARED_CIPHER":
                return "tls: no cipher suite supported by both client and server"
            case "WRONG_VERSION_NUMBER" | "HTTP_REQUEST":
                return NOT_TLS
        words = (error.reason or str(error)).lower().replace("_", " ")
        _, told, alert = words.partition(" alert ")
        return f"remote error: tls: {alert}" if told else f"tls: {words}"


# ---------------------------------------------------------------------- connections between servers


def dialling(tls: TlsOptions | RemoteTls) -> ssl.SSLContext:
    """Return the context of the dialling side, with the current files. Raises TlsError."""
    context = _Context(ssl.PROTOCOL_TLS_CLIENT)
    if isinstance(tls, RemoteTls):  # those of nodes are checked by both sides of a route
        context.pinned = tls.pinned_certs
    if isinstance(tls, RemoteTls) and (tls.ca or tls.cert):
        _load_texts(context, tls)
    else:
        _load(context, tls.cert_file, tls.key_file, tls.ca_file)
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _limit(context, tls)
    return context


async def secure(
    transport: asyncio.BaseTransport, protocol: asyncio.Protocol, context: ssl.SSLContext, name: str, timeout_ns: int
) -> asyncio.Transport:
    """Start TLS on a connection that this side dialled; `name`: the name that the certificate must have.

    Raises OSError; TlsError: the certificate is not pinned; an ssl.SSLError after the other side was told.
    """
    kept = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
    try:
        secured = await asyncio.get_running_loop().start_tls(
            cast(asyncio.Transport, transport),
            protocol,
            context,
            server_hostname=name,
            ssl_handshake_timeout=timeout_ns / 1e9,
        )
    except ssl.SSLError as error:
        with contextlib.suppress(OSError):
            kept.send(_alert(error))
        raise
    finally:
        kept.close()
    if secured is None:
        raise ConnectionResetError("connection closed")
    if isinstance(context, _Context) and context.pinned:
        der = secured.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if der is None or certificate_of(der).key_sha256 not in context.pinned:
            secured.abort()
            raise TlsError("tls: certificate not pinned")
    return secured


async def connect(
    protocol: asyncio.Protocol, host: str, port: int, context: ssl.SSLContext, name: str, timeout_ns: int
) -> asyncio.Transport:
    """Connect with TLS from the first byte. Arguments and errors as for `secure`."""
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, port)
    secured = await secure(transport, protocol, context, name, timeout_ns)
    protocol.connection_made(secured)
    return secured


def renew(context: ssl.SSLContext, tls: TlsOptions) -> None:
    """Read the files again, for later connections: certificates are replaced before they expire.

    Authorities are added to those that `context` trusts already. Raises TlsError; then nothing has changed.
    """
    _load(ssl.SSLContext(context.protocol), tls.cert_file, tls.key_file, tls.ca_file)
    _load(context, tls.cert_file, tls.key_file, tls.ca_file)


def certificate_of(der: bytes) -> PeerCertificate:
    """Return what a certificate says."""
    from cryptography import x509

    return _peer_certificate(x509.load_der_x509_certificate(der))


def name_for(url: RouteUrl, routes: tuple[RouteUrl, ...]) -> str:
    """Return the name that the certificate of the node at `url` must have.

    Discovered nodes are often dialled by address while certificates have names: the name of a configured route is used
    then (as in nats-server).
    """
    if not _is_address(url.host):
        return url.host
    return next((route.host for route in routes if not _is_address(route.host)), url.host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------------- both


def _load(context: ssl.SSLContext, cert_file: str, key_file: str, ca_file: str, *, verifies: bool = True) -> None:
    """Read a certificate with its key, and the authorities of the other side. Raises TlsError."""
    file = cert_file
    try:
        if cert_file:
            load_pair(context, cert_file, key_file)
        file = ca_file
        if verifies and ca_file:
            context.load_verify_locations(ca_file)
        elif verifies:
            context.load_default_certs(_purpose(context))
    except ssl.SSLError as error:
        raise TlsError(f"tls: cannot use {file!r}: {error.reason or error}") from error
    except OSError as error:
        raise TlsError(f"tls: cannot read {file!r}: {reason_of(error)}") from error


def _load_texts(context: ssl.SSLContext, tls: RemoteTls) -> None:
    """Load PEM texts. Raises TlsError."""
    try:
        if tls.ca:
            context.load_verify_locations(cadata=tls.ca)
        else:
            context.load_default_certs(_purpose(context))
        if tls.cert:
            # Python loads a pair from a file only: one in memory where the system has them.
            with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
                file.write(f"{tls.cert}\n{tls.key}".encode())
                file.flush()
                context.load_cert_chain(file.name)
    except ssl.SSLError as error:
        raise TlsError(f"tls: cannot use the certificates: {error.reason or error}") from error
    except OSError as error:
        raise TlsError(f"tls: cannot load the certificates: {reason_of(error)}") from error


def _limit(context: ssl.SSLContext, tls: TlsOptions | RemoteTls, curve: str = "") -> None:
    """Apply versions, cipher suites and one curve, by default the first one. Raises TlsError."""
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if tls.min_version == "1.3" else ssl.TLSVersion.TLSv1_2
    names = tls.cipher_suites or tuple(CIPHERS)
    wanted = [(CIPHERS | INSECURE_CIPHERS)[name] for name in names if name in CIPHERS or name in INSECURE_CIPHERS]
    try:
        context.set_ciphers(":".join(wanted) if wanted else "NULL")
    except ssl.SSLError:  # OpenSSL has none of them: only TLS 1.3 is left, whose suites are not configured
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if tls.curves:
        known, unknown = _known(tls.curves)
        if not known:
            raise TlsError(f"curve_preferences: OpenSSL here does not have {', '.join(unknown)}")
        context.set_ecdh_curve(CURVES[curve or known[0]])  # the ssl module sets one for a context


def _known(curves: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the curves that OpenSSL has, and those that it has not."""
    known: list[str] = []
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for curve in curves:
        try:
            trial.set_ecdh_curve(CURVES[curve])
            known.append(curve)
        except ValueError:
            continue
    return known, [curve for curve in curves if curve not in known]


def _purpose(context: ssl.SSLContext) -> ssl.Purpose:
    """Return which of the system's authorities count: those for the other side."""
    is_server = context.protocol == ssl.PROTOCOL_TLS_SERVER
    return ssl.Purpose.CLIENT_AUTH if is_server else ssl.Purpose.SERVER_AUTH
