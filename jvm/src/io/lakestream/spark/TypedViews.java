package io.lakestream.spark;

import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.AliasIdentifier;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.rules.Rule;
import scala.Function1;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * Resolves the typed views (ORDERS_json, ORDERS_json_misfits) in every session of a Spark that serves several.
 *
 * <p>Temporary views belong to one session, and sessions of Spark Connect begin without any. The views are functions of
 * Python, so their plans come from the Python program that owns this JVM (lakestream_spark/connect.py). It is asked only
 * for a name that nothing else has resolved, and each time, so that a view follows its stream's schema. A confined session
 * gets the views of its account, whose directory is its root.
 */
public final class TypedViews extends Rule<LogicalPlan> {
  private static final Pattern NAME = Pattern.compile("(.+?)_json(_misfits)?", Pattern.DOTALL);

  private static volatile Function1<String, LogicalPlan> maker;

  private final SparkSession session;

  TypedViews(SparkSession session) {
    this.session = session;
  }

  /**
   * Sets the function from a view's name to its analyzed plan, or to null if there is no such view. Before the name stand
   * the root of a confined session, and a line feed.
   */
  public static void use(Function1<String, LogicalPlan> plans) {
    maker = plans;
  }

  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    String root = Statements.areConfined(session) ? session.conf().get("spark.lakestream.lake") : "";
    return maker == null ? plan : plan.resolveOperators(new Views(root));
  }

  private static boolean isView(LogicalPlan plan) {
    return plan instanceof UnresolvedRelation relation
        && !relation.isStreaming()
        && stream(CollectionConverters.asJava(relation.multipartIdentifier())) != null;
  }

  /** Returns the stream of a name that a typed view may have; null for any other name. */
  static String stream(List<String> name) {
    Matcher found = NAME.matcher(name.size() == 1 ? name.get(0) : "");
    return found.matches() ? found.group(1) : null;
  }

  private static final class Views extends AbstractPartialFunction<LogicalPlan, LogicalPlan> {
    private final String root;

    Views(String root) {
      this.root = root;
    }

    @Override
    public boolean isDefinedAt(LogicalPlan plan) {
      return isView(plan);
    }

    @Override
    public <A extends LogicalPlan, B> B applyOrElse(A plan, Function1<A, B> otherwise) {
      if (!isView(plan)) {
        return otherwise.apply(plan);
      }
      String name = ((UnresolvedRelation) plan).multipartIdentifier().head();
      LogicalPlan view = maker.apply(root + "\n" + name);
      @SuppressWarnings("unchecked")
      B found = (B) (view == null ? plan : new SubqueryAlias(new AliasIdentifier(name, none()), view));
      return found;
    }

    @SuppressWarnings("unchecked")
    private static Seq<String> none() {
      return (Seq<String>) (Seq<?>) Nil$.MODULE$;
    }
  }
}
