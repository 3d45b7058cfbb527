"""The checks of credentials of one server.

Belongs here: what they are made of, at start and after a reload: configured users, operators with their resolver, auth
callouts, comparisons of hashes. What is decided about credentials is in net/accounts/.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING

from lakestream.config.errors import SettingsError
from lakestream.config.options import LEAFNODE, MQTT, MQTT_WS, STANDARD, WEBSOCKET, OperatorOptions, Options
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Account, Accounts
from lakestream.net.accounts.auth import Authenticator, Credentials, Done, HashChecks, Later, Login, Refusal
from lakestream.net.identity import Identity
from lakestream.protocol.nkeys import SERVER, CurveKey, KeyPair, new_curve_key, new_key
from lakestream.runtime import LoopClock, ThreadIo

if TYPE_CHECKING:
    from lakestream.net.accounts.callout import Callouts
    from lakestream.net.accounts.operators import Unusable
    from lakestream.net.accounts.resolver import Resolver
    from lakestream.net.accounts.signed_accounts import SignedAccounts


class Logins:
    """The checks of credentials by kind of client.

    Args:
        this: returns the identity of the server, and the name of its cluster.
        key: to be used if one is needed; None: a new one.

    Attributes:
        key: signs requests about logins, and is the server's id; None: there are no such requests.
        signed: the accounts that operators sign; None: there are no operators, or `start` was not called.
    """

    def __init__(
        self,
        options: Options,
        accounts: Accounts,
        io: ThreadIo,
        clock: LoopClock,
        log: Logger,
        this: Callable[[], tuple[Identity, str]],
        key: KeyPair | None = None,
    ) -> None:
        self._options = options
        self._accounts, self._io, self._clock, self._log, self._this = accounts, io, clock, log, this
        self.key = (key or new_key(SERVER)) if options.callout is not None or options.operators is not None else None
        self.signed: SignedAccounts | None = None
        self._hash_checks = HashChecks()
        self._cleanups: list[Callable[[], None]] = [self._hash_checks.close]
        self._authenticators = self._made()

    async def start(self) -> None:
        """Begin operator mode, and load the system account. Raises StartError."""
        operators = self._options.operators
        if operators is None:
            return
        from lakestream.net.accounts import operators as decisions  # with time zones, which most servers do without
        from lakestream.net.accounts.signed_accounts import SignedAccounts

        system, log = self._options.system_account, self._log
        for line in decisions.described(operators, system):
            log.info(line)
        resolver = await self._resolver(operators)
        self.signed = SignedAccounts(
            self._accounts,
            decisions.Trust(operators, system),
            resolver,
            lambda ruling, credentials, done: self._callouts.ask(ruling, credentials, done),
            self._clock,
            log,
            operators.sentinel,
        )
        if system and resolver.is_remote(system):
            log.debug(f"the token of the system account {system} comes from another server when it is needed")
        elif system:
            found: asyncio.Future[Account | Unusable] = asyncio.get_running_loop().create_future()
            self.signed.load(system, found.set_result)
            if isinstance(outcome := await found, decisions.Unusable):
                raise SettingsError(f"error resolving system account: {outcome.reason}")
        elif operators.operators:
            log.warn("Trusted Operators should utilize a System Account")

    async def load(self, accounts: Iterable[str]) -> None:
        """Load the accounts of operators that have streams here, unless other servers must be asked for their tokens:
        these are not connected yet."""
        if self.signed is None:
            return
        looks: list[asyncio.Future[None]] = []
        for account in accounts:
            if not self.signed.resolver.is_remote(account):
                looks.append(look := asyncio.get_running_loop().create_future())
                self.signed.need(account, partial(look.set_result, None))
        await asyncio.gather(*looks)

    def need(self, account: str) -> None:
        """Load an account that has streams, if it is one of an operator."""
        if self.signed is not None:
            self.signed.need(account)

    def of(self, kind: str) -> Authenticator:
        """Return the check of credentials of clients of this kind."""
        return self._authenticators[kind]

    def reload(self, options: Options) -> dict[str, Authenticator]:
        """Check credentials by other settings; return the checks before, by kind of client."""
        changed, self._options = options.operators != self._options.operators, options
        if changed and self.signed is not None and (operators := options.operators) is not None:
            from lakestream.net.accounts.operators import Trust

            self.signed.reload(Trust(operators, options.system_account), operators.sentinel, operators.preload)
        before, self._authenticators = self._authenticators, self._made()
        return before

    @property
    def by_kind(self) -> dict[str, Authenticator]:
        """Return the checks by kind of client."""
        return self._authenticators

    def close(self) -> None:
        """End what runs in threads."""
        for cleanup in self._cleanups:
            cleanup()

    @cached_property
    def curve_key(self) -> CurveKey:
        """Return the key to which others encrypt for this server; made for the first client, so that starts are
        fast."""
        return new_curve_key()

    def _made(self) -> dict[str, Authenticator]:
        options, kinds = self._options, (STANDARD, WEBSOCKET, LEAFNODE, MQTT, MQTT_WS)
        if options.operators is not None:
            signed = Authenticator(options, self._hash_checks, signed=self._signed_way)
            return dict.fromkeys(kinds, signed)
        make = partial(Authenticator, checks=self._hash_checks, ask=self._ask)
        found = dict.fromkeys(kinds, make(options))
        if options.websocket.port:
            from lakestream.config.websocket import listener_logins

            logins = listener_logins(options, options.websocket)
            found[WEBSOCKET] = make(logins, shown=bool(options.websocket.no_auth_user))
        if options.mqtt is not None:
            found[MQTT] = found[MQTT_WS] = make(options.mqtt.logins(options))
        if options.leafnodes.port:
            from lakestream.config.leafnodes import for_leafnodes

            found[LEAFNODE] = make(for_leafnodes(options))
        return found

    def _signed_way(self, credentials: Credentials) -> Login | Refusal | Later:
        assert self.signed is not None  # Invariant: begun before there are listeners.
        return self.signed.way(credentials)

    # ------------------------------------------------------------------ auth callouts
    def _ask(self, credentials: Credentials, done: Done) -> None:
        """Ask the service of the auth callout about a login."""
        from lakestream.net.accounts.callout import ConfiguredRuling

        callout = self._options.callout
        assert callout is not None  # else there is no such way
        self._callouts.ask(ConfiguredRuling(callout, self._options), credentials, done)

    @cached_property
    def _callouts(self) -> Callouts:
        from lakestream.net.accounts.callout import Asker, Callouts  # with keys and tokens, which few servers need

        def asker() -> Asker:
            assert self.key is not None  # Invariant: with a callout or operators.
            identity, cluster = self._this()
            tags = self._options.server_tags
            return Asker(identity=identity, key=self.key, xkey=self.curve_key, cluster=cluster, tags=tags)

        return Callouts(self._accounts.bus, asker, lambda: self._options.auth_timeout_ns, self._clock, self._log)

    # ------------------------------------------------------------------ tokens of accounts
    async def _resolver(self, operators: OperatorOptions) -> Resolver:
        """Return the resolver, which is ready. Raises StartError."""
        from lakestream.net.accounts import resolver as resolvers

        options = operators.resolver
        try:
            if options.kind == "memory":
                return resolvers.MemoryResolver(operators.preload)
            if options.kind == "url":
                from lakestream.net.accounts.url_resolver import UrlResolver

                asking = UrlResolver(options.url, options.tls, options.timeout_ns)
                self._cleanups.append(asking.close)
                await self._io.call(asking.check)
                return asking
            from lakestream.net.accounts.directory_resolver import DirectoryResolver
            from lakestream.net.accounts.token_files import TokenFiles

            full = options.kind == "full"
            files = TokenFiles(
                options.directory,
                options.limit,
                evicts=not full,
                ttl_ns=options.ttl_ns,
                hard_delete=options.hard_delete,
            )
            await self._io.call(lambda: files.open(operators.preload))
        except (resolvers.ResolverError, OSError) as error:
            raise SettingsError(str(error)) from error
        self._log.info(f"Managing all jwt in exclusive directory {options.directory}")
        return DirectoryResolver(
            files,
            self._accounts.system.hub,
            self._io,
            self._clock,
            self._log,
            timeout_ns=options.timeout_ns,
            interval_ns=options.interval_ns if full else 0,
            ttl_ns=options.ttl_ns,
        )
