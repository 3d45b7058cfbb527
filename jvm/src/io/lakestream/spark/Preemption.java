package io.lakestream.spark;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashSet;
import java.util.Set;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;

/**
 * Takes a slot from the queries of Spark Connect when a stage of the compactor finds all of them taken.
 *
 * <p>Spark's fair scheduler gives a pool the slots that become free, and takes none away: one query of long tasks would
 * stop compaction until they end. The task that was started last is killed, which is no failure, and begins anew later.
 */
public final class Preemption extends SparkListener {
  private final SparkContext context;
  private final Set<Integer> stages = new HashSet<>();
  private final Deque<Long> tasks = new ArrayDeque<>();

  private Preemption(SparkContext context) {
    this.context = context;
  }

  /** Begins to watch the tasks of an application. */
  public static void start(SparkContext context) {
    context.addSparkListener(new Preemption(context));
  }

  @Override
  public void onStageSubmitted(SparkListenerStageSubmitted event) {
    if (event.properties() != null && ConnectPool.NAME.equals(event.properties().getProperty(ConnectPool.PROPERTY))) {
      stages.add(event.stageInfo().stageId());
    } else if (tasks.size() >= context.defaultParallelism()) {
      context.killTaskAttempt(tasks.getLast(), true, "compaction comes first");
    }
  }

  @Override
  public void onStageCompleted(SparkListenerStageCompleted event) {
    stages.remove(event.stageInfo().stageId());
  }

  @Override
  public void onTaskStart(SparkListenerTaskStart event) {
    if (stages.contains(event.stageId())) {
      tasks.addLast(event.taskInfo().taskId());
    }
  }

  @Override
  public void onTaskEnd(SparkListenerTaskEnd event) {
    tasks.remove(event.taskInfo().taskId());
  }
}
