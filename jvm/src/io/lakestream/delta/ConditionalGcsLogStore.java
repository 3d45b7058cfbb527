package io.lakestream.delta;

import io.delta.storage.GCSLogStore;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Log store for Delta tables in Google Cloud Storage.
 *
 * <p>A commit is created with the precondition that it has no generation, which Hadoop's client sends for a file that
 * must not be overwritten. Delta's own store does this too, but takes its own commit for another writer's after an
 * answer was lost.
 */
public final class ConditionalGcsLogStore extends GCSLogStore {
  public ConditionalGcsLogStore(Configuration configuration) {
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
    // The object is created, and the condition checked, when the stream is closed.
    try (FSDataOutputStream out = store.create(path, false)) {
      out.write(content);
    }
  }
}
