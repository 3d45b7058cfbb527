"""Comparison of two Avro schemas by "Schema Resolution" of the specification: can the reader read what was written?

Belongs here: the rules, named as in Avro's own check of compatibility. Names of records are compared without their
namespaces, as there.
"""

from __future__ import annotations

from lakestream_schemas.avro.model import AvroType, parse
from lakestream_schemas.differences import Differences

_PROMOTIONS = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}


def compare(writer: str, reader: str, found: Differences) -> None:
    """Add the differences of a reader's schema to a writer's.

    Raises:
        BadSchema: one of them cannot be read.
    """
    _Comparison().compare(parse(writer, any_root=True), parse(reader, any_root=True), found)


class _Comparison:
    def __init__(self) -> None:
        self._open: set[tuple[int, int]] = set()

    def compare(self, old: AvroType, new: AvroType, found: Differences) -> None:
        if (id(old), id(new)) in self._open:
            return
        self._open.add((id(old), id(new)))
        if old.kind == "union" or new.kind == "union":
            self._unions(old, new, found)
        elif old.kind == new.kind:
            self._same(old, new, found)
        elif (old.kind, new.kind) in _PROMOTIONS:
            found.add("type_promoted", f"{old.kind} became {new.kind}", True)
        else:
            found.add("type_mismatch", f"{old.label} became {new.label}")
        self._open.discard((id(old), id(new)))

    def _unions(self, old: AvroType, new: AvroType, found: Differences) -> None:
        if old.kind == "union":
            # Each value carries its branch, so each branch has to be readable.
            for branch in old.parts:
                trial = found.trial()
                self.compare(branch, new, trial)
                if not trial.is_compatible:
                    found.add("missing_union_branch", f"the branch {branch.label} cannot be read any more")
                found.extend(trial)
            return
        trials = []
        for branch in new.parts:
            trial = found.trial()
            self.compare(old, branch, trial)
            trials.append((branch.kind != old.kind, trial))
        fitting = [trial for _, trial in sorted(trials, key=lambda each: each[0]) if trial.is_compatible]
        if not fitting:
            found.add("missing_union_branch", f"the union has no branch for {old.label}")
        else:
            found.extend(fitting[0])

    def _same(self, old: AvroType, new: AvroType, found: Differences) -> None:
        if old.name and _short(old.name) != _short(new.name) and not {old.name, _short(old.name)} & set(new.aliases):
            found.add("name_mismatch", f"the name {old.name} became {new.name}")
            return
        if old.kind == "record":
            self._records(old, new, found)
        elif old.kind in ("array", "map"):
            self.compare(old.parts[0], new.parts[0], found.inside("[]" if old.kind == "array" else "{}"))
        elif old.kind == "fixed" and old.size != new.size:
            found.add("fixed_size_mismatch", f"the size went from {old.size} to {new.size}")
        elif old.kind == "enum":
            missing = [symbol for symbol in old.names if symbol not in new.names]
            if missing:
                rule, text = "missing_enum_symbols", f"{', '.join(missing)[:200]} cannot be read any more"
                found.add(rule, text, new.default is not None)
            if any(symbol not in old.names for symbol in new.names):
                found.add("enum_symbols_added", "there are more symbols", True)
        if (old.logical, old.precision, old.scale) != (new.logical, new.precision, new.scale):
            text = f"the logical type went from {old.logical or 'none'} to {new.logical or 'none'}"
            both_decimal = old.logical == new.logical == "decimal"
            wider = both_decimal and new.scale == old.scale and new.precision >= old.precision
            found.add("logical_type_changed", text, wider or not both_decimal)

    def _records(self, old: AvroType, new: AvroType, found: Differences) -> None:
        before = dict(zip(old.names, old.parts, strict=True))
        used = set()
        for name, part in zip(new.names, new.parts, strict=True):
            source = next((each for each in (name, *new.field_aliases.get(name, ())) if each in before), None)
            inner = found.inside(name)
            if source is not None:
                used.add(source)
                if source != name:
                    inner.add("field_renamed", f"it was called {source}", True)
                self.compare(before[source], part, inner)
            elif name in new.defaults:
                inner.add("field_with_default_added", "it came, with a default", True)
            else:
                inner.add("reader_field_missing_default_value", "it came without a default")
        for name in old.names:
            if name not in used:
                found.inside(name).add("field_removed", "it is not read any more", True)


def _short(name: str) -> str:
    return name.rpartition(".")[2]
