"""Tests of the settings in force: their keys, origins, and what is masked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakestream.config.effective import COMPUTED, DEFAULT, Setting, settings
from lakestream.config.loading import load
from lakestream.config.options import Flags

pytestmark = pytest.mark.unit


def shown(tmp_path: Path, text: str) -> dict[str, Setting]:
    file = tmp_path / "nats.conf"
    file.write_text(text)
    return {each.key: each for each in settings(load(Flags(config=str(file))))}


def test_every_setting_says_where_it_comes_from(tmp_path: Path) -> None:
    found = shown(
        tmp_path,
        "port: 4333\n"
        "jetstream {\n  store_dir: /s\n  max_file_store: 1G\n"
        "  limits { max_ack_pending: 7\n    batch { max_msgs: 9 } }\n}\n"
        "lake { seal_age: 5s }\n"
        "ping_interval: 30s\n"
        "cluster: { listen: '127.0.0.1:6222', name: c }\nserver_name: n\n",
    )
    file = tmp_path / "nats.conf"

    def place(key: str) -> tuple[Any, str]:
        return found[key].value, found[key].origin.replace(str(file), "")

    assert place("port") == (4333, ":1")
    assert place("jetstream.store_dir") == ("/s", ":3")
    assert place("jetstream.max_file_store") == (1_000_000_000, ":4")
    assert place("jetstream.limits.max_ack_pending") == (7, ":5")
    assert place("jetstream.limits.batch.max_msgs") == (9, ":6")
    assert place("lake.seal_age") == ("5s", ":8")
    assert place("lake.seal_bytes") == (16 << 20, DEFAULT)
    assert place("ping_interval") == ("30s", ":9")
    assert place("cluster.host") == ("127.0.0.1", ":10")
    assert place("cluster.port") == (6222, ":10")
    assert found["jetstream.max_memory_store"].origin == COMPUTED
    assert found["host"].origin == DEFAULT


def test_a_setting_in_an_included_file_names_that_file(tmp_path: Path) -> None:
    (tmp_path / "inner.conf").write_text("\n\nmax_payload: 2000\n")
    found = shown(tmp_path, "include ./inner.conf\n")
    assert found["max_payload"].origin.endswith("inner.conf:3")


def test_no_secret_is_shown(tmp_path: Path) -> None:
    text = """
        accounts { A { users: [{user: ann, password: SECRET1, permissions: {publish: "a.>"}}], jetstream: enabled } }
        cluster { name: c, listen: "127.0.0.1:6222", routes: ["nats://u:SECRET2@h:1"]
                  authorization {user: u, password: SECRET3} }
        server_name: n, jetstream { domain: here, store_dir: /s }
        remotes [ {url: "nats://h:4222", domain: d, user: q, password: SECRET4}
                  {url: "nats://h3:4222", domain: f, token: SECRET6} ]
        leafnodes { port: -1, authorization: {user: l, password: SECRET7}
                    remotes: [{url: "nats-leaf://me:SECRET8@h:7422"}] }
    """
    found = shown(tmp_path, text)
    everything = repr([(each.key, each.value, each.origin) for each in found.values()])
    assert "SECRET" not in everything
    assert "'ann'" in everything
    assert found["cluster.password"].value == "***"
    websocket = "websocket { port: -1, no_tls: true, authorization: {user: w, password: SECRET9, token: SECRET5} }"
    assert "SECRET" not in repr([each.value for each in shown(tmp_path, websocket).values()])
    assert shown(tmp_path, "lake { spark_connect { token: SECRETB } }")["lake.spark_connect_token"].value == "***"
    token = shown(tmp_path, "authorization { token: SECRETA }")["authorization.token"]
    assert (token.value, token.origin.rpartition(":")[2]) == ("***", "1")
