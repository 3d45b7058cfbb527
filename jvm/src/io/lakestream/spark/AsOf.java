package io.lakestream.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.lakestream.spark.CommitLog.Progress;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.QueryContext;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;
import scala.collection.immutable.Map$;

/**
 * Streams as they were at a time, by message time: as_of('ORDERS', '2026-05-01 12:00:00'), and TIMESTAMP AS OF with
 * the setting spark.lakestream.timestampAsOf = message.
 *
 * <p>Belongs here: the values of the arguments, and the relation. MessageTime finds the version. Messages that had left
 * by then, or are to be erased, are left out (lakestream/lake/table/departures.py, erasures.py). The relation is one of
 * Delta's with a condition, so that filters and columns are pushed down into its files.
 */
public final class AsOf {
  /** Name of the table function. */
  static final String NAME = "as_of";

  /** Setting with the meaning of TIMESTAMP AS OF on a stream's table: `commit` (default) or `message`. */
  static final String SETTING = "spark.lakestream.timestampAsOf";

  private static final String USAGE =
      "as_of takes a stream's name and a moment: as_of('ORDERS', '2026-05-01 12:00:00')";
  private static final StructType RUNS =
      new StructType().add("first", DataTypes.LongType).add("last", DataTypes.LongType);
  private static final StructType DEPARTURES =
      RUNS.add("removed_seq", DataTypes.LongType).add("removed_ns", DataTypes.LongType);
  private static final List<DataType> TIMES =
      List.of(DataTypes.TimestampType, DataTypes.TimestampNTZType, DataTypes.DateType);
  private static final List<DataType> INTEGERS =
      List.of(DataTypes.ByteType, DataTypes.ShortType, DataTypes.IntegerType, DataTypes.LongType);
  private static final String REMOVED = "removed_time_ns";
  private static final Pattern STREAM = Pattern.compile("^(\\./)*(accounts/[^/]+/)?streams/[^/]+$");
  private static final Pattern ELSEWHERE = Pattern.compile("^(streams/|accounts/|/).*|.*://.*", Pattern.DOTALL);
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final long MICRO = 1000;

  private final SparkSession session;
  private final LakePaths paths;

  AsOf(org.apache.spark.sql.SparkSession session, LakePaths paths) {
    this.session = (SparkSession) session;
    this.paths = paths;
  }

  /**
   * Returns the messages that a stream held at a time, for programs.
   *
   * @param lake the lake's root
   * @param stream ORDERS, or ACME/ORDERS for a stream of account ACME
   * @param atNs ns since the epoch
   */
  public static Dataset<Row> rows(org.apache.spark.sql.SparkSession session, String lake, String stream, long atNs) {
    return new AsOf(session, new LakePaths(() -> LakePaths.normalised(lake))).rows(stream, atNs);
  }

  /** Returns the plan of as_of(stream, moment). */
  LogicalPlan function(List<Expression> arguments) {
    Object stream = arguments.size() == 2 ? value(arguments.get(0)) : null;
    Object moment = arguments.size() == 2 ? value(arguments.get(1)) : null;
    if (!(stream instanceof String name) || moment == null) {
      throw wrong(USAGE);
    }
    long atNs;
    try {
      atNs = moment instanceof String text ? Instants.parse(text) : (Long) moment;
    } catch (IllegalArgumentException noTime) {
      throw wrong(noTime.getMessage());
    }
    return rows(name, atNs).queryExecution().analyzed();
  }

  /** Returns true if TIMESTAMP AS OF on this path means message time: a stream's, in a session that says so. */
  boolean isMeantBy(String path) {
    String meaning = session.conf().get(SETTING, "commit");
    if (!meaning.equals("commit") && !meaning.equals("message")) {
      throw wrong(SETTING + " is 'commit' or 'message', not '" + meaning + "'");
    }
    return meaning.equals("message") && STREAM.matcher(path).matches();
  }

  /** Returns the plan of TIMESTAMP AS OF on a stream's relative path, by message time. */
  LogicalPlan at(String path, Literal timestamp) {
    return rows(path, moment(timestamp)).queryExecution().analyzed();
  }

  /** Returns the time of TIMESTAMP AS OF, in ns; a text has the session's time zone where it names none. */
  private long moment(Expression timestamp) {
    Object moment = value(timestamp, true);
    if (moment == null) {
      throw wrong("TIMESTAMP AS OF takes a time");
    }
    // Spark's times end at µs.
    boolean isText = timestamp instanceof Literal literal && literal.value() instanceof UTF8String;
    return (Long) moment + (isText ? Instants.beyondMicros(((Literal) timestamp).value().toString()) : 0);
  }

  /**
   * Returns the plan of a bucket or an object store, or null if there is no such stream.
   *
   * @param name kv, kv_history or obj, and the bucket
   * @param timestamp of TIMESTAMP AS OF, the time of messages; or null
   * @param version of VERSION AS OF, a revision; or null
   */
  LogicalPlan bucket(List<String> name, Expression timestamp, String version) {
    String stream = Buckets.stream(name);
    if (stream == null) {
      return null;
    }
    if (!isTable(table(stream))) {
      if (Statements.areConfined(session)) { // else a table of Spark's catalog would be looked for
        throw wrong("there is no table " + String.join(".", name));
      }
      return null;
    }
    Dataset<Row> messages;
    if (timestamp != null) {
      messages = rows(stream, moment(timestamp));
    } else if (version != null) {
      if (!version.matches("[1-9][0-9]{0,17}")) {
        throw wrong("there is no revision " + version + "; the first one is 1");
      }
      messages = rows(stream, 0, Long.parseLong(version));
    } else {
      messages = session.read().format("delta").load(table(stream));
    }
    return Buckets.rows(name.get(0), messages).queryExecution().analyzed();
  }

  private boolean isTable(String table) {
    try {
      Path log = new Path(table, "_delta_log");
      return log.getFileSystem(session.sessionState().newHadoopConf()).exists(log);
    } catch (IOException failed) {
      throw wrong(table + " cannot be read: " + failed.getMessage());
    }
  }

  private Dataset<Row> rows(String stream, long atNs) {
    return rows(stream, atNs, 0);
  }

  /** Returns the messages as of a time, or right after a sequence was stored if that is above 0. */
  private Dataset<Row> rows(String stream, long atNs, long seq) {
    String table = table(stream);
    try {
      FileSystem files = new Path(table).getFileSystem(session.sessionState().newHadoopConf());
      CommitLog log = CommitLog.open(table, files);
      if (log == null) {
        throw wrong("there is no stream " + stream + " that has a table: " + table + " is none");
      }
      // The notes first: one is gone only when no file has its messages any more.
      List<Row> erased = erased(files, table);
      MessageTime.Found found = seq > 0 ? MessageTime.ofSequence(log, seq) : MessageTime.version(log, atNs);
      long version = found.version() == null ? log.latest() : found.version();
      Dataset<Row> rows = session.read().format("delta").option("versionAsOf", version).load(table);
      if (found.version() == null) {
        return rows.where(functions.lit(false));
      }
      Column gone = seq > 0 ? functions.col("removed_seq").leq(seq) : functions.col("removed_ns").leq(atNs);
      Dataset<Row> there = without(left(files, table, found.departures(), gone, erased), rows);
      if (seq > 0) {
        return there.where(there.col("seq").leq(seq));
      }
      Column held = there.col("time_ns").leq(atNs);
      if (List.of(rows.columns()).contains(REMOVED)) {
        held = held.and(there.col(REMOVED).isNull().or(there.col(REMOVED).gt(atNs)));
      }
      return there.where(held);
    } catch (MessageTime.Gone gone) {
      throw wrong(gone.getMessage());
    } catch (IOException failed) {
      throw wrong(table + " cannot be read: " + failed.getMessage());
    }
  }

  /** Returns the path of the table of a stream: ORDERS, ACME/ORDERS, or a path. */
  private String table(String stream) {
    String path = stream;
    if (!ELSEWHERE.matcher(stream).matches()) {
      int slash = stream.indexOf('/');
      String account = slash < 0 ? "" : "accounts/" + stream.substring(0, slash) + "/";
      path = account + "streams/" + stream.substring(slash + 1);
    }
    List<String> placed = paths.placed(List.of("delta", path));
    return placed == null ? path : placed.get(1);
  }

  private static Dataset<Row> without(Dataset<Row> left, Dataset<Row> rows) {
    if (left == null) {
      return rows;
    }
    Column[] columns = Stream.of(rows.columns()).map(name -> rows.col("`" + name + "`")).toArray(Column[]::new);
    return rows.join(left, rows.col("seq").equalTo(left.col("left_seq")), "left_anti").select(columns);
  }

  /** Returns the sequences of messages that had left (by a condition on departures), one a row; null for none. */
  private Dataset<Row> left(FileSystem files, String table, Progress departures, Column gone, List<Row> erased)
      throws IOException {
    Dataset<Row> runs = erased.isEmpty() ? null : session.createDataFrame(erased, RUNS);
    if (departures != null && departures.departed() > 0) {
      Path path = new Path(table, String.format("_departures/%020d.parquet", departures.lastIndex()));
      if (!files.exists(path)) {
        throw new FileNotFoundException(
            path + " is missing: what the stream held within that commit is unknown without it");
      }
      Dataset<Row> found = session.read().schema(DEPARTURES).parquet(path.toString());
      found = found.where(gone).select("first", "last");
      runs = runs == null ? found : found.union(runs);
    }
    if (runs == null) {
      return null;
    }
    return runs.select(functions.explode(functions.sequence(runs.col("first"), runs.col("last"))).as("left_seq"));
  }

  /** Returns the messages to be erased (secure delete) as runs (first, last), by the notes beside the table. */
  private static List<Row> erased(FileSystem files, String table) throws IOException {
    List<Row> runs = new ArrayList<>();
    FileStatus[] notes;
    try {
      notes = files.listStatus(new Path(table, "_erasures"));
    } catch (FileNotFoundException none) {
      return runs;
    }
    for (FileStatus note : notes) {
      if (!note.getPath().getName().endsWith(".json")) {
        continue;
      }
      try (InputStream content = files.open(note.getPath())) {
        for (JsonNode run : JSON.readTree(content)) {
          if (!run.path(0).isIntegralNumber() || !run.path(1).isIntegralNumber()) {
            throw new IOException(note.getPath() + " is damaged; bring it back from a copy of the lake");
          }
          runs.add(RowFactory.create(run.get(0).asLong(), run.get(1).asLong()));
        }
      } catch (JsonProcessingException damaged) {
        throw new IOException(note.getPath() + " is damaged; bring it back from a copy of the lake", damaged);
      } catch (FileNotFoundException done) {
        // Maintenance has erased its messages meanwhile.
      }
    }
    return runs;
  }

  /** Returns an argument's value: a text, or a Long, in ns for a time; null for anything else. */
  private Object value(Expression expression) {
    return value(expression, false);
  }

  private Object value(Expression expression, boolean asTime) {
    try {
      if (!asTime && expression instanceof Literal literal && literal.value() instanceof UTF8String text) {
        return text.toString();
      }
      Dataset<Row> one = Dataset.ofRows(session, new OneRowRelation());
      Column column = ExpressionUtils.column(expression);
      DataType type = one.select(column).schema().fields()[0].dataType();
      if (asTime || TIMES.contains(type)) {
        Row row = one.select(functions.unix_micros(column.cast("timestamp"))).head();
        return row.isNullAt(0) ? null : Math.multiplyExact(row.getLong(0), MICRO);
      }
      boolean isText = type instanceof StringType;
      if (!isText && !INTEGERS.contains(type)) {
        return null;
      }
      Row row = one.select(column.cast(isText ? "string" : "bigint")).head();
      return row.isNullAt(0) ? null : row.get(0);
    } catch (Exception noConstant) {
      return null;
    }
  }

  private static RuntimeException wrong(String text) {
    return wrong(text, false);
  }

  /** Returns an error of the analysis; `placed`: about the whole statement, from its first letter on. */
  static RuntimeException wrong(String text, boolean placed) {
    return raised(
        new AnalysisException(
            text,
            placed ? Option.apply(1) : Option.empty(),
            placed ? Option.apply(0) : Option.empty(),
            Option.empty(),
            Option.empty(),
            Map$.MODULE$.empty(),
            new QueryContext[0]));
  }

  /** Returns a checked exception of Spark as the unchecked one that Scala takes it for. */
  @SuppressWarnings("unchecked")
  static <E extends Exception> RuntimeException raised(Exception error) throws E {
    throw (E) error;
  }
}
