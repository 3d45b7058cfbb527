package io.lakestream.delta;

import io.delta.storage.AzureLogStore;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Log store for Delta tables in Azure.
 *
 * <p>Hadoop's client creates an empty file and appends to it, so a commit is written under another name first. The
 * rename is one conditional request (If-None-Match: *): in accounts with a hierarchical namespace a rename, in others a
 * copy. Delta's own store does this too, but takes its own commit for another writer's after an answer was lost. It
 * needs hadoop-azure 3.4.2 or newer, whose copies are conditional.
 */
public final class ConditionalAzureLogStore extends AzureLogStore {
  public ConditionalAzureLogStore(Configuration configuration) {
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
    Path partial = new Path(path.getParent(), "." + path.getName() + "." + UUID.randomUUID() + ".tmp");
    boolean renamed = false;
    try {
      try (FSDataOutputStream out = store.create(partial, false)) {
        out.write(content);
      }
      renamed = store.rename(partial, path);
    } finally {
      if (!renamed) {
        discard(store, partial);
      }
    }
    if (!renamed) {
      throw new IOException("the commit " + path + " could not be renamed to its name");
    }
  }

  private static void discard(FileSystem store, Path partial) {
    try {
      store.delete(partial, false);
    } catch (IOException unimportant) {
      // Its name is hidden from readers of the log.
    }
  }
}
