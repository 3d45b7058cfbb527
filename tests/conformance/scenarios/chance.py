"""Scenarios of random operations by seed, with the whole stream compared after each (docs/internals/streams.md)."""

from __future__ import annotations

import random

from tests.chance import SUBJECTS, Chance, Delete, Publish, Purge, Step, Update
from tests.conformance.harness import Script, table

STEPS = 40


@table([(f"{storage}-{seed}", storage, seed) for storage in ("memory", "file") for seed in range(1, 41)])
def operations(t: Script, storage: str, seed: int) -> None:
    name = f"S-{storage}-{seed}"  # nats-server sometimes fails to create a file stream again under the same name
    chance = Chance(random.Random(seed), counter=seed % 5 == 0, name=name)
    fixed: dict[str, object] = {"name": name, "subjects": ["a.>"], "storage": storage}
    t.api(f"STREAM.CREATE.{name}", fixed | chance.config)
    play(t, fixed, chance, chance.first())  # a new file store of nats-server reports message 0 as lost
    for _ in range(STEPS):
        play(t, fixed, chance, chance.step())
        t.state(name, subjects_filter=">", deleted_details=True)


def play(t: Script, fixed: dict[str, object], chance: Chance, step: Step) -> None:
    """Play one operation."""
    name = fixed["name"]
    match step:
        case Publish():
            t.publish(step.subject, step.data, step.headers or None)
        case Delete():
            t.api(f"STREAM.MSG.DELETE.{name}", {"seq": step.seq})
        case Purge():
            asked = {"filter": step.filter, "seq": step.seq, "keep": step.keep}
            t.api(f"STREAM.PURGE.{name}", {key: value for key, value in asked.items() if value})
        case Update():
            t.api(f"STREAM.UPDATE.{name}", fixed | chance.config)


CONSUMERS = {"C1": "a.1", "C2": "a.>", "C3": "a.x.*"}
QUEUES = {"C1": "a.1", "C2": "a.2", "C3": "a.x.*"}  # filters of a work queue's consumers must not overlap
RETAINED_STEPS = 30


@table([(f"{retention}-{seed}", retention, seed) for retention in ("interest", "workqueue") for seed in range(1, 21)])
def retention(t: Script, policy: str, seed: int) -> None:
    rng = random.Random(seed)
    name = f"S-{policy}-{seed}"
    filters = CONSUMERS if policy == "interest" else QUEUES
    fixed = {"name": name, "subjects": ["a.>"], "storage": rng.choice(("memory", "file")), "num_replicas": 1}
    t.setup(f"STREAM.CREATE.{name}", fixed | {"retention": policy})
    consumers: dict[str, str] = {}
    published = 0
    for _ in range(RETAINED_STEPS):
        drawn = rng.random()
        if drawn < 0.4:
            subject = rng.choice(SUBJECTS)
            known = {each: t.known(name, each) for each in consumers}
            t.publish(subject, b"m%d" % published)
            published += 1
            for each, filter in consumers.items():
                t.wait_known(name, each, known[each] + matches(filter, subject))
        elif drawn < 0.7 and consumers:
            consumer = rng.choice(sorted(consumers))
            [frame] = t.pull(name, consumer, {"batch": 1, "no_wait": True}, 1)
            if frame.reply and rng.random() < 0.8:
                t.ack(frame, rng.choice((b"+ACK", b"+ACK", b"+TERM")))
        elif drawn < 0.76:
            t.api(f"STREAM.MSG.DELETE.{name}", {"seq": rng.randint(1, published + 2)})
        elif drawn < 0.79:
            t.api(f"STREAM.PURGE.{name}", {"filter": rng.choice(SUBJECTS), "keep": rng.randint(0, 1)})
        elif drawn < 0.83 and consumers:
            consumer = rng.choice(sorted(consumers))
            del consumers[consumer]
            t.api(f"CONSUMER.DELETE.{name}.{consumer}")
        elif len(consumers) < len(filters):
            consumer = rng.choice(sorted(set(filters) - set(consumers)))
            consumers[consumer] = filters[consumer]
            t.consumer(name, consumer, filter_subject=filters[consumer])
        t.state(name, subjects_filter=">")


def matches(filter: str, subject: str) -> bool:
    """Return True if a filter of this module matches the subject."""
    return filter in (subject, "a.>") or (filter == "a.x.*" and subject.startswith("a.x."))
