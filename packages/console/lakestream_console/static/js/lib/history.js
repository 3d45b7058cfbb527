/** The figures that the server has kept, for plots. */

import { useState } from "../../vendor/htm-preact.js";
import { figures } from "./api.js";
import { usePoll } from "./poll.js";

/** Ranges in seconds, and their names. */
export const RANGES = [[300, "5 min"], [900, "15 min"], [3600, "1 h"], [21600, "6 h"], [86400, "24 h"]];

const KEPT = "lakestream.range";
const FINE_MS = 5000;
const COARSE_MS = 30_000;
const HOUR = 3600;

/**
 * The hook for the figures of the server, or of a stream: return `{range, choose, data, error}`; `data` has `times`, `series`, `step`, `now`, `started` and `kept`,
 * in seconds.
 */
export function useHistory(stream) {
  const [range, setRange] = useState(() => Number(sessionStorage.getItem(KEPT)) || RANGES[1][0]);
  const choose = (seconds) => {
    sessionStorage.setItem(KEPT, seconds);
    setRange(seconds);
  };
  const every = range > HOUR ? COARSE_MS : FINE_MS;
  const { data, error } = usePoll((signal) => figures(range, stream, signal), every, [range, stream]);
  return { range, choose, data, error };
}
