"""The process of one campaign against one target: libFuzzer over instrumented Python, by atheris.

    python -m tests.fuzz.worker TARGET OUT SEED RUNS SECONDS

Belongs here: one libFuzzer run. A broken promise does not end it: the shortest input of each finding is kept in
OUT/findings, new inputs go to OUT/corpus; libFuzzer writes its counts to standard error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import sys
import traceback
from pathlib import Path

import atheris

from tests.fuzz.target import BASE_BYTES, BYTES_PER_BYTE, CORPORA, Broken, Target, check, place_of

TIMEOUT_S = 60
"""After this time on one input the process ends, and the input is a finding."""
RSS_MIB = 3000
INSTRUMENTED = ["lakestream", "lakestream_mqtt", "lakestream_postgres", "lakestream_sql"]
"""Packages whose branches guide the inputs."""
GROWTH_BYTES = 4 * BASE_BYTES
"""Growth of the process's largest memory during one input beyond which the input is a finding; the exact check, which
takes too long for a campaign, is made with the kept inputs."""


class Watched:
    """A target whose findings are written to a directory."""

    def __init__(self, target: Target, findings: Path) -> None:
        self._target, self._findings = target, findings
        self._shortest: dict[str, int] = {}
        self._inputs = 0
        self._peak = 0

    def one(self, data: bytes) -> None:
        self._inputs += 1
        try:
            check(self._target, data)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
            before, self._peak = self._peak, peak
            # The first inputs fill caches and arenas.
            if self._inputs > 1000 and peak - before > GROWTH_BYTES + BYTES_PER_BYTE * len(data):
                raise Broken(f"the process grew by {peak - before} bytes for {len(data)} bytes")
        except Exception as error:
            self._found(error, data)

    def _found(self, error: Exception, data: bytes) -> None:
        place = place_of(error)
        if len(data) >= self._shortest.get(place, len(data) + 1):
            return
        self._shortest[place] = len(data)
        name = hashlib.sha256(place.encode()).hexdigest()[:12]
        (self._findings / name).write_bytes(data)
        text = "".join(traceback.format_exception(error))
        (self._findings / f"{name}.txt").write_text(f"{place}\n{text}\n{data!r}\n", errors="backslashreplace")


def main(name: str, out: Path, seed: int, runs: int, seconds: int) -> None:
    with atheris.instrument_imports(
        include=["lakestream", "lakestream_mqtt", "lakestream_postgres", "lakestream_sql"], enable_loader_override=False
    ):
        from tests.fuzz.targets import load

        target = load(name)
        seeds_made = target.seeds()
        # Some modules are imported only when they are needed: now, so that they are instrumented, too.
        for data in seeds_made:
            with contextlib.suppress(Exception):
                target.run(data)
    made, findings, seeds = (out / part for part in ("corpus", "findings", "seeds"))
    for folder in (made, findings, seeds):
        folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds_made):
        (seeds / f"{number:04d}").write_bytes(data)
    words = out / "words"
    words.write_text("".join(f'"{"".join(f"{chr(92)}x{byte:02x}" for byte in word)}"\n' for word in target.words))
    kept = CORPORA / name
    options = {"runs": runs, "max_total_time": seconds, "seed": seed, "max_len": target.longest, "timeout": TIMEOUT_S}
    options |= {"rss_limit_mb": RSS_MIB, "dict": words, "artifact_prefix": f"{findings}/"}
    folders = [made, seeds, *([kept] if kept.is_dir() else [])]
    arguments = [*(f"-{key}={value}" for key, value in options.items()), *map(str, folders)]
    atheris.Setup([sys.argv[0], *arguments], Watched(target, findings).one)
    os.chdir(out)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve(), *map(int, sys.argv[3:6]))
