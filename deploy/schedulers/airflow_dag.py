"""An Airflow DAG that compacts and maintains the tables of a lake.

Put it into the folder of DAGs. The workers need the program `lakestream` (pip install 'lakestream-server[lake]', Java
17 or newer) and reach the lake. Variables of the workers:

    LAKESTREAM_LAKE    the lake, a directory or s3://bucket/prefix
    LAKESTREAM         the program, if it is not on the path: /opt/lakestream/bin/lakestream

An exit code other than 0 fails the task, and Airflow repeats it; a run that is repeated never writes a row twice.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

PROGRAM = "${LAKESTREAM:-lakestream}"
ARGUMENTS = {"retries": 2, "retry_delay": timedelta(minutes=1), "execution_timeout": timedelta(hours=6)}

with DAG(
    dag_id="lakestream_compact",
    description="Append staged segments of all streams to their Delta tables, exactly once.",
    schedule="*/5 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=ARGUMENTS,
    tags=["lakestream"],
) as compact:
    BashOperator(task_id="compact", bash_command=f"{PROGRAM} compact --once", append_env=True)

with DAG(
    dag_id="lakestream_maintain",
    description="OPTIMIZE and VACUUM the streams' Delta tables, and clean their logs.",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=ARGUMENTS,
    tags=["lakestream"],
) as maintain:
    BashOperator(task_id="maintain", bash_command=f"{PROGRAM} maintain --once", append_env=True)
