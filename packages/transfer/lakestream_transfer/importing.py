"""One run of an import: the messages of a source, and the stream that takes them, each once.

Belongs here: creating or comparing the stream, finding where an earlier run of the same import stopped, and saying
after a failure what is stored. The command line is command.py's, requests are in lakestream/cli/link.py.

A message is sent with the sequence that it is to get, and the server refuses it as any other. So row i of an import is
stored at sequence `first + i` or not at all, whatever is lost or sent twice, and for any `duplicate_window`: message
ids would be forgotten with the window, and would change the messages. The stream's metadata has the import's `first`
and an id: a digest of the source's contents and of the options that shape messages.

- The stream ends with row n: the next run goes on with row n + 1.
- The stream ends with something else: somebody published. Message `first + i` is compared with row i for all i, which
  tells the rows that are there. With `--append` the rest goes behind the strangers, with a new `first`.
- The id is another one: the same comparison decides; it only goes on if all messages are rows of this source.
- The id is that of a finished import: nothing is left to do.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from lakestream.cli.link import ClientLink, TransferFailed
from lakestream.lake.errors import LakeError
from lakestream.lake.progress import progress
from lakestream.log.format.record import Record
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream_transfer import mapping, tabular, text, text_mapping
from lakestream_transfer.sending import StreamSender, same

IMPORT_KEY = "lakestream-import"
"""Metadata key of a stream with the import that fills it, so that an interrupted one continues."""
SHOWN_BAD = 5
"""Bad rows that are shown; the rest is counted."""
MOST_EARLIER = 64
"""Finished imports into one stream that are remembered, so that repeating one of them stores nothing."""

_RUNNING, _FINISHED = "running", "finished"


class BadImportOption(Exception):
    """Raised for an invalid option; the text says which."""


class _Finished(msgspec.Struct, frozen=True):
    """A finished import: its id, and its last sequence."""

    id: str
    last: int


class _Note(msgspec.Struct):
    """The metadata value under IMPORT_KEY: the last import into the stream.

    Attributes:
        id: a digest of the source and the options.
        first: the sequence of its first message, or of message `stored` + 1.
        created: the import has created the stream.
        stored: messages that are stored before `first`, because somebody else published in between.
        state: "running", "finished"; "" of releases that did not note it.
        last: its last sequence when it is finished.
        earlier: finished imports before it.
    """

    id: str
    first: int
    created: bool = False
    stored: int = 0
    state: str = ""
    last: int = 0
    earlier: list[_Finished] = []

    def finished(self, id: str) -> _Finished | None:
        """Return the finished import with this id."""
        return next((each for each in self.all_finished() if each.id == id), None)

    def all_finished(self) -> list[_Finished]:
        """Return the finished imports, this one included, the oldest first."""
        own = [_Finished(self.id, self.last)] if self.state == _FINISHED else []
        return [*self.earlier, *own]


_NOTE = msgspec.json.Decoder(_Note)


class ImportTarget(msgspec.Struct, frozen=True):
    """The stream of an import, as its options describe it.

    `subjects` and `config` are the user's and are compared with an existing stream; `config_file` is where `config`
    comes from. `template` gives the subjects of a new stream by default.
    """

    name: str
    create: bool
    append: bool
    again: bool
    subjects: list[str]
    config: dict[str, Any]
    config_file: str
    template: str

    @classmethod
    def of(
        cls,
        name: str,
        create: bool,
        append: bool,
        again: bool,
        subjects: list[str] | None,
        config: Path | None,
        template: str,
    ) -> ImportTarget:
        """Read the configuration file, and check that a stream could be created where that is wanted."""
        given: Any = {}
        if config is not None:
            try:
                given = json.loads(config.read_bytes())
            except (OSError, ValueError) as error:
                raise BadImportOption(f"--config {config}: {error}") from None
            if not isinstance(given, dict):
                raise BadImportOption(f"--config {config}: it is not a JSON object")
        target = cls(name, create, append, again, subjects or [], given, str(config or ""), template)
        if create and not target.new()["subjects"]:
            raise BadImportOption("--create needs --subjects: the column does not tell which there will be")
        return target

    def given(self) -> dict[str, Any]:
        """Return the configuration that the user gave."""
        return {**self.config, **({"subjects": self.subjects} if self.subjects else {}), "name": self.name}

    def new(self) -> dict[str, Any]:
        """Return the configuration of the stream to create."""
        given = self.given()
        return {"storage": "file", **given, "subjects": given.get("subjects") or mapping.subjects_of(self.template)}


class ImportRows:
    """The messages of a source in order, and its invalid rows.

    Args:
        ordered: the source is read in the order wanted; else it is sorted by time.
        shape: further options that shape the messages.
    """

    def __init__(
        self,
        source: tabular.TableSource | text.TextSource,
        mapper: mapping.Mapper | text_mapping.TextMapper,
        skip_bad: bool,
        ordered: bool,
        shape: object = None,
    ) -> None:
        self.source, self._mapper = source, mapper
        self._skip_bad, self._ordered, self._shape = skip_bad, ordered, shape
        self.bad: list[mapping.BadRow] = []
        self.bad_count = 0

    @property
    def id(self) -> str:
        """Return an id that is equal for equal messages in the same order. Reads the whole source."""
        spelled = repr((self._mapper.columns, self._shape, self._ordered, self.source.identity))
        return hashlib.sha256(spelled.encode()).hexdigest()[:16]

    def messages(self) -> Iterator[list[Record]]:
        """Yield all messages; each one's `seq` is its row. Counts bad rows anew."""
        self.bad, self.bad_count = [], 0
        if self._mapper.sorts or (self._mapper.columns.time and not self._ordered and not self._ascending()):
            return tabular.sorted_messages(self._mapped())
        return (mapped.messages for mapped in self._mapped())

    def _mapped(self) -> Iterator[mapping.MappedRows]:
        row = 1
        for batch in self.source.batches():
            mapped = self._mapper.map(batch, row)
            row += mapped.rows
            if mapped.bad and not self._skip_bad:
                raise mapped.bad[0]
            self.bad_count += len(mapped.bad)
            self.bad += mapped.bad[: SHOWN_BAD - len(self.bad)]
            yield mapped

    def _ascending(self) -> bool:
        """Return True if rows are in the order of their times already: reading one column saves the sort."""
        last = 0
        for batch in self.source.batches([self._mapper.columns.time]):
            for time_ns in self._mapper.times(batch):
                if time_ns < last:
                    return False
                last = time_ns
        return True


class _Start(msgspec.Struct, frozen=True):
    """The point at which a run begins.

    Attributes:
        done: messages of the import that are stored. last: the stream's last sequence.
        own: the last message has to be the import's.
        finished: the same import, if there is nothing left to do.
    """

    done: int
    last: int
    own: bool = False
    finished: _Finished | None = None


class _Refused(TransferFailed):
    """Raised when the stream does not have the messages that this import has to go on from."""


class ImportRun:
    """One run of an import: a new one, or the rest of an interrupted one."""

    def __init__(self, link: ClientLink, rows: ImportRows, target: ImportTarget) -> None:
        self._link, self._rows = link, rows
        self._stream, self._target = target.name, target
        self._id = rows.id
        self._config: dict[str, Any] = {}
        """The stream's configuration as it was found."""

    def run(self) -> tuple[int, float]:
        """Send what is missing. Return the number of messages that this run has stored, and the seconds for them.

        Raises:
            TransferFailed, LakeError: the text says what is stored, and how to go on.
        """
        start = self._begin()
        if start.finished is not None:
            print(
                f"{self._stream}: this import was finished before, its last message is {start.finished.last:,}; "
                "--again stores its messages once more",
                file=sys.stderr,
            )
            return 0, 0.0
        if start.done:
            print(f"{self._stream}: {start.done:,} messages are there already, going on behind them", file=sys.stderr)
        sender = StreamSender(self._link, self._stream, start.last)
        began = time.perf_counter()
        try:
            with progress("import", self._rows.source.rows, start.done) as advance:
                for messages in self._behind(start):
                    sender.put(messages)
                    advance(len(messages))
                sender.finish()
        except _Refused:
            raise
        except (TransferFailed, LakeError) as error:
            raise TransferFailed(f"{error}\n{self._unfinished(start, sender)}") from None
        took = time.perf_counter() - began
        self._finish(sender.stored)
        return sender.stored - start.last, took

    def _unfinished(self, start: _Start, sender: StreamSender) -> str:
        """Return what a failed run leaves behind, and the ways on."""
        stored, certain = sender.settled()
        count = start.done + stored - start.last
        least = "" if certain else "at least "
        if not count and certain:
            return f"Nothing of this import is stored in {self._stream}. Correct it and repeat the command."
        over = f" To start over instead, delete stream {self._stream}." if self._target.create else ""
        return (
            f"{least.capitalize()}{count:,} messages of this import are stored in {self._stream}, the last as sequence "
            f"{stored:,}. The same command goes on behind them and stores nothing twice, also with corrected rows or "
            f"options, as long as they make the same first {count:,} messages.{over}"
        )

    # ------------------------------------------------------------------ the stream
    def _begin(self) -> _Start:
        """Create or check the stream, and find where to begin."""
        info = self._link.stream(self._stream)
        target = self._target
        if info is None:
            if not target.create:
                raise TransferFailed(f"there is no stream {self._stream}; --create makes it")
            wanted = target.new()
            first = max(int(wanted.get("first_seq", 1)), 1)
            created = _Note(self._id, first, True, state=_RUNNING)
            self._link.api(f"STREAM.CREATE.{self._stream}", _with_note(wanted, created))
            return _Start(0, first - 1)
        config, last = info["config"], int(info["state"]["last_seq"])
        self._config = config
        before = _noted(config)
        finished = None if before is None or target.again else before.finished(self._id)
        if finished is not None and finished.last and not int(info["state"]["messages"]):
            raise TransferFailed(
                f"this import into stream {self._stream} is complete, but its messages have been removed since; "
                "--again stores them again"
            )
        note = self._continued(before, last, int(info["state"]["messages"])) if finished is None else before
        if note is not None and note.created and target.create:
            # The stream was made for this import, so the current options apply.
            given = target.new() if last < note.first else target.given()
            config = {**config, **given, "metadata": {**_metadata(config), **_metadata(target.config)}}
        else:
            self._compare(config)
        if note is None:
            if last and not (target.append or target.again):
                raise TransferFailed(
                    f"stream {self._stream} has messages (the last is {last}) that are not from this source with "
                    "these options; --append adds the import after them"
                )
            earlier = before.all_finished()[-MOST_EARLIER:] if before is not None else []
            note = _Note(self._id, last + 1, state=_RUNNING, earlier=earlier)
        self._write(config, note)
        return _Start(note.stored + last - note.first + 1, last, last >= note.first, finished)

    def _continued(self, before: _Note | None, last: int, count: int) -> _Note | None:
        """Return the note of an earlier run of this import; None if this is another import.

        Args:
            before: the note of the last import. last: the stream's last sequence. count: its messages.

        Raises:
            TransferFailed: an unfinished import has stored other messages.
        """
        if before is None or self._target.again:
            return None
        ended = before.state != _RUNNING
        if last < before.first and not before.stored:  # it has stored nothing
            return _Note(self._id, before.first, before.created, state=_RUNNING, earlier=before.earlier)
        strangers = before.id == self._id and self._target.append
        if before.id == self._id and not strangers:
            before.state = _RUNNING
            return before  # `_check` looks at the last message
        if ended and self._target.append:
            return None
        end = before.last if before.state == _FINISHED else last
        rows = self._stored_rows(before, end, count)
        if rows == end - before.first + 1:
            # A grown source: those behind the finished import's last message are not of it.
            cut = before.state == _FINISHED and last > before.last
            stored, first = (before.stored + rows, last + 1) if cut else (before.stored, before.first)
            return _Note(self._id, first, before.created, stored, _RUNNING, earlier=before.earlier)
        if strangers and rows is not None:
            return _Note(self._id, last + 1, before.created, before.stored + rows, _RUNNING, earlier=before.earlier)
        if strangers and count < last - before.first + 1:
            return before  # limits have removed messages: `_check` looks at the last one
        if strangers:
            raise TransferFailed(
                f"stream {self._stream}: rows are missing before others that are stored (from sequence "
                f"{before.first:,}), as somebody else published to it; delete the stream, or store all rows once more "
                "with --again"
            )
        if not self._target.append:
            return None
        raise TransferFailed(
            f"stream {self._stream} has messages of an unfinished import (from sequence {before.first:,}) that are not "
            "all rows of this source with these options. To finish that import, run its command again; to store this "
            "source after them, add --again"
        )

    def _stored_rows(self, note: _Note, end: int, count: int) -> int | None:
        """Return how many rows, from row `stored` + 1 of the note, the messages from its `first` to `end` are, if those
        that are stored come first; None if they do not, or messages were removed."""
        if count < end - note.first + 1:
            return None
        rows = (each for some in self._rows.messages() for each in some)
        for _ in range(note.stored):
            next(rows, None)
        seq, stored, holes = note.first, 0, False
        for block in self._link.messages(self._stream, note.first, end):
            for found in block:
                ours = next(rows, None)
                if found.seq != seq:
                    return None
                if ours is None:
                    return stored
                if not same(ours, found):
                    holes = True
                elif holes:
                    return None
                else:
                    stored += 1
                seq += 1
        return stored if seq == end + 1 else None

    def _finish(self, last: int) -> None:
        """Note that the import has ended."""
        info = self._link.stream(self._stream)
        note = _noted(info["config"]) if info is not None else None
        if info is None or note is None or note.id != self._id:
            return  # the configuration was written anew meanwhile
        note.state, note.last = _FINISHED, last
        self._config = info["config"]
        self._write(info["config"], note)

    def _write(self, config: dict[str, Any], note: _Note) -> None:
        wanted = _with_note(config, note)
        if wanted != self._config:
            self._link.api(f"STREAM.UPDATE.{self._stream}", wanted)

    def _compare(self, config: dict[str, Any]) -> None:
        """Raise TransferFailed when the stream differs from --subjects and --config."""
        target, has = self._target, config.get("subjects") or []
        if target.subjects and set(target.subjects) != set(has):
            raise TransferFailed(
                f"stream {self._stream} has the subjects {', '.join(has) or '(none)'}, and --subjects says "
                f"{', '.join(target.subjects)}; leave it out, or change the stream first"
            )
        if target.config:
            metadata = {**_metadata(config), **_metadata(target.config)}
            wanted = {"storage": "file", "subjects": has, **target.given(), "metadata": metadata}
            try:
                self._link.api(f"STREAM.CREATE.{self._stream}", wanted)  # the server compares
            except TransferFailed as error:
                raise TransferFailed(
                    f"stream {self._stream} is not as --config {target.config_file}: {error}"
                ) from None

    # ------------------------------------------------------------------ messages
    def _behind(self, start: _Start) -> Iterator[list[Record]]:
        """Yield the messages after those that are stored."""
        done, latest = start.done, None
        for messages in self._rows.messages():
            skipped = min(done, len(messages))
            latest = messages[skipped - 1] if skipped else latest
            done -= skipped
            if skipped < len(messages):
                self._check(latest, start)
                latest = None
                yield messages[skipped:] if skipped else messages
        if done:
            raise _Refused(f"stream {self._stream} has {done:,} messages more than {self._rows.source.path}")
        self._check(latest, start)

    def _check(self, latest: Record | None, start: _Start) -> None:
        """Check that an import continues behind its own messages; `latest`: the last one that has to be there."""
        found = self._link.message(self._stream, start.last) if latest is not None and start.own else None
        if latest is not None and found is not None and not same(latest, found):
            raise _Refused(
                f"stream {self._stream}: its last message ({start.last}) is not what row {latest.seq} makes: somebody "
                "else published to it; with --append the import goes on behind their messages"
            )


def _metadata(config: dict[str, Any]) -> dict[str, str]:
    return config.get("metadata") or {}


def _noted(config: dict[str, Any]) -> _Note | None:
    """Return the last import into a stream; None without one."""
    noted = _metadata(config).get(IMPORT_KEY)
    if noted:
        with contextlib.suppress(*DECODE_ERRORS):
            return _NOTE.decode(noted)
    return None


def _with_note(config: dict[str, Any], note: _Note) -> dict[str, Any]:
    return {**config, "metadata": {**_metadata(config), IMPORT_KEY: msgspec.json.encode(note).decode()}}
