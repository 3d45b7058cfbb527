"""Fuzz tests of nats.conf: any text is a configuration or an error with a place, and takes little time.

`LAKESTREAM_FUZZ_ROUNDS` texts (2,000) are drawn from `LAKESTREAM_FUZZ_SEED`: files of other tests, with changes. A
server reads its file in the event loop when it is told to reload.
"""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

import pytest

from lakestream.config.errors import StartError
from lakestream.config.loading import load
from lakestream.config.options import Flags
from tests import certificates
from tests.fuzzing import CAMPAIGN, ROUNDS, SEED, mutated
from tests.unit.account_confs import cases

pytestmark = pytest.mark.unit

LIMIT_S = 0.05
FILES = 'cert_file: "certificates/server.pem", key_file: "certificates/server.key", ca_file: "certificates/ca.pem"'
SEEDS = (
    'port: 4222, http: "127.0.0.1:8222", server_name: a, max_payload: 1MB, ping_interval: "2m", max_pending: 64MB\n',
    "jetstream { store_dir: s, max_mem: 1G, max_file: 10G, domain: d, strict: true }\nlake { root: l }\n",
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
ODD = (
    *("\x00", "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "[" * 100, "{a:" * 100, "9" * 400, "1e400"),
    *(
        "-1",
        '"',
        "'",
        "(\n",
        "\\x",
        "$",
        "# ",
        "//",
        "\r",
        "\t",
        "true",
        "null",
        "2026-01-01T00:00:00Z",
        "1" * 30 + "GB",
    ),
)


def _seconds(path: Path) -> float:
    """Return the processor time of one load, which fails with nothing but a StartError."""
    began = time.process_time()
    with contextlib.suppress(StartError):
        load(Flags(config=str(path)))
    return time.process_time() - began


def test_any_text_is_read_or_refused_in_little_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    certificates.write(tmp_path / "certificates")
    rng, path = random.Random(f"conf {SEED}"), tmp_path / "nats.conf"
    texts = [*SEEDS, *(case.text for case in cases())]
    slowest = 0.0
    for _ in range(ROUNDS):
        parts = [rng.choice(SEEDS if rng.random() < 0.5 else texts) for _ in range(rng.randrange(1, 4))]
        text = mutated(rng, "\n".join(parts), [*texts, *ODD])
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            took = _seconds(path)
            if took > LIMIT_S:  # garbage collection of the tests' own objects may have come in between
                took = _seconds(path)
        except Exception as error:
            raise AssertionError(f"{error!r} for {text!r}") from error
        slowest = max(slowest, took)
        assert took <= LIMIT_S or ROUNDS < CAMPAIGN, text
    print(f"slowest of {ROUNDS}: {slowest * 1e3:.1f} ms")
