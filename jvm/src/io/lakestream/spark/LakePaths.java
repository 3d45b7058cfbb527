package io.lakestream.spark;

import java.io.File;
import java.net.URI;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.function.Supplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.TableIdentifier;
import scala.Option;

/**
 * Rules for table names that are relative paths, and for the lake's root.
 *
 * <p>Belongs here: the lake's root and the spelling of names under it; lakestream/lake/storage/paths.py has the same in Python.
 * Nothing here accesses files, except to choose the default lake from two directories.
 *
 * <p>A name is a relative path if it has two parts, the first is <code>delta</code>, and the second contains a slash
 * but begins neither with one nor with a scheme. Without a slash it is a table in a database named delta.
 */
final class LakePaths {
  /** Setting with the lake's root, which SET can change in a running session. */
  static final String SETTING = "spark.lakestream.lake";

  /** Environment variable with the lake's root, used without the setting. */
  static final String VARIABLE = "LAKESTREAM_LAKE";

  private static final Pattern SCHEME = Pattern.compile("^[A-Za-z][A-Za-z0-9+.\\-]*:");
  private static final Pattern STREAM = Pattern.compile("^((?:accounts/[^/]+/)?streams/)([^/]+?)(@(?:v\\d+|\\d{17}))?$");
  private static final Pattern UNSAFE = Pattern.compile("[^A-Za-z0-9_\\-$~\\x{80}-\\x{10ffff}]|~(?![0-9A-Fa-f]{2})");

  private final Supplier<String> root;

  LakePaths(Supplier<String> root) {
    this.root = root;
  }

  /** Returns the paths of a session's lake. The root is looked up only for a relative path. */
  static LakePaths of(SparkSession session) {
    return new LakePaths(() -> root(session.conf().getOption(SETTING), System.getenv(VARIABLE)));
  }

  /** Returns a table's name with the root inserted; null if the name stays unchanged. */
  List<String> placed(List<String> parts) {
    if (parts.size() != 2 || !parts.get(0).equalsIgnoreCase("delta") || !isRelative(parts.get(1))) {
      return null;
    }
    List<String> placed = new ArrayList<>(parts);
    placed.set(1, root.get() + "/" + spelled(parts.get(1)));
    return placed;
  }

  /** Returns a table identifier with the root inserted, or the identifier itself if it stays unchanged. */
  TableIdentifier placed(TableIdentifier name) {
    if (name.catalog().isDefined() || name.database().isEmpty()) {
      return name;
    }
    List<String> placed = placed(List.of(name.database().get(), name.table()));
    return placed == null ? name : new TableIdentifier(placed.get(1), name.database());
  }

  static boolean isRelative(String path) {
    return path.indexOf('/') > 0 && !SCHEME.matcher(path).find();
  }

  /**
   * Replaces a stream's name by that of its directory; returns any other path without a leading dot. Delta's `@v3` and
   * `@yyyyMMddHHmmssSSS` stay.
   */
  static String spelled(String path) {
    String plain = path;
    while (plain.startsWith("./")) {
      plain = plain.substring(2);
    }
    Matcher stream = STREAM.matcher(plain);
    if (!stream.matches()) {
      return plain;
    }
    String name =
        UNSAFE.matcher(stream.group(2)).replaceAll(found -> String.format("~%02X", (int) found.group().charAt(0)));
    return stream.group(1) + name + (stream.group(3) == null ? "" : stream.group(3));
  }

  private static String root(Option<String> setting, String variable) {
    if (setting.isDefined() && !setting.get().isBlank()) {
      return normalised(setting.get().strip());
    }
    if (variable != null && !variable.isBlank()) {
      return normalised(variable.strip());
    }
    return normalised(defaultLake());
  }

  /** Returns the working directory; or ./data/lake, that of `lakestream up`, if only that is a lake. */
  private static String defaultLake() {
    boolean here = new File("streams").isDirectory() || new File("segments").isDirectory();
    return !here && new File("data", "lake").isDirectory() ? "data/lake" : ".";
  }

  /** Returns the root as an absolute path or as a URL that Hadoop supports, without a trailing slash. */
  static String normalised(String lake) {
    if (lake.toLowerCase(Locale.ROOT).startsWith("file:")) {
      return local(decoded(lake));
    }
    if (!SCHEME.matcher(lake).find()) {
      return local(lake);
    }
    String url = lake.endsWith("/") ? lake.substring(0, lake.length() - 1) : lake;
    if (url.startsWith("s3://")) {
      return "s3a" + url.substring("s3".length());
    }
    if (url.startsWith("gcs://")) {
      return "gs" + url.substring("gcs".length());
    }
    String account = System.getenv("AZURE_STORAGE_ACCOUNT_NAME");
    if (url.startsWith("az://") && account != null) {
      int path = url.indexOf('/', "az://".length());
      String container = url.substring("az://".length(), path < 0 ? url.length() : path);
      return "abfss://" + container + "@" + account + ".dfs.core.windows.net" + (path < 0 ? "" : url.substring(path));
    }
    return url;
  }

  private static String local(String path) {
    String full = path.equals("~") || path.startsWith("~/") ? System.getProperty("user.home") + path.substring(1) : path;
    String absolute = Path.of(full).toAbsolutePath().normalize().toString();
    return absolute.equals("/") ? "" : absolute;
  }

  private static String decoded(String url) {
    try {
      String path = URI.create(url).getPath();
      if (path != null) {
        return path;
      }
    } catch (IllegalArgumentException spelledPlainly) {
      // A file: URL with unescaped blanks or the like.
    }
    String rest = url.substring("file:".length());
    if (rest.startsWith("//")) {
      rest = rest.substring(Math.max(rest.indexOf('/', 2), 2));
    }
    return rest;
  }
}
