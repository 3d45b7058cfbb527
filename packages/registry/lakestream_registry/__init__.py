"""Confluent's Schema Registry API in front of an account's schemas (`lakestream registry`).

Belongs here: definitions with references, subjects, deletions, compatibility levels and modes as Confluent's registry
has them, HTTP over them, and import from other registries. The schemas stay those of the bucket `SCHEMAS`, which the
server's own API writes too. `lakestream registry serve` is a process of its own: a client of the server.

Source: Confluent's documentation, "Schema Registry API Reference".

In reading order:

- `errors.py`: Errors of the registry, as clients of Confluent's API see them.
- `subjects.py`: Subjects of the registry's API as names of schemas.
- `references.py`: References of Avro and JSON schemas: one text that needs no other.
- `protobuf.py`: Protobuf schemas as clients of the registry write them.
- `definitions.py`: Definitions of schemas, as clients of the registry post them.
- `settings.py`: Settings of the registry: compatibility and mode of the account and of subjects, and deleted versions.
- `store.py`: The buckets of the registry over NATS.
- `registry.py`: The operations of the registry, without HTTP.
- `app.py`: Confluent's Schema Registry API over HTTP: the application of `lakestream registry serve`.
- `mirror.py`: Import from another registry with Confluent's API, and following it.
- `command.py`: `lakestream registry`: Confluent's Schema Registry API in front of an account's schemas.
"""
