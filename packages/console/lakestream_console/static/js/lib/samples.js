/** Figures of the last ten minutes, sampled while the console is open: rates by stream, traffic, latencies. */

import { page, session } from "./api.js";
import { millis } from "./format.js";
import { quantile } from "./histogram.js";
import { createStore } from "./store.js";

/** Time between samples in ms. */
const INTERVAL = 2000;
const KEPT = 300;
const KEPT_BY_STREAM = 60;

const SYNC = "lakestream_log_sync_duration_seconds";
const ACK = "lakestream_publish_ack_duration_seconds";

/**
 * The latest sample: `varz`, `streams` (with `rate`, `series` and `lake`), `points` for plots, `latencies` (the
 * server's histograms; null for an account that does not see them), `error`.
 */
export const samples = createStore({ points: [], streams: null, varz: null, error: null });

let timer = 0;
let last = null;
let begun = 0;
let shown = 0;
const series = new Map();

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
  return streams.map((stream) => {
    const key = identity(stream);
    const rate = perSecond(last?.sequences.get(key), stream.state.last_seq, seconds);
    const points = series.get(key) ?? [];
    if (rate !== null) points.push(rate);
    series.set(key, points.slice(-KEPT_BY_STREAM));
    return { ...stream, rate, series: series.get(key), lake: lakeOf(lake, stream) };
  });
}

/** Return the quantiles of acks and syncs between the last sample and this one. */
function timings(now) {
  const of = (name, share) => quantile(last?.latencies?.[name], now[name], share);
  return { ack50: of(ACK, 0.5), ack99: of(ACK, 0.99), sync99: of(SYNC, 0.99) };
}

async function sample() {
  const number = ++begun;
  const [varz, jsz, latencies] = await Promise.all([
    page("varz"),
    page("jsz", { accounts: "true", streams: "true", consumers: "true", config: "true" }),
    session.value?.system ? page("latencies") : null, // they are the server's: an account of several does not see them
  ]);
  if (number < shown) return; // a later one was faster
  shown = number;
  const now = millis(varz.now) || Date.now();
  const seconds = last ? (now - last.time) / 1000 : 0;
  const streams = rated(streamsOf(jsz), varz.lake, seconds);
  const point = {
    time: now / 1000,
    in: perSecond(last?.varz.in_msgs, varz.in_msgs, seconds),
    out: perSecond(last?.varz.out_msgs, varz.out_msgs, seconds),
    inBytes: perSecond(last?.varz.in_bytes, varz.in_bytes, seconds),
    outBytes: perSecond(last?.varz.out_bytes, varz.out_bytes, seconds),
    stored: streams.some((each) => each.rate !== null) ? streams.reduce((sum, each) => sum + (each.rate ?? 0),
      0) : null,
    ...(latencies && timings(latencies)),
  };
  const points = last ? [...samples.value.points, point].slice(-KEPT) : samples.value.points;
  const sequences = new Map(streams.map((each) => [identity(each), each.state.last_seq]));
  last = { time: now, varz, sequences, latencies };
  samples.set({ points, streams, varz, jsz, latencies, error: null });
}

async function tick() {
  if (!document.hidden) {
    try {
      await sample();
    } catch (error) {
      samples.set({ ...samples.value, error });
    }
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
  series.clear();
  samples.set({ points: [], streams: null, varz: null, error: null });
}

/** Take a sample now, after something was changed. */
export async function refresh() {
  try {
    await sample();
  } catch {
    // The next regular sample shows the error.
  }
}
