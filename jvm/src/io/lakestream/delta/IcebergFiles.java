package io.lakestream.delta;

import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.hadoop.HadoopInputFile;
import org.apache.iceberg.hadoop.HadoopOutputFile;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.spark.sql.SparkSession;

/**
 * Files of Iceberg tables, through one file system of Hadoop for all tables of a lake.
 *
 * <p>Hadoop's own looks for the file system at each file, and the local one is not in its cache (DurableFileSystem): a
 * commit made a dozen. Files are deleted in the thread of the commit: one or two, for which Hadoop's own has a pool.
 */
public final class IcebergFiles extends HadoopFileIO {
  private static final long serialVersionUID = 1;

  private final transient Configuration configuration;
  private final transient FileSystem system;

  private IcebergFiles(Configuration configuration, FileSystem system) {
    super(configuration);
    this.configuration = configuration;
    this.system = system;
  }

  /** Returns the files of the lake with this root, a path or URL. */
  public static IcebergFiles open(SparkSession spark, String root) throws IOException {
    Configuration configuration = new Configuration(spark.sparkContext().hadoopConfiguration());
    if (root.startsWith("s3:")) { // as other readers spell it
      configuration.set("fs.s3.impl", "org.apache.hadoop.fs.s3a.S3AFileSystem");
    }
    return new IcebergFiles(configuration, new Path(root).getFileSystem(configuration));
  }

  Configuration configuration() {
    return configuration;
  }

  FileSystem system() {
    return system;
  }

  @Override
  public InputFile newInputFile(String path) {
    return HadoopInputFile.fromPath(new Path(path), system, configuration);
  }

  @Override
  public InputFile newInputFile(String path, long length) {
    return HadoopInputFile.fromPath(new Path(path), length, system, configuration);
  }

  @Override
  public OutputFile newOutputFile(String path) {
    return HadoopOutputFile.fromPath(new Path(path), system, configuration);
  }

  @Override
  public void deleteFile(String path) {
    try {
      system.delete(new Path(path), false);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  @Override
  public void deleteFiles(Iterable<String> paths) {
    paths.forEach(this::deleteFile);
  }
}
