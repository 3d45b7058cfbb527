"""Schemas of payloads: registered definitions, and the typed columns that follow from them.

Belongs here: reading JSON Schema, Avro and Protobuf within limits, their mapping to columns, checking and decoding of
payloads, giving payloads back from columns byte for byte, compatibility of versions, inference, and the names by which
messages refer to schemas. Nothing here does I/O, except for the compiler of `.proto` texts (protobuf/protoc.py).
"""
