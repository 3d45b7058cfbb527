"""Tests of the console's figures over time, through the real socket."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.console.world import Start, logged_in, until
from tests.console import Browser
from tests.servers import Server

pytestmark = pytest.mark.conformance


def series(browser: Browser, seconds: int = 300, stream: str = "") -> dict[str, list[float]]:
    """Return the series without their gaps."""
    found: dict[str, list[Any]] = browser.get(f"history?seconds={seconds}&stream={stream}").json["series"]
    return {name: [value for value in values if value is not None] for name, values in found.items()}


def store(browser: Browser, stream: str, count: int) -> None:
    browser.request(f"$JS.API.STREAM.CREATE.{stream}", {"name": stream, "subjects": [stream.lower()]})
    for _ in range(count):
        assert browser.post("publish", {"subject": stream.lower(), "data": "x"}).status == 200


def test_figures_are_kept_without_a_page(plain: Server) -> None:
    browser = Browser(plain)
    browser.begin()
    store(browser, "KEPT", 20)
    until(lambda: any(series(browser).get("stored", [])), 30)
    page = browser.get("history?seconds=300").json
    assert (page["step"], page["kept"], page["now"] - page["started"] < 600) == (5, 86_400, True)
    found = series(browser)
    assert sum(found["stored"]) * 5 == pytest.approx(20, rel=0.3)
    assert 0 < found["ack50"][-1] <= found["ack99"][-1] < 5
    assert found["memory"][-1] > 10 << 20
    assert browser.get("history?seconds=86400").json["step"] == 60
    assert browser.get("history?seconds=x").status == 400


def test_a_stream_has_its_rate_and_its_lag(plain: Server) -> None:
    browser = Browser(plain)
    browser.begin()
    store(browser, "PLOTTED", 1)
    until(lambda: bool(series(browser, stream="PLOTTED").get("lag")), 30)
    message = {"subject": "plotted", "data": "x"}
    until(
        lambda: browser.post("publish", message).status == 200 and any(series(browser, stream="PLOTTED")["stored"]), 30
    )
    found = series(browser, stream="PLOTTED")
    assert set(found) == {"stored", "lag"}
    assert found["lag"][-1] >= 1
    assert series(browser, stream="NOBODY") == {}


@pytest.mark.heavy
def test_an_account_sees_its_own_figures(users: Server) -> None:
    ann = logged_in(users, user="ann", password="secret-of-ann")
    bob = logged_in(users, user="bob", password="secret-of-bob")
    sys = logged_in(users, user="sys", password="secret-of-sys")
    store(ann, "FIGURES", 1)
    message = {"subject": "figures", "data": "x"}
    until(lambda: ann.post("publish", message).status == 200 and any(series(ann).get("stored", [])), 30)
    until(lambda: bool(series(bob).get("stored")), 30)
    assert not any(series(bob)["stored"])
    assert series(ann, stream="FIGURES")
    assert series(bob, stream="FIGURES") == {}
    assert "ack99" not in series(ann)
    assert "memory" not in series(ann)
    assert series(sys)["memory"]


def test_the_history_can_be_off(starts: Start) -> None:
    server = starts("console { history: 0 }")
    browser = Browser(server)
    browser.begin()
    page = browser.get("history").json
    assert (page["kept"], page["series"]) == (0, {})
    server.kill()
