"""Tests of the console's restores through the real socket."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.clients.console.world import OWNER, USERS, Start, logged_in
from tests.console import Browser
from tests.servers import Server

pytestmark = [pytest.mark.conformance, pytest.mark.heavy]


@pytest.fixture(scope="module")
def shop(starts: Start) -> Server:
    """Return a server with accounts."""
    return starts(USERS % OWNER.public)


def now() -> str:
    """Return a moment that is after what was acknowledged and before what comes."""
    time.sleep(0.01)
    moment = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    time.sleep(0.01)
    return moment


def finished(browser: Browser) -> Any:
    """Return the restore of a session once it has ended."""
    deadline = time.monotonic() + 60
    while not (shown := browser.get("restored").json)["done"]:
        assert time.monotonic() < deadline, shown
        time.sleep(0.1)
    return shown


def message(browser: Browser, stream: str, **asked: Any) -> tuple[str, bytes]:
    """Return subject and payload of a stored message."""
    found = browser.request(f"$JS.API.STREAM.MSG.GET.{stream}", asked)["message"]
    return found["subject"], b64decode(found.get("data", ""))


def test_a_stream_is_restored_as_of_a_moment_with_sequences_and_gaps(shop: Server) -> None:
    ann = logged_in(shop, user="ann", password="secret-of-ann")
    ann.request("$JS.API.STREAM.CREATE.ORDERS", {
        "name": "ORDERS", "subjects": ["orders.*"], "metadata": {"lakestream.time_travel": "30d"}, "allow_direct": True,
    })  # fmt: skip
    for number in range(1, 6):
        ann.post("publish", {"subject": f"orders.{number}", "data": str(number), "headers": {"Number": str(number)}})
    ann.request("$JS.API.STREAM.MSG.DELETE.ORDERS", {"seq": 2})
    moment = now()
    ann.post("publish", {"subject": "orders.6", "data": "later"})
    ann.request("$JS.API.STREAM.MSG.DELETE.ORDERS", {"seq": 4, "no_erase": True})
    begun = ann.post("restore", {"stream": "ORDERS", "as_of": moment, "to": "BEFORE"})
    assert (begun.status, begun.json["to"]) == (202, "BEFORE")
    outcome = finished(ann)
    assert (outcome["error"], outcome["messages"], outcome["first_seq"]) == ("", 4, 1)
    state = ann.request("$JS.API.STREAM.INFO.BEFORE")["state"]
    assert (state["first_seq"], state["last_seq"], state["messages"]) == (1, 5, 4)
    assert message(ann, "BEFORE", seq=4) == ("orders.4", b"4")
    assert ann.request("$JS.API.STREAM.INFO.BEFORE")["config"]["subjects"] == ["BEFORE"]
    ann.post("restore", {"stream": "ORDERS", "as_of": moment, "to": "BEFORE"})
    assert "already" in finished(ann)["error"]


@pytest.mark.parametrize(
    ("name", "subject", "data", "restored", "content"),
    [
        ("KV_conf", "$KV.conf.host", "one", "$KV.then.host", b"one"),
        ("OBJ_files", "$O.files.M.eA==", '{"name": "x", "bucket": "files"}', "$O.then.M.eA==", b'"bucket": "then"'),
    ],
)
def test_a_bucket_is_restored_under_its_new_name(
    shop: Server, name: str, subject: str, data: str, restored: str, content: bytes
) -> None:
    ann = logged_in(shop, user="ann", password="secret-of-ann")
    kind, _, bucket = name.partition("_")
    subjects = {"KV": [f"$KV.{bucket}.>"], "OBJ": [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"]}[kind]
    ann.request(f"$JS.API.STREAM.CREATE.{name}", {
        "name": name, "subjects": subjects, "max_msgs_per_subject": 1, "metadata": {"lakestream.time_travel": "30d"},
    })  # fmt: skip
    ann.post("publish", {"subject": subject, "data": data})
    moment = now()
    ann.post("publish", {"subject": subject, "data": "another"})
    refused = ann.post("restore", {"stream": name, "as_of": moment, "to": "THEN"})
    assert (refused.status, f"begins with {kind}_" in refused.json["error"]) == (400, True)
    ann.post("restore", {"stream": name, "as_of": moment, "to": f"{kind}_then"})
    outcome = finished(ann)
    assert (outcome["error"], outcome["messages"]) == ("", 1)
    found, payload = message(ann, f"{kind}_then", last_by_subj=restored)
    assert (found, content in payload) == (restored, True)
    kept = ann.request(f"$JS.API.STREAM.INFO.{kind}_then")["config"]["subjects"]
    assert kept == [each.replace(bucket, "then") for each in subjects]
    assert ann.post("publish", {"subject": restored, "data": "new"}).json["ack"]["stream"] == f"{kind}_then"


def test_what_cannot_be_restored_says_why(shop: Server) -> None:
    ann = logged_in(shop, user="ann", password="secret-of-ann")
    ann.request("$JS.API.STREAM.CREATE.YOUNG", {"name": "YOUNG", "subjects": ["young"]})
    ann.post("publish", {"subject": "young", "data": "x"})
    asked = {"stream": "YOUNG", "as_of": "2020-01-01T00:00:00Z", "to": "OLD"}
    ann.post("restore", asked)
    error = finished(ann)["error"]
    assert "held no message" in error
    assert str(shop.store) not in error
    assert ann.post("restore", asked | {"as_of": "yesterday"}).status == 400
    assert ann.post("restore", asked | {"stream": "NONE"}).status == 404
    own = logged_in(shop, user="own", password="secret-of-own", inbox="_INBOX_own")
    assert own.request("$JS.API.STREAM.INFO.YOUNG")["state"]["messages"] == 1
    config = shop.config or ""
    shop.reload(config.replace('subscribe: ["_INBOX_own.>"]', 'publish: { deny: "$JS.API.STREAM.MSG.>" }'))
    try:
        denied = logged_in(shop, user="own", password="secret-of-own")
        reply = denied.post("restore", asked)
        assert (reply.status, "$JS.API.STREAM.MSG.GET.YOUNG" in reply.json["error"]) == (403, True)
    finally:
        shop.reload(config)


def test_the_permission_to_restore_is_the_users(shop: Server) -> None:
    ann = logged_in(shop, user="ann", password="secret-of-ann")
    ann.request("$JS.API.STREAM.CREATE.GUARDED", {"name": "GUARDED", "subjects": ["guarded"]})
    ann.post("publish", {"subject": "guarded", "data": "x"})
    config = shop.config or ""
    shop.reload(config.replace('subscribe: ["_INBOX_own.>"]', 'publish: { deny: "$JS.API.STREAM.RESTORE.>" }'))
    try:
        own = logged_in(shop, user="own", password="secret-of-own")
        own.post("restore", {"stream": "GUARDED", "as_of": now(), "to": "COPY"})
        assert "$JS.API.STREAM.RESTORE.COPY" in finished(own)["error"]
        assert json.dumps(own.request("$JS.API.STREAM.NAMES")).count("COPY") == 0
    finally:
        shop.reload(config)
