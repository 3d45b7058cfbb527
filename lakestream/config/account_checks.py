"""Checks across accounts, and between accounts and other settings.

Belongs here: pure checks over options, with the errors of nats-server: exports that allow imports, cycles, and the
rules for a system account and `no_auth_user`. The keys of the file are in accounts.py.
"""

from __future__ import annotations

import graphlib
import re
from collections.abc import Iterable, Mapping, Sequence, Set

from lakestream.config.account_options import (
    AccountOptions,
    ServiceExport,
    ServiceImport,
    StreamExport,
    StreamImport,
)
from lakestream.config.errors import StartError
from lakestream.config.options import JetStreamOptions, Options
from lakestream.config.sharing import Export, ExportIndex, Import, approves, local_subject, subjects_of
from lakestream.protocol.accounts import GLOBAL_ACCOUNT, SYSTEM_ACCOUNT
from lakestream.protocol.subjects import matches, overlaps, publishable, valid_subject
from lakestream.protocol.transforms import TransformError

MAX_NAME = 128
"""Longest account name in bytes: it is a directory of the store."""

_NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]+(\.[^\s.*>/\\\x00-\x1f\x7f]+)*")
_TAKEN = ("VERSION", "LOCK", "_meta_", "_meta_.incoming", "_meta_.outgoing")
"""Other names in the directory that holds the accounts' directories."""


class AccountsError(ValueError):
    """Raised for accounts that do not fit together. `at`: the export or import that is wrong."""

    def __init__(self, at: Export | Import, reason: str) -> None:
        super().__init__(reason)
        self.at = at


def name_error(name: str) -> str:
    """Return why an account name is invalid; "" when it is valid."""
    if name == GLOBAL_ACCOUNT:
        return f'"{name}" is a Reserved Account'
    if _NAME.fullmatch(name) is None or len(name.encode()) > MAX_NAME or name in _TAKEN:
        return (
            f'"{name}" is not a valid account name: it must have no blanks, "*", ">", "/" and no empty token, '
            f"and at most {MAX_NAME} bytes"
        )
    return ""


# ---------------------------------------------------------------------- exports and imports


def check_accounts(accounts: Sequence[AccountOptions]) -> None:
    """Raise AccountsError for the first invalid export or import."""
    names = {account.name for account in accounts}
    for account in accounts:
        for export in account.exports:
            _check_export(export, names)
    known = {account.name: _Exporter(account) for account in accounts}
    for account in accounts:
        seen: set[tuple[str, str]] = set()
        for wanted in account.imports:
            _check_import(account.name, wanted, known)
            if isinstance(wanted, StreamImport):
                if (wanted.account, wanted.subject) in seen:
                    raise _import_error(wanted, "stream import already exists")
                seen.add((wanted.account, wanted.subject))
    _check_cycles(accounts)


def kind_of(one: Export | Import) -> str:
    """Return `stream` or `service`."""
    return "stream" if isinstance(one, StreamExport | StreamImport) else "service"


class _Exporter:
    """The exports of one account."""

    def __init__(self, account: AccountOptions) -> None:
        self._streams = ExportIndex([one for one in account.exports if isinstance(one, StreamExport)])
        self._services = ExportIndex([one for one in account.exports if isinstance(one, ServiceExport)])

    def gives(self, importer: str, wanted: Import) -> bool:
        """Return True if the importer may import this. Of the exports that cover it the narrowest decide."""
        subject = wanted.subject.encode()
        if not valid_subject(subject):
            return False
        found: Sequence[Export]
        if isinstance(wanted, StreamImport):
            found = self._streams.narrowest(subject)
        else:
            found = self._services.narrowest(subject)
        return any(approves(export, importer, subject) for export in found)


def _check_export(export: Export, names: Set[str]) -> None:
    for name in export.accounts or ():
        if name not in names:
            raise AccountsError(export, f'"{name}" account not defined for {kind_of(export)} export')
    subject = export.subject.encode()
    tokens = subject.split(b".")
    position = export.token_position
    wrong = not valid_subject(subject)
    if position and (not 0 < position <= len(tokens) or tokens[position - 1] != b"*"):
        wrong = True
    if wrong:
        reason = "sublist: invalid subject"
        raise AccountsError(export, f'Error adding {kind_of(export)} export "{export.subject}": {reason}')
    if isinstance(export, ServiceExport) and export.latency is not None:
        to, reason = export.latency.subject, ""
        if not publishable(to.encode()) or matches(subject, to.encode()):  # each metric would be a request
            reason = "invalid publish subject"
        elif export.response != "singleton":
            reason = "bad service response type"
        if reason:
            failed = f'Error adding service latency sampling for "{export.subject}" on subject "{to}"'
            raise AccountsError(export, f"{failed}: {reason}")


def _import_error(wanted: Import, reason: str) -> AccountsError:
    return AccountsError(wanted, f'Error adding {kind_of(wanted)} import "{wanted.subject}": {reason}')


def _check_import(importer: str, wanted: Import, known: Mapping[str, _Exporter]) -> None:
    exporter = known.get(wanted.account)
    kind = kind_of(wanted)
    if exporter is None:
        raise AccountsError(wanted, f'"{wanted.account}" account not defined for {kind} import')
    if kind == "service":
        for subject in (wanted.subject, wanted.to or wanted.subject):
            if not valid_subject(subject.encode()):
                raise _import_error(wanted, "sublist: invalid subject")
    if not exporter.gives(importer, wanted):
        raise _import_error(wanted, f"{kind} import not authorized")
    try:
        subjects_of(wanted)
    except TransformError as error:
        theirs, ours = wanted.subject, local_subject(wanted).decode()
        graph = (theirs, ours) if kind == "stream" else (ours, theirs)
        raise _import_error(
            wanted,
            f'failed to create mapping transform for {kind} import subject from "{graph[0]}" to "{graph[1]}": {error}',
        ) from error
    except ValueError as error:
        raise _import_error(wanted, str(error)) from error


def _check_cycles(accounts: Iterable[AccountOptions]) -> None:
    """Reject imports that lead back to themselves. An import from the account itself does not count."""
    for kind in (StreamImport, ServiceImport):
        graph = _ImportGraph()
        for account in accounts:
            for wanted in account.imports:
                if isinstance(wanted, kind) and wanted.account != account.name:
                    graph.add(account.name, wanted)
        order = graphlib.TopologicalSorter[int](dict.fromkeys(range(len(graph.imports)), ()))
        for at in range(len(graph.imports)):
            for following in graph.onward(at):
                order.add(following, at)
        try:
            order.prepare()
        except graphlib.CycleError as error:
            raise _import_error(graph.imports[error.args[1][-2]], "import forms a cycle") from None


class _ImportGraph:
    """Imports by number, and the imports of the exporter that each of them leads to."""

    def __init__(self) -> None:
        self.imports: list[Import] = []
        self._called: list[bytes] = []
        self._by_name: dict[tuple[str, bytes], list[int]] = {}
        """By importer and first token, b"" for a wildcard, so that few are compared."""
        self._all: dict[str, list[int]] = {}

    def add(self, importer: str, wanted: Import) -> None:
        at = len(self.imports)
        self.imports.append(wanted)
        self._called.append(subjects_of(wanted).ours)
        self._all.setdefault(importer, []).append(at)
        self._by_name.setdefault((importer, _first(self._called[at])), []).append(at)

    def onward(self, at: int) -> list[int]:
        """Return the imports of the exporter that overlap what this import takes from it."""
        account, theirs = self.imports[at].account, self.imports[at].subject.encode()
        first = _first(theirs)
        if first:
            near = [*self._by_name.get((account, first), ()), *self._by_name.get((account, b""), ())]
        else:
            near = self._all.get(account, [])
        return [other for other in near if overlaps(self._called[other], theirs)]


def _first(subject: bytes) -> bytes:
    """Return the first token of a filter when it is literal, else b""."""
    first = subject.partition(b".")[0]
    return b"" if first in (b"*", b">") else first


# ---------------------------------------------------------------------- the rest of the configuration


def check_options(options: Options) -> None:
    """Raise StartError when accounts, users and JetStream do not fit together."""
    system = options.system_account
    names = {account.name for account in options.accounts}
    if system == GLOBAL_ACCOUNT:
        raise StartError(f'system_account: "{system}" is a Reserved Account')
    if system and system not in names:
        raise StartError("error resolving system account: account missing")
    anonymous = options.no_auth_user
    if anonymous:
        users = {user.name for account in options.accounts for user in account.users}
        users |= {user.name for user in options.users}
        if not users:
            raise StartError(f'no_auth_user: "{anonymous}" present, but users/nkeys are not defined')
        if anonymous not in users:
            raise StartError(
                f'no_auth_user: "{anonymous}" not present as user or nkey in authorization block or account '
                "configuration"
            )
    for name in options.callout.allowed_accounts if options.callout is not None else ():
        if name not in names:
            raise StartError(f'auth_callout allowed account "{name}" not found in configured accounts')
    if options.jetstream is not None:
        _check_jetstream(options.accounts, system or SYSTEM_ACCOUNT, options.jetstream)


def _check_jetstream(accounts: Iterable[AccountOptions], system: str, server: JetStreamOptions) -> None:
    memory = file = 0
    for account in accounts:
        if account.jetstream is None:
            continue
        if account.name == system:
            raise StartError("Not allowed to enable JetStream on the system account")
        memory += max(account.jetstream.max_memory, 0)
        file += max(account.jetstream.max_file, 0)
    failed = "Can't start JetStream: Error enabling jetstream on configured accounts: insufficient"
    if memory > server.max_memory:
        raise StartError(f"{failed} memory resources available (10028)")
    if file > server.max_file:
        raise StartError(f"{failed} storage resources available (10047)")
