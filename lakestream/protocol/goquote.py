"""Quoted text as Go's %q writes it, which nats-server uses in errors and log lines."""

from __future__ import annotations

_SHORT = {
    7: "\\a",
    8: "\\b",
    9: "\\t",
    10: "\\n",
    11: "\\v",
    12: "\\f",
    13: "\\r",
    34: '\\"',
    92: "\\\\",
}


def quoted(data: bytes | str) -> str:
    """Return `data` in quotes; unprintable characters and bytes that are not UTF-8 as escapes."""
    text = data if isinstance(data, str) else data.decode("utf-8", "surrogateescape")
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(map(_shown, text)) + '"'


def _shown(letter: str) -> str:
    code = ord(letter)
    if code in _SHORT:
        return _SHORT[code]
    if letter.isprintable():
        return letter
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
