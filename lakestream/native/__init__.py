"""Loops over many messages: parse, encode, split and frame a whole run of them in one call. Also one over many objects.

Belongs here: the choice between the compiled module (`fast.pyx`, built by setup.py if a C compiler is there) and its
twin in Python (`plain.py`). Both have the same functions with the same results. The environment variable
`LAKESTREAM_NATIVE=off`, read when this package is imported, chooses the twin.
"""

from __future__ import annotations

import os

__all__ = [
    "NATIVE",
    "WHY",
    "ColumnReader",
    "SubjectMatcher",
    "SubjectSeeker",
    "check_records",
    "choose_run",
    "copy_records",
    "decode_record",
    "decode_spans",
    "delivery_sizes",
    "encode_record",
    "encode_rows",
    "encode_run",
    "frame_acks",
    "frame_deliveries",
    "frame_direct",
    "frame_run",
    "header_values",
    "note_ids",
    "parse_run",
    "record_subjects",
    "records_match",
    "renew",
    "seek_ids",
    "split_names",
    "split_records",
]

WHY: str = ""
"""Reason why the twin serves; empty when the compiled module does."""

try:
    if os.environ.get("LAKESTREAM_NATIVE") == "off":
        raise ImportError("LAKESTREAM_NATIVE=off")
    from lakestream.native._fast import (
        ColumnReader,
        SubjectMatcher,
        SubjectSeeker,
        check_records,
        choose_run,
        copy_records,
        decode_record,
        decode_spans,
        delivery_sizes,
        encode_record,
        encode_rows,
        encode_run,
        frame_acks,
        frame_deliveries,
        frame_direct,
        frame_run,
        header_values,
        note_ids,
        parse_run,
        record_subjects,
        records_match,
        renew,
        seek_ids,
        split_names,
        split_records,
    )
except ImportError as error:
    WHY = "it is not built" if isinstance(error, ModuleNotFoundError) else str(error)
    from lakestream.native.plain import (
        ColumnReader,
        SubjectMatcher,
        SubjectSeeker,
        check_records,
        choose_run,
        copy_records,
        decode_record,
        decode_spans,
        delivery_sizes,
        encode_record,
        encode_rows,
        encode_run,
        frame_acks,
        frame_deliveries,
        frame_direct,
        frame_run,
        header_values,
        note_ids,
        parse_run,
        record_subjects,
        records_match,
        renew,
        seek_ids,
        split_names,
        split_records,
    )

NATIVE: bool = not WHY
"""The compiled module serves."""
