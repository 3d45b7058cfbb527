package io.lakestream.spark;

import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Consumer;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry$;
import org.apache.spark.sql.catalyst.analysis.TableFunctionRegistry$;
import org.apache.spark.sql.catalyst.analysis.UnresolvedFunction;
import org.apache.spark.sql.catalyst.analysis.UnresolvedGenerator;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTableValuedFunction;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.UnresolvedWith;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;
import scala.Product;
import scala.Tuple2;
import scala.Tuple3;
import scala.collection.Iterable;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Confines the queries of users who may see some streams only, in a JVM that can do everything with the lake.
 *
 * <p>Spark has no users: any query could read files (<code>text.`/etc/passwd`</code>), call Java (reflect), run programs
 * (TRANSFORM … USING) or read other accounts' tables. So nothing is forbidden here, a little is allowed: the nodes of
 * queries, tables <code>delta.`streams/X`</code> directly below the session's root, buckets (kv.X), typed views (X_json), names of
 * WITH, as_of, and Spark's builtin functions of harmless groups. The session's root is the account's directory. It is the plan as parsed that is
 * judged, before any name is looked up; IDENTIFIER(…), whose names appear later, is none of the allowed nodes.
 */
final class Confinement {
  /** Name of the table function with the streams that a query reads. */
  static final String STREAMS = "lakestream_streams";

  private static final Set<String> PLANS =
      Set.of(
          "Aggregate",
          "Deduplicate",
          "Distinct",
          "Except",
          "Filter",
          "Generate",
          "GlobalLimit",
          "Intersect",
          "Join",
          "LateralJoin",
          "LocalLimit",
          "LocalRelation",
          "Offset",
          "OneRowRelation",
          "PipeOperator",
          "Pivot",
          "Project",
          "RelationTimeTravel",
          "Sample",
          "Sort",
          "SubqueryAlias",
          "Union",
          "UnresolvedHaving",
          "UnresolvedHint",
          "UnresolvedInlineTable",
          "UnresolvedQualify",
          "UnresolvedRelation",
          "UnresolvedSubqueryColumnAliases",
          "UnresolvedTVFAliases",
          "UnresolvedTableValuedFunction",
          "UnresolvedWith",
          "Unpivot",
          "WithWindowDefinition");

  /** Groups of Spark's builtin functions; misc_funcs has those that reach out of the query. */
  private static final Set<String> GROUPS =
      Set.of(
          "agg_funcs",
          "array_funcs",
          "bitwise_funcs",
          "collection_funcs",
          "conditional_funcs",
          "conversion_funcs",
          "csv_funcs",
          "datetime_funcs",
          "date_funcs",
          "generator_funcs",
          "hash_funcs",
          "json_funcs",
          "lambda_funcs",
          "map_funcs",
          "math_funcs",
          "predicate_funcs",
          "string_funcs",
          "struct_funcs",
          "table_funcs",
          "url_funcs",
          "variant_funcs",
          "window_funcs");

  private static final Set<String> OTHERS = Set.of("typeof", "uuid", "raise_error", "assert_true");
  private static final Set<String> TABLES =
      Set.of(
          "explode", "explode_outer", "inline", "inline_outer", "json_tuple", "posexplode", "posexplode_outer", "range",
          "stack", "variant_explode", "variant_explode_outer", STREAMS);
  private static final Pattern TABLE = Pattern.compile("streams/([^/@]+)(@v\\d+|@\\d{17})?");

  /** Name of a bucket, object store or typed stream of the account itself. */
  private static final Pattern BUCKET = Pattern.compile("[-A-Za-z0-9_]+");

  private static final String ELSEWHERE = ", which DuckDB's engine has,";

  /** The column with the paths of files, which Spark adds to every table. */
  private static final Pattern METADATA = Pattern.compile("(?<![A-Za-z0-9_])_metadata(?![A-Za-z0-9_])", Pattern.CASE_INSENSITIVE);

  private final Set<String> streams = new TreeSet<>();

  private Confinement() {}

  /** Returns the streams that a query reads. Raises an error for any other statement, and for a query of anything else. */
  static Set<String> streams(String text, LogicalPlan plan) {
    if (METADATA.matcher(text).find()) {
      throw refused("the column _metadata");
    }
    Confinement found = new Confinement();
    found.judge(plan, Set.of());
    return found.streams;
  }

  /** Judges a part of a statement in which the names of WITH in `scope` stand for queries. */
  private void judge(Object part, Set<String> scope) {
    if (part instanceof UnresolvedWith with) {
      with(with, scope);
      return;
    }
    if (part instanceof LogicalPlan plan) {
      plan(plan, scope);
    } else if (part instanceof UnresolvedFunction function) {
      function(CollectionConverters.asJava(function.nameParts()));
    } else if (part instanceof UnresolvedGenerator generator) {
      FunctionIdentifier name = generator.name();
      function(name.database().isEmpty() ? List.of(name.funcName()) : List.of(name.database().get(), name.funcName()));
    } else if (part instanceof Expression && part.getClass().getSimpleName().contains("UnresolvedIdentifier")) {
      throw refused("IDENTIFIER");
    }
    each(part, inner -> judge(inner, scope));
  }

  /** A name of WITH counts in the queries after its own, in its own only where that is recursive, and nowhere outside. */
  private void with(UnresolvedWith with, Set<String> outer) {
    Set<String> scope = new HashSet<>(outer);
    for (Object each : CollectionConverters.asJava(with.cteRelations())) {
      Product relation = (Product) each;
      String name = lower(relation.productElement(0));
      if (with.allowRecursion()) {
        scope.add(name);
      }
      judge(relation.productElement(1), scope);
      scope.add(name);
    }
    judge(with.child(), scope);
  }

  private void plan(LogicalPlan plan, Set<String> scope) {
    String kind = plan.getClass().getSimpleName().replace("$", "");
    if (plan.getClass().getName().startsWith("org.apache.spark.sql.delta.") || !PLANS.contains(kind)) {
      throw refused(kind);
    }
    if (plan instanceof UnresolvedRelation relation) {
      table(relation, scope);
    } else if (plan instanceof UnresolvedTableValuedFunction function) {
      List<String> name = CollectionConverters.asJava(function.name());
      if (name.size() == 1 && name.get(0).equalsIgnoreCase(AsOf.NAME)) {
        asOf(CollectionConverters.asJava(function.functionArgs()));
      } else if (name.size() != 1 || !TABLES.contains(lower(name.get(0)))) {
        boolean isOurs = name.size() == 1 && lower(name.get(0)).equals("last");
        throw refused((isOurs ? "table " : "") + "function " + String.join(".", name) + (isOurs ? ELSEWHERE : ""));
      }
    }
  }

  private void table(UnresolvedRelation relation, Set<String> scope) {
    List<String> name = CollectionConverters.asJava(relation.multipartIdentifier());
    if (relation.isStreaming()) {
      throw refused("STREAM");
    }
    if (name.size() == 1 && scope.contains(lower(name.get(0)))) {
      return;
    }
    if (Buckets.stream(name) != null && BUCKET.matcher(name.get(1)).matches()) {
      streams.add(Buckets.stream(name).substring("streams/".length()));
      return;
    }
    String typed = TypedViews.stream(name);
    if (typed != null && BUCKET.matcher(typed).matches()) {
      streams.add(typed);
      return;
    }
    if (name.size() == 2 && lower(name.get(0)).equals("misfits")) {
      throw refused("table " + String.join(".", name) + ELSEWHERE);
    }
    Matcher stream = TABLE.matcher(name.get(name.size() - 1));
    if (name.size() != 2 || !name.get(0).equalsIgnoreCase("delta") || !stream.matches()) {
      throw refused("table " + String.join(".", name));
    }
    streams.add(stream.group(1));
  }

  private void asOf(List<Expression> arguments) {
    boolean isText = !arguments.isEmpty() && arguments.get(0) instanceof Literal literal && literal.value() instanceof UTF8String;
    String stream = isText ? ((Literal) arguments.get(0)).value().toString() : "";
    if (stream.isEmpty() || stream.contains("/")) {
      throw refused("as_of of anything but the name of a stream");
    }
    streams.add(stream);
  }

  private static void function(List<String> name) {
    Option<ExpressionInfo> info = Option.empty();
    if (name.size() == 1) {
      FunctionIdentifier wanted = new FunctionIdentifier(name.get(0));
      info = FunctionRegistry$.MODULE$.builtin().lookupFunction(wanted);
      if (info.isEmpty()) {
        info = TableFunctionRegistry$.MODULE$.builtin().lookupFunction(wanted);
      }
    }
    boolean isKnown = info.isDefined() && (GROUPS.contains(info.get().getGroup()) || OTHERS.contains(lower(name.get(0))));
    if (!isKnown) {
      throw refused("function " + String.join(".", name));
    }
  }

  /** Visits the constructor arguments of a node, as PlanRewriter does: not all that a node holds are its children. */
  private static void each(Object part, Consumer<Object> visit) {
    Iterator<?> parts;
    if (part instanceof TreeNode || part instanceof Option || part instanceof Tuple2 || part instanceof Tuple3) {
      parts = ((Product) part).productIterator();
    } else if (part instanceof Iterable<?> several) {
      parts = several.iterator();
    } else {
      return;
    }
    while (parts.hasNext()) {
      visit.accept(parts.next());
    }
  }

  private static String lower(Object name) {
    return name.toString().toLowerCase(Locale.ROOT);
  }

  private static RuntimeException refused(String what) {
    return AsOf.wrong(
        "a query here reads streams, as delta.`streams/ORDERS` or as_of('ORDERS', …), with Spark's functions of values; "
            + what + " is not available",
        false);
  }
}
