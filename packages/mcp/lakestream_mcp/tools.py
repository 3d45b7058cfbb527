"""The tools that read.

Belongs here: the functions that an assistant calls; their docstrings and the texts of their arguments are what it knows
of them. Each returns JSON.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from pydantic import Field

from lakestream.lake.table.schema import split_headers
from lakestream.protocol import gotime
from lakestream.protocol.schema_api import PREFIX as SCHEMAS
from lakestream_client import DirectGetDisabled, Message, QueryFailed
from lakestream_mcp import shown
from lakestream_mcp.link import LISTED, NO_MESSAGE, Link, ToolFailed, checked_key, checked_name, checked_subject
from lakestream_mcp.shown import MAX_MESSAGE_BYTES, MESSAGE_BYTES

MAX_MESSAGES = 100
"""Maximum number of messages, or of values of a key, in one answer."""
MAX_ROWS = 1000
"""Maximum for the argument `max_rows`."""
MAX_SECONDS = 120.0
"""Maximum for the argument `max_seconds`."""
FORBIDDEN = 403

Stream = Annotated[str, Field(description="Name of the stream, as in list_streams.")]
BucketName = Annotated[str, Field(description="Name of the key-value bucket, as in list_buckets.")]
Key = Annotated[str, Field(description="The key.")]
AsOfTime = Annotated[
    str, Field(description="A time, such as 2026-05-01 12:00:00 (UTC) or 2026-05-01T12:00:00+02:00; empty: now.")
]
Exact = Annotated[
    bool, Field(description="With as_of: fail if the stream does not record removals; false: read what is left.")
]
MaxBytes = Annotated[int, Field(ge=1, le=MAX_MESSAGE_BYTES, description="Bytes of a payload; the rest is cut off.")]
Count = Annotated[int, Field(ge=1, le=MAX_MESSAGES, description="Maximum number of results.")]
Filter = Annotated[str, Field(description="A subject, or a filter such as orders.> or orders.*.new.")]
Engine = Literal["duckdb", "spark"]


class ReadingTools:
    """The tools that read, over one connection."""

    def __init__(self, link: Link) -> None:
        self._link = link

    # ------------------------------------------------------------------ streams
    async def list_streams(self, subject: Filter = "") -> str:
        """List the streams, or those that capture a subject: messages, sizes, last times. Buckets: list_buckets."""
        only = {"subject": checked_subject(subject)} if subject else {}
        listed, total = await self._link.listed("$JS.API.STREAM.LIST", "streams", **only)
        found = [shown.stream(each) for each in listed if not each["config"]["name"].startswith(("KV_", "OBJ_"))]
        return shown.compact({"streams": found, **_left_out(listed, total)})

    async def describe_stream(self, stream: Stream) -> str:
        """Describe a stream: settings (times in ns), state, metadata. As a table: describe_table."""
        found = await self._link.stream(stream)
        more = {key: found[key] for key in ("created", "mirror", "sources") if key in found}
        settings = {key: value for key, value in found["config"].items() if value not in (None, "", -1, 0, {}, [])}
        return shown.compact({**shown.stream(found), **more, "settings": settings})

    async def list_consumers(self, stream: Stream) -> str:
        """List the consumers of a stream with their lag: messages not delivered yet (`pending`), and not acked yet."""
        await self._link.stream(stream)
        listed, total = await self._link.listed(f"$JS.API.CONSUMER.LIST.{stream}", "consumers")
        return shown.compact({"consumers": [shown.consumer(each) for each in listed], **_left_out(listed, total)})

    async def last_message(
        self,
        stream: Stream,
        subject: Filter = ">",
        as_of: AsOfTime = "",
        exact: Exact = True,
        max_bytes: MaxBytes = MESSAGE_BYTES,
    ) -> str:
        """Read the last message of a subject, as it is, or as it was at a time."""
        found = await self._last(stream, checked_subject(subject), as_of, exact)
        return shown.compact(shown.message(found, max_bytes))

    async def read_messages(
        self,
        stream: Stream,
        seq: Annotated[int, Field(ge=1, description="Read from this sequence on.")] = 1,
        subject: Filter = ">",
        limit: Count = 10,
        max_bytes: MaxBytes = MESSAGE_BYTES,
    ) -> str:
        """Read messages in the order of their sequences. `next_seq`: there may be more from this sequence on."""
        await self._link.stream(stream)
        checked_subject(subject)
        found, size = list[dict[str, Any]](), 0
        async for one in self._after(stream, subject, seq):
            found.append(shown.message(one, max_bytes))
            size += min(len(one.data), max_bytes)
            if len(found) == limit or size >= shown.RESULT_BYTES:
                return shown.compact({"messages": found, "next_seq": one.seq + 1})
        return shown.compact({"messages": found})

    async def _after(self, stream: str, subject: str, seq: int) -> AsyncIterator[Message]:
        """Yield the messages of a subject from a sequence on. Any stream allows this, other than direct gets."""
        try:
            while True:
                message = await self._message(stream, {"seq": seq, "next_by_subj": subject})
                yield message
                seq = message.seq + 1
        except ToolFailed as error:
            if error.code != NO_MESSAGE:
                raise

    async def _last(self, stream: str, subject: str, as_of: str, exact: bool) -> Message:
        checked_name("stream", stream)
        if as_of:
            return await self._link.client.as_of(stream, as_of, exact=exact).get(subject)
        return await self._message(stream, {"last_by_subj": subject})

    async def _message(self, stream: str, which: dict[str, Any]) -> Message:
        try:
            found = (await self._link.request(f"$JS.API.STREAM.MSG.GET.{stream}", which))["message"]
        except ToolFailed as error:
            await self._link.stream(stream)  # if there is no such stream, it says so
            if error.code != NO_MESSAGE:
                raise
            bucket = f"bucket {stream[3:]} has no such key: kv_keys lists them"
            text = f"stream {stream} has no such message: describe_stream shows its sequences and subjects"
            raise ToolFailed(bucket if stream.startswith("KV_") else text, NO_MESSAGE) from None
        block, data = (base64.b64decode(found.get(field, "")) for field in ("hdrs", "data"))
        headers = dict(split_headers(block)[0]) if block else None
        return Message(found["subject"], found["seq"], gotime.time_ns(found["time"]), headers, data)

    # ------------------------------------------------------------------ buckets
    async def list_buckets(self) -> str:
        """List the key-value buckets and object stores with their sizes, numbers of values, history and last times."""
        listed, total = await self._link.listed("$JS.API.STREAM.LIST", "streams")
        found: dict[str, list[Any]] = {"KV": [], "OBJ": []}
        for each in listed:
            kind, _, name = each["config"]["name"].partition("_")
            if name and kind in found:
                found[kind].append(
                    {**shown.stream(each), "name": name, "history": each["config"]["max_msgs_per_subject"]}
                )
        return shown.compact({"key_value": found["KV"], "object_stores": found["OBJ"], **_left_out(listed, total)})

    async def kv_keys(self, bucket: BucketName, filter: Filter = ">") -> str:
        """List the keys of a bucket, sorted; with those that are deleted but have a history."""
        prefix = f"$KV.{checked_name('bucket', bucket)}."
        found = await self._link.stream(f"KV_{bucket}", subjects_filter=prefix + checked_subject(filter))
        keys = sorted(subject.removeprefix(prefix) for subject in found["state"].get("subjects") or {})
        return shown.compact({"keys": keys[:LISTED], **_left_out(keys[:LISTED], max(len(keys), found.get("total", 0)))})

    async def kv_get(
        self,
        bucket: BucketName,
        key: Key,
        as_of: AsOfTime = "",
        exact: Exact = True,
        max_bytes: MaxBytes = MESSAGE_BYTES,
    ) -> str:
        """Read the value of a key, as it is, or as it was at a time."""
        found = await self._last(f"KV_{bucket}", f"$KV.{bucket}.{checked_key(key)}", as_of, exact)
        if (entry := shown.revision(found, max_bytes))["operation"] != "PUT":
            raise ToolFailed(f"key {key} of bucket {bucket} is deleted: kv_history shows its earlier values")
        return shown.compact(entry)

    async def kv_history(
        self, bucket: BucketName, key: Key, limit: Count = 10, max_bytes: MaxBytes = MESSAGE_BYTES
    ) -> str:
        """Read the values that a key had, the newest first, deletions included: those that are kept or recorded."""
        stream, subject = f"KV_{bucket}", f"$KV.{bucket}.{checked_key(key)}"
        await self._link.stream(stream)
        try:
            found = [each async for each in self._link.client.history(stream, subject, limit=limit)]
        except DirectGetDisabled:  # then only what the bucket keeps: at most 64 values
            found = [each async for each in self._after(stream, subject, 1)][-limit:][::-1]
        return shown.compact({"revisions": [shown.revision(each, max_bytes) for each in found]})

    # ------------------------------------------------------------------ schemas
    async def list_schemas(self) -> str:
        """List the registered schemas of payloads: names, formats and versions."""
        found, total = await self._link.listed(f"{SCHEMAS}LIST", "schemas")
        return shown.compact({"schemas": found, **_left_out(found, total)})

    async def describe_schema(
        self,
        name: Annotated[str, Field(description="Name of the schema.")],
        version: Annotated[int, Field(ge=0, description="A version; 0: the latest.")] = 0,
    ) -> str:
        """Return the text of a schema."""
        which = checked_name("schema", name) + (f"@{version}" if version else "")
        found = await self._link.request(f"{SCHEMAS}GET.{which}")
        return shown.compact({**found, **shown.payload(found["text"].encode(), MAX_MESSAGE_BYTES, "text")})

    # ------------------------------------------------------------------ SQL
    async def list_tables(self) -> str:
        """List the SQL tables: version, last sequence in the table, and `tail`, the messages that are not in it yet. A
        stream is a table also before it is listed here: its first messages may wait in the server."""
        listed = await self._rows("SHOW TABLES", MAX_ROWS)
        tables = [{**each, "table": shown.table(each["table"])} for each in listed["rows"]]
        return shown.compact({"tables": tables, "truncated": listed["truncated"]})

    async def describe_table(
        self, table: Annotated[str, Field(description='As in list_tables, such as ORDERS, kv.prices or "my-orders".')]
    ) -> str:
        """Describe a SQL table: its columns, its version, and `tail`, the messages that are not in it yet."""
        columns = await self._rows(f"DESCRIBE {table}", MAX_ROWS)
        listed = await self._rows("SHOW TABLES", MAX_ROWS)
        state = [each for each in listed["rows"] if shown.table(each["table"]).lower() == table.lower()]
        found = {each["column_name"]: each["column_type"] for each in columns["rows"]}
        return shown.compact({**(state[0] if state else {}), "table": table, "columns": found})

    async def query(
        self,
        sql: Annotated[str, Field(description="One statement that reads.")],
        engine: Annotated[
            Engine, Field(description="Whose SQL. duckdb reads up to the last message, spark committed tables.")
        ] = "duckdb",
        max_rows: Annotated[int, Field(ge=1, le=MAX_ROWS, description="Rows that are wanted.")] = 100,
        max_seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS, description="The query ends after this time.")] = 30,
        stream: Annotated[str, Field(description="The only stream that it reads, if the user may read no other.")] = "",
    ) -> str:
        """Run a query. A stream ORDERS is the table ORDERS with the columns subject, seq, time, headers, data, json
        (the payload: json->>'price'); buckets are kv.NAME and kv_history.NAME. `FROM as_of(ORDERS, '2026-05-01 12:00')`
        is the stream as it was at a time. In rows, binary is base64, and long texts are cut."""
        return shown.compact(
            await self._rows(sql, max_rows, max_seconds, engine, stream and checked_name("stream", stream))
        )

    async def _rows(
        self, sql: str, max_rows: int, max_seconds: float = MAX_SECONDS, engine: Engine = "duckdb", stream: str = ""
    ) -> dict[str, Any]:
        """Return columns and rows of a query. Raises ToolFailed, QueryFailed."""
        ask, rows = self._link.client.sql, shown.Rows()
        try:
            async with asyncio.timeout(max_seconds):
                answer = await ask(sql, max_rows=max_rows, format="json", engine=engine, stream=stream)
                try:
                    async for body in answer.bodies():
                        if not rows.add(body):
                            break
                finally:
                    await answer.cancel()
        except TimeoutError:
            raise ToolFailed(
                f"the query took longer than {max_seconds:g} s and was ended: read less, or raise max_seconds (at most "
                f"{MAX_SECONDS:g})"
            ) from None
        except QueryFailed as error:
            if error.code != FORBIDDEN or "Permissions Violation" not in str(error):
                raise
            raise ToolFailed(
                f"this user may not ask SQL ({error}): have the permission granted, or name in `stream` the one stream "
                "that the user may read"
            ) from None
        return {"columns": answer.columns, "rows": rows.found, "truncated": answer.truncated or rows.full}


def _left_out(found: list[Any], total: int) -> dict[str, int]:
    """Return the number of items that a list leaves out, if any."""
    return {"left_out": total - len(found)} if total > len(found) else {}
