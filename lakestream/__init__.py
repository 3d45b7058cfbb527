"""lakestream: a NATS JetStream server that keeps every stream as a Delta table.

Belongs here: the parts, a folder each, and single modules that several parts share. Each folder's docstring states its
rule and lists what is in it. Imports point in one direction: the contracts of import-linter in pyproject.toml are the
list of who may import whom, and `make lint` checks them. ARCHITECTURE.md shows how the parts work together.

In reading order:

- `ports.py`: Interfaces through which JetStream reaches other parts.
- `protocol/`: Bytes and texts of the protocols.
- `native/`: Loops over many messages: parse, encode, split and frame a whole run of them in one call. Also over
  objects, files.
- `schemas/`: Schemas of payloads: registered definitions, and the typed columns that follow from them.
- `metrics/`: Metrics of a process, in Prometheus' terms.
- `log/`: The log of one stream: segments, frames, recovery, and the indexes over what they hold.
- `raft/`: Agreement on one order of entries.
- `stream/`: Streams: everything that one stream does on one node.
- `meta/`: Assignments of streams to nodes, and this node's replicas.
- `account/`: JetStream for the clients of one account.
- `lake/`: The lake: streams as Delta tables.
- `client/`: The Python client, by the name that programs know: NATS with the past of streams, and streams as tables.
- `config/`: The configuration of a server: nats.conf and flags.
- `net/`: Connections and the routing of messages between them.
- `ops/`: Observation of a running server.
- `server/`: The assembly of a server from its parts.
- `cli/`: Commands.
- `runtime.py`: Time and threads of a running server.
- `logging.py`: Log lines as nats-server writes them.
- `syslog.py`: Log lines for a syslog daemon, as nats-server sends them.
- `ended.py`: Objects that have ended, for the interpreter's collector of cycles.
- `extras.py`: Optional packages: the modules that each extra of lakestream installs, and the error for a missing one.
- `spans.py`: Spans of published messages, for OpenTelemetry.
- `spark.py`: Spark over the streams of a lake.
- `__main__.py`: `python -m lakestream`: the command `lakestream`, for environments whose programs are not on PATH.
- `http/`: HTTP/1.1 of every listener but that for WebSocket, around h11.
- `lazy_modules.py`: Modules that are loaded when they are first used.
- `loop_thread.py`: An event loop in a thread of its own, for synchronous callers of asynchronous code.
"""

__version__ = "0.1.0"
