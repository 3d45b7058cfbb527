"""Start-up with keys, tokens, resolvers, callouts and leaf nodes: exit codes and messages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Recorded
from tests.keys import (
    ISSUED_AT,
    CurveKey,
    account_jwt,
    account_key,
    operator_jwt,
    operator_key,
    user_jwt,
    user_key,
    without,
)
from tests.servers import Kind, begin

pytestmark = pytest.mark.conformance

OPERATOR, OTHER = operator_key("starting"), operator_key("starting other")
SYSTEM, ACCOUNT = account_key("starting SYS"), account_key("starting A")
USER, CURVE = user_key("starting"), CurveKey("starting")

TRUSTED = operator_jwt(OPERATOR, system_account=SYSTEM.public)
NO_SYSTEM = operator_jwt(OPERATOR)
SYSTEM_TOKEN = account_jwt(SYSTEM, "SYS", OPERATOR)
TOKEN = account_jwt(ACCOUNT, "A", OPERATOR)
PRELOAD = f"resolver_preload {{ {SYSTEM.public}: {SYSTEM_TOKEN} }}"
GOOD = f"operator: {TRUSTED}\nresolver: MEMORY\n{PRELOAD}\n"
EXPIRED = {"exp": ISSUED_AT + 1}


def _resolver(text: str, operator: str = TRUSTED, preload: str = PRELOAD) -> str:
    return f"operator: {operator}\nresolver: {text}\n{preload}\n"


def _operator(token: str) -> str:
    return f"operator: {token}\nresolver: MEMORY\n{PRELOAD}\n"


def _preloaded(entries: str) -> str:
    return _resolver("MEMORY", preload=f"resolver_preload {{ {SYSTEM.public}: {SYSTEM_TOKEN}, {entries} }}")


def _callout(fields: str, more: str = "accounts { AUTH { users: [{user: auth, password: p}] }, APP {} }") -> str:
    return f"authorization {{ auth_callout {{ {fields} }} }}\n{more}\n"


def _leaf(fields: str) -> str:
    return f"leafnodes {{ listen: '127.0.0.1:-1', {fields or 'no_advertise: true'} }}\n"


_ISSUED = f"issuer: {ACCOUNT.public}, auth_users: [auth]"

CONFIGURATIONS: dict[str, str] = {
    # Users with keys.
    "nkey": f"authorization {{ users: [{{nkey: {USER.public}}}] }}",
    "nkey_garbage": "authorization { users: [{nkey: UABC}] }",
    "nkey_of_an_account": f"authorization {{ users: [{{nkey: {ACCOUNT.public}}}] }}",
    "nkey_is_a_seed": f"authorization {{ users: [{{nkey: {USER.seed}}}] }}",
    "nkey_empty": "authorization { users: [{nkey: ''}] }",
    "nkey_number": "authorization { users: [{nkey: 5}] }",
    "nkey_and_password": f"authorization {{ users: [{{nkey: {USER.public}, password: p}}] }}",
    "nkey_and_user": f"authorization {{ users: [{{nkey: {USER.public}, user: u}}] }}",
    "nkey_twice": f"authorization {{ users: [{{nkey: {USER.public}}}, {{nkey: {USER.public}}}] }}",
    "nkey_with_account": f"authorization {{ users: [{{nkey: {USER.public}, account: A}}] }}",
    "nkey_connection_type": (
        f"authorization {{ users: [{{nkey: {USER.public}, allowed_connection_types: [STANDARD, websocket]}}] }}"
    ),
    "nkey_unknown_connection_type": (
        f"authorization {{ users: [{{nkey: {USER.public}, allowed_connection_types: [FOO]}}] }}"
    ),
    "account_nkey": f"accounts {{ X {{ nkey: {ACCOUNT.public} }} }}",
    "account_nkey_of_a_user": f"accounts {{ X {{ nkey: {USER.public} }} }}",
    # The operator.
    "operator": GOOD,
    "operator_file": f"operator: './operator.jwt'\nresolver: MEMORY\n{PRELOAD}\n",
    "operator_file_of_nsc": f"operator: './decorated.jwt'\nresolver: MEMORY\n{PRELOAD}\n",
    "operator_file_missing": "operator: './none.jwt'\nresolver: MEMORY\n",
    "operator_file_garbage": "operator: './garbage.jwt'\nresolver: MEMORY\n",
    "operator_file_empty": "operator: './empty.jwt'\nresolver: MEMORY\n",
    "operator_is_a_directory": "operator: '.'\nresolver: MEMORY\n",
    "operator_number": "operator: 5\nresolver: MEMORY\n",
    "operator_none": "operator: []\nresolver: MEMORY\n",
    "operator_changed": _operator(without(TRUSTED, name="x")),
    "operator_is_an_account": _operator(TOKEN),
    "operator_is_a_user": _operator(user_jwt(USER, "u", ACCOUNT)),
    "operator_expired": _operator(operator_jwt(OPERATOR, claims=EXPIRED)),
    "operator_signed_by_another": _operator(operator_jwt(OPERATOR, signer=OTHER)),
    "operator_signing_key_garbage": _operator(operator_jwt(OPERATOR, signing_keys=["OABC"])),
    "operator_wants_a_later_server": _operator(operator_jwt(OPERATOR, assert_server_version="99.0.0")),
    "operator_wants_an_earlier_server": _operator(operator_jwt(OPERATOR, assert_server_version="2.0.0")),
    "operator_wants_half_a_version": _operator(operator_jwt(OPERATOR, assert_server_version="2.16")),
    "two_operators": f"operator: [{TRUSTED}, {operator_jwt(OTHER)}]\nresolver: MEMORY\n{PRELOAD}\n",
    "roots": f"roots: {TRUSTED}\nresolver: MEMORY\n{PRELOAD}\n",
    "operator_without_resolver": f"operator: {TRUSTED}\n",
    "resolver_alone": "resolver: MEMORY\n",
    "preload_alone": PRELOAD,
    "trusted_keys": f"trusted_keys: [{OPERATOR.public}]\nresolver: MEMORY\n{PRELOAD}\n",
    "trusted_keys_text": f"trusted: {OPERATOR.public}\nresolver: MEMORY\n",
    "trusted_keys_garbage": "trusted_keys: [OABC]\nresolver: MEMORY\n",
    "trusted_keys_of_an_account": f"trusted_keys: [{ACCOUNT.public}]\nresolver: MEMORY\n",
    "trusted_keys_number": "trusted_keys: 5\nresolver: MEMORY\n",
    "trusted_keys_and_operator": f"{GOOD}trusted_keys: [{OPERATOR.public}]\n",
    # What an operator does not allow.
    "operator_and_user": f"{GOOD}authorization {{ user: u, password: p }}\n",
    "operator_and_token": f"{GOOD}authorization {{ token: t }}\n",
    "operator_and_users": f"{GOOD}authorization {{ users: [{{user: u, password: p}}] }}\n",
    "operator_and_nkeys": f"{GOOD}authorization {{ users: [{{nkey: {USER.public}}}] }}\n",
    "operator_and_accounts": f"{GOOD}accounts {{ A {{}} }}\n",
    "operator_and_no_auth_user": f"{GOOD}no_auth_user: u\n",
    "operator_and_callout": f"{GOOD}{_callout(_ISSUED, '')}",
    # The system account.
    "system_account_missing": _resolver("MEMORY", preload=""),
    "system_account_of_nobody": f"{_resolver('MEMORY', NO_SYSTEM, '')}",
    "system_account_in_the_file": f"{_resolver('MEMORY', NO_SYSTEM)}system_account: {SYSTEM.public}\n",
    "system_account_by_name": f"{_resolver('MEMORY', NO_SYSTEM)}system_account: SYS\n",
    "system_account_not_preloaded": f"{_resolver('MEMORY', NO_SYSTEM)}system_account: {ACCOUNT.public}\n",
    "system_account_twice": f"{_preloaded(f'{ACCOUNT.public}: {TOKEN}')}system_account: {ACCOUNT.public}\n",
    "system_account_garbage": _operator(operator_jwt(OPERATOR, system_account="ABC")),
    "system_account_number": "system_account: 5\n",
    "system_account_unknown": "system_account: FOO\n",
    "system_account_of_another_operator": _resolver(
        "MEMORY", preload=f"resolver_preload {{ {SYSTEM.public}: {account_jwt(SYSTEM, 'SYS', OTHER)} }}"
    ),
    "system_account_expired": _resolver(
        "MEMORY",
        preload=f"resolver_preload {{ {SYSTEM.public}: {account_jwt(SYSTEM, 'SYS', OPERATOR, claims=EXPIRED)} }}",
    ),
    # What is preloaded.
    "preload_under_garbage": _preloaded(f"FOO: {TOKEN}"),
    "preload_garbage": _preloaded(f"{ACCOUNT.public}: garbage"),
    "preload_of_another_account": _preloaded(f"{ACCOUNT.public}: {SYSTEM_TOKEN}"),
    "preload_of_another_operator": _preloaded(f"{ACCOUNT.public}: {account_jwt(ACCOUNT, 'A', OTHER)}"),
    "preload_expired": _preloaded(f"{ACCOUNT.public}: {account_jwt(ACCOUNT, 'A', OPERATOR, claims=EXPIRED)}"),
    "preload_changed": _preloaded(f"{ACCOUNT.public}: {without(TOKEN, name='x')}"),
    "preload_of_a_user": _preloaded(f"{ACCOUNT.public}: {user_jwt(USER, 'u', ACCOUNT)}"),
    "preload_number": _preloaded(f"{ACCOUNT.public}: 5"),
    "preload_list": _resolver("MEMORY", preload="resolver_preload []"),
    "pinned_account_garbage": f"{GOOD}resolver_pinned_accounts [X]\n",
    # The resolver.
    "resolver_mem": _resolver("mem"),
    "resolver_type_mem": _resolver("{type: mem}"),
    "resolver_unknown": _resolver("NOTHING"),
    "resolver_number": _resolver("5"),
    "resolver_unknown_type": _resolver("{type: foo}"),
    "resolver_without_type": _resolver("{dir: './new'}"),
    "resolver_without_url": _resolver("URL", preload=""),
    "resolver_url_without_scheme": _resolver("URL(foo)", preload=""),
    "resolver_url_of_nobody": _resolver("URL(http://127.0.0.1:1/)", preload=""),
    "resolver_url_and_preload": _resolver("URL(http://127.0.0.1:1/)"),
    "full": _resolver("{type: full, dir: './new', allow_delete: true, limit: 5, interval: '1m', timeout: '5s'}"),
    "full_without_preload": _resolver("{type: full, dir: './new'}", preload=""),
    "full_without_system_account": _resolver("{type: full, dir: './new'}", NO_SYSTEM, ""),
    "full_without_dir": _resolver("{type: full}"),
    "full_in_a_file": _resolver("{type: full, dir: './empty.jwt'}"),
    "full_where_nothing_can_be": _resolver("{type: full, dir: /proc/none}"),
    "full_with_an_unknown_field": _resolver("{type: full, dir: './new', foo: 1}"),
    "full_with_ttl": _resolver("{type: full, dir: './new', ttl: '5s'}"),
    "full_with_a_bad_limit": _resolver("{type: full, dir: './new', limit: a}"),
    "full_with_a_bad_interval": _resolver("{type: full, dir: './new', interval: x}"),
    "full_with_a_bare_interval": _resolver("{type: full, dir: './new', interval: 1m}"),
    "full_with_a_bad_timeout": _resolver("{type: full, dir: './new', timeout: x}"),
    "full_with_hard_delete": _resolver("{type: full, dir: './new', hard_delete: true}"),
    "cache": _resolver("{type: cache, dir: './new', ttl: '1m', limit: 5}"),
    "cache_with_allow_delete": _resolver("{type: cache, dir: './new', allow_delete: true}"),
    "cache_with_hard_delete": _resolver("{type: cache, dir: './new', hard_delete: true}"),
    "cache_with_interval": _resolver("{type: cache, dir: './new', interval: '1m'}"),
    "resolver_tls_without_key": f"{GOOD}resolver_tls {{ cert_file: x }}\n",
    # Callouts.
    "callout": _callout(f"{_ISSUED}, account: AUTH, xkey: {CURVE.public}, allowed_accounts: [APP]"),
    "callout_without_issuer": _callout("auth_users: [auth], account: AUTH"),
    "callout_without_users": _callout(f"issuer: {ACCOUNT.public}, account: AUTH"),
    "callout_of_no_users": _callout(f"issuer: {ACCOUNT.public}, auth_users: []"),
    "callout_users_text": _callout(f"issuer: {ACCOUNT.public}, auth_users: auth"),
    "callout_of_an_unknown_user": _callout(f"issuer: {ACCOUNT.public}, auth_users: [nobody], account: AUTH"),
    "callout_of_an_unknown_account": _callout(f"{_ISSUED}, account: NONE"),
    "callout_issuer_garbage": _callout("issuer: ABC, auth_users: [auth]"),
    "callout_issuer_is_a_user": _callout(f"issuer: {USER.public}, auth_users: [auth]"),
    "callout_issuer_number": _callout("issuer: 5, auth_users: [auth]"),
    "callout_xkey_garbage": _callout(f"{_ISSUED}, xkey: foo"),
    "callout_xkey_is_a_seed": _callout(f"{_ISSUED}, xkey: {CURVE.seed}"),
    "callout_allows_an_unknown_account": _callout(f"{_ISSUED}, account: AUTH, allowed_accounts: [NONE]"),
    "callout_allowed_text": _callout(f"{_ISSUED}, account: AUTH, allowed_accounts: APP"),
    "callout_unknown_field": _callout(f"{_ISSUED}, foo: 1"),
    "callout_number": "authorization { auth_callout: 5 }\n",
    "sentinel_without_operator": "default_sentinel: foo\n",
    "sentinel_garbage": f"{GOOD}default_sentinel: foo\n",
    "sentinel_is_no_bearer": f"{GOOD}default_sentinel: {user_jwt(USER, 'u', ACCOUNT)}\n",
    "sentinel": f"{GOOD}default_sentinel: {user_jwt(USER, 'u', ACCOUNT, bearer_token=True)}\n",
    # Leaf node listeners.
    "leaf": _leaf(""),
    "leaf_alias": "leaf { port: -1 }\n",
    "leaf_empty": "leafnodes {}\n",
    "leaf_number": "leafnodes: 5\n",
    "leaf_without_port": "leafnodes { listen: 'x' }\n",
    "leaf_port_text": "leafnodes { listen: 'x:y' }\n",
    "leaf_port_of_text": "leafnodes { port: 'x' }\n",
    "leaf_port_too_large": "leafnodes { port: 99999 }\n",
    "leaf_unknown_field": _leaf("foo: 1"),
    "leaf_compression_unknown": _leaf("compression: x"),
    "leaf_compression_number": _leaf("compression: 5"),
    "leaf_compression_boolean": _leaf("compression: true"),
    "leaf_compression_map": _leaf("compression: {mode: s2_auto, rtt_thresholds: [10ms, 50ms, 100ms]}"),
    "leaf_compression_descending": _leaf("compression: {mode: s2_auto, rtt_thresholds: [5s, 1s]}"),
    "leaf_version_garbage": _leaf("min_version: x"),
    "leaf_version_too_old": _leaf("min_version: 2.5.0"),
    "leaf_user_and_users": _leaf("authorization { user: u, password: p, users: [{user: a, password: b}] }"),
    "leaf_user_twice": _leaf("authorization { users: [{user: u, password: p}, {user: u, password: q}] }"),
    "leaf_user_of_an_unknown_account": _leaf("authorization { users: [{user: u, password: p, account: X}] }"),
    "leaf_unknown_account": _leaf("authorization { account: X }"),
    "leaf_token": _leaf("authorization { token: t }"),
    "leaf_nkey": _leaf(f"authorization {{ nkey: {USER.public} }}"),
    "leaf_nkey_garbage": _leaf("authorization { nkey: x }"),
    "leaf_isolation_text": _leaf("isolate_leafnode_interest: x"),
    "leaf_advertise_garbage": _leaf("advertise: 'a:b:c'"),
    "leaf_tls_without_key": _leaf("tls { cert_file: x }"),
    "leaf_reconnect_garbage": _leaf("reconnect: x"),
    "remote_of_an_unknown_account": _leaf("remotes: [{ url: 'nats://127.0.0.1:1', account: X }]"),
    "remote_unknown_field": _leaf("remotes: [{ url: 'nats://127.0.0.1:1', foo: 1 }]"),
    "remote_denies_garbage": _leaf("remotes: [{ url: 'nats://127.0.0.1:1', deny_imports: 'a..b' }]"),
    "remote_twice": _leaf("remotes: [{ url: 'nats://127.0.0.1:1' }, { url: 'nats://127.0.0.1:1' }]"),
    "remote_nkey_garbage": _leaf("remotes: [{ url: 'nats://127.0.0.1:1', nkey: x }]"),
    "remote_of_two_schemes": _leaf("remotes: [{ urls: ['ws://127.0.0.1:1', 'nats://127.0.0.1:2'] }]"),
    # Gateways.
    "gateway_without_name": "gateway { port: -1 }\n",
    "gateway_of_another_cluster": "cluster { name: A, port: -1 }\ngateway { name: B, port: -1 }\n",
}  # fmt: skip

_ANY_POSITION = re.compile(r"^server.conf:\d+:\d+: (?=Authorization callouts require|Nkey users do not take)")
"""Of the field that nats-server happened to read last."""

_STAMP = re.compile(r"^\[\d+\] \d{4}/\d\d/\d\d [\d:.]+ ")


def _started(kind: Kind, directory: Path, config: str) -> dict[str, Any]:
    """Start with this configuration; return the warnings if that works, else the exit code and the last words.

    Programs begin their words with their own name, which is left out.
    """
    directory.mkdir()
    (directory / "operator.jwt").write_text(TRUSTED)
    (directory / "decorated.jwt").write_text(f"-----BEGIN O JWT-----\n{TRUSTED}\n------END O JWT------\n")
    (directory / "garbage.jwt").write_text("garbage\n")
    (directory / "empty.jwt").write_text("")
    (directory / "server.conf").write_text(config)
    flags = ["-a", "127.0.0.1", "-p", "-1", "-c", "server.conf"]
    process = begin(kind, *flags, directory=directory)
    lines: list[str] = []
    assert process.stderr
    with process.stderr:
        for raw in process.stderr:
            line = _STAMP.sub("", raw.decode().rstrip("\n")).removeprefix(f"{kind.value}: ")
            line = _ANY_POSITION.sub("server.conf: ", line.replace(str(directory), "DIR"))
            lines.append(line)
            if "Server is ready" in line:
                process.kill()
                process.wait()
                return {"starts": [line for line in lines if line.startswith(("[WRN]", "[ERR]"))]}
    told = [line for line in lines if line and not line.startswith("[INF]")]
    return {"exit": process.wait(), "told": told}


GATEWAYS = ("gateway_without_name", "gateway_of_another_cluster")
"""Refused here for the block itself: whoever corrected it by nats-server's text would be told that next."""


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_starts_or_is_refused(kind: Kind, tmp_path: Path, recorded: Recorded, name: str) -> None:
    config = CONFIGURATIONS[name]
    expected = recorded(lambda: _started(Kind.REAL, tmp_path / "expected", config))
    got = _started(kind, tmp_path / "got", config)
    if kind is Kind.OURS and name in GATEWAYS:
        assert got["exit"] == expected["exit"]
        assert [line for line in got["told"] if '"gateway" is not supported: ' in line] == got["told"] != []
    else:
        assert got == expected
