package io.lakestream.delta;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.LocationProviders;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.NotFoundException;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;

/**
 * Versions of an Iceberg table by number, in the directory `metadata` beside a hint at the newest one.
 *
 * <p>Iceberg's own (HadoopTableOperations) reads every version back that it has written, and looks for each under three
 * names. This one knows that it is the only writer: it remembers what it wrote, while the file is there and has no
 * successor. Local names are synced before and after a version gets its name. In an object store a file is there as a
 * whole or not at all, so it is written under its final name.
 */
final class IcebergVersions implements TableOperations {
  static final String DIRECTORY = "metadata";
  static final String HINT = "version-hint.text";
  private static final Pattern VERSION = Pattern.compile("v(\\d+)\\.metadata\\.json");

  private final String location;
  private final Path directory;
  private final IcebergFiles files;
  private final boolean local;
  private int version;
  private TableMetadata current;

  IcebergVersions(String location, IcebergFiles files) {
    this.location = location;
    this.files = files;
    directory = new Path(location, DIRECTORY);
    local = files.system() instanceof LocalFileSystem;
  }

  @Override
  public TableMetadata current() {
    return current;
  }

  @Override
  public TableMetadata refresh() {
    try {
      boolean known = current != null && exists(version);
      int newest = known ? version : hinted();
      while (exists(newest + 1)) {
        newest++;
      }
      if (!known || newest != version) {
        current = newest == 0 ? null : TableMetadataParser.read(files, file(newest).toString());
        version = newest;
      }
    } catch (FileNotFoundException gone) {
      throw new NotFoundException(gone, "%s is damaged", directory);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return current;
  }

  @Override
  public void commit(TableMetadata base, TableMetadata metadata) {
    if (base == metadata) {
      return;
    }
    Path file = file(version + 1);
    try {
      if (base != current || exists(version + 1)) {
        throw new CommitFailedException("another program has written to %s", directory);
      }
      byte[] content = TableMetadataParser.toJson(metadata).getBytes(StandardCharsets.UTF_8);
      if (local) {
        java.nio.file.Path complete = written(UUID.randomUUID() + ".metadata.json", content);
        java.nio.file.Path names = complete.getParent();
        NamedFiles.sync(names);
        if (version == 0) {
          NamedFiles.sync(names.getParent());
        }
        Files.move(complete, names.resolve(file.getName()), StandardCopyOption.ATOMIC_MOVE);
        NamedFiles.sync(names);
      } else {
        try (FSDataOutputStream output = files.system().create(file, false)) {
          output.write(content);
        }
      }
      version++;
      current = TableMetadata.buildFrom(metadata).withMetadataLocation(file.toString()).discardChanges().build();
      hint();
    } catch (IOException error) {
      current = null; // what happened is read before the next commit
      throw new UncheckedIOException(error);
    }
    CatalogUtil.deleteRemovedMetadataFiles(files, base, metadata);
  }

  /**
   * Makes the hint name the current version, if it does not: a crash came between the two. The newest version is found
   * from any hint before it, but readers follow the hint.
   */
  void mendHint() throws IOException {
    if (read() != version) {
      hint();
    }
  }

  private void hint() throws IOException {
    byte[] content = Integer.toString(version).getBytes(StandardCharsets.UTF_8);
    if (local) {
      java.nio.file.Path complete = written(UUID.randomUUID() + "-" + HINT, content);
      Files.move(complete, complete.resolveSibling(HINT), StandardCopyOption.ATOMIC_MOVE);
    } else {
      try (FSDataOutputStream output = files.system().create(new Path(directory, HINT), true)) {
        output.write(content);
      }
    }
  }

  /** Returns the version that the hint names, or without one the highest; 0 if there is none. */
  private int hinted() throws IOException {
    int found = read();
    if (found == 0) {
      try {
        for (FileStatus each : files.system().listStatus(directory)) {
          Matcher name = VERSION.matcher(each.getPath().getName());
          found = name.matches() ? Math.max(found, Integer.parseInt(name.group(1))) : found;
        }
      } catch (FileNotFoundException none) {
        return 0;
      }
    }
    return found;
  }

  /** Returns the number in the hint; 0 if there is none. */
  private int read() throws IOException {
    try (FSDataInputStream content = files.system().open(new Path(directory, HINT))) {
      return Integer.parseInt(new String(content.readAllBytes(), StandardCharsets.UTF_8).strip());
    } catch (FileNotFoundException | NumberFormatException none) {
      return 0;
    }
  }

  private java.nio.file.Path written(String name, byte[] content) throws IOException {
    Path path = new Path(directory, name);
    try (FSDataOutputStream output = files.system().create(path, false)) { // synced when it is closed
      output.write(content);
    }
    return java.nio.file.Path.of(path.toUri().getPath());
  }

  private boolean exists(int number) throws IOException {
    return files.system().exists(file(number));
  }

  private Path file(int number) {
    return new Path(directory, "v" + number + ".metadata.json");
  }

  @Override
  public FileIO io() {
    return files;
  }

  @Override
  public String metadataFileLocation(String name) {
    return new Path(directory, name).toString();
  }

  @Override
  public LocationProvider locationProvider() {
    return LocationProviders.locationsFor(location, current.properties());
  }

  /** Returns the same for a version that is not committed yet, which says where files of deletions go. */
  @Override
  public TableOperations temp(TableMetadata uncommitted) {
    IcebergVersions found = new IcebergVersions(location, files);
    found.current = uncommitted;
    return found;
  }
}
