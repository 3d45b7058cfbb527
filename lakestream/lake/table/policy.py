"""Policy of a stream's table, from the stream's metadata.

Belongs here: the `lakestream.*` keys of a stream's `metadata`, and their grammar. The server rejects a
configuration that does not parse, so the compactor meets none. The table properties that follow from them are in
lakestream_spark/write/table.py, the choice of a layout in lakestream_spark/write/layouts.py.

    lakestream.retention            follow | archive        rows of messages that the stream no longer has
    lakestream.partition            auto | subject | tokens:1,3 | bucket | bucket:N | day(time), $.country
    lakestream.lake                 on | off                no table: all messages stay in the log
    lakestream.time_travel          off, 12h, 30d …         how long old versions stay readable (maintenance)
    lakestream.on_delete            drop | keep             the table of a deleted stream
    lakestream.json_schema          price DOUBLE, qty INT   typed view of JSON payloads
    lakestream.schema               orders@latest …         schemas of payloads (schemas/naming.py): typed columns
    lakestream.data                 keep | drop-when-typed  whether rows keep payloads that typed columns give back
    lakestream.mask                 {"email": "hash"} …     fields that SQL hides (masks.py); mask_clear: from whom not
    lakestream.validate             off | reject | tag      the check of publishes (stream/features/validation.py)
    lakestream.consistency          eventual | linearizable direct gets of any replica (stream/core/confirming.py)
    lakestream.reserve              on | off                whether max_bytes are reserved when the stream is created
    lakestream.table                append | latest | latest($.id, $.region)   an upsert table beside the stream's
    lakestream.cdc                  off | debezium | maxwell | op:$.field       the payloads are changes of rows
    lakestream.misfits.subject      dead.orders …           where misfits are sent (stream/consumer/dead_letters.py)
    lakestream.misfits.keep         follow | off | 30d …    how long misfits stay listed (maintenance)
    lakestream.iceberg              off | v2 | v3           an Iceberg table over the same files (packages/iceberg)
    lakestream.clone                auto | always | never   whether a mirror's table begins as a clone of its origin's
    lakestream.clone_as_of          2026-05-01, 1000 …      a mirror of its origin at a time, or at a sequence
    lakestream.properties.<name>    any                     a Delta table property
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from lakestream.lake.errors import BadPolicy
from lakestream.lake.table.at import TimeTravelError, instant
from lakestream.lake.table.schema import CLEAR_KEY, JSON_SCHEMA_PROPERTY, MASK_KEY, split_term
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.protocol.subjects import publishable
from lakestream.schemas import naming
from lakestream.schemas.errors import BadSchema
from lakestream.schemas.naming import (
    CDC_KEY,
    MISFITS_SUBJECT_KEY,
    OFF,
    SCHEMA_KEY,
    TABLE_KEY,
    VALIDATE_KEY,
    VALIDATIONS,
)

PREFIX = "lakestream."
PROPERTIES = "lakestream.properties."
RETENTION_PROPERTY = "lakestream.retention"
TIME_TRAVEL_PROPERTY = "lakestream.time_travel"
ON_DELETE_PROPERTY = "lakestream.on_delete"
PARTITION_KEY = "lakestream.partition"
LAKE_KEY = "lakestream.lake"
ICEBERG_KEY = "lakestream.iceberg"
ICEBERG_FORMATS = (OFF, "v2", "v3")
RESERVE_KEY = "lakestream.reserve"
DATA_KEY = "lakestream.data"
DROP_DATA = "drop-when-typed"
FOLLOW = "follow"
MISFITS_KEEP_KEY = "lakestream.misfits.keep"
MAX_KEYS = 8
"""Maximum number of key fields of an upsert table."""
CONSISTENCY_KEY = "lakestream.consistency"
CLONE_KEY = "lakestream.clone"
CLONE_AS_OF_KEY = "lakestream.clone_as_of"
LOG_CLEANUP_PROPERTY = "delta.enableExpiredLogCleanup"
"""Delta's own clean-up of the log at each checkpoint. It is off in tables of streams: it looks at the age of commits
alone, also while a file is missing and the table can only be repaired from an older version. Maintenance does it."""
LOG_RETENTION_PROPERTY = "delta.logRetentionDuration"
TOMBSTONES_PROPERTY = "delta.deletedFileRetentionDuration"
DEFAULT_TOMBSTONES = "interval 1 week"
TARGET_BYTES = 128 * 1024 * 1024
"""Size to which maintenance combines files, unless it is told another one; files below half of it are small."""
MAX_TOKENS = 4
"""Maximum number of subject tokens by which a table may be partitioned."""
MAX_TOKEN = 32
"""Highest position of such a token."""
MAX_BUCKETS = 64
DEFAULT_BUCKETS = 8
HOUR_NS = 3_600_000_000_000
LEAST_TIME_TRAVEL_NS = HOUR_NS
"""Minimum (1 h): below it VACUUM would delete files of commits and queries that are under way."""
_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d{1,9})([mhdw])")
_PATH = r"\$\.([^\s,()$.]+(?:\.[^\s,()$.]+)*)"
_TERM = re.compile(rf"(day|hour)\(\s*time\s*\)|{_PATH}|(month|day|hour)\(\s*{_PATH}\s*\)")
_LATEST = re.compile(r"latest(?:\((\s*\$\.[^\s,()$.]+\s*(?:,\s*\$\.[^\s,()$.]+\s*)*)\))?")
_BOOLEAN = re.compile(r"true|false")
_INTERVAL_PARTS = re.compile(r"(\d+)\s+(week|day|hour|minute|second)s?\b", re.IGNORECASE)
_UNIT_NS = {"week": 168 * HOUR_NS, "day": 24 * HOUR_NS, "hour": HOUR_NS, "minute": HOUR_NS // 60, "second": 10**9}
_INTERVAL = re.compile(r"interval [1-9]\d{0,5} (hour|day|week)s?")
_ALLOWED = {
    "delta.enablechangedatafeed": (_BOOLEAN, "true or false"),
    "delta.enabledeletionvectors": (_BOOLEAN, "true or false"),
    "delta.randomizefileprefixes": (_BOOLEAN, "true or false"),
    "delta.checkpointinterval": (re.compile(r"[1-9]\d{0,4}"), "a number of commits"),
    # The server finds messages by the statistics of the first four columns.
    "delta.dataskippingnumindexedcols": (re.compile(r"-1|[4-9]|[1-9]\d{1,3}"), "-1, or 4 or more"),
    "delta.logretentionduration": (_INTERVAL, "like `interval 30 days`, an hour at least"),
    "delta.deletedfileretentionduration": (_INTERVAL, "like `interval 30 days`, an hour at least"),
}
"""Delta's own properties that a stream may set, in lower case as Delta ignores case, with their values. Others change
who can read the table, or what the compactor's exactly-once depends on."""
_ROW_IDS = "OPTIMIZE and repairs write rows anew, with other row ids; `seq` names a row for good"
_CLUSTERED = (
    "a clustered table has no partitions, and only Delta's OPTIMIZE clusters, which keeps no order in a file; "
    "lakestream.partition: bucket has ranges of subjects, and rows sorted by subject within runs of sequences"
)
_VARIANT = "Polars cannot read a file with a VARIANT column; typed columns (lakestream.schema) have structs and maps"
_REASONS = {
    "delta.columnmapping.mode": "readers disagree about column mapping, some return NULLs without a word",
    "delta.enabletypewidening": "several readers fail on it",
    "delta.checkpointpolicy": "several readers fail on v2 checkpoints",
    "delta.appendonly": "deleted messages have to leave the table (lakestream.retention: archive keeps expired ones)",
    "delta.enableincommittimestamps": "time travel depends on it",
    "delta.settransactionretentionduration": "the compactor's position is a transaction identifier",
    **dict.fromkeys(("delta.enablerowtracking", "delta.feature.rowtracking"), _ROW_IDS),
    "delta.feature.clustering": _CLUSTERED,
    **dict.fromkeys(("delta.feature.varianttype", "delta.enablevariantshredding"), _VARIANT),
}
_OF_THE_CATALOG = frozenset({"location", "provider", "owner", "external", "comment", "path"})


class Partition(msgspec.Struct, frozen=True):
    """Requested partitioning of a table.

    `kind`: `auto` (by subject while there are few, then by bucket), `subject`, `tokens`, `bucket` or `fields`; `tokens`
    are 1-based positions in the subject, `terms` those of `Layout`.
    """

    kind: str = "auto"
    tokens: tuple[int, ...] = ()
    buckets: int = DEFAULT_BUCKETS
    terms: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the spelling of the metadata."""
        if self.kind == "bucket":
            return f"bucket:{self.buckets}"
        if self.kind == "fields":
            return ", ".join(_shown(term) for term in self.terms)
        return f"tokens:{','.join(map(str, self.tokens))}" if self.kind == "tokens" else self.kind


class KeyedPolicy(msgspec.Struct, frozen=True):
    """Requested upsert table: a row for each subject, or for each value of key fields of the payload. `cdc`: "", or the
    envelope of its payloads: debezium, maxwell, or `op:` and the field that tells a deletion."""

    fields: tuple[str, ...] = ()
    cdc: str = ""

    @property
    def columns(self) -> list[str]:
        """Return the columns of the key fields: a field `time` is in the column `time_`."""
        from lakestream.schemas.columns import column_names  # the server does not need it at its start

        return column_names(self.fields, root=True)


class AsOfAsked(msgspec.Struct, frozen=True):
    """The point of its origin that a mirror represents: after a sequence, or at a time (ns since the epoch), whichever
    is not 0."""

    seq: int = 0
    time_ns: int = 0


class StreamPolicy(msgspec.Struct, frozen=True):
    """Parsed metadata of one stream. `time_travel_ns`: None leaves it to the maintainer's own setting. `clone` (auto,
    always, never) and `clone_as_of` are for mirrors. Not `lake`: the stream has no table. `schema` is the rule by which
    messages have schemas; with `drop_data` rows whose typed columns give the payload back do not keep it.
    `misfits_keep`: follow (as long as their messages), off (as long as the stream), or a duration. `empty_deletes`: of
    `naming`."""

    @property
    def misfits_keep_ns(self) -> int | None:
        """Return the age at which misfits leave their table, None if they do not by age."""
        return None if self.misfits_keep in (FOLLOW, OFF) else _duration(self.misfits_keep, MISFITS_KEEP_KEY)

    archive: bool = False
    partition: Partition = Partition()
    time_travel_ns: int | None = None
    keep_table: bool = False
    json_schema: str | None = None
    properties: dict[str, str] = {}
    clone: str = "auto"
    clone_as_of: AsOfAsked | None = None
    lake: bool = True
    schema: str | None = None
    drop_data: bool = False
    iceberg: str = ""
    masks: dict[str, str] = {}
    keyed: KeyedPolicy | None = None
    misfits_keep: str = FOLLOW
    empty_deletes: bool = False


def parse(metadata: Mapping[str, str]) -> StreamPolicy:
    """Parse a stream's metadata, ignoring keys without the prefix `lakestream.`.

    Raises:
        BadPolicy: an unknown `lakestream.*` key, or a value outside its grammar.
    """
    values: dict[str, str] = {}
    properties: dict[str, str] = {}
    for key, value in metadata.items():
        if key.startswith(PROPERTIES):
            properties[_property(key, value)] = value
        elif key.startswith(PREFIX):
            values[key] = value
    retention = _one_of(values, RETENTION_PROPERTY, (FOLLOW, "archive"))
    partition = _partition(values.pop(PARTITION_KEY, "auto"))
    time_travel = values.pop(TIME_TRAVEL_PROPERTY, OFF)
    misfits_keep = values.pop(MISFITS_KEEP_KEY, FOLLOW)
    letters = values.pop(MISFITS_SUBJECT_KEY, "")
    if letters and not publishable(letters.encode()):
        raise BadPolicy(MISFITS_SUBJECT_KEY, f"{letters[:80]!r} is not a subject to publish to")
    lake = _one_of(values, LAKE_KEY, ("on", OFF))
    on_delete = _one_of(values, ON_DELETE_PROPERTY, ("drop", "keep"))
    schema = values.pop(JSON_SCHEMA_PROPERTY, None)
    clone = _one_of(values, CLONE_KEY, ("auto", "always", "never"))
    clone_as_of = values.pop(CLONE_AS_OF_KEY, None)
    named = values.pop(SCHEMA_KEY, None)
    data = _one_of(values, DATA_KEY, ("keep", DROP_DATA))
    keyed = _keyed(values.pop(TABLE_KEY, "append"), values.pop(CDC_KEY, OFF), named is not None)
    _one_of(values, VALIDATE_KEY, VALIDATIONS)
    _one_of(values, CONSISTENCY_KEY, ("eventual", "linearizable"))
    _one_of(values, RESERVE_KEY, ("on", OFF))
    iceberg = _one_of(values, ICEBERG_KEY, ICEBERG_FORMATS) if ICEBERG_KEY in values else ""
    masks = {key: values.pop(key) for key in (MASK_KEY, CLEAR_KEY) if key in values}
    if masks:
        from lakestream.lake.table.masks import parse as parse_masks  # few streams have some

        parse_masks(masks.get(MASK_KEY), masks.get(CLEAR_KEY))
        if keyed is not None and keyed.cdc in ("debezium", "maxwell"):
            raise BadPolicy(MASK_KEY, f"{CDC_KEY} makes columns of fields inside of others, which masks do not find")
    _check_fields(partition, masks, named is not None)
    if values:
        known = ", ".join((LAKE_KEY, RETENTION_PROPERTY, PARTITION_KEY, TIME_TRAVEL_PROPERTY, ON_DELETE_PROPERTY))
        of_schemas = f"{SCHEMA_KEY}, {DATA_KEY}, {VALIDATE_KEY}, {ICEBERG_KEY}, {RESERVE_KEY}, {MASK_KEY}, {CLEAR_KEY}"
        of_schemas = f"{of_schemas}, {TABLE_KEY}, {CDC_KEY}, {MISFITS_SUBJECT_KEY}, {MISFITS_KEEP_KEY}"
        more = f"{JSON_SCHEMA_PROPERTY}, {of_schemas}, {CONSISTENCY_KEY}, {CLONE_KEY}, {CLONE_AS_OF_KEY}, {PROPERTIES}*"
        raise BadPolicy(min(values), f"no such setting; there are {known}, {more}")
    if data == DROP_DATA and (named is None or schema is not None):
        reason = f"{DROP_DATA} needs {SCHEMA_KEY}, and excludes {JSON_SCHEMA_PROPERTY}, a view of the payloads"
        raise BadPolicy(DATA_KEY, reason)
    if misfits_keep not in (FOLLOW, OFF):
        _duration(misfits_keep, MISFITS_KEEP_KEY, f"{FOLLOW}, ")
    return StreamPolicy(
        archive=retention == "archive",
        partition=partition,
        time_travel_ns=None if time_travel == OFF else _duration(time_travel),
        keep_table=on_delete == "keep",
        json_schema=None if schema is None else _schema(schema),
        properties=properties,
        clone=clone,
        clone_as_of=None if clone_as_of is None else _as_of(clone_as_of),
        lake=lake != OFF,
        schema=None if named is None else _naming(named),
        drop_data=data == DROP_DATA,
        iceberg=iceberg,
        masks=masks,
        keyed=keyed,
        misfits_keep=misfits_keep,
        empty_deletes=naming.empty_deletes(metadata),
    )


def of_config(config: bytes) -> StreamPolicy:
    """Return the policy of a stream whose configuration is given as JSON, as in segments and the staging area."""
    try:
        metadata = _CONFIG.decode(config or b"{}").metadata
    except DECODE_ERRORS as error:
        raise BadPolicy("metadata", f"the stream's configuration does not decode: {error}") from None
    return parse(metadata or {})


class _Config(msgspec.Struct):
    metadata: dict[str, str] | None = None


_CONFIG = JsonDecoder(_Config)


def _one_of(values: dict[str, str], key: str, choices: tuple[str, ...]) -> str:
    value = values.pop(key, choices[0])
    if value not in choices:
        raise BadPolicy(key, f"{value!r} is not one of {', '.join(choices)}")
    return value


def _check_fields(partition: Partition, masks: dict[str, str], has_schema: bool) -> None:
    """Raise BadPolicy if the fields of a partitioning are no columns, or must not be shown."""
    paths = [split_term(term)[1] for term in partition.terms if term.startswith("$")]
    if paths and not has_schema:
        reason = f"$.{'.'.join(paths[0])} needs {SCHEMA_KEY}: a partition is by a column, which fields of a schema have"
        raise BadPolicy(PARTITION_KEY, f"{reason}; `lakestream schema infer` proposes one")
    if paths and MASK_KEY in masks:
        from lakestream.lake.table.masks import parse as parse_masks

        hidden = [[name.casefold() for name in mask.path] for mask in parse_masks(masks[MASK_KEY]).fields]
        for path in paths:
            if any(all(a.casefold() == b for a, b in zip(path, other, strict=False)) for other in hidden):
                raise BadPolicy(PARTITION_KEY, f"$.{'.'.join(path)} is masked, and the values of partitions are not")


def _terms(text: str) -> Partition | None:
    """Return a partitioning by time and fields; None if it is none."""
    parts = [_TERM.fullmatch(part.strip()) for part in text.split(",")]
    terms = tuple(
        part[1] or (f"${part[3]}({part[4]})" if part[3] else f"${part[2]}") for part in parts if part is not None
    )
    times = sum(not term.startswith("$") for term in terms)
    if len(terms) < len(parts):
        return None
    if times > 1 or len(set(terms)) < len(terms) or len(terms) > MAX_TOKENS:
        reason = f"{text[:80]!r}: up to {MAX_TOKENS} different terms are possible, one of them a time"
        raise BadPolicy(PARTITION_KEY, reason)
    return Partition("fields", terms=terms)


def _shown(term: str) -> str:
    if not term.startswith("$"):
        return f"{term}(time)"
    function, path = split_term(term)
    return f"{function}($.{'.'.join(path)})" if function else f"$.{'.'.join(path)}"


def _partition(text: str) -> Partition:
    if (found := _terms(text)) is not None:
        return found
    kind, colon, rest = text.partition(":")
    if kind in ("auto", "subject") and not colon:
        return Partition(kind)
    if kind == "bucket":
        if not colon:
            return Partition(kind)
        if _within(rest, MAX_BUCKETS):
            return Partition(kind, buckets=int(rest))
        raise BadPolicy(PARTITION_KEY, f"bucket:{rest}: a number from 1 to {MAX_BUCKETS} is expected")
    if kind == "tokens" and colon:
        parts = rest.replace(" ", "").split(",")
        if all(_within(part, MAX_TOKEN) for part in parts):
            tokens = tuple(map(int, parts))
            if len(set(tokens)) == len(tokens) <= MAX_TOKENS:
                return Partition(kind, tokens=tokens)
        raise BadPolicy(
            PARTITION_KEY, f"tokens:{rest}: up to {MAX_TOKENS} different positions from 1 to {MAX_TOKEN} are expected"
        )
    known = "auto, subject, tokens:1,3, bucket, bucket:N, or terms like day(time), hour(time), $.field, month($.field)"
    raise BadPolicy(PARTITION_KEY, f"{text[:80]!r} is not one of {known}")


def _keyed(text: str, cdc: str, has_schema: bool) -> KeyedPolicy | None:
    match = _LATEST.fullmatch(text.strip())
    if text != "append" and match is None:
        raise BadPolicy(TABLE_KEY, f"{text[:80]!r} is not one of append, latest, latest($.field, …)")
    fields = tuple(each.strip()[2:] for each in (match[1] or "").split(",") if each.strip()) if match else ()
    if not (cdc in (OFF, "debezium", "maxwell") or (cdc.startswith("op:$.") and len(cdc) > 5)):
        raise BadPolicy(CDC_KEY, f"{cdc[:80]!r} is not one of off, debezium, maxwell, op:$.field")
    if cdc != OFF and not fields:
        raise BadPolicy(CDC_KEY, f"{TABLE_KEY} has to name the key of the source table, like latest($.id)")
    if fields and not has_schema:
        raise BadPolicy(TABLE_KEY, f"key fields need {SCHEMA_KEY}, which makes them columns")
    if len(set(fields)) < len(fields) or len(fields) > MAX_KEYS:
        raise BadPolicy(TABLE_KEY, f"up to {MAX_KEYS} different fields are possible")
    return None if match is None else KeyedPolicy(fields, "" if cdc == OFF else cdc)


def _within(text: str, most: int) -> bool:
    """Return True if a text is a number from 1 to `most`. The length is checked first: Python refuses thousands of
    digits."""
    return text.isdecimal() and len(text) <= 9 and 1 <= int(text) <= most


def _duration(text: str, key: str = TIME_TRAVEL_PROPERTY, others: str = "") -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise BadPolicy(key, f"{text!r} is not {others}a duration like 90m, 12h, 30d or 4w, nor off")
    duration = int(match[1]) * _UNITS[match[2]] * 1_000_000_000
    if duration < LEAST_TIME_TRAVEL_NS:
        raise BadPolicy(key, f"{text} is below 1h: VACUUM would take files that are in use")
    if duration > 2**63 - 1:
        raise BadPolicy(key, f"{text} is more than 292 years")
    return duration


def _as_of(text: str) -> AsOfAsked:
    if text.isdecimal():
        if len(text) <= 19 and 1 <= int(text) < 1 << 63:
            return AsOfAsked(seq=int(text))
        raise BadPolicy(CLONE_AS_OF_KEY, f"{text[:40]} is not a possible sequence")
    try:
        return AsOfAsked(time_ns=instant(text))
    except TimeTravelError as error:
        raise BadPolicy(CLONE_AS_OF_KEY, f"{error}; or a sequence") from None


def _schema(text: str) -> str:
    if not text.strip():
        raise BadPolicy(JSON_SCHEMA_PROPERTY, "a list of columns like `price DOUBLE, qty INT` is expected")
    from lakestream.lake.table import json_schema

    return json_schema.parse(text.strip()).text


def _naming(text: str) -> str:
    try:
        naming.parse(text)
    except BadSchema as error:
        raise BadPolicy(SCHEMA_KEY, str(error)) from None
    return text.strip()


def _property(key: str, value: str) -> str:
    name = key.removeprefix(PROPERTIES)
    plain = name.lower()
    if not name or plain.startswith(PREFIX) or plain in _OF_THE_CATALOG:
        raise BadPolicy(key, "the name of a table property is expected after lakestream.properties.")
    if not plain.startswith("delta."):
        return name
    if plain not in _ALLOWED:
        reason = _REASONS.get(plain, "it may change who can read the table, or what the compactor relies on")
        raise BadPolicy(key, f"{name} cannot be set: {reason}")
    pattern, expected = _ALLOWED[plain]
    if not pattern.fullmatch(value):
        raise BadPolicy(key, f"{value[:40]!r} is not {expected}")
    return name


def interval_ns(text: str) -> int:
    """Return the length of an interval as Delta's table properties spell it (`interval 1 week`); 0 when it does not
    parse."""
    return sum(int(count) * _UNIT_NS[unit.lower()] for count, unit in _INTERVAL_PARTS.findall(text))


def tombstones_ns(properties: Mapping[str, str]) -> int:
    """Return for how long a table with these properties remembers the files that left it."""
    return interval_ns(properties.get(TOMBSTONES_PROPERTY, DEFAULT_TOMBSTONES))
