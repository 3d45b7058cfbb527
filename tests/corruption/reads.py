"""Files that are read without a store: backups, and the tokens of accounts.

Belongs here: an archive of a stream, a directory of tokens, and the judgement of a damage: what is read is refused, or
is the same as before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from lakestream.account.backup import archive
from lakestream.log.format.record import Record
from lakestream.net.accounts.token_files import TokenFiles
from lakestream.protocol import jwt, s2
from tests.corruption.cases import Case, Copy, Outcome, damage, outcome_of
from tests.keys import account_jwt, account_key, operator_key

ARCHIVE = "backup/stream.tar.s2"
TOKENS = "tokens"


def build(place: Path) -> None:
    """Make the backup of a stream with a consumer, and a directory with the tokens of two accounts."""
    messages = [Record(seq, seq * 10**9, b"s.%d" % (seq % 3), b"", b"%d" % seq * 10) for seq in range(1, 31)]
    state = {"messages": 30, "bytes": 900, "first_seq": 1, "last_seq": 30, "consumer_count": 1}
    config = msgspec.json.encode({"durable_name": "c", "ack_policy": "explicit"})
    acked = archive.ConsumerState(delivered=archive.ConsumerPosition(5, 5), ack_floor=archive.ConsumerPosition(3, 3))
    content = b"".join(
        (
            archive.MAGIC,
            archive.entry(archive.STATE_NAME, 0, body=msgspec.json.encode(state)),
            archive.consumer("c", 0, config, acked),
            archive.messages(messages),
            archive.END,
        )
    )
    (place / "backup").mkdir(parents=True)
    (place / ARCHIVE).write_bytes(s2.MAGIC + s2.encode(content))
    (place / TOKENS).mkdir()
    for name in "AB":
        key = account_key(name)
        (place / TOKENS / f"{key.public}.jwt").write_text(account_jwt(key, name, operator_key("O")))


class ReadsJudge:
    """Judge of these files.

    Args:
        place: as `build` made it.
        scratch: an empty directory.
    """

    def __init__(self, place: Path, scratch: Path) -> None:
        self._copy = Copy(place, scratch / "reads")
        self._expected = self._read()
        assert not any(isinstance(each, Exception) for each in self._expected.values()), self._expected

    def judge(self, case: Case) -> Outcome:
        """Return the outcome of a case."""
        damage(self._copy.path / case.file, case)
        outcome = outcome_of(case, lambda: self._judged(case))
        self._copy.restore(case.file)
        return outcome

    def _judged(self, case: Case) -> Outcome:
        seen = self._read()
        for file, expected in self._expected.items():
            if seen[file] == expected:
                continue
            if file != case.file:
                return Outcome(case, "another file is harmed", file)
            refused = isinstance(seen[file], Exception)
            return Outcome(case, "detected" if refused else "silently different", str(seen[file]))
        return Outcome(case, "harmless")

    def _read(self) -> dict[str, Any]:
        """Return what each file holds, or the error that it is refused with."""
        found: dict[str, Any] = {}
        try:
            reader = archive.Archive(archive.decoded([(self._copy.path / ARCHIVE).read_bytes()]))
            found[ARCHIVE] = (reader.state, reader.consumers, list(reader.messages()))
        except archive.ArchiveError as error:
            found[ARCHIVE] = error
        files = TokenFiles(str(self._copy.path / TOKENS), 10)
        files.open(())
        for path in sorted((self._copy.path / TOKENS).glob("*.jwt")):
            account = path.name.removesuffix(".jwt")
            try:
                token = jwt.decode(files.read(account), jwt.AccountClaims)
                found[f"{TOKENS}/{path.name}"] = msgspec.structs.replace(token, text="")
            except jwt.JwtError as error:
                found[f"{TOKENS}/{path.name}"] = error
        return found
