"""The assembly of a server from its parts.

Belongs here: construction, start, reload and stop of a node, and the connection between JetStream and the lake
(lake/).

In reading order:

- `node.py`: One running server.
- `jetstream.py`: JetStream of all accounts of a server.
- `listeners.py`: The listeners of a server.
- `websocket.py`: The listener for WebSocket.
- `logins.py`: The checks of credentials of one server.
- `reloading.py`: The effect of a reload on accounts and clients.
- `machine.py`: The computer that a server runs on.
- `lake/`: The server's side of the lake.
- `workers/`: A server of several processes: its supervisor, the part of each worker, and the directories of their
  streams.
- `verification.py`: Verification of streams while the server runs, on request.
- `temporary_links.py`: Temporary links to remote servers, for `lakestream move`.
- `heap.py`: The memory of the process.
- `early_signals.py`: Signals while a server starts.
- `stalls.py`: Stalls of the event loop: for how long everybody waited, and for which step.
"""
