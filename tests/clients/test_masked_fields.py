"""Tests of masked fields over NATS: streams, roles, updates, and the messages themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.clients.test_sql_over_nats import Session
from tests.servers import Kind, Server

pytestmark = pytest.mark.conformance

CONFIG = """
accounts {
  A { jetstream: enabled, users: [{ user: ann, password: pw }, { user: bob, password: pw }]
      exports: [{ service: "$LAKE.API.SQL", response: stream }] }
  B { users: [{ user: cid, password: pw }], imports: [{ service: { account: A, subject: "$LAKE.API.SQL" } }] }
}
lake { seal_age: "1h" }
sql { mask_key: "a secret", max_account_concurrent: 4 }
"""
MASK = {"lakestream.mask": '{"$.card": "hash", "email": "null"}', "lakestream.mask_clear": '["ann"]'}
PERSON = {"card": "4111", "email": "x@example.com"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path_factory.mktemp("masks") / "store", config=CONFIG, args=["-m", "-1"])
    server.start()
    yield server
    server.kill()


def create(server: Server, stream: str, verb: str = "CREATE", **metadata: str) -> dict[str, object]:
    config = {"name": stream, "subjects": [f"{stream.lower()}.>"], "metadata": metadata}
    wire = Session(server).wire
    found: dict[str, object] = wire.api(f"STREAM.{verb}.{stream}", config)
    if verb == "CREATE" and "error" not in found:
        for _ in range(2):
            wire.request(f"{stream.lower()}.a", json.dumps(PERSON).encode())
    return found


def test_roles_see_fields_and_others_do_not(server: Server) -> None:
    create(server, "P", **MASK)
    query = "SELECT json->>'card' AS card, json->>'email' AS email FROM P ORDER BY seq"
    assert Session(server).ask(query).rows == [PERSON, PERSON]
    first, second = Session(server, "bob").ask(query).rows
    assert first == second
    assert first["email"] is None
    assert len(first["card"]) == 32
    for each in ("FROM as_of(P, '2020-01-01')", "FROM last(P)", "SELECT max(text(data)) AS m FROM P"):
        found = Session(server, "bob").ask(each)
        assert not found.code, found.end
        assert b"4111" not in b"".join(found.batches)
    message = Session(server, "bob").wire.api("STREAM.MSG.GET.P", {"seq": 1})["message"]
    assert "data" in message  # what is on NATS stays


def test_a_change_of_the_masks_holds_for_the_next_query(server: Server) -> None:
    create(server, "Q")
    query = "SELECT text(data) AS d FROM Q"
    assert "4111" in Session(server, "bob").ask(query).rows[0]["d"]
    create(server, "Q", "UPDATE", **MASK)
    assert "4111" not in Session(server, "bob").ask(query).rows[0]["d"]
    create(server, "Q", "UPDATE", **MASK | {"lakestream.mask_clear": '["bob"]'})
    assert "4111" in Session(server, "bob").ask(query).rows[0]["d"]
    assert "4111" not in Session(server).ask(query).rows[0]["d"]


def test_a_user_of_another_account_has_no_role(server: Server) -> None:
    create(server, "R", **MASK | {"lakestream.mask_clear": '["ann", "cid"]'})
    (row, _) = Session(server, "cid").ask("SELECT text(data) AS d FROM R").rows
    assert "4111" not in row["d"]


@pytest.mark.parametrize("value", ["x", '{"a": "md5"}', "{}"])
def test_wrong_masks_are_refused_at_create_and_update(server: Server, value: str) -> None:
    found = create(server, "W", **{"lakestream.mask": value})
    assert "lakestream.mask" in str(found["error"])
    create(server, "V")
    assert "lakestream.mask" in str(create(server, "V", "UPDATE", **{"lakestream.mask": value})["error"])
