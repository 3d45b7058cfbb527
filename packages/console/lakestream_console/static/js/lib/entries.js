/** Entries of a bucket: the last message of each subject, now or at a moment, page by page where there are many. */

import { useEffect, useMemo, useState } from "../../vendor/htm-preact.js";
import { session, sql } from "./api.js";
import { subjectPage } from "./jetstream.js";
import { asMessage, lastBySubject, lastOf } from "./messages.js";
import { isTravelling, upTo } from "./past.js";
import { useKept, usePoll } from "./poll.js";

/** Entries on one page of a bucket that has more than one answer of the server may have. */
const PAGE = 200;
/** Names that are read of a bucket. */
const MAX_NAMES = 100_000;
/** Rows of an answer to SQL. */
const MAX_ROWS = 10_000;
/** Entries that are read at once by SQL, as by a direct get. */
const MAX_AT_ONCE = 1024;
const NAMES_REFRESH_MS = 10_000;

const quoted = (text) => `'${text.replaceAll("'", "''")}'`;

/** Return true if the tables tell what a stream held at a moment. */
export const isInTable = (info) => session.value.sql && isTravelling(info);

/** Return the last message of each subject below `prefix` as of a moment, by SQL; null if they are too many. */
async function lastAt(stream, prefix, at, options) {
  const { rows } = await sql(`SELECT seq, subject, CAST(time AS VARCHAR), headers, data FROM ${table(stream, at)}
    WHERE starts_with(subject, ${quoted(prefix)})
    QUALIFY row_number() OVER (PARTITION BY subject ORDER BY seq DESC) = 1 LIMIT ${MAX_AT_ONCE + 1}`, options);
  return rows.length > MAX_AT_ONCE ? null : rows.map(asMessage);
}

/** Return the last message of each of these subjects as of a moment, by SQL. */
async function lastOfAt(stream, subjects, at, options) {
  const { rows } = await sql(`SELECT seq, subject, CAST(time AS VARCHAR), headers, data FROM ${table(stream, at)}
    WHERE subject IN (${subjects.map(quoted).join(", ")})
    QUALIFY row_number() OVER (PARTITION BY subject ORDER BY seq DESC) = 1`, options);
  return rows.map(asMessage);
}

/** Return a stream as it was after everything stored in the millisecond `at`, as a table of SQL. */
const table = (stream, at) => `as_of(${quoted(stream)}, '${new Date(at).toISOString().replace("Z", "999999")}')`;

/** Return messages of one subject as of a moment, ascending from sequence `seq` on: [[seq, data in base64]]. */
export async function messagesAt(stream, subject, at, seq, limit, options) {
  const query = `SELECT seq, data FROM ${table(stream, at)}
    WHERE subject = ${quoted(subject)} AND seq >= ${seq} ORDER BY seq LIMIT ${limit}`;
  return (await sql(query, options)).rows;
}

/** Return the subjects below `prefix` as of a moment, from the table. */
async function subjectsAt(stream, prefix, at, options) {
  const found = [];
  while (found.length < MAX_NAMES) {
    const after = found.length ? ` AND subject > ${quoted(found.at(-1))}` : "";
    const query = `SELECT DISTINCT subject FROM ${table(stream, at)}
      WHERE starts_with(subject, ${quoted(prefix)})${after} ORDER BY subject LIMIT ${MAX_ROWS}`;
    const { rows } = await sql(query, options);
    if (!rows.length) break;
    found.push(...rows.map(([subject]) => subject));
  }
  return found;
}

/** Return the subjects below `prefix` of the messages that a stream has now. */
async function subjectsNow(stream, prefix, options) {
  const found = [];
  while (found.length < MAX_NAMES) {
    const { names, total } = await subjectPage(stream, `${prefix}>`, found.length, options);
    found.push(...names);
    if (!names.length || found.length >= total) break;
  }
  return found;
}

/**
 * Read the last message of each subject below `prefix`, now (`at` null) or at a moment in ms.
 *
 * `info` is the stream's, null before it is known. `wanted` is what names must contain, `chosen` a subject that is read
 * in any case, `nameOf` returns the name of a subject.
 *
 * Return `{data, error, refresh, pages}`. `pages` is null if `data` has all entries; otherwise `data` has those of one
 * page, and `pages` has `total`, `page`, `size`, `show`, `partial` (names that the stream has no more are missing) and
 * `cut` (there are more names than are read).
 */
export function useEntries(info, prefix, at, { wanted, chosen, nameOf }) {
  const stream = info?.config.name;
  const last = at === null ? info?.state.last_seq ?? 0 : 0;
  const keys = [stream, at, Boolean(info)];
  // A stream without direct gets tells its past by SQL alone.
  const bySql = at !== null && Boolean(info) && !info.config.allow_direct && session.value.sql;
  const load = async (signal) => info && { messages: bySql ? await lastAt(stream, prefix, at, { signal })
    : await lastBySubject(info, `${prefix}>`, upTo(at), { signal }) };
  const all = useKept(usePoll(load, 0, [...keys, last]));
  const large = Boolean(all.data) && all.data.messages === null;
  const fromTable = at !== null && Boolean(info) && (bySql || isInTable(info));
  const list = (signal) => large && (fromTable ? subjectsAt(stream, prefix, at, { signal })
    : subjectsNow(stream, prefix, { signal }));
  const names = useKept(usePoll(list, large && at === null ? NAMES_REFRESH_MS : 0, [...keys, large]));
  const matching = useMemo(() => (names.data || [])
    .map((subject) => ({ subject, name: nameOf(subject) }))
    .filter(({ name }) => !wanted || name.toLowerCase().includes(wanted))
    .sort((one, other) => (one.name < other.name ? -1 : 1)), [names.data, wanted]);
  const [place, show] = useState(0);
  useEffect(() => show(0), [wanted, at]);
  const page = Math.max(0, Math.min(place, Math.ceil(matching.length / PAGE) - 1));
  const shown = large ? matching.slice(page * PAGE, (page + 1) * PAGE).map(({ subject }) => subject) : [];
  const asked = large && chosen && !shown.includes(chosen) ? [...shown, chosen] : shown;
  const read = async (signal) => large && { messages: !asked.length ? []
    : bySql ? await lastOfAt(stream, asked, at, { signal }) : await lastOf(info, asked, upTo(at), { signal }) };
  const some = useKept(usePoll(read, 0, [...keys, last, asked.join("\n")]));
  if (!large) return { ...all, data: all.data?.messages ?? null, pages: null };
  return {
    data: names.data && some.data ? some.data.messages : null,
    error: names.error ?? some.error,
    loading: names.loading || some.loading,
    refresh: () => (names.refresh(), some.refresh()),
    pages: { total: matching.length, page, size: PAGE, show, partial: at !== null && !fromTable,
      cut: names.data?.length >= MAX_NAMES, has: (subject) => shown.includes(subject) },
  };
}
