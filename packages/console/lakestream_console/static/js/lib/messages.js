/** Stored messages: direct gets, with the messages API for streams that do not allow them. */

import { CallError, request, sql } from "./api.js";
import { fromBase64, toLossyText } from "./bytes.js";
import { millis } from "./format.js";
import { jetstream, subjectPage } from "./jetstream.js";

const OWN = /^(Nats-(Stream|Subject|Sequence|Time-Stamp|Num-Pending|Last-Sequence|UpTo-Sequence)|Status|Description)$/i;
const MAX_SINGLE_GETS = 25;
const MAX_LAST_GETS = 200;
const TOO_MANY = 413;
const MAX_WINDOW = 4000;
const BATCH_BYTES = 4 * 1024 * 1024;

/** Number of messages on one page. */
export const PAGE = 50;

const header = (reply, name) => reply.headers?.[name]?.[0];

function statusOf(reply) {
  const status = reply.status ?? header(reply, "Status");
  return status === undefined ? 0 : Number(status);
}

function read(reply) {
  const own = Object.entries(reply.headers ?? {}).filter(([name]) => !OWN.test(name));
  const time = header(reply, "Nats-Time-Stamp");
  return {
    seq: Number(header(reply, "Nats-Sequence")),
    subject: header(reply, "Nats-Subject"),
    time,
    millis: millis(time),
    headers: Object.fromEntries(own),
    data: fromBase64(reply.data_base64),
    pending: Number(header(reply, "Nats-Num-Pending") ?? 0),
  };
}

/** Run a direct get; return its messages, none if it has no results. */
export async function direct(stream, body, options = {}) {
  const replies = await request(`$JS.API.DIRECT.GET.${stream}`, {
    data: JSON.stringify(body),
    replies: "eob",
    ...options,
  });
  const messages = [];
  for (const reply of replies) {
    const status = statusOf(reply);
    if (!status && header(reply, "Nats-Sequence")) messages.push(read(reply));
    else if (status >= 400 && status !== 404) {
      throw new CallError(reply.description ?? header(reply, "Description") ?? `status ${status}`, status);
    }
  }
  return messages;
}

function parsedHeaders(base64) {
  const headers = {};
  for (const line of toLossyText(fromBase64(base64)).split("\r\n").slice(1)) {
    const [, name, value] = /^([^:]+):\s*(.*)$/.exec(line) ?? [];
    if (name) (headers[name] ??= []).push(value);
  }
  return headers;
}

/** Return one message by the messages API (`seq`, `last_by_subj`, `next_by_subj`), or null. */
async function getMessage(stream, body, options) {
  try {
    const { message } = await jetstream(`STREAM.MSG.GET.${stream}`, body, options);
    const { seq, subject, time, data, hdrs } = message;
    const headers = hdrs ? parsedHeaders(hdrs) : {};
    return { seq, subject, time, millis: millis(time), headers, data: fromBase64(data ?? ""), pending: 0 };
  } catch (error) {
    if (error.status === 404 || error.code === 10037) return null;
    throw error;
  }
}

/** Return up to `limit` messages from sequence `seq` on whose subjects match `filter`. */
async function forward(info, { seq, filter, limit, time }, options) {
  const name = info.config.name;
  if (info.config.allow_direct) {
    const start = time ? { start_time: time } : { seq: Math.max(1, seq) };
    const body = { ...start, next_by_subj: filter || ">", batch: limit, max_bytes: BATCH_BYTES };
    return direct(name, body, options);
  }
  const found = [];
  let next = time ? await seqAt(info, time, options) : Math.max(1, seq);
  while (found.length < Math.min(limit, MAX_SINGLE_GETS)) {
    const message = await getMessage(name, { seq: next, next_by_subj: filter || ">" }, options);
    if (!message) break;
    found.push(message);
    next = message.seq + 1;
  }
  return found;
}

/** Find the first sequence stored at or after a time by halving the range: for streams without direct gets. */
async function seqAt(info, time, options) {
  const wanted = millis(time);
  let [low, high] = [info.state.first_seq, info.state.last_seq + 1];
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    const message = await getMessage(info.config.name, { seq: middle, next_by_subj: ">" }, options);
    if (!message || message.millis >= wanted) high = middle;
    else low = message.seq + 1;
  }
  return low;
}

/** Return all messages of sequences `start` to below `end` whose subjects match; a batch may end early by its bytes. */
async function range(info, start, end, filter, options) {
  const found = [];
  for (let next = start; next < end; ) {
    const part = await forward(info, { seq: next, filter, limit: end - next }, options);
    const within = part.filter((message) => message.seq < end);
    found.push(...within);
    if (!within.length || within.length < part.length) break;
    next = within.at(-1).seq + 1;
  }
  return found;
}

/** Return up to `limit` messages before sequence `before` whose subjects match; the range read doubles as needed. */
async function backward(info, { before, filter, limit }, options) {
  const first = Math.max(1, info.state.first_seq);
  const size = info.config.allow_direct ? limit : Math.min(limit, MAX_SINGLE_GETS);
  let found = [];
  let window = size;
  let end = before;
  while (end > first && found.length < size) {
    const start = Math.max(first, end - window);
    const part = await range(info, start, end, filter, options);
    found = [...part, ...found];
    end = start;
    if (!filter && !part.length) window = Math.min(window * 4, MAX_WINDOW);
    else window = Math.min(window * 2, MAX_WINDOW);
    options?.signal?.throwIfAborted();
  }
  return found.slice(-size);
}

/**
 * Return one page of a stream, ascending by sequence.
 *
 * `place` has one of `seq` (from it on), `time` (RFC 3339, from it on), `before` (ending before a sequence); with none
 * the page ends with the newest message.
 */
export function browse(info, place, filter, options) {
  const limit = PAGE;
  if (place.before) return backward(info, { before: place.before, filter, limit }, options);
  if (place.time) return forward(info, { time: place.time, filter, limit }, options);
  if (place.seq) return forward(info, { seq: place.seq, filter, limit }, options);
  return backward(info, { before: info.state.last_seq + 1, filter, limit }, options);
}

/**
 * Return the last message of each subject that matches `filter`; with `at`, a time, as the stream was then.
 *
 * Return null if there are more than one answer may have: `lastOf` reads them in parts.
 */
export async function lastBySubject(info, filter, at, options) {
  if (info.config.allow_direct) {
    try {
      return await lastOf(info, [filter], at, options);
    } catch (error) {
      if (error.status === TOO_MANY) return null;
      throw error;
    }
  }
  const { names, total } = await subjectPage(info.config.name, filter, 0, options);
  return total > MAX_LAST_GETS ? null : lastOf(info, names, at, options);
}

/** Return the last message of each of these subjects; with `at`, a time, as the stream was then. */
export async function lastOf(info, subjects, at, options) {
  const name = info.config.name;
  const found = [];
  if (info.config.allow_direct) {
    for (let seq; ; ) {
      const page = await direct(name, { multi_last: subjects, seq, up_to_time: at, max_bytes: BATCH_BYTES }, options);
      found.push(...page);
      if (!page.length || !page.at(-1).pending) return found;
      seq = page.at(-1).seq + 1;
    }
  }
  if (at) throw new CallError("This stream does not allow direct gets, so its past cannot be read.");
  for (const subject of subjects) {
    const message = await getMessage(name, { last_by_subj: subject }, options);
    if (message) found.push(message);
  }
  return found;
}

/** Return all stored messages of one subject, oldest first, at most `limit`. */
export async function revisions(info, subject, limit = 256, options = {}) {
  return forward(info, { seq: 1, filter: subject, limit }, options);
}

const quoted = (text) => `'${text.replaceAll("'", "''")}'`;
const LIKE_ESCAPED = /[\\%_]/g;

/** Return a pattern of LIKE for a subject with wildcards: it may match more, where `*` stands for several tokens. */
function likeOf(filter) {
  const tokens = filter.split(".").map((token) => (token === "*" || token === ">" ? "%"
    : token.replace(LIKE_ESCAPED, (each) => `\\${each}`)));
  return `${quoted(tokens.join("."))} ESCAPE '\\'`;
}

/**
 * Return the newest messages of a stream whose payloads contain a text, ascending; those before a sequence if it is
 * given.
 */
export async function search(stream, text, filter, before, options) {
  const conditions = [`contains(text(data), ${quoted(text)})`, filter && `subject LIKE ${likeOf(filter)}`,
    before && `seq < ${Number(before)}`].filter(Boolean);
  const { rows } = await sql(`SELECT seq, subject, CAST(time AS VARCHAR), headers, data FROM delta.\`streams/${stream}\`
    WHERE ${conditions.join(" AND ")} ORDER BY seq DESC LIMIT ${PAGE}`, options);
  return rows.reverse().map(asMessage);
}

/** Return a message from a row of seq, subject, time, headers and data. */
export function asMessage([seq, subject, time, headers, data]) {
  const at = new Date(time.includes("T") ? time : `${time.replace(" ", "T").replace(/[+]00(:00)?$/, "")}Z`);
  return { seq, subject, time: at.toISOString(), millis: at.getTime(), headers: headers ?? {},
    data: fromBase64(data ?? ""),
    pending: 0 };
}
