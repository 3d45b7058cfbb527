"""The JARs of Delta Lake, as files beside this one; `lakestream.lake.spark.jars` finds them."""
