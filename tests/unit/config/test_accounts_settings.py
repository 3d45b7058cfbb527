"""Tests of `accounts` and related options of nats.conf: results, refusals, and reloads."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.config.account_checks import check_accounts, name_error
from lakestream.config.account_options import (
    AccountLimits,
    AccountOptions,
    AllowResponses,
    Destination,
    Latency,
    Permissions,
    ServiceExport,
    ServiceImport,
    StreamExport,
    StreamImport,
    SubjectMapping,
    SubjectRule,
    User,
)
from lakestream.config.conf import ConfError
from lakestream.config.errors import StartError
from lakestream.config.loading import reload
from lakestream.config.options import SECOND, Options
from lakestream.config.settings import read_settings
from lakestream.protocol.accounts import JetStreamLimits
from tests.docs.blocks import blocks
from tests.unit.account_confs import Case, cases
from tests.unit.conf_files import Load

pytestmark = pytest.mark.unit

CASES = cases()


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES if not case.error])
def test_what_nats_server_accepts(options: Load, case: Case) -> None:
    options(case.text)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES if case.error])
def test_what_nats_server_refuses_is_refused_with_its_words(options: Load, tmp_path: Path, case: Case) -> None:
    with pytest.raises(ConfError) as caught:
        options(case.text)
    # The error may be followed by what to do about it, and by those of other settings.
    found = re.fullmatch(r"(\d+:\d+): (.*)", str(caught.value).split("\n")[0].removeprefix(f"{tmp_path}/nats.conf:"))
    assert found is not None
    assert found[2].startswith(case.error)
    assert case.place in ("", found[1])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "A { exports: [{stream: 'a.{{account-hash-import()}}'}] }",
            'Error adding stream export "a.{{account-hash-import()}}": invalid mapping destination: function is not '
            "available in this context in {{account-hash-import()}}",
        ),
        (
            "A { exports: [{service: a}] }\n"
            "B { imports: [{service: {account: A, subject: a}, to: '{{account-hash-leaf-remote()}}'}] }",
            'Error adding service import "a": invalid mapping destination: function is not available in this context '
            "in {{account-hash-leaf-remote()}}",
        ),
        (
            "A { exports: [{stream: a}] }\n"
            "B { imports: [{stream: {account: A, subject: a}, prefix: '{{account-hash(1)}}'}] }",
            'Error adding stream import "a": invalid mapping destination: too many arguments passed to the function in '
            "{{account-hash(1)}}",
        ),
    ],
)
def test_hashes_of_accounts_that_are_not_known_are_refused_as_in_2_15_3(options: Load, text: str, error: str) -> None:
    with pytest.raises(ConfError, match=re.escape(error)):
        options(f"accounts {{ {text} }}")


# ---------------------------------------------------------------------- results


def _account(options: Options, name: str = "A") -> AccountOptions:
    return next(account for account in options.accounts if account.name == name)


def test_a_whole_account(options: Load) -> None:
    made = options(
        """
        accounts {
          A {
            users: [
              {user: a, password: p}
              {username: b, pass: q, permissions: {publish: x, subscribe: ["y", "z q"]}}
            ]
            jetstream { max_mem: 1K, max_file: 2K, max_streams: 3, max_consumers: 4, max_bytes_required: true
              mem_max_stream_bytes: 5, disk_max_stream_bytes: 6, max_ack_pending: 7 }
            limits { max_conn: 1, max_subs: 2, max_payload: 3 }
            exports: [
              {stream: "s.>", accounts: [B]}
              {service: "q.*", account_token_position: 2, latency: {sampling: headers, subject: l}, allow_trace: true}
              {service: many, response_type: chunked, threshold: "5s"}
            ]
            mappings { m: n, "w.*": [{dest: "w1.$1", weight: 30%}, {destination: w2, weight: "20", cluster: C}] }
            default_permissions { subscribe: {deny: secret}, allow_responses: {max: 5, expires: "1m"} }
          }
          B {
            jetstream: enabled
            imports: [
              {stream: {account: A, subject: "s.*"}, prefix: p, allow_trace: true}
              {service: {account: A, subject: "q.B"}, to: here, share: true}
            ]
          }
          C {}
        }
        system_account: C
        no_auth_user: a
        """
    )
    assert _account(made) == AccountOptions(
        name="A",
        users=(
            User("a", "p"),
            User("b", "q", Permissions(publish=SubjectRule(("x",)), subscribe=SubjectRule(("y", "z q")))),
        ),
        jetstream=JetStreamLimits(
            max_memory=1000,
            max_file=2000,
            max_streams=3,
            max_consumers=4,
            max_ack_pending=7,
            memory_max_stream_bytes=5,
            disk_max_stream_bytes=6,
            max_bytes_required=True,
        ),
        limits=AccountLimits(max_connections=1, max_subscriptions=2, max_payload=3),
        exports=(
            StreamExport(subject="s.>", accounts=("B",)),
            ServiceExport(
                subject="q.*",
                token_position=2,
                latency=Latency("l", 0),
                allow_trace=True,
            ),
            ServiceExport(subject="many", response="chunked", threshold_ns=5 * SECOND),
        ),
        mappings=(
            SubjectMapping("m", (Destination("n"),)),
            SubjectMapping("w.*", (Destination("w1.$1", 30), Destination("w2", 20, "C"))),
        ),
        default_permissions=Permissions(
            publish=SubjectRule(()),
            subscribe=SubjectRule(None, ("secret",)),
            responses=AllowResponses(5, 60 * SECOND),
        ),
    )
    assert _account(made, "B") == AccountOptions(
        name="B",
        jetstream=JetStreamLimits(),
        imports=(
            StreamImport(account="A", subject="s.*", prefix="p", allow_trace=True),
            ServiceImport(account="A", subject="q.B", to="here", share=True),
        ),
    )
    assert _account(made, "C") == AccountOptions(name="C")
    assert (made.system_account, made.no_auth_user, made.warnings) == ("C", "a", ())


def test_variables_among_accounts(options: Load) -> None:
    made = options("accounts { SAME = { users: [{user: a}] }, A: $SAME, P = x\nB { users: [{user: b, pass: $P}] } }")
    assert made.accounts == (
        AccountOptions(name="A", users=(User("a", ""),)),
        AccountOptions(name="B", users=(User("b", "x"),)),
    )


def test_accounts_by_name_alone(options: Load) -> None:
    assert options("accounts [A, B]").accounts == (AccountOptions(name="A"), AccountOptions(name="B"))
    assert options("accounts {}").accounts == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{publish: []}", Permissions(publish=SubjectRule())),
        ("{publish: {allow: [], deny: [a]}}", Permissions(publish=SubjectRule(None, ("a",)))),
        ("{subscribe: {allow: a, deny: b}}", Permissions(subscribe=SubjectRule(("a",), ("b",)))),
        # With allow_responses, publishing is denied unless it is allowed.
        ("{allow_responses: true}", Permissions(publish=SubjectRule(()), responses=AllowResponses())),
        (
            "{allow_responses: {max: 0, expires: '0s'}, publish: {deny: a}}",
            Permissions(publish=SubjectRule((), ("a",)), responses=AllowResponses()),
        ),
        (
            "{allow_responses: {max: -1, ttl: '-1s'}, publish: a}",
            Permissions(publish=SubjectRule(("a",)), responses=AllowResponses(-1, -SECOND)),
        ),
        ("{allow_responses: false}", Permissions()),
        ("{allow_responses: {expires: 2m}}", Permissions(publish=SubjectRule(()), responses=AllowResponses())),
    ],
)
def test_permissions(options: Load, text: str, expected: Permissions) -> None:
    made = options(f"authorization {{ users: [{{user: a, permissions: {text}}}] }}")
    assert made.users == (User("a", "", expected),)


def test_default_permissions_of_authorization_are_of_users_without_their_own(options: Load) -> None:
    made = options(
        "authorization { default_permissions: {publish: x}, users: [{user: a}, {user: b, permissions: {publish: y}}] }"
    )
    assert [user.permissions for user in made.users] == [
        Permissions(publish=SubjectRule(("x",))),
        Permissions(publish=SubjectRule(("y",))),
    ]


def test_permissions_without_effect_warn(options: Load) -> None:
    made = options("authorization { user: a, password: b, permissions: {publish: x} }")
    assert made.users == (User("a", "b"),)
    assert ['"permissions" has no effect here' in line for line in made.warnings] == [True]


def test_mappings_of_the_global_account(options: Load) -> None:
    assert options("mappings { a: b }").mappings == (SubjectMapping("a", (Destination("b"),)),)
    assert options("maps { a: [{dest: b, weight: 50}], c: [] }").mappings == (
        SubjectMapping("a", (Destination("b", 50),)),
    )


def test_keys_without_effect_warn(options: Load) -> None:
    made = options(
        "accounts { A {\n jetstream { cluster_traffic: owner }\n"
        "exports: [\n{accounts: [A]}\n], imports: [\n{to: x}] } }"
    )
    lines = [line.partition("nats.conf:")[2] for line in made.warnings]
    assert lines == [
        '2: "cluster_traffic" has no effect here',
        '4: an entry of "exports" without stream and service has no effect',
        '6: an entry of "imports" without stream and service has no effect',
    ]


def test_the_examples_of_the_page_are_configurations(options: Load) -> None:
    page = Path(__file__).parents[3] / "docs" / "accounts.md"
    first, *others = [block.text for block in blocks(page) if block.language == "conf"]
    made = options(first)
    assert [account.name for account in made.accounts] == ["SHOP", "BILLING", "SYS"]
    assert made.system_account == "SYS"
    assert len(others) >= 3
    for each in others:
        options(each)


# ---------------------------------------------------------------------- refused here, but not by `nats-server -t`


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # nats-server refuses these when it starts.
        ("no_auth_user: zz", 'no_auth_user: "zz" present, but users/nkeys are not defined'),
        ("no_auth_user: zz\nauthorization { token: t }", "but users/nkeys are not defined"),
        (
            "no_auth_user: zz\naccounts { A {users: [{user: a}]} }",
            'no_auth_user: "zz" not present as user or nkey in authorization block or account configuration',
        ),
        ("system_account: ZZ\naccounts { A {} }", "error resolving system account: account missing"),
        ("system_account: ZZ", "error resolving system account: account missing"),
        (
            "jetstream {}\nsystem_account: A\naccounts { A {jetstream: enabled} }",
            "Not allowed to enable JetStream on the system account",
        ),
        ('jetstream {}\naccounts { "$SYS" {jetstream: enabled} }', "Not allowed to enable JetStream on the system"),
        (
            "jetstream { max_file: 1000 }\naccounts { A {jetstream {max_file: 800}}, B {jetstream {max_file: 800}} }",
            "Can't start JetStream: Error enabling jetstream on configured accounts: insufficient storage resources "
            "available (10047)",
        ),
        (
            "jetstream { max_mem: 1000 }\naccounts { A {jetstream {max_mem: 1001}} }",
            "insufficient memory resources available (10028)",
        ),
        # Refused by lakestream only.
        ('system_account: "$G"', "Reserved Account"),
        ('accounts { "A B" {} }', "is not a valid account name"),
        ('accounts { "A/B" {} }', "is not a valid account name"),
        ('accounts { ".." {} }', "is not a valid account name"),
        ('accounts { "" {} }', "is not a valid account name"),
        ("accounts { VERSION {} }", "is not a valid account name"),
        ("accounts: 3", '"accounts" must be a map'),
        ("accounts { A {users: [{nkey: U}]} }", "Not a valid public nkey for a user"),
        ("accounts { A {users: [{user: a, connection_types: [FOO]}]} }", "invalid connection types"),
        ("accounts { A {msg_trace: 'x.*'} }", 'Trace destination "x.*" is not valid'),
        ("accounts { A {limits {max_connections: -2}} }", "must be from -1"),
        (
            "accounts { A {imports: [{to: x, prefix: y, stream: {account: B, subject: s}}]}\n"
            "B {exports: [{stream: s}]} }",
            "Stream import can not have a 'prefix' and a 'to' property",
        ),
        # A cycle of three with different names, in which nats-server would loop.
        (
            """accounts {
              A {exports: [{service: ">"}], imports: [{service: {account: B, subject: a}, to: b}]}
              B {exports: [{service: ">"}], imports: [{service: {account: C, subject: b}, to: a}]}
              C {exports: [{service: ">"}], imports: [{service: {account: A, subject: b}}]}
            }""",
            "import forms a cycle",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(options: Load, text: str, words: str) -> None:
    with pytest.raises(StartError) as caught:
        options(text)
    assert words in str(caught.value)


def test_limits_that_just_fit(options: Load) -> None:
    made = options(
        "jetstream { max_file: 1000 }\naccounts { A {jetstream {max_file: 1000}}, B {jetstream: enabled}, C {} }"
    )
    assert [account.jetstream is not None for account in made.accounts] == [True, True, False]
    # No streams: the system account may have the option as long as the server has none.
    options("system_account: A\naccounts { A {jetstream: enabled} }")


def test_of_overlapping_exports_the_narrowest_decide(options: Load) -> None:
    """Of overlapping exports the most specific one applies.

    nats-server picks a random one, since its exports have no order.
    """
    text = "accounts { A {exports: [%s]}, B {}, C {imports: [{stream: {account: A, subject: x.a}}]} }"
    options(text % '{stream: "x.>", accounts: [B]}, {stream: "x.*"}')
    for exports in ('{stream: "x.>"}, {stream: "x.*", accounts: [B]}', '{stream: "x.a", accounts: [B]}, {stream: ">"}'):
        with pytest.raises(ConfError, match="stream import not authorized"):
            options(text % exports)
    # Two exports of the same subject are combined.
    options(text % "{stream: x.a, accounts: [B]}, {stream: x.a, accounts: [C]}")


def test_many_imports_are_checked_without_recursion() -> None:
    count = 3000
    chain = [
        AccountOptions(
            name=f"A{at}",
            exports=(ServiceExport(subject="x"),),
            imports=(ServiceImport(account=f"A{at + 1}", subject="x"),) if at + 1 < count else (),
        )
        for at in range(count)
    ]
    check_accounts(chain)


def test_names_of_accounts() -> None:
    for name in ("A", "$SYS", "a.b", "Ä-1_x", "x" * 128):
        assert name_error(name) == "", name
    for name in ("$G", "a..b", ".", "a*", ">", "a\\b", "a\x00", "LOCK", "_meta_", "x" * 129):
        assert name_error(name), name


# ---------------------------------------------------------------------- the command line


def test_the_one_user_of_the_command_line_and_accounts(options: Load) -> None:
    with pytest.raises(StartError, match="Can not have a single user/pass and accounts"):
        options("accounts { A {users: [{user: a}]} }", "--user x --pass y")
    with pytest.raises(StartError, match="Can not have a token and accounts"):
        options("accounts { A {users: [{user: a}]} }", "--auth t")
    made = options("accounts { A {} }", "--user x --pass y")
    assert made.users == (User("x", "y"),)


# ---------------------------------------------------------------------- reload


def _reloaded(options: Load, before: str, after: str) -> list[str]:
    old = options(before)
    Path(old.config_file).write_text(after)
    return [name for name in reload(old)[1] if name != "config_digest"]


def test_a_reload_changes_accounts(options: Load) -> None:
    one = "accounts { A {users: [{user: a}]} }"
    assert _reloaded(options, one, "accounts { A {users: [{user: b}]}, B {jetstream: enabled} }") == ["accounts"]
    assert _reloaded(options, one, "ping_max: 2") == ["accounts"]
    assert _reloaded(options, "mappings {a: b}", "mappings {a: c}") == ["mappings"]
    assert _reloaded(options, one, one) == []


@pytest.mark.parametrize("key", ["no_auth_user: a", "system_account: A"])
def test_a_reload_cannot_change_the_default_user(options: Load, key: str) -> None:
    text = "accounts { A {users: [{user: a}]} }"
    with pytest.raises(StartError, match=f"a reload cannot change '{key.partition(':')[0]}'"):
        _reloaded(options, text, f"{key}\n{text}")


# ---------------------------------------------------------------------- any text

_SUBJECTS = st.sampled_from(["x", "x.*", "x.>", ">", "*", "x..y", "", "y.$1", "$2", "x.{{wildcard(1)}}", "a b"])
_KEYS = ["user", "users", "exports", "imports", "stream", "service", "account", "subject", "to", "prefix", "accounts"]
_KEYS += ["jetstream", "limits", "mappings", "permissions", "latency", "response_type", "threshold", "dest", "weight"]
_VALUES = st.recursive(
    st.sampled_from(["5", "-1", "true", "'1s'", "A", "B"]) | _SUBJECTS.map(lambda text: f'"{text}"'),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]")
        | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=3).map(
            lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs.items()) + "}"
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=4), _VALUES)
def test_any_account_gives_settings_or_a_conf_error(
    tmp_path_factory: pytest.TempPathFactory, pairs: dict[str, str], mapping: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-accounts.conf"
    block = "\n".join(f"{key}: {value}" for key, value in pairs.items())
    path.write_text(f"accounts {{ A {{\n{block}\n}}\nB {{ exports: [{{stream: '>'}}, {{service: '>'}}] }} }}\nport: 1")
    with contextlib.suppress(ConfError):
        read_settings(str(path))
    path.write_text(f"mappings: {{ 'x.*': {mapping} }}")
    with contextlib.suppress(ConfError):
        read_settings(str(path))
