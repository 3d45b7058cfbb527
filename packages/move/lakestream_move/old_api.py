"""The API of the old server on the new one.

Belongs here: finding the domain of a link between both servers, the temporary link that the new server opens where
there is none, its lease, and what the user can do if it cannot be opened.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from lakestream.cli.link import TransferFailed
from lakestream.protocol.nkeys import credentials, new_curve_key
from lakestream_move.output import MoveOutput
from lakestream_move.plan import Obstacle, Side
from lakestream_move.sides import LINKS, PROBE_S, SideConnection, Unreachable

TICK_S = 0.2
"""Interval at which a link is asked for until it is connected."""
RENEW_S = 5.0
"""Interval at which the lease of a temporary link is renewed; it lasts 60 s."""
LINK_S = 15.0
"""Time in which a temporary link must connect (15 s)."""


class OldApi:
    """The old server's API on the new server.

    Args:
        old, new: open connections.
        domain: the old server's domain on the new one; "": it is found, or a temporary link is opened.
        urls: addresses of the old server for the new one; (): those of its connection.

    Attributes:
        prefix: of the subjects of the API; "" before it is found.
    """

    def __init__(
        self, old: SideConnection, new: SideConnection, domain: str, urls: tuple[str, ...], output: MoveOutput
    ) -> None:
        self._old, self._new, self._domain, self._output = old, new, domain, output
        self._urls = urls or tuple(old.urls)
        self._links: dict[str, Any] | None = None
        self._old_side = self._new_side = Side()
        self._probe = ""
        self._renewing: asyncio.Task[None] | None = None
        self._temporary = ""
        """Domain of the temporary link."""
        self.prefix = ""

    def note(self, links: dict[str, Any] | None, old: Side, new: Side, probe: str) -> None:
        """Note what both servers say of themselves.

        Args:
            links: the new server's links; None: it has none.
            probe: a stream of the old server, by which it is recognised.
        """
        self._links, self._old_side, self._new_side, self._probe = links, old, new, probe

    async def obstacles(self) -> list[Obstacle]:
        """Return what keeps the new server from the old one's API; change nothing."""
        if await self._found_domain():
            return []
        if self._domain:
            text = f"the old server cannot be reached from the new one under domain {self._domain}"
            return [Obstacle("", text)]
        if self._links is None:
            return [Obstacle("", self._how_to_link())]
        if not self._links.get("allowed"):
            return [Obstacle("", f"the new server opens no link: {self._links.get('reason')}. {self._how_to_link()}")]
        text = "the new server opens a temporary link to the old one, which the rehearsal does not try"
        return [Obstacle("", text, stops=False)]

    def _how_to_link(self) -> str:
        if self._links is None and self._old_side.domain:
            return (
                "the new server has no link to the old one. Configure the old one with a leaf node connection to it "
                '(remote { url: "nats-leaf://…" }, docs/moving.md), or move with --by backup'
            )
        return f"Configure the new server with this block and reload it, or move with --by backup:\n{self._block()}"

    def _block(self) -> str:
        login = self._old.server.login
        fields = ["domain: old", f'url: "{_plain(self._urls[0])}"']
        if login.creds:
            fields.append(f'credentials: "{login.creds}"')
        elif login.nkey:
            fields.append(f'nkey_file: "{login.nkey}"')
        elif login.user or urlsplit(self._old.urls[0]).username:
            fields.append(f'user: "{login.user or urlsplit(self._old.urls[0]).username}", password: "…"')
        if login.tls_ca or login.tls_cert:
            pairs = (("ca_file", login.tls_ca), ("cert_file", login.tls_cert), ("key_file", login.tls_key))
            fields.append("tls { " + ", ".join(f'{key}: "{value}"' for key, value in pairs if value) + " }")
        return f"    remote {{ {', '.join(fields)} }}"

    def _own_domain(self) -> str:
        """Return the domain of a temporary link: the same for the same server, as its mirrors name it."""
        place = ",".join(sorted(_plain(url) for url in self._urls))
        return "move-" + hashlib.sha256(place.encode()).hexdigest()[:10]

    async def _found_domain(self) -> bool:
        """Look for a domain of the new server that is the old one's."""
        if self._domain:
            candidates = [self._domain]
        else:
            known = (self._links or {}).get("domains") or []
            candidates = [each for each in (*known, self._old_side.domain) if each and each != self._own_domain()]
        for domain in dict.fromkeys(candidates):
            if domain != self._new_side.domain and await self._is_old(domain):
                self.prefix = f"$JS.{domain}.API"
                return True
        return False

    async def _is_old(self, domain: str) -> bool:
        """Return True if a domain of the new server shows the same stream as the old server does."""
        name = self._probe
        try:
            there = await self._new.ask(f"$JS.{domain}.API.STREAM.INFO.{name}", timeout=PROBE_S)
        except TransferFailed:
            return False
        origin = await self._old.stream(name)
        return origin is not None and there.get("created") == origin.created

    async def open(self) -> None:
        """Make the old server's API available on the new one. Raise TransferFailed."""
        if await self._found_domain():
            return
        domain = self._own_domain()
        deadline = time.monotonic() + LINK_S
        while True:
            state = await self._open_link(domain)
            if state.get("connected"):
                break
            if time.monotonic() > deadline:
                raise TransferFailed(
                    f"the new server cannot connect to {', '.join(_plain(url) for url in self._urls)}: "
                    f"{state.get('error_text', 'no answer')}; give the address that it can reach with --link-url"
                )
            await asyncio.sleep(TICK_S)
        self._temporary, self.prefix = domain, f"$JS.{domain}.API"
        if not await self._is_old(domain):
            raise TransferFailed("the link of the new server leads to a server other than the one of --from")
        self._output.say("link", f"the new server is linked to the old one (domain {domain})", domain=domain)
        self._renewing = asyncio.create_task(self._renew(domain))

    async def _renew(self, domain: str) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            with contextlib.suppress(TransferFailed):
                await self._open_link(domain)

    async def _open_link(self, domain: str) -> dict[str, Any]:
        # The server's key is new after its restart.
        links = await self._new.links()
        if links is None:
            raise Unreachable("the new server does not answer requests for links")
        own = new_curve_key()
        body = msgspec.json.encode(self._login(domain))
        box = base64.b64encode(own.seal(body, str(links["key"]))).decode()
        return await self._new.ask(f"{LINKS}OPEN", {"from": own.public, "box": box})

    def _login(self, domain: str) -> dict[str, Any]:
        login = self._old.server.login
        fields: dict[str, Any] = {"domain": domain, "urls": list(self._urls)}
        if login.creds:
            pair = credentials(Path(login.creds).read_bytes())
            fields |= {"jwt": pair.jwt, "nkey": pair.seed}
        elif login.nkey:
            fields["nkey"] = Path(login.nkey).read_text().strip()
        else:
            fields |= {"user": login.user, "password": login.password, "token": login.token}
        if login.tls_ca or login.tls_cert:
            files = {"ca": login.tls_ca, "cert": login.tls_cert, "key": login.tls_key}
            fields["tls"] = {key: Path(file).read_text() for key, file in files.items() if file}
        return fields

    def adopt(self) -> None:
        """Take the temporary link of an earlier run for one of this run, which `close` ends."""
        self._temporary = self._own_domain()

    async def close(self, done: bool) -> None:
        """Renew a temporary link no more. `done`: it is not needed any more, and ends; else it ends with its lease."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if done and self._temporary:
            with contextlib.suppress(TransferFailed):
                await self._new.ask(f"{LINKS}CLOSE", {"domain": self._temporary})


def _plain(url: str) -> str:
    """Return a URL without credentials."""
    scheme, mark, rest = url.rpartition("://")
    return (scheme + mark or "nats://") + rest.rpartition("@")[2]
