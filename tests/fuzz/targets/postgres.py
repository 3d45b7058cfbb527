"""Target: what clients of Postgres' protocol send.

Messages must not depend on how the byte stream is cut. Texts are read, and translated if they ask the catalogues;
values of parameters are decoded as every type.
"""

from __future__ import annotations

import re

from lakestream_postgres import wire
from lakestream_postgres.catalogue import Catalogue, translated
from lakestream_postgres.errors import PgError
from lakestream_postgres.scram import BadScram, ScramServer
from lakestream_postgres.statements import CLIENT_SETTINGS, parameters, read, split, substituted
from lakestream_postgres.types import ELEMENTS, TYPES, BadValue, decode, duckdb_type
from lakestream_postgres.wire import BadMessage, Decoder, Message
from tests.fuzz.target import CORPORA, Target

CUTS = (1, 2, 3, 7, 16, 64, 256, 1 << 20)
"""Sizes of the pieces in which a stream is read, in bytes."""
_STARTUP = b"\0\0\0\x12\0\3\0\0user\0ann\0\0"
_TOOLS = CORPORA.parents[1] / "clients" / "postgres_tools.sql"


def _messages(data: bytes, size: int, *, started: bool) -> list[Message | str]:
    decoder = Decoder()
    found: list[Message | str] = []
    sent = _STARTUP + data if started else data
    for at in range(0, len(sent), size):
        decoder.feed(sent[at : at + size])
        try:
            while (each := decoder.next()) is not None:
                found.append(each)
        except BadMessage as error:
            return [*found, str(error)]
    return found


def _text(text: str) -> None:
    for part, place in split(text):
        statement = read(part, place)
        parameters(statement.text)
        asked = substituted(statement.text, " {} ".format, statement.place).text
        if Catalogue.knows(asked):
            translated(asked, CLIENT_SETTINGS)


def _postgres(data: bytes) -> None:
    if not data:
        return
    how, sent = data[0], data[1:]
    whole = _messages(sent, len(sent) + len(_STARTUP), started=bool(how & 8))
    assert whole == _messages(sent, CUTS[how & 7], started=bool(how & 8))
    refused: Exception | None = None
    for message in whole:
        try:
            if isinstance(message, wire.Query | wire.Parse):
                _text(message.text)
            elif isinstance(message, wire.Password):
                server = ScramServer("pw", b"salt", "nonce")
                server.challenge(wire.sasl_first(message.body)[1])
                server.verify(message.body)
            elif isinstance(message, wire.Bind):
                for value in message.values[:4]:
                    for oid in (0, *TYPES, *ELEMENTS):
                        duckdb_type(oid, decode(value, oid, how >> 4 & 1))
        except (PgError, BadValue, BadScram, BadMessage) as error:
            refused = error
    if whole and isinstance(whole[-1], str):
        raise BadMessage(whole[-1])
    if refused is not None:
        raise refused


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


def _seeds() -> list[bytes]:
    texts = re.split(r"\n-- expect: ?[^\n]*\n", _TOOLS.read_text().split("\n\n", 1)[1])
    texts += ["COPY (SELECT 1) TO STDOUT (FORMAT csv, HEADER)", "DECLARE c CURSOR FOR SELECT $1; FETCH 5 FROM c"]
    texts += ["SET a.b = 'c'; SHOW ALL; BEGIN; COMMIT", 'SELECT "public"."a", $1::oid[] FROM public.a']
    found = [b"\x0f" + _message(b"Q", text.encode() + b"\0") for text in texts]
    found.append(b"\x1f" + _message(b"P", b"s\0SELECT $1\0\0\1\0\0\0\x17") + _message(b"D", b"Ss\0"))
    values = b"\0\1\0\1\0\4\0\0\0\4\0\0\0\7\xff\xff\xff\xff\0\0\0\5{a,b}\0\0\0\x14" + bytes(15) + b"\1" + bytes(4)
    found.append(b"\x1f" + _message(b"B", b"p\0s\0" + values + b"\0\0") + _message(b"E", b"p\0\0\0\0\5"))
    found.append(b"\x0f" + _message(b"p", b"SCRAM-SHA-256\0\0\0\0\x08n,,n=,r=") + _message(b"S", b""))
    return [*found, b"\x00" + _STARTUP, b"\x00\0\0\0\x08\x04\xd2\x16\x2f", b"\x00\0\0\0\x10\x04\xd2\x16\x2e" + bytes(8)]


TARGETS = (
    Target(
        "postgres",
        "Postgres' protocol: messages, texts, parameters, SCRAM",
        _postgres,
        (PgError, BadValue, BadScram, BadMessage),
        _seeds,
        (b"SELECT ", b"pg_catalog.", b"::regclass", b" FROM ", b"$1", b"COPY ", b"\0\0\0", b"\xff\xff\xff\xff"),
    ),
)
