"""Options by which commands name a server and log in to it.

Belongs here: `--server` and the options of the login, which `with_server` adds to a command, and `--monitor`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer

from lakestream.lake.flush import ServerCredentials

DEFAULT_SERVER = "nats://127.0.0.1:4222"
DEFAULT_MONITOR = "http://127.0.0.1:8222"

_LOGIN = "Login to the server"


def _option(name: str, variable: str, text: str, **more: Any) -> Any:
    return typer.Option(name, envvar=variable, help=text, rich_help_panel=_LOGIN, **more)


UserOption = Annotated[str, _option("--user", "NATS_USER", "User name for the server.")]
PasswordOption = Annotated[
    str, _option("--password", "NATS_PASSWORD", "Password for the server.", show_default=False, show_envvar=True)
]
CredsOption = Annotated[str, _option("--creds", "NATS_CREDS", "Credentials file for the server.", metavar="FILE")]
NkeyOption = Annotated[str, _option("--nkey", "NATS_NKEY", "File with the seed of a user key.", metavar="FILE")]
CertOption = Annotated[str, _option("--tlscert", "NATS_CERT", "Client certificate (PEM).", metavar="FILE")]
KeyOption = Annotated[str, _option("--tlskey", "NATS_KEY", "Private key of the certificate (PEM).", metavar="FILE")]
CaOption = Annotated[
    str, _option("--tlsca", "NATS_CA", "Authorities that sign the server's certificate (PEM).", metavar="FILE")
]
MonitorOption = Annotated[
    str,
    typer.Option(
        "--monitor", envvar="LAKESTREAM_MONITOR", metavar="URL", help="The server's monitoring port (`serve -m`)."
    ),
]


class Server(msgspec.Struct, frozen=True):
    """A server to connect to: its URL, optionally with user, password or token, and the login."""

    url: str = DEFAULT_SERVER
    login: ServerCredentials = ServerCredentials()


_OPTIONS: dict[str, tuple[Any, str]] = {
    "server": (
        Annotated[str, typer.Option("--server", "-s", envvar="NATS_URL", metavar="URL", help="The server.")],
        DEFAULT_SERVER,
    ),
    "user": (UserOption, ""),
    "password": (PasswordOption, ""),
    "creds": (CredsOption, ""),
    "nkey": (NkeyOption, ""),
    "tls_cert": (CertOption, ""),
    "tls_key": (KeyOption, ""),
    "tls_ca": (CaOption, ""),
}


def with_server(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options of a server instead of its parameter `server`, which gets a `Server`."""

    @functools.wraps(command)
    def run(**values: Any) -> None:
        url, *login = (values.pop(name) for name in _OPTIONS)
        names = list(_OPTIONS)[1:]
        command(**values, server=Server(url, ServerCredentials(**dict(zip(names, login, strict=True)))))

    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.name != "server"]
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, kind, default=default, annotation=annotation)
        for name, (annotation, default) in _OPTIONS.items()
    ]
    parameters = [each.replace(kind=kind) for each in own] + added
    # Typer reads the options of a command from its signature and its annotations.
    run.__dict__.pop("__wrapped__")
    run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
    run.__dict__["__signature__"] = signature.replace(parameters=parameters)
    return run
