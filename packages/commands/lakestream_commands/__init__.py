"""Commands for the users and operators of a server.

Belongs here: what talks to a running server, or examines the machine of one, and prints. Commands that start or check
a server's own files (`serve`, `up`, `config`, `verify`, `repair`) are lakestream's.

In reading order:

- `nats/`: Commands of a NATS client: messages, streams, consumers, buckets and objects of any server with JetStream.
- `checks.py`: Checks of a machine and a configuration, for `lakestream doctor`.
- `doctor.py`: `lakestream doctor`: what is wrong with a machine or a configuration, and what to do.
- `monitor.py`: A running server as its monitoring pages show it, for commands.
- `restore.py`: `lakestream restore`: restore a stream from the lake; `lakestream schema restore`: the schemas of an
  account.
- `schema.py`: `lakestream schema`: the schema registry of an account.
- `status.py`: `lakestream status`: a server on one screen.
- `top.py`: `lakestream top`: connections, streams and consumers of a running server, live.
- `schema_file.py`: `lakestream schema test`: checks of a schema's file without a server, for CI.
- `infer.py`: Proposal of a JSON Schema from a sample of payloads.
"""
