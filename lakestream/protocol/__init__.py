"""Bytes and texts of the protocols.

Belongs here: NATS commands, headers and subjects, the JSON of the API, times, and what nodes send each other.

In reading order:

- `commands.py`: Commands of a client, as records.
- `publishes.py`: Publishes in columns.
- `deliveries.py`: Deliveries in columns.
- `client.py`: The sender of a message.
- `parser.py`: The parser of client protocol.
- `frames.py`: Frames of the NATS protocol, as bytes.
- `headers.py`: Header blocks as raw bytes.
- `subjects.py`: Subjects and filters: validity and matching.
- `transforms.py`: Subject transforms: from a subject that matches a source filter to the subject of a destination.
- `api/`: Requests and replies of the JetStream API as JSON.
- `accounts.py`: Names of accounts, and the JetStream limits of one.
- `decoding.py`: Decoding of bytes that come from outside or from disk.
- `delivered.py`: The parser of what a server sends: the client's side of the protocol.
- `leaf_wire.py`: The leaf node protocol.
- `peer_wire.py`: The protocol between two nodes, as bytes and records.
- `route_wire.py`: Interest and messages between nodes, as records.
- `domain_subjects.py`: Subjects of a remote server's JetStream domain.
- `sql.py`: Queries over NATS: subjects, requests and the headers of responses.
- `schema_api.py`: Requests to the schema registry and their responses.
- `instants.py`: Times as people write them in SQL, options and stream metadata.
- `durations.py`: Durations as text.
- `gotime.py`: Times as Go writes and reads them.
- `goquote.py`: Quoted text as Go's %q writes it, which nats-server uses in errors and log lines.
- `nkeys.py`: NATS keys: their text form, signatures, encryption, and credentials files.
- `jwt.py`: Tokens of NATS: JWTs that operators, accounts and users sign with their keys.
- `nuid.py`: NUIDs: unique ids of events, pins and transfer subjects.
- `s2.py`: S2 streams, the framing of backups.
- `messages.py`: Blocks of messages.
- `dead_letters.py`: Dead letters: the setting in a consumer's metadata, and the headers of a letter.
"""
