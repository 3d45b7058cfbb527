"""Requests about the tokens of accounts.

Belongs here: `$SYS.REQ.CLAIMS.*`, `$SYS.REQ.ACCOUNT.*.CLAIMS.*` and `$SYS.ACCOUNT.*.CLAIMS.UPDATE`: what is asked, by
whom, and the answers, in nats-server's words. In a cluster every server answers, except for PACK. Tokens are kept in
net/accounts/directory_resolver.py, and used in net/accounts/signed_accounts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lakestream.config.options import ResolverOptions
from lakestream.logging import Logger
from lakestream.net.accounts.directory_resolver import PACK, PACK_QUEUE, DirectoryResolver, is_digest
from lakestream.net.accounts.signed_accounts import SignedAccounts
from lakestream.net.hub import Hub
from lakestream.ops.system.messages import SystemMessages
from lakestream.ports import ClientInfo, Handler, Single, singly
from lakestream.protocol import jwt
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.jwt import JwtError
from lakestream.protocol.nkeys import ACCOUNT, CLUSTER, CURVE, OPERATOR, SERVER, USER, is_public

UNKNOWN = "n/a"
"""The account in the answer to a text that is no token."""


class ClaimsError(Exception):
    """Raised for a request that is refused. `subject`: whom it was about; the text is nats-server's reason."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(reason)
        self.subject = subject


# ---------------------------------------------------------------------- decisions


def updated_account(asked: str, text: str) -> str:
    """Return the account whose token is pushed.

    Args:
        asked: the account of the request's subject; "": any.

    Raises:
        ClaimsError: the token is none, or one of another account.
    """
    try:
        token = jwt.decode(text, jwt.AccountClaims)
    except JwtError as error:
        raise ClaimsError(UNKNOWN, str(error)) from None
    if asked and asked != token.sub:
        raise ClaimsError(asked, "subject does not match jwt content")
    return token.sub


def validation_issues(text: str) -> list[str]:
    """Return why no user may log in with this token of an account. Times and trust are judged when it is used."""
    return jwt.account_issues(jwt.decode(text, jwt.AccountClaims))


def deleted_accounts(text: str, *, trusts: Callable[[str], bool], allowed: bool, system: str) -> list[str]:
    """Return the accounts that a request deletes.

    Args:
        trusts: returns True for a key of a trusted operator.
        allowed: the configuration lets operators delete accounts.
        system: the system account.

    Raises:
        ClaimsError: it is refused.
    """
    try:
        token = jwt.decode(text, jwt.DeletionClaims)
    except JwtError as error:
        raise ClaimsError("", str(error)) from None
    if token.sub != token.iss:
        raise ClaimsError(token.sub, "not self signed")
    if not trusts(token.iss):
        raise ClaimsError(token.sub, "not trusted")
    if not allowed:
        raise ClaimsError(token.sub, "delete must be enabled in server config")
    accounts = token.nats.accounts
    if not isinstance(accounts, list) or not all(isinstance(one, str) and is_public(one, ACCOUNT) for one in accounts):
        raise ClaimsError(token.sub, "malformed request")
    if system in accounts:
        raise ClaimsError(token.sub, "not allowed to delete system account")
    return accounts


# ---------------------------------------------------------------------- requests


class Claims:
    """Serves requests of the system account about tokens.

    Args:
        signed: the accounts that use the tokens.
        options: of the resolver.
        system: the system account's key.
        hub: of the system account.
    """

    def __init__(
        self,
        signed: SignedAccounts,
        options: ResolverOptions,
        system: str,
        hub: Hub,
        messages: SystemMessages,
        log: Logger,
    ) -> None:
        self._signed, self._options, self._system = signed, options, system
        self._hub, self._messages, self._log = hub, messages, log
        self._subscribe(b"$SYS.REQ.ACCOUNT.*.CLAIMS.UPDATE", self._update)
        self._subscribe(b"$SYS.ACCOUNT.*.CLAIMS.UPDATE", self._update)
        if isinstance(directory := signed.resolver, DirectoryResolver):
            directory.changed = self._use
            self._subscribe(b"$SYS.REQ.CLAIMS.UPDATE", self._update)
            self._subscribe(b"$SYS.REQ.CLAIMS.LIST", partial(self._list, directory))
            self._subscribe(b"$SYS.REQ.CLAIMS.DELETE", partial(self._delete, directory))
            if options.kind == "full":
                self._subscribe(b"$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP", partial(self._lookup, directory))
                self._subscribe(PACK, partial(self._pack, directory), PACK_QUEUE)

    def _subscribe(self, subject: bytes, serve: Callable[[str, bytes, bytes], None], queue: bytes = b"") -> None:
        """Serve requests: `serve` gets the account of the subject or "", the reply subject and the body."""

        def asked(subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
            tokens = subject.decode("utf-8", "replace").split(".")
            account = tokens[tokens.index("ACCOUNT") + 1] if tokens[-2] == "CLAIMS" and "ACCOUNT" in tokens else ""
            serve(account, reply, payload)

        handler: Handler = asked
        self._hub.subscribe(subject, singly(handler), queue)

    # ------------------------------------------------------------------ UPDATE
    def _update(self, asked: str, reply: bytes, payload: bytes) -> None:
        text = payload.decode("utf-8", "replace")
        try:
            account = updated_account(asked, text)
        except ClaimsError as error:
            # Resolvers without a directory name the account of the subject.
            directory = isinstance(self._signed.resolver, DirectoryResolver)
            self._update_failed(reply, error.subject if directory else asked, str(error))
            return
        if issues := validation_issues(text):
            reason = f"validation errors: [{' '.join(issues)}]"
            self._log.error(f"jwt validation failed - {account} - {reason}")
            self._refuse(reply, f"jwt validation failed - {reason}", account=account)
            return
        resolver = self._signed.resolver
        if isinstance(resolver, DirectoryResolver):
            skipped = "cache " if self._options.kind == "cache" and account not in resolver.files else None
        else:
            skipped = "" if self._signed.loaded(account) is None else None
        if skipped is not None:
            self._answer(reply, {"account": account, "code": 200, "message": f"jwt update {skipped}skipped"})
            return

        def stored(error: str) -> None:
            if error:
                self._update_failed(reply, account, error)
                return
            self._use(account, text)
            self._answer(reply, {"account": account, "code": 200, "message": "jwt updated"})

        resolver.store(account, text, stored)

    def _update_failed(self, reply: bytes, account: str, reason: str) -> None:
        failed = f"jwt update {'cache ' if self._options.kind == 'cache' else ''}resulted in error"
        self._log.error(f"{failed} - {account} - {reason}")
        self._refuse(reply, f"{failed} - {reason}", account=account)

    def _use(self, account: str, text: str) -> None:
        """Let an account that is in use have its new token."""
        try:
            self._signed.renew(account, text)
        except JwtError as error:
            kind = "DirResolver - " if isinstance(self._signed.resolver, DirectoryResolver) else ""
            self._log.error(f'{kind}Update for account "{account}" resulted in error {error}')

    # ------------------------------------------------------------------ LOOKUP, LIST, PACK
    def _lookup(self, directory: DirectoryResolver, account: str, reply: bytes, payload: bytes) -> None:
        if not is_public(account, USER, ACCOUNT, OPERATOR, SERVER, CLUSTER, CURVE):
            self._log.error(f'DirResolver - Error looking up account "{account}": invalid public key')
            return
        if reply:
            directory.read(account, lambda token, error: self._send(reply, (token or "").encode()))

    def _list(self, directory: DirectoryResolver, account: str, reply: bytes, payload: bytes) -> None:
        self._send(reply, dumps({"data": sorted(directory.files.accounts()), "server": self._messages.server()}))

    def _pack(self, directory: DirectoryResolver, account: str, reply: bytes, payload: bytes) -> None:
        if not reply:
            return
        if is_digest(payload) and payload == directory.files.digest():
            self._send(reply, b"")
        else:
            directory.send_all(reply)

    # ------------------------------------------------------------------ DELETE
    def _delete(self, directory: DirectoryResolver, account: str, reply: bytes, payload: bytes) -> None:
        options = self._options
        try:
            accounts = deleted_accounts(
                payload.decode("utf-8", "replace"),
                trusts=self._signed.trust.trusts,
                allowed=options.allow_delete,
                system=self._system,
            )
        except ClaimsError as error:
            self._delete_failed(reply, error.subject, str(error))
            return
        directory.delete(accounts, lambda error: self._deleted(accounts, reply, error))

    def _deleted(self, accounts: Sequence[str], reply: bytes, error: str) -> None:
        if error:
            self._delete_failed(reply, "", error)
            return
        for account in accounts:
            self._signed.remove(account)
        self._answer(reply, {"code": 200, "message": f"deleted {len(accounts)} accounts"})

    def _delete_failed(self, reply: bytes, by: str, reason: str) -> None:
        text = f"delete accounts request by {by} failed - {reason}"
        self._log.error(text)
        self._refuse(reply, text)

    # ------------------------------------------------------------------ answers
    def _answer(self, reply: bytes, data: dict[str, Any]) -> None:
        self._send(reply, dumps({"server": self._messages.server(), "data": data}))

    def _refuse(self, reply: bytes, description: str, **more: str) -> None:
        error = {**more, "code": 500, "description": description}
        self._send(reply, dumps({"server": self._messages.server(), "error": error}))

    def _send(self, reply: bytes, body: bytes) -> None:
        if reply:
            self._hub.send(Single(reply, payload=body))
