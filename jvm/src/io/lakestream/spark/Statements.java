package io.lakestream.spark;

import java.util.Set;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.plans.logical.CloneTableStatement;
import org.apache.spark.sql.catalyst.plans.logical.Command;
import org.apache.spark.sql.catalyst.plans.logical.CompoundBody;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.ParsedStatement;
import org.apache.spark.sql.catalyst.plans.logical.RestoreTableStatement;
import scala.Option;
import scala.Product;
import scala.Tuple2;
import scala.Tuple3;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

/**
 * Statements that a session accepts, by the setting `spark.lakestream.statements`.
 *
 * <p>Without it: all. `read`: those that only read, for `lakestream sql --engine spark`. `confined`: queries of the
 * streams below the session's root and nothing else (Confinement), for users who may not see the whole lake. A statement
 * cannot change the setting where it applies, since SET does more than read.
 */
public final class Statements {
  /** Names of the classes of Spark's and Delta's read-only commands. */
  private static final Set<String> SHOWING =
      Set.of(
          "DescribeColumn",
          "DescribeDeltaDetailCommand",
          "DescribeDeltaHistory",
          "DescribeFunction",
          "DescribeQueryCommand",
          "DescribeRelation",
          "ExplainCommand",
          "ShowColumns",
          "ShowFunctions",
          "ShowTableProperties",
          "ShowTables");

  private static final String SETTING = "spark.lakestream.statements";

  private Statements() {}

  static boolean areConfined(SparkSession session) {
    return !Set.of("all", "read").contains(session.conf().get(SETTING, "all"));
  }

  /** Raises an error for a statement that the session does not accept. */
  static void check(SparkSession session, String text, LogicalPlan plan) {
    switch (session.conf().get(SETTING, "all")) {
      case "all" -> {}
      case "read" -> {
        if (!reads(plan)) {
          throw AsOf.wrong(
              "a statement here is SELECT, WITH, VALUES, DESCRIBE, DESCRIBE HISTORY, SHOW or EXPLAIN; streams change "
                  + "through NATS",
              true);
        }
      }
      default -> Confinement.streams(text, plan);
    }
  }

  /** Returns true for a statement that only reads: a query without commands in it, or a read-only command. */
  private static boolean reads(LogicalPlan plan) {
    return SHOWING.contains(plan.getClass().getSimpleName()) || !changes(plan);
  }

  private static boolean changes(Object part) {
    if (part instanceof Command
        || part instanceof ParsedStatement
        || part instanceof CompoundBody
        || part instanceof CloneTableStatement
        || part instanceof RestoreTableStatement
        || (part instanceof LogicalPlan && part.getClass().getName().startsWith("org.apache.spark.sql.delta."))) {
      return true;
    }
    Iterator<?> parts;
    if (part instanceof LogicalPlan || part instanceof Option || part instanceof Tuple2 || part instanceof Tuple3) {
      parts = ((Product) part).productIterator();
    } else if (part instanceof Seq<?> several) {
      parts = several.iterator();
    } else {
      return false;
    }
    while (parts.hasNext()) {
      if (changes(parts.next())) {
        return true;
      }
    }
    return false;
  }
}
