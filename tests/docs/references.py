"""The pages of docs/reference that are made from the code.

    python -m tests.docs.references            writes them
    python -m tests.docs.references --check    tells which ones are not current, exit code 1

Belongs here: one function for each page. What a page says about a key, an error or an option is written where the code
defines it; docs/reference/configuration.md is written by hand but for its list of keys at the end.
"""

from __future__ import annotations

import argparse
import ast
import enum
import fnmatch
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import typer

from lakestream.cli.app import app
from lakestream.cli.flags import OF_NATS_SERVER, SECTIONS, Flag
from lakestream.cli.optional import LoadedLater
from lakestream.config import (
    account_options,
    accounts,
    callout,
    cluster,
    exports,
    leafnodes,
    options,
    remote,
    settings,
    tls,
    users,
    values,
    websocket,
)
from lakestream.config.values import Rule
from lakestream.protocol.api.errors import ERRORS, OWN_ERRORS
from lakestream_mqtt import options as mqtt
from tests.docs.anchors import anchor
from tests.docs.blocks import ROOT

FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- made by `make docs` from the code: do not edit -->\n"
BEGIN, END = "<!-- keys: made by `make docs` from the code -->\n", "<!-- end of keys -->\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def code(text: str) -> str:
    """Return a text as code; "" for none."""
    return f"`{text}`" if text else ""


# ---------------------------------------------------------------------- configuration


class Keys(NamedTuple):
    """The keys of one block.

    Attributes:
        path: the block in nats.conf.
        rules: the table by which it is converted.
        defaults: a record with the options that the keys set.
        harmless: keys of nats-server without effect here.
        missing: keys that are refused, with what to do instead.
    """

    path: str
    rules: Mapping[str, Rule]
    defaults: Any = None
    harmless: Iterable[str] = ()
    missing: Mapping[str, str] = {}


BLOCKS: tuple[Keys, ...] = (
    Keys("", settings.TOP, options.Options(), settings.TOP_HARMLESS, settings.TOP_MISSING),
    Keys("tls", tls.TLS, options.TlsOptions(), missing=tls.TLS_MISSING),
    Keys("proxies.trusted[]", settings.PROXY),
    Keys("authorization", settings.AUTHORIZATION, options.Options()),
    Keys("authorization.users[]", users.USER_KEYS),
    Keys("….permissions", users.PERMISSIONS),
    Keys("….permissions.allow_responses", users.RESPONSES, account_options.AllowResponses()),
    Keys("authorization.auth_callout", callout.CALLOUT),
    Keys("accounts.NAME", accounts.ACCOUNT_KEYS),
    Keys("accounts.NAME.msg_trace", accounts.ACCOUNT_TRACE, account_options.TraceOptions(destination="")),
    Keys("accounts.NAME.jetstream", accounts.ACCOUNT_JETSTREAM),
    Keys("accounts.NAME.limits", accounts.ACCOUNT_LIMITS, account_options.AccountLimits()),
    Keys("accounts.NAME.exports[]", exports.EXPORT),
    Keys("accounts.NAME.imports[]", exports.IMPORT),
    Keys("mappings.SUBJECT[]", accounts.DESTINATION, account_options.Destination("")),
    Keys(
        "jetstream",
        settings.JETSTREAM,
        options.JetStreamOptions(store_dir="", max_memory=0, max_file=0),
        settings.JETSTREAM_HARMLESS,
        settings.JETSTREAM_MISSING,
    ),
    Keys("jetstream.limits", settings.LIMITS),
    Keys("jetstream.limits.batch", settings.BATCH_LIMITS),
    Keys("lake", settings.LAKE, options.LakeOptions()),
    Keys("lake.spark_connect", settings.SPARK_CONNECT, options.LakeOptions()),
    Keys("log", settings.LOG, options.Options()),
    Keys("console", settings.CONSOLE, options.ConsoleOptions()),
    Keys("sql", settings.SQL, options.SqlOptions()),
    Keys("sql.postgres", settings.POSTGRES, options.PostgresOptions()),
    Keys("mqtt", mqtt.MQTT_KEYS, mqtt.MqttOptions()),
    Keys("audit", settings.AUDIT, options.AuditOptions()),
    Keys("otel", settings.OTEL, options.OtelOptions()),
    Keys("cluster", cluster.CLUSTER, None, cluster.CLUSTER_HARMLESS, cluster.CLUSTER_MISSING),
    Keys("cluster.authorization", cluster.CLUSTER_AUTHORIZATION, missing=cluster.CLUSTER_AUTHORIZATION_MISSING),
    Keys("websocket", websocket.WEBSOCKET_KEYS, options.WebSocketOptions()),
    Keys("websocket.authorization", websocket.WEBSOCKET_AUTHORIZATION),
    Keys("leafnodes", leafnodes.LEAFNODES, options.LeafOptions(), leafnodes.LEAFNODES_HARMLESS),
    Keys("leafnodes.authorization", leafnodes.LEAF_AUTHORIZATION),
    Keys(
        "leafnodes.remotes[]",
        leafnodes.LEAF_REMOTE,
        None,
        leafnodes.LEAF_REMOTE_HARMLESS,
        leafnodes.LEAF_REMOTE_MISSING,
    ),
    Keys("leafnodes.remotes[].proxy", leafnodes.LEAF_PROXY, options.HttpProxy(host="", port=0)),
    Keys("remotes[]", remote.REMOTE),
    Keys("remotes[].tls", remote.REMOTE_TLS, options.RemoteTls()),
    Keys("leafnodes.remotes[].tls", tls.DIALLING, missing=tls.NOT_DIALLING),
)
"""All blocks. The test of this module compares them with the tables of lakestream.config."""

KINDS: dict[Callable[..., Any], str] = {
    values.as_boolean: "boolean",
    values.as_text: "text",
    settings._log_format: "`text` or `json`",
    values.as_number: "number",
    values.as_limit: "number",
    values.as_bytes: "size",
    values.as_size: "size",
    values.as_positive_size: "size",
    values.as_duration: "duration",
    values.as_pause: "duration",
    values.as_positive_duration: "duration",
    values.as_ping_interval: "duration",
}
"""Kinds of values by their converter."""
_KINDS_BY_NAME = {
    "_verify": "boolean or `optional`",
    "_write_timeout": "`close` or `retry`",
    "address": "host:port",
    "_interval": "duration",
    "number_in": "number",
    "_flag": "boolean",
    "_boolean": "boolean",
    "_file": "file",
    "_timeout": "duration",
    "_duration": "duration",
    "_expires": "duration",
    "_lame_duck": "duration",
    "_lame_duck_grace": "duration",
    "_limit_of_bytes": "number",
    "_ack_pending": "number",
}


_NESTED = {part.removesuffix("[]") for block in BLOCKS for part in block.path.split(".")}
_KINDS_BY_RESULT = {"str": "text", "bool": "boolean", "int": "number", "tuple[str, ...]": "list"}


def _kind(names: Sequence[str], option: str, convert: Callable[..., Any]) -> str:
    if "port" in names or option.endswith("_port"):
        return "port"
    if option.endswith("_ns"):
        return "duration"
    if option in _SIZES:
        return "size"
    name = getattr(convert, "__qualname__", "").partition(".")[0]
    known = KINDS.get(convert) or _KINDS_BY_NAME.get(name)
    return known or _KINDS_BY_RESULT.get(getattr(convert, "__annotations__", {}).get("return", ""), "")


_SIZES = (
    "max_payload",
    "max_control_line",
    "max_pending",
    "max_pending_total",
    "max_incomplete_total",
    "max_buffered_size",
    "max_buffered_total",
)


def _default(block: Keys, option: str, kind: str) -> str:
    value = getattr(block.defaults, option, None)
    if value is None or value == "" or value == () or isinstance(value, tuple):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if option.endswith("_ns"):
        return _duration(value)
    if kind == "size" and value:
        return _size(value)
    return str(value) if isinstance(value, int | str) else ""


def _duration(ns: int) -> str:
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        if ns and ns % (size * options.SECOND) == 0:
            return f"{ns // (size * options.SECOND)}{unit}"
    return "0s" if not ns else f"{ns // 1_000_000}ms"


def _size(number: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number % size == 0:
            return f"{number // size} {unit}"
    return f"{number} B"


def grouped(rules: Mapping[str, Rule]) -> Iterator[tuple[list[str], Rule]]:
    """Yield the keys of a table with their other names: keys that share converter and option."""
    groups: list[tuple[list[str], Rule]] = []
    for name, rule in rules.items():
        for names, other in groups:
            if other == rule and (rule[0] != "*" or rule[1].__qualname__ != "address.<locals>.convert"):
                names.append(name)
                break
        else:
            groups.append(([name], rule))
    yield from groups


def keys() -> str:
    """Return the list of all keys."""
    parts = []
    for block in BLOCKS:
        rows = []
        for names, (option, convert) in grouped(block.rules):
            kind = _kind(names, option, convert)
            if not kind and {*names} & _NESTED:
                kind = "block"
            rows.append((code(names[0]), " ".join(map(code, names[1:])), kind, _default(block, option, kind)))
        parts.append(f"### `{block.path} {{ … }}`\n\n" if block.path else "### At the top\n\n")
        parts.append(table(("key", "other names", "value", "default"), rows) + "\n")
        if block.harmless:
            parts.append(f"No effect here: {', '.join(map(code, block.harmless))}.\n\n")
        if block.missing:
            parts.append(table(("refused", "instead"), [(code(key), why) for key, why in block.missing.items()]) + "\n")
    return "".join(parts)


def configuration() -> str:
    """Return docs/reference/configuration.md with its list of keys made anew."""
    text = (FOLDER / "configuration.md").read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{keys()}{END}{tail}"


# ---------------------------------------------------------------------- errors


def errors() -> str:
    """Return the page of error codes and of the texts of -ERR."""
    rows = [(str(number), str(kind.code), code(kind.description)) for number, kind in ERRORS.items()]
    own = [(str(number), str(kind.code), code(kind.description)) for number, kind in OWN_ERRORS.items()]
    texts = [(code(text), where) for text, where in sorted(_client_errors().items(), key=lambda pair: pair[0].lower())]
    return f"""{NOTE}
# Errors

```sh
nats req '$JS.API.STREAM.INFO.NONE' ''       # the answer has "error": {{"code": 404, "err_code": 10059, …}}
```

## JetStream

Answers of the API and refused publishes have an `error` with `code`, `err_code` and `description`. The codes and texts
are nats-server's; `{{…}}` stands for what differs. `code` is 400 for wrong requests, 404 for what does not exist, 500
and 503 for what the server cannot do now.

{table(("err_code", "code", "description"), rows)}
## lakestream

These codes are of [schemas](../typed-tables.md); nats-server has none of them.

{table(("err_code", "code", "description"), own)}
## `-ERR` of client connections

`{{…}}` stands for what differs. Most of these end the connection; a violation of permissions does not.

{table(("text", "source"), texts)}"""


_SENDERS = {
    "_fail": "net",
    "_error": "net",
    "turn_away": "net",
    "ConnectionEnd": "net/accounts",
    "Violation": "protocol/parser",
}
"""Functions and records whose first argument is a text for -ERR, and the part of lakestream with those for clients."""
_REFUSALS = "net/accounts/permissions"
"""The module whose `Refusal`s are told to clients; those of other modules are for the log."""


def _client_errors() -> dict[str, str]:
    """Return the texts of -ERR for clients, with the file that has them."""
    found: dict[str, str] = {}
    for path in sorted([*(ROOT / "lakestream/net").rglob("*.py"), ROOT / "lakestream/protocol/parser.py"]):
        where = str(path.relative_to(ROOT / "lakestream"))
        if where.split("/")[1] in ("leaf", "remote", "peers", "websocket"):
            continue
        tree = ast.parse(path.read_text())
        constants = {
            target.id: _text(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            part = _REFUSALS if name == "PermissionViolation" else _SENDERS.get(name, "none")
            given = node.args[:1] if where.startswith(part) else []
            given += [word.value for word in node.keywords if word.arg == "error" and name == "SetupError"]
            for argument in (each.value if isinstance(each, ast.Starred) else each for each in given):
                text = constants.get(argument.id, "") if isinstance(argument, ast.Name) else _text(argument)
                if text:
                    found.setdefault(text, f"lakestream/{where}")
    return found


def _text(node: ast.expr) -> str:
    """Return a text of the source with `{…}` for what is filled in; "" if it is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Tuple) and node.elts:
        return _text(node.elts[0])  # text and reason of a close
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in node.values)
    return ""


# ---------------------------------------------------------------------- command line


def cli() -> str:
    """Return the page of commands and flags."""
    group = typer.main.get_command(app)
    commands: dict[str, Any] = group.commands  # type: ignore[attr-defined]
    listed = [
        (f"[`{name}`](#{anchor(f'lakestream {name}')})", _sentence(command.help)) for name, command in _walk(commands)
    ]
    parts = [
        NOTE,
        "\n# Command line\n\n```sh\nlakestream --help\nlakestream sql --help\n```\n\n",
        table(("command", "purpose"), listed),
        "\n| exit code | meaning |\n|---|---|\n| 0 | done |\n| 1 | failed; stderr has the reason |\n",
        "| 2 | the command line is wrong |\n| 130 | interrupted by Ctrl-C |\n\n",
    ]
    for name, command in _walk(commands):
        parts.append(f"## `lakestream {name}`\n\n{(command.help or '').strip()}\n\n")
        if name in ("serve", "up"):
            parts.append("Flags: [see below](#flags-of-serve-and-up).\n\n")
            continue
        rows = [_parameter(each) for each in command.params if not getattr(each, "hidden", False)]
        if rows:
            parts.append(table(("argument", "meaning", "default"), rows) + "\n")
    parts.append(
        "## Flags of `serve` and `up`\n\nOne dash or two; a value after a blank or `=`; as in nats-server.\n\n"
    )
    for title, flags in SECTIONS:
        rows3 = [(_names(flag), flag.help) for flag in flags]
        parts.append(f"### {title}\n\n{table(('flag', 'meaning'), rows3)}\n")
    rows2 = [(_names(flag), flag.missing or "accepted, without effect") for flag in OF_NATS_SERVER]
    parts.append(f"### Flags of nats-server that are not served\n\n{table(('flag', 'instead'), rows2)}")
    return "".join(parts)


def _walk(commands: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in commands.items():
        if getattr(command, "hidden", False):
            continue
        if isinstance(command, LoadedLater):
            command.load()
        inner = getattr(command, "commands", None)
        if inner:
            yield from _walk(inner, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split()).partition(". ")[0].rstrip(".") + "."


def _names(flag: Flag) -> str:
    names = " ".join(code(("-" if len(name) < 3 else "--") + name) for name in flag.names)
    return f"{names} {code(flag.value.upper())}".strip()


def _parameter(each: Any) -> tuple[str, str, str]:
    is_option = each.opts[0].startswith("-")
    names = (
        " ".join(code(name) for name in (*each.opts, *each.secondary_opts)) if is_option else code(each.name.upper())
    )
    if is_option and not each.is_flag:
        names += " " + code(each.metavar or each.name.upper())
    default = each.default.value if isinstance(each.default, enum.Enum) else each.default
    shown = (
        "required" if each.required else "" if default in (None, False, "", ()) or callable(default) else str(default)
    )
    if variable := getattr(each, "envvar", None):
        shown = ", ".join(filter(None, (f"`${variable}`", shown)))
    return names, " ".join((each.help or "").split()), shown


# ---------------------------------------------------------------------- environment


ENVIRONMENT: dict[str, str] = {
    "NATS_URL": "the server, for commands that connect to one",
    "LAKESTREAM_LAKE": "the lake, for commands that read one, and for Spark's own programs",
    "LAKESTREAM_CATALOGS": "catalogs in which tables are registered, separated by blanks, for `compact` and `catalog`",
    "LAKESTREAM_UNITY_TOKEN": "the token for Unity Catalog",
    "LAKESTREAM_UNITY_TOKEN_FILE": "a file with it",
    "LAKESTREAM_ICEBERG_TOKEN": "the token for REST catalogs of others",
    "LAKESTREAM_ICEBERG_TOKEN_FILE": "a file with it",
    "LAKESTREAM_NATIVE": "`off`: the loops over messages run in Python though the compiled module is there",
    "LAKESTREAM_CACHE": "directory of downloaded JARs; else `$XDG_CACHE_HOME/lakestream`, else `~/.cache/lakestream`",
    "LAKESTREAM_IVY_SETTINGS": "settings file of Ivy, for JARs from a repository of your own",
    "LAKESTREAM_LEASE_SECONDS": "age at which a lock in an object store counts as abandoned",
    "LAKESTREAM_LATE_SECONDS": "time for which a commit of a killed job may still arrive in an object store",
    "LAKESTREAM_KEYS": "master keys of encrypted stores, one a line, the newest first: for programs that read their "
    "staged segments or files ([encryption](../security.md#encryption-at-rest))",
    "LAKESTREAM_JOBS": "directory of the programs for Spark (`compact.py`, …), where they are not beside lakestream",
    "LAKESTREAM_SPARK_LOG": "log level of Spark's streaming engine in the compactor: `error` shows stack traces",
    "SPARK_CONNECT_AUTHENTICATE_TOKEN": "the token of Spark Connect, for `compact --connect` and clients of Spark",
    "JAVA_HOME": "the Java with which Spark runs; else `java` on `PATH`",
    "XDG_CACHE_HOME": "directory of caches",
    "AWS_ACCESS_KEY_ID": "credentials of an object store, with `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`",
    "AWS_REGION": "region of the bucket; else `AWS_DEFAULT_REGION`",
    "AWS_ENDPOINT_URL": "address of an S3-compatible store; `AWS_ENDPOINT_URL_S3` comes first",
    "AWS_ALLOW_HTTP": "`true` permits an endpoint without TLS",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "`true`: the bucket is part of the host's name",
}
"""Environment variables that lakestream reads; the test of this module looks for others."""


def environment() -> str:
    """Return the page of environment variables."""
    rows = [(code(name), meaning) for name, meaning in ENVIRONMENT.items()]
    return f"""{NOTE}
# Environment variables

```sh
LAKESTREAM_LAKE=data/lake lakestream sql -q .tables
```

{table(("variable", "meaning"), rows)}
In `nats.conf`, `$NAME` is the value of the nearest key of that name, else of the environment variable.
"""


# ---------------------------------------------------------------------- compatibility


def compatibility() -> str:
    """Return the page of areas that are compared with nats-server."""
    from tests.cluster import differences as cluster_differences
    from tests.cluster import harness as cluster_harness
    from tests.cluster import scenarios as cluster_scenarios
    from tests.conformance import differences, harness, scenarios

    scenarios.load()
    cluster_scenarios.load()
    one, one_count, one_exact = _areas("tests.conformance.scenarios", harness.SCENARIOS, differences.DIFFERENCES)
    many, many_count, many_exact = _areas(
        "tests.cluster.scenarios", cluster_harness.SCENARIOS, cluster_differences.DIFFERENCES
    )
    listed = [*differences.DIFFERENCES, *cluster_differences.DIFFERENCES]
    reasons = list(dict.fromkeys((each.scenario.partition(".")[0], each.why) for each in listed))
    return f"""{NOTE}
# Compatibility with nats-server 2.15.1

<!-- not run: the comparison is a test stage of its own and takes minutes -->
```sh
make conformance      # compares both servers live
```

The same scenarios run against nats-server and lakestream, through the socket. Their transcripts (all frames, after
names, times and ids are normalised) must be equal, except for the [differences](#differences) that are listed here with
their reasons. Some answers of nats-server 2.15.3 are others; where lakestream gives those, it is compared with
recordings of that release.
{one_count + many_count:,} scenarios are compared; {one_exact + many_exact:,} are equal in every frame but for the
difference of all streams, which is listed first.
[What is not served](../not-served.md) is listed on a page of its own.

## One server

{one}
## Clusters

{many}
## Differences

{table(("area", "reason"), ((code(area), why) for area, why in reasons))}"""


def _areas(package: str, played: Sequence[Any], allowed: Sequence[Any]) -> tuple[str, int, int]:
    """Return the table of a package's areas, the number of their scenarios, and of those equal throughout."""
    names: dict[str, list[str]] = {}
    for each in played:
        names.setdefault(each.id.partition(".")[0], []).append(each.id)
    rows, exact = [], 0
    for area, ids in sorted(names.items()):  # whatever was imported first
        text = importlib.import_module(f"{package}.{area}").__doc__ or ""
        own = [each for each in allowed if each.scenario != "*"]
        other = sum(any(fnmatch.fnmatch(id, each.scenario) for each in own) for id in ids)
        exact += len(ids) - other
        about = (
            " ".join(text.partition("\n\n")[0].split())
            .removeprefix("Scenarios of ")
            .partition(" (docs/")[0]
            .rstrip(".:")
        )
        rows.append((code(area), about[:1].upper() + about[1:], str(len(ids)), str(len(ids) - other)))
    return table(("area", "content", "scenarios", "equal throughout"), rows), len(played), exact


# ---------------------------------------------------------------------- all pages


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "cli.md": cli,
    "errors.md": errors,
    "environment.md": environment,
    "compatibility.md": compatibility,
}


def stale() -> list[str]:
    """Return the pages that are not what the code says."""
    return [name for name, make in PAGES.items() if (FOLDER / name).read_text() != make()]


def main() -> int:
    """Write or check the pages; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is not current")
    if parser.parse_args().check:
        old = stale()
        print("\n".join(f"docs/reference/{name} is not current: make docs" for name in old), end="\n" if old else "")
        return int(bool(old))
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make())
    return 0


if __name__ == "__main__":
    sys.exit(main())
