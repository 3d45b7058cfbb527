package io.lakestream.delta;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.BufferedWriter;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;

/**
 * Log store for Delta tables in a directory of this machine, or of a mount that several machines share.
 *
 * <p>Delta's own store checks if the version exists and then renames a file over it; two processes may both find no
 * file, and one commit is lost. Here the file is written completely under another name, synced, and then gets the
 * version's name as a hard link, which the file system refuses if the name exists. deltalake commits in the same way, so
 * both can write to one table.
 *
 * <p>The files of a commit are checked before: the commit fails if one is missing or too short, and the names of new
 * files and directories are synced (their contents are synced by DurableFileSystem, or here if another file system
 * wrote them). So a commit that survives a power loss is complete.
 *
 * <p>Without hard links, the check and the rename are made under a lock on a file beside the log. The lock ends with
 * the process that holds it.
 */
public final class LocalCommitLogStore extends HadoopFileSystemLogStore {
  /** If true, behave as on file systems without hard links; for tests. */
  public static final String WITHOUT_LINKS = "io.lakestream.delta.withoutLinks";

  private static final String LOCK_FILE = ".lakestream.lock";

  private static final String FIRST_COMMIT = "00000000000000000000.json";

  private static final Pattern CHECKPOINT_VERSION = Pattern.compile("\"version\":(\\d+)");

  /** File locks belong to the process, so threads of one process need this lock as well. */
  private static final Object IN_PROCESS = new Object();

  public LocalCommitLogStore(Configuration configuration) {
    super(configuration);
  }

  /**
   * Writes a file of the log completely or not at all, after the files that it names are on disk.
   *
   * @throws FileAlreadyExistsException the file exists and must not be overwritten: another writer has the version
   */
  @Override
  public void write(
      org.apache.hadoop.fs.Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    Path target = local(path);
    Path directory = target.getParent();
    if (!Files.isDirectory(directory)) {
      throw new FileNotFoundException("No such file or directory: " + directory);
    }
    Path draft = directory.resolve("." + target.getFileName() + "." + UUID.randomUUID() + ".tmp");
    NamedFiles named = new NamedFiles(directory.getParent());
    try {
      writeOut(draft, actions, named);
      if (overwrite) {
        checkpointToDisk(draft, directory);
        replace(draft, target);
      } else {
        named.verify();
        named.toDisk(!(path.getFileSystem(configuration) instanceof DurableFileSystem));
        if (target.endsWith(FIRST_COMMIT)) {
          tableToDisk(directory);
        }
        publish(draft, target);
      }
      NamedFiles.sync(directory);
    } finally {
      Files.deleteIfExists(draft);
    }
  }

  /** Returns true: Spark writes checkpoints file by file under their final names. */
  @Override
  public Boolean isPartialWriteVisible(org.apache.hadoop.fs.Path path, Configuration configuration) {
    return true;
  }

  private static Path local(org.apache.hadoop.fs.Path path) {
    return Path.of(path.toUri().getPath());
  }

  private static void writeOut(Path draft, Iterator<String> actions, NamedFiles named) throws IOException {
    try (FileChannel channel =
            FileChannel.open(draft, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
        BufferedWriter writer = new BufferedWriter(Channels.newWriter(channel, StandardCharsets.UTF_8))) {
      while (actions.hasNext()) {
        String line = actions.next();
        named.read(line);
        writer.write(line);
        writer.write('\n');
      }
      writer.flush();
      channel.force(true);
    }
  }

  private static void publish(Path draft, Path target) throws IOException {
    if (!Boolean.getBoolean(WITHOUT_LINKS)) {
      try {
        Files.createLink(target, draft);
        return;
      } catch (FileAlreadyExistsException taken) {
        throw new FileAlreadyExistsException(target.toString());
      } catch (UnsupportedOperationException | IOException refused) {
        // File systems without hard links report various errors. If the link was made nevertheless and only the answer
        // was lost, as on a network mount, the commit has succeeded.
        if (Files.exists(target, LinkOption.NOFOLLOW_LINKS) && Files.isSameFile(target, draft)) {
          return;
        }
      }
    }
    publishUnderLock(draft, target);
  }

  private static void publishUnderLock(Path draft, Path target) throws IOException {
    Path lockFile = target.resolveSibling(LOCK_FILE);
    synchronized (IN_PROCESS) {
      try (FileChannel channel =
              FileChannel.open(lockFile, StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
        channel.lock(); // until the channel is closed
        if (Files.exists(target, LinkOption.NOFOLLOW_LINKS)) {
          throw new FileAlreadyExistsException(target.toString());
        }
        Files.move(draft, target, StandardCopyOption.ATOMIC_MOVE);
      }
    }
  }

  private static void replace(Path draft, Path target) throws IOException {
    // Hadoop's local file system may have written a checksum beside the old file, which would not match.
    Files.deleteIfExists(target.resolveSibling("." + target.getFileName() + ".crc"));
    Files.move(draft, target, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
  }

  /** Syncs the checkpoint that the draft of _last_checkpoint names, before that is published. */
  private static void checkpointToDisk(Path draft, Path directory) throws IOException {
    Matcher version = CHECKPOINT_VERSION.matcher(Files.readString(draft));
    if (!version.find()) {
      return;
    }
    String parts = String.format("%020d.checkpoint.*", Long.parseLong(version.group(1)));
    List<Path> found = new ArrayList<>();
    try (DirectoryStream<Path> names = Files.newDirectoryStream(directory, parts)) {
      names.forEach(found::add);
    }
    NamedFiles.syncAll(found);
    NamedFiles.sync(directory);
  }

  /** Syncs the directories that a new table may have created: its log's, its own, and any above it. */
  private static void tableToDisk(Path log) throws IOException {
    List<Path> above = new ArrayList<>();
    for (Path each = log.toAbsolutePath().getParent(); each != null; each = each.getParent()) {
      above.add(each);
    }
    NamedFiles.syncAll(above);
  }
}
