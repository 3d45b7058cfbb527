"""Errors of decoding bytes that come from outside.

Belongs here: the exceptions with which msgspec refuses bytes. Its own are not all of them: text that is not UTF-8 and
values that are nested too deeply raise Python's.
"""

from __future__ import annotations

import msgspec

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Raised by a msgspec decoder for bytes that it does not take."""
