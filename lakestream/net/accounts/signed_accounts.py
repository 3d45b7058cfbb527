"""Accounts that operators signed, in a running server.

Belongs here: fetching the token of an account with its first user or importer, replacing it, its end, and what that
does to connected clients; and the way of users with tokens. What a token allows is decided in operators.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial

from msgspec.structs import replace

from lakestream.config.account_options import AccountOptions
from lakestream.config.options import SECOND
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Account, AccountMember, Accounts
from lakestream.net.accounts.auth import Credentials, Done, Later, Login, Outcome, Refusal
from lakestream.net.accounts.callout import Ruling, misplaced, warned
from lakestream.net.accounts.operators import (
    INVALID,
    ConnectionEnd,
    Trust,
    Unusable,
    UserToken,
    account_options,
    issuer_account,
    user_limits,
)
from lakestream.net.accounts.resolver import Answer, Missing, Resolver
from lakestream.ports import Clock, Timer
from lakestream.protocol import jwt, nkeys
from lakestream.protocol.goquote import quoted
from lakestream.protocol.jwt import JwtError

MAX_WAIT_NS = 24 * 3600 * SECOND
"""Longest time to the next look at the end of an account (1 day), as clocks are set."""

NEEDED_AGAIN_NS = SECOND
MAX_NEEDED_AGAIN_NS = 30 * SECOND
"""Pause until the token of an account with streams here is looked up again: 1 s, doubled each time up to 30 s."""

MAX_VOID = 10_000
"""Deleted or expired accounts whose last token is remembered (default 10,000). The oldest are forgotten."""

ACCOUNT_ENDED = ConnectionEnd("Account Authentication Expired", "Authentication Expired")

ANY_ACCOUNT = "*"
"""Allows the service of an auth callout to let users into any account."""

Loaded = Callable[[Account | Unusable], None]


class SignedAccounts:
    """The accounts of operator mode.

    Args:
        accounts: all accounts of the server; signed ones are put there.
        ask: asks the service of an account about a login.
        sentinel: the token of clients without one; "": they are rejected.

    Attributes:
        trust: judges tokens.
        resolver: has the tokens of accounts.
        updated: when each account got its token, ns since the epoch.
    """

    def __init__(
        self,
        accounts: Accounts,
        trust: Trust,
        resolver: Resolver,
        ask: Callable[[Ruling, Credentials, Done], None],
        clock: Clock,
        log: Logger,
        sentinel: str = "",
    ) -> None:
        self._ask = ask
        self.trust, self.resolver = trust, resolver
        self._accounts, self._clock, self._log, self._sentinel = accounts, clock, log, sentinel
        self.updated: dict[str, int] = {}
        self._waiting: dict[str, list[Loaded]] = {}
        """Callbacks by account, while its token is looked up."""
        self._ends: dict[str, Timer] = {}
        self._needed: dict[str, int] = {}
        """Accounts with streams here whose token is not known; the pause before the last look, in ns."""
        self._void: dict[str, str] = {}
        """Signatures of tokens of accounts that were ended: a deleted account comes back with another token only, one
        that a reload took away ("") with any."""

    # ------------------------------------------------------------------ accounts
    def loaded(self, key: str) -> Account | None:
        """Return an account whose token is known and has not ended."""
        account = self._accounts.get(key)
        return account if account is not None and account.options.token is not None else None

    def load(self, key: str, done: Loaded) -> None:
        """Look an account up unless it is known, with those that it imports from, and call back once."""
        account = self.loaded(key)
        if account is not None:
            done(account)
        elif not nkeys.is_public(key, nkeys.ACCOUNT):
            done(Unusable("will only fetch valid account keys"))
        elif key in self._waiting:
            self._waiting[key].append(done)
        else:
            self._waiting[key] = [done]
            self.resolver.lookup(key, lambda answer: self._answered(key, answer))

    def need(self, key: str, looked: Callable[[], None] = lambda: None) -> None:
        """Load an account that has streams on this server, which are closed until its token is found.

        Args:
            looked: called once, after the first look.
        """
        if self.loaded(key) is not None or key in self._needed or not nkeys.is_public(key, nkeys.ACCOUNT):
            looked()
            return
        self._needed[key] = 0
        self._look(key, looked)

    def _look(self, key: str, looked: Callable[[], None] = lambda: None) -> None:
        """Look for the token of a needed account, until there is one."""

        def loaded(outcome: Account | Unusable) -> None:
            if isinstance(outcome, Unusable):
                before = self._needed[key]
                if not before:
                    what = f'account "{key}" has streams here that are closed until its token can be used'
                    self._log.warn(f"{what}: {outcome.reason}")
                wait = self._needed[key] = min(max(2 * before, NEEDED_AGAIN_NS), MAX_NEEDED_AGAIN_NS)
                self._clock.call_later(wait, lambda: self._look(key))
            elif self._needed.pop(key):
                self._log.info(f'account "{key}" has its token: its streams are served')
            looked()

        self.load(key, loaded)

    def renew(self, key: str, text: str) -> None:
        """Use a token that came unasked, if the account is in use or should be; else the next login finds it.

        Raises:
            JwtError: it cannot be used; the account stays as it was.
        """
        ended = self._void.get(key)
        if self.loaded(key) is not None or key in self._needed or (ended is not None and ended != _signature(text)):
            self.update(key, text)

    def _answered(self, key: str, answer: Answer) -> None:
        if isinstance(answer, Missing):
            self._done(key, Unusable(answer.reason, (f"Account fetch failed: {answer.reason}",)))
            return
        try:
            if self._void.get(key) == _signature(answer):
                raise JwtError(INVALID)
            account = self.update(key, answer)
        except JwtError:
            self._done(key, Unusable(INVALID))
            return
        self._load_exporters(account, lambda: self._done(key, account))

    def _load_exporters(self, account: Account, done: Callable[[], None]) -> None:
        """Load the accounts that an account imports from, and call back once.

        It is loaded itself by now, so accounts that import from each other do not wait for each other.
        """
        left = {wanted.account for wanted in account.options.imports if self.loaded(wanted.account) is None}

        def found(exporter: str) -> None:
            left.discard(exporter)
            if not left:
                done()

        if not left:
            done()
        for exporter in list(left):  # soon: a long chain of accounts must not become a deep stack
            self._clock.call_soon(partial(self._load_exporter, exporter, found))

    def _load_exporter(self, key: str, found: Callable[[str], None]) -> None:
        def loaded(outcome: Account | Unusable) -> None:
            for line in outcome.warnings if isinstance(outcome, Unusable) else ():
                self._log.warn(line)
            found(key)

        self.load(key, loaded)

    def _done(self, key: str, outcome: Account | Unusable) -> None:
        for done in self._waiting.pop(key, ()):
            done(outcome)

    def update(self, key: str, text: str) -> Account:
        """Use a token for an account from now on, also for its connected clients.

        Raises:
            JwtError: it cannot be used; the account stays as it was.
        """
        token = self.trust.account(key, text, self._clock.now() // SECOND)
        account = self._accounts.put(account_options(token))
        self.updated[key] = self._clock.now()
        self._void.pop(key, None)
        self._watch_end(key, token.exp)
        self._apply(account)
        return account

    @property
    def ended(self) -> Collection[str]:
        """Return the keys of accounts that were used and have ended."""
        return [key for key, signature in self._void.items() if signature]

    def remove(self, key: str) -> None:
        """End an account: its clients are closed, and nobody may log in until another token comes."""
        self._watch_end(key, 0)
        before = self.loaded(key)
        if before is not None and before.options.token is not None:
            for client in self._without_token(key, _signature(before.options.token.text)):
                client.turn_away(*ACCOUNT_ENDED)

    def _without_token(self, key: str, void: str) -> list[AccountMember]:
        """Take the token of an account away, and return its clients, which are to be closed."""
        self._void[key] = void
        while len(self._void) > MAX_VOID:
            del self._void[next(iter(self._void))]
        return self._accounts.put(AccountOptions(name=key)).members

    # ------------------------------------------------------------------ reload
    def reload(self, trust: Trust, sentinel: str, preload: Iterable[tuple[str, str]]) -> None:
        """Use other settings from now on, and close the clients that they do not admit."""
        self.trust, self._sentinel = trust, sentinel
        self.resolver.preload(preload, self._preloaded)
        for account in self._accounts:
            if self.loaded(account.name) is not None and not trust.admits(account.name):
                _shut_out(account.members)

    def _preloaded(self, key: str, text: str) -> None:
        """Use the token that the configuration has for an account ("": none), if it is in use or should be."""
        try:
            if not text:
                raise JwtError(INVALID)
            self.renew(key, text)
        except JwtError:
            self._drop(key)

    def _drop(self, key: str) -> None:
        """End an account whose token a reload took away."""
        if self.loaded(key) is None:
            return
        if key == self._accounts.system.name:
            self._log.warn(f'the system account "{key}" keeps its token: the configuration has none that can be used')
            return
        self._log.info(f'Reloaded: deleting account [removed]: "{key}"')
        self._watch_end(key, 0)
        _shut_out(self._without_token(key, ""))

    def _watch_end(self, key: str, end_s: int) -> None:
        if (timer := self._ends.pop(key, None)) is not None:
            timer.cancel()
        if not end_s:
            return
        wait = end_s * SECOND - self._clock.now()
        if wait <= 0:
            self.remove(key)
        else:
            self._ends[key] = self._clock.call_later(min(wait, MAX_WAIT_NS), lambda: self._watch_end(key, end_s))

    def _apply(self, account: Account) -> None:
        """Apply the account's token to its clients and leaf nodes; close those that may not stay."""
        for client in account.members:
            user = client.login.user
            ended = self.trust.remains(account.options, user) if user is not None else None
            if ended is None:
                client.limit()
                client.permit()
            elif not ended.error:
                client.close(ended.reason)
            elif user is not None and ended.error == "Authorization Violation":
                client.unauthorized(f'JWT User "{user.nkey}"')
            else:
                client.turn_away(*ended)
        # A lower max_leafnodes is for later leaf nodes alone, as in nats-server.
        most = account.options.limits.max_connections
        for surplus in list(account.connections.values())[most:] if most >= 0 else ():
            surplus.turn_away("maximum account active connections exceeded", "Maximum Account Connections Exceeded")

    # ------------------------------------------------------------------ users
    def way(self, credentials: Credentials) -> Login | Refusal | Later:
        """Judge a user's token: the one way of logging in."""
        token = self.trust.user(credentials.jwt or self._sentinel, self._clock.now() // SECOND)
        if isinstance(token, Refusal):
            return token
        account = self.loaded(issuer_account(token))
        if account is not None:
            return self._judged(account, token, credentials)

        def found(done: Done, account: Account | Unusable) -> None:
            outcome = self._judged(account, token, credentials)
            if isinstance(outcome, Later):
                outcome.start(done)
            else:
                done(outcome)

        return Later(lambda done: self.load(issuer_account(token), partial(found, done)))

    def _judged(self, found: Account | Unusable, token: UserToken, credentials: Credentials) -> Outcome | Later:
        if isinstance(found, Unusable):
            return Refusal(f"Account JWT lookup error: {found.reason}", warnings=found.warnings)
        outcome = self.trust.login(found.options, token, credentials, self._clock.now())
        claims = found.options.token.nats if found.options.token is not None else jwt.AccountClaims()
        users = claims.authorization.auth_users
        if isinstance(outcome, Refusal) or not users or token.sub in users:
            return outcome
        ruling = SignedRuling(self, claims, found.name, token)
        return Later(lambda done: self._ask(ruling, credentials, partial(self._answered_for, token, credentials, done)))

    def _answered_for(self, sentinel: UserToken, credentials: Credentials, done: Done, outcome: Outcome) -> None:
        if isinstance(outcome, Refusal):
            shown = credentials.shown() or f'JWT User "{sentinel.sub}"'
            done(replace(outcome, shown=shown))
        else:
            done(replace(outcome, called_out=True, sentinel=sentinel))


class SignedRuling:
    """Rules of an account whose token names users of a service that decides (ADR-26).

    Args:
        accounts: of the operator.
        claims: of the account.
        sentinel: the token of the client.
    """

    def __init__(self, accounts: SignedAccounts, claims: jwt.AccountClaims, account: str, sentinel: UserToken) -> None:
        self.account = self.subject = account
        self.xkey = claims.authorization.xkey
        self.sentinel: UserToken | None = sentinel
        self._accounts = accounts
        self._issuers = {account, *claims.scopes}
        self._allowed = {account, *claims.authorization.allowed_accounts}

    def is_issuer(self, key: str) -> bool:
        return key in self._issuers

    def login(self, token: UserToken, given: Credentials, now_ns: int) -> Outcome | Later:
        key = issuer_account(token)
        if key not in self._allowed and ANY_ACCOUNT not in self._allowed:
            return self._not_permitted(key)

        def loaded(done: Done, found: Account | Unusable) -> None:
            if isinstance(found, Unusable):
                done(self._not_permitted(key))
                return
            outcome = self._accounts.trust.vouched(found.options, token, now_ns)
            if isinstance(outcome, Login) and found.options.token is not None:
                outcome = misplaced(self.account, user_limits(found.options.token, token), given) or outcome
            if isinstance(outcome, Refusal) and outcome.errors:
                where = f"on account {quoted(self.account)}"
                outcome = replace(outcome, warnings=(f"Authorized user {where} outside of valid connect times",))
            done(outcome)

        return Later(lambda done: self._accounts.load(key, partial(loaded, done)))

    def _not_permitted(self, key: str) -> Refusal:
        what = f"not permitted as valid account option for auth callout for account {quoted(self.account)}"
        return warned(f"Account {quoted(key)} {what}")


def _shut_out(members: Iterable[AccountMember]) -> None:
    """Close clients whose account is not served any more."""
    for client in members:
        user = client.login.user
        client.unauthorized(f'JWT User "{user.nkey}"' if user is not None else "")


def _signature(token: str) -> str:
    return token.strip().rpartition(".")[2]
