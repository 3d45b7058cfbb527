"""Requests that a mirror's table begin as a clone, and their answers.

Belongs here: the request and its answer, two files in the mirror's staging directory, and which program may write or
delete them. lakestream_spark/write/clone_maker.py makes the table.

    clone.json     the request: written whole by the server, never changed
    cloned.json    the answer: created once, by the compactor (made, refused) or by the server (withdrawn)

The first answer counts. After `withdrawn` the compactor removes the table and both files; after any other answer the
server removes the files, as soon as its log records the outcome. The request is deleted before the answer, so that no
half-deleted pair looks like a new request. The server may discard a finished table as long as its mirror has no
message, by replacing the answer with a withdrawal.

Invariant: while a request has no answer, no segment of the mirror is compacted into its table.
"""

from __future__ import annotations

import msgspec

from lakestream.lake.staging.staging import StreamIdentity, introduce
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import Storage

REQUEST_FILE = paths.CLONE_FILE
ANSWER_FILE = "cloned.json"

MAKING = "making:"
"""Prefix of the mirror's uid in the owner property of an unfinished table."""

MADE = "made"
REFUSED = "refused"
WITHDRAWN = "withdrawn"


class SubjectSelection(msgspec.Struct, frozen=True):
    """Subjects that a mirror takes: those that match `filter` (empty: all), transformed by `destination` (empty:
    unchanged)."""

    filter: str
    destination: str = ""


class CloneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Selection of the rows with which a mirror begins.

    `index`: the position that the mirror's table will have, an index of the mirror's own log before its first message.
    `through`: the index of the origin's log that the origin's table has to reach first. `start_seq`, `start_ns`:
    earlier messages are left out. `as_of_seq`, `as_of_ns`: the origin right after a sequence was stored, or at a time;
    at most one is not 0. `selections`: a row is taken if one of them matches, as the first match says; without any, all
    rows are taken and the files are shared.
    """

    origin: str
    origin_uid: str
    origin_account: str = paths.DEFAULT_ACCOUNT
    index: int = 1
    through: int = 0
    start_seq: int = 0
    start_ns: int = 0
    as_of_seq: int = 0
    as_of_ns: int = 0
    selections: list[SubjectSelection] = []


_CLONE_REQUEST = msgspec.json.Decoder(CloneRequest)


class CloneAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a request.

    `origin_index` and `origin_version` identify the state of the origin (0: a point in between, and for the index
    unknown); `last_seq`, `last_time_ns` and `floor` (its first sequence) are the origin's at that point. `messages`,
    `first_row_seq` and `last_row_seq` describe the rows. `version` is the version of the mirror's table that has
    exactly them. `copied`: the rows were copied, the files not shared.
    """

    state: str
    reason: str = ""
    index: int = 0
    origin_index: int = 0
    origin_version: int = 0
    last_seq: int = 0
    last_time_ns: int = 0
    floor: int = 0
    first_row_seq: int = 0
    last_row_seq: int = 0
    messages: int = 0
    version: int = 0
    copied: bool = False
    seconds: float = 0.0


_CLONE_ANSWER = msgspec.json.Decoder(CloneAnswer)


def request(lake: str, mirror: StreamIdentity, asked: CloneRequest) -> None:
    """Ask the compactor for a table. Does nothing when the request is answered already."""
    storage, directory = _place(lake, mirror)
    introduce(storage, directory, mirror)
    if not storage.exists(f"{directory}/{REQUEST_FILE}"):
        storage.delete(f"{directory}/{ANSWER_FILE}")  # left behind by a kill
    storage.create(f"{directory}/{REQUEST_FILE}", msgspec.json.encode(asked))


def has_request(lake: str, mirror: StreamIdentity) -> bool:
    """Return True if there is a request that is not settled."""
    storage, directory = _place(lake, mirror)
    return storage.exists(f"{directory}/{REQUEST_FILE}")


def answer(lake: str, mirror: StreamIdentity) -> CloneAnswer | None:
    """Return the answer to a request; None while it is open."""
    storage, directory = _place(lake, mirror)
    return answered(storage, directory)


def withdraw(lake: str, mirror: StreamIdentity) -> CloneAnswer:
    """Stop waiting; return the answer: `withdrawn`, unless another one came first, which then counts."""
    storage, directory = _place(lake, mirror)
    return decide(storage, directory, CloneAnswer(state=WITHDRAWN))


def discard(lake: str, mirror: StreamIdentity) -> None:
    """Let the mirror begin without a clone, whatever the answer was.

    Call it only while the mirror has no message in log or table, and stage nothing of it before this returns. Does
    nothing without a request.
    """
    storage, directory = _place(lake, mirror)
    if storage.exists(f"{directory}/{REQUEST_FILE}"):
        storage.write(f"{directory}/{ANSWER_FILE}", msgspec.json.encode(CloneAnswer(state=WITHDRAWN)))


def settle(lake: str, mirror: StreamIdentity) -> None:
    """Remove a request and its answer after the mirror's log has recorded the outcome. Not after `withdrawn`."""
    storage, directory = _place(lake, mirror)
    forget(storage, directory)


# The compactor's side


def asked_of(storage: Storage, directory: str) -> CloneRequest | None:
    """Return the request in a staging directory; None when there is none."""
    try:
        content = storage.read(f"{directory}/{REQUEST_FILE}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _CLONE_REQUEST.decode(content)


def answered(storage: Storage, directory: str) -> CloneAnswer | None:
    """Return the answer in a staging directory; None when there is none."""
    try:
        content = storage.read(f"{directory}/{ANSWER_FILE}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _CLONE_ANSWER.decode(content)


def decide(storage: Storage, directory: str, said: CloneAnswer) -> CloneAnswer:
    """Give an answer unless there is one; return the one that counts."""
    if storage.create(f"{directory}/{ANSWER_FILE}", msgspec.json.encode(said)):
        return said
    return answered(storage, directory) or said  # a withdrawn request may have been removed already


def is_open(storage: Storage, directory: str) -> bool:
    """Return True if the compactor has to handle a request first: it has no answer, or was withdrawn."""
    if not storage.exists(f"{directory}/{REQUEST_FILE}"):
        return False
    said = answered(storage, directory)
    return said is None or said.state == WITHDRAWN


def forget(storage: Storage, directory: str) -> None:
    """Remove the request, then the answer."""
    storage.delete(f"{directory}/{REQUEST_FILE}")
    storage.delete(f"{directory}/{ANSWER_FILE}")


def _place(lake: str, mirror: StreamIdentity) -> tuple[Storage, str]:
    storage = open_storage(lake)
    return storage, paths.staging(storage.root, mirror.name, mirror.uid, mirror.account)
