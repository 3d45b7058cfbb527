"""Scenarios of the JetStream limits of an account.

Streams, consumers, reservations, storage, and the order of refusals.
"""

from __future__ import annotations

import itertools
from typing import Any

from tests.conformance.accounts import ACCOUNTS
from tests.conformance.harness import Script, configured, table

STORAGES = ("memory", "file")
SECOND = 1_000_000_000


def _config(name: str, storage: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "subjects": [name.lower()], "storage": storage, **more}


def _account(t: Script) -> None:
    """Record INFO without the counters over the server's whole life."""
    answer = t.wire.api("INFO")
    answer.pop("api", None)
    t.note("INFO", answer)


@table([(user, user) for user in ("lim", "full", "nomem", "conn", "a")], ACCOUNTS)
def info_shows_the_limits(t: Script, user: str) -> None:
    _account(t.as_user(user))


# Sizes below, at and above each limit of LIM: for one stream, and for all of them.
_SIZES = (-2, -1, 0, 1, 1000, 2048, 3072, 3073, 4096, 4097, 8192, 8193, 20480, 20481)


@table([(f"{storage}-{size}", storage, size) for storage in STORAGES for size in _SIZES], ACCOUNTS)
def max_bytes_of_a_stream(t: Script, storage: str, size: int) -> None:
    lim = t.as_user("lim")
    lim.api("STREAM.CREATE.S", _config("S", storage, max_bytes=size))
    lim.wire.api("STREAM.DELETE.S")
    lim.setup("STREAM.CREATE.S", _config("S", storage, max_bytes=1000))
    lim.api("STREAM.UPDATE.S", _config("S", storage, max_bytes=size))
    _account(lim)
    lim.wire.api("STREAM.DELETE.S")


@table([(storage, storage) for storage in STORAGES], ACCOUNTS)
def reservations_of_an_account(t: Script, storage: str) -> None:
    lim = t.as_user("lim")
    most = {"memory": 3000, "file": 8000}[storage]
    lim.api("STREAM.CREATE.A", _config("A", storage, max_bytes=most))
    lim.api("STREAM.CREATE.B", _config("B", storage, max_bytes=most))
    lim.api("STREAM.CREATE.C", _config("C", storage, max_bytes=most))
    _account(lim)
    lim.api("STREAM.UPDATE.A", _config("A", storage, max_bytes=most // 2))
    lim.api("STREAM.CREATE.C", _config("C", storage, max_bytes=most // 4))
    lim.api("STREAM.UPDATE.A", _config("A", storage, max_bytes=most))
    lim.api("STREAM.UPDATE.A", _config("A", storage, max_bytes=most // 2, max_msgs=3))
    _account(lim)
    lim.setup("STREAM.DELETE.C")
    lim.api("STREAM.UPDATE.A", _config("A", storage, max_bytes=most))
    _account(lim)


@configured(ACCOUNTS)
def one_storage_leaves_the_other_its_reservations(t: Script) -> None:
    lim = t.as_user("lim")
    lim.api("STREAM.CREATE.M", _config("M", "memory", max_bytes=3000))
    lim.api("STREAM.CREATE.F", _config("F", "file", max_bytes=8000))
    lim.api("STREAM.CREATE.G", _config("G", "file", max_bytes=8000))
    _account(lim)
    lim.api("STREAM.UPDATE.M", _config("M", "file", max_bytes=3000))
    lim.setup("STREAM.DELETE.M")
    lim.api("STREAM.CREATE.H", _config("H", "file", max_bytes=4480))
    lim.api("STREAM.UPDATE.H", _config("H", "file", max_bytes=4481))
    _account(lim)


@table([(storage, storage) for storage in STORAGES], ACCOUNTS)
def a_stream_without_max_bytes_reserves_nothing(t: Script, storage: str) -> None:
    full = t.as_user("full")
    most = {"memory": 2048, "file": 4096}[storage]
    full.api("STREAM.CREATE.A", _config("A", storage))
    full.api("STREAM.CREATE.B", _config("B", storage, max_bytes=most))
    full.api("STREAM.CREATE.C", _config("C", storage))
    full.api("STREAM.CREATE.D", _config("D", storage, max_bytes=1))
    full.api("STREAM.UPDATE.A", _config("A", storage, max_bytes=1))
    full.api("STREAM.UPDATE.A", _config("A", storage, max_msgs=7))
    _account(full)


@configured(ACCOUNTS)
def no_memory_at_all(t: Script) -> None:
    nomem = t.as_user("nomem")
    for size in (-1, 0, 1, 10):
        nomem.api("STREAM.CREATE.M", _config("M", "memory", max_bytes=size))
    nomem.publish("m", b"m")
    nomem.stream("S", ["s"], storage="file")
    nomem.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"name": "c", "mem_storage": True}})
    nomem.publish("s", b"m")


@configured(ACCOUNTS)
def max_streams(t: Script) -> None:
    lim = t.as_user("lim")
    for n in range(4):
        lim.api(f"STREAM.CREATE.S{n}", _config(f"S{n}", "memory", max_bytes=100))
    lim.api("STREAM.CREATE.S1", _config("S1", "memory", max_bytes=100))
    lim.api("STREAM.CREATE.S1", _config("S1", "memory", max_bytes=101))
    lim.api("STREAM.UPDATE.S1", _config("S1", "memory", max_bytes=101))
    lim.setup("STREAM.DELETE.S0")
    lim.api("STREAM.CREATE.S3", _config("S3", "memory", max_bytes=100))
    _account(lim)


@configured(ACCOUNTS)
def limits_of_one_account_are_not_anothers(t: Script) -> None:
    t.as_user("lim").stream("S0", ["x"], max_bytes=100)
    for n in range(5):
        t.stream(f"S{n}", [f"s.{n}"], storage="file")
        for k in range(3):
            t.api(f"CONSUMER.CREATE.S{n}.c{k}", {"stream_name": f"S{n}", "config": {"name": f"c{k}"}})
    _account(t)


# ---- which refusal comes first, for every pair of reasons

_REASONS: dict[str, dict[str, Any]] = {
    "no_max_bytes": {"max_bytes": -1},
    "too_large_a_stream": {"max_bytes": 9000},
    "not_reservable": {"max_bytes": 7000},
    "overlap": {"subjects": ["kept"]},
    "max_consumers": {"max_consumers": 5},
    "replicas": {"num_replicas": 3},
    "invalid": {"retention": "limits", "discard_new_per_subject": True},
    "bad_subject": {"subjects": ["a..b"]},
    "ttl_below": {"max_age": 5},
    "placement": {"placement": {"cluster": "x"}},
}
_PAIRS = [(f"{a}+{b}", a, b) for a, b in itertools.combinations(_REASONS, 2)] + [(a, a, a) for a in _REASONS]


@table(_PAIRS, ACCOUNTS)
def the_first_refusal(t: Script, first: str, second: str) -> None:
    lim = t.as_user("lim")
    lim.stream("KEPT", ["kept"], storage="file", max_bytes=8000)
    lim.stream("KEPT2", ["kept2"], storage="file", max_bytes=6000)
    reasons = {"max_bytes": 100} | _REASONS[first] | _REASONS[second]
    lim.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "file"} | reasons)
    lim.wire.api("STREAM.DELETE.S")
    lim.setup("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "file", "max_bytes": 100})
    lim.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "storage": "file"} | reasons)
    lim.api("STREAM.CREATE.T", {"name": "T", "subjects": ["t"], "storage": "file"} | reasons)  # one stream too many
    lim.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "file"} | reasons)


# ---- consumers


@configured(ACCOUNTS)
def max_consumers_is_of_each_stream(t: Script) -> None:
    lim = t.as_user("lim")
    for stream in ("A", "B"):
        lim.stream(stream, [stream.lower()], max_bytes=1000)
        for name in ("c1", "c2", "c3", "c1"):
            lim.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": {"name": name}})
    lim.api("CONSUMER.DELETE.A.c1")
    lim.api("CONSUMER.CREATE.A.c3", {"stream_name": "A", "config": {"name": "c3"}})
    lim.api("CONSUMER.CREATE.A.c3", {"stream_name": "A", "config": {"name": "c3", "description": "changed"}})
    _account(lim)


@table([(str(most), most) for most in (-1, 0, 1, 2, 3)], ACCOUNTS)
def max_consumers_of_a_stream_and_of_the_account(t: Script, most: int) -> None:
    lim = t.as_user("lim")
    lim.api("STREAM.CREATE.S", _config("S", "memory", max_bytes=1000, max_consumers=most))
    for name in ("c1", "c2", "c3"):
        lim.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": {"name": name}})


# Each row: a consumer's fields.
@table(
    [
        ("default", {"ack_policy": "explicit"}),
        ("default_all", {"ack_policy": "all"}),
        ("default_none", {"ack_policy": "none"}),
        ("below", {"ack_policy": "explicit", "max_ack_pending": 49}),
        ("at", {"ack_policy": "explicit", "max_ack_pending": 50}),
        ("above", {"ack_policy": "explicit", "max_ack_pending": 51}),
        ("above_without_acks", {"ack_policy": "none", "max_ack_pending": 51}),
        ("unlimited", {"ack_policy": "explicit", "max_ack_pending": -1}),
        ("push", {"ack_policy": "explicit", "deliver_subject": "d"}),
    ],
    ACCOUNTS,
)
def max_ack_pending_of_an_account(t: Script, fields: dict[str, Any]) -> None:
    lim = t.as_user("lim")
    lim.stream("S", ["s"], max_bytes=1000)
    lim.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"name": "c", "durable_name": "c"} | fields})
    lim.wire.api("CONSUMER.DELETE.S.c")
    lim.consumer("S", "c", max_ack_pending=10)
    lim.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"durable_name": "c"} | fields})


# ---- stored bytes


@table(
    [
        (f"{storage}-{name}", storage, config)
        for storage in STORAGES
        for name, config in (
            ("old", {}),
            ("new", {"discard": "new"}),
            ("max_msgs", {"max_msgs": 2}),
            ("max_msgs_new", {"max_msgs": 2, "discard": "new"}),
            ("max_bytes", {"max_bytes": 1500}),
            ("per_subject", {"max_msgs_per_subject": 1}),
        )
    ],
    ACCOUNTS,
)
def publishing_beyond_what_an_account_may_store(t: Script, storage: str, config: dict[str, Any]) -> None:
    full = t.as_user("full")
    full.stream("S", ["s"], storage=storage, **config)
    full.stream("T", ["t"], storage=storage)
    for _ in range(8):
        full.publish("s", b"x" * 600)
    full.publish("t", b"x" * 600)
    full.publish("t", b"x")
    full.publish("t", b"y" * 5000)
    full.state("S")
    full.state("T")
    _account(full)
    t.stream("S", ["s"], storage=storage)
    t.publish("s", b"x" * 5000)  # another account has room


@table([(storage, storage) for storage in STORAGES], ACCOUNTS)
def room_again_after(t: Script, storage: str) -> None:
    full = t.as_user("full")
    full.stream("S", ["s"], storage=storage)
    full.stream("T", ["t"], storage=storage)
    size = {"memory": 900, "file": 1900}[storage]
    for _ in range(3):
        full.publish("s", b"x" * size)
    full.setup("STREAM.MSG.DELETE.S", {"seq": 1})
    full.publish("t", b"x" * size)
    full.publish("t", b"x" * size)
    full.setup("STREAM.PURGE.S")
    full.publish("t", b"x" * size)
    full.publish("t", b"x" * size)
    full.setup("STREAM.DELETE.T")
    full.publish("s", b"x" * size)
    _account(full)


@configured(ACCOUNTS)
def one_storage_does_not_fill_the_other(t: Script) -> None:
    full = t.as_user("full")
    full.stream("M", ["m"], storage="memory")
    full.stream("F", ["f"], storage="file")
    for _ in range(4):
        full.publish("m", b"x" * 900)
    full.publish("f", b"x" * 900)
    _account(full)


@table([(storage, storage) for storage in STORAGES], ACCOUNTS)
def what_is_refused_before_and_after_the_accounts_room(t: Script, storage: str) -> None:
    full = t.as_user("full")
    full.stream("S", ["s.>"], storage=storage, max_msg_size=1000, allow_rollup_hdrs=True, deny_delete=False)
    size = {"memory": 600, "file": 900}[storage]
    for n in range(6):
        full.publish(f"s.{n}", b"x" * size, {"Nats-Msg-Id": f"i{n}"})
    full.publish("s.0", b"x" * size, {"Nats-Msg-Id": "i0"})
    full.publish("s.0", b"x" * 1001)
    full.publish("s.0", b"x" * size, {"Nats-Expected-Last-Sequence": "77"})
    full.publish("s.0", b"x" * size, {"Nats-Expected-Stream": "T"})
    full.publish("s.0", b"x" * size, {"Nats-Rollup": "all"})
    full.publish("s.0", b"x" * size, {"Nats-Rollup": "bad"})
    full.publish("s.9", b"x" * size, {"Nats-Msg-Id": "i9"})
    full.setup("STREAM.PURGE.S")
    full.publish("s.9", b"x" * size, {"Nats-Msg-Id": "i9"})  # a refused message does not enter the duplicate window
    full.state("S")


@configured(ACCOUNTS)
def consumers_of_a_full_account_go_on(t: Script) -> None:
    full = t.as_user("full")
    full.stream("S", ["s"], retention="workqueue")
    for _ in range(4):
        full.publish("s", b"x" * 800)
    full.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}})
    frames = full.pull("S", "c", {"batch": 2}, 2)
    for frame in frames:
        full.ack(frame)
    full.publish("s", b"x" * 800)
    full.state("S")


@configured(ACCOUNTS)
def restoring_beyond_the_limits(t: Script) -> None:
    lim = t.as_user("lim")
    config = {"name": "S", "subjects": ["s"], "storage": "file", "retention": "limits", "num_replicas": 1}
    state = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0}
    for fields in ({"max_bytes": -1}, {"max_bytes": 9000}, {"max_bytes": 8000, "max_consumers": 9}):
        lim.api("STREAM.RESTORE.S", {"config": config | fields, "state": state})
    for n in range(3):
        lim.stream(f"K{n}", [f"k.{n}"], max_bytes=10)
    lim.api("STREAM.RESTORE.S", {"config": config | {"max_bytes": 100}, "state": state})
