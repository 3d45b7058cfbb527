"""Accounts of a running server.

Belongs here: the hub, the limits and the connected clients of each account. Routing inside an account is the hub's;
messages cross accounts in stream_imports.py and service_imports.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from lakestream.config.account_options import (
    AccountOptions,
    Permissions,
    ServiceImport,
    StreamImport,
    SubjectMapping,
    User,
)
from lakestream.config.mappings import Mappings
from lakestream.config.options import Options
from lakestream.logging import Logger
from lakestream.net.accounts.auth import Login
from lakestream.net.accounts.permissions import Rules
from lakestream.net.hub import Hub
from lakestream.net.interest.subscription import Subscription
from lakestream.net.statistics import Counted
from lakestream.net.turn import Turn
from lakestream.protocol.accounts import GLOBAL_ACCOUNT, SYSTEM_ACCOUNT, UNLIMITED, JetStreamLimits
from lakestream.protocol.client import Sight
from lakestream.protocol.subjects import covers

MAX_RULES = 1024
"""Sets of permissions that an account remembers (default), for users who have the same. Cleared when full."""

_API = b"$JS.API.>"
_API_INFO = b"$JS.API.INFO"


class AccountMember(Protocol):
    """A connection that logged in to an account: a client or a leaf node."""

    id: int
    login: Login

    def turn_away(self, text: str, reason: str) -> None:
        """Close with -ERR `text`; `reason` is shown by monitoring."""

    def close(self, reason: str) -> None:
        """Close without a word to the client."""

    def limit(self) -> None:
        """Apply the limits of the account and the user as they are now."""

    def permit(self) -> None:
        """Apply the permissions of the user and the mappings of the account as they are now."""

    def unauthorized(self, shown: str) -> None:
        """Close because the user may not log in any more; `shown` names it in the log."""


class AccountClient(Counted, AccountMember, Protocol):
    """A client connection, as its account and monitoring see it."""

    subs: dict[bytes, Subscription]

    @property
    def pending_bytes(self) -> int:
        """Return the bytes not yet sent."""


class Account:
    """One account of a running server.

    Attributes:
        name: as configured.
        hub: routes its messages.
        options: its configuration.
        is_system: True for the system account.
        jetstream: its JetStream limits; None: JetStream is off.
        connections: connected clients by client id; `leaves`: leaf nodes, which are not among them.
        imports: the imports that work; `complete`: that is all of them.
        others: returns the number of its clients on other nodes.
    """

    def __init__(
        self, options: AccountOptions, hub: Hub, *, is_system: bool, jetstream: JetStreamLimits | None
    ) -> None:
        self.name = options.name
        self.hub = hub
        self.is_system = is_system
        self.connections: dict[int, AccountClient] = {}
        self.leaves: dict[int, AccountMember] = {}
        self.others: Callable[[], int] = lambda: 0
        self.imports: tuple[StreamImport | ServiceImport, ...] = ()
        self._mapped: tuple[tuple[SubjectMapping, ...], str] = ((), "")
        self.configure(options, jetstream)

    def configure(self, options: AccountOptions, jetstream: JetStreamLimits | None) -> None:
        """Apply the configuration."""
        self.options = options
        self.jetstream = jetstream
        self._rules: dict[Permissions, Rules] = {}

    @property
    def members(self) -> list[AccountMember]:
        """Return the connected clients and leaf nodes."""
        return [*self.connections.values(), *self.leaves.values()]

    @property
    def complete(self) -> bool:
        return len(self.imports) == len(self.options.imports)

    def map_subjects(self, cluster: str) -> None:
        """Apply the configured subject mappings; `cluster`: this server's, "" for none."""
        wanted = (self.options.mappings, cluster)
        if wanted != self._mapped:
            self._mapped = wanted
            self.hub.mappings = Mappings(*wanted) if self.options.mappings else None

    def permissions(self, user: User | None) -> Permissions | None:
        """Return the permissions of a user as configured, by default those of the account; None: unrestricted."""
        return None if user is None else user.permissions or self.options.default_permissions

    def rules(self, user: User | None) -> Rules | None:
        """Return the decisions about a user's subjects; None: unrestricted."""
        permissions = self.permissions(user)
        if permissions is None:
            return None
        if permissions not in self._rules:
            if len(self._rules) >= MAX_RULES:
                self._rules.clear()
            self._rules[permissions] = Rules(permissions)
        return self._rules[permissions]

    def sees(self, user: User | None) -> tuple[Sight, ...] | None:
        """Return the subjects whose messages a user can receive; None: all."""
        rules = self.rules(user)
        return None if rules is None else rules.sees()

    def admit(self, connection: AccountClient) -> bool:
        """Add a client; return False when the account is full."""
        limit = self.options.limits.max_connections
        if 0 <= limit <= len(self.connections) + self.others() and connection.id not in self.connections:
            return False
        self.connections[connection.id] = connection
        return True

    def forget(self, connection: AccountClient) -> None:
        """Remove a client from this account."""
        self.connections.pop(connection.id, None)


class Accounts:
    """All accounts of a running server.

    Attributes:
        default: the global account.
        system: the system account.
        alone: no account is configured, so every client may use the system API too.
    """

    def __init__(self, options: Options, turn: Turn, log: Logger) -> None:
        self._turn, self._log = turn, log
        self._accounts: dict[str, Account] = {}
        self._watchers: list[Callable[[Account], None]] = []
        self._followers: list[Callable[[Sequence[Account]], None]] = []
        self.configure(options)
        self.default = self._accounts[GLOBAL_ACCOUNT]

    def configure(self, options: Options) -> list[Account]:
        """Apply the configuration. Returns the accounts that are not configured any more."""
        self._options = options
        system = options.system_account or SYSTEM_ACCOUNT
        self.alone = not options.accounts and not options.system_account and options.operators is None
        # With configured accounts the global account has no streams (as in nats-server).
        self._global_streams = options.operators is None and all(one.name == system for one in options.accounts)
        wanted = {account.name: account for account in options.accounts}
        wanted.setdefault(GLOBAL_ACCOUNT, AccountOptions(name=GLOBAL_ACCOUNT, mappings=options.mappings))
        signed = {account.name: account.options for account in self if account.options.token is not None}
        wanted |= signed
        wanted.setdefault(system, AccountOptions(name=system))
        for name, configured in wanted.items():
            if name in self._accounts:
                self._accounts[name].configure(configured, self._jetstream(configured, system))
            else:
                self._add(self._account(configured))
        self.system = self._accounts[system]
        gone = [account for name, account in self._accounts.items() if name not in wanted]
        for account in gone:
            account.configure(AccountOptions(name=account.name), None)
        for account in self:
            account.map_subjects(options.cluster.name)
        self._changed(list(self))
        return gone

    def put(self, options: AccountOptions) -> Account:
        """Make an account or change it, while the server runs: its imports and JetStream follow.

        What its clients may do then is for the caller to apply.
        """
        account = self._accounts.get(options.name)
        if account is None:
            self._add(account := self._account(options))
        else:
            account.configure(options, self._jetstream(options, self.system.name))
        account.map_subjects(self._options.cluster.name)
        self._changed([account])
        return account

    def follow(self, changed: Callable[[Sequence[Account]], None]) -> None:
        """Call back with the accounts that a reload or `put` configured, in the order of these calls."""
        self._followers.append(changed)

    def _changed(self, accounts: Sequence[Account]) -> None:
        for changed in self._followers:
            changed(accounts)

    def _jetstream(self, options: AccountOptions, system: str) -> JetStreamLimits | None:
        if self._options.jetstream is None or options.name == system:
            return None
        if options.name == GLOBAL_ACCOUNT:
            return UNLIMITED if self._global_streams else None
        return options.jetstream

    def stores(self, account: Account) -> bool:
        """Return True if the account has JetStream on servers with JetStream enabled; this server may have none."""
        if account.name == GLOBAL_ACCOUNT:
            return self._global_streams
        return account.options.jetstream is not None and not account.is_system

    def replaces_api(self, account: Account) -> bool:
        """Return True if the JetStream API of another account takes the place of the account's own.

        The account imports the whole API under its own subjects; if it has no JetStream itself, an import that covers
        `$JS.API.INFO` is enough, and nothing answers requests that are not imported (as in nats-server).
        """
        needed = _API if self.stores(account) else _API_INFO
        imports = (one for one in account.options.imports if isinstance(one, ServiceImport))
        return any(covers((one.to or one.subject).encode(), needed) for one in imports)

    def _account(self, options: AccountOptions) -> Account:
        system = self._options.system_account or SYSTEM_ACCOUNT
        return Account(
            options,
            Hub(self._turn, self._log, options.name),
            is_system=options.name == system,
            jetstream=self._jetstream(options, system),
        )

    def _add(self, account: Account) -> None:
        self._accounts[account.name] = account
        for made in self._watchers:
            made(account)

    def watch(self, made: Callable[[Account], None]) -> None:
        """Call back with every account, and later with each that is made, before it has clients."""
        self._watchers.append(made)
        for account in self:
            made(account)

    def __iter__(self) -> Iterator[Account]:
        return iter(list(self._accounts.values()))

    def get(self, name: str) -> Account | None:
        """Return the account of that name; None: not configured."""
        return self._accounts.get(name)

    def of(self, name: str) -> Account:
        """Return the account of that name. An account that only other nodes have is made without clients."""
        if name not in self._accounts:
            hub = Hub(self._turn, self._log, name)
            self._add(Account(AccountOptions(name=name), hub, is_system=False, jetstream=None))
        return self._accounts[name]

    def bus(self, name: str) -> Hub:
        """Return the hub of that account; see `of`."""
        return self.of(name).hub
