package io.lakestream.delta;

import java.io.FileNotFoundException;
import java.io.FilterOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.URI;
import java.nio.file.DirectoryNotEmptyException;
import java.nio.file.FileSystems;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.Syncable;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system with an fsync when a file is closed, in every task.
 *
 * <p>Hadoop's own leaves that to the kernel, which takes up to half a minute: after a power loss a Delta commit could
 * refer to empty files. The tasks sync the files that they write, so this happens in parallel, also on other machines
 * than the driver's. A checkpoint, which Spark renames, has its content on disk before it gets its final name.
 *
 * <p>LocalCommitLogStore syncs the names of files and directories, once per commit.
 *
 * <p>Neither the root of the lake (spark.lakestream.lake) is created, nor anything above it, nor the lake's own directories
 * where nothing says that it is a lake: it is away, or not mounted, and no other one must begin in its place. The same as
 * in lakestream/lake/storage/local_storage.py.
 *
 * <p>No checksum files are written. Each would need an fsync, and a torn one makes a whole file unreadable. Existing
 * ones of older files were never synced, so they are not verified; they are renamed and removed with their files.
 */
public final class DurableFileSystem extends LocalFileSystem {
  private static final String IMPLEMENTATION = "fs.file.impl";

  private static final String S3A_OWN_CLASSES = "fs.s3a.classloader.isolation";

  /** Called by Hadoop, which finds the class by its name in the configuration. */
  public DurableFileSystem() {
    super(new Synced());
  }

  /**
   * Use this file system for `file:` and bare paths, wherever the configuration is used: in sessions made from it,
   * and in their tasks.
   *
   * <p>This is no setting with which Spark is started, because spark-submit opens its JARs through the file system
   * before it has loaded the one of this class. By then its cache has instances of Hadoop's own, so the cache is
   * disabled.
   *
   * <p>S3A by default loads classes from the JARs beside its own, and buffers its uploads in local files: if it is on
   * the class path and this class comes with --jars, it would not find this class.
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
    private static final String SETTING = "spark.lakestream.lake";
    private static final boolean POSIX = FileSystems.getDefault().supportedFileAttributeViews().contains("posix");

    /** Names of which one at least says that a directory is a lake. */
    private static final List<String> MARKS =
        List.of("_lake.json", "_server.json", "streams", "segments", "accounts", "_compactor");

    /** Root of the lake; null if it is in an object store, or not known. */
    private java.nio.file.Path lake;

    @Override
    public void initialize(URI name, Configuration configuration) throws IOException {
      super.initialize(name, configuration);
      String root = configuration.get(SETTING, "");
      lake = root.startsWith("/") ? java.nio.file.Path.of(root).normalize() : null;
    }

    @Override
    public boolean mkdirs(Path directory) throws IOException {
      return mkdirs(directory, null);
    }

    /** Creates a directory; Hadoop calls {@link #mkdirs(Path)} for each missing one above it. */
    @Override
    public boolean mkdirs(Path directory, FsPermission permission) throws IOException {
      java.nio.file.Path path = pathToFile(directory).toPath();
      if (lake == null || Files.isDirectory(path)) {
        return super.mkdirs(directory, permission);
      }
      if (lake.startsWith(path)) {
        throw new FileNotFoundException("the lake is away: there is no " + lake);
      }
      if (!lake.equals(path.getParent())) {
        return super.mkdirs(directory, permission);
      }
      requireLake(path);
      boolean made = super.mkdirs(directory, permission);
      try {
        requireLake(path);
      } catch (FileNotFoundException away) {
        try {
          Files.deleteIfExists(path);
        } catch (DirectoryNotEmptyException ofOthers) {
          away.addSuppressed(ofOthers);
        }
        throw away;
      }
      return made;
    }

    /** Sets the permissions of a new file or directory, for which Hadoop starts a program: longer than the file takes. */
    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
      if (permission.getStickyBit() || !POSIX) {
        super.setPermission(path, permission);
        return;
      }
      Files.setPosixFilePermissions(
          pathToFile(path).toPath(), PosixFilePermissions.fromString(permission.toString()));
    }

    private void requireLake(java.nio.file.Path without) throws FileNotFoundException {
      for (String name : MARKS) {
        java.nio.file.Path mark = lake.resolve(name);
        if (!mark.equals(without) && Files.exists(mark)) {
          return;
        }
      }
      throw new FileNotFoundException("the lake is away: there is no " + lake.resolve(MARKS.get(0)));
    }

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
