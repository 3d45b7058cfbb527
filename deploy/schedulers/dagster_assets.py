"""Dagster assets and schedules that compact and maintain the tables of a lake.

    dagster dev -f dagster_assets.py

The code location needs the program `lakestream` (pip install 'lakestream-server[lake]', Java 17 or newer) and reaches
the lake. Its variables:

    LAKESTREAM_LAKE    the lake, a directory or s3://bucket/prefix
    LAKESTREAM         the program, if it is not on the path: /opt/lakestream/bin/lakestream

An exit code other than 0 fails the run; a run that is repeated never writes a row twice.
"""

import os
import subprocess

import dagster as dg


def run(context: dg.AssetExecutionContext, command: str) -> dg.MaterializeResult:
    """Run a command of lakestream once; its output becomes the log of the run."""
    program = [os.environ.get("LAKESTREAM", "lakestream"), command, "--once"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        lines = [line.rstrip() for line in child.stdout or ()]
        for line in lines:
            context.log.info(line)
    if child.returncode:
        raise dg.Failure(f"lakestream {command} ended with exit code {child.returncode}: {lines[-1:]}")
    return dg.MaterializeResult(metadata={"result": "\n".join(lines[-5:])})


@dg.asset(group_name="lakestream", compute_kind="spark")
def streams(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    """The streams' Delta tables, with every segment that is staged now."""
    return run(context, "compact")


@dg.asset(group_name="lakestream", compute_kind="spark", deps=[streams])
def maintained_streams(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    """The streams' Delta tables after OPTIMIZE, VACUUM and log cleanup."""
    return run(context, "maintain")


compact = dg.define_asset_job("lakestream_compact", selection=[streams])
maintain = dg.define_asset_job("lakestream_maintain", selection=[maintained_streams])

definitions = dg.Definitions(
    assets=[streams, maintained_streams],
    jobs=[compact, maintain],
    schedules=[
        dg.ScheduleDefinition(job=compact, cron_schedule="*/5 * * * *"),
        dg.ScheduleDefinition(job=maintain, cron_schedule="0 * * * *"),
    ],
)
