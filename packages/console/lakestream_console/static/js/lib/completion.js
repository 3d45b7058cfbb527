/** Completion of names in a statement: tables, columns of those that it names, functions. */

import { sql } from "./api.js";

const KEPT_MS = 60000;
const KEYWORDS = ("SELECT FROM WHERE GROUP ORDER LIMIT JOIN USING HAVING WITH UNION DISTINCT BETWEEN INTERVAL VERSION " +
  "TIMESTAMP DESCRIBE SUMMARIZE HISTORY EXPLAIN").split(" ");
const TABLE_FUNCTIONS = ["as_of(", "last("];
/** Words of DuckDB that are no names of tables. */
const RESERVED = new Set((
  "all analyse analyze and anti any array as asc asof asymmetric at authorization binary both by case cast " +
  "check collate collation column concurrently constraint create cross default deferrable desc describe " +
  "distinct do else end except false fetch for foreign freeze from full glob group having ilike in initially " +
  "inner intersect into is isnull join lambda lateral leading left like limit natural not notnull null offset " +
  "on only or order outer overlaps pivot pivot_longer pivot_wider placing positional primary qualify references " +
  "returning right select semi show similar some summarize symmetric table tablesample then to trailing true " +
  "union unique unpack unpivot using variadic verbose when where window with"
).split(" "));
const asked = new Map();

/** Return the rows of a statement's answer, asked once a minute. */
function rowsOf(statement) {
  const kept = asked.get(statement);
  if (kept && Date.now() - kept.at < KEPT_MS) return kept.answer;
  const answer = sql(statement).then(({ rows }) => rows, (error) => {
    asked.delete(statement); // it may succeed the next time
    throw error;
  });
  asked.set(statement, { at: Date.now(), answer });
  return answer;
}

/** Return the first column of a statement's answer; nothing where it fails. */
const first = (statement) => rowsOf(statement).then((rows) => rows.map(([name]) => String(name)), () => []);

/** Return a name as it is written in SQL. */
export const written = (name) => (/^[A-Za-z_][A-Za-z0-9_]*$/.test(name) && !RESERVED.has(name.toLowerCase())
  ? name : `"${name.replaceAll('"', '""')}"`);

/** Return the columns of a stream's table: [[name, type]]. */
export const columnsOf = (stream) => rowsOf(`DESCRIBE delta.\`streams/${stream}\``);

/** Return a table's name as it may be written, for the one that SHOW TABLES lists. */
function short(listed) {
  const [, view, name] = /^(\w+)\.`(?:streams\/)?(.*)`$/.exec(listed) ?? [null, "delta", listed];
  return view === "delta" ? written(name) : `${view}.${written(name)}`;
}

/** Return the word before the end of a text, which may be completed; "" if there is none. */
export const wordBefore = (text) => /["A-Za-z_][\w".-]*$/.exec(text)?.[0] ?? "";

/** Return those of some names that a table is called by, as in ORDERS AS o: itself, or the one before its alias. */
function calledBy(names, called) {
  const named = names.filter((each) => each !== "as");
  return named.flatMap((each, at) => (each === called.toLowerCase() ? [each, ...named.slice(Math.max(at - 1, 0), at)] : []));
}

/** Return the words that begin as the one at the end of a text does. `behind`: the text after it. */
export async function candidates(text, behind = "") {
  const word = wordBefore(text);
  const before = text.slice(0, text.length - word.length);
  const named = (`${before} ${behind}`.match(/(?:\w+\.)*"[^"]+"|[\w.]+/g) ?? []).map((each) => each.toLowerCase());
  const tables = (await first("SHOW TABLES")).map((listed) => [short(listed), listed]);
  const columnsNamed = async (names) => (await Promise.all(
    tables.filter(([name]) => names.includes(name.toLowerCase())).map(([, listed]) => first(`DESCRIBE ${listed}`)))).flat();
  let words = tables.map(([name]) => name);
  if (!before.slice(before.lastIndexOf(";") + 1).trim()) {
    words = KEYWORDS;
  } else if (/\b(from|join|describe|summarize|history)\s+$/i.test(before)) {
    words.push(...TABLE_FUNCTIONS);
  } else {
    const functions = (await first("SHOW FUNCTIONS")).map((name) => `${name}(`);
    words = [...(await columnsNamed(named)), ...words, ...functions, ...KEYWORDS];
  }
  const dot = word.lastIndexOf(".");
  if (dot > 0) {
    const table = word.slice(0, dot);
    words.push(...(await columnsNamed(calledBy(named, table))).map((column) => `${table}.${column}`));
  }
  const start = word.toLowerCase();
  return [...new Set(words)].filter((each) => each.toLowerCase().startsWith(start));
}

/** Return the longest beginning that all words have. */
export function common(words) {
  let length = 0;
  const [one, ...others] = words;
  const same = (at) => others.every((other) => other[at]?.toLowerCase() === one[at].toLowerCase());
  while (length < one.length && same(length)) length += 1;
  return one.slice(0, length);
}
