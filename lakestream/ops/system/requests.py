"""Requests that clients of any account may make.

Belongs here: their identity, and the connections and traffic of their account
(docs/internals/protocol.md#system-subjects), which nats-server answers through imports from its system account. Every
server with clients loads this module, the pages that it answers with are loaded with the first request.
Requests of the system account are in system_account.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lakestream.config.account_options import AllowResponses, Permissions, SubjectRule
from lakestream.net.accounts.accounts import Account
from lakestream.ops.monitoring.monitored import Monitored
from lakestream.ops.monitoring.query import BadQuery
from lakestream.ops.system.messages import Found, SystemMessages, SystemRequest, encoded, read
from lakestream.ports import ClientInfo, Clock, Single, singly
from lakestream.protocol.api.json_syntax import JsonError
from lakestream.protocol.api.jsonio import dumps

if TYPE_CHECKING:
    from lakestream.ops.monitoring.workers import Together


class AccountRequests:
    """Serves the clients of one account.

    In a cluster the node of a client answers for its identity; every node answers about its account.
    """

    def __init__(
        self,
        account: Account,
        node: Monitored,
        messages: SystemMessages,
        clock: Clock,
        together: Callable[[], Together | None],
    ) -> None:
        self._account, self._node, self._messages = account, node, messages
        self._clock, self._together = clock, together
        subscribe = account.hub.subscribe
        subscribe(b"$SYS.REQ.USER.INFO", singly(self._user_info), local=True)
        together_now = together()
        if not account.is_system and (together_now is None or together_now.first):
            for subject in (b"$SYS.REQ.SERVER.PING.CONNZ", b"$SYS.REQ.ACCOUNT.PING.CONNZ"):
                subscribe(subject, singly(self._connz))
            subscribe(b"$SYS.REQ.ACCOUNT.PING.STATZ", singly(self._statz))

    def _user_info(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        if not reply:
            return
        name = self._account.options.shown if client.account == self._account.name else client.account
        data: dict[str, Any] = {"user": client.user, "account": client.account, "account_name": name}
        connection = self._node.connections.get(client.id)
        user = connection.login.user if connection is not None else None
        if connection is not None and connection.login.expires_ns:
            data["expires"] = connection.login.expires_ns - time.time_ns()
        if client.name_tag:
            data["user_name"] = client.name_tag
        permissions = (user.permissions if user is not None else None) or self._account.options.default_permissions
        if user is not None and permissions is not None:
            data["permissions"] = permissions_shown(permissions)
        self._send(reply, header, dumps({"server": self._messages.server(), "data": data}))

    def _connz(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        name, together = self._account.name, self._together()
        if together is not None:
            self._clock.spawn(self._add_up(together, "Connz", "connz", {"acc": name}, reply, header, payload))
            return
        from lakestream.ops.monitoring.connections import connz  # loaded with the first request

        self._answer("Connz", reply, header, payload, lambda asked: connz(self._node, asked.query.but(acc=name)))

    def _statz(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        names, together = [self._account.name], self._together()
        if together is not None:
            values = {"unused": "1", "names": self._account.name}
            self._clock.spawn(self._add_up(together, "AccountStatz", "accstatz", values, reply, header, payload))
            return
        from lakestream.ops.monitoring.accounts import statz  # loaded with the first request

        self._answer("AccountStatz", reply, header, payload, lambda asked: statz(self._node, names, unused=True))

    async def _add_up(
        self,
        together: Together,
        kind: str,
        page: str,
        values: dict[str, str],
        reply: bytes,
        header: bytes,
        payload: bytes,
    ) -> None:
        self._answer(kind, reply, header, payload, await added_up(together, kind, page, payload, **values))

    def _answer(self, kind: str, reply: bytes, header: bytes, payload: bytes, found: Found) -> None:
        body = self._messages.answer(kind, payload, found) if reply else None
        if body is not None:
            self._send(reply, header, body)

    def _send(self, reply: bytes, header: bytes, body: bytes) -> None:
        self._account.hub.send(Single(reply, b"", *encoded(header, body)))


async def added_up(together: Together, kind: str, page: str, payload: bytes, **values: str) -> Found:
    """Return a function that returns the page of all workers, or raises what was wrong with the request.

    Args:
        kind: of the request; `page`: the name of the page.
        values: parameters of the page that replace those of the request.
    """
    shown: dict[str, Any] = {}
    wrong: BadQuery | None = None
    with contextlib.suppress(JsonError):  # reported by `SystemMessages.answer`
        query = read(kind, payload).query.but(**values)
        try:
            shown = await together.page(page, query)
        except BadQuery as error:
            wrong = error

    def found(asked: SystemRequest) -> Any:
        if wrong is not None:
            raise wrong
        return shown

    return found


def permissions_shown(permissions: Permissions) -> dict[str, Any]:
    """Return permissions as nats-server shows them."""
    page: dict[str, Any] = {"publish": _rule(permissions.publish), "subscribe": _rule(permissions.subscribe)}
    return page | ({} if permissions.responses is None else {"responses": _responses(permissions.responses)})


def _rule(rule: SubjectRule | None) -> dict[str, Any]:
    if rule is None:
        return {}
    lists = {"allow": rule.allow or (), "deny": rule.deny}
    return {name: list(subjects) for name, subjects in lists.items() if subjects}


def _responses(responses: AllowResponses) -> dict[str, int]:
    return {"max": responses.max, "ttl": responses.expires_ns}
