"""The JARs of Delta Lake, as files beside this one; `lakestream_spark.jars` finds them."""
