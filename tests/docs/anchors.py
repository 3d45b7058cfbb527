"""Anchors of headings as Git hosts make them, so that links to a heading work there and on the site."""

from __future__ import annotations

import re


def anchor(heading: str, separator: str = "-") -> str:
    """Return the anchor of a heading: lower case, without punctuation, a separator for each blank."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", separator)
