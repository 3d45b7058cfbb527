"""Options by which commands name a server and log in to it.

Belongs here: `--server` and the options of the login, which `with_server` adds to a command, the contexts of the `nats`
command that they refer to, and `--monitor`.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from lakestream.lake.flush import ServerCredentials

DEFAULT_SERVER = "nats://127.0.0.1:4222"

_LOGIN = "Login to the server"


def _option(name: str, variable: str, text: str, **more: Any) -> Any:
    return typer.Option(name, envvar=variable, help=text, rich_help_panel=_LOGIN, **more)


UserOption = Annotated[str, _option("--user", "NATS_USER", "User name for the server.")]
PasswordOption = Annotated[
    str, _option("--password", "NATS_PASSWORD", "Password for the server.", show_default=False, show_envvar=True)
]
TokenOption = Annotated[str, _option("--token", "NATS_TOKEN", "Token for the server.", show_default=False)]
CredsOption = Annotated[str, _option("--creds", "NATS_CREDS", "Credentials file for the server.", metavar="FILE")]
NkeyOption = Annotated[str, _option("--nkey", "NATS_NKEY", "File with the seed of a user key.", metavar="FILE")]
CertOption = Annotated[str, _option("--tlscert", "NATS_CERT", "Client certificate (PEM).", metavar="FILE")]
KeyOption = Annotated[str, _option("--tlskey", "NATS_KEY", "Private key of the certificate (PEM).", metavar="FILE")]
CaOption = Annotated[
    str, _option("--tlsca", "NATS_CA", "Authorities that sign the server's certificate (PEM).", metavar="FILE")
]
FirstOption = Annotated[
    bool, typer.Option("--tlsfirst", help="Begin TLS before the server's greeting.", rich_help_panel=_LOGIN)
]
ContextOption = Annotated[
    str, _option("--context", "NATS_CONTEXT", "A context of the nats command: server and login.", metavar="NAME")
]


class Server(msgspec.Struct, frozen=True):
    """A server to connect to: its URL, optionally with user, password or token, and the login.

    `named`: an option, a variable or a context names it or a user; else it is the default one.
    """

    url: str = DEFAULT_SERVER
    login: ServerCredentials = ServerCredentials()
    named: bool = False


_LOGIN_OPTIONS: dict[str, tuple[Any, Any]] = {
    "user": (UserOption, ""),
    "password": (PasswordOption, ""),
    "token": (TokenOption, ""),
    "creds": (CredsOption, ""),
    "nkey": (NkeyOption, ""),
    "tls_cert": (CertOption, ""),
    "tls_key": (KeyOption, ""),
    "tls_ca": (CaOption, ""),
    "tls_first": (FirstOption, False),
}
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "server": (
        Annotated[
            str,
            typer.Option(
                "--server", "-s", envvar="NATS_URL", metavar="URL", help="The server.", show_default=DEFAULT_SERVER
            ),
        ],
        "",
    ),
    **_LOGIN_OPTIONS,
    "context": (ContextOption, ""),
}


def with_server(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options of a server instead of its parameter `server`, which gets a `Server`."""
    return with_options("server", _OPTIONS, server_of)(command)


def with_login(command: Callable[..., None]) -> Callable[..., None]:
    """Return the same for the parameter `login` of a command that has an option `--server` of its own: a `Server` with
    the login, and with the URL of a context."""
    return with_options("login", _OPTIONS, server_of)(command)


def with_options(
    parameter: str, options: Mapping[str, tuple[Any, Any]], gather: Callable[[dict[str, Any]], Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command several options instead of one parameter.

    Args:
        parameter: name of the parameter.
        options: by name the annotation and the default of each option.
        gather: makes the parameter's value of the options' values.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [each for each in signature.parameters.values() if each.name != parameter]
        taken = {each.name for each in own}  # `export --token` is about subjects

        @functools.wraps(command)
        def run(**values: Any) -> None:
            given = {name: default if name in taken else values.pop(name) for name, (_, default) in options.items()}
            command(**values, **{parameter: gather(given)})

        kind = inspect.Parameter.KEYWORD_ONLY
        added = [
            inspect.Parameter(name, kind, default=default, annotation=annotation)
            for name, (annotation, default) in options.items()
            if name not in taken
        ]
        parameters = [each.replace(kind=kind) for each in own] + added
        # Typer reads the options of a command from its signature and its annotations.
        run.__dict__.pop("__wrapped__")
        run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
        run.__dict__["__signature__"] = signature.replace(parameters=parameters)
        return run

    return decorate


def server_of(given: Mapping[str, Any]) -> Server:
    """Return the server that options name: each of them precedes the context, which precedes the default."""
    login = {name: given[name] for name in _LOGIN_OPTIONS if given[name]}
    name = given["context"] or ("" if given["server"] else _selected())
    found = _context(name) if name else {}
    for field, key in _CONTEXT_KEYS.items():
        if found.get(key) and field not in login:
            login[field] = found[key]
    url = given["server"] or found.get("url") or DEFAULT_SERVER
    return Server(url, ServerCredentials(**login), named=bool(given["server"] or name or _WHO & login.keys()))


_CONTEXT_KEYS = {
    "user": "user",
    "password": "password",
    "token": "token",
    "creds": "creds",
    "nkey": "nkey",
    "tls_cert": "cert",
    "tls_key": "key",
    "tls_ca": "ca",
    "tls_first": "tls_first",
}
"""Names of the login in a context's file."""


_WHO = {"user", "password", "token", "creds", "nkey"}


def _contexts() -> Path:
    """Return the directory of the nats command's settings."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "nats"


def _selected() -> str:
    """Return the selected context; "": none is."""
    try:
        return (_contexts() / "context.txt").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _context(name: str) -> dict[str, Any]:
    """Return a context's settings. Raises typer.BadParameter: it is missing, or cannot be read."""
    path = _contexts() / "context" / f"{name}.json"
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.json"))) or "none"
        raise typer.BadParameter(
            f"there is no {path}; contexts of the nats command are: {known}", param_hint="--context"
        ) from None
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"cannot read {path}: {error}", param_hint="--context") from None
    return {key: os.path.expanduser(value) if isinstance(value, str) else value for key, value in found.items()}
