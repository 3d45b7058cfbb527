/** The statement of the SQL page: its text, its run, and those of before. It goes on while other pages are shown. */

import { cancelSql, session, sql } from "./api.js";
import { createStore } from "./store.js";

const KEPT = 50;

/**
 * The page's state: `text`, `engine`, `running` (`{began, statement}` or null), `result`, `error`. The result and the
 * error are those of the last statement that ended.
 */
export const statement = createStore({ text: "", engine: "duckdb", running: null, result: null, error: null });

const change = (values) => statement.set({ ...statement.value, ...values });

/** Set the text, or the engine. */
export const setText = (text) => change({ text });
export const setEngine = (engine) => change({ engine });

/** Statements belong to a user of an account in this browser, and to this tab until it is closed. */
let owner = "";
const place = () => `lakestream.sql.${session.value?.account}.${session.value?.user}`;

/** Take up the text and the history of the session's user, once; another user begins anew. */
export function takeUp() {
  if (owner === place()) return;
  owner = place();
  statement.set({ text: sessionStorage.getItem(owner) ?? "", engine: "duckdb", running: null, result: null,
    error: null });
  past.set(read());
}

function read() {
  try {
    return JSON.parse(localStorage.getItem(owner)) ?? [];
  } catch {
    return [];
  }
}

/** Statements that were run, the newest first: `{statement, engine, at, took, rows, failed}`. */
export const past = createStore([]);

/** Forget the statements that were run. */
export function forget() {
  localStorage.removeItem(owner);
  past.set([]);
}

function note(entry) {
  past.set([entry, ...past.value.filter((each) => each.statement !== entry.statement)].slice(0, KEPT));
  try {
    localStorage.setItem(owner, JSON.stringify(past.value));
  } catch {
    // It lasts for this page only then.
  }
}

/** Run a statement; one of this session that runs must be cancelled first. */
export async function run(text, engine = statement.value.engine) {
  const asked = text.trim().replace(/;\s*$/, "");
  if (!asked || statement.value.running) return;
  const [mine, began] = [owner, Date.now()];
  sessionStorage.setItem(owner, text);
  change({ text, engine, running: { began, statement: asked }, error: null });
  let [result, error] = [null, null];
  try {
    result = { ...(await sql(asked, { engine })), number: began };
  } catch (failure) {
    error = failure;
  }
  if (mine !== owner) return; // another user has come
  change({ running: null, result, error });
  note({ statement: asked, engine, at: began, took: Date.now() - began, rows: result?.rows.length,
    failed: Boolean(error) });
}

/** Stop the statement that runs. */
export async function cancel() {
  try {
    await cancelSql();
  } catch (error) {
    change({ error });
  }
}
