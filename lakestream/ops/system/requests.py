"""Requests to the server that clients of any account may make.

Belongs here: the identity of the client, and the connections and traffic of its account
(docs/internals/protocol.md#system-subjects), which nats-server answers through imports from its system account.
Requests of the system account are in account.py.
"""

from __future__ import annotations

from typing import Any

from lakestream.config.options import AllowResponses, Permissions, SubjectRule
from lakestream.net.accounts.accounts import Account
from lakestream.ops.monitoring.accounts import statz
from lakestream.ops.monitoring.connections import connz
from lakestream.ops.monitoring.monitored import Monitored
from lakestream.ops.system.messages import Found, Replies, SystemMessages, encoded
from lakestream.ports import ClientInfo
from lakestream.protocol.api.jsonio import dumps


class SystemRequests:
    """Serves the clients of all accounts.

    In a cluster the node of a client answers for its identity; every node answers about its account.
    """

    def __init__(self, node: Monitored, messages: SystemMessages, replies: Replies) -> None:
        self._node, self._messages, self._replies = node, messages, replies

    def serve(self, account: Account) -> None:
        """Answer the clients of an account from now on."""
        _Asked(account, self._node, self._messages, self._replies)


class _Asked:
    """The requests of one account's clients."""

    def __init__(self, account: Account, node: Monitored, messages: SystemMessages, replies: Replies) -> None:
        self._account, self._node, self._messages, self._replies = account, node, messages, replies
        subscribe = account.hub.subscribe
        subscribe(b"$SYS.REQ.USER.INFO", self._user_info, local=True)
        if not account.is_system:
            for subject in (b"$SYS.REQ.SERVER.PING.CONNZ", b"$SYS.REQ.ACCOUNT.PING.CONNZ"):
                subscribe(subject, self._connz)
            subscribe(b"$SYS.REQ.ACCOUNT.PING.STATZ", self._statz)

    def _user_info(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        if not reply:
            return
        data: dict[str, Any] = {"user": client.user, "account": client.account, "account_name": client.account}
        connection = self._node.connections.get(client.id)
        user = connection.login.user if connection is not None else None
        permissions = (user.permissions if user is not None else None) or self._account.options.default_permissions
        if user is not None and permissions is not None:
            data["permissions"] = permissions_shown(permissions)
        self._send(reply, header, dumps({"server": self._messages.server(), "data": data}))

    def _connz(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        self._answer("Connz", reply, header, payload, lambda asked: connz(self._node, asked.query.but(acc=self._name)))

    def _statz(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        self._answer("AccountStatz", reply, header, payload, lambda asked: statz(self._node, [self._name], unused=True))

    @property
    def _name(self) -> str:
        return self._account.name

    def _answer(self, kind: str, reply: bytes, header: bytes, payload: bytes, found: Found) -> None:
        body = self._replies.answer(kind, payload, found) if reply else None
        if body is not None:
            self._send(reply, header, body)

    def _send(self, reply: bytes, header: bytes, body: bytes) -> None:
        self._account.hub.publish(reply, b"", *encoded(header, body))


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
