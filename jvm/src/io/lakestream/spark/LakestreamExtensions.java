package io.lakestream.spark;

import org.apache.spark.sql.SparkSessionExtensions;
import scala.Function1;
import scala.runtime.BoxedUnit;

/**
 * What lakestream adds to a Spark session: <code>delta.`streams/ORDERS`</code> means the lake's table.
 *
 * <p>Belongs after Delta's own extension: <code>spark.sql.extensions =
 * io.delta.sql.DeltaSparkSessionExtension,io.lakestream.spark.LakestreamExtensions</code>. Then our parser is the outer
 * one and sees Delta's statements too.
 */
public final class LakestreamExtensions implements Function1<SparkSessionExtensions, BoxedUnit> {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectParser((session, parser) -> new LakeParser(session, parser));
    return BoxedUnit.UNIT;
  }
}
