/** The past of a bucket: from when on it can be read, and when it changed. */

import { useEffect, useRef, useState } from "../../vendor/htm-preact.js";
import { session, sql } from "./api.js";
import { millis, seconds } from "./format.js";
import { direct } from "./messages.js";

const CHANGES = 200;
const SETTLE_MS = 120;

/** Return the earliest moment that can be asked for, in ms: the creation, or the end of the time-travel period. */
export function earliest(info) {
  const kept = seconds(info.config.metadata?.["lakestream.time_travel"] ?? "");
  const created = millis(info.created);
  const first = millis(info.state.first_ts);
  const begin = Math.min(created, Number.isNaN(first) ? created : first);
  return Number.isNaN(kept) ? begin : Math.max(begin, Date.now() - kept * 1000);
}

/** Return true if a stream records what was removed, so that its past is exact. */
export const isTravelling = (info) => Boolean(info.config.metadata?.["lakestream.time_travel"]);

/** Return the moment that `up_to_time` takes for the state after everything stored in the millisecond `at`. */
export const upTo = (at) => (at === null ? undefined : new Date(at + 1).toISOString());

/** Return the times of the newest messages of a stream from its table, for streams without direct gets. */
async function changesBySql(stream, options) {
  const { rows } = await sql(`SELECT DISTINCT epoch_ms(time) FROM delta.\`streams/${stream}\` ORDER BY 1 DESC LIMIT ${CHANGES}`,
    options);
  return rows.map(([at]) => Number(at)).reverse();
}

/** Return the times, in ms, at which the newest messages that match were stored. */
export async function changeTimes(info, filter, options) {
  if (!info.state.messages) return [];
  if (!info.config.allow_direct) return session.value.sql ? changesBySql(info.config.name, options) : [];
  const seq = Math.max(1, info.state.last_seq - CHANGES + 1);
  const found = await direct(info.config.name, { seq, next_by_subj: filter, batch: CHANGES }, options);
  return [...new Set(found.map((message) => Math.floor(message.millis)))].sort((one, other) => one - other);
}

/** Return a value once it has not changed for a moment: a moving slider asks only where it rests. */
export function useSettled(value) {
  const [settled, set] = useState(value);
  const timer = useRef(0);
  useEffect(() => {
    timer.current = setTimeout(() => set(value), SETTLE_MS);
    return () => clearTimeout(timer.current);
  }, [value]);
  return settled;
}
