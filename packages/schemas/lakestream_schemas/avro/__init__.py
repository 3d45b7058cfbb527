"""Avro: its columns, its codec, and the comparison of versions.

Belongs here: all that knows this format. Nothing here knows another one.

In reading order:

- `model.py`: Avro schemas as a tree of types.
- `binary.py`: Avro's binary encoding of one value, read and written by functions that are put together from the schema.
- `nodes.py`: Plan of an Avro schema, for reading batches straight into columns.
- `codec.py`: Codec of Avro payloads: one binary value of the schema, without framing.
- `fingerprint.py`: Fingerprints of Avro schemas.
- `compatibility.py`: Comparison of two Avro schemas by "Schema Resolution" of the specification: can the reader read
  what was written?
"""
