#!/bin/sh
# Entry point of the compactor's image:
#
#   lakestream …            a command, such as lakestream compact --once
#   master                  a master of a standalone Spark cluster
#   worker URL              a worker of it
#   job NAME ARGUMENTS      jobs/NAME.py under spark-submit, on the cluster $SPARK_MASTER
#   driver | executor       started by Spark on Kubernetes (and its operator), with the variables that Spark sets
set -eu

share=/usr/local/share/lakestream
SPARK_HOME=$(python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
export SPARK_HOME PYSPARK_PYTHON=python3 PYSPARK_DRIVER_PYTHON=python3
s3=$(test -e "$LAKESTREAM_CACHE"/jars/hadoop-aws-*.jar && echo --s3 || true)

class_path() {
    # shellcheck disable=SC2086
    python -m lakestream_spark.jars $s3 --class-path
}

case "${1:-}" in
master)
    exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master --host "${SPARK_HOST:-$(hostname)}"
    ;;
worker)
    exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker --host "${SPARK_HOST:-$(hostname)}" \
        --work-dir /tmp/work "$2"
    ;;
job)
    name=$2
    shift 2
    jars=$(class_path)
    exec "$SPARK_HOME/bin/spark-submit" --master "$SPARK_MASTER" \
        --properties-file "$share/spark_conf/cluster/spark-defaults.conf" \
        --conf "spark.driver.host=${SPARK_HOST:-$(hostname)}" --conf spark.driver.bindAddress=0.0.0.0 \
        --conf "spark.driver.extraClassPath=$jars" --conf "spark.executor.extraClassPath=$jars" \
        "$share/jobs/$name.py" "$@"
    ;;
driver)
    shift
    jars=$(class_path)
    exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.driver.extraClassPath=$jars" --conf "spark.executor.extraClassPath=$jars" "$@"
    ;;
executor)
    # Options of the JVM come as SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1 …
    number=0
    set --
    while eval "option=\${SPARK_JAVA_OPT_$number:-}" && [ -n "$option" ]; do
        set -- "$@" "$option"
        number=$((number + 1))
    done
    exec java "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "$SPARK_HOME/jars/*:$(class_path)" org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    exec "$@"
    ;;
esac
