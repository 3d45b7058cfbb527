package io.lakestream.delta;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaOperationMetrics;
import org.apache.spark.sql.delta.DeltaOperations;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.FileAction;
import org.apache.spark.sql.delta.actions.Metadata;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.metric.SQLMetrics;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * One commit to a Delta table: begun on its newest version, and committed with actions that the caller has as JSON.
 *
 * <p>Delta's public API writes rows that pass through Spark. Ours are written by tasks as Arrow (a twentieth of the
 * time), so the commit has to name files that exist. That is Delta's transaction, which is Scala and has no stable
 * interface; compiling against it here makes a change of it an error of the build.
 *
 * <p>Actions are lines of JSON, as in a file of the log: one string crosses to the JVM, whatever their number.
 */
public final class TableCommit {
  private final SparkSession spark;
  private final OptimisticTransaction transaction;

  private TableCommit(SparkSession spark, OptimisticTransaction transaction) {
    this.spark = spark;
    this.transaction = transaction;
  }

  /** Begins a commit to the table at a path, which need not exist yet. */
  public static TableCommit begin(SparkSession spark, String path) {
    SparkSession.setActiveSession(spark); // Delta uses the thread's session, which would have other settings
    return new TableCommit(spark, DeltaLog.forTable(spark, path).startTransaction(Option.empty(), Option.empty()));
  }

  /** Returns the version that the commit is based on; -1 for a new table. */
  public long readVersion() {
    return transaction.readVersion();
  }

  /** Returns the time of that version, in ms since the epoch. */
  public long readTimestamp() {
    return transaction.snapshot().timestamp();
  }

  /**
   * Lets the commit fail if another one moves the position of an application meanwhile.
   *
   * <p>{@code txnVersion}, which also reads that position, would compute the state of the whole log.
   */
  public void expectPosition(String application) {
    transaction.readTxn().append(application);
  }

  /** Returns the {@code metaData} action of the table as JSON. */
  public String metadata() {
    return transaction.metadata().json();
  }

  /** Changes the table's metadata, or creates the table with it: a {@code metaData} action as JSON. */
  public void describe(String metadata) {
    transaction.updateMetadata((Metadata) Action.fromJson(metadata), false);
  }

  /** Gives a table without rows another table's metadata: a {@code metaData} action as JSON. */
  public void replace(String metadata) {
    transaction.updateMetadataForNewTableInReplace((Metadata) Action.fromJson(metadata));
  }

  /** Returns the rows of some of the table's files, given as {@code add} actions, without deleted ones. */
  public Dataset<Row> rows(String adds) {
    List<AddFile> files = new ArrayList<>();
    for (Action action : actions(adds)) {
      files.add((AddFile) action);
    }
    return transaction.deltaLog().createDataFrame(transaction.snapshot(), seq(files), false, Option.empty());
  }

  /** Writes rows into new files of the table; returns their {@code add} actions. */
  public String write(Dataset<Row> rows) {
    StringBuilder lines = new StringBuilder();
    for (FileAction file : CollectionConverters.asJava(transaction.writeFiles(rows))) {
      lines.append(file.json()).append('\n');
    }
    return lines.toString();
  }

  /**
   * Commits new rows, as Spark's append does.
   *
   * @param actions the new files and the position
   * @param columns the table's partition columns
   * @param userMetadata not through the session's settings, which other threads share
   * @param files, rows, bytes figures for the table's history
   * @return the version
   */
  public long append(
      String actions, List<String> columns, String userMetadata, long files, long rows, long bytes) {
    register(Map.of("numFiles", files, "numOutputRows", rows, "numOutputBytes", bytes));
    return commit(
        actions,
        new DeltaOperations.Write(
            SaveMode.Append,
            Option.apply(seq(columns)),
            Option.empty(),
            Option.apply(userMetadata),
            Option.empty(),
            Option.empty(),
            Option.empty(),
            Option.empty(),
            Option.empty()));
  }

  /** Commits the table that {@code describe} has begun; returns the version. */
  public long create(String actions) {
    return commit(actions, new DeltaOperations.CreateTable(transaction.metadata(), false, false, Option.empty()));
  }

  /**
   * Commits files with fewer rows than before, as Spark's DELETE does.
   *
   * @param actions removals of files, and the same files with deletion vectors
   * @param rows, files, vectors the deleted rows, the files without any row that is left, and the new vectors
   * @return the version
   */
  public long delete(String actions, long rows, long files, long vectors) {
    Map<String, Long> metrics = new LinkedHashMap<>();
    for (String name : CollectionConverters.asJava(DeltaOperationMetrics.DELETE())) {
      metrics.put(name, 0L);
    }
    metrics.put("numDeletedRows", rows);
    metrics.put("numRemovedFiles", files);
    metrics.put("numDeletionVectorsAdded", vectors);
    register(metrics);
    return commit(actions, new DeltaOperations.Delete(seq(List.of())));
  }

  /** Commits files that replace others with the same rows; returns the version. */
  public long optimize(String actions) {
    Seq<org.apache.spark.sql.catalyst.expressions.Expression> all = seq(List.of());
    return commit(actions, new DeltaOperations.Optimize(all, seq(List.of()), false, Option.empty(), false));
  }

  /** Commits the files of an earlier version; returns the version. */
  public long restore(String actions) {
    return commit(actions, new DeltaOperations.Restore(Option.empty(), Option.empty()));
  }

  /** Commits any other change; returns the version. */
  public long update(String actions) {
    return commit(actions, DeltaOperations.ManualUpdate$.MODULE$);
  }

  private long commit(String lines, DeltaOperations.Operation operation) {
    return transaction.commit(seq(actions(lines)), operation);
  }

  /** Lets the table's history have these figures of the commit. */
  private void register(Map<String, Long> figures) {
    Map<String, SQLMetric> metrics = new LinkedHashMap<>();
    figures.forEach(
        (name, value) -> {
          SQLMetric metric = SQLMetrics.createMetric(spark.sparkContext(), name);
          metric.set(value);
          metrics.put(name, metric);
        });
    transaction.registerSQLMetrics(spark, scala.collection.immutable.Map.from(CollectionConverters.asScala(metrics)));
  }

  private static List<Action> actions(String lines) {
    return lines.lines().map(Action::fromJson).toList();
  }

  private static <T> Seq<T> seq(List<T> items) {
    return CollectionConverters.asScala(items).toSeq();
  }
}
