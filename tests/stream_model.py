"""Model of a stream, with which tests compare real streams.

Belongs here: limits, publish headers, deletes, purges, expiry and the duplicate window over a dict of messages, without
an index, batches, log or clock. It behaves as nats-server 2.15.1 does: `tests/chaos/test_stream_model.py` plays the
same steps against that.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tests.chance import Delete, Publish, Purge, Step, Update
from tests.wire import header_block

Answer = tuple[str, int]
"""("stored", seq), ("duplicate", seq), ("refused", err_code), ("deleted", 1), ("purged", count) or ("updated", 0)."""


class Message(NamedTuple):
    """A stored message."""

    subject: str
    header: bytes
    data: bytes
    time: int
    deadline: int
    """Time at which the message's TTL expires (ns); 0 without a TTL, -1 for never."""
    size: int


class StreamModel:
    """Stream with `limits` retention.

    Args:
        config: configuration at its creation.
        storage: file or memory, which compute the size of a message differently.
        name: name of the stream.
    """

    def __init__(self, config: dict[str, Any], storage: str = "file", name: str = "S") -> None:
        self.config = dict(config)
        self.storage, self.name = storage, name
        self.msgs: dict[int, Message] = {}
        self.last_seq = 0
        self.first_seq = 0
        """First sequence of an empty stream; otherwise it is that of the first message."""
        self.ids: dict[str, tuple[int, int]] = {}
        """Message id → (sequence, time) in the duplicate window."""
        self.last_id = ""

    def copy(self) -> StreamModel:
        """Return an independent copy."""
        made = StreamModel(self.config, self.storage, self.name)
        made.msgs, made.ids = dict(self.msgs), dict(self.ids)
        made.last_seq, made.first_seq, made.last_id = self.last_seq, self.first_seq, self.last_id
        return made

    # ------------------------------------------------------------------ state
    def state(self) -> dict[str, Any]:
        """Return the state as in STREAM.INFO, without times."""
        first = min(self.msgs, default=self.first_seq)
        seqs = range(first, self.last_seq + 1) if first else ()
        deleted = [seq for seq in seqs if seq not in self.msgs]
        subjects: dict[str, int] = {}
        for message in self.msgs.values():
            subjects[message.subject] = subjects.get(message.subject, 0) + 1
        return {
            "messages": len(self.msgs),
            "bytes": self._bytes(),
            "first_seq": first,
            "last_seq": self.last_seq,
            "deleted": deleted,
            "subjects": subjects,
        }

    def content(self) -> list[tuple[int, str, bytes, bytes]]:
        """Return (seq, subject, header block, data) of every message."""
        return [(seq, each.subject, each.header, each.data) for seq, each in sorted(self.msgs.items())]

    def _bytes(self) -> int:
        return sum(message.size for message in self.msgs.values())

    def _of(self, subject: str) -> list[int]:
        return sorted(seq for seq, message in self.msgs.items() if matches(subject, message.subject))

    # ------------------------------------------------------------------ operations
    def play(self, step: Step, now: int) -> Answer:
        """Apply one operation at `now` (ns); return its answer."""
        match step:
            case Publish():
                return self._publish(step, now)
            case Delete():
                return self._delete(step.seq)
            case Purge():
                return self._purge(step)
            case Update():
                self.config |= step.fields
                self._trim_oldest()
                for subject in {message.subject for message in self.msgs.values()}:
                    self._trim_subject(subject)
                return "updated", 0

    def _publish(self, step: Publish, now: int) -> Answer:
        header = header_block(step.headers) if step.headers else b""
        refused = self._broken_rule(step, header)
        msg_id = step.headers.get("Nats-Msg-Id", "")
        if not refused and msg_id in self.ids:
            seq, when = self.ids[msg_id]
            if now - when < self.config["duplicate_window"]:
                return "duplicate", seq
        expected_id = step.headers.get("Nats-Expected-Last-Msg-Id")
        if not refused and expected_id is not None and expected_id != self.last_id:
            refused = 10070
        if self.config.get("allow_msg_counter") and not refused:
            if "Nats-Incr" not in step.headers:
                return "refused", 10169
            step = step._replace(data=b'{"val":"%d"}' % (self._value(step.subject) + int(step.headers["Nats-Incr"])))
        rollup = step.headers.get("Nats-Rollup", "").lower()
        if not refused and rollup and (not self.config["allow_rollup_hdrs"] or rollup not in ("sub", "all")):
            refused = 10111
        size = self._size(step, header)
        if not refused and self.config["discard"] == "new" and not self._room(step.subject, size, bool(rollup)):
            refused = 10077
        if refused:
            return "refused", refused
        self.last_seq += 1
        seq = self.last_seq
        self.msgs[seq] = Message(step.subject, header, step.data, now, _deadline(step, now), size)
        self.last_id = msg_id
        if msg_id:
            self.ids[msg_id] = (seq, now)
        self._trim_subject(step.subject)
        self._trim_oldest()
        replaced = self._of(step.subject) if rollup == "sub" else list(self.msgs) if rollup else []
        self._remove([earlier for earlier in replaced if earlier < seq])
        return "stored", seq

    def _broken_rule(self, step: Publish, header: bytes) -> int:
        """Return the err_code of the first violated rule among those checked before the duplicate window.

        0 for none.
        """
        headers = step.headers
        increment = headers.get("Nats-Incr")
        if increment is not None and step.data:
            return 10170
        if increment is not None and (not increment.lstrip("+-").isdigit() or "Nats-Rollup" in headers):
            return 10171
        if 0 < self.config["max_msg_size"] < len(header) + len(step.data):
            return 10054
        if headers.get("Nats-Expected-Stream", self.name) != self.name:
            return 10060
        expected = headers.get("Nats-Expected-Last-Subject-Sequence")
        if expected is not None:
            subject = headers.get("Nats-Expected-Last-Subject-Sequence-Subject", step.subject)
            if expected != str(max(self._of(subject), default=0)):
                return 10071
        expected = headers.get("Nats-Expected-Last-Sequence")
        return 10071 if expected is not None and expected != str(self.last_seq) else 0

    def _value(self, subject: str) -> int:
        """Return the present value of a counter."""
        own = self._of(subject)
        return int(json.loads(self.msgs[own[-1]].data)["val"]) if own else 0

    def _size(self, step: Publish, header: bytes) -> int:
        size = len(step.subject) + len(header) + len(step.data)
        if self.storage == "memory":
            return size + 16
        return size + 30 + (4 if header else 0)

    def _room(self, subject: str, size: int, rollup: bool) -> bool:
        """Return True if discard policy `new` accepts a message."""
        config, own = self.config, self._of(subject)
        replaces = 0 < config["max_msgs_per_subject"] <= len(own)
        if replaces and config["discard_new_per_subject"] and not rollup:
            return False
        if not replaces and 0 < config["max_msgs"] <= len(self.msgs):
            return False
        if 0 < config["max_bytes"] < self._bytes() + size:
            return replaces and self.msgs[own[0]].size >= size
        return True

    def _trim_subject(self, subject: str) -> None:
        keep = self.config["max_msgs_per_subject"]
        if keep > 0:
            self._remove([seq for seq in self._of(subject) if self.msgs[seq].subject == subject][:-keep])

    def _trim_oldest(self) -> None:
        config = self.config
        while config["discard"] == "old" and self.msgs:
            if not (0 < config["max_msgs"] < len(self.msgs) or 0 < config["max_bytes"] < self._bytes()):
                break
            self._remove([min(self.msgs)])

    def _remove(self, seqs: list[int]) -> None:
        for seq in seqs:
            del self.msgs[seq]
        if seqs and not self.msgs:
            self.first_seq = self.last_seq + 1

    def _delete(self, seq: int) -> Answer:
        if self.config["deny_delete"] or seq not in self.msgs:
            return "refused", 10057
        self._remove([seq])
        return "deleted", 1

    def _purge(self, step: Purge) -> Answer:
        matching = self._of(step.filter or ">")
        doomed = matching[: max(0, len(matching) - step.keep)] if step.keep else matching
        if step.seq:
            doomed = [seq for seq in doomed if seq < step.seq]
        self._remove(doomed)
        if step.filter in ("", ">") and not step.keep:
            self._moved(step.seq)
        return "purged", len(doomed)

    def _moved(self, seq: int) -> None:
        """Set the first sequence of a stream that a purge has emptied."""
        if not self.msgs:
            self.last_seq = max(self.last_seq, seq - 1)
            self.first_seq = max(self.last_seq + 1, 1)

    def stored_at(self, times: dict[int, int], now: int) -> None:
        """Set the store times of messages that were not stored at once."""
        for seq, message in self.msgs.items():
            late = times[seq] - message.time
            assert message.time <= times[seq] <= now, f"{seq} came at {message.time} and was stored at {times[seq]}"
            deadline = message.deadline + late if message.deadline > 0 else message.deadline
            self.msgs[seq] = message._replace(time=times[seq], deadline=deadline)

    def expire(self, now: int, there: set[int], slack: int) -> None:
        """Remove the expired messages; one that expired within the last `slack` ns only if it is not in `there`."""
        gone = []
        for seq, message in self.msgs.items():
            age = self.config.get("max_age", 0)
            deadlines = [message.deadline] if message.deadline > 0 else []
            if age and message.deadline >= 0:
                deadlines.append(message.time + age)
            due = min(deadlines, default=now + 1)
            if due <= now - slack or (due <= now and seq not in there):
                gone.append(seq)
        self._remove(gone)


def _deadline(step: Publish, now: int) -> int:
    text = step.headers.get("Nats-TTL", "")
    if text == "never":
        return -1
    seconds = 3600 if text == "1h" else int(text.removesuffix("s") or 0)
    return now + seconds * 1_000_000_000 if seconds else 0


def matches(pattern: str, subject: str) -> bool:
    """Return True if the pattern matches the subject."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for number, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > number
        if number >= len(tokens) or token not in ("*", tokens[number]):
            return False
    return len(tokens) == len(wanted)
