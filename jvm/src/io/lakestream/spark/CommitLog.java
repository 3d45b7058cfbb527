package io.lakestream.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * The commits of a stream's Delta table, read on demand: the twin in Java of lakestream/lake/table/log.py.
 *
 * <p>Belongs here: listing a transaction log, and what time travel needs of a commit. Commits are read one file at a
 * time; a commit never changes. Spark has no Python where it analyses a query, so both exist;
 * tests/lake/test_java_twin.py gives both the same logs.
 *
 * <p>Source: Delta protocol, "Delta Log Entries", "Commit Provenance Information", "In-Commit Timestamps".
 */
public final class CommitLog {
  /** Range of versions that a repair undid. */
  public record Undone(long first, long last) {}

  /**
   * Progress of the table in its stream, as a compaction states it in a commit's userMetadata; see Progress in
   * lakestream/lake/table/progress.py.
   */
  public record Progress(
      String uid,
      long lastIndex,
      long lastSeq,
      long lastTimeNs,
      long momentNs,
      long departed,
      long deletes,
      List<Undone> undone) {
    /** Returns the time of the last message or removal. */
    long reached() {
      return Math.max(momentNs, lastTimeNs);
    }
  }

  /**
   * Part of a commit that time travel needs. `progress` is null if the commit states none, `firstTimeNs` (the smallest
   * message time in its files) if a file's statistics lack it.
   */
  record Commit(long version, long timeMs, String operation, Progress progress, int adds, Long firstTimeNs) {}

  private static final Pattern NAME = Pattern.compile("^(\\d{20})\\.json$");
  private static final ObjectMapper JSON = new ObjectMapper();

  final String table;

  /** Versions after the last gap, ascending: log clean-up deletes a prefix. Never empty. */
  final List<Long> versions;

  private final FileSystem files;
  private final Path directory;
  private final Map<Long, Commit> read = new HashMap<>();

  private CommitLog(String table, FileSystem files, Path directory, List<Long> versions) {
    this.table = table;
    this.files = files;
    this.directory = directory;
    this.versions = versions;
  }

  /** Lists the log of a table; returns null if the path has none. */
  public static CommitLog open(String table, FileSystem files) throws IOException {
    Path directory = new Path(table, "_delta_log");
    List<Long> found = new ArrayList<>();
    try {
      for (FileStatus each : files.listStatus(directory)) {
        Matcher name = NAME.matcher(each.getPath().getName());
        if (name.matches()) {
          found.add(Long.parseLong(name.group(1)));
        }
      }
    } catch (FileNotFoundException noTable) {
      return null;
    }
    found.sort(null);
    return found.isEmpty() ? null : new CommitLog(table, files, directory, gapless(found));
  }

  private static List<Long> gapless(List<Long> versions) {
    for (int at = versions.size() - 1; at > 0; at--) {
      if (versions.get(at - 1) != versions.get(at) - 1) {
        return versions.subList(at, versions.size());
      }
    }
    return versions;
  }

  long oldest() {
    return versions.get(0);
  }

  long latest() {
    return versions.get(versions.size() - 1);
  }

  /** Reads a commit. */
  Commit commit(long version) throws IOException {
    Commit found = read.get(version);
    if (found == null) {
      found = summary(version);
      read.put(version, found);
    }
    return found;
  }

  /** Returns the progress of the table at a version: that of the nearest commit up to it; null before the first. */
  Progress progress(long version) throws IOException {
    for (long earlier = version; earlier >= oldest(); earlier--) {
      Progress found = commit(earlier).progress();
      if (found != null) {
        return found;
      }
    }
    return null;
  }

  /** Returns the versions in the order of the stream, without those that a repair of the table undid. */
  List<Long> course() throws IOException {
    Progress newest = progress(latest());
    if (newest == null || newest.undone().isEmpty()) {
      return versions;
    }
    return versions.stream()
        .filter(each -> newest.undone().stream().noneMatch(gone -> gone.first() <= each && each <= gone.last()))
        .toList();
  }

  /**
   * Returns the progress of the last data commit at a version if rows of removed messages may still be there, because
   * some of its DELETE commits were still to follow; else null.
   */
  Progress uncleared(long version) throws IOException {
    int deletes = 0;
    for (long earlier = version; earlier >= oldest(); earlier--) {
      Commit found = commit(earlier);
      Progress progress = found.progress();
      if (progress != null) {
        return progress.departed() > 0 && progress.deletes() > deletes ? progress : null;
      }
      deletes += found.operation().equals("DELETE") ? 1 : 0;
    }
    return null;
  }

  private Commit summary(long version) throws IOException {
    Path path = new Path(directory, String.format("%020d.json", version));
    JsonNode info = JSON.missingNode();
    int adds = 0;
    Long first = Long.MAX_VALUE;
    try (BufferedReader lines =
        new BufferedReader(new InputStreamReader(files.open(path), StandardCharsets.UTF_8))) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        if (line.isBlank()) {
          continue;
        }
        JsonNode action = JSON.readTree(line);
        if (action.hasNonNull("commitInfo")) {
          info = action.get("commitInfo");
        } else if (action.hasNonNull("add")) {
          adds += 1;
          Long oldest = oldestMessage(action.get("add").path("stats").asText(""));
          first = first == null || oldest == null ? null : Long.valueOf(Math.min(first, oldest));
        }
      }
    } catch (JsonProcessingException damaged) {
      throw new IOException(path + " is damaged: " + damaged.getOriginalMessage(), damaged);
    }
    JsonNode stamp = info.path("inCommitTimestamp");
    long time = stamp.isIntegralNumber() ? stamp.asLong() : files.getFileStatus(path).getModificationTime();
    String operation = info.path("operation").asText("");
    return new Commit(
        version, time, operation, progressOf(info.path("userMetadata").asText("")), adds, adds == 0 ? null : first);
  }

  /** Returns the smallest message time in a file by its statistics; null if they lack it. */
  private static Long oldestMessage(String statistics) throws JsonProcessingException {
    if (statistics.isBlank()) {
      return null;
    }
    JsonNode found = JSON.readTree(statistics).path("minValues").path("time_ns");
    return found.isIntegralNumber() ? found.asLong() : null;
  }

  /** Returns what a commit states about its stream; null if its userMetadata is missing or of another writer. */
  private static Progress progressOf(String metadata) {
    JsonNode found;
    try {
      found = JSON.readTree(metadata);
    } catch (JsonProcessingException ofAnother) {
      return null;
    }
    for (String required : List.of("last_index", "last_seq", "last_time_ns")) {
      if (!found.path(required).isIntegralNumber()) {
        return null;
      }
    }
    if (!found.path("uid").isTextual()) {
      return null;
    }
    List<Undone> undone = new ArrayList<>();
    for (JsonNode range : found.path("undone")) {
      undone.add(new Undone(range.path(0).asLong(), range.path(1).asLong()));
    }
    return new Progress(
        found.get("uid").asText(),
        found.get("last_index").asLong(),
        found.get("last_seq").asLong(),
        found.get("last_time_ns").asLong(),
        found.path("moment_ns").asLong(0),
        found.path("departed").asLong(-1),
        found.path("deletes").asLong(0),
        undone);
  }
}
