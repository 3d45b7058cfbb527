"""Typed columns of messages: batches of decoded segments with the fields of their payloads.

Belongs here: grouping messages by schema version, decoding each group, and putting the columns together; and the
payloads of rows that do not keep them. Nothing here fails because of a payload: one that does not fit is a misfit, and
its row has NULLs.

Messages that delete a key of a bucket, and markers of expired messages, have no schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.lake.table import typed_columns
from lakestream.lake.table.schema import FORMAT_COLUMN, SCHEMA_COLUMN, join_headers
from lakestream.lake.table.schema_catalog import SchemaCatalog, Version
from lakestream.lake.table.typed_columns import NoColumns, Place
from lakestream.log.format.runs import SchemaRun
from lakestream.protocol import headers
from lakestream.schemas import naming
from lakestream.schemas.codec import Decoded, encode_rows
from lakestream.schemas.columns import RecordType, arrow_type
from lakestream.schemas.errors import BadSchema, Misfit, Unfit
from lakestream.schemas.framing import CONFLUENT, prefixed
from lakestream.schemas.naming import BY_CONFLUENT, BY_HEADER, BY_SINGLE_OBJECT, DELETIONS, NamedSchema, Naming, Rule
from lakestream.schemas.schema import Reference

_PREFIX_BYTES = {BY_CONFLUENT: 6, BY_SINGLE_OBJECT: 10}
"""Bytes by which payloads of a rule are told apart; with Confluent's id comes the first byte of Protobuf's path."""
# No array: the first one loads pandas, which takes 0.2 s of the start of a command.
_LOOKED_AT = [name.decode() for name in (naming.HEADER, *DELETIONS)]

MISFIT_SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("subject", pa.string()),
        ("schema", pa.string()),
        ("field", pa.string()),
        ("rule", pa.string()),
        ("reason", pa.string()),
    ]
)
"""Rows of a table of misfits. `schema`: the version that the message should fit; NULL: it is not known."""


class TypedBatch(msgspec.Struct, frozen=True):
    """A batch with its typed columns. `misfits`: as MISFIT_SCHEMA."""

    rows: pa.RecordBatch
    misfits: pa.RecordBatch


class _Group(msgspec.Struct):
    """Rows with one version and prefix. `version`: None for those without a schema; `misfit`: none can be found."""

    version: Version | None
    prefix: bytes
    misfit: Misfit | None
    rows: Any


class _Run:
    """Messages from sequence `since` on that have their schemas by the same rules; see SchemaRun."""

    def __init__(self, run: SchemaRun) -> None:
        self.since = run.since
        self._latest = run.latest
        try:
            self.rules = naming.parse(run.rules) if run.rules else None
        except BadSchema:  # of a backup: the server takes it as no rule, too
            self.rules = None
        self._rule_of: dict[str, Rule | None] = {}

    def rule(self, subject: str) -> Rule | None:
        if self.rules is not None and subject not in self._rule_of:
            self._rule_of[subject] = self._pinned(self.rules.rule(subject.encode()))
        return self._rule_of.get(subject)

    def the_rule(self) -> tuple[Rule | None] | None:
        """Return the rule for every subject, in a tuple; None if there are several."""
        if self.rules is None:
            return (None,)
        if len(self.rules.rules) == 1 and self.rules.rules[0][0] == b">":
            return (self._pinned(self.rules.rules[0][1]),)
        return None

    def named(self, subject: bytes, header_block: bytes, payload: bytes) -> NamedSchema:
        """Return the schema that a message names. Raise Unfit."""
        if self.rules is None:
            return NamedSchema()
        found = self.rules.named(subject, header_block, payload)
        pinned = self._pinned(found.reference)
        assert not isinstance(pinned, str)
        return NamedSchema(pinned, found.prefix)

    def _pinned(self, rule: Rule | None) -> Rule | None:
        """Return a rule with the version that `latest` was when the messages were stored, if the log states it."""
        if isinstance(rule, Reference) and rule.version is None:
            return Reference(rule.name, self._latest.get(rule.name))
        return rule


class TypedRows:
    """Adds typed columns to the messages of one stream.

    Args:
        catalog: the schemas.
        schemas: runs of messages with the same schemas, ascending. Messages before the first have none.
        table: the typed columns of its table.
        drop_data: rows whose payload can be given back do not keep it.
        empty_deletes: messages without a payload have no schema (`naming.empty_deletes`).
    """

    def __init__(
        self,
        catalog: SchemaCatalog,
        schemas: Sequence[SchemaRun],
        table: RecordType,
        drop_data: bool,
        empty_deletes: bool = False,
    ) -> None:
        self._catalog = catalog
        self._empty_deletes = empty_deletes
        self._runs = [_Run(SchemaRun(0, "")), *map(_Run, schemas)]
        self._table = table
        self._drop_data = drop_data
        self._places: dict[int, tuple[Place, ...] | NoColumns] = {}
        self.needed: dict[str, str] = {}
        """Columns (JSON) of the versions that need some which the table does not have, by reference."""

    def add(self, batch: pa.RecordBatch) -> TypedBatch:
        """Return the messages (as schema.message_schema()) with their typed columns."""
        groups = self._groups(batch)
        data = batch.column("data")
        columns = _Columns(self._table, batch.num_rows)
        formats: list[tuple[Any, pa.Array]] = []
        misfits: list[tuple[int, str | None, Misfit]] = []
        names: list[str | None] = [None] * batch.num_rows
        for group in groups:
            rows, version = group.rows, group.version
            if group.misfit is not None:
                misfits += [(row, None, group.misfit) for row in rows.tolist()]
            if version is None or group.misfit is not None:
                continue
            places = self._placed(version)
            if isinstance(places, NoColumns):
                misfit = Misfit("", "columns", str(places))
                misfits += [(row, version.reference, misfit) for row in rows.tolist()]
            if not isinstance(places, tuple):
                continue
            payloads = data if len(rows) == batch.num_rows else data.take(pa.array(rows))
            if group.prefix:
                # Not binary_slice, which fails for payloads that are shorter than a slice's start.
                payloads = pa.array([payload[len(group.prefix) :] for payload in payloads.to_pylist()], pa.binary())
            decoded = version.codec.decode(payloads)
            columns.put(rows, decoded.columns, version.codec.record, places)
            unfit = [each.row for each in decoded.misfits]
            misfits += [(int(rows[each.row]), version.reference, each.misfit) for each in decoded.misfits]
            _name(names, rows, version.reference, unfit)
            if self._drop_data and not version.message:
                formats.append((rows, _formats(version, decoded, payloads, group.prefix)))
        return TypedBatch(self._whole(batch, columns, names, formats), _misfit_rows(batch, misfits))

    def _placed(self, version: Version) -> tuple[Place, ...] | NoColumns | None:
        """Return the places of a version's fields; None if the table needs more columns."""
        found = self._places.get(id(version))
        if found is not None:
            return found
        try:
            wide, places = typed_columns.placed(self._table, version.codec.record)
        except NoColumns as error:
            self._places[id(version)] = error
            return error
        if wide is not self._table:
            name = f"{version.reference} {version.message}"
            self.needed[name] = typed_columns.schema_of(version.codec.record)
            return None
        self._places[id(version)] = places
        return places

    def _whole(self, batch: pa.RecordBatch, columns: _Columns, names: list[str | None], formats: Any) -> pa.RecordBatch:
        """Return the batch with all further columns."""
        found = dict(zip(batch.schema.names, batch.columns, strict=True))
        found[SCHEMA_COLUMN] = pa.array(names, pa.string())
        if self._drop_data:
            kept = _scattered([part for _, part in formats], [rows for rows, _ in formats], batch.num_rows, pa.string())
            found[FORMAT_COLUMN] = kept
            found["data"] = pc.if_else(kept.is_valid(), pa.scalar(None, pa.binary()), found["data"])
        found.update(columns.arrays())
        return pa.RecordBatch.from_arrays(list(found.values()), names=list(found))

    # Which schema a message has

    def _groups(self, batch: pa.RecordBatch) -> list[_Group]:
        """Return the messages of a batch by schema version and prefix."""
        times = batch.column("time_ns").to_numpy()
        special = _special(batch, self._empty_deletes)
        found: dict[Any, _Group] = {}
        parts: dict[Any, list[Any]] = {}

        def put(version: Version | None, prefix: bytes, misfit: Misfit | None, rows: Any) -> None:
            key = id(version), prefix, misfit
            found.setdefault(key, _Group(version, prefix, misfit, None))
            parts.setdefault(key, []).append(rows)

        for run, of_run in self._by_run(batch):
            for rule, rows in _by_rule(run, batch, of_run if special is None else of_run[~special[of_run]]):
                for prefix, some in _by_prefix(rule, batch, rows):
                    for version, raw, misfit, chosen in self._resolved(rule, prefix, times, batch, some):
                        put(version, raw, misfit, chosen)
            if special is not None:
                self._each(run, batch, of_run[special[of_run]], put)
        for key, group in found.items():
            group.rows = parts[key][0] if len(parts[key]) == 1 else np.sort(np.concatenate(parts[key]))
        return list(found.values())

    def _by_run(self, batch: pa.RecordBatch) -> Iterator[tuple[_Run, Any]]:
        """Yield the rows of each run."""
        since = np.array([run.since for run in self._runs], np.int64)
        at = np.searchsorted(since, batch.column("seq").to_numpy(), "right") - 1
        for number in np.unique(at).tolist():
            yield self._runs[number], np.flatnonzero(at == number)

    def _resolved(
        self, rule: Rule | None, prefix: bytes, times: Any, batch: pa.RecordBatch, rows: Any
    ) -> Iterator[tuple[Version | None, bytes, Misfit | None, Any]]:
        """Yield (version, prefix, misfit, rows) for rows of one rule whose payloads begin with the same bytes."""
        catalog = self._catalog
        try:
            if rule is None or rule == BY_HEADER:
                yield None, b"", None, rows
            elif isinstance(rule, Reference) and rule.version is None:
                changes = catalog.changes(rule.name)
                at = np.searchsorted(np.array([time for time, _ in changes], np.int64), times[rows], "right") - 1
                for number in np.unique(np.maximum(at, 0)).tolist():
                    chosen = rows[np.maximum(at, 0) == number]
                    try:
                        yield catalog.version(rule.name, changes[number][1]), b"", None, chosen
                    except Unfit as unfit:
                        yield None, b"", unfit.misfit, chosen
            elif isinstance(rule, Reference):
                yield catalog.version(rule.name, rule.version or 0), b"", None, rows
            else:
                named = Naming(((b">", rule),)).named(b"x", b"", prefix)
                assert named.prefix is not None
                if prefix[:1] == CONFLUENT and prefix[5:6] not in (b"", b"\0"):
                    # Perhaps a longer path to a Protobuf message.
                    yield from self._by_path(named, times, batch, rows)
                    return
                version, raw = catalog.named(named, int(times[rows[0]]), prefix)
                yield version, raw, None, rows
        except Unfit as unfit:
            yield None, b"", unfit.misfit, rows

    def _by_path(
        self, named: naming.NamedSchema, times: Any, batch: pa.RecordBatch, rows: Any
    ) -> Iterator[tuple[Version | None, bytes, Misfit | None, Any]]:
        first = batch.column("data")[int(rows[0])].as_py()
        version, raw = self._catalog.named(named, int(times[rows[0]]), first)
        if version is None or version.schema.format != "protobuf":
            yield version, raw, None, rows
            return
        for row in rows.tolist():
            try:
                version, raw = self._catalog.named(named, int(times[row]), batch.column("data")[row].as_py())
                yield version, raw, None, np.array([row])
            except Unfit as unfit:
                yield None, b"", unfit.misfit, np.array([row])

    def _each(self, run: _Run, batch: pa.RecordBatch, rows: Any, put: Any) -> None:
        """Find the schemas of messages that have a header of interest, one by one."""
        for row in rows.tolist():
            block = _block(batch, row)
            raw = batch.column("subject_bytes")[row].as_py()
            subject = batch.column("subject")[row].as_py().encode() if raw is None else raw
            payload, time_ns = batch.column("data")[row].as_py(), batch.column("time_ns")[row].as_py()
            deletes = self._empty_deletes or any(headers.get(block, name) is not None for name in DELETIONS)
            if not payload and deletes:
                put(None, b"", None, np.array([row]))
                continue
            try:
                version, prefix = self._catalog.named(run.named(subject, block, payload), time_ns, payload)
                put(version, prefix, None, np.array([row]))
            except Unfit as unfit:
                put(None, b"", unfit.misfit, np.array([row]))


def _by_rule(run: _Run, batch: pa.RecordBatch, rows: Any) -> Iterator[tuple[Rule | None, Any]]:
    """Yield rows of a run by the rule for their subjects."""
    if not len(rows):
        return
    if (only := run.the_rule()) is not None:
        yield only[0], rows
        return
    subjects = batch.column("subject").dictionary_encode()
    rules = [run.rule(text) for text in subjects.dictionary.to_pylist()]
    kinds = {rule: number for number, rule in enumerate(dict.fromkeys(rules))}
    codes = np.array([kinds[rule] for rule in rules], np.int64)[subjects.indices.to_numpy()][rows]
    for rule, number in kinds.items():
        if len(chosen := rows[codes == number]):
            yield rule, chosen


class _Columns:
    """Typed columns of a batch, put together of groups."""

    def __init__(self, table: RecordType, rows: int) -> None:
        self._table = {field.column: field.type for field in table.fields}
        self._rows = rows
        self._parts: dict[str, tuple[list[pa.Array], list[Any]]] = {}

    def put(self, rows: Any, decoded: pa.RecordBatch, record: RecordType, places: Sequence[Place]) -> None:
        """Add the columns of some rows."""
        for array, field, place in zip(decoded.columns, record.fields, places, strict=True):
            wide = typed_columns.reshaped(array, field.type, self._table[place.column], place.inside)
            arrays, chosen = self._parts.setdefault(place.column, ([], []))
            arrays.append(wide)
            chosen.append(rows)

    def arrays(self) -> dict[str, pa.Array]:
        """Return the columns that some row has."""
        return {
            name: _scattered(arrays, chosen, self._rows, arrays[0].type)
            for name, (arrays, chosen) in self._parts.items()
        }


def _scattered(arrays: Sequence[pa.Array], rows: Sequence[Any], count: int, kind: pa.DataType) -> pa.Array:
    """Return one array of `count` rows, with the values of each array in its rows, NULL in others."""
    if len(arrays) == 1 and len(arrays[0]) == count:
        return arrays[0]
    if not arrays:
        return pa.nulls(count, kind)
    at = np.full(count, -1, np.int64)
    begin = 0
    for some in rows:
        at[some] = np.arange(begin, begin + len(some))
        begin += len(some)
    return pa.concat_arrays(arrays).take(pa.array(at, mask=at < 0))


def _special(batch: pa.RecordBatch, empty: bool) -> Any:
    """Return a mask of the messages with a header of interest, with headers in an unusual spelling, or if they are
    `empty`; None for none."""
    found, blocks = batch.column("headers"), batch.column("header_block")
    lengths = pc.fill_null(pc.binary_length(batch.column("data")), 0).to_numpy() if empty else np.ones(len(found))
    if found.null_count == len(found) and lengths.all():
        return None
    mask = blocks.is_valid().to_numpy(zero_copy_only=False) | (lengths == 0)
    keys = found.keys
    places = np.flatnonzero(pc.is_in(keys, pa.array(_LOOKED_AT)).to_numpy(zero_copy_only=False))
    if len(places):
        rows = np.searchsorted(found.offsets.to_numpy(), places, "right") - 1
        mask[rows[(rows >= 0) & (rows < len(mask))]] = True
    return mask if mask.any() else None


def _block(batch: pa.RecordBatch, row: int) -> bytes:
    raw: bytes | None = batch.column("header_block")[row].as_py()
    if raw is not None:
        return raw
    pairs = batch.column("headers")[row].as_py()
    return b"" if pairs is None else join_headers(pairs)


def _by_prefix(rule: Rule | None, batch: pa.RecordBatch, rows: Any) -> Iterator[tuple[bytes, Any]]:
    """Yield rows by the first bytes of their payloads, if the rule looks at them."""
    length = _PREFIX_BYTES.get(rule, 0) if isinstance(rule, str) else 0
    if not length:
        yield b"", rows
        return
    data = batch.column("data")
    chosen = data if len(rows) == len(data) else data.take(pa.array(rows))
    encoded = pa.array([payload[:length] for payload in chosen.to_pylist()], pa.binary()).dictionary_encode()
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    for number, prefix in enumerate(encoded.dictionary.to_pylist()):
        yield prefix, rows[np.sort(order[bounds[number] : bounds[number + 1]])]


def _name(names: list[str | None], rows: Any, reference: str, unfit: list[int]) -> None:
    if len(rows) == len(names):
        names[:] = [reference] * len(names)
    else:
        for row in rows.tolist():
            names[row] = reference
    for at in unfit:
        names[int(rows[at])] = None


def _formats(version: Version, decoded: Decoded, payloads: pa.Array, prefix: bytes) -> pa.Array:
    """Return the `data_format` of decoded rows as texts."""
    if decoded.misfits:
        mask = np.zeros(len(payloads), bool)
        mask[[each.row for each in decoded.misfits]] = True
        payloads = pc.if_else(pa.array(mask), pa.scalar(None, payloads.type), payloads)
    found = prefixed(version.codec.formats(decoded.columns, payloads), prefix).cast(pa.string())
    if decoded.misfits:
        found = pc.if_else(pa.array(mask), pa.scalar(None, pa.string()), found)
    return found


def _misfit_rows(batch: pa.RecordBatch, misfits: list[tuple[int, str | None, Misfit]]) -> pa.RecordBatch:
    """Return rows of the table of misfits, by sequence."""
    misfits.sort(key=lambda each: each[0])
    at = pa.array([row for row, _, _ in misfits], pa.int64())
    micros = pc.divide(batch.column("time_ns").take(at), pa.scalar(1000, pa.int64()))
    columns = [
        batch.column("seq").take(at),
        micros.cast(pa.timestamp("us", "UTC")),
        batch.column("subject").take(at),
        pa.array([reference for _, reference, _ in misfits], pa.string()),
        pa.array([misfit.field for _, _, misfit in misfits], pa.string()),
        pa.array([misfit.rule for _, _, misfit in misfits], pa.string()),
        pa.array([_text(misfit.text) for _, _, misfit in misfits], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MISFIT_SCHEMA)


def _text(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def given_back(catalog: SchemaCatalog, table: RecordType, rows: pa.Table) -> pa.Array:
    """Return the payloads of rows, from `data` or from their typed columns.

    Args:
        catalog: the schemas.
        table: the typed columns of the table, all of them: they decide which column a field has.
        rows: `data`, `schema`, `data_format`, and the typed columns, as far as a file has them.

    Raises:
        Unfit: a schema cannot be found or used any more.
        ValueError: a `data_format` is none of its schema.
    """
    rows = rows.combine_chunks()
    formats = _one(rows.column(FORMAT_COLUMN)).cast(pa.string())
    data = _one(rows.column("data")).cast(pa.binary())
    dropped = np.flatnonzero(formats.is_valid().to_numpy(zero_copy_only=False))
    if not len(dropped):
        return data
    references = _one(rows.column(SCHEMA_COLUMN)).cast(pa.string()).dictionary_encode()
    codes = pc.fill_null(references.indices, -1).to_numpy()
    arrays, chosen = [], []
    for number, reference in enumerate(references.dictionary.to_pylist()):
        some = dropped[codes[dropped] == number]
        if not len(some):
            continue
        version = catalog.by_reference(reference)
        record = version.codec.record
        part = rows.take(pa.array(some)).combine_chunks()
        _, places = typed_columns.place(table, record)
        columns = [
            typed_columns.taken_back(_one(part.column(place.column)), field.type, place.inside)
            if place.column in part.column_names
            else pa.nulls(len(part), arrow_type(field.type))
            for field, place in zip(record.fields, places, strict=True)
        ]
        if columns:
            batch = pa.RecordBatch.from_arrays(columns, names=[field.column for field in record.fields])
        else:
            batch = pa.record_batch(pa.StructArray.from_buffers(pa.struct([]), len(part), [None]))
        arrays.append(encode_rows(version.codec, batch, formats.take(pa.array(some))).cast(pa.binary()))
        chosen.append(some)
    made = _scattered(arrays, chosen, len(data), pa.binary())
    return pc.if_else(formats.is_valid(), made, data)


def _one(column: Any) -> pa.Array:
    """Return a column in one piece."""
    if isinstance(column, pa.ChunkedArray):
        return (
            column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])
        )
    return column
