"""Batches of JSON payloads as columns.

Belongs here: the loop over payloads, and the conversions of values that msgspec decodes but Arrow does not take.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from lakestream.schemas.arrow import Decoded, batch_of, listed
from lakestream.schemas.columns import RecordType
from lakestream.schemas.errors import RowMisfit, Unfit


class Values(Protocol):
    """Decoder of one payload."""

    record: RecordType

    def value(self, payload: bytes | None) -> Any:
        """Return a payload as a struct, or raise Unfit."""


def batch(codec: Values, payloads: Sequence[bytes | None] | pa.Array) -> Decoded:
    """Decode payloads one after the other, and their values by columns."""
    value = codec.value
    rows: list[Any] = []
    misfits: list[RowMisfit] = []
    for payload in listed(payloads):
        try:
            rows.append(value(payload))
        except Unfit as unfit:
            misfits.append(RowMisfit(len(rows), unfit.misfit))
            rows.append(None)
    return batch_of(codec.record, rows, msgspec.structs.astuple, misfits, _SCALARS)


def _raw(value: Any) -> str | None:
    if value is None:
        return None
    text = str(bytes(value), "utf-8")
    return None if text == "null" else text


def _decimal(value: Any) -> Decimal | None:
    return None if value is None else Decimal(value)


_SCALARS = {"json": _raw, "decimal": _decimal}
