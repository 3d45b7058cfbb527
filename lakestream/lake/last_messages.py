"""The last message of each subject, as the index of a stream's leader has it.

Belongs here: the request `$LAKE.API.LAST.<stream>`, and the pages of its answer. A page has sequences and subjects in
columns; the messages themselves are read from the lake.

An index that is read before a view is opened (lakestream_client/lake/view.py) leads to exactly the last messages of
that view: of a subject without a message beyond the table it names the last one there, unless that was removed since,
which the view knows. So pages may be made while the stream goes on. The numbers of log entries in them tell which views
they may serve.
"""

from __future__ import annotations

import msgspec

MAX_SUBJECTS = 2_000_000
"""Maximum number of subjects in an answer (2 M), which are about 100 MB in the reader's memory."""

MAX_FILTERS = 4096
"""Maximum number of filters of a request."""


class LastRequest(msgspec.Struct, frozen=True):
    """The body of the request. `filters`: subjects, which may have wildcards; none: all. A request for more than `most`
    subjects fails."""

    filters: list[str] = []
    most: int = MAX_SUBJECTS


class LastWanted(msgspec.Struct, frozen=True):
    """The last messages of a stream that a query wants: of the subjects that match a filter; of all without filters."""

    stream: str
    filters: tuple[str, ...] = ()


class LastPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the answer, as msgpack.

    `applied`: in the first page the newest log entry that the index had when the answer began; in the last page, which
    has `done`, the one that it has at most. `seqs` are 64-bit and `lengths` 32-bit little-endian numbers; `subjects`
    are joined. `error`: there is no answer; with `code` 404 there is no such stream.
    """

    uid: str = ""
    applied: int = 0
    seqs: bytes = b""
    lengths: bytes = b""
    subjects: bytes = b""
    done: bool = False
    error: str = ""
    code: int = 0


PAGE = msgspec.msgpack.Decoder(LastPage)
