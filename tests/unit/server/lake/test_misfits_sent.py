"""Tests of the misfits that the server reads from their table in the lake and has sent."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from lakestream.lake.storage import paths
from lakestream.lake.storage.locks import COMPACTOR_LOCK, mark
from lakestream.log.store.segment_log import LogOptions
from lakestream.protocol import headers
from tests.unit.account.test_engines import World

pytestmark = pytest.mark.unit

SECOND = 1_000_000_000


class Sending:
    """A server with a stream whose misfits are sent to another, and the tables that a compactor would write."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory, "A", lake=True)
        self.world.stores._options = LogOptions(seal_age_ns=1)
        self.lake = str(directory / "lake")
        self.world.keeper.start()
        metadata = {"lakestream.misfits.subject": "dead.s"}
        self.world.create("A", "S", metadata=metadata)
        self.world.create("A", "DEAD", subjects=["dead.>"])
        self.stream = self.world.engines.of("A").streams["S"]
        self.table = paths.table(self.lake, "S", "A")

    def commit(self, *seqs: int, name: str = "_misfits", uid: str = "") -> None:
        """Commit misfits, and move the position of the stream's table."""
        rows = {"seq": pa.array(seqs, pa.int64()), "schema": ["x@1"] * len(seqs), "field": ["n"] * len(seqs)}
        rows |= {"rule": ["type"] * len(seqs), "reason": ["no number"] * len(seqs)}
        write_deltalake(f"{self.table}{name}", pa.table(rows), mode="append")
        first = Path(f"{self.table}{name}", "_delta_log", f"{0:020}.json")
        owner = json.dumps(
            {"lakestream.misfits_of": uid or self.stream.uid}
        )  # deltalake writes properties of Delta only
        first.write_text(first.read_text().replace('"configuration":{}', f'"configuration":{owner}'))
        moved = Transaction(f"lakestream:{self.stream.uid}", self.stream.store.applied)
        properties = CommitProperties(app_transactions=[moved])
        write_deltalake(self.table, pa.table({"seq": [1]}), mode="append", commit_properties=properties)
        mark(f"{self.lake}/{COMPACTOR_LOCK}")

    def sent(self) -> list[int]:
        """Let time pass; return the sequences of the misfits that were sent."""
        for _ in range(20):
            self.world.clock.advance(SECOND)
            self.world.settle()
        store = self.world.engines.of("A").streams["DEAD"].store
        records = [store.read(seq) for seq in range(1, store.last_seq + 1)]
        return [int(headers.get(each.header, b"Dead-Letter-Sequence") or 0) for each in records if each is not None]


def test_listed_misfits_are_sent_in_turns_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.stream.consumer.dead_letters.MOST_MISFITS", 2)
    sending = Sending(tmp_path)
    for _ in range(6):
        sending.world.publish("A", "S")
    assert sending.sent() == []
    sending.commit(1, 2, 3, 5, 6)
    assert sending.sent() == [1, 2, 3, 5, 6]
    sending.world.publish("A", "S")
    sending.world.settle()
    sending.commit(7)
    assert sending.sent() == [1, 2, 3, 5, 6, 7]
    sending.world.stop()


def test_only_the_table_of_the_streams_own_misfits_is_read(tmp_path: Path) -> None:
    sending = Sending(tmp_path)
    sending.world.publish("A", "S")
    sending.world.settle()
    sending.commit(1, uid="of another")
    assert sending.sent() == []
    sending.world.publish("A", "S")
    sending.world.settle()
    sending.commit(2, name="_misfits_")
    assert sending.sent() == [2]
    sending.world.stop()


def test_a_table_that_cannot_be_read_is_reported_and_read_again(tmp_path: Path) -> None:
    sending = Sending(tmp_path)
    sending.world.publish("A", "S")
    sending.world.settle()
    sending.commit(1)
    file = next(Path(f"{sending.table}_misfits").glob("*.parquet"))
    file.rename(tmp_path / "away")
    assert sending.sent() == []
    assert "are not sent" in json.dumps(sending.world.keeper.troubles())
    (tmp_path / "away").rename(file)
    assert sending.sent() == [1]
    assert "are not sent" not in json.dumps(sending.world.keeper.troubles())
    sending.world.stop()
