"""Compactor and maintainer as one process that takes commands, since starting Spark costs more than the work.

Usage:
    python -m tests.power.lake_job          reads lines from standard input: compact LAKE, maintain LAKE

Belongs here: that process, and its interface for tests (`LakeJob`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

ATTEMPTS = 5
"""Attempts at a compaction on a busy machine."""


class LakeJob:
    """Client of the process; starts it with the first command and stops it at the end of the block."""

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        self._environment = {**os.environ, **(environment or {}), "PYTHONPATH": path}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LakeJob:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()

    def compact(self, lake: Path | str) -> dict[str, str]:
        """Compact everything that is staged; return failures by stream."""
        return dict(self._do("compact", lake))

    def maintain(self, lake: Path | str) -> list[str]:
        """Rewrite small files and delete those that no version needs; return failures."""
        return list(self._do("maintain", lake))

    def _do(self, *words: Any) -> Any:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([str(word) for word in words]).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, (self._directory / "lake_job.log").read_text()
        return json.loads(line)

    def _start(self) -> subprocess.Popen[bytes]:
        with open(self._directory / "lake_job.log", "ab") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.power.lake_job"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self._directory,
                env=self._environment,
            )


def main() -> None:
    """Execute commands from standard input until its end."""
    from lakestream.lake.errors import LakeError
    from lakestream_spark import session as sessions
    from lakestream_spark.write.compactor import Compactor
    from lakestream_spark.write.maintainer import Maintainer
    from lakestream_spark.write.maintenance_plan import Policy
    from tests.lake.conftest import SMALL

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep Spark's output out of the answers
    spark = sessions.session("lakestream power tests", extra=SMALL)
    for line in sys.stdin:
        command, lake = json.loads(line)
        answer: Any
        # The path may hold another image of the same lake by now.
        spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        if command == "compact":
            for left in reversed(range(ATTEMPTS)):
                compactor = Compactor(spark, lake)
                assert compactor.acquire()
                try:
                    answer = compactor.once().failures
                    break
                except LakeError:  # a worker of Spark's did not start in time
                    if not left:
                        raise
                finally:
                    compactor.stop()
                    compactor.release()
        else:
            # No other process uses these tables, so VACUUM needs no retention.
            maintainer = Maintainer(spark, lake, Policy(min_files=2, retain_ns=0))
            assert maintainer.acquire()
            answer = [f"{done.stream}: {done.failure}" for done in maintainer.once() if done.failure]
            maintainer.release()
        print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
