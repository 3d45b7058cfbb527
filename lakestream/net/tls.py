"""TLS contexts of connections between servers.

Belongs here: contexts from the options of a `tls` block. Both sides of a route present a certificate and verify the
other's, as in nats-server; a remote may do without a certificate of this server.
"""

from __future__ import annotations

import ipaddress
import ssl

from lakestream.config.errors import StartError, reason_of
from lakestream.config.options import RemoteTls, RouteUrl, TlsOptions


class TlsError(StartError):
    """Raised for a missing or invalid file; the text names it."""


def listening(tls: TlsOptions) -> ssl.SSLContext:
    """Return the context of the route listener. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, tls)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def dialling(tls: TlsOptions | RemoteTls) -> ssl.SSLContext:
    """Return the context of the dialling side, with the current files. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load(context, tls)
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def renew(context: ssl.SSLContext, tls: TlsOptions) -> None:
    """Read the files again, for later connections: certificates are replaced before they expire.

    Authorities are added to those that `context` trusts already. Raises TlsError; then nothing has changed.
    """
    _load(ssl.SSLContext(context.protocol), tls)
    _load(context, tls)


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


def _load(context: ssl.SSLContext, tls: TlsOptions | RemoteTls) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    where = "cluster: tls" if isinstance(tls, TlsOptions) else "tls"
    file = tls.cert_file
    try:
        if file:
            context.load_cert_chain(file, tls.key_file)
        file = tls.ca_file
        if file:
            context.load_verify_locations(file)
        else:
            context.load_default_certs()
    except ssl.SSLError as error:
        raise TlsError(f"{where}: cannot use {file!r}: {error.reason or error}") from error
    except OSError as error:
        raise TlsError(f"{where}: cannot read {file!r}: {reason_of(error)}") from error
