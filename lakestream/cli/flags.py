"""The command line of a server, in Go's style.

Belongs here: the table of flags, and parsing arguments to `Flags`. One or two dashes are the same; a value follows
after `=` or in the next argument; a switch takes a value only after `=`. Flags become settings in config/loading.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from lakestream.config.errors import StartError
from lakestream.config.options import Flags


class FlagError(StartError):
    """Raised for a flag that cannot be parsed. As with nats-server the usage is shown then, and the exit code is 0."""


class Flag(msgspec.Struct, frozen=True):
    """One flag: its names, the field that it sets, and its kind.

    Attributes:
        kind: "text", "number" or "switch".
        word: what a switch may be beside true and false.
        field: a field of `Flags` or of `CommandLine`; "" for a flag of nats-server without effect here.
        missing: why a flag of nats-server is not supported, shown to the user.
    """

    names: tuple[str, ...]
    kind: str
    field: str = ""
    value: str = ""
    help: str = ""
    missing: str = ""
    word: str = ""


class CommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed command line: the server's settings, and actions instead of serving."""

    flags: Flags = Flags()
    show_help: bool = False
    show_version: bool = False
    test_config: bool = False
    test_reload: str = ""
    signal: str = ""


def _text(names: str, field: str, value: str, help: str) -> Flag:
    return Flag(tuple(names.split()), "text", field, value, help)


def _number(names: str, field: str, value: str, help: str) -> Flag:
    return Flag(tuple(names.split()), "number", field, value, help)


def _switch(names: str, field: str, help: str, word: str = "") -> Flag:
    return Flag(tuple(names.split()), "switch", field, "", help, word=word)


def _missing(names: str, kind: str, why: str) -> Flag:
    return Flag(tuple(names.split()), kind, missing=why)


SECTIONS: tuple[tuple[str, tuple[Flag, ...]], ...] = (
    (
        "Server Options",
        (
            _text("a addr net", "host", "host", "Bind to host address (default: 0.0.0.0)"),
            _number("p port", "port", "port", "Use port for clients (default: 4222; -1: a free one)"),
            _text("n name server_name", "server_name", "name", "Server name (default: auto)"),
            _text("client_advertise", "client_advertise", "host:port", "Client URL to advertise to other servers"),
            _text("P pid", "pid_file", "file", "File to store PID"),
            _number("m http_port", "http_port", "port", "Use port for http monitoring (-1: a free one)"),
            _number("ms https_port", "https_port", "port", "Use port for https monitoring (-1: a free one)"),
            _text(
                "workers", "workers", "n", "Processes that serve together as one server: a number or auto (default: 1)"
            ),
            _switch("no_console no-console", "no_console", "Serve no web console on the monitoring port"),
            _text("c config", "config", "file", "Configuration file"),
            _switch("t", "test_config", "Test configuration and exit"),
            _text(
                "test_reload",
                "test_reload",
                "file",
                "With -t, test if this file can be reloaded (exit code 3: a restart is required)",
            ),
            _text(
                "sl signal", "signal", "signal[=pid]", "Send signal to a server (ldm, stop, quit, term, reopen, reload)"
            ),
            _text(
                "ports_file_dir",
                "ports_file_dir",
                "dir",
                "Creates a ports file in the directory (nats-server_<pid>.ports)",
            ),
        ),
    ),
    (
        "Logging Options",
        (
            _text("l log", "log_file", "file", "File to redirect log output"),
            _number("log_size_limit", "log_size_limit", "bytes", "Begin a new log file at this size (default: never)"),
            _switch("s syslog", "syslog", "Log to the syslog daemon of this machine"),
            _text("r remote_syslog", "remote_syslog", "url", "Log to a syslog daemon (udp://localhost:514, tcp://...)"),
            _switch("T logtime", "logtime", "Timestamp log entries (default: true)"),
            _switch("logtime_utc", "logtime_utc", "Timestamps in UTC instead of local timezone (default: false)"),
            _switch("D debug", "debug", "Enable debugging output"),
            _switch("V trace", "trace", "Trace the raw protocol"),
            _switch("VV", "trace", "Verbose trace (the same as -V here)"),
            _switch("DV", "debug trace", "Debug and trace"),
            _switch("DVV", "debug trace", "Debug and verbose trace"),
        ),
    ),
    (
        "JetStream Options",
        (
            _switch("js jetstream", "jetstream", "Enable JetStream functionality"),
            _text("sd store_dir", "store_dir", "dir", "Set the storage directory"),
            _text("lake", "lake", "url", "Lake directory or URL (default: <store_dir>/lake)"),
            _switch("no-lake no_lake", "no_lake", "Run without a lake: streams stay in their logs"),
        ),
    ),
    (
        "Cluster Options",
        (
            _text("routes", "routes", "rurl-1, rurl-2", "Routes to solicit and connect"),
            _text("cluster cluster_listen", "cluster", "url", "Cluster URL from which members can solicit routes"),
            _text("cluster_name", "cluster_name", "name", "Cluster name (needed with JetStream; default: auto)"),
            _text("cluster_advertise", "cluster_advertise", "host:port", "Cluster URL to advertise to other servers"),
            _switch("no_advertise", "no_advertise", "Do not advertise other servers to clients"),
            _number("connect_retries", "connect_retries", "number", "Attempts to reconnect to a server not in routes"),
        ),
    ),
    (
        "Authorization Options",
        (
            _text("user", "user", "user", "User required for connections"),
            _text("pass", "password", "password", "Password required for connections"),
            _text("auth", "token", "token", "Authorization token required for connections"),
        ),
    ),
    (
        "TLS Options",
        (
            _switch("tls", "tls", "Enable TLS, do not verify clients (default: false)"),
            _text("tlscert", "tls_cert", "file", "Server certificate file"),
            _text("tlskey", "tls_key", "file", "Private key for server certificate"),
            _switch(
                "tlsverify",
                "tls_verify",
                "Enable TLS, verify client certificates (true, false or optional)",
                "optional",
            ),
            _text("tlscacert", "tls_ca", "file", "Client certificate CA for verification"),
        ),
    ),
    (
        "Common Options",
        (
            _switch("h help", "show_help", "Show this message"),
            _switch("v version", "show_version", "Show version"),
        ),
    ),
)

OF_NATS_SERVER: tuple[Flag, ...] = (
    _missing("help_tls", "switch", "see docs/security.md"),
    _missing("profile", "number", "there is no profiling port; use py-spy on the process"),
    Flag(("max_traced_msg_len",), "number"),
)
"""Flags of nats-server that are not settings here: rejected with the reason, or without effect."""

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def _table() -> dict[str, Flag]:
    flags = [flag for _, section in SECTIONS for flag in section]
    return {name: flag for flag in (*flags, *OF_NATS_SERVER) for name in flag.names}


def parse(arguments: Sequence[str]) -> CommandLine:
    """Read the arguments after `lakestream serve`.

    Raises:
        FlagError: unknown flag, missing or malformed value.
        StartError: a stray word, a flag of nats-server that is not supported.
    """
    table = _table()
    found: dict[str, Any] = {}
    warnings: list[str] = []
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        if argument == "--":
            _words(arguments[position:], found)
            break
        if len(argument) < 2 or argument[0] != "-":
            _words(arguments[position - 1 :], found)
            break
        name, given, value = _split(argument)
        flag = table.get(name)
        if flag is None:
            raise FlagError(f"flag provided but not defined: -{name}{_similar(name, table)}")
        if not given and flag.kind != "switch":
            if position == len(arguments):
                raise FlagError(f"flag needs an argument: -{name}")
            value = arguments[position]
            position += 1
        _set(flag, name, _convert(flag, name, value if given or flag.kind != "switch" else "true"), found, warnings)
    actions = ("show_help", "show_version", "test_config", "test_reload", "signal")
    own = {name: found.pop(name) for name in actions if name in found}
    return CommandLine(flags=Flags(warnings=tuple(warnings), **found), **own)


def _split(argument: str) -> tuple[str, bool, str]:
    body = argument[2:] if argument.startswith("--") else argument[1:]
    name, equals, value = body.partition("=")
    if not name or name[0] == "-":
        raise FlagError(f"bad flag syntax: {argument}")
    return name, bool(equals), value


def _convert(flag: Flag, name: str, value: str) -> str | int | bool:
    if flag.kind == "text":
        return value
    if flag.kind == "switch":
        if value in _TRUE:
            return True
        if value in _FALSE:
            return False
        if flag.word and value.lower() == flag.word:
            return flag.word
        wrong = f'expected true, false, or {flag.word}: strconv.ParseBool: parsing "{value}": invalid syntax'
        raise FlagError(f'invalid boolean value "{value}" for -{name}: {wrong if flag.word else "parse error"}')
    try:
        return int(value)
    except ValueError:
        raise FlagError(f'invalid value "{value}" for flag -{name}: parse error') from None


def _set(flag: Flag, name: str, value: str | int | bool, found: dict[str, Any], warnings: list[str]) -> None:
    if flag.missing:
        raise StartError(f"flag -{name} is not supported: {flag.missing}")
    if not flag.field:
        warnings.append(f"flag -{name} has no effect here")
    for field in flag.field.split():
        found[field] = value


def _words(words: Sequence[str], found: dict[str, Any]) -> None:
    """Take words without a dash: only `version` and `help` are known."""
    for word in words:
        if word not in ("version", "help"):
            raise StartError(f'unrecognized command: "{word}"')
        found[f"show_{word}"] = True


def _similar(name: str, table: dict[str, Flag]) -> str:
    import difflib  # needed for errors only

    near = difflib.get_close_matches(name, [known for known in table if len(known) > 2], 1, 0.7)
    return f", did you mean --{near[0]}?" if near else ""


def usage(command: str = "lakestream serve") -> str:
    """Return the help text, laid out like nats-server's."""
    lines = ["", f"Usage: {command} [options]"]
    for title, flags in SECTIONS:
        lines += ["", f"{title}:"]
        for flag in flags:
            names = ", ".join(("-" if len(name) < 3 else "--") + name for name in flag.names)
            left = f"{names} <{flag.value}>" if flag.value else names
            if len(flag.names[0]) > 3:
                left = "    " + left
            lines.append(f"    {left:<34} {flag.help}" if len(left) <= 34 else f"    {left}\n{'':<39}{flag.help}")
    return "\n".join((*lines, ""))
