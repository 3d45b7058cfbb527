"""Loops over many messages: parse, encode, split and frame a whole run of them in one call. Also over objects, files.

Belongs here: the choice between the compiled module (`fast.pyx`, built by setup.py if a C compiler is there) and its
twin in Python (`plain.py`). Both have the same functions with the same results. The environment variable
`LAKESTREAM_NATIVE=off`, read when this package is imported, chooses the twin. So does a module that was compiled from
other sources than those that are here: functions that it lacks, or that changed, would be found one by one.
"""

from __future__ import annotations

import os
from zlib import crc32

__all__ = [
    "NATIVE",
    "STALE",
    "WHY",
    "ColumnReader",
    "SubjectMatcher",
    "SubjectSeeker",
    "check_records",
    "choose_run",
    "copy_records",
    "crc32",
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
    "page_header",
    "parse_run",
    "record_subjects",
    "records_match",
    "renew",
    "seek_ids",
    "split_names",
    "split_records",
    "sync_paths",
    "text_cells",
]

WHY: str = ""
"""Reason why the twin serves; empty when the compiled module does."""
STALE: bool = False
"""The twin serves although there is a compiled module: it was compiled from other sources."""
_LACKS = "cannot import name"
"""Begins the error of a module without one of the functions."""


def _is_of(crc: int) -> bool:
    """Return True if the sources that are here have this CRC-32, which setup.py has computed, or none are here."""
    here = 0
    for name in ("fast.pyx", "columns.h", "crc32.h"):
        try:
            with open(os.path.join(os.path.dirname(__file__), name), "rb") as file:
                here = crc32(file.read(), here)
        except FileNotFoundError:
            return True
    return here == crc


try:
    if os.environ.get("LAKESTREAM_NATIVE") == "off":
        raise ImportError("LAKESTREAM_NATIVE=off")
    from lakestream.native._fast import (
        SOURCES,
        ColumnReader,
        SubjectMatcher,
        SubjectSeeker,
        check_records,
        choose_run,
        copy_records,
        crc32,
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
        page_header,
        parse_run,
        record_subjects,
        records_match,
        renew,
        seek_ids,
        split_names,
        split_records,
        sync_paths,
        text_cells,
    )

    if not _is_of(SOURCES):
        raise ImportError(_LACKS)
except ImportError as error:
    WHY = "it is not built" if isinstance(error, ModuleNotFoundError) else str(error)
    if WHY.startswith(_LACKS):
        STALE = True
        WHY = (
            "it was compiled from other sources than those that are here: run `make setup` in a clone, else install "
            "lakestream again (pip install --force-reinstall)"
        )
    from lakestream.native.plain import (
        ColumnReader,
        SubjectMatcher,
        SubjectSeeker,
        check_records,
        choose_run,
        copy_records,
        crc32,
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
        page_header,
        parse_run,
        record_subjects,
        records_match,
        renew,
        seek_ids,
        split_names,
        split_records,
        sync_paths,
        text_cells,
    )

NATIVE: bool = not WHY
"""The compiled module serves."""
