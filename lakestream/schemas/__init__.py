"""Schemas of payloads: registered definitions, and the typed columns that follow from them.

Belongs here: the type tree and its columns, framing, the names by which messages refer to schemas, and the interface of
formats. JSON Schema, Avro and Protobuf themselves, what they share, and the compatibility of versions are a package of
their own (packages/schemas). Nothing here does I/O.

In reading order:

- `errors.py`: Errors of schemas, and the reason why a payload does not fit one.
- `columns.py`: Type tree of a schema, and its mapping to columns of Arrow and Delta.
- `scalars.py`: Rules of single values that all typed columns share.
- `framing.py`: Prefixes by which payloads name their schema, and the `data_format` of rows that had one.
- `schema.py`: Schemas as the registry stores them.
- `codec.py`: Formats of schemas behind one interface.
- `naming.py`: Names of schemas in streams and messages.
"""
