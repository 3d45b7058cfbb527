"""Options as a server gets them.

Belongs here: the fixture that parses a configuration file and flags.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lakestream.cli.flags import parse
from lakestream.config.loading import load
from lakestream.config.options import Options

Load = Callable[..., Options]


@pytest.fixture
def options(tmp_path: Path) -> Load:
    """Return a function `options(text of nats.conf, flags)`."""

    def make(text: str | None, line: str = "") -> Options:
        arguments = line.split()
        if text is not None:
            path = tmp_path / "nats.conf"
            path.write_text(text)
            arguments += ["-c", str(path)]
        return load(parse(arguments).flags)

    return make
