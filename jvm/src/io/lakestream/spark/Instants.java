package io.lakestream.spark;

import java.time.DateTimeException;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Times as people write them, in ns since the epoch: lakestream/protocol/instants.py in Java.
 *
 * <p>Belongs here: parsing and printing. Texts without a zone are UTC.
 */
final class Instants {
  private static final Pattern TEXT =
      Pattern.compile(
          "(\\d{4}-\\d\\d-\\d\\d)(?:[ T](\\d\\d:\\d\\d)(:\\d\\d)?(\\.\\d{1,9})?)?"
              + "\\s*(?:(Z|UTC)|([+-])(\\d\\d):?(\\d\\d)?)?",
          Pattern.CASE_INSENSITIVE);

  private static final long SECOND = 1_000_000_000L;

  private Instants() {}

  /**
   * Returns the time of a text such as `2026-05-01`, `2026-05-01 12:00:00` or `2026-05-01T12:00:00.123+02:00`.
   *
   * @throws IllegalArgumentException if it is none, or outside of the years 1678 to 2261
   */
  static long parse(String text) {
    Matcher found = TEXT.matcher(text.strip());
    if (!found.matches()) {
      throw new IllegalArgumentException(
          "cannot read '" + text + "' as a time; write 2026-05-01 12:30:00 (UTC) or 2026-05-01T12:30:00+02:00");
    }
    String clock = found.group(2) == null ? "00:00" : found.group(2);
    String seconds = found.group(3) == null ? ":00" : found.group(3);
    String fraction = found.group(4) == null ? "" : found.group(4);
    try {
      LocalDateTime local = LocalDateTime.parse(found.group(1) + "T" + clock + seconds + fraction);
      long since = Math.subtractExact(local.toEpochSecond(ZoneOffset.UTC), offset(found));
      long ns = Math.addExact(Math.multiplyExact(since, SECOND), local.getNano());
      if (ns >= Long.MAX_VALUE - SECOND + 1) {
        throw new ArithmeticException();
      }
      return ns;
    } catch (DateTimeException noDate) {
      throw new IllegalArgumentException("cannot read '" + text + "' as a time: a part of it is out of range");
    } catch (ArithmeticException far) {
      throw new IllegalArgumentException(
          "'" + text + "' is outside of the times that a message can have (1678 to 2261)");
    }
  }

  /** Returns the ns of a text beyond its whole µs; 0 if it names none, or no time. */
  static long beyondMicros(String text) {
    Matcher found = TEXT.matcher(text.strip());
    String fraction = found.matches() && found.group(4) != null ? found.group(4) : "";
    return fraction.length() <= ".123456".length() ? 0 : Long.parseLong((fraction + "00").substring(7, 10));
  }

  /** Returns a zone's distance from UTC, in seconds to the east. The limits are those of Go's parser. */
  private static long offset(Matcher found) {
    if (found.group(6) == null) {
      return 0;
    }
    int hours = Integer.parseInt(found.group(7));
    int minutes = found.group(8) == null ? 0 : Integer.parseInt(found.group(8));
    if (hours > 24 || minutes > 60) {
      throw new DateTimeException("time zone offset out of range");
    }
    long seconds = hours * 3600L + minutes * 60L;
    return found.group(6).equals("-") ? -seconds : seconds;
  }

  /** Returns RFC 3339 in UTC, without trailing zeros of the fraction. */
  static String print(long ns) {
    Instant at = Instant.ofEpochSecond(Math.floorDiv(ns, SECOND), Math.floorMod(ns, SECOND));
    String whole = LocalDateTime.ofInstant(at, ZoneOffset.UTC).withNano(0).toString();
    String seconds = whole.length() == "2026-05-01T12:00".length() ? whole + ":00" : whole;
    String fraction = at.getNano() == 0 ? "" : String.format(".%09d", at.getNano()).replaceAll("0+$", "");
    return seconds + fraction + "Z";
  }
}
