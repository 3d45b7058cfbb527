"""Imports between the accounts of a server.

Belongs here: matching each import with its export and connecting the accounts' hubs, at start and after a reload.
Whether an import is allowed is decided in config/account_checks.py; messages cross in stream_imports.py,
service_imports.py and responses.py.
"""

from __future__ import annotations

from collections.abc import Callable

from lakestream.config.options import AccountOptions, ServiceExport, StreamImport
from lakestream.config.options import ServiceImport as ServiceWanted
from lakestream.config.sharing import ExportIndex, ImportSubjects, approves, subjects_of
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Account, Accounts
from lakestream.net.accounts.responses import Responses
from lakestream.net.accounts.service_imports import ServerNames, Service, ServiceImport
from lakestream.net.accounts.stream_imports import StreamImports, StreamRoute
from lakestream.net.hub import Hub
from lakestream.ports import Clock


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
        self._services: list[ServiceImport] = []
        self._exports: dict[str, ExportIndex[ServiceExport]] = {}

    def connect(self) -> None:
        """Connect the imports that are configured now, and no others."""
        for old in self._services:
            old.stop()
        self._services = []
        self._exports = {}
        for account in self._accounts:
            self._connect_streams(account)
            for wanted in account.options.imports:
                if isinstance(wanted, ServiceWanted):
                    self._connect_service(account, wanted)

    def _connect_streams(self, account: Account) -> None:
        before = self._routes.get(account.name, {})
        routes: dict[StreamImport, StreamRoute] = {}
        for wanted in account.options.imports:
            exporter = self._accounts.get(wanted.account)
            if isinstance(wanted, StreamImport) and exporter is not None:
                subjects = self._subjects(account, wanted)
                if subjects is not None:
                    route = StreamRoute(exporter.hub, subjects, allow_trace=wanted.allow_trace)
                    routes[wanted] = before.get(wanted, route)
        if routes == before:
            return
        self._routes[account.name] = routes
        if account.name not in self._streams:
            imports = self._streams[account.name] = StreamImports(account.hub)
            account.hub.imports = imports
        self._streams[account.name].replace(list(routes.values()), account.hub.interest_graph.subscriptions())

    def _connect_service(self, account: Account, wanted: ServiceWanted) -> None:
        exporter = self._accounts.get(wanted.account)
        subjects = self._subjects(account, wanted)
        if exporter is None or subjects is None:
            return
        export = self._service_export(exporter.options, account.name, wanted.subject.encode())
        if export is None:
            return
        service = Service(
            subjects=subjects,
            kind=export.response,
            threshold_ns=export.threshold_ns,
            share=wanted.share,
            allow_trace=export.allow_trace,
            latency=export.latency,
        )
        link = ServiceImport(self._reply_paths(account.hub), self._reply_paths(exporter.hub), service, self._where)
        self._services.append(link)
        link.start()

    def _reply_paths(self, hub: Hub) -> Responses:
        paths = self.responses.get(hub.account)
        if paths is None:
            paths = self.responses[hub.account] = Responses(hub, self._clock)
        return paths

    def _subjects(self, account: Account, wanted: StreamImport | ServiceWanted) -> ImportSubjects | None:
        try:
            return subjects_of(wanted)
        except ValueError as error:  # Invariant: settings refuse such an import.
            self._log.error(
                f'account "{account.name}": cannot import "{wanted.subject}" from "{wanted.account}": {error}'
            )
            return None

    def _service_export(self, exporter: AccountOptions, importer: str, subject: bytes) -> ServiceExport | None:
        """Return the export through which an account imports this service."""
        index = self._exports.get(exporter.name)
        if index is None:
            services = [export for export in exporter.exports if isinstance(export, ServiceExport)]
            index = self._exports[exporter.name] = ExportIndex(services)
        return next((export for export in index.narrowest(subject) if approves(export, importer, subject)), None)
