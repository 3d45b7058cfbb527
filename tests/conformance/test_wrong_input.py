"""Starts with a wrong configuration, wrong flags or a store that cannot be used: exit code, stream and last lines."""

from __future__ import annotations

import os
import re
import resource
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import certificates
from tests.certificates import PLACE
from tests.conftest import Recorded
from tests.servers import WITHOUT_PRIVILEGES, Kind, run_to_end

pytestmark = pytest.mark.conformance

_STAMP = re.compile(r"^(\[\d+\] )?\d{4}/\d\d/\d\d [\d:.]+ ")
_NOISE = re.compile(r"^\[(INF|WRN|DBG)\]")
_OF_GO = re.compile(r"interface conversion: .*|strconv\.\w+: .*|asn1: .*|json: .*")
"""Texts of the libraries and the runtime of nats-server's language: here only the place before them is compared."""


RUNNING_S = 8.0
"""A server that has not ended after so many seconds took what it was given."""


class Attempt:
    """One start with a configuration and flags that must fail, by any program."""

    def __init__(self, directory: Path, config: str | None, flags: tuple[str, ...]) -> None:
        self._directory = directory
        self._certificates = directory / "certificates"
        certificates.write(self._certificates)
        (directory / "file").write_text("x")
        self._flags = [self._placed(flag) for flag in flags]
        if config is not None:
            path = directory / "wrong.conf"
            path.write_text(self._placed(config))
            self._flags += ["-c", str(path)]

    def _placed(self, text: str) -> str:
        return text.replace(PLACE, str(self._certificates)).replace("@here@", str(self._directory))

    def made_by(self, kind: Kind, before: Sequence[str] = ()) -> dict[str, Any]:
        """Return the exit code, if anything went to stdout, and the lines on stderr that are no information."""
        flags = ("-a", "127.0.0.1", "-p", "-1", *self._flags)
        try:
            done = run_to_end(kind, *flags, timeout=RUNNING_S, before=before)
        except subprocess.TimeoutExpired:
            return {"exit": "goes on running", "stdout": False, "stderr": []}
        lines = [_STAMP.sub("", line) for line in done.stderr.splitlines() if line.strip()]
        shown = [re.sub(r"^(nats-server|lakestream): ", "", line) for line in lines if not _NOISE.match(line)]
        simple = sorted(self._simple(line) for line in shown)  # nats-server reads the fields of a map in any order
        return {"exit": done.returncode, "stdout": bool(done.stdout), "stderr": simple}

    def _simple(self, line: str) -> str:
        line = line.replace(str(self._certificates), "CERTS").replace(str(self._directory), "HERE")
        line = re.sub(r', did you mean "\w+"\?$', "", line)  # only here
        return re.sub(r"sha256:[0-9a-f]{64}", "<digest>", line)


def _comparable(seen: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """Return a result in which lines that end with a text of Go are cut to their beginning."""
    places = [_OF_GO.sub("", line) if _OF_GO.search(line) else "" for line in expected["stderr"]]
    lines = list(seen["stderr"])
    for number, place in enumerate(places[: len(lines)]):
        if place and lines[number].startswith(place):
            lines[number] = place
    return {**seen, "stderr": lines}


def _compare(directory: Path, kind: Kind, recorded: Recorded, config: str | None, *flags: str) -> None:
    attempt = Attempt(directory, config, flags)
    expected = recorded(lambda: attempt.made_by(Kind.REAL))
    got = attempt.made_by(kind)
    assert _comparable(got, expected) == _comparable(expected, expected)


def _files(cert: str, key: str) -> str:
    """Two lines: columns of what follows shall not depend on the length of a path."""
    return f'cert_file: "{PLACE}/{cert}"\n  key_file: "{PLACE}/{key}"\n'


FILES = _files("server.pem", "server.key")
CA = f'ca_file: "{PLACE}/ca.pem"'


BAD_TLS = {
    "no_key": f'cert_file: "{PLACE}/server.pem"',
    "no_cert": f'key_file: "{PLACE}/server.key"',
    "absent_cert": _files("nowhere.pem", "server.key"),
    "absent_key": _files("server.pem", "nowhere.key"),
    "key_of_another": _files("server.pem", "second.key"),
    "garbage_cert": _files("garbage.pem", "server.key"),
    "empty_cert": _files("empty.pem", "server.key"),
    "garbage_key": _files("server.pem", "garbage.pem"),
    "encrypted_key": _files("server.pem", "encrypted.key"),
    "exchanged": _files("server.key", "server.pem"),
    "cert_is_a_number": f'cert_file: 5\nkey_file: "{PLACE}/server.key"',
    "key_is_a_number": f'cert_file: "{PLACE}/server.pem"\nkey_file: 5',
    "ca_is_a_number": f"{FILES} ca_file: 5",
    "absent_ca": f'{FILES} ca_file: "{PLACE}/nowhere.pem"',
    "garbage_ca": f'{FILES} ca_file: "{PLACE}/garbage.pem"',
    "verify_is_no_boolean": f'{FILES} verify: "yes"',
    "map_is_no_boolean": f'{FILES} verify_and_map: "true"',
    "known_urls_for_clients": f"{FILES} verify_cert_and_check_known_urls: true",
    "known_urls_is_no_boolean": f'{FILES} verify_cert_and_check_known_urls: "x"',
    "insecure_is_no_boolean": f'{FILES} insecure: "x"',
    "timeout_is_no_duration": f'{FILES} timeout: "x"',
    "timeout_is_a_list": f"{FILES} timeout: []",
    "first_is_a_word": f'{FILES} handshake_first: "x"',
    "first_is_empty": f'{FILES} handshake_first: ""',
    "first_is_a_number": f"{FILES} handshake_first: 5",
    "version_1_1": f'{FILES} min_version: "1.1"',
    "version_1_4": f'{FILES} min_version: "1.4"',
    "version_with_a_name": f'{FILES} min_version: "TLS1.3"',
    "version_is_a_number": f"{FILES} min_version: 1.3",
    "unknown_cipher": f'{FILES} cipher_suites: ["NOPE"]',
    "cipher_in_lower_case": f'{FILES} cipher_suites: ["tls_aes_256_gcm_sha384"]',
    "no_ciphers": f"{FILES} cipher_suites: []",
    "ciphers_are_a_word": f'{FILES} cipher_suites: "TLS_AES_128_GCM_SHA256"',
    "insecure_cipher": f'{FILES} cipher_suites: ["TLS_RSA_WITH_RC4_128_SHA"]',
    "insecure_ciphers": f'{FILES} cipher_suites: ["TLS_RSA_WITH_RC4_128_SHA", "TLS_RSA_WITH_3DES_EDE_CBC_SHA"]',
    "unknown_curve": f'{FILES} curve_preferences: ["P-256"]',
    "no_curves": f"{FILES} curve_preferences: []",
    "curves_are_a_word": f"{FILES} curve_preferences: X25519",
    "pins_are_a_word": f'{FILES} pinned_certs: "{"a" * 64}"',
    "pin_too_short": f'{FILES} pinned_certs: ["abc"]',
    "pin_not_hexadecimal": f'{FILES} pinned_certs: ["{"z" * 64}"]',
    "rate_is_a_word": f'{FILES} connection_rate_limit: "5"',
    "rate_is_a_fraction": f"{FILES} connection_rate_limit: 1.5",
    "certs_beside_cert": f"{FILES} certs: [{{{FILES}}}]",
    "certs_is_a_map": f"certs: {{{FILES}}}",
    "certs_has_a_word": 'certs: ["x"]',
    "certs_without_a_key": f'certs: [{{cert_file: "{PLACE}/server.pem"}}]',
    "certs_with_an_absent_file": f"certs: [{{{_files('nowhere.pem', 'server.key')}}}]",
    "certs_with_a_second_that_is_absent": f"certs: [{{{FILES}}}, {{{_files('nowhere.pem', 'server.key')}}}]",
    "unknown_field": f"{FILES} shoe_size: 44",
    "ocsp_peer_without_verify": f"{FILES} ocsp_peer: true",
    "cert_store": 'cert_store: "x"',
    "cert_store_of_windows": 'cert_store: "WindowsCurrentUser", cert_match_by: subject, cert_match: x',
}


@pytest.mark.parametrize("inside", BAD_TLS.values(), ids=BAD_TLS.keys())
def test_tls(tmp_path: Path, kind: Kind, recorded: Recorded, inside: str) -> None:
    _compare(tmp_path, kind, recorded, f"tls {{\n  {inside}\n}}\n")


LISTEN = 'listen: "127.0.0.1:-1", no_tls: true'
BAD_WEBSOCKET = {
    "no_tls": 'listen: "127.0.0.1:-1"',
    "no_tls_with_a_port": "port: -1",
    "tls_without_a_key": 'listen: "127.0.0.1:-1", tls { cert_file: x }',
    "listen_is_no_address": "listen: x, no_tls: true",
    "port_is_a_word": 'port: "x", no_tls: true',
    "port_is_too_large": 'host: "127.0.0.1", port: 99999, no_tls: true',
    "port_is_negative": 'host: "127.0.0.1", port: -2, no_tls: true',
    "host_is_a_number": "host: 5, port: -1, no_tls: true",
    "no_tls_is_a_word": 'listen: "127.0.0.1:-1", no_tls: "x"',
    "compression_is_a_word": f'{LISTEN}, compression: "x"',
    "same_origin_is_a_word": f'{LISTEN}, same_origin: "x"',
    "origins_are_a_number": f"{LISTEN}, allowed_origins: 5",
    "origin_is_no_url": f'{LISTEN}, allowed_origins: ["x"]',
    "origin_is_a_star": f'{LISTEN}, allowed_origins: ["*"]',
    "origin_with_a_blank": f'{LISTEN}, allowed_origins: ["http://a b"]',
    "origin_with_a_bad_escape": f'{LISTEN}, allowed_origins: ["http://%zz"]',
    "origin_of_another_scheme": f'{LISTEN}, allowed_origins: ["ftp://a.example"]',
    "handshake_timeout_is_a_word": f'{LISTEN}, handshake_timeout: "x"',
    "jwt_cookie_without_operators": f"{LISTEN}, jwt_cookie: jwt",
    "jwt_cookie_is_a_number": f"{LISTEN}, jwt_cookie: 5",
    "no_auth_user_without_users": f"{LISTEN}, no_auth_user: x",
    "advertise_is_no_address": f'{LISTEN}, advertise: ":::"',
    "advertise_with_a_bad_port": f'{LISTEN}, advertise: "a.example:x"',
    "ping_interval_is_a_word": f'{LISTEN}, ping_interval: "x"',
    "headers_are_a_number": f"{LISTEN}, headers: 5",
    "header_is_a_number": f"{LISTEN}, headers {{ a: 5 }}",
    "header_of_the_handshake": f"{LISTEN}, headers {{ UPGRADE: x }}",
    "header_of_websocket": f"{LISTEN}, headers {{ sec-websocket-x: x }}",
    "header_of_length": f"{LISTEN}, headers {{ Content-Length: x }}",
    "unknown_field": f"{LISTEN}, shoe_size: 44",
    "users": f"{LISTEN}, authorization {{ users: [{{user: u, password: p}}] }}",
    "unknown_field_of_authorization": f"{LISTEN}, authorization {{ shoe_size: 44 }}",
    "user_in_the_block": f"{LISTEN}, username: u, password: p",
    "pin_too_short": f'listen: "127.0.0.1:-1", tls {{ {FILES} pinned_certs: ["x"] }}',
}


@pytest.mark.parametrize("inside", BAD_WEBSOCKET.values(), ids=BAD_WEBSOCKET.keys())
def test_websocket(tmp_path: Path, kind: Kind, recorded: Recorded, inside: str) -> None:
    _compare(tmp_path, kind, recorded, f"websocket {{\n  {inside}\n}}\n")


HOST = 'host: "127.0.0.1", port: -1'
REMOTE = 'remotes: [{{ url: "nats-leaf://127.0.0.1:1", {} }}]'.format
BAD_LEAFNODES = {
    "listen_is_no_address": "listen: x",
    "listen_with_a_bad_port": 'listen: "127.0.0.1:x"',
    "port_is_a_word": 'port: "x"',
    "port_is_too_large": 'host: "127.0.0.1", port: 99999',
    "port_is_negative": 'host: "127.0.0.1", port: -2',
    "address_of_nobody": 'host: "192.0.2.77", port: -1',
    "advertise_with_a_bad_port": f'{HOST}, advertise: "a.example:x"',
    "advertise_with_colons": f'{HOST}, advertise: "::1"',
    "compression_of_no_kind": f"{HOST}, compression: nope",
    "min_version_too_low": f'{HOST}, min_version: "1.0.0"',
    "no_advertise_is_a_number": f"{HOST}, no_advertise: 5",
    "reconnect_is_a_word": f"{HOST}, reconnect: x",
    "tls_without_a_key": f"{HOST}, tls {{ cert_file: x }}",
    "unknown_field": f"{HOST}, shoe_size: 44",
    "user_and_users": f"{HOST}, authorization {{ user: u, password: p, users: [{{user: a, password: b}}] }}",
    "a_user_twice": f"{HOST}, authorization {{ users: [{{user: a, password: b}}, {{user: a, password: c}}] }}",
    "user_in_an_absent_account": f"{HOST}, authorization {{ users: [{{user: a, password: b, account: NOPE}}] }}",
    "absent_account": f"{HOST}, authorization {{ account: NOPE }}",
    "key_that_is_none": f"{HOST}, authorization {{ nkey: UABC }}",
    "timeout_is_a_word": f"{HOST}, authorization {{ timeout: x }}",
    "token": f"{HOST}, authorization {{ token: t }}",
    "remotes_are_a_number": "remotes: 5",
    "url_is_a_number": "remotes: [{ url: 5 }]",
    "urls_of_two_kinds": 'remotes: [{ urls: ["ws://127.0.0.1:1", "nats-leaf://127.0.0.1:1"] }]',
    "ws_compression_is_a_number": REMOTE("ws_compression: 5"),
    "proxy_is_a_text": REMOTE("proxy: x"),
    "proxy_of_another_kind": REMOTE('proxy { url: "ftp://a.example" }'),
    "proxy_without_a_host": REMOTE('proxy { url: "http:///a" }'),
    "proxy_with_a_user_alone": REMOTE('proxy { url: "http://a.example", username: u }'),
    "proxy_with_an_unknown_field": REMOTE('proxy { url: "http://a.example", shoe_size: 44 }'),
    "remote_of_an_absent_account": REMOTE("account: NOPE"),
    "remote_denies_no_subject": REMOTE('deny_imports: "a b"'),
    "remote_with_a_seed_that_is_none": REMOTE("nkey: SUA"),
    "remote_with_an_unknown_field": REMOTE("shoe_size: 44"),
    "remote_with_a_bad_compression": REMOTE("compression: 5"),
    "remote_tls_without_a_key": REMOTE(f'tls {{ cert_file: "{PLACE}/server.pem" }}'),
    "remote_tls_with_an_absent_file": REMOTE("tls { cert_file: /nowhere.pem, key_file: /nowhere.key }"),
    "remote_tls_with_an_absent_authority": REMOTE("tls { ca_file: /nowhere.pem }"),
    "remote_tls_with_a_garbage_authority": REMOTE(f'tls {{ ca_file: "{PLACE}/garbage.pem" }}'),
    "remote_tls_is_a_number": REMOTE("tls: 5"),
    "remote_tls_with_an_unknown_field": REMOTE("tls { shoe_size: 44 }"),
    "remote_tls_with_an_old_version": REMOTE('tls { min_version: "1.1" }'),
}


@pytest.mark.parametrize("inside", BAD_LEAFNODES.values(), ids=BAD_LEAFNODES.keys())
def test_leafnodes(tmp_path: Path, kind: Kind, recorded: Recorded, inside: str) -> None:
    _compare(tmp_path, kind, recorded, f"leafnodes {{\n  {inside}\n}}\n")


USERS = "authorization { users: [{user: a, password: b}] }"
ONE_USER = "authorization { users: [{user: ann, password: p}] }"
BAD = {
    # tls and websocket as a whole
    "tls_is_a_boolean": "tls: true",
    "tls_is_a_word": "tls: x",
    "allow_non_tls_is_a_word": "allow_non_tls: x",
    "https_without_tls": 'https: "127.0.0.1:-1"',
    "http_and_https": f'tls {{ {FILES} }}\nhttp: "127.0.0.1:-1"\nhttps: "127.0.0.1:-1"',
    "https_is_no_address": f"tls {{ {FILES} }}\nhttps: x",
    "ocsp_with_an_unknown_mode": "ocsp { mode: x }",
    "ocsp_is_a_number": "ocsp: 5",
    "websocket_is_a_boolean": "websocket: true",
    "websocket_is_a_number": "websocket: 8080",
    "websocket_user_beside_users": f"websocket {{ {LISTEN}, authorization {{ user: u, password: p }} }}\n{USERS}",
    "websocket_token_beside_users": f"websocket {{ {LISTEN}, authorization {{ token: t }} }}\n{USERS}",
    "websocket_no_auth_user_that_is_none": f"websocket {{ {LISTEN}, no_auth_user: b }}\n{USERS}",
    # the protocol
    "lame_duck_too_short": "lame_duck_duration: '29s'",
    "lame_duck_is_a_number": "lame_duck_duration: 40",
    "lame_duck_is_a_word": "lame_duck_duration: x",
    "grace_period_as_long": "lame_duck_duration: '30s'\nlame_duck_grace_period: '30s'",
    "grace_period_negative": "lame_duck_grace_period: '-5s'",
    "grace_period_over_the_usual_duration": "lame_duck_grace_period: '2m'",
    "client_advertise_without_a_number": "client_advertise: 'a.example:x'",
    "client_advertise_with_colons": "client_advertise: '::1'",
    "max_connections_is_a_word": 'max_connections: "x"',
    "max_control_line_is_a_word": "max_control_line: 'x'",
    "max_control_line_too_large": "max_control_line: 10GB",
    "max_payload_over_max_pending": "max_payload: 65MB",
    "max_payload_over_a_small_max_pending": "max_payload: 2000\nmax_pending: 1000",
    "max_payload_too_large": "max_payload: 5000000000",
    "max_payload_with_a_bad_suffix": "max_payload: 1Q",
    "proxies_are_a_number": "proxies: 5",
    "proxies_trust_a_number": "proxies { trusted: 5 }",
    "proxies_with_an_unknown_field": "proxies { shoe_size: 44 }",
    "proxy_with_a_bad_key": "proxies { trusted: [{key: X}] }",
    "proxy_with_an_unknown_field": "proxies { trusted: [{shoe_size: 44}] }",
    "feature_flags_are_a_number": "feature_flags: 5",
    "feature_flag_is_a_number": "feature_flags { a: 5 }",
    "domain_of_an_absent_account": "default_js_domain { A: hub }",
    "domain_beside_jetstream": "default_js_domain { A: x }\njetstream: true\naccounts { A { jetstream: on } }",
    "domain_of_the_system_account": "default_js_domain { A: hub }\naccounts { A { } }\nsystem_account: A",
    "max_subscription_tokens_too_large": "max_subscription_tokens: 300",
    "max_subscription_tokens_negative": "max_subscription_tokens: -1",
    "proxy_protocol_is_a_word": "proxy_protocol: x",
    "no_header_support_is_a_word": "no_header_support: x",
    "ping_interval_is_a_word": "ping_interval: x",
    "ping_max_is_a_word": "ping_max: x",
    "write_deadline_is_a_word": "write_deadline: x",
    "write_timeout_is_another_word": "write_timeout: nope",
    # names and addresses
    "port_is_a_word": "port: x",
    "port_is_a_fraction": "port: 1.5",
    "port_is_a_boolean": "port: true",
    "listen_with_a_bad_port": "listen: 'x:y'",
    "listen_with_colons": "listen: 'a:b:c'",
    "host_is_a_number": "host: 5",
    "server_name_with_a_blank": "server_name: 'a b'",
    "server_name_is_a_number": "server_name: 5",
    "cluster_name_with_a_blank": "cluster { name: 'a b' }",
    "cluster_is_a_number": "cluster: 5",
    "cluster_with_an_unknown_field": "cluster { shoe_size: 44 }",
    "leafnodes_is_a_word": "leafnodes: x",
    "gateway_is_a_number": "gateway: 5",
    "mqtt_is_a_number": "mqtt: 5",
    "mqtt_without_jetstream": "mqtt { port: -1 }",
    "mqtt_with_an_unknown_field": "mqtt { shoe_size: 44 }",
    "mqtt_with_too_many_in_flight": "mqtt { port: -1, max_ack_pending: 70000 }",
    "mqtt_listen_is_a_word": "mqtt { listen: x }",
    "mqtt_with_a_wrong_duration": "mqtt { port: -1, ack_wait: soon }",
    "mqtt_with_a_negative_duration": "jetstream {}, mqtt { port: -1, ack_wait: '-5s' }",
    "mqtt_without_the_user": "jetstream {}, mqtt { port: -1, no_auth_user: x }",
    "mqtt_with_an_unknown_user": f"jetstream {{}}, {ONE_USER}, mqtt {{ port: -1, no_auth_user: x }}",
    "mqtt_with_a_user_beside_others": f"jetstream {{}}, {ONE_USER}, mqtt {{ port: 1, authorization {{ user: b }} }}",
    "mqtt_with_a_token_beside_users": f"jetstream {{}}, {ONE_USER}, mqtt {{ port: -1, authorization {{ token: t }} }}",
    "mqtt_in_a_cluster_without_a_name": """mqtt { port: -1 }
      cluster { listen: "127.0.0.1:-1", name: c }""",
    "http_is_no_address": "http: x",
    "http_port_too_large": "http: '127.0.0.1:99999'",
    "monitor_port_negative": "monitor_port: -5",
    "log_file_nowhere": "log_file: /nowhere/x",
    "pid_file_is_a_number": "pidfile: 5",
    "debug_is_a_word": "debug: x",
    "server_tags_are_a_number": "server_tags: 5",
    "server_metadata_is_a_number": "server_metadata: 5",
    "bad_mapping": "mappings { 'a.*': 'b.$2' }",
    "hash_with_an_argument": "mappings { a: 'b.{{account-hash(1)}}' }",
    "hash_with_blanks": "mappings { 'a.{{ account-hash() }}': b }",
    "hash_of_an_exporter_in_a_mapping": "mappings { a: 'b.{{account-hash-import()}}' }",
    "hash_of_an_exporter_in_a_mapped_subject": "accounts { A { mappings { 'a.{{account-hash-import()}}': b } } }",
    "hash_of_an_exporter_that_a_leaf_node_denies": (
        "leafnodes { remotes: [{url: 'nats-leaf://127.0.0.1:1', deny_imports: ['a.{{account-hash-import()}}']}] }"
    ),
    "hash_with_an_argument_that_a_leaf_node_denies": (
        "leafnodes { remotes: [{url: 'nats-leaf://127.0.0.1:1', deny_exports: ['{{account-hash-leaf-remote(x)}}']}] }"
    ),
    # users
    "user_and_token": "authorization { user: u, password: p, token: t }",
    "user_and_users": "authorization { users: [{user: u, password: p}], user: x, password: y }",
    "users_are_a_number": "authorization { users: 5 }",
    "a_user_twice": "authorization { users: [{user: a, password: b}, {user: a, password: c}] }",
    "authorization_timeout_is_a_word": "authorization { timeout: x }",
    "authorization_with_an_unknown_field": "authorization { shoe_size: 44 }",
    "an_account_is_a_number": "accounts { A: 5 }",
    "traces_to_a_number": "accounts { A { msg_trace: 5 } }",
    "traces_to_no_subject": "accounts { A { trace_dest: 'a.*' } }",
    "traces_to_a_list": "accounts { A { msg_trace { dest: [a] } } }",
    "traces_with_an_unknown_field": "accounts { A { msg_trace { dest: a, shoe_size: 44 } } }",
    "traces_of_101_percent": "accounts { A { msg_trace { dest: a, sampling: 101 } } }",
    "traces_of_no_percent": "accounts { A { msg_trace { dest: a, sampling: '0%' } } }",
    "traces_of_a_word_of_percent": "accounts { A { msg_trace { dest: a, sampling: 'x%' } } }",
    "traces_of_half_a_percent": "accounts { A { msg_trace { dest: a, sampling: 0.5 } } }",
    "no_auth_user_without_users": "no_auth_user: x",
    "no_auth_user_that_is_none": f"no_auth_user: x\n{USERS}",
    "absent_system_account": "system_account: x",
    # JetStream
    "store_is_a_file": "jetstream { store_dir: '@here@/file' }",
    "store_below_a_file": "jetstream { store_dir: '@here@/file/x' }",
    "store_is_a_number": "jetstream { store_dir: 5 }",
    "jetstream_is_a_word": "jetstream: x",
    "jetstream_is_a_number": "jetstream: 5",
    "jetstream_with_an_unknown_field": "jetstream { shoe_size: 44 }",
    "max_mem_with_a_bad_suffix": "jetstream { max_mem: '1Q' }",
    "max_mem_is_a_word": "jetstream { max_mem: x }",
    "domain_with_a_dot": "jetstream { domain: 'a.b' }",
    "domain_with_a_blank": "jetstream { domain: 'a b' }",
    "sync_interval_is_a_word": "jetstream { sync_interval: x }",
    "unknown_cipher": "jetstream { key: x, cipher: nope }",
    # the grammar
    "unknown_field": "shoe_size: 44",
    "unknown_fields": "shoe_size: 44\nhat_size: 5\nport: -1",
    "a_word_alone": "shoe_size",
    "an_open_list": "port: [",
    "two_values": "port: 4222 5",
    "an_open_string": "server_name: 'unterminated",
    "an_open_map": "port: -1\nauthorization {",
    "text_after_a_map": "accounts { A { } B { } }",
    "absent_include": "include nowhere.conf",
    "absent_variable": "port: $NOWHERE_AT_ALL",
}


@pytest.mark.parametrize("config", BAD.values(), ids=BAD.keys())
def test_configuration(tmp_path: Path, kind: Kind, recorded: Recorded, config: str) -> None:
    _compare(tmp_path, kind, recorded, f"{config}\n")


GOOD = {
    "tls": f"tls {{ {FILES} }}",
    "tls_with_everything": f"""tls {{
      {FILES} {CA}, verify: true, timeout: 2.5, min_version: "1.3", insecure: false, handshake_first: "50ms"
      cipher_suites: ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"], curve_preferences: ["X25519", "CurveP256"]
      pinned_certs: ["{"A" * 64}"], connection_rate_limit: 100
    }}""",
    "tls_with_certs": f"tls {{ certs: [{{{FILES}}}] }}",
    "insecure_ciphers_that_are_allowed": f"""tls {{
      {FILES} allow_insecure_cipher_suites: true, cipher_suites: ["TLS_RSA_WITH_RC4_128_SHA"]
    }}""",
    "users_of_certificates": f"""tls {{ {FILES} {CA}, verify_and_map: true }}
      authorization {{ users: [{{user: "a@b"}}] }}""",
    "websocket": f"websocket {{ {LISTEN} }}",
    "websocket_with_a_port_alone": "websocket { port: -1, no_tls: true }",
    "websocket_with_nothing": "websocket {}",
    "websocket_with_everything": f"""websocket {{
      listen: "127.0.0.1:-1", tls {{ {FILES} }}, same_origin: true, allowed_origins: ["https://a.example"]
      compression: true, handshake_timeout: "2s", user_cookie: u, pass_cookie: p, token_cookie: t
      advertise: "a.example:443", ping_interval: "30s", headers {{ "X-A": "b" }}, authorization {{ timeout: 5 }}
    }}""",
    "leafnodes_with_an_address": 'leafnodes { listen: "127.0.0.1:-1" }',
    "leafnodes_with_tls_to_another": f"""leafnodes {{ remotes: [{{ url: "tls://127.0.0.1:1", tls {{
      {FILES} {CA}, verify: true, timeout: 2.5, min_version: "1.3", curve_preferences: ["X25519"], insecure: false
      cipher_suites: ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"], handshake_first: auto, connection_rate_limit: 5
    }} }}] }}""",
    "protocol": """proxy_protocol: true, no_header_support: true, max_connections: 5, max_control_line: 1k
      max_pending: 10MB, write_deadline: "2s", write_timeout: close, ping_max: 3, client_advertise: "a.example:4222"
      lame_duck_duration: "30s", lame_duck_grace_period: "5s", max_subscriptions: 10, allow_non_tls: true""",
    "cluster_with_a_name_alone": "cluster { name: X }",
    "mqtt_with_nothing": "mqtt {}",
    "mqtt_with_everything": f"""jetstream {{}}, mqtt {{ listen: "127.0.0.1:-1", tls {{ {FILES} }}, no_auth_user: ""
      authorization {{ timeout: 3 }}, ack_wait: "10s", js_api_timeout: "2s", max_ack_pending: 100, stream_replicas: 1
      consumer_memory_storage: true, consumer_inactive_threshold: "5m", reject_qos2_publish: true
      downgrade_qos2_subscribe: true }}""",
}


@pytest.mark.parametrize("config", GOOD.values(), ids=GOOD.keys())
def test_configuration_that_is_right(tmp_path: Path, kind: Kind, recorded: Recorded, config: str) -> None:
    _compare(tmp_path, kind, recorded, f"{config}\n", "-t")


# ---------------------------------------------------------------------- flags
FLAGS = {
    "unknown": ["--nope"],
    "port_is_a_word": ["-p", "x"],
    "port_without_a_value": ["-p"],
    "port_too_large": ["-p", "99999"],
    "port_negative": ["-p", "-2"],
    "a_word": ["nope"],
    "address_of_nobody": ["-a", "192.0.2.77"],
    "monitoring_port_is_a_word": ["-m", "x"],
    "monitoring_port_too_large": ["-m", "99999"],
    "monitoring_over_tls_without_tls": ["-ms", "-1"],
    "absent_configuration": ["-c", "/nowhere.conf"],
    "configuration_is_a_directory": ["-c", "/"],
    "name_with_a_blank": ["-n", "a b"],
    "routes_without_a_cluster": ["--routes", "nats://127.0.0.1:1"],
    "pid_file_nowhere": ["-P", "/nowhere/x.pid"],
    "pid_file_is_a_directory": ["-P", "/"],
    "log_file_is_a_directory": ["-l", "/"],
    "client_advertise": ["--client_advertise", "a:b:c"],
    "boolean_is_a_word": ["-D=x"],
    "signal_to_no_number": ["-sl", "reload=abc"],
    "signal_to_nobody": ["-sl", "reload=99999999"],
    "store_is_a_file": ["-js", "-sd", "@here@/file"],
    "store_below_a_file": ["-js", "-sd", "@here@/file/x"],
    "store_where_none_can_be": ["-js", "-sd", "/proc/x"],
    "tls_without_files": ["--tls"],
    "tls_without_a_key": ["--tls", "--tlscert", f"{PLACE}/server.pem"],
    "tls_without_a_certificate": ["--tls", "--tlskey", f"{PLACE}/server.key"],
    "tls_with_the_key_of_another": ["--tls", "--tlscert", f"{PLACE}/server.pem", "--tlskey", f"{PLACE}/second.key"],
    "tls_with_an_absent_file": ["--tls", "--tlscert", f"{PLACE}/nowhere.pem", "--tlskey", f"{PLACE}/server.key"],
    "tls_verify_alone": ["--tlsverify"],
    "tls_verify_of_no_kind": ["--tlsverify=maybe"],
    "tls_authority_alone": ["--tlscacert", f"{PLACE}/ca.pem"],
    "tls_with_an_absent_authority": [
        *("--tlsverify", "--tlscert", f"{PLACE}/server.pem", "--tlskey", f"{PLACE}/server.key"),
        *("--tlscacert", f"{PLACE}/nowhere.pem"),
    ],
    "tls_with_a_garbage_authority": [
        *("--tlsverify", "--tlscert", f"{PLACE}/server.pem", "--tlskey", f"{PLACE}/server.key"),
        *("--tlscacert", f"{PLACE}/garbage.pem"),
    ],
}


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS.keys())
def test_flags(tmp_path: Path, kind: Kind, recorded: Recorded, flags: list[str]) -> None:
    _compare(tmp_path, kind, recorded, None, *flags)


def test_a_store_in_the_file_and_another_as_a_flag(tmp_path: Path, kind: Kind, recorded: Recorded) -> None:
    _compare(tmp_path, kind, recorded, "jetstream { store_dir: '@here@/a' }\n", "-js", "-sd", "@here@/b")


@pytest.mark.parametrize(
    ("locked", "mode"),
    [("store", 0o555), ("store", 0o000), (".", 0o000), ("store/jetstream", 0o555)],
    ids=["none_can_be_made_there", "not_searchable", "below_one_that_is_not_searchable", "not_writable"],
)
def test_a_store_without_permission(tmp_path: Path, kind: Kind, recorded: Recorded, locked: str, mode: int) -> None:
    base = tmp_path / "base"
    (base / locked).mkdir(parents=True)
    (base / locked).chmod(mode)
    attempt = Attempt(tmp_path, None, ("-js", "-sd", "@here@/base/store"))
    before = WITHOUT_PRIVILEGES if os.geteuid() == 0 else ()
    try:
        expected = recorded(lambda: attempt.made_by(Kind.REAL, before))
        assert attempt.made_by(kind, before) == expected
    finally:
        (base / locked).chmod(0o755)


@pytest.mark.parametrize("flags", [("-nope",), ("-c", "/nowhere.conf"), ("-js", "-sd", "/dev/null"), ("-P", "/n/x")])
def test_a_start_that_fails_takes_less_than_half_a_second(kind: Kind, flags: tuple[str, ...]) -> None:
    def used() -> float:
        """Return the processor time of ended processes; the time of the clock depends on what else runs."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    run_to_end(kind, "-a", "127.0.0.1", "-p", "-1", *flags)
    assert used() - before < 0.5


@pytest.fixture
def taken() -> Iterator[str]:
    """A port at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield str(listener.getsockname()[1])


TAKEN = {
    "clients": "port: {port}",
    "monitoring": "http: '127.0.0.1:{port}'",
    "websocket": "websocket {{ listen: '127.0.0.1:{port}', no_tls: true }}",
    "cluster": "cluster {{ name: X, listen: '127.0.0.1:{port}' }}",
    "leafnodes": "leafnodes {{ listen: '127.0.0.1:{port}' }}",
}


@pytest.mark.parametrize("config", TAKEN.values(), ids=TAKEN.keys())
def test_a_port_that_is_taken(tmp_path: Path, kind: Kind, recorded: Recorded, taken: str, config: str) -> None:
    attempt = Attempt(tmp_path, config.format(port=taken), ("-p", taken) if config[-6:] == "{port}" else ())

    def made_by(of: Kind) -> Any:
        made = attempt.made_by(of)
        return {**made, "stderr": [line.replace(taken, "<port>") for line in made["stderr"]]}

    expected = recorded(lambda: made_by(Kind.REAL))
    assert made_by(kind) == expected


BEFORE = "port: -1\naccounts { A { users: [{user: a, password: p}] } }\n"
RELOADED = {
    "the_same": BEFORE,
    "other_users": BEFORE.replace("user: a", "user: b"),
    "another_interval": f"{BEFORE}ping_interval: '5s'",
    "another_host": f"{BEFORE}host: 127.0.0.2",
    "another_name": f"{BEFORE}server_name: x",
    "a_websocket": f"{BEFORE}websocket {{ port: -1, no_tls: true }}",
    "a_cluster": f"{BEFORE}cluster {{ name: c, listen: '127.0.0.1:-1' }}",
    "plain_text": f"{BEFORE}allow_non_tls: true",
    "wrong": f"{BEFORE}shoe_size: 44",
    "absent": None,
}


@pytest.mark.parametrize("reloaded", RELOADED.values(), ids=RELOADED.keys())
def test_files_that_a_server_may_reload(tmp_path: Path, kind: Kind, recorded: Recorded, reloaded: str | None) -> None:
    if reloaded is not None:
        (tmp_path / "new.conf").write_text(reloaded)

    def see(of: Kind) -> list[Any]:
        (tmp_path / "old.conf").write_text(BEFORE)
        done = run_to_end(of, "-t", "-c", str(tmp_path / "old.conf"), "--test_reload", str(tmp_path / "new.conf"))
        lines = done.stderr.replace(str(tmp_path), "HERE").splitlines()
        said = [line.partition(": ")[2] for line in lines if "can be reloaded" in line]
        return [done.returncode, [re.sub(r"sha256:[0-9a-f]{64}", "<digest>", line) for line in said]]

    assert see(kind) == recorded(lambda: see(Kind.REAL))


def test_a_reload_is_tested_with_a_configuration_alone(tmp_path: Path, kind: Kind, recorded: Recorded) -> None:
    _compare(tmp_path, kind, recorded, BEFORE, "--test_reload", "@here@/new.conf")
