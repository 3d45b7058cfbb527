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
 * The files of this machine that one commit puts into a table: they are whole, and on disk, before the commit is.
 *
 * <p>Data files, change data and deletion vectors, with the sizes that the commit gives them. Files in an object store,
 * which the table of a clone may name, are not looked at: the store has confirmed them.
 */
final class NamedFiles {
  private static final JsonFactory JSON = new JsonFactory();
  private static final String BASE85 =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

  /** Characters of a UUID in base 85, behind the directory that it may have before it. */
  private static final int UUID_LENGTH = 20;

  /** A vector's length stands before its bytes, and a checksum behind them. */
  private static final int VECTOR_FRAME_BYTES = 8;

  /** Syncs at the same time: disks take several for little more than the time of one. */
  private static final int PARALLEL = 8;

  private final Path table;

  /** Least size of each file. */
  private final Map<Path, Long> sizes = new HashMap<>();

  /** Those of them that the commit also removes: they were in the table before it, and only their rows change. */
  private final Set<Path> known = new HashSet<>();

  NamedFiles(Path table) {
    this.table = table;
  }

  /** Takes note of the files that one line of a commit names. */
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

  /** Where a file is that the log calls so; null for one that is not in a directory. */
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
   * Sees that all are as long as the commit says.
   *
   * @throws IOException one is not, or is missing
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
   * Brings to disk what is new: the files' names, those of new directories, and if asked the files too.
   *
   * @param contents whether the files may not have been synced by who wrote them
   */
  void toDisk(boolean contents) throws IOException {
    List<Path> files = new ArrayList<>();
    Set<Path> directories = new HashSet<>();
    for (Path file : sizes.keySet()) {
      // What is elsewhere is another table's: its own commit has seen to that.
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

  /** Brings files, or the names in directories, to disk. */
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

  /** Brings one to disk. Some file systems have no such thing for directories; then it is up to them. */
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
