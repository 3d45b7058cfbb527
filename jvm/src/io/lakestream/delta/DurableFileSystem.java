package io.lakestream.delta;

import java.io.FilterOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.Syncable;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system whose files are on disk when they are closed, in every task.
 *
 * <p>Hadoop's own leaves that to the kernel, which takes up to half a minute: after a power failure a Delta commit
 * would name empty files. Synced where they are written, the files of all partitions are brought to disk by the tasks
 * side by side, also those that are on other machines than the driver, and a checkpoint, which Spark renames, never has
 * its final name before its content is on disk. The names of files and directories are LocalCommitLogStore's to sync,
 * once a commit.
 *
 * <p>No checksum files are written. They would need a sync each, and a torn one makes a whole file unreadable. Those
 * that stand beside older files were never synced, so they are not compared; they are renamed and removed with them.
 */
public final class DurableFileSystem extends LocalFileSystem {
  private static final String IMPLEMENTATION = "fs.file.impl";

  private static final String S3A_OWN_CLASSES = "fs.s3a.classloader.isolation";

  /** Found by its name in the configuration, so without arguments. */
  public DurableFileSystem() {
    super(new Synced());
  }

  /**
   * Has `file:` and bare paths mean this file system from now on, wherever the configuration reaches: sessions made
   * from it, and their tasks.
   *
   * <p>Not a setting that Spark is started with: spark-submit looks at its JARs through the file system, before it has
   * loaded the one that this class is in. By then instances of Hadoop's own are in its cache, which is why that is not
   * used.
   *
   * <p>S3A looks for classes in the JARs beside its own, unless told otherwise, and buffers what it uploads in local
   * files: where it is on the class path and this class came with --jars, it would not find this one.
   */
  public static void use(Configuration configuration) {
    configuration.setClassLoader(DurableFileSystem.class.getClassLoader());
    configuration.setBoolean(S3A_OWN_CLASSES, false);
    configuration.setClass(IMPLEMENTATION, DurableFileSystem.class, org.apache.hadoop.fs.FileSystem.class);
    configuration.setBoolean(IMPLEMENTATION + ".disable.cache", true);
  }

  @Override
  public void initialize(URI name, Configuration configuration) throws IOException {
    super.initialize(name, configuration);
    setWriteChecksum(false);
    setVerifyChecksum(false);
  }

  private static final class Synced extends RawLocalFileSystem {
    @Override
    protected OutputStream createOutputStreamWithMode(Path path, boolean append, FsPermission permission)
        throws IOException {
      return new SyncedStream(super.createOutputStreamWithMode(path, append, permission));
    }
  }

  private static final class SyncedStream extends FilterOutputStream implements Syncable, StreamCapabilities {
    private final OutputStream file;
    private boolean closed;

    SyncedStream(OutputStream file) {
      super(file);
      this.file = file;
    }

    @Override
    public void write(byte[] bytes, int offset, int length) throws IOException {
      file.write(bytes, offset, length);
    }

    @Override
    public void close() throws IOException {
      if (closed) {
        return;
      }
      closed = true;
      try (file) {
        hsync();
      }
    }

    @Override
    public void hflush() throws IOException {
      ((Syncable) file).hflush();
    }

    @Override
    public void hsync() throws IOException {
      ((Syncable) file).hsync();
    }

    @Override
    public boolean hasCapability(String capability) {
      return ((StreamCapabilities) file).hasCapability(capability);
    }
  }
}
