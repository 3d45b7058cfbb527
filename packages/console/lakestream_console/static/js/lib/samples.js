/** The server's figures now, sampled while the console is open: rates by stream, traffic. */

import { page, session } from "./api.js";
import { millis } from "./format.js";
import { createStore } from "./store.js";

/** Time between samples, and after which one is given up, in ms. */
const INTERVAL = 2000;
const PATIENCE = 10_000;
/** Time after which a server that has not answered counts as silent, in ms. */
const SILENT = 4000;

const NOTHING = { now: {}, streams: null, varz: null, jsz: null, error: null, received: 0 };

/**
 * The latest sample: `varz`, `jsz`, `streams` (with `rate` and `lake`), `now` (rates), `received` (when it came, in
 * ms), `error`.
 */
export const samples = createStore(NOTHING);

/**
 * The life of the server: since when it is silent (ms, 0: it answers), and when it was found restarted (`start`,
 * `seen`).
 */
export const life = createStore({ silent: 0, restart: null });

let timer = 0;
let last = null;
let begun = 0;
let shown = 0;
let started = "";

const identity = (stream) => `${stream.account}/${stream.name}`;

/** Return the streams of a `/jsz` page as a flat array, each with its account. */
export function streamsOf(jsz) {
  return (jsz.account_details ?? []).flatMap((account) =>
    (account.stream_detail ?? []).map((stream) => ({ ...stream, account: account.name })),
  );
}

/** Return true for a stream of the session's account: the system account sees those of others, and cannot read them. */
export const isOwn = (stream) => stream.account === session.value?.account;

function perSecond(before, after, seconds) {
  return before === undefined || seconds <= 0 ? null : Math.max(0, (after - before) / seconds);
}

/** Return the lag of a stream's table as /varz has it, or null if the stream has no table. */
function lakeOf(lake, stream) {
  const name = session.value?.system && stream.account !== "$G" ? identity(stream) : stream.name;
  if (lake?.lag?.[name] === undefined) return null;
  return { lag_msgs: lake.lag[name], lag_seconds: lake.lag_seconds?.[name] ?? 0, error: lake.errors?.[name] };
}

function rated(streams, lake, seconds) {
  return streams.map((stream) => ({ ...stream, lake: lakeOf(lake, stream),
    rate: perSecond(last?.sequences.get(identity(stream)), stream.state.last_seq, seconds) }));
}

/** Note that the server has answered, and whether it is another process than before. */
function alive({ server_name: name, start }) {
  const restarted = started && started !== `${name} ${start}`;
  started = `${name} ${start}`;
  if (life.value.silent || restarted) life.set({ silent: 0, restart: restarted ? { start, seen: Date.now() }
    : life.value.restart });
}

async function sample() {
  const number = ++begun;
  const signal = AbortSignal.timeout(PATIENCE);
  const [varz, jsz] = await Promise.all([
    page("varz", {}, signal),
    page("jsz", { accounts: "true", streams: "true", consumers: "true", config: "true" }, signal),
  ]);
  if (number < shown) return; // a later one was faster
  shown = number;
  alive(varz);
  const time = millis(varz.now) || Date.now();
  const seconds = last ? (time - last.time) / 1000 : 0;
  const streams = rated(streamsOf(jsz), varz.lake, seconds);
  const known = streams.filter((each) => each.rate !== null);
  const now = {
    in: perSecond(last?.varz.in_msgs, varz.in_msgs, seconds),
    out: perSecond(last?.varz.out_msgs, varz.out_msgs, seconds),
    stored: last && known.length === streams.length ? known.reduce((sum, each) => sum + each.rate, 0) : null,
  };
  last = { time, varz, sequences: new Map(streams.map((each) => [identity(each), each.state.last_seq])) };
  samples.set({ now, streams, varz, jsz, error: null, received: Date.now() });
}

async function tick() {
  if (!document.hidden) {
    const asked = Date.now();
    const waiting = setTimeout(() => life.value.silent || life.set({ ...life.value, silent: asked }), SILENT);
    try {
      await sample();
    } catch (error) {
      const unreachable = !error.status; // no HTTP status: no connection, or no answer in time
      if (unreachable && !life.value.silent) life.set({ ...life.value, silent: asked });
      samples.set({ ...samples.value, error });
    }
    clearTimeout(waiting);
  }
  if (timer) timer = setTimeout(tick, INTERVAL);
}

/** Begin to sample; a second call has no effect. */
export function start() {
  if (timer) return;
  timer = setTimeout(tick, 0);
}

/** Stop, and forget everything: the next session may see another account. */
export function stop() {
  clearTimeout(timer);
  timer = 0;
  shown = ++begun; // samples that are under way are of the session that has ended
  last = null;
  samples.set(NOTHING);
}

/** Take a sample now, after something was changed. */
export async function refresh() {
  try {
    await sample();
  } catch {
    // The next regular sample shows the error.
  }
}
