"""Scenarios of the system account: its requests and events, and the requests of every account about itself.

Pages are compared by their fields, refusals word for word.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

from lakestream.protocol import s2
from tests.conformance.harness import Script, configured, table
from tests.conformance.shapes import order, shape
from tests.pairs import Setup
from tests.wire import Closed, Frame, Headers, Wire, WireTimeout

SILENT_S = 0.25

SYSTEM = Setup(
    """\
system_account: SYS
server_tags: ["az:one"]
accounts {
  SYS { users: [{user: sys, password: p}] }
  A {
    users: [{user: a, password: p}], jetstream: {max_mem: 1MB, max_file: 2MB}
    exports: [
      {stream: "s.>"}, {stream: "t.*.>", accounts: [B]}, {service: q, response_type: stream, accounts: [B]}
      {service: c, response_type: chunked, threshold: "5s"}, {service: lt, latency: {subject: lat, sampling: 50}}
      {service: lh, latency: {subject: l3, sampling: headers}}, {service: one, latency: l4}
    ]
    mappings: {
      m: n
      w: [{destination: w1, weight: 30}, {destination: w2, weight: 20}]
      own: [{destination: other, weight: 80}, {destination: own, weight: 10}]
    }
  }
  B {
    users: [
      {user: b, password: p}
      {user: bp, password: p, permissions: {
        publish: {allow: ["a.>", "$SYS.>"], deny: "a.b"}, subscribe: {deny: ["x.*", "y grp"]}
        allow_responses: {max: 5, expires: "1m"}
      }}
      {user: bq, password: p, permissions: {publish: "$SYS.REQ.USER.INFO", allow_responses: true}}
    ]
    jetstream: enabled
    imports: [
      {stream: {account: A, subject: "s.>"}, prefix: p}, {stream: {account: A, subject: "t.B.>"}, to: "z.>"}
      {stream: {account: A, subject: "s.k"}}, {service: {account: A, subject: q}, to: qq, share: true}
      {service: {account: A, subject: lt}}, {service: {account: A, subject: lh}}, {service: {account: A, subject: c}}
    ]
  }
  N { users: [{user: n, password: p}], default_permissions: {publish: {deny: "no"}} }
  M { users: [{user: m, password: p}], limits: {max_connections: 1} }
}
""",
    (("a", "A"), ("b", "B")),
)


def _data(frame: Frame) -> Any:
    if frame.status:
        return f"status {frame.status}"
    return frame.json()


def _ask(wire: Wire, subject: str, body: Any = None, headers: Headers = None) -> Any:
    """Return the answer to `$SYS.REQ.<subject>`; body: None, bytes, or data for JSON."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        return _data(wire.request(f"$SYS.REQ.{subject}", data, headers, timeout=SILENT_S * (4 if headers else 1)))
    except WireTimeout:
        return "silence"


def _server_id(t: Script) -> str:
    return str(t.wire.info["server_id"])


PAGES = ("VARZ", "SUBSZ", "CONNZ", "ROUTEZ", "GATEWAYZ", "LEAFZ", "ACCOUNTZ", "JSZ", "STATSZ", "IDZ")

QUESTIONS: list[tuple[str, str, Any]] = [
    ("ping", "PING", None),
    *[(page.lower(), f"PING.{page}", None) for page in PAGES],
    *[(f"{page.lower()}_by_id", f"<id>.{page}", None) for page in PAGES],
    ("connz_auth", "PING.CONNZ", {"auth": True}),
    ("connz_of_account", "PING.CONNZ", {"auth": True, "acc": "A"}),
    ("connz_of_unknown_account", "PING.CONNZ", {"acc": "ZZ"}),
    ("connz_of_user", "PING.CONNZ", {"user": "a"}),
    ("connz_subs", "PING.CONNZ", {"subscriptions": True, "acc": "A"}),
    ("connz_subs_detail", "PING.CONNZ", {"subscriptions_detail": True, "acc": "A"}),
    ("connz_page", "PING.CONNZ", {"limit": 1, "offset": 1}),
    ("connz_filter", "PING.CONNZ", {"filter_subject": "x.y", "acc": "A"}),
    ("connz_filter_with_wildcard", "PING.CONNZ", {"filter_subject": "*.y", "acc": "A"}),
    ("connz_filter_of_everything", "PING.CONNZ", {"filter_subject": ">", "acc": "A"}),
    ("connz_of_mqtt_client", "PING.CONNZ", {"mqtt_client": "x", "acc": "A"}),
    ("connz_unknown_cid", "PING.CONNZ", {"cid": 123456}),
    ("subsz_of_account", "PING.SUBSZ", {"account": "A"}),
    ("subsz_test", "PING.SUBSZ", {"account": "A", "subscriptions": True, "test": "x.y"}),
    ("jsz_accounts", "PING.JSZ", {"accounts": True}),
    ("jsz_page", "PING.JSZ", {"accounts": True, "limit": 1, "offset": 1}),
    ("jsz_past_the_end", "PING.JSZ", {"accounts": True, "offset": 5}),
    ("jsz_streams", "PING.JSZ", {"account": "A", "streams": True}),
    ("jsz_consumers", "PING.JSZ", {"account": "A", "consumer": True, "config": True}),
    ("jsz_without_jetstream", "PING.JSZ", {"account": "N"}),
    ("accountz_of_account", "PING.ACCOUNTZ", {"account": "B"}),
    ("accountz_of_system", "PING.ACCOUNTZ", {"account": "SYS"}),
    # Neither of an account nor of all: nats-server's directory has a file that is no stream.
    ("healthz_js_enabled_only", "PING.HEALTHZ", {"js-enabled-only": True}),
    ("healthz_js_server_only_by_id", "<id>.HEALTHZ", {"js-server-only": True}),
    ("healthz_of_stream", "PING.HEALTHZ", {"account": "A", "stream": "S"}),
    ("jsz_leader_only", "PING.JSZ", {"leader_only": True}),
    ("jsz_streams_led_here", "PING.JSZ", {"account": "A", "streams": True, "stream_leader_only": True}),
    ("jsz_raft", "PING.JSZ", {"account": "A", "streams": True, "raft": True}),
    ("jsz_direct_consumers", "PING.JSZ", {"account": "A", "consumer": True, "direct_consumer": True}),
    ("leafz_of_account", "PING.LEAFZ", {"account": "A", "subscriptions": True}),
    ("gatewayz_of_name", "PING.GATEWAYZ", {"name": "G", "accounts": True, "account_name": "A"}),
    ("raftz", "PING.RAFTZ", None),
    ("raftz_by_id", "<id>.RAFTZ", None),
    ("raftz_of_account", "PING.RAFTZ", {"account": "A"}),
    ("raftz_of_group", "PING.RAFTZ", {"group": "_meta_"}),
    ("ipqueuesz_of_no_name", "PING.IPQUEUESZ", {"all": True, "filter": "no such queue"}),
    ("ipqueuesz_by_id_of_no_name", "<id>.IPQUEUESZ", {"filter": "no such queue"}),
    ("null", "PING.CONNZ", b"null"),
    ("other_case", "PING.CONNZ", {"LIMIT": 1}),
    ("unknown_field", "PING.CONNZ", {"nope": 1}),
]


@table(QUESTIONS, SYSTEM)
def pages(t: Script, subject: str, body: Any) -> None:
    t.stream("S", ["x.*"], storage="file")  # nats-server does not check streams in memory
    t.consumer("S", "c")
    t.fill(["x.1", "x.2"])
    t.wire.subscribe("x.y", "grp")
    t.wire.ping()
    answer = _ask(t.connect(user="sys"), f"SERVER.{subject.replace('<id>', _server_id(t))}", body)
    t.note("fields", shape(answer))
    t.note("error", (answer.get("data") or {}).get("error"))
    t.note("order", order(answer))
    for part in ("server", "data", "statsz"):
        t.note(part, order(answer.get(part) or {}))
    numbers = ("num_connections", "limit", "offset", "streams", "consumers", "messages", "accounts", "total")
    data = answer.get("data") or {}
    if ("CONNZ" not in subject and "SUBSZ" not in subject) or body:
        t.note("figures", {name: data[name] for name in numbers if isinstance(data.get(name), int)})


REFUSED: list[tuple[str, str, Any]] = [
    ("no_json", "PING.CONNZ", b"{bad"),
    ("no_json_for_ping", "PING", b"xx"),
    ("no_json_for_varz", "PING.VARZ", b"xx"),
    ("no_json_for_statsz", "PING.STATSZ", b"xx"),
    ("no_json_for_idz", "PING.IDZ", b"xx"),
    ("unfinished", "PING.CONNZ", b'{"acc":'),
    ("blank", "PING.CONNZ", b" "),
    ("two_values", "PING.CONNZ", b"{}{}"),
    ("array", "PING.CONNZ", []),
    ("text", "PING.CONNZ", "x"),
    ("limit_is_text", "PING.CONNZ", {"limit": "x"}),
    ("auth_is_number", "PING.CONNZ", {"auth": 1}),
    ("cid_is_negative", "PING.CONNZ", {"cid": -1}),
    ("offset_is_fraction", "PING.CONNZ", {"offset": 1.5}),
    ("test_is_number", "PING.SUBSZ", {"test": 1}),
    ("tags_is_number", "PING.STATSZ", {"tags": 1}),
    ("leader_only_is_number", "PING.JSZ", {"leader_only": 1}),
    ("subscriptions_is_number", "PING.LEAFZ", {"subscriptions": 1}),
    ("name_is_number", "PING.GATEWAYZ", {"name": 1}),
    ("js_meta_only_is_text", "PING.HEALTHZ", {"js-meta-only": "x"}),
    ("mqtt_client_is_number", "PING.CONNZ", {"mqtt_client": 1}),
    ("group_is_number", "PING.RAFTZ", {"group": 1}),
    ("all_is_text", "PING.IPQUEUESZ", {"all": "x"}),
    ("no_json_for_raftz", "PING.RAFTZ", b"xx"),
    ("no_json_for_ipqueuesz", "PING.IPQUEUESZ", b"xx"),
    ("no_json_for_profilez", "PING.PROFILEZ", b"xx"),
    ("no_json_for_expvarz", "PING.EXPVARZ", b"xx"),
    ("profile_without_name", "PING.PROFILEZ", None),
    ("profile_by_id_without_name", "<id>.PROFILEZ", {"debug": 1}),
    ("sort", "PING.CONNZ", {"sort": "foo"}),
    ("sort_by_stop", "PING.CONNZ", {"sort": "stop"}),
    ("filter_without_account", "PING.CONNZ", {"filter_subject": "x"}),
    ("test_with_wildcard", "PING.SUBSZ", {"test": "q.*"}),
    ("account", "PING.ACCOUNTZ", {"account": "ZZ"}),
    ("health_of_unknown_account", "PING.HEALTHZ", {"account": "ZZ"}),
    ("health_without_jetstream", "PING.HEALTHZ", {"account": "N"}),
    ("health_of_unknown_stream", "PING.HEALTHZ", {"account": "A", "stream": "X"}),
    ("health_in_detail", "PING.HEALTHZ", {"account": "A", "stream": "X", "details": True}),
    ("health_of_stream_alone", "PING.HEALTHZ", {"stream": "X"}),
    ("health_of_consumer_alone", "PING.HEALTHZ", {"consumer": "c"}),
    ("unknown_page", "PING.FOO", None),
    ("reload_of_all", "PING.RELOAD", None),
    ("kick_of_all", "PING.KICK", {"cid": 1}),
    ("server", "ZZ.VARZ", None),
    ("id_alone", "<id>", None),
    ("kick", "<id>.KICK", {"cid": 999_999}),
    ("kick_without_cid", "<id>.KICK", {}),
    ("kick_no_json", "<id>.KICK", b"xx"),
    ("kick_nothing", "<id>.KICK", b""),
    ("ldm", "<id>.LDM", {"cid": 999_999}),
    ("ldm_no_json", "<id>.LDM", b"xx"),
]


@table(REFUSED, SYSTEM)
def refusals(t: Script, subject: str, body: Any) -> None:
    t.hide(_server_id(t), "<id>")
    answer = _ask(t.connect(user="sys"), f"SERVER.{subject.replace('<id>', _server_id(t))}", body)
    if isinstance(answer, dict):
        answer.pop("server", None)
    t.note("answer", answer)


@table(
    [
        ("name", {"server_name": "conf"}),
        ("another_name", {"server_name": "zz"}),
        ("exact_name", {"server_name": "conformance", "exact_match": True}),
        ("part_of_name_exactly", {"server_name": "conf", "exact_match": True}),
        ("host", {"host": "127."}),
        ("another_host", {"host": "10."}),
        ("part_of_host_exactly", {"host": "127.", "exact_match": True}),
        ("cluster", {"cluster": "c"}),
        ("no_cluster", {"cluster": ""}),
        ("domain", {"domain": "hub"}),
        ("tag", {"tags": ["az:one"]}),
        ("another_tag", {"tags": ["az:two"]}),
        ("one_of_two_tags", {"tags": ["az:one", "az:two"]}),
        ("no_tags", {"tags": []}),
        ("all", {"server_name": "conf", "host": "127.", "tags": ["az:one"]}),
    ],
    SYSTEM,
)
def which_servers_answer(t: Script, fields: dict[str, Any]) -> None:
    wire = t.connect(user="sys")
    for subject in ("SERVER.PING.LEAFZ", "SERVER.PING", "SERVER.PING.IDZ", "ACCOUNT.A.CONNZ", "ACCOUNT.A.CONNS"):
        answer = _ask(wire, subject, fields)
        t.note(subject, "answered" if isinstance(answer, dict) else answer)


@table([(name.lower(), name) for name in ("A", "N", "SYS", "$G", "ZZ", "PING")], SYSTEM)
def about_an_account(t: Script, name: str) -> None:
    t.stream("S", ["x.*"])
    wire = t.connect(user="sys")
    for page in ("SUBSZ", "CONNZ", "LEAFZ", "JSZ", "INFO", "STATZ", "CONNS", "FOO", "STATSZ"):
        answer = _ask(wire, f"ACCOUNT.{name}.{page}")
        refused = isinstance(answer, dict) and "error" in answer
        t.note(page, {key: answer[key] for key in ("data", "error")} if refused else shape(answer))
        t.note(f"order of {page}", order(answer.get("data") or answer) if isinstance(answer, dict) else [])


@table(
    [
        ("connz_of_another", "A.CONNZ", {"acc": "B", "auth": True}),
        ("connz_auth", "A.CONNZ", {"auth": True}),
        ("subsz", "A.SUBSZ", {"subscriptions": True, "test": "x.y"}),
        ("jsz_streams", "A.JSZ", {"streams": True}),
        ("jsz_consumers", "A.JSZ", {"consumer": True, "config": True}),
        ("jsz_consumers_of_streams", "A.JSZ", {"consumer": True, "config": True, "streams": True}),
        ("statz_of_others", "A.STATZ", {"accounts": ["B"]}),
        ("statz_of_some", "PING.STATZ", {"accounts": ["A", "ZZ"]}),
        ("statz_of_unused", "PING.STATZ", {"accounts": ["A", "N"], "include_unused": True}),
        ("no_json", "A.CONNZ", b"xx"),
        ("statz_no_json", "A.STATZ", b"xx"),
        ("conns_no_json", "A.CONNS", b"xx"),
    ],
    SYSTEM,
)
def about_an_account_with_options(t: Script, subject: str, body: Any) -> None:
    t.stream("S", ["x.*"])
    t.consumer("S", "c")
    answer = _ask(t.connect(user="sys"), f"ACCOUNT.{subject}", body)
    t.note("fields", shape(answer))
    if isinstance(answer, dict):
        t.note("error", answer.get("error"))
        t.note("accounts", sorted(one["acc"] for one in (answer.get("data") or {}).get("account_statz", ())))


@table([(user, user) for user in ("a", "n")], SYSTEM)
def what_every_account_may_ask(t: Script, user: str) -> None:
    wire = t.connect(user=user)
    t.connect(user="b").ping()
    for subject in (
        "USER.INFO",
        *[f"SERVER.PING.{page}" for page in (*PAGES, "STATZ")],
        *[f"ACCOUNT.PING.{page}" for page in ("CONNZ", "STATZ", "SUBSZ", "JSZ", "INFO", "LEAFZ", "CONNS")],
        *[f"ACCOUNT.{user.upper()}.{page}" for page in ("CONNZ", "STATZ", "INFO")],
        "SERVER.PING",
        f"SERVER.{_server_id(t)}.CONNZ",
        f"USER.{user}.INFO",
    ):
        t.hide(_server_id(t), "<id>")
        t.note(subject, shape(_ask(wire, subject)))


@configured(SYSTEM)
def what_is_said_of_the_own_account_only(t: Script) -> None:
    wire = t.connect(user="n", name="mine")
    for subject in ("SERVER.PING.CONNZ", "ACCOUNT.PING.CONNZ"):
        for body in ({"acc": "A", "auth": True}, {"user": "a"}, {"sort": "foo"}, b"xx"):
            answer = _ask(wire, subject, body)
            found = (answer.get("data") or {}).get("connections", ())
            names = [(one.get("name"), one.get("account")) for one in found]
            t.note(f"{subject} {body}", [names, answer.get("error")])
    answer = _ask(wire, "ACCOUNT.PING.STATZ", {"accounts": ["A"]})
    t.note("STATZ", [one["acc"] for one in answer["data"]["account_statz"]])


@table([(user, user) for user in ("sys", "a", "b", "bp", "bq", "n")], SYSTEM)
def who_a_user_is(t: Script, user: str) -> None:
    wire = t.connect(user=user)
    answer = _ask(wire, "USER.INFO")
    for rule in answer["data"].get("permissions", {}).values():
        for name in ("allow", "deny"):
            if isinstance(rule.get(name), list):
                rule[name].sort()
    t.note("server", shape(answer["server"]))
    t.note("data", answer["data"])


def _counted(answer: Any) -> Any:
    """Return an account's detail without values that are specific to the server."""
    detail = answer["account_detail"]
    for name in ("update_time", "sublist_stats", "subscriptions", "client_connections"):
        detail.pop(name, None)
    for name in ("exports", "imports"):
        detail.get(name, []).sort(key=lambda one: (one["type"], one["subject"], one.get("local_subject")))
    return detail


@table([(name.lower(), name) for name in ("A", "B", "N", "SYS", "$G")], SYSTEM)
def exports_and_imports(t: Script, name: str) -> None:
    answer = _ask(t.connect(user="sys"), "SERVER.PING.ACCOUNTZ", {"account": name})
    t.note("detail", _counted(answer["data"]))


@configured(SYSTEM)
def awaited_answers(t: Script) -> None:
    exporter, importer = t.connect(user="a"), t.connect(user="b")
    exporter.subscribe("c")
    exporter.ping()
    for _ in range(2):
        importer.publish("c", b"?", importer.new_reply())
    importer.ping()
    requests = [exporter.next(), exporter.next()]
    detail = _ask(t.connect(user="sys"), "SERVER.PING.ACCOUNTZ", {"account": "A"})["data"]["account_detail"]
    t.note("order", order(detail))
    t.note("responses", sorted((t.normal(one) for one in detail["responses"].values()), key=str))
    t.note("by reply", sorted(frame.reply for frame in requests) == sorted(detail["responses"]))
    for frame in requests:
        exporter.publish(frame.reply)  # the empty answer is the last one
    exporter.ping()
    detail = _ask(t.connect(user="sys"), "SERVER.PING.ACCOUNTZ", {"account": "A"})["data"]["account_detail"]
    t.note("answered", len(detail.get("responses", ())))


@configured(SYSTEM)
def which_accounts_there_are(t: Script) -> None:
    data = _ask(t.connect(user="sys"), "SERVER.PING.ACCOUNTZ")["data"]
    t.note("accounts", [data["system_account"], sorted(data["accounts"])])


@table([(name, name) for name in ("s2", "snappy", "gzip", "s2, gzip", "deflate", "")], SYSTEM)
def compressed_answers(t: Script, accepted: str) -> None:
    for user, subject in (("sys", "SERVER.PING.JSZ"), ("a", "ACCOUNT.PING.STATZ"), ("sys", "ACCOUNT.A.CONNS")):
        frame = t.connect(user=user).request(f"$SYS.REQ.{subject}", b"", {"Accept-Encoding": accepted})
        encoding = frame.headers.get("Content-Encoding")
        data = frame.data
        if encoding == "snappy":
            data = b"".join(s2.Decoder().feed(data))
        elif encoding == "gzip":
            data = gzip.decompress(data)
        t.note(subject, [frame.header, shape(json.loads(data))])


@configured(SYSTEM)
def how_many_subscribers(t: Script) -> None:
    wire = t.connect(user="sys")
    for subject, queue in (("foo.*", ""), ("foo.bar", ""), ("foo.bar", "g"), ("foo.bar", "g"), ("foo.x", "")):
        wire.subscribe(subject, queue)
    for body in (b"foo.bar", b"foo.bar g", b"foo.*", b"foo.>", b"nobody", b"", b"{}"):
        t.note(repr(body), _data(wire.request("$SYS.DEBUG.SUBSCRIBERS", body)))
    t.note("others", _data(t.wire.request("$SYS.DEBUG.SUBSCRIBERS", b"foo.bar")))


# ---------------------------------------------------------------------- events
def _listening(t: Script) -> Wire:
    wire = t.connect(user="sys", name="listening")
    wire.subscribe("$SYS.ACCOUNT.>")
    wire.subscribe("$SYS.SERVER.>")
    wire.ping()
    return wire


def _events(t: Script, wire: Wire, name: str, *subjects: str) -> None:
    """Record the next event under each subject; of client events, the one of the client with that name."""
    for subject in subjects:
        while True:
            frame = wire.message(subject.replace("<id>", _server_id(t)))
            event = frame.json()
            if event.get("client", {"name": name}).get("name") == name:
                break
        client = event.get("client", {})
        t.note(subject, shape(event))
        t.note("order", [*event, *client])
        kept = ("acc", "user", "name", "name_tag", "kind", "client_type")
        t.note("client", {key: client[key] for key in kept if key in client})
        if "client" in event:
            t.note("traffic", {key: event[key] for key in ("type", "sent", "received", "reason") if key in event})
        else:
            t.note("account", [event[key] for key in ("type", "acc", "name") if key in event])


@configured(SYSTEM)
def a_client_comes_and_goes(t: Script) -> None:
    t.hide(_server_id(t), "<id>")
    wire = _listening(t)
    client = t.connect(user="n", name="comes", lang="", version="")
    _events(t, wire, "comes", "$SYS.SERVER.ACCOUNT.N.CONNS", "$SYS.ACCOUNT.N.SERVER.CONNS", "$SYS.ACCOUNT.N.CONNECT")
    client.subscribe("x")
    client.publish("x", b"hello")
    client.publish("y", b"12", headers={"A": "b"})
    client.ping()
    client.close()
    _events(t, wire, "comes", "$SYS.ACCOUNT.N.DISCONNECT", "$SYS.SERVER.ACCOUNT.N.CONNS")


WEB = Setup(
    """\
http: "127.0.0.1:-1"
system_account: SYS
accounts { SYS { users: [{user: sys, password: p}] }, N { users: [{user: n, password: p}] } }
websocket { listen: "127.0.0.1:-1", no_tls: true }
""",
    (("n", "N"),),
)


@configured(WEB)
def a_client_over_websocket_comes_and_goes(t: Script) -> None:
    wire = _listening(t)
    client = t.connect(user="n", name="web", opened=t.websocket())
    _events(t, wire, "web", "$SYS.ACCOUNT.N.CONNECT")
    client.close()
    _events(t, wire, "web", "$SYS.ACCOUNT.N.DISCONNECT")


@configured(SYSTEM)
def the_system_account_hears_of_itself(t: Script) -> None:
    wire = _listening(t)
    client = t.connect(user="sys", name="another")
    _events(t, wire, "another", "$SYS.SERVER.ACCOUNT.SYS.CONNS", "$SYS.ACCOUNT.SYS.CONNECT")
    client.close()
    _events(t, wire, "another", "$SYS.ACCOUNT.SYS.DISCONNECT")


@table(
    [
        ("password", {"user": "a", "pass": "x"}, "$G"),
        ("user", {"user": "zz"}, "$G"),
        ("nobody", {"user": None}, "$G"),
    ],
    SYSTEM,
)
def a_client_is_refused(t: Script, fields: dict[str, Any], account: str) -> None:
    t.hide(_server_id(t), "<id>")
    wire = _listening(t)
    t.connect(name="refused", **fields)
    _events(t, wire, "refused", "$SYS.SERVER.<id>.CLIENT.AUTH.ERR", f"$SYS.ACCOUNT.{account}.DISCONNECT")


@configured(SYSTEM)
def one_client_too_many(t: Script) -> None:
    wire = _listening(t)
    t.connect(user="m", name="first").ping()
    t.connect(user="m", name="second")
    _events(t, wire, "second", "$SYS.ACCOUNT.M.DISCONNECT")


@configured(SYSTEM)
def a_client_is_kicked(t: Script) -> None:
    t.hide(_server_id(t), "<id>")
    wire, client = _listening(t), t.connect(user="n", name="kicked")
    client.ping()
    answer = _ask(wire, f"SERVER.{_server_id(t)}.KICK", {"cid": client.info["client_id"]})
    t.note("answer", shape(answer))
    t.note("client", [t.show(frame) for frame in client.until_closed()])
    _events(t, wire, "kicked", "$SYS.ACCOUNT.N.DISCONNECT")


@configured(SYSTEM)
def a_client_is_sent_elsewhere(t: Script) -> None:
    wire, client, other = _listening(t), t.connect(user="n"), t.connect(user="n")
    client.ping()
    other.ping()
    t.note("answer", shape(_ask(wire, f"SERVER.{_server_id(t)}.LDM", {"cid": client.info["client_id"]})))
    client.ping()
    other.ping()
    t.note("told", [client.infos[-1].get("ldm"), other.infos[-1].get("ldm")])
    t.note("still there", _data(client.request("nobody")))


@configured(SYSTEM)
def figures_by_the_clock(t: Script) -> None:
    wire = t.connect(user="sys")
    wire.subscribe("$SYS.SERVER.*.STATSZ")
    event = wire.message(f"$SYS.SERVER.{_server_id(t)}.STATSZ", timeout=15).json()
    t.note("fields", shape(event))
    t.note("order", [*order(event), *order(event["statsz"])])


@configured(SYSTEM)
def other_accounts_hear_nothing(t: Script) -> None:
    wire = t.connect(user="a")
    wire.subscribe("$SYS.>")
    wire.ping()
    t.connect(user="b").close()
    sys = t.connect(user="sys")
    sys.publish("$SYS.ACCOUNT.A.CONNECT", b"made up")
    sys.ping()
    try:
        t.note("a", [t.show(frame) for frame in wire.ping()])
    except Closed:
        t.note("a", "closed")
