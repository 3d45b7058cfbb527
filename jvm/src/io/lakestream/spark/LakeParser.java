package io.lakestream.spark;

import io.delta.sql.parser.DeltaSqlParser;
import java.util.List;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.parser.ParameterContext;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Parser that delegates to another one and then puts the lake's root before relative paths.
 *
 * <p>It is a parser and not an analyzer rule, because all front ends use the injected parser, while the spark-sql
 * shell and the Thrift server build their analyzers without some of the injected rules.
 */
final class LakeParser implements ParserInterface {
  private static final String DELTAS_OWN = "org.apache.spark.sql.delta.";

  private final SparkSession session;
  private final ParserInterface inner;

  LakeParser(SparkSession session, ParserInterface inner) {
    this.session = session;
    this.inner = inner;
  }

  private LakePaths paths() {
    return LakePaths.of(session);
  }

  private LogicalPlan placed(String text, LogicalPlan plan) {
    Statements.check(session, text, plan);
    return rewriter().rewrite(plan);
  }

  private PlanRewriter rewriter() {
    return new PlanRewriter(paths(), this::timestamp, new AsOf(session, paths()), this::streams);
  }

  /** Returns the relation of lakestream_streams(text): the streams that a confined query reads, without running it. */
  private LogicalPlan streams(String text) {
    List<String> names;
    try {
      names = List.copyOf(Confinement.streams(text, inner.parsePlan(text)));
    } catch (ParseException wrong) {
      throw AsOf.raised(wrong);
    }
    return session.createDataset(names, Encoders.STRING()).queryExecution().analyzed();
  }

  private Literal timestamp(Expression expression) {
    try {
      Column value = functions.unix_micros(ExpressionUtils.column(expression).cast("timestamp"));
      Row row = Dataset.ofRows((org.apache.spark.sql.classic.SparkSession) session, new OneRowRelation()).select(value).head();
      return row.isNullAt(0) ? null : new Literal(row.getLong(0), DataTypes.TimestampType);
    } catch (Exception unfit) {
      return null;
    }
  }

  @Override
  public LogicalPlan parsePlan(String text) throws ParseException {
    return placed(text, inner.parsePlan(text));
  }

  @Override
  public LogicalPlan parsePlanWithParameters(String text, ParameterContext parameters)
      throws ParseException {
    LogicalPlan plan = inner.parsePlanWithParameters(text, parameters);
    if (inner instanceof DeltaSqlParser delta && !plan.getClass().getName().startsWith(DELTAS_OWN)) {
      plan = withParameters(delta.delegate(), text, parameters, plan);
    }
    return placed(text, plan);
  }

  /** Calls Spark's parser, since Delta's drops the parameters of Spark's statements. */
  private static LogicalPlan withParameters(
      ParserInterface spark, String text, ParameterContext parameters, LogicalPlan otherwise) {
    try {
      return spark.parsePlanWithParameters(text, parameters);
    } catch (ParseException onlyDeltaKnows) {
      return otherwise;
    }
  }

  @Override
  public LogicalPlan parseQuery(String text) throws ParseException {
    return placed(text, inner.parseQuery(text));
  }

  @Override
  public Expression parseExpression(String text) throws ParseException {
    return rewriter().rewrite(inner.parseExpression(text));
  }

  @Override
  public TableIdentifier parseTableIdentifier(String text) throws ParseException {
    return paths().placed(inner.parseTableIdentifier(text));
  }

  @Override
  public Seq<String> parseMultipartIdentifier(String text) throws ParseException {
    Seq<String> parts = inner.parseMultipartIdentifier(text);
    List<String> placed = paths().placed(CollectionConverters.asJava(parts));
    return placed == null ? parts : CollectionConverters.asScala(placed).toSeq();
  }

  @Override
  public FunctionIdentifier parseFunctionIdentifier(String text) throws ParseException {
    return inner.parseFunctionIdentifier(text);
  }

  @Override
  public StructType parseRoutineParam(String text) throws ParseException {
    return inner.parseRoutineParam(text);
  }

  @Override
  public StructType parseTableSchema(String text) throws ParseException {
    return inner.parseTableSchema(text);
  }

  @Override
  public DataType parseDataType(String text) throws ParseException {
    return inner.parseDataType(text);
  }
}
