"""Requests of the system account.

Belongs here: `$SYS.REQ.SERVER.*` and `$SYS.REQ.ACCOUNT.*`: the monitoring pages over NATS, of this server or of all
servers, and commands: reload, redirect a client, close a connection. Of nats-server's requests about its internals,
RAFTZ shows the Raft groups, IPQUEUESZ and EXPVARZ what this server has in their place, and PROFILEZ that there is no
profile. A server without configured accounts has no clients in the system account and does not load this module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from lakestream.ops.monitoring.accounts import account_detail, account_traffic, statz
from lakestream.ops.monitoring.connections import connz, subsz
from lakestream.ops.monitoring.jetstream import Health, NotLeading, compact
from lakestream.ops.monitoring.monitored import Monitored, account_of
from lakestream.ops.monitoring.pages import Pages, unhealthy
from lakestream.ops.monitoring.query import BadQuery, Query
from lakestream.ops.monitoring.workers import MERGED, Together
from lakestream.ops.system.messages import Found, SystemMessages, SystemRequest, encoded, read
from lakestream.ops.system.requests import added_up
from lakestream.ports import ClientInfo, Clock, Handler, Single, singly
from lakestream.protocol.api.json_syntax import JsonError
from lakestream.protocol.api.jsonio import Uint64, dumps, parse
from lakestream.protocol.subjects import matches, valid_literal

_PAGES = ("Varz", "Subsz", "Connz", "Routez", "Gatewayz", "Leafz", "Accountz")


class _OfClient(msgspec.Struct):
    """A client by its number."""

    cid: Uint64 = 0


class _OfAccount(msgspec.Struct):
    """An account by its name."""

    acc: str = ""


class SystemAccount:
    """Serves the system account.

    In a cluster every node answers PING and requests about an account; requests with a server's id are answered by that
    server.
    """

    def __init__(self, node: Monitored, pages: Pages, messages: SystemMessages, clock: Clock) -> None:
        self._node, self._pages, self._messages, self._clock = node, pages, messages, clock
        self._hub = node.accounts.system.hub
        self._together = pages.together
        if self._together is not None:
            self._together.commands |= {
                "kick": self._kick,
                "ldm": self._send_elsewhere,
                "reload": lambda _: node.reload(),
            }
            if not self._together.first:
                return
        self._about_server(node.identity.server_id)
        self._about_account()
        self._hub.subscribe(b"$SYS.DEBUG.SUBSCRIBERS", singly(self._subscribers))

    # ------------------------------------------------------------------ $SYS.REQ.SERVER
    def _about_server(self, server_id: str) -> None:
        pages = self._pages
        for kind in _PAGES:
            self._server(server_id, kind.upper(), self._shown(kind))
        self._server(server_id, "JSZ", self._jetstream)
        self._server(server_id, "HEALTHZ", self._healthz)
        raftz = pages.jetstream.raftz
        self._server(server_id, "RAFTZ", self._page("Raftz", lambda asked: raftz(*_texts(asked, "acc", "group"))))
        self._server(server_id, "LAKEZ", self._lakez)
        self._server(server_id, "IPQUEUESZ", self._page("Ipqueuesz", self._queues))
        self._server(server_id, "EXPVARZ", self._page("Expvarz", lambda asked: pages.runtime()))
        self._server(server_id, "PROFILEZ", self._page("Profilez", _profile))
        statsz = self._page("Statsz", lambda asked: pages.statsz(), "statsz")
        self._server(server_id, "STATSZ", statsz)
        self._hub.subscribe(b"$SYS.REQ.SERVER.PING", singly(statsz))
        self._server(server_id, "IDZ", self._idz)
        own = f"$SYS.REQ.SERVER.{server_id}."
        self._hub.subscribe(f"{own}RELOAD".encode(), singly(self._reload))
        self._hub.subscribe(f"{own}KICK".encode(), singly(self._to_client("kick", self._kick)))
        self._hub.subscribe(f"{own}LDM".encode(), singly(self._to_client("ldm", self._send_elsewhere)))

    def _server(self, server_id: str, page: str, handler: Handler) -> None:
        """Reply to a request for a page of this server, by its id or to all servers."""
        for server in ("PING", server_id):
            self._hub.subscribe(f"$SYS.REQ.SERVER.{server}.{page}".encode(), singly(handler))

    def _shown(self, kind: str) -> Handler:
        page = self._pages.pages[kind.lower()]
        return self._page(kind, lambda asked: page(asked.query))

    def _page(self, kind: str, found: Found, key: str = "data") -> Handler:
        together, page = self._together, kind.lower()

        def asked(subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
            if reply and together is not None and page in MERGED:
                self._clock.spawn(self._add_up(together, kind, page, key, reply, header, payload))
            elif reply:
                self._send(reply, header, self._messages.answer(kind, payload, found, key))

        return asked

    async def _add_up(
        self,
        together: Together,
        kind: str,
        page: str,
        key: str,
        reply: bytes,
        header: bytes,
        payload: bytes,
        values: dict[str, str] | None = None,
        part: Callable[[Any], Any] = lambda shown: shown,
    ) -> None:
        found = await added_up(together, kind, page, payload, **(values or {}))
        self._send(reply, header, self._messages.answer(kind, payload, lambda asked: part(found(asked)), key))

    def _healthz(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        def send(of_all: Health | None) -> None:
            found = self._messages.answer("Healthz", payload, lambda asked: self._health(asked, of_all))
            self._send(reply, header, found)

        async def add_up(together: Together) -> None:
            of_all: Health | None = None
            with contextlib.suppress(JsonError, BadQuery):  # reported by `answer`
                query = read("Healthz", payload).query
                of_all = await together.health(query, self._pages.health(query))
            send(of_all)

        if reply and self._together is not None:
            self._clock.spawn(add_up(self._together))
        elif reply:
            send(None)

    def _health(self, asked: SystemRequest, of_all: Health | None) -> dict[str, Any]:
        health: Health = of_all or self._pages.health(asked.query)
        page = {"status": "ok"} if health.status == 200 else unhealthy(health, asked.query.flag("details"))
        return {"status": page.pop("status"), "status_code": health.status} | page

    def _lakez(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        if reply:
            self._clock.spawn(self._show("Lakez", self._pages.lakez, reply, header, payload))

    def _jetstream(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        async def page(query: Query) -> dict[str, Any] | None:
            try:
                pages = self._pages.jetstream
                return await pages.in_turns(compact(await pages.in_turns(pages.jsz(query))))
            except NotLeading:
                return None  # the leader answers

        if reply:
            self._clock.spawn(self._show("Jsz", page, reply, header, payload))

    async def _show(
        self,
        kind: str,
        made: Callable[[Query], Awaitable[dict[str, Any] | None]],
        reply: bytes,
        header: bytes,
        payload: bytes,
    ) -> None:
        """Reply with a page that takes time."""
        if self._together is not None:
            await self._add_up(self._together, kind, kind.lower(), "data", reply, header, payload)
            return
        page: dict[str, Any] | None = {}
        wrong: BadQuery | None = None
        with contextlib.suppress(JsonError):  # reported by `answer`
            try:
                page = await made(read(kind, payload).query)
            except BadQuery as error:
                wrong = error

        def found(_: SystemRequest) -> Any:
            if wrong is not None:
                raise wrong
            return page

        self._send(reply, header, self._messages.answer(kind, payload, found))

    def _queues(self, asked: SystemRequest) -> dict[str, Any]:
        return self._pages.queues(asked.query.flag("all"), asked.query.text("filter"))

    def _idz(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        identity = self._node.identity
        page = {"name": identity.server_name, "host": identity.shown_address[0], "id": identity.server_id}
        if reply:
            self._send(reply, header, dumps(page))

    def _reload(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        def done(wrong: str) -> None:
            if reply:
                self._send(reply, header, self._messages.done(wrong))

        self._carry_out("reload", 0, None, lambda _: self._node.reload(), done)

    def _carry_out(
        self, name: str, number: int, worker: int | None, do: Callable[[int], str], done: Callable[[str], None]
    ) -> None:
        """Carry out a command here; of several workers on that one, or (None) on all. Call back with the error."""
        together = self._together
        if together is None:
            done(do(number))
            return

        async def command() -> None:
            done(await together.command(name, number, worker))

        self._clock.spawn(command())

    def _to_client(self, name: str, do: Callable[[int], str]) -> Handler:
        """Apply a command to the client that the request names; a request without one is only logged."""

        def asked(subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
            try:
                if not payload:
                    raise JsonError("unexpected end of JSON input")
                cid = parse(payload, _OfClient, strict=False).cid
            except JsonError as error:
                self._node.log.error(f"SYSTEM - Error unmarshalling kick client request: {error}")
                return

            def done(wrong: str) -> None:
                if reply:
                    self._send(reply, header, self._messages.done(wrong))

            worker = self._together.worker_of(cid) if self._together is not None else None
            self._carry_out(name, cid, worker, do, done)

        return asked

    def _kick(self, cid: int) -> str:
        node = self._node
        leaves = node.leafnodes.leaves if node.leafnodes is not None else {}
        connection = node.connections.get(cid) or leaves.get(cid)
        if connection is None:
            return "no such client or leafnode id"
        connection.close("Kicked")
        return ""

    def _send_elsewhere(self, cid: int) -> str:
        connection = self._node.connections.get(cid)
        if connection is None:
            return "no such client id"
        connection.send_info(lame_duck=True)
        return ""

    # ------------------------------------------------------------------ $SYS.REQ.ACCOUNT
    def _about_account(self) -> None:
        node = self._node
        self._account("CONNZ", "Connz", lambda name, asked: connz(node, asked.query.but(acc=name)), "connz")
        subs = {"subs": "1"}
        self._account(
            "SUBSZ", "Subsz", lambda name, asked: subsz(node, asked.query.but(acc=name, **subs)), "subsz", subs
        )
        self._account("LEAFZ", "Leafz", lambda name, asked: self._pages.pages["leafz"](asked.query.but(acc=name)))
        self._account("JSZ", "Jsz", None, "jsz", {"accounts": "1"}, self._details, self._jsz)
        info = lambda name, shown: shown["account_detail"]  # noqa: E731
        self._account("INFO", "Accountz", lambda name, asked: account_detail(node, name), "accountz", {}, info)
        self._account("STATZ", "AccountStatz", self._statz, "accstatz", {"unused": "1"})
        self._hub.subscribe(b"$SYS.REQ.ACCOUNT.*.CONNS", singly(self._conns))

    def _account(
        self,
        page: str,
        kind: str,
        found: Callable[[str, SystemRequest], Any] | None,
        merged: str = "",
        values: dict[str, str] | None = None,
        part: Callable[[str, Any], Any] = lambda name, shown: shown,
        made: Callable[[str, Query], Awaitable[dict[str, Any] | None]] | None = None,
    ) -> None:
        """Reply to a request for a page about an account.

        Args:
            found: returns the page; None: `made` does, which takes time.
            merged: the page that is added up where there are several workers; "": none is.
            values: parameters of that page; `part` returns what the reply has of it.
        """
        together = self._together

        def asked(subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
            name = _account_of(subject)
            if reply and together is not None and merged:
                chosen = {**(values or {}), **({} if name == "PING" else {"acc": name, "names": name})}
                self._clock.spawn(
                    self._add_up(together, kind, merged, "data", reply, header, payload, chosen, partial(part, name))
                )
            elif reply and made is not None:
                self._clock.spawn(self._show(kind, partial(made, name), reply, header, payload))
            elif reply and found is not None:
                body = self._messages.answer(kind, payload, lambda asked: found(name, asked))
                self._send(reply, header, body)

        self._hub.subscribe(f"$SYS.REQ.ACCOUNT.*.{page}".encode(), singly(asked))

    async def _jsz(self, name: str, query: Query) -> dict[str, Any]:
        jetstream = self._node.jetstream
        if jetstream is None or name not in jetstream.served:
            raise self._without_jetstream(name)
        # Here, unlike on the page, consumers are shown with their streams or not at all.
        query = query if query.flag("streams") else query.but(consumers="")
        pages = self._pages.jetstream
        shown = await pages.in_turns(pages.account(name, jetstream.served[name], query))
        await pages.in_turns(compact({"account_details": [shown]}))
        return shown

    def _without_jetstream(self, name: str) -> BadQuery:
        known = account_of(self._node, name) is not None
        return BadQuery(f'account "{name}" not jetstream enabled' if known else f'account "{name}" not found')

    def _details(self, name: str, shown: dict[str, Any]) -> Any:
        """Return the account's part of the page /jsz of all workers."""
        details = shown.get("account_details")
        if not details:
            raise self._without_jetstream(name)
        return details[0]

    def _statz(self, name: str, asked: SystemRequest) -> dict[str, Any] | None:
        if name == "PING":
            names = asked.fields.get("accounts") or None
            return statz(self._node, names, unused=bool(asked.fields.get("include_unused")))
        account = account_of(self._node, name)
        return statz(self._node, [name], unused=True) if account is not None and account.connections else None

    def _conns(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        account = account_of(self._node, _account_of(subject))
        if account is None or not account.connections or not reply:
            return
        try:
            asked = parse(payload, _OfAccount, strict=False) if payload else _OfAccount()
        except JsonError:
            return
        if asked.acc in ("", account.name):
            event = self._messages.event("account_connections") | account_traffic(self._node, account)
            self._send(reply, b"", dumps(event))

    # ------------------------------------------------------------------ $SYS.DEBUG
    def _subscribers(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        """Reply with the number of subscriptions of this server's clients and leaf nodes in the system account that
        `subject [queue]` reaches; with wildcards in it, of subscriptions that it covers."""
        wanted, _, queue = payload.strip().partition(b" ")
        system, leaves = self._node.accounts.system, self._node.leafnodes
        held = [sub for connection in system.connections.values() for sub in connection.subs.values()]
        for leaf in leaves.in_account(system) if leaves is not None else ():
            held += leaf.exchange.subscriptions.values() if leaf.exchange is not None else ()
        held = [sub for sub in held if not queue or sub.queue == queue]
        if not valid_literal(wanted):
            count = sum(1 for sub in held if matches(wanted, sub.subject))
        else:
            count = sum(sub.weight for sub in held if matches(sub.subject, wanted))
        if reply:
            self._send(reply, header, str(count).encode())

    def _send(self, reply: bytes, header: bytes, body: bytes | None) -> None:
        if body is not None:
            self._hub.send(Single(reply, b"", *encoded(header, body)))


def _texts(asked: SystemRequest, *names: str) -> list[str]:
    return [asked.query.text(name) for name in names]


def _profile(asked: SystemRequest) -> dict[str, Any]:
    """Return the answer of nats-server about a profile that it does not have: there is none of Go's here."""
    name = asked.query.text("name")
    wrong = f'Profile "{name}" not found: use py-spy on the process' if name else "Profile name not specified"
    return {"profile": None, "error": wrong}


def _account_of(subject: bytes) -> str:
    return subject.split(b".")[3].decode("utf-8", "replace")
