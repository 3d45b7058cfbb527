package io.lakestream.spark;

import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import org.apache.spark.SparkContext;
import org.apache.spark.api.java.JavaFutureAction;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;

/**
 * Keeps a slot from the queries of Spark Connect, for the compactor.
 *
 * <p>Spark's fair scheduler gives a pool the slots that become free, and takes none away: one query of long tasks would
 * stop compaction until they end. To kill one of its tasks when a stage of the compactor begins is not enough: a task
 * looks only now and then whether it was killed (a join of two large ranges every ten seconds), the query gets the slot
 * back between two stages, and a commit has several. So a task that does nothing holds a slot, in a pool that comes
 * behind the compactor's and before the queries'. When a stage of the compactor begins and queries have all other slots,
 * it ends at once, and another one takes the next slot that the compactor leaves.
 */
public final class Preemption extends SparkListener {
  /** Name of the pool; packages/spark/lakestream_spark/pools.xml has the weights. Of equals the first by name is served. */
  private static final String POOL = "compactor-slot";

  private static final String INTERRUPT = "spark.job.interruptOnCancel";

  private final SparkContext context;
  private final Set<Integer> stages = new HashSet<>();
  private final Set<Long> tasks = new HashSet<>();
  private JavaFutureAction<Void> held;

  private Preemption(SparkContext context) {
    this.context = context;
    this.held = hold();
  }

  /** Begins to keep a slot of an application, unless it has only one. */
  public static void start(SparkContext context) {
    if (context.defaultParallelism() > 1) {
      context.addSparkListener(new Preemption(context));
    }
  }

  private JavaFutureAction<Void> hold() {
    String pool = context.getLocalProperty(ConnectPool.PROPERTY);
    context.setLocalProperty(ConnectPool.PROPERTY, POOL);
    context.setLocalProperty(INTERRUPT, "true");
    try {
      return JavaSparkContext.fromSparkContext(context).parallelize(List.of(0), 1).foreachPartitionAsync(Preemption::wait);
    } finally {
      context.setLocalProperty(ConnectPool.PROPERTY, pool);
      context.setLocalProperty(INTERRUPT, null);
    }
  }

  private static void wait(Iterator<Integer> none) throws InterruptedException {
    new CountDownLatch(1).await();
  }

  @Override
  public void onStageSubmitted(SparkListenerStageSubmitted event) {
    Properties properties = event.properties();
    String pool = properties == null ? null : properties.getProperty(ConnectPool.PROPERTY);
    if (ConnectPool.NAME.equals(pool)) {
      stages.add(event.stageInfo().stageId());
    } else if (!POOL.equals(pool) && tasks.size() >= context.defaultParallelism() - 1) {
      JavaFutureAction<Void> before = held;
      held = hold();
      before.cancel(true);
    }
  }

  @Override
  public void onStageCompleted(SparkListenerStageCompleted event) {
    stages.remove(event.stageInfo().stageId());
  }

  @Override
  public void onTaskStart(SparkListenerTaskStart event) {
    if (stages.contains(event.stageId())) {
      tasks.add(event.taskInfo().taskId());
    }
  }

  @Override
  public void onTaskEnd(SparkListenerTaskEnd event) {
    tasks.remove(event.taskInfo().taskId());
  }
}
