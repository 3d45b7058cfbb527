"""Errors of the client.

Belongs here: exceptions whose texts say what to do. Errors of nats-py's own API stay nats-py's.
"""

from __future__ import annotations

from lakestream.extras import ExtraMissing


class ClientError(Exception):
    """Base of all errors of this package."""


class CannotConnect(ClientError):
    """Raised when no server is reached, or the login is refused."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"cannot connect to {where}: {reason}. Check the address and that the server runs")


class NoAnswer(ClientError):
    """Raised when a server does not answer a request in time."""

    def __init__(self, subject: str, timeout: float) -> None:
        super().__init__(
            f"no answer to {subject} in {timeout:g} s. Check the user's permissions for this subject, or raise "
            "`timeout` of connect()"
        )


class NoJetStream(ClientError):
    """Raised when the server, or the user's account, has no JetStream."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"there is no JetStream: {reason}. Start the server with -js, and enable it for the account")


class NoSuchStream(ClientError):
    """Raised for a stream that does not exist."""

    def __init__(self, stream: str) -> None:
        bucket = f" (key-value bucket {stream[3:]})" if stream.startswith("KV_") else ""
        super().__init__(
            f"there is no stream {stream}{bucket} in this account. `nats stream ls -a` lists the streams; log in as a "
            "user of the account that has it"
        )


class NoSuchMessage(ClientError, KeyError):
    """Raised when there is no such message, or there was none at the requested point."""

    def __str__(self) -> str:
        return str(self.args[0])


class NoSuchKey(NoSuchMessage):
    """Raised when a bucket has no such key, or had none at the requested point."""


class DirectGetDisabled(ClientError):
    """Raised when a stream does not allow direct gets."""

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"stream {stream} does not allow direct gets. Enable them: `nats stream edit {stream} --allow-direct` "
            "(buckets of nats-py: create_key_value(direct=True))"
        )


class Refused(ClientError):
    """Raised when the server refuses a request, or cannot read a message."""

    def __init__(self, stream: str, status: int, reason: str) -> None:
        self.status, self.reason = status, reason
        super().__init__(f"stream {stream}: the server answers {status} {reason}")


class QueryFailed(ClientError):
    """Raised for a query that the server does not answer.

    Attributes:
        code: as in docs/sql-over-nats.md.
    """

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        super().__init__(reason)


class PastUnavailable(ClientError):
    """Raised for a point that the stream's recorded past does not reach."""

    def __init__(self, stream: str, point: str, reason: str) -> None:
        super().__init__(
            f"stream {stream} cannot be read as of {point}: {reason}. The past begins with the next segment after the "
            "stream got the metadata lakestream.time_travel, and ends with its value"
        )


class NoTimeTravel(ClientError):
    """Raised for a stream whose removed messages are not recorded, so that its earlier states are not known exactly."""

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(
            f"the earlier states of stream {stream} are not known exactly: {reason}. Set the metadata "
            "lakestream.time_travel (such as 30d) on a lakestream server; `exact=False` reads those messages of that "
            "time that are left"
        )


class TooManySubjects(ClientError):
    """Raised when more subjects match than the server returns for an earlier state, and the lake is not reachable."""

    def __init__(self, stream: str, subjects: str) -> None:
        super().__init__(
            f"stream {stream}: more than 1,024 subjects match {subjects}, the limit for one answer. Ask for fewer "
            "subjects at once, or mount the lake here or name it with `lake` of connect(): it has no such limit"
        )


class LakeNotReachable(ClientError):
    """Raised when a stream has to be read from a lake that this machine cannot read."""

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(
            f"stream {stream} cannot be read from the lake: {reason}. Mount the lake here, or name it with `lake` of "
            'connect(); `source="nats"` reads the present stream through the server'
        )


class ReadFailed(ClientError):
    """Raised when reading the lake fails; the text is the lake's."""


class BadFilter(ClientError):
    """Raised for a column or a condition that cannot be used."""


class MissingPackage(ClientError, ExtraMissing):
    """Raised when an optional package is not installed."""

    def __init__(self, purpose: str, package: str) -> None:
        ExtraMissing.__init__(self, purpose, package, "lake")
