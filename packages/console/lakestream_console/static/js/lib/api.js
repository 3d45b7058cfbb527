/** The console's HTTP interface: session, requests over the session's connection, monitoring pages. */

import { createStore } from "./store.js";

/** Error of a call; `status` is the HTTP status, 0 if the server cannot be reached, `code` of the JetStream API. */
export class CallError extends Error {
  constructor(message, status = 0, code = 0) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The session: undefined before the first answer, else the answer of `/session`; `login`: nobody is logged in. */
export const session = createStore(undefined);

/** Path of the server's pages: the console's own path without its last segment. */
const ROOT = location.pathname.replace(/\/console\/?$/, "");

const WORDS = {
  403: "The server refused this: permission denied.",
  413: "The answer is too large for the console.",
  429: "Too many requests. Wait a moment.",
  503: "There is no responder: the stream or service does not exist, or this user may not use it.",
  504: "No answer came in time.",
};

async function call(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  if (method !== "GET") {
    headers["Content-Type"] = "application/json";
    headers["X-Lakestream-Csrf"] = session.value?.csrf ?? "";
  }
  let response;
  try {
    response = await fetch(`${ROOT}/console/api/${path}`, {
      method,
      headers,
      signal,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError("The server does not answer.");
  }
  const text = await response.text();
  let answer;
  try {
    answer = text ? JSON.parse(text) : {};
  } catch {
    answer = { error: text.trim().slice(0, 300) };
  }
  if (response.ok) return answer;
  if (response.status === 401 && answer.auth_required && !["login", "session"].includes(path)) {
    if (session.value?.auth_required === false) open(); // the server was restarted: it begins another session by itself
    else if (!session.value?.login) session.set({ login: true, kinds: answer.kinds ?? ["user"],
      ended: Boolean(session.value?.csrf) });
  }
  const said = typeof answer.error === "string" ? answer.error : answer.error?.description;
  const failure = new CallError(said || WORDS[response.status] || `HTTP ${response.status}`, response.status);
  failure.kinds = answer.kinds;
  throw failure;
}

let opening = null;

/** Ask for the session; a server without users begins one by itself. Concurrent calls share one request. */
export function open() {
  opening ??= ask().finally(() => (opening = null));
  return opening;
}

async function ask() {
  try {
    session.set(await call("session"));
  } catch (error) {
    if (error.status === 401) session.set({ login: true, kinds: error.kinds ?? ["user", "token", "creds", "nkey"] });
    else if (!session.value?.csrf) session.set({ failed: error.message });
  }
}

/** Log in with `{user, password}`, `{token}`, `{creds}` or `{nkey}`. */
export async function login(credentials) {
  session.set(await call("login", { method: "POST", body: credentials }));
}

/** End the session and its connection. */
export async function logout() {
  await call("logout", { method: "POST", body: {} });
  await open();
}

/** Send a request; return its replies (`replies`: a number, or "eob" for a batch of a direct get). */
export async function request(subject, { data = "", data_base64, headers, replies = 1, timeout, signal } = {}) {
  const body = { subject, data, data_base64, headers, replies, timeout_ms: timeout };
  const answer = await call("request", { method: "POST", body, signal });
  if (answer.error && !answer.replies?.length) throw new CallError(answer.error);
  return answer.replies ?? [];
}

/** Publish a message; return the ack of the stream that stored it, or null. */
export async function publish(subject, { data_base64 = "", headers } = {}) {
  const answer = await call("publish", { method: "POST", body: { subject, data_base64, headers } });
  if (answer.error) throw new CallError(answer.error);
  if (answer.ack?.error) throw new CallError(answer.ack.error.description, 0, answer.ack.error.err_code);
  return answer.ack ?? null;
}

let asking = Promise.resolve();

/**
 * Run a statement on the lake and the log's tail; return columns and rows. A session has one at a time: others wait.
 */
export function sql(query, { max_rows = 10000, timeout_ms = 30000, engine = "duckdb", signal } = {}) {
  const answer = asking.then(() => {
    signal?.throwIfAborted();
    return call("sql", { method: "POST", body: { query, max_rows, timeout_ms, engine }, signal });
  });
  asking = answer.catch(() => {});
  return answer;
}

/** Stop the statement of this session that runs. */
export const cancelSql = () => call("cancel", { method: "POST", body: {} });

/** Begin to restore a stream as of a moment (RFC 3339) as another one; return the restore, as `restored` does later. */
export const restore = (body) => call("restore", { method: "POST", body });
export const restored = (signal) => call("restored", { signal });

/** Return a monitoring page as this session's account sees it. */
export function page(name, query = {}, signal) {
  const text = new URLSearchParams(query).toString();
  return call(`${name}${text ? `?${text}` : ""}`, { signal });
}

/** Return the figures that the server has kept of the last so many seconds, of the server or of a stream. */
export const figures = (seconds, stream, signal) => page("history", stream ? { seconds, stream } : { seconds }, signal);

/** Open the live tail of subjects; return the EventSource. */
export function live(subjects) {
  const query = new URLSearchParams(subjects.map((subject) => ["subject", subject]));
  return new EventSource(`${ROOT}/console/api/live?${query}`);
}
