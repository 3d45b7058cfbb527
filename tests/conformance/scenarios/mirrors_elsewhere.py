"""Scenarios of mirrors and sources whose origin is in another account, reached by a prefix.

See docs/internals/streams.md#mirrors-and-sources.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, configured
from tests.conformance.origins import came, connected, holds, info_when, messages, origins, publish, shown
from tests.pairs import Setup

TWO = Setup(
    """\
accounts {
  HAS {
    users: [{user: has, password: p}], jetstream: enabled
    exports: [
      {service: "$JS.API.CONSUMER.>"}, {service: "$JS.FC.>"}, {stream: "to.>"}
      {service: "$JS.API.STREAM.INFO.>"}
    ]
  }
  GETS {
    users: [{user: gets, password: p}], jetstream: enabled
    imports: [
      {service: {account: HAS, subject: "$JS.API.CONSUMER.>"}, to: "far.api.CONSUMER.>"}
      {service: {account: HAS, subject: "$JS.FC.>"}}
      {stream: {account: HAS, subject: "to.>"}}
    ]
  }
}
""",
    (("gets", "GETS"), ("has", "HAS")),
)
FAR = {"name": "O", "external": {"api": "far.api", "deliver": "to.gets"}}


def _origin(t: Script, **config: Any) -> Script:
    """Return the script of the account that has the origin."""
    there = t.as_user("has")
    there.stream("O", ["o.*"], **config)
    return there


@configured(TWO)
def a_mirror_of_another_account(t: Script) -> None:
    there = _origin(t)
    publish(there, ["o.1", "o.2"])
    t.stream("M", mirror=FAR)
    holds(t, "M", 2)
    publish(there, ["o.3"])
    holds(t, "M", 3, "then")
    there.api("CONSUMER.NAMES.O")


@configured(TWO)
def a_filtered_mirror_of_another_account(t: Script) -> None:
    there = _origin(t)
    t.stream("M", mirror={**FAR, "filter_subject": "o.2", "opt_start_seq": 2})
    connected(t, "M")
    publish(there, ["o.2", "o.1", "o.2"])
    holds(t, "M", 3)


@configured(TWO)
def a_source_in_another_account(t: Script) -> None:
    there = _origin(t)
    t.stream("S", ["s.*"], sources=[FAR])
    connected(t, "S")
    publish(there, ["o.1"])
    came(t, "S", 1)
    publish(t, ["s.1"])
    publish(there, ["o.2"])
    holds(t, "S", 3)


@configured(TWO)
def a_work_queue_in_another_account(t: Script) -> None:
    there = _origin(t, retention="workqueue")
    publish(there, ["o.1", "o.2"])
    t.stream("S", sources=[FAR])
    holds(t, "S", 2)
    there.state_when("O", lambda state: state["messages"] == 0)
    publish(there, ["o.3"])
    holds(t, "S", 3, "then")
    there.state_when("O", lambda state: state["messages"] == 0)


@configured(TWO)
def streams_of_one_name_in_two_accounts(t: Script) -> None:
    there = _origin(t)
    t.stream("O", ["o.*"])
    t.stream("S", sources=[FAR, {"name": "O"}])
    connected(t, "S")
    publish(there, ["o.there"])
    came(t, "S", 1)
    publish(t, ["o.here"])
    came(t, "S", 2)
    messages(t, "S")


@configured(TWO)
def what_is_not_exported(t: Script) -> None:
    """The origin's own prefix is not reachable from the importing account."""
    _origin(t)
    t.stream("M", mirror={"name": "O", "external": {"api": "$JS.HAS.API", "deliver": "to.gets"}})
    shown(t, "M")


@configured(TWO)
def no_such_stream_there(t: Script) -> None:
    t.stream("M", mirror={**FAR, "name": "NONE"})
    info_when(t, "M", lambda info: "error" in origins(info)[0])
    shown(t, "M")
