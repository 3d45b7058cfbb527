"""Verification of an audit trail: `lakestream verify URL --audit`.

Belongs here: the chains of entries (audit_trail.py), their signatures, and reading the stream. What a limit has removed
from the beginning is not missed; what was changed, left out or written by others is found. That the newest entries were
removed shows by comparing the end of a chain with one that was noted before.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from lakestream.cli.link import TransferFailed, connect_once
from lakestream.cli.server_options import Server
from lakestream.protocol import nkeys
from lakestream_verify.audit_trail import KEY, SIGNATURE, STREAM

PAGE = 500
"""Entries of one request."""
SILENCE_S = 10.0


class AuditMessage(msgspec.Struct, frozen=True):
    """A message of the stream: its sequence, its bytes, and the key and signature of its header."""

    seq: int
    body: bytes
    key: str = ""
    signature: str = ""


class AuditResult(msgspec.Struct):
    """Result of a verification. `ends`: the last digest of each chain; `keys`: those that have signed."""

    entries: int = 0
    wrong: list[str] = []
    keys: list[str] = []
    ends: dict[str, str] = {}

    @property
    def ok(self) -> bool:
        """Return True if nothing is wrong."""
        return not self.wrong


def check(
    messages: Iterable[AuditMessage], trusted: Collection[str] = (), expected: Collection[str] = ()
) -> AuditResult:
    """Verify entries, in the order of the stream.

    Args:
        trusted: public keys of servers; (): any, as long as a chain has one.
        expected: digests that were noted before, and have to be there.
    """
    found = AuditResult(wrong=[], keys=[], ends={})
    last: dict[str, tuple[int, str, str]] = {}
    digests, first = set[str](), 0
    for each in messages:
        first = first or each.seq
        digest = hashlib.sha256(each.body).hexdigest()
        found.entries += 1
        if (reason := _forged(each, trusted)) or (reason := _broken(each, last, digests, first)):
            found.wrong.append(f"message {each.seq}: {reason}")
            continue
        entry = json.loads(each.body)
        if entry["lost"]:
            found.wrong.append(f"message {each.seq}: {entry['lost']} entries before it were lost: too many at once")
        last[entry["chain"]] = entry["n"], digest, each.key
        digests.add(digest)
    found.keys = sorted({key for _, _, key in last.values()})
    found.ends = {chain: digest for chain, (_, digest, _) in last.items()}
    found.wrong += [f"the entry {digest} is not there" for digest in expected if digest not in digests]
    return found


def _forged(message: AuditMessage, trusted: Collection[str]) -> str:
    """Return why a message is not the entry of a server; "" if it is one."""
    if not nkeys.is_public(message.key, nkeys.SERVER):
        return "it has no server's signature"
    if trusted and message.key not in trusted:
        return f"it is signed by {message.key}, which is none of the given keys"
    signature = nkeys.signature_of(message.signature)
    if signature is None or not nkeys.verify(message.key, message.body, signature):
        return "it is not what the server has signed"
    return ""


def _broken(message: AuditMessage, last: dict[str, tuple[int, str, str]], digests: set[str], first: int) -> str:
    """Return why an entry does not continue its chain; "" if it does."""
    entry: dict[str, Any] = json.loads(message.body)
    chain, number, prev = str(entry["chain"]), int(entry["n"]), str(entry["prev"])
    if (before := last.get(chain)) is None:
        is_first = message.seq == first
        if number != 1 and first == 1:
            return f"it is number {number} of its chain, whose beginning is missing"
        if number == 1 and not is_first and prev not in digests and first == 1:
            return "the entry before its chain is missing"
        return ""
    if message.key != before[2]:
        return "its chain was signed by another server"
    if (number, prev) != (before[0] + 1, before[1]):
        return f"it is number {number} of its chain behind number {before[0]}: entries are missing or changed"
    return ""


def verify_audit(server: Server, trusted: Collection[str], expected: Collection[str]) -> AuditResult:
    """Verify the trail of the login's account. Raises TransferFailed."""
    return check(asyncio.run(_messages(server)), trusted, expected)


async def _messages(server: Server) -> list[AuditMessage]:
    client = await connect_once(server, "lakestream verify")
    found: list[AuditMessage] = []
    try:
        answers: asyncio.Queue[Any] = asyncio.Queue()
        inbox = client.new_inbox()
        await client.subscribe(inbox, cb=answers.put)
        while True:
            body = {"seq": found[-1].seq + 1 if found else 1, "batch": PAGE, "next_by_subj": ">"}
            await client.publish(f"$JS.API.DIRECT.GET.{STREAM}", json.dumps(body).encode(), reply=inbox)
            before = len(found)
            while (answer := await asyncio.wait_for(answers.get(), SILENCE_S)).headers.get("Status") is None:
                seq, given = int(answer.headers["Nats-Sequence"]), answer.headers
                key, signature = given.get(KEY.decode(), ""), given.get(SIGNATURE.decode(), "")
                found.append(AuditMessage(seq, answer.data, key, signature))
            if len(found) == before:
                return found
    except TimeoutError:
        text = f"stream {STREAM} does not answer: is there a trail (audit: true), and may this user read it?"
        raise TransferFailed(text) from None
    finally:
        await client.close()
