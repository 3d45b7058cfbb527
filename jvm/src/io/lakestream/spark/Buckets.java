package io.lakestream.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.classic.Dataset;

/**
 * Key-value buckets and object stores as tables: kv.conf, kv_history.conf, obj.files.
 *
 * <p>Belongs here: their names, and their rows over those of the stream. packages/sql/lakestream_sql/buckets.py has the same for
 * DuckDB.
 *
 * <p>Sources: ADR-8 (key-value buckets), ADR-20 (object stores).
 */
final class Buckets {
  private static final Map<String, String> STREAMS = Map.of("kv", "KV_", "kv_history", "KV_", "obj", "OBJ_");
  private static final String NEWEST = "row_number() OVER (PARTITION BY subject ORDER BY revision DESC) AS place";
  private static final String KEY = "regexp_replace(subject, r'^\\$KV\\.[^.]+\\.', '') AS key";
  private static final String OPERATION =
      "CASE WHEN headers['KV-Operation'] IS NOT NULL THEN headers['KV-Operation'][0]"
          + " WHEN headers['Nats-Marker-Reason'] IS NOT NULL THEN 'PURGE' ELSE 'PUT' END AS operation";

  /** Columns that the tables of streams have beside typed ones (lakestream/lake/table/schema.py). */
  private static final Set<String> OWN =
      Set.of(
          "subject", "seq", "time", "time_ns", "headers", "data", "header_block", "subject_bytes", "bucket",
          "removed_time_ns", "schema", "data_format");

  private static final Pattern TOKEN = Pattern.compile("token[0-9]+");
  private static final String INFO =
      "from_json(decode(data, 'utf-8'), 'name STRING, size BIGINT, chunks BIGINT, digest STRING, description STRING,"
          + " metadata MAP<STRING, STRING>, headers MAP<STRING, ARRAY<STRING>>, nuid STRING, deleted BOOLEAN,"
          + " options STRUCT<link: STRUCT<bucket: STRING, name: STRING>>') AS info";
  private static final String[] OBJECTS = {
    "info.name AS name",
    "info.size AS size",
    "info.chunks AS chunks",
    "info.digest AS digest",
    "time AS modified",
    "info.description AS description",
    "info.metadata AS metadata",
    "info.headers AS headers",
    "nullif(concat_ws('/', info.options.link.bucket, info.options.link.name), '') AS link",
    "info.nuid AS nuid",
    "seq AS revision",
    "subject",
    "coalesce(info.deleted, false) AS deleted"
  };

  private Buckets() {}

  /** Returns the relative path of the stream of a table like kv.conf; null for any other name. */
  static String stream(List<String> name) {
    String prefix = name.size() == 2 ? STREAMS.get(name.get(0).toLowerCase(Locale.ROOT)) : null;
    if (prefix == null) {
      return null;
    }
    int slash = name.get(1).lastIndexOf('/');
    String account = slash < 0 ? "" : "accounts/" + name.get(1).substring(0, slash) + "/";
    return account + "streams/" + prefix + name.get(1).substring(slash + 1);
  }

  /** Returns the rows of a table over those of its stream. `view`: kv, kv_history or obj. */
  static Dataset<Row> rows(String view, Dataset<Row> messages) {
    if (view.equalsIgnoreCase("obj")) {
      Dataset<Row> objects =
          messages.where("subject RLIKE r'^\\$O\\.[^.]+\\.M\\.'").selectExpr("subject", "seq", "time", INFO);
      return newest(objects.where("info.name IS NOT NULL").selectExpr(OBJECTS))
          .where("NOT deleted")
          .drop("subject", "deleted", "place");
    }
    Dataset<Row> revisions = messages.where("startswith(subject, '$KV.')").selectExpr(revisions(messages.columns()));
    if (view.equalsIgnoreCase("kv_history")) {
      return revisions.drop("subject");
    }
    return newest(revisions).where("operation = 'PUT'").drop("subject", "operation", "place");
  }

  /** Returns the columns of a bucket over those of its stream's table: with typed ones, `value` is a struct of them. */
  private static String[] revisions(String[] columns) {
    List<String> found = new ArrayList<>(List.of("subject", KEY));
    String fields =
        Stream.of(columns)
            .filter(name -> !OWN.contains(name) && !TOKEN.matcher(name).matches())
            .map(name -> "`" + name.replace("`", "``") + "`")
            .collect(Collectors.joining(", "));
    boolean typed = !fields.isEmpty();
    found.add(typed ? "CASE WHEN schema IS NOT NULL THEN struct(" + fields + ") END AS value" : "data AS value");
    found.addAll(List.of("seq AS revision", "time AS created", OPERATION));
    if (typed) {
      found.addAll(List.of("schema", "data"));
    }
    return found.toArray(String[]::new);
  }

  private static Dataset<Row> newest(Dataset<Row> rows) {
    return rows.selectExpr("*", NEWEST).where("place = 1");
  }
}
