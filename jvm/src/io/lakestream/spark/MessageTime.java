package io.lakestream.spark;

import io.lakestream.spark.CommitLog.Commit;
import io.lakestream.spark.CommitLog.Progress;
import java.io.IOException;
import java.util.List;

/**
 * From a message time to a version of a stream's table: version_for_message_time of
 * lakestream/lake/delta/time_travel.py in Java, which explains the rules.
 *
 * <p>Belongs here: the search among the commits. tests/lake/test_time_travel.py compares both.
 */
final class MessageTime {
  /**
   * Version to read; the rows with time_ns up to the asked time count. `version` is null if the stream had no message
   * yet. `departures`: the commit whose departures tell which messages had left, or null.
   */
  record Found(Long version, Progress departures) {}

  /** The table has no version for the question; the text says which versions there are. */
  static final class Gone extends Exception {
    private static final long serialVersionUID = 1L;

    Gone(String text) {
      super(text);
    }
  }

  /** The stream did not record departures at that time. */
  private static final class NotRecorded extends Exception {
    private static final long serialVersionUID = 1L;
  }

  /** Where a time of a stream with time travel is in its table; see PointVersion in Python. */
  private record Point(Long version, Progress progress, Progress before) {}

  private static final String ADOPTION = "Manual Update";
  private static final String KEEP_MORE =
      "; to keep versions longer, give the stream the metadata lakestream.time_travel (such as 30d)";

  private final CommitLog log;
  private final long atNs;
  private final Progress newest;
  private final List<Long> course;

  private MessageTime(CommitLog log, long atNs) throws IOException {
    this.log = log;
    this.atNs = atNs;
    newest = log.progress(log.latest());
    course = log.course();
  }

  /**
   * Returns the version that holds all messages stored at or before a time.
   *
   * @param atNs ns since the epoch
   * @throws Gone if log clean-up has deleted that version
   */
  static Found version(CommitLog log, long atNs) throws IOException, Gone {
    MessageTime search = new MessageTime(log, atNs);
    if (search.newest == null) {
      return new Found(null, null);
    }
    Found exact = search.exactly();
    return exact != null ? exact : search.byMessages();
  }

  /** Returns the answer of a stream that records no departures: the first version with the last such message. */
  private Found byMessages() throws IOException, Gone {
    int count = above(course, each -> lastTime(each) > atNs);
    if (count < course.size() && beginsBy(course.get(count))) {
      return new Found(course.get(count), null);
    }
    long seq = count == 0 ? 0 : lastSeq(course.get(count - 1));
    if (seq == 0) {
      Progress oldest = log.progress(log.oldest());
      if (log.oldest() > 0 && (oldest == null || oldest.uid().equals(newest.uid()))) {
        String kept = Instants.print(log.commit(log.oldest()).timeMs() * 1_000_000);
        String held = "the versions of " + log.table + " that held " + Instants.print(atNs) + " are gone";
        throw new Gone(held + "; the oldest still known is " + log.oldest() + ", committed at " + kept + KEEP_MORE);
      }
      return new Found(null, null);
    }
    return new Found(course.get(above(course.subList(0, count), each -> lastSeq(each) >= seq)), null);
  }

  /** Returns the answer by recorded departures; null where the stream did not record them at that time. */
  private Found exactly() throws IOException, Gone {
    Point kept;
    try {
      kept = point();
    } catch (NotRecorded older) {
      return null;
    } catch (Gone gone) {
      if (newest.departed() < 0 && log.commit(log.oldest()).progress() == null) {
        return null; // it is unknown if departures were recorded then
      }
      throw gone;
    }
    if (kept.version() == null) { // beyond the table's last message or removal
      return newest.departed() < 0 ? null : new Found(log.latest(), log.uncleared(log.latest()));
    }
    if (kept.before() == null && !beginsBy(kept.version())) {
      return new Found(null, null);
    }
    return new Found(kept.version(), kept.progress());
  }

  private Point point() throws IOException, Gone, NotRecorded {
    int at = above(course, each -> reached(each) > atNs);
    if (at == course.size()) {
      return new Point(null, newest, null);
    }
    long version = course.get(at);
    Progress progress = log.commit(version).progress();
    if (progress != null && progress.departed() < 0) {
      throw new NotRecorded();
    }
    if (progress == null || (at == 0 && version > 0)) {
      throw new Gone(
          Instants.print(atNs) + " is before the versions of " + log.table + " that are still there" + KEEP_MORE);
    }
    Progress before = at == 0 ? null : log.progress(course.get(at - 1));
    if (before == null || !before.uid().equals(progress.uid())) {
      return new Point(version, progress, null);
    }
    Long first = log.commit(version).firstTimeNs();
    if (before.departed() < 0 && (first == null || atNs < first)) {
      throw new NotRecorded(); // removals before the first message of this commit were not recorded
    }
    return new Point(version, progress, before);
  }

  private Progress own(long version) throws IOException {
    Progress found = log.progress(version);
    return found != null && found.uid().equals(newest.uid()) ? found : null;
  }

  private long reached(long version) throws IOException {
    Progress found = own(version);
    return found == null ? -1 : found.reached();
  }

  private long lastTime(long version) throws IOException {
    Progress found = own(version);
    return found == null ? -1 : found.lastTimeNs();
  }

  private long lastSeq(long version) throws IOException {
    Progress found = own(version);
    return found == null ? 0 : found.lastSeq();
  }

  /** Returns true if a commit may have added messages stored by the time: a commit without statistics may have. */
  private boolean beginsBy(long version) throws IOException {
    Commit commit = log.commit(version);
    if (commit.operation().equals(ADOPTION)) {
      return true;
    }
    return commit.adds() > 0 && (commit.firstTimeNs() == null || commit.firstTimeNs() <= atNs);
  }

  /** Condition on a version; it holds from some version of the course on. */
  private interface Condition {
    boolean holds(long version) throws IOException;
  }

  /** Returns the place of the first version for which a condition holds, by bisection. */
  private static int above(List<Long> versions, Condition condition) throws IOException {
    int low = 0;
    int high = versions.size();
    while (low < high) {
      int middle = (low + high) >>> 1;
      if (condition.holds(versions.get(middle))) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
}
