"""Messages and results as JSON of bounded size.

Belongs here: the limits of what a tool returns. An assistant pays for each byte that it reads.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from lakestream.protocol.instants import rfc3339
from lakestream_client import Message
from lakestream_client.bucket import MARKER, OPERATION

MESSAGE_BYTES = 4096
"""Default number of bytes of a payload or value that are returned (4 KiB)."""
MAX_MESSAGE_BYTES = 65_536
"""Maximum for the argument `max_bytes` (64 KiB)."""
RESULT_BYTES = 262_144
"""Size at which an answer with several messages or rows ends (256 KiB)."""
MAX_ANSWER_BYTES = 524_288
"""Maximum size of any answer; a larger one is an error (512 KiB)."""


def compact(found: Any) -> str:
    """Return an answer as JSON without blanks."""
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def payload(data: bytes, max_bytes: int, name: str = "data") -> dict[str, Any]:
    """Return the fields of a payload: its first bytes, as text if it is UTF-8, else as base64; its size if cut."""
    some = data[:max_bytes]
    found: dict[str, Any] = {"bytes": len(data), "truncated": True} if len(some) < len(data) else {}
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(some).decode(), **found}
    return {name: text if len(some) == len(data) else some.decode(errors="ignore"), **found}


def message(found: Message, max_bytes: int) -> dict[str, Any]:
    """Return the fields of a message."""
    headers: dict[str, Any] = {"headers": found.headers} if found.headers else {}
    if len(compact(headers)) > MAX_MESSAGE_BYTES:
        headers = {"headers_truncated": True}
    fields = {"subject": found.subject, "seq": found.seq, "time": rfc3339(found.time_ns)}
    return {**fields, **headers, **payload(found.data, max_bytes)}


def revision(found: Message, max_bytes: int) -> dict[str, Any]:
    """Return the fields of a value of a bucket, or of its deletion."""
    operation = found.header(OPERATION) or ("PURGE" if found.header(MARKER) else "PUT")
    value = payload(found.data, max_bytes, "value") if operation == "PUT" else {}
    key = found.subject.split(".", 2)[2]
    return {"key": key, "revision": found.seq, "time": rfc3339(found.time_ns), "operation": operation, **value}


def stream(info: dict[str, Any]) -> dict[str, Any]:
    """Return what lists show of a stream."""
    state = info["state"]
    return {
        "name": info["config"]["name"],
        "subjects": info["config"].get("subjects") or [],
        "messages": state["messages"],
        "bytes": state["bytes"],
        "first_seq": state["first_seq"],
        "last_seq": state["last_seq"],
        "last_time": state["last_ts"],
        "subjects_in_use": state.get("num_subjects", 0),
        "consumers": state["consumer_count"],
    }


def consumer(info: dict[str, Any]) -> dict[str, Any]:
    """Return what lists show of a consumer."""
    config = info["config"]
    return {
        "name": info["name"],
        "filters": config.get("filter_subjects") or [config.get("filter_subject") or ">"],
        "pending": info["num_pending"],
        "waiting_for_ack": info["num_ack_pending"],
        "redelivered": info["num_redelivered"],
        "delivered_seq": info["delivered"]["stream_seq"],
        "acked_seq": info["ack_floor"]["stream_seq"],
        "paused": bool(info.get("paused")),
    }


def table(name: str) -> str:
    """Return the short name of a table that SHOW TABLES lists: ORDERS instead of delta.`streams/ORDERS`."""
    schema, _, rest = name.partition(".")
    if name.startswith("delta.`streams/"):
        schema, rest = "", rest.removeprefix("`streams/")
    rest = rest.strip("`")
    rest = rest if re.fullmatch(r"[A-Za-z_]\w*", rest) else f'"{rest}"'
    return f"{schema}.{rest}" if schema else rest


class Rows:
    """Rows of a result, up to RESULT_BYTES. `full`: there are more."""

    def __init__(self) -> None:
        self.found = list[Any]()
        self.full = False
        self._size = 0

    def add(self, lines: bytes) -> bool:
        """Add rows, a line of JSON each; return False if not all of them are taken."""
        for line in lines.splitlines():
            row = _cut(json.loads(line))
            self._size += len(compact(row).encode())
            if self.found and self._size > RESULT_BYTES:
                self.full = True
                return False
            self.found.append(row)
        return True


def _cut(value: Any) -> Any:
    """Return a value of a row with its texts cut to MESSAGE_BYTES characters."""
    if isinstance(value, str) and len(value) > MESSAGE_BYTES:
        return f"{value[:MESSAGE_BYTES]}… ({len(value)} characters)"
    if isinstance(value, dict):
        return {key: _cut(each) for key, each in value.items()}
    return [_cut(each) for each in value] if isinstance(value, list) else value
