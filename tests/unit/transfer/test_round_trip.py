"""Property: an export that is imported has the same messages, byte for byte, in every format."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lakestream.log.format.record import Record
from lakestream.protocol.subjects import publishable
from lakestream_transfer import tabular
from lakestream_transfer.finding import TEXTS, find
from lakestream_transfer.mapping import Mapper, is_own
from lakestream_transfer.text import TextSource
from lakestream_transfer.text_mapping import TextMapper
from lakestream_transfer.unmapping import Fields, Unmapper

# Texts that CSV, JSON and readers of types treat in some way of their own.
ODD = [
    *("", "007", "1e5", "NULL", "n/a", "true", "\\N", "'", " sp ", "2026-05-01", "YWJj", "base64:", "base64:YQ=="),
    "\U0001f600",
    *('"', '""', "a,b", "a;b", "a\tb", "a\rb", "a\nb", "a\r\nb", "\0", "\ufeffbom", "\u2028", "\x85", "\x1c"),
    *('{"a":1.50}', "[1]", "\\ud800", "#", "=1+1"),
]
texts = st.sampled_from(ODD) | st.text(max_size=20)
payloads = texts.map(str.encode) | st.binary(max_size=30)

tokens = st.text(min_size=1, max_size=8) | st.sampled_from(["é", '"', "a,b", "=1", "base64:", "\ud7ff", "%20", "\\xff"])
raw_tokens = tokens.map(str.encode) | st.binary(min_size=1, max_size=6)
raw_subjects = st.lists(raw_tokens, min_size=1, max_size=4).map(b".".join)
subjects = raw_subjects.filter(publishable)

_line = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=12)
names = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=8)
parts = st.tuples(names, st.sampled_from([": ", ":", ":  "]), _line | st.sampled_from(ODD[:12]))
lines = parts.map("".join).map(str.encode)
blocks = st.lists(lines, max_size=4).map(lambda found: b"NATS/1.0\r\n" + b"".join(x + b"\r\n" for x in found) + b"\r\n")
headers = st.just(b"") | blocks | st.binary(min_size=1, max_size=20)

messages = st.lists(st.tuples(subjects, headers, payloads), max_size=8)


def exported(target: Path, format: str, sent: Sequence[Record]) -> None:
    unmapper = Unmapper(Fields())
    batches = [unmapper.batch(some, []) for some in (sent[:3], sent[3:]) if some]
    tabular.write(str(target), tabular.format_of(target.name), unmapper.schema, iter(batches), False)


def imported(target: Path) -> list[Record]:
    files = find(str(target))
    if files.kind in TEXTS:
        text = TextSource(files)
        assert not text.names or is_own(text.names)
        mapper = TextMapper(None, text, order_by=("seq",))
        ordered = tabular.sorted_messages(mapper.map(chunk, 1) for chunk in text.batches())
        return [each for some in ordered for each in some]
    table = tabular.TableSource(files, order_by=("seq",))
    own = Mapper(None, table.schema)
    found = []
    for batch in table.batches():
        mapped = own.map(batch, 1)
        assert mapped.bad == []
        found += mapped.messages
    return found


def check(format: str, found: Sequence[tuple[bytes, bytes, bytes]]) -> None:
    sent = [Record(seq, 10**18 + seq * 1001, *each) for seq, each in enumerate(found, 1)]
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory) / f"out.{format}"
        exported(target, format, sent)
        got = [(each.time_ns, each.subject, each.header, each.data) for each in imported(target)]
    assert got == [(each.time_ns, each.subject, each.header, each.data) for each in sent]


PLAIN = [
    (f"a.{number}".encode(), b"NATS/1.0\r\nK: v\r\n\r\n" if number % 2 else b"", text.encode())
    for number, text in enumerate(ODD)
]


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(PLAIN)
@example([])
@example([(b"\xff.x", b"NATS/1.0\r\nA:1\r\n\r\n", b"\xff"), (b"a", b"NATS/1.0\r\n\r\n", b"")])
@given(messages)
def test_an_export_imported_again_has_the_same_messages(format: str, found: list[tuple[bytes, bytes, bytes]]) -> None:
    check(format, found)


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(PLAIN)
@given(messages)
def test_a_delta_table_imported_again_has_the_same_messages(found: list[tuple[bytes, bytes, bytes]]) -> None:
    check("delta", found)
