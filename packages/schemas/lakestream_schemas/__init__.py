"""Formats of schemas: JSON Schema, Avro and Protobuf.

Belongs here: all that knows a format. The registry, columns, framing and names of schemas are lakestream's
(lakestream/schemas), which finds the formats by the entry point group `lakestream.schemas`.

In reading order:

- `formats.py`: The formats behind lakestream's interface.
- `records.py`: Records of columns, as every format makes them.
- `avro/`: Avro: its columns, its codec, and the comparison of versions.
- `json_schema/`: JSON Schema: its columns, its codec, and the comparison of versions.
- `protobuf/`: Protobuf: its columns, its codec, and the comparison of versions.
"""
