package io.lakestream.spark;

import io.lakestream.delta.DurableFileSystem;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.SparkSessionExtensions;
import scala.Function1;
import scala.runtime.BoxedUnit;

/**
 * Spark session extension: <code>delta.`streams/ORDERS`</code> is the lake's table, and local files are synced when
 * they are closed.
 *
 * <p>It comes after Delta's own extension: <code>spark.sql.extensions =
 * io.delta.sql.DeltaSparkSessionExtension,io.lakestream.spark.LakestreamExtensions</code>. Then our parser is the outer
 * one and sees Delta's statements too.
 */
public final class LakestreamExtensions implements Function1<SparkSessionExtensions, BoxedUnit> {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    // Commits of this session need their files on disk before.
    DurableFileSystem.use(SparkContext.getOrCreate().hadoopConfiguration());
    extensions.injectParser((session, parser) -> new LakeParser(session, parser));
    extensions.injectResolutionRule(session -> new TypedViews(session));
    extensions.injectPlannerStrategy(session -> new ConnectPool(session.sparkContext()));
    return BoxedUnit.UNIT;
  }
}
