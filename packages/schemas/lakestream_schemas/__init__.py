"""Formats of schemas: JSON Schema, Avro and Protobuf; and the registry.

Belongs here: all that knows a format, and the requests of the registry. Types, framing and names of schemas are
lakestream's (lakestream/schemas), which finds formats and registry by the entry point group `lakestream.schemas`.

In reading order:

- `formats.py`: The formats behind lakestream's interface.
- `payloads.py`: Payloads of one version of a schema.
- `plan.py`: Plans by which payloads are read straight into columns.
- `arrow.py`: Arrow columns from decoded rows.
- `records.py`: Records of columns, as every format makes them.
- `avro/`: Avro: its columns, its codec, and the comparison of versions.
- `json_schema/`: JSON Schema: its columns, its codec, and the comparison of versions.
- `protobuf/`: Protobuf: its columns, its codec, and the comparison of versions.
- `differences.py`: Differences of two versions of a schema.
- `compatibility.py`: Compatibility of versions of a schema, by the modes and rules of Confluent's Schema Registry.
- `registry/`: The schema registry of an account, in the server.
"""
