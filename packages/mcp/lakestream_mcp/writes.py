"""The tools that publish and put, with `--allow-writes` only.

Belongs here: what an assistant can change: it adds messages and values, and deletes nothing.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lakestream_mcp import shown
from lakestream_mcp.link import Link, ToolFailed, checked_key, checked_name, checked_subject
from lakestream_mcp.tools import BucketName, Key

WRONG_LAST_SEQUENCE = 10071
EXPECTED = "Nats-Expected-Last-Subject-Sequence"


class WritingTools:
    """The tools that write, over one connection."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def publish(
        self,
        subject: Annotated[str, Field(description="A subject that a stream captures, without wildcards.")],
        data: Annotated[str, Field(description="The payload, as text.")],
        headers: Annotated[
            dict[str, str] | None, Field(description="Headers, such as Nats-Msg-Id against duplicates.")
        ] = None,
    ) -> str:
        """Publish a message to a stream, and return the stream and the sequence that it got."""
        # Subjects with $ are requests, which delete streams, say, and the keys of buckets, which kv_put is for.
        if checked_subject(subject, wildcards=False).startswith(("$", "_")):
            raise ToolFailed(f"{subject} is a subject of the system: publish to those of streams; kv_put sets keys")
        for name, text in (headers or {}).items():
            if not name or ":" in name or {"\r", "\n"} & {*name, *text}:
                raise ToolFailed("a header is not valid: a name has no colon, and neither name nor value a line break")
        found = await self._link.request(subject, data.encode(), headers)
        if "seq" not in found:
            raise ToolFailed(f"{subject} is answered, but not by a stream: list_streams shows the subjects of streams")
        return shown.compact(found)

    async def kv_put(
        self,
        bucket: BucketName,
        key: Key,
        value: Annotated[str, Field(description="The value, as text.")],
        revision: Annotated[
            int | None, Field(ge=0, description="Put it only if the key has this revision; 0: only if it has no value.")
        ] = None,
    ) -> str:
        """Put a value, and return its revision."""
        subject = f"$KV.{checked_name('bucket', bucket)}.{checked_key(key)}"
        await self._link.stream(f"KV_{bucket}")
        headers = None if revision is None else {EXPECTED: str(revision)}
        try:
            found = await self._link.request(subject, value.encode(), headers)
        except ToolFailed as error:
            if error.code != WRONG_LAST_SEQUENCE:
                raise
            raise ToolFailed(f"key {key} of bucket {bucket} has another revision: read it again with kv_get") from None
        return shown.compact({"bucket": bucket, "key": key, "revision": found["seq"]})
