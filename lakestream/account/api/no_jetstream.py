"""Answers of the API in an account without JetStream.

Belongs here: the refusal (10039), and which requests are judged before it, as by nats-server. Each has the type of
answer that it would have otherwise.
"""

from __future__ import annotations

from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.request import Handler, Request

SILENT = frozenset({"CONSUMER.DURABLE.CREATE.*", "CONSUMER.RESET.*.*"})
"""Requests that get no answer."""

JUDGED = frozenset(
    {
        "CONSUMER.CREATE.*",
        "CONSUMER.CREATE.*.*",
        "CONSUMER.CREATE.*.*.>",
        "CONSUMER.DURABLE.CREATE.*.*",
        "CONSUMER.INFO.*.*",
        "CONSUMER.PAUSE.*.*",
        "CONSUMER.UNPIN.*.*",
    }
)
"""Requests whose body is looked at first."""

OF_BODIES = (10025, 10038)
"""Refusals of a body: no JSON, and that there should be none."""


def answer(request: Request, handler: Handler, level: bool) -> None:
    """Refuse a request.

    Args:
        handler: who would serve it.
        level: see `Routes.route`; those without it ask for a cluster before all else.
    """
    if request.pattern in SILENT:
        return
    if level and request.pattern not in JUDGED:
        request.fail(api_error(10039))
        return
    try:
        handler(request)
    except ApiError as error:
        request.fail(error if error.err_code in OF_BODIES or not level else api_error(10039))
