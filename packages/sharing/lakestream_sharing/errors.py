"""Errors of Delta Sharing, as recipients see them.

Belongs here: the exceptions with status, `errorCode` and text. No text names a path, a key or a token.
"""

from __future__ import annotations


class SharingError(Exception):
    """Base of the errors of a request. `status`: of HTTP; `code`: the protocol's `errorCode`."""

    status = 500
    code = "INTERNAL_ERROR"


class BadRequest(SharingError):
    """Raised for a request that the protocol, or the table, does not allow."""

    status, code = 400, "INVALID_PARAMETER_VALUE"


class WrongMethod(SharingError):
    """Raised for a method that the path does not have. `allowed`: those that it has."""

    status, code = 405, "INVALID_PARAMETER_VALUE"

    def __init__(self, allowed: str) -> None:
        super().__init__("Method Not Allowed")
        self.allowed = allowed


class Unsupported(SharingError):
    """Raised when the client's capabilities do not suffice to read a table correctly."""

    status, code = 400, "DS_UNSUPPORTED_DELTA_TABLE_FEATURES"

    def __init__(self, reason: str) -> None:
        super().__init__(f"{self.code}: {reason}")


class Unauthenticated(SharingError):
    """Raised without a valid token."""

    status, code = 401, "UNAUTHENTICATED"


class Forbidden(SharingError):
    """Raised for a URL or a history that the recipient may not read."""

    status, code = 403, "PERMISSION_DENIED"


class NotFound(SharingError):
    """Raised for a share, schema, table or file that does not exist, or that the token does not cover."""

    status, code = 404, "RESOURCE_DOES_NOT_EXIST"


class TooLarge(SharingError):
    """Raised for a request or an answer above a limit."""

    status, code = 413, "RESOURCE_EXHAUSTED"


class Busy(SharingError):
    """Raised when as many requests are under way as may."""

    status, code = 429, "RESOURCE_EXHAUSTED"


class Unavailable(SharingError):
    """Raised while the NATS server or the lake cannot be reached."""

    status, code = 503, "SERVICE_UNAVAILABLE"
