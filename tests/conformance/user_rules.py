"""Configuration of the pair of servers for permissions and mappings of users.

Belongs here: the users by their permissions, and the mappings. `any` may do everything in the account of the others;
the users of account M have their subjects mapped.
"""

from __future__ import annotations

from tests.pairs import Setup

_CONFIG = """\
accounts {
  A {
    jetstream: enabled
    default_permissions: { publish: ["def.>", "$JS.API.>"], subscribe: ["def.>", "_INBOX.>"] }
    users: [
      {user: any, password: p, permissions: {publish: {deny: "never"}}}
      {user: plain, password: p}

      {user: pub_string, password: p, permissions: {publish: "a.b"}}
      {user: pub_list, password: p, permissions: {publish: ["a.*", "b.>", "c"]}}
      {user: pub_deny, password: p, permissions: {publish: {deny: ["a.no", "b.x.>", "c.*.z"]}}}
      {user: pub_both, password: p, permissions: {publish: {allow: ["a.*", "b.>"], deny: ["a.no", "b.x.>"]}}}
      {user: pub_empty, password: p, permissions: {publish: {allow: []}}}

      {user: all_said, password: p, permissions: {
        publish: {allow: ["$SYS.REQ.>", "a"], deny: ["b", "c.>"]}
        subscribe: {allow: ["_INBOX.>", "q g"], deny: "d"}, allow_responses: {max: 5, expires: "3s"}
      }}
      {user: answers_all, password: p, permissions: {publish: ">", allow_responses: true}}
      {user: sub_string, password: p, permissions: {subscribe: "a.b"}}
      {user: sub_list, password: p, permissions: {subscribe: ["a.*", "b.>", "c", "d.*.x"]}}
      {user: sub_deny, password: p, permissions: {subscribe: {deny: ["a.no", "b.w.*", "e.>", "q.* grp"]}}}
      {user: sub_both, password: p, permissions: {subscribe: {allow: ["a.>"], deny: ["a.no", "a.x.>"]}}}
      {user: sub_queue, password: p,
       permissions: {subscribe: ["q.* grp", "w.* v1.*", "w.* v2", "both", "both v1", "b.>"]}}
      {user: sub_deny_twice, password: p, permissions: {subscribe: {deny: ["a.no", "a.no grp"]}}}
      {user: sub_empty, password: p, permissions: {subscribe: {allow: []}}}

      {user: answer, password: p, permissions: {subscribe: "svc.>", allow_responses: true}}
      {user: answer2, password: p, permissions: {subscribe: "svc.>", allow_responses: {max: 2, expires: "1m"}}}
      {user: answers, password: p, permissions: {subscribe: "svc.>", allow_responses: {max: -1, expires: "-1s"}}}
      {user: answer0, password: p, permissions: {subscribe: "svc.>", allow_responses: {max: 0, expires: "0s"}}}
      {user: answer_deny, password: p,
       permissions: {publish: {deny: "x.>"}, subscribe: "svc.>", allow_responses: {max: 1, expires: "1m"}}}
      {user: answer_more, password: p,
       permissions: {publish: ["a.b", "$JS.API.>"], subscribe: ["svc.>", "_INBOX.>"], allow_responses: true}}
    ]
  }
  M {
    jetstream: enabled
    users: [
      {user: m, password: p}
      {user: pm, password: p, permissions: {publish: ["lit.a", "to.b", "trace"]}}
    ]
    mappings: {
      "lit.a": "to.a", "lit.b": "to.b"
      "from.>": "to.>"
      "swap.*.*": "sw.$2.$1"
      "part.*": "p.{{partition(3,1)}}.$1"
      "split.*": "sp.{{split(1,-)}}"
      "chain.1": "chain.2", "chain.2": "chain.3"
      "lost": [{dest: lost, weight: 0%}]
      "none": []
      "here": [{dest: here.x, weight: 100%, cluster: X}]
      "one": {dest: only, weight: 100}
      "orders.in": "s.orders"
      "loop": "loop"
      "rep": "never", "dlv": "never"
      "js.info": "$JS.API.INFO"
      "half": [{dest: h1, weight: 10%}, {dest: h2, weight: "20"}]
      "cut.*": cut
    }
  }

  # What they say to each other.
  E {
    users: [{user: e, password: p}, {user: e_answer, password: p,
             permissions: {subscribe: ["ask.>", "asked.>"], allow_responses: true}}]
    exports: [{stream: "ev.>"}, {service: "ask.>"}, {service: "many.>", response_type: stream}]
    mappings: { "ev.a": "ev.b", "ask.m": "asked.m", "ask.n": "ask.o" }
  }
  I {
    users: [
      {user: i, password: p}
      {user: i_deny, password: p, permissions: {subscribe: {deny: ["via.ev.no", "via.ev.b"]}}}
      {user: i_pub, password: p, permissions: {publish: ["ask.yes"]}}
    ]
    imports: [{stream: {account: E, subject: "ev.>"}, prefix: via}
              {service: {account: E, subject: "ask.>"}}, {service: {account: E, subject: "many.>"}}]
    mappings: { "please": "ask.yes" }
  }
}
"""

DOMAIN_RULES = Setup(
    """\
jetstream { domain: D }
accounts {
  A {
    jetstream: enabled
    users: [
      {user: any, password: p}
      {user: no_delete, password: p, permissions: {publish: {deny: ["$JS.API.STREAM.DELETE.*", "$KV.b.x"]}}}
      {user: api, password: p, permissions: {publish: ["$JS.API.>"]}}
      {user: domain, password: p, permissions: {publish: ["$JS.D.API.>"]}}
    ]
  }
}
""",
    (("any", "A"),),
)

USER_RULES = Setup(_CONFIG, (("any", "A"), ("m", "M")))
