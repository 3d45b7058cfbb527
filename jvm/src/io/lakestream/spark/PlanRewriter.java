package io.lakestream.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import java.util.function.UnaryOperator;
import org.apache.spark.sql.catalyst.AliasIdentifier;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.analysis.RelationTimeTravel;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.analysis.UnresolvedIdentifier;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.analysis.UnresolvedStar;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTable;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTableOrView;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTableValuedFunction;
import org.apache.spark.sql.catalyst.analysis.UnresolvedView;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import scala.Option;
import scala.Some;
import scala.Tuple2;
import scala.Tuple3;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Inserts the lake's root into the table names of a parsed plan, and the relations of as_of.
 *
 * <p>Visits the constructor arguments of nodes and not their children: names of common table expressions, the table of
 * an INSERT, the relation under VERSION AS OF and the plan of an EXPLAIN are no children. A tree without a relative
 * path is returned as the same object.
 */
final class PlanRewriter {
  /** Nodes whose first constructor argument is a table's name. */
  private static final Set<Class<?>> NAMED =
      Set.of(
          UnresolvedRelation.class,
          UnresolvedTable.class,
          UnresolvedTableOrView.class,
          UnresolvedView.class,
          UnresolvedIdentifier.class);

  private final LakePaths paths;

  /** Returns the value of an expression as a timestamp; null if it has none. */
  private final Function<Expression, Literal> constants;

  private final AsOf asOf;

  /** Returns the relation with the streams that a query reads. */
  private final Function<String, LogicalPlan> streams;

  /** Replaced relative paths, for columns qualified by them. */
  private final Map<String, String> replaced = new HashMap<>();

  PlanRewriter(LakePaths paths, Function<Expression, Literal> constants, AsOf asOf, Function<String, LogicalPlan> streams) {
    this.paths = paths;
    this.constants = constants;
    this.asOf = asOf;
    this.streams = streams;
  }

  LogicalPlan rewrite(LogicalPlan plan) {
    return (LogicalPlan) rewritten(plan);
  }

  Expression rewrite(Expression expression) {
    return (Expression) rewritten(expression);
  }

  private Object rewritten(Object tree) {
    Object placed = value(tree, this::table);
    return replaced.isEmpty() ? placed : value(placed, this::column);
  }

  /** Applies `change` to every node of a part of the tree, from the top; returns the same object if nothing changed. */
  private Object value(Object value, UnaryOperator<Object> change) {
    if (value instanceof TreeNode<?> node) {
      return node(node, change);
    }
    if (value instanceof Seq<?> sequence) {
      return sequence(sequence, change);
    }
    if (value instanceof Some<?> some) {
      Object inner = value(some.get(), change);
      return inner == some.get() ? some : Option.apply(inner);
    }
    if (value instanceof Tuple2<?, ?> pair) {
      Object first = value(pair._1(), change);
      Object second = value(pair._2(), change);
      return first == pair._1() && second == pair._2() ? pair : new Tuple2<>(first, second);
    }
    if (value instanceof Tuple3<?, ?, ?> three) {
      Object first = value(three._1(), change);
      Object second = value(three._2(), change);
      Object third = value(three._3(), change);
      boolean same = first == three._1() && second == three._2() && third == three._3();
      return same ? three : new Tuple3<>(first, second, third);
    }
    return value instanceof TableIdentifier ? change.apply(value) : value;
  }

  private Object node(TreeNode<?> original, UnaryOperator<Object> change) {
    TreeNode<?> node = (TreeNode<?>) change.apply(original);
    Object[] arguments = new Object[node.productArity()];
    boolean same = true;
    for (int i = 0; i < arguments.length; i++) {
      Object argument = node.productElement(i);
      arguments[i] = value(argument, change);
      same &= arguments[i] == argument;
    }
    return same ? node : node.makeCopy(arguments);
  }

  private Object sequence(Seq<?> sequence, UnaryOperator<Object> change) {
    List<Object> values = new ArrayList<>();
    boolean same = true;
    for (Iterator<?> iterator = sequence.iterator(); iterator.hasNext(); ) {
      Object element = iterator.next();
      Object changed = value(element, change);
      same &= changed == element;
      values.add(changed);
    }
    return same ? sequence : CollectionConverters.asScala(values).toSeq();
  }

  /** Returns a node with the root inserted into its table's name, if that is a relative path. */
  private Object table(Object value) {
    if (value instanceof TableIdentifier name) {
      return paths.placed(name);
    }
    if (value instanceof RelationTimeTravel travel) {
      return travel(travel);
    }
    if (value instanceof UnresolvedTableValuedFunction function) {
      List<Expression> arguments = CollectionConverters.asJava(function.functionArgs());
      if (isNamed(function, AsOf.NAME)) {
        return asOf.function(arguments);
      }
      boolean one = isNamed(function, Confinement.STREAMS) && arguments.size() == 1;
      return one && arguments.get(0) instanceof Literal text ? streams.apply(text.value().toString()) : value;
    }
    if (!NAMED.contains(value.getClass())) {
      return value;
    }
    TreeNode<?> node = (TreeNode<?>) value;
    List<String> parts = strings(node.productElement(0));
    List<String> placed = paths.placed(parts);
    if (placed == null) {
      LogicalPlan bucket = value instanceof UnresolvedRelation ? asOf.bucket(parts, null, null) : null;
      return bucket == null ? node : named(parts, bucket);
    }
    replaced.put(parts.get(1), placed.get(1));
    return withName(node, CollectionConverters.asScala(placed).toSeq());
  }

  /** Returns a column or star with the new path, if it is qualified by a path that was replaced. */
  private Object column(Object value) {
    if (value instanceof UnresolvedAttribute attribute) {
      List<String> placed = qualified(strings(attribute.nameParts()));
      return placed == null ? value : withName(attribute, CollectionConverters.asScala(placed).toSeq());
    }
    if (value instanceof UnresolvedStar star && star.target().isDefined()) {
      List<String> placed = qualified(strings(star.target().get()));
      return placed == null ? value : withName(star, Option.apply(CollectionConverters.asScala(placed).toSeq()));
    }
    return value;
  }

  private List<String> qualified(List<String> parts) {
    int at = parts.size() > 1 && parts.get(0).equalsIgnoreCase("delta") ? 1 : 0;
    String path = replaced.get(parts.get(at));
    if (path == null) {
      return null;
    }
    List<String> placed = new ArrayList<>(parts);
    placed.set(at, path);
    return placed;
  }

  private static boolean isNamed(UnresolvedTableValuedFunction function, String wanted) {
    List<String> name = strings(function.name());
    return name.size() == 1 && name.get(0).equalsIgnoreCase(wanted);
  }

  /**
   * Replaces the expression of TIMESTAMP AS OF by its value, because Delta takes no expressions for tables by path. One
   * without a constant value stays, and Spark reports the error. Where the session says that the time is message time,
   * the whole is replaced by the rows as of it.
   */
  private Object travel(RelationTimeTravel travel) {
    if (!(travel.relation() instanceof UnresolvedRelation relation)) {
      return travel;
    }
    List<String> parts = strings(relation.multipartIdentifier());
    Option<Expression> timestamp = travel.timestamp();
    Option<String> version = travel.version();
    LogicalPlan bucket =
        asOf.bucket(parts, timestamp.isEmpty() ? null : timestamp.get(), version.isEmpty() ? null : version.get());
    if (bucket != null) {
      return named(parts, bucket);
    }
    if (timestamp.isEmpty()) {
      return travel;
    }
    List<String> placed = paths.placed(parts);
    if (placed == null) {
      return travel;
    }
    Literal value = timestamp.get() instanceof Literal literal ? literal : constants.apply(timestamp.get());
    if (value == null) {
      return travel;
    }
    if (asOf.isMeantBy(parts.get(1))) {
      replaced.put(parts.get(1), placed.get(1));
      return named(placed, asOf.at(parts.get(1), value));
    }
    return value == timestamp.get() ? travel : travel.copy(travel.relation(), Option.apply(value), travel.version());
  }

  /** Returns a relation whose columns may be qualified by a name of two parts. */
  private static LogicalPlan named(List<String> parts, LogicalPlan plan) {
    Seq<String> qualifier = CollectionConverters.asScala(parts.subList(0, 1)).toSeq();
    return new SubqueryAlias(new AliasIdentifier(parts.get(1), qualifier), plan);
  }

  private static TreeNode<?> withName(TreeNode<?> node, Object name) {
    Object[] arguments = new Object[node.productArity()];
    for (int i = 0; i < arguments.length; i++) {
      arguments[i] = i == 0 ? name : node.productElement(i);
    }
    return (TreeNode<?>) node.makeCopy(arguments);
  }

  @SuppressWarnings("unchecked")
  private static List<String> strings(Object sequence) {
    return CollectionConverters.asJava((Seq<String>) sequence);
  }
}
