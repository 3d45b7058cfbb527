package io.lakestream.delta;

import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** A commit as an object that must not exist yet, in any object store with conditional writes. */
final class Commits {
  private Commits() {}

  /** Creates an object under a condition; fails with any IOException if it exists. */
  interface Creation {
    void create(byte[] content) throws IOException;
  }

  /**
   * Writes a commit.
   *
   * @throws FileAlreadyExistsException another writer has the version
   */
  static void write(FileSystem store, Path path, Iterator<String> actions, Creation creation) throws IOException {
    byte[] content = bytes(actions);
    try {
      creation.create(content);
    } catch (IOException failure) {
      // Either another writer was first, or the client repeated our own write after its answer was lost, and our
      // own object refused it. A commit contains its transaction id, so its bytes distinguish the two cases.
      byte[] found = existing(store, path, failure);
      if (!Arrays.equals(found, content)) {
        FileAlreadyExistsException taken = new FileAlreadyExistsException(path.toString());
        taken.initCause(failure);
        throw taken;
      }
    }
  }

  private static byte[] existing(FileSystem store, Path path, IOException failure) throws IOException {
    try (FSDataInputStream in = store.open(path)) {
      return in.readAllBytes();
    } catch (FileNotFoundException absent) {
      throw failure;
    } catch (IOException unreadable) {
      failure.addSuppressed(unreadable);
      throw failure;
    }
  }

  private static byte[] bytes(Iterator<String> actions) {
    ByteArrayOutputStream content = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      content.writeBytes(actions.next().getBytes(StandardCharsets.UTF_8));
      content.write('\n');
    }
    return content.toByteArray();
  }
}
