package io.lakestream.spark;

import java.util.List;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.util.Utils;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Puts the jobs of Spark Connect into a scheduler pool of their own, so that they yield to compaction.
 *
 * <p>A client cannot set local properties of the server's threads, and Spark Connect has no setting for pools. A
 * planner strategy is called for every query in the thread that runs it; this one plans nothing.
 */
final class ConnectPool extends SparkStrategy {
  /** Name of the pool; packages/spark/lakestream_spark/pools.xml has the weights. */
  static final String NAME = "connect";

  /** Local property of threads with the pool of their jobs. */
  static final String PROPERTY = "spark.scheduler.pool";

  private final SparkContext context;

  ConnectPool(SparkContext context) {
    this.context = context;
  }

  @Override
  public Seq<SparkPlan> apply(LogicalPlan plan) {
    if (Thread.currentThread().getName().startsWith(Utils.CONNECT_EXECUTE_THREAD_PREFIX())) {
      context.setLocalProperty(PROPERTY, NAME);
    }
    return CollectionConverters.asScala(List.<SparkPlan>of()).toSeq();
  }
}
