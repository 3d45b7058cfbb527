package io.lakestream.delta;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options.CreateFileOptionKeys;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIOException;

/**
 * Log store for Delta tables in an object store with conditional writes (If-None-Match).
 *
 * <p>Delta's own store for S3 prevents conflicts only within one process. Here the object store itself refuses the
 * second writer of a version. It needs hadoop-aws 3.4.2 or newer, with fs.s3a.create.conditional.enabled at its default;
 * without them a write fails with an error that says so, and nothing is written.
 */
public final class ConditionalS3LogStore extends S3SingleDriverLogStore {
  public ConditionalS3LogStore(Configuration configuration) {
    super(configuration);
  }

  /**
   * Writes a file of the log completely or not at all.
   *
   * @throws FileAlreadyExistsException the file exists and must not be overwritten: another writer has the version
   */
  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    if (overwrite) {
      super.write(path, actions, true, configuration);
      return;
    }
    FileSystem store = path.getFileSystem(configuration);
    Commits.write(store, path, actions, content -> create(store, path, content));
  }

  private static void create(FileSystem store, Path path, byte[] content) throws IOException {
    FSDataOutputStream out;
    try {
      FSDataOutputStreamBuilder<?, ?> builder = store.createFile(path);
      builder.overwrite(false);
      builder.must(CreateFileOptionKeys.FS_OPTION_CREATE_CONDITIONAL_OVERWRITE, "true");
      out = builder.build();
    } catch (IllegalArgumentException | UnsupportedOperationException refused) {
      throw without(path, refused);
    } catch (PathIOException refused) {
      if (refused.getMessage().contains("Conditional Writes Unavailable")) {
        throw without(path, refused);
      }
      throw refused;
    }
    // The object is created, and the condition checked, when the stream is closed.
    try (out) {
      out.write(content);
    }
  }

  private static UnsupportedOperationException without(Path path, Exception refused) {
    return new UnsupportedOperationException(
        "commits to "
            + path
            + " need conditional writes: hadoop-aws 3.4.2 or newer, fs.s3a.create.conditional.enabled not false, "
            + "and an object store that knows If-None-Match",
        refused);
  }
}
