package io.lakestream.spark;

import io.lakestream.spark.CommitLog.Commit;
import io.lakestream.spark.CommitLog.Progress;
import java.io.IOException;
import java.util.List;

/**
 * From a message time, or a sequence, to a version of a stream's table: version_for_message_time and
 * version_for_sequence of lakestream/lake/table/at.py in Java, which explains the rules.
 *
 * <p>Belongs here: the search among the commits. tests/lake/test_java_twin.py gives both the same logs.
 */
public final class MessageTime {
  /**
   * Version to read; the rows with time_ns up to the asked time count. `version` is null if the stream had no message
   * yet. `departures`: the commit whose departures tell which messages had left, or null.
   */
  public record Found(Long version, Progress departures) {}

  /** The table has no version for the question; the text says which versions there are. */
  public static final class Gone extends Exception {
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

  /** Time, or 0 for the point right after sequence `seq` was stored. */
  private final long atNs;

  /** Sequence, or 0. */
  private final long seq;

  private final Progress newest;
  private final List<Long> course;

  private MessageTime(CommitLog log, long atNs, long seq) throws IOException {
    this.log = log;
    this.atNs = atNs;
    this.seq = seq;
    newest = log.progress(log.latest());
    course = log.course();
  }

  /**
   * Returns the version that holds all messages stored at or before a time.
   *
   * @param atNs ns since the epoch
   * @throws Gone if log clean-up has deleted that version
   */
  public static Found version(CommitLog log, long atNs) throws IOException, Gone {
    MessageTime search = new MessageTime(log, atNs, 0);
    if (search.newest == null) {
      return new Found(null, null);
    }
    Found exact = search.exactly();
    return exact != null ? exact : search.byMessages();
  }

  /**
   * Returns the version with the messages that the stream held right after a sequence was stored. Of a stream that does
   * not record departures: the newest one, with those of them that the stream still has.
   *
   * @throws Gone if log clean-up has deleted that version, or departures were not recorded then
   */
  public static Found ofSequence(CommitLog log, long seq) throws IOException, Gone {
    MessageTime search = new MessageTime(log, 0, seq);
    if (search.newest != null && search.newest.departed() >= 0) {
      try {
        Point kept = search.point();
        if (kept.version() != null) {
          return new Found(kept.version(), kept.progress());
        }
      } catch (NotRecorded older) {
        throw new Gone(
            "when messages left the stream was not kept at sequence " + seq + ": it is from the stream's next segment on"
                + " after it was given the metadata lakestream.time_travel");
      }
    }
    return new Found(log.latest(), log.uncleared(log.latest()));
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
    int at = above(course, each -> seq > 0 ? lastSeq(each) >= seq : reached(each) > atNs);
    if (at == course.size()) {
      return new Point(null, newest, null);
    }
    long version = course.get(at);
    Progress progress = log.commit(version).progress();
    if (progress != null && progress.departed() < 0) {
      throw new NotRecorded();
    }
    if (progress == null || (at == 0 && version > 0)) {
      String named = seq > 0 ? "sequence " + seq : Instants.print(atNs);
      throw new Gone(named + " is before the versions of " + log.table + " that are still there" + KEEP_MORE);
    }
    Progress before = at == 0 ? null : log.progress(course.get(at - 1));
    if (before == null || !before.uid().equals(progress.uid())) {
      return new Point(version, progress, null);
    }
    Long first = log.commit(version).firstTimeNs();
    if (before.departed() < 0 && seq == 0 && (first == null || atNs < first)) {
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
