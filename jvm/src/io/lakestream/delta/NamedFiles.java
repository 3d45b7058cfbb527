package io.lakestream.delta;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.math.BigInteger;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * The local files that one commit adds to a table, which must be complete and on disk before the commit.
 *
 * <p>Data files, change data and deletion vectors, with their sizes in the commit. Files in an object store, to which a
 * clone's table may refer, are not checked: the store has confirmed them.
 */
final class NamedFiles {
  private static final JsonFactory JSON = new JsonFactory();
  private static final String BASE85 =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

  /** Number of characters of a UUID in base 85, after an optional directory prefix. */
  private static final int UUID_LENGTH = 20;

  /** A vector is preceded by its length and followed by a checksum. */
  private static final int VECTOR_FRAME_BYTES = 8;

  /** Number of parallel syncs: several take a disk little longer than one. */
  private static final int PARALLEL = 8;

  private final Path table;

  /** Minimum size of each file. */
  private final Map<Path, Long> sizes = new HashMap<>();

  /** Files that the commit also removes: they were in the table before, and only their deletion vector changes. */
  private final Set<Path> known = new HashSet<>();

  NamedFiles(Path table) {
    this.table = table;
  }

  /** Records the files that one line of a commit names. */
  void read(String line) throws IOException {
    if (!line.startsWith("{")) {
      return;
    }
    try (JsonParser json = JSON.createParser(line)) {
      json.nextToken();
      String kind = json.nextFieldName();
      if (kind == null || json.nextToken() != JsonToken.START_OBJECT) {
        return;
      }
      switch (kind) {
        case "add", "cdc" -> readFile(json, false);
        case "remove" -> readFile(json, true);
        default -> {}
      }
    }
  }

  private void readFile(JsonParser json, boolean removed) throws IOException {
    Path file = null;
    long size = 0;
    for (String field = json.nextFieldName(); field != null; field = json.nextFieldName()) {
      JsonToken value = json.nextToken();
      switch (field) {
        case "path" -> file = located(json.getText());
        case "size" -> size = value == JsonToken.VALUE_NULL ? 0 : json.getLongValue();
        case "deletionVector" -> {
          if (value == JsonToken.START_OBJECT) {
            readVector(json, removed);
          }
        }
        default -> json.skipChildren();
      }
    }
    if (removed) {
      known.add(file);
    } else if (file != null) {
      sizes.merge(file, size, Math::max);
    }
  }

  private void readVector(JsonParser json, boolean removed) throws IOException {
    String storage = "";
    String where = "";
    long offset = 0;
    long size = 0;
    for (String field = json.nextFieldName(); field != null; field = json.nextFieldName()) {
      JsonToken value = json.nextToken();
      switch (field) {
        case "storageType" -> storage = json.getText();
        case "pathOrInlineDv" -> where = json.getText();
        case "offset" -> offset = value == JsonToken.VALUE_NULL ? 0 : json.getLongValue();
        case "sizeInBytes" -> size = json.getLongValue();
        default -> json.skipChildren();
      }
    }
    Path file = null;
    if (storage.equals("p")) {
      file = located(where);
    } else if (storage.equals("u")) {
      int at = where.length() - UUID_LENGTH;
      file = table.resolve(where.substring(0, at)).resolve("deletion_vector_" + uuid(where.substring(at)) + ".bin");
    }
    if (file != null && removed) {
      known.add(file);
    } else if (file != null) {
      sizes.merge(file, offset + size + VECTOR_FRAME_BYTES, Math::max);
    }
  }

  /** Returns the path of a file named in the log; null if it is not a local file. */
  private Path located(String name) throws IOException {
    try {
      URI uri = new URI(name);
      boolean local = uri.getScheme() == null || uri.getScheme().equals("file");
      return local ? table.resolve(uri.getPath()) : null;
    } catch (URISyntaxException malformed) {
      throw new IOException("a commit to " + table + " names a file in a way that is no URI: " + name, malformed);
    }
  }

  private static String uuid(String encoded) {
    StringBuilder hex = new StringBuilder();
    for (int at = 0; at < UUID_LENGTH; at += 5) {
      BigInteger value = BigInteger.ZERO;
      for (char each : encoded.substring(at, at + 5).toCharArray()) {
        value = value.multiply(BigInteger.valueOf(85)).add(BigInteger.valueOf(BASE85.indexOf(each)));
      }
      hex.append(String.format("%08x", value.longValueExact()));
    }
    for (int at : new int[] {20, 16, 12, 8}) {
      hex.insert(at, '-');
    }
    return hex.toString();
  }

  /**
   * Checks that every file is at least as long as the commit says.
   *
   * @throws IOException a file is shorter, or missing
   */
  void verify() throws IOException {
    for (Map.Entry<Path, Long> each : sizes.entrySet()) {
      String wrong;
      try {
        long found = Files.size(each.getKey());
        if (found >= each.getValue()) {
          continue;
        }
        wrong = "has " + found + " bytes";
      } catch (NoSuchFileException missing) {
        wrong = "is not there";
      }
      throw new IOException(
          String.format(
              "a commit to %s was refused: it names a file of %d bytes that %s: %s; nothing was committed",
              table, each.getValue(), wrong, each.getKey()));
    }
  }

  /**
   * Syncs the names of new files and directories, and with `contents` the files too.
   *
   * @param contents true if the writer may not have synced the files
   */
  void toDisk(boolean contents) throws IOException {
    List<Path> files = new ArrayList<>();
    Set<Path> directories = new HashSet<>();
    for (Path file : sizes.keySet()) {
      // Files elsewhere belong to another table, whose own commit has synced them.
      if (known.contains(file) || !file.startsWith(table)) {
        continue;
      }
      files.add(file);
      for (Path each = file.getParent(); each.startsWith(table) && directories.add(each); ) {
        each = each.getParent();
      }
    }
    if (contents) {
      syncAll(files);
    }
    syncAll(directories);
  }

  /** Syncs files, or the names in directories. */
  static void syncAll(Collection<Path> paths) throws IOException {
    if (paths.size() < 2) {
      for (Path each : paths) {
        sync(each);
      }
      return;
    }
    ExecutorService threads = Executors.newFixedThreadPool(Math.min(PARALLEL, paths.size()));
    try {
      List<Future<?>> syncs = new ArrayList<>();
      for (Path each : paths) {
        syncs.add(
            threads.submit(
                () -> {
                  sync(each);
                  return null;
                }));
      }
      for (Future<?> each : syncs) {
        each.get();
      }
    } catch (ExecutionException failed) {
      throw failed.getCause() instanceof IOException error ? error : new IOException(failed.getCause());
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new java.io.InterruptedIOException("interrupted while files were brought to disk");
    } finally {
      threads.shutdownNow();
    }
  }

  /** Syncs a file or directory. File systems that cannot sync directories are left to themselves. */
  static void sync(Path path) throws IOException {
    FileChannel channel;
    try {
      channel = FileChannel.open(path, StandardOpenOption.READ);
    } catch (IOException refused) {
      if (Files.isDirectory(path)) {
        return;
      }
      throw refused;
    }
    try (channel) {
      channel.force(true);
    } catch (IOException failed) {
      boolean unsupported = "Invalid argument".equals(failed.getMessage()) && Files.isDirectory(path);
      if (!unsupported) {
        throw failed;
      }
    }
  }
}
