"""Targets: texts that a person or another program writes: nats.conf, tokens, SQL."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lakestream.config.errors import StartError
from lakestream.config.loading import load
from lakestream.config.options import Flags
from lakestream.protocol import jwt
from lakestream.protocol.jwt import JwtError
from lakestream_sql import tokens
from lakestream_sql.explained import SqlError
from lakestream_sql.mentions import Mention, delta_scan
from lakestream_sql.parser import SqlParser
from lakestream_sql.statements import parse, rewrite
from tests import certificates
from tests.fuzz.target import Target
from tests.keys import (
    ISSUED_AT,
    Key,
    account_jwt,
    account_key,
    activation_jwt,
    claims_of,
    operator_jwt,
    operator_key,
    scope,
    user_jwt,
    user_key,
)
from tests.unit.account_confs import cases

# ---------------------------------------------------------------------- nats.conf


@functools.cache
def _folder() -> Path:
    """Return the directory of configuration files, with certificates; it stays until the process ends."""
    made = tempfile.TemporaryDirectory(prefix="lakestream-fuzz-")
    _kept.append(made)
    certificates.write(Path(made.name) / "certificates")
    return Path(made.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


@contextlib.contextmanager
def _inside(path: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


def _conf(data: bytes) -> None:
    with _inside(_folder()):
        Path("nats.conf").write_bytes(data)
        load(Flags(config="nats.conf"))


FILES = 'cert_file: "certificates/server.pem", key_file: "certificates/server.key", ca_file: "certificates/ca.pem"'
CONFS = (
    'port: 4222, http: "127.0.0.1:8222", server_name: a, max_payload: 1MB, ping_interval: "2m", max_pending: 64MB\n',
    "jetstream { store_dir: s, max_mem: 1G, max_file: 10G, domain: d, strict: true }\nlake { url: l }\n",
    f"tls {{ {FILES}, verify: true, timeout: 2.5, handshake_first: auto, min_version: '1.3' }}\nallow_non_tls: true\n",
    f"tls {{ {FILES}, cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256], curve_preferences: [X25519] }}\n",
    f"tls {{ certs: [{{ {FILES.rpartition(',')[0]} }}], connection_rate_limit: 5, ocsp_peer: false }}\nocsp: false\n",
    f"tls {{ {FILES}, verify_and_map: true, pinned_certs: [{'ab' * 32}] }}\nproxy_protocol: true\n",
    f'websocket {{ listen: "[::1]:-1", tls {{ {FILES} }}, allowed_origins: ["http://a.b"], compression: true }}\n',
    "websocket { port: 1, no_tls: true, headers { X-A: b }, jwt_cookie: j, authorization { user: a, password: b } }\n",
    f'cluster {{ name: c, port: 1, routes: ["nats-route://u:p@h:6222"], tls {{ {FILES}, insecure: true }} }}\n',
    f'remotes [{{ url: "tls://u:p@h:4222", domain: d, tls {{ {FILES}, server_name: x, first: true }} }}]\n',
    'authorization { users: [{user: a, password: $P}], timeout: 1 }\nP = "x"\n',
    "authorization { token: t }\nno_auth_user: x\nsystem_account: S\ninclude nats.conf\n",
    "mappings { a.*: [{destination: 'b.$1', weight: 50%}, {destination: c, weight: 20%}] }\n",
)


# ---------------------------------------------------------------------- tokens

O, A, B, S, U = operator_key("O"), account_key("A"), account_key("B"), account_key("signer"), user_key("U")  # noqa: E741
KINDS = (jwt.UserClaims, jwt.AccountClaims, jwt.Operator, jwt.Activation, jwt.Response, jwt.DeletionClaims)
SIGNERS: tuple[Key, ...] = (A, O, O, B)


def _jwt(data: bytes) -> None:
    """Bit 2 of the first byte: the rest are claims, which are signed; otherwise it is a token. Bits 0, 1: its kind."""
    if not data:
        return
    kind, text = data[0] & 3, data[1:].decode("utf-8", "surrogateescape")
    if data[0] & 4:
        claims = base64.urlsafe_b64encode(data[1:]).rstrip(b"=").decode()
        parts = f"{_head()}.{claims}"
        text = f"{parts}.{SIGNERS[kind].sign(parts)}"
    jwt.undecorated(text)
    with contextlib.suppress(JwtError):
        jwt.kind_of(text)
    refused: JwtError | None = None
    for part in KINDS:
        try:
            token: Any = jwt.decode(text, part)
        except JwtError as error:
            refused = refused if part is not KINDS[kind] else error
            continue
        token.time_issues(ISSUED_AT)
        if part is jwt.UserClaims:
            jwt.user_issues(token.nats)
        elif part is jwt.AccountClaims:
            jwt.account_issues(token)
    if refused is not None:
        raise refused


@functools.cache
def _head() -> str:
    return user_jwt(U, "u", A).split(".")[0]


def _tokens() -> list[str]:
    user = user_jwt(
        U,
        "u",
        A,
        pub={"allow": ["a.>"], "deny": ["a.b"]},
        resp={"max": 1, "ttl": 5},
        src=["10.0.0.0/8", "::1/128"],
        times=[{"start": "08:00:00", "end": "17:00:00"}],
        times_location="Europe/Berlin",
        allowed_connection_types=["STANDARD"],
    )
    limits = {"subs": -1, "conn": 5, "mem_storage": -1, "disk_storage": 1000, "streams": 3, "consumer": -1}
    account = account_jwt(
        A,
        "A",
        O,
        limits=limits,
        signing_keys=[scope(S, "r", {"subs": 5})],
        mappings={"a": [{"subject": "b", "weight": 100}]},
    )
    return [user, account, operator_jwt(O, "O"), activation_jwt(A.public, B, "x", "stream")]


def _jwt_seeds() -> list[bytes]:
    tokens = _tokens()
    found = [bytes([kind]) + token.encode() for kind, token in enumerate(tokens)]
    return found + [bytes([4 + kind]) + json.dumps(claims_of(token)).encode() for kind, token in enumerate(tokens)]


# ---------------------------------------------------------------------- SQL


def _locate(mention: Mention) -> str:
    return f"SELECT * FROM {delta_scan('/lake/t', 3)}" if mention.travel is None else "SELECT 1 AS seq"


@functools.cache
def _parser() -> SqlParser:
    import duckdb

    return SqlParser(duckdb.connect())


def _sql(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    tokens.split(text, "spark")
    done, rest = tokens.split(text)
    assert len("".join(part for part, _ in done)) + len(rest) <= len(text)
    for statement in parse(text, _parser(), None):
        statement.mentions()
        if statement.kind in ("query", "explain"):
            _parser().tree(rewrite(statement, _locate).text)  # what DuckDB parsed before it parses with tables


QUERIES = (
    "SELECT subject, count(*) FROM delta.`streams/ORDERS` WHERE subject = 'a.b' GROUP BY subject; SHOW TABLES",
    "SELECT * FROM delta.`streams/A` VERSION AS OF 3 JOIN delta.`streams/B` TIMESTAMP AS OF '2026-01-01' USING (seq)",
    "SELECT * FROM as_of('ORDERS', '2026-05-01 12:00:00') -- comment\n;DESCRIBE HISTORY delta.`streams/A`",
    "WITH t AS (SELECT text(data) s FROM A) SELECT s->>'$.a', {'b':c}, l[1:2] FROM t WHERE x = :a AND y = ? OR $z",
    "FROM A SELECT json->'b'; EXPLAIN ANALYZE FROM kv.b; VALUES (1), (2); PIVOT A ON b USING sum(c); SUMMARIZE A",
    "DESCRIBE delta.`streams/A`; SELECT 'open",
    "EXPLAIN EXPLAIN SELECT ((((1))))",
    "SELECT E'a\\'b', $$c$$, U&'d' /* e /* f */ */ FROM accounts.\"A\".B TABLESAMPLE 10% -- g\n, as_of(C, now())",
)


TARGETS = (
    Target(
        "conf",
        "nats.conf, with everything that a start makes of it",
        _conf,
        (StartError,),
        lambda: [text.encode() for text in (*CONFS, *(case.text for case in cases()))],
        (
            b"include ",
            b"authorization {",
            b"accounts {",
            b"users: [",
            b"exports: [",
            b"imports: [",
            b"tls {",
            b"$P",
            b"1GB",
            b"%",
        ),
        3000,
    ),
    Target(
        "jwt",
        "tokens: any text, and any signed claims",
        _jwt,
        (JwtError,),
        _jwt_seeds,
        (
            b'"nats":{',
            b'"type":"user"',
            b'"limits":{',
            b'"version":2',
            b'"signing_keys":[',
            b'"exports":[',
            b'"imports":[',
        ),
        3000,
    ),
    Target(
        "sql",
        "SQL of `lakestream sql`",
        _sql,
        (SqlError,),
        lambda: [text.encode() for text in QUERIES],
        (
            b"SELECT ",
            b"FROM ",
            b"delta.`streams/A`",
            b"VERSION AS OF ",
            b"as_of('A', ",
            b"WITH ",
            b"EXPLAIN ",
            b"$$",
            b"/*",
            b"PIVOT A ON b",
        ),
        600,
    ),
)
