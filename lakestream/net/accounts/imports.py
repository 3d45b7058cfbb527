"""Imports between the accounts of a server.

Belongs here: matching each import with its export and connecting the accounts' hubs, at start and when accounts change.
Imports of configured accounts are checked in config/account_checks.py, those of signed ones here: an import that is not
allowed is left out. Messages cross in stream_imports.py, service_imports.py and responses.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from lakestream.config.account_options import (
    AccountOptions,
    ServiceExport,
    StreamExport,
    StreamImport,
)
from lakestream.config.account_options import ServiceImport as ServiceWanted
from lakestream.config.options import SECOND
from lakestream.config.sharing import ExportIndex, Import, ImportSubjects, approves, subjects_of
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Account, Accounts
from lakestream.net.accounts.responses import Responses
from lakestream.net.accounts.service_imports import ServerNames, ServiceImportSink, ServiceTerms
from lakestream.net.accounts.stream_imports import StreamImports, StreamRoute
from lakestream.net.hub import Hub
from lakestream.ports import Clock, Timer
from lakestream.protocol.subjects import valid_subject

MAX_WAIT_NS = 24 * 3600 * SECOND
"""Longest time to the next look at activations that expire (1 day)."""


class AccountImports:
    """The imports of all accounts of a server.

    Args:
        where: returns the names of this server for shared requests.

    Attributes:
        responses: reply paths out of an account, by its name.
    """

    def __init__(self, accounts: Accounts, clock: Clock, log: Logger, where: Callable[[], ServerNames]) -> None:
        self._accounts, self._clock, self._log, self._where = accounts, clock, log, where
        self.responses: dict[str, Responses] = {}
        self._streams: dict[str, StreamImports] = {}
        self._routes: dict[str, dict[StreamImport, StreamRoute]] = {}
        self._services: dict[str, list[ServiceImportSink]] = {}
        self._exports: dict[str, ExportIndexes] = {}
        self._shared: dict[str, object] = {}
        """Exports and imports of each account as they were connected."""
        self._importers: dict[str, set[str]] = {}
        """Accounts that import from an account, by its name."""
        self._turns: dict[str, list[int]] = {}
        """Times after its imports were connected at which their activations begin or end to hold, in ns."""
        self._expiry: Timer | None = None

    def changed(self, accounts: Sequence[Account]) -> None:
        """Connect the imports of accounts that are new or changed, and of those that import from them."""
        changed = {account.name for account in accounts if self._shared.get(account.name) != _shared(account)}
        for name in changed:
            self._exports.pop(name, None)
        affected = changed.union(*(self._importers.get(name, ()) for name in changed))
        self._reconnect(account for name in affected if (account := self._accounts.get(name)) is not None)

    def _reconnect(self, accounts: Iterable[Account]) -> None:
        now = self._clock.now()  # before activations are checked: one that ends meanwhile is still to come
        for account in accounts:
            self._shared[account.name] = _shared(account)
            for old in self._services.pop(account.name, ()):
                old.stop()
            for wanted in account.options.imports:
                self._importers.setdefault(wanted.account, set()).add(account.name)
            connected = self._connect_streams(account)
            for wanted in account.options.imports:
                if isinstance(wanted, ServiceWanted) and wanted not in connected:
                    connected += [wanted] if self._connect_service(account, wanted) else []
            account.imports = tuple(connected)
            activations = [one.activation for one in account.options.imports if one.activation is not None]
            times = [time * SECOND for one in activations for time in (one.exp, one.nbf)]
            self._turns[account.name] = [time for time in times if time > now]
        self._watch_expiry()

    def _connect_streams(self, account: Account) -> list[Import]:
        before = self._routes.get(account.name, {})
        routes: dict[StreamImport, StreamRoute] = {}
        for wanted in account.options.imports:
            exporter = self._accounts.get(wanted.account)
            if isinstance(wanted, StreamImport) and exporter is not None and self._allowed(account, exporter, wanted):
                subjects = self._subjects(account, wanted)
                if subjects is not None:
                    route = StreamRoute(exporter.hub, subjects, allow_trace=wanted.allow_trace)
                    routes[wanted] = before.get(wanted, route)
        if routes != before:
            self._routes[account.name] = routes
            if account.name not in self._streams:
                imports = self._streams[account.name] = StreamImports(account.hub)
                account.hub.imports = imports
            self._streams[account.name].replace(list(routes.values()), account.hub.interest_graph.subscriptions())
        return list(routes)

    def _connect_service(self, account: Account, wanted: ServiceWanted) -> bool:
        exporter = self._accounts.get(wanted.account)
        subjects = self._subjects(account, wanted)
        if exporter is None or subjects is None:
            return False
        export = self._service_export(account, exporter, wanted)
        if export is None:
            return False
        service = ServiceTerms(
            subjects=subjects,
            kind=export.response,
            threshold_ns=export.threshold_ns,
            share=wanted.share,
            allow_trace=export.allow_trace,
            latency=export.latency,
        )

        def streams() -> list[ImportSubjects]:
            routes = self._routes.get(account.name, {}).values()
            return [route.subjects for route in routes if route.exporter is exporter.hub]

        ours, theirs = self._reply_paths(account.hub), self._reply_paths(exporter.hub)
        link = ServiceImportSink(ours, theirs, service, self._where, streams)
        self._services.setdefault(account.name, []).append(link)
        link.start()
        return True

    def _reply_paths(self, hub: Hub) -> Responses:
        paths = self.responses.get(hub.account)
        if paths is None:
            paths = self.responses[hub.account] = Responses(hub, self._clock)
        return paths

    def _subjects(self, account: Account, wanted: Import) -> ImportSubjects | None:
        try:
            return subjects_of(wanted)
        except ValueError as error:  # Settings refuse such an import, tokens may have it.
            self._log.error(
                f'account "{account.name}": cannot import "{wanted.subject}" from "{wanted.account}": {error}'
            )
            return None

    # ------------------------------------------------------------------ what is allowed
    def _allowed(self, account: Account, exporter: Account, wanted: StreamImport) -> bool:
        """Return True if the exporter gives this stream. Of configured accounts the settings know."""
        if account.options.token is None:
            return True
        if exporter is account:
            return False
        subject, issued_s = wanted.subject.encode(), self._issued(exporter, wanted)
        return valid_subject(subject) and any(
            approves(export, account.name, subject, issued_s) for export in self._index(exporter).streams(subject)
        )

    def _service_export(self, account: Account, exporter: Account, wanted: ServiceWanted) -> ServiceExport | None:
        """Return the export through which an account imports this service."""
        subject, issued_s = wanted.subject.encode(), self._issued(exporter, wanted)
        if account.options.token is not None and (exporter is account or not valid_subject(subject)):
            return None
        exports = self._index(exporter).services(subject)
        return next((export for export in exports if approves(export, account.name, subject, issued_s)), None)

    def _index(self, exporter: Account) -> ExportIndexes:
        index = self._exports.get(exporter.name)
        if index is None:
            index = self._exports[exporter.name] = ExportIndexes(exporter.options)
        return index

    def _issued(self, exporter: Account, wanted: Import) -> int | None:
        """Return when the activation of an import was issued, in s since the epoch; None: it has none that holds."""
        activation = wanted.activation
        if activation is None or activation.time_issues(self._clock.now() // SECOND):
            return None
        given = activation.nats.issuer_account
        if given and (given != exporter.name or activation.iss not in _signers(exporter)):
            return None
        return activation.iat

    def _watch_expiry(self) -> None:
        """Connect the imports again when the next activation begins or ends to hold."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        coming = [time for times in self._turns.values() for time in times]
        if coming:
            wait = max(0, min(coming) - self._clock.now())
            self._expiry = self._clock.call_later(min(wait, MAX_WAIT_NS), self._turned)

    def _turned(self) -> None:
        self._expiry = None
        now = self._clock.now()  # timers may fire a millisecond early
        turned = [name for name, times in self._turns.items() if any(time <= now for time in times)]
        for name in turned:
            del self._turns[name]
        self._reconnect([account for name in turned if (account := self._accounts.get(name)) is not None])


class ExportIndexes:
    """The exports of one account, by their subjects."""

    def __init__(self, options: AccountOptions) -> None:
        self._streams = ExportIndex([one for one in options.exports if isinstance(one, StreamExport)])
        self._services = ExportIndex([one for one in options.exports if isinstance(one, ServiceExport)])

    def streams(self, subject: bytes) -> list[StreamExport]:
        """Return the narrowest exports of streams that cover a subject."""
        return self._streams.narrowest(subject)

    def services(self, subject: bytes) -> list[ServiceExport]:
        """Return the narrowest exports of services that cover a subject."""
        return self._services.narrowest(subject)


def _shared(account: Account) -> object:
    token = account.options.token
    return account.options.exports, account.options.imports, token is not None and sorted(token.nats.scopes)


def _signers(account: Account) -> set[str]:
    """Return the keys that sign for an account."""
    token = account.options.token
    return {account.name} if token is None else {account.name, *token.nats.scopes}
