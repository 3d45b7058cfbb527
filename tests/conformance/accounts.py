"""Configuration of the pair of servers shared by all scenarios with several accounts.

Belongs here: the accounts, and the purpose of each. Starting servers takes long, so there is one such configuration;
tests that need another one start servers of their own (test_accounts_starting.py).

A user has the name of its account, in lower case; a second user of an account has a 2 at the end.
"""

from __future__ import annotations

from tests.pairs import Setup

_CONFIG = """\
system_account: SYS
accounts {
  SYS { users: [{user: sys, password: p}] }

  # What an account may be without anything said about it.
  NOJS { users: [{user: nojs, password: p}] }
  A { users: [{user: a, password: p}, {user: a2, password: p}], jetstream: enabled }
  B { users: [{user: b, password: p}], jetstream: enabled }

  # Limits.
  LIM {
    users: [{user: lim, password: p}]
    jetstream: {
      max_mem: 4KB, max_file: 20KB, max_streams: 3, max_consumers: 2, max_ack_pending: 50
      max_bytes_required: true, disk_max_stream_bytes: 8KB, mem_max_stream_bytes: 3KB
    }
  }
  FULL { users: [{user: full, password: p}], jetstream: {max_mem: 2KB, max_file: 4KB} }
  NOMEM { users: [{user: nomem, password: p}], jetstream: {max_mem: 0, max_file: 20KB} }
  CONN {
    users: [{user: conn, password: p}], jetstream: enabled
    limits { max_connections: 2, max_subscriptions: 3, max_payload: 100 }
  }

  # JetStream for other accounts: answers as many as there are, and one only.
  JS {
    users: [{user: js, password: p}], jetstream: enabled
    exports: [
      {service: "$JS.API.>", response_type: stream}
      {service: "$JS.ACK.>"}, {service: "$JS.FC.>"}
      {service: "s"}, {service: "a.>"}, {service: "$KV.>"}, {service: "$O.>"}
      {stream: "dlv.>"}, {stream: "ev.>"}
    ]
  }
  IMP {
    users: [{user: imp, password: p}]
    imports: [
      {service: {account: JS, subject: "$JS.API.>"}, to: "$JS.far.API.>"}
      {service: {account: JS, subject: "$JS.ACK.>"}}, {service: {account: JS, subject: "$JS.FC.>"}}
      {service: {account: JS, subject: "s"}}, {service: {account: JS, subject: "a.>"}}
      {service: {account: JS, subject: "$KV.>"}}, {service: {account: JS, subject: "$O.>"}}
      {stream: {account: JS, subject: "dlv.>"}}
    ]
  }
  MIR {
    users: [{user: mir, password: p}], jetstream: enabled
    imports: [
      {service: {account: JS, subject: "$JS.API.>"}, to: "$JS.far.API.>"}
      {service: {account: JS, subject: "$JS.FC.>"}}
      {stream: {account: JS, subject: "dlv.>"}, prefix: via}, {stream: {account: JS, subject: "ev.>"}, prefix: via}
    ]
  }
  BOTH {
    users: [{user: both, password: p}], jetstream: enabled
    imports: [
      {service: {account: JS, subject: "$JS.API.>"}, to: "$JS.far.API.>"}
      {service: {account: JS, subject: "$JS.ACK.>"}}, {service: {account: JS, subject: "$JS.FC.>"}}
    ]
  }
  ONE {
    users: [{user: one, password: p}], jetstream: enabled
    exports: [{service: "$JS.API.>"}, {service: "$JS.ACK.>"}]
  }
  IMPONE {
    users: [{user: impone, password: p}]
    imports: [{service: {account: ONE, subject: "$JS.API.>"}, to: "js.one.>"}
              {service: {account: ONE, subject: "$JS.ACK.>"}}]
  }
}
"""

ACCOUNTS = Setup(
    _CONFIG,
    (
        ("a", "A"),
        ("b", "B"),
        ("lim", "LIM"),
        ("full", "FULL"),
        ("nomem", "NOMEM"),
        ("conn", "CONN"),
        ("js", "JS"),
        ("mir", "MIR"),
        ("both", "BOTH"),
        ("one", "ONE"),
    ),
)
