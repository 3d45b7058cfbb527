"""The Python client: NATS with the past of streams, and streams as Arrow, Polars and pandas data.

Belongs here: what programs use. nats-py does the messaging; this adds what lakestream has beyond it. All but earlier
states that were recorded and the lake also works with nats-server. docs/python-client.md shows it by tasks.

    from lakestream_client import connect

    async with await connect("nats://127.0.0.1:4222") as client:
        table = await client.to_arrow("ORDERS", ["seq", "data"], subject="orders.de")

`lakestream_client.sync` has the same for programs without an event loop.

In reading order:

- `errors.py`: Errors of the client.
- `messages.py`: Messages as the client returns them, and their form as Arrow data.
- `client.py`: The client.
- `direct_get.py`: Direct gets: stored messages by request, from any JetStream server.
- `consumer.py`: Reading a stream that does not allow direct gets, through a consumer.
- `lake/`: Streams of a lake as they are and were, read from its files.
- `scan.py`: Reading a stream as Arrow data.
- `past.py`: A stream as it was.
- `bucket.py`: Key-value buckets as they were.
- `sql.py`: SQL over NATS: a query and its result.
- `sync.py`: The client for callers without an event loop.
- `gateway.py`: Logins of gateways: programs on the server's machine that connect as each of their users.
- `http_users.py`: Users of a program with an HTTP port, which are those of the NATS server.
- `listening.py`: Listeners of gateways over HTTP: their options, TLS, connections, and their end.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakestream_client.bucket import Bucket, BucketAt, Entry
    from lakestream_client.client import Client, connect
    from lakestream_client.errors import (
        BadFilter,
        CannotConnect,
        ClientError,
        DirectGetDisabled,
        LakeNotReachable,
        MissingPackage,
        NoAnswer,
        NoJetStream,
        NoSuchKey,
        NoSuchMessage,
        NoSuchStream,
        NoTimeTravel,
        PastUnavailable,
        QueryFailed,
        ReadFailed,
        Refused,
        TooManySubjects,
    )
    from lakestream_client.messages import Message
    from lakestream_client.past import AsOf
    from lakestream_client.scan import Filters
    from lakestream_client.sql import Answer

__all__ = [
    "Answer",
    "AsOf",
    "BadFilter",
    "Bucket",
    "BucketAt",
    "CannotConnect",
    "Client",
    "ClientError",
    "DirectGetDisabled",
    "Entry",
    "Filters",
    "LakeNotReachable",
    "Message",
    "MissingPackage",
    "NoAnswer",
    "NoJetStream",
    "NoSuchKey",
    "NoSuchMessage",
    "NoSuchStream",
    "NoTimeTravel",
    "PastUnavailable",
    "QueryFailed",
    "ReadFailed",
    "Refused",
    "TooManySubjects",
    "connect",
]

_MODULES = {
    "Answer": "sql",
    "AsOf": "past",
    "Bucket": "bucket",
    "BucketAt": "bucket",
    "Client": "client",
    "Entry": "bucket",
    "Filters": "scan",
    "Message": "messages",
    "connect": "client",
}
"""Modules of the names, which are loaded with the first use: SQL needs `lake` alone. The others are errors."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
