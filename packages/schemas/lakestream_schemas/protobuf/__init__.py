"""Protobuf: its columns, its codec, and the comparison of versions.

Belongs here: all that knows this format. Nothing here knows another one.

In reading order:

- `model.py`: Protobuf schemas: descriptor sets, their messages, and the mapping to columns.
- `nodes.py`: Plan of a Protobuf message, for reading batches straight into columns.
- `codec.py`: Codec of Protobuf payloads: one message, without framing.
- `compatibility.py`: Comparison of two Protobuf schemas by the rules of Confluent's registry.
- `protoc.py`: Descriptor sets from `.proto` texts.
"""
