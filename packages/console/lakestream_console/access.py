"""Access to the console over HTTP.

Belongs here: what a request's headers say about the page that made it: its cookie, its origin and the host that the
browser addressed; and the headers of responses by which browsers confine the page. Pure functions.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from lakestream.config.options import Options
from lakestream.http.exchange import Headers, HttpRequest

COOKIE = "lakestream_console"
"""Name of the session's cookie; with `_PORT` behind it where the address has a port, because browsers send a cookie to
all ports of a host."""

CSRF_HEADER = "x-lakestream-csrf"

SECURITY: Headers = (
    (
        "Content-Security-Policy",
        "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'",
    ),
    ("X-Frame-Options", "DENY"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
"""Headers of every response of the console."""

_LOCAL = ("localhost", "ip6-localhost")


def cookie_name(request: HttpRequest) -> str:
    """Return the name of the session's cookie for the address that the browser uses."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isascii() and port.isdecimal() and len(port) <= 5 else COOKIE


def session_id(request: HttpRequest) -> str:
    """Return the session id of the request's cookie; "" without one."""
    wanted = cookie_name(request)
    for part in request.headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == wanted:
            return value
    return ""


def set_cookie(request: HttpRequest, identifier: str, path: str) -> tuple[str, str]:
    """Return the header that gives the browser a session id; "": that removes it."""
    attributes = [f"{cookie_name(request)}={identifier}", f"Path={path}", "HttpOnly", "SameSite=Strict"]
    if request.secure or request.headers.get("origin", "").startswith("https:"):  # a proxy may have ended TLS
        attributes.append("Secure")
    if not identifier:
        attributes.append("Max-Age=0")
    return "Set-Cookie", "; ".join(attributes)


def is_cross_origin(request: HttpRequest) -> bool:
    """Return True if a page of another origin made the request, as far as the browser tells.

    Only hosts and ports of the origins are compared: a proxy in front may have ended TLS.
    """
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return True
    origin = request.headers.get("origin")
    if origin is None:
        return False
    try:
        parts = urlsplit(origin)
        given = parts.hostname, parts.port or _default_port(parts.scheme)
        host = urlsplit(f"//{request.headers.get('host', '')}")
        return given != (host.hostname, host.port or _default_port(parts.scheme)) or not host.hostname
    except ValueError:
        return True


def _default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80


def is_own_host(request: HttpRequest, allowed: Iterable[str]) -> bool:
    """Return True if the browser addressed an IP address, this machine's name, or an allowed name.

    A name of a stranger that resolves to this machine (DNS rebinding) would make his page one of the console's origin.
    """
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return False
    if is_address(host):
        return True
    return host in _LOCAL or host in {name.lower() for name in (socket.gethostname(), *allowed)}


def tls_refusal(request: HttpRequest, options: Options) -> str:
    """Return why a client of the console may not log in although one of its credentials may, by the TLS that the server
    asks of clients; "" if it may."""
    tls = options.tls
    if tls is None:
        return ""
    if tls.needs_certificates and not options.console.without_certificate:
        return (
            "clients of this server show a certificate, which the console cannot ask for: "
            "console.without_certificate in the configuration lets its users do without"
        )
    if options.allow_non_tls or request.secure or is_loopback(request.host):
        return ""
    return "clients of this server use TLS: open the console with https (https_port)"


def is_address(host: str) -> bool:
    """Return True for an IP address."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return True if a client with this address is on this machine."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
