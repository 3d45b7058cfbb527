package io.lakestream.spark;

import io.lakestream.delta.DurableFileSystem;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.SparkSessionExtensions;
import scala.Function1;
import scala.runtime.BoxedUnit;

/**
 * What lakestream adds to a Spark session: <code>delta.`streams/ORDERS`</code> means the lake's table, and files in a
 * directory are on disk when they are closed.
 *
 * <p>Belongs after Delta's own extension: <code>spark.sql.extensions =
 * io.delta.sql.DeltaSparkSessionExtension,io.lakestream.spark.LakestreamExtensions</code>. Then our parser is the outer
 * one and sees Delta's statements too.
 */
public final class LakestreamExtensions implements Function1<SparkSessionExtensions, BoxedUnit> {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    // Whoever commits with this session writes files that are on disk before the commit is.
    DurableFileSystem.use(SparkContext.getOrCreate().hadoopConfiguration());
    extensions.injectParser((session, parser) -> new LakeParser(session, parser));
    return BoxedUnit.UNIT;
  }
}
