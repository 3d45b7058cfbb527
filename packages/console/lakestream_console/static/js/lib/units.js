/** Units of axes and columns: one unit for all numbers that stand together. */

/** Kinds of numbers: their units, each with its size, ascending. The first is for what is smaller than the second. */
const UNITS = {
  count: [[1, ""], [1e3, "k"], [1e6, "M"], [1e9, "G"]],
  bytes: [[1, "B"], [1024, "KiB"], [1024 ** 2, "MiB"], [1024 ** 3, "GiB"], [1024 ** 4, "TiB"]],
  time: [[1e-6, "µs"], [1e-3, "ms"], [1, "s"], [60, "min"], [3600, "h"], [86400, "d"]],
  percent: [[1, "%"]],
};

const MAX_DIGITS = 2;

const powers = (base, count) => [...Array(count).keys()].map((exponent) => base ** exponent);

/** Distances of ticks that are round in the units of a kind; undefined: those that are round as numbers. */
const STEPS = {
  bytes: powers(2, 50),
  time: [...[1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1].flatMap((one) => [one, 2 * one, 5 * one]), 10, 20, 30,
    ...[1, 2, 5, 10, 20, 30].map((minutes) => minutes * 60), ...[1, 2, 3, 6, 12].map((hours) => hours * 3600),
    ...powers(2, 10).map((days) => days * 86400)],
};

/** Return `{per, unit}` for numbers up to `top`. */
export function unitOf(kind, top) {
  const [per, unit] = UNITS[kind].findLast(([size]) => Math.abs(top) >= size) ?? UNITS[kind][0];
  return { per, unit };
}

/** Return the distances that ticks of a kind may have. */
export const stepsOf = (kind) => STEPS[kind];

/** Return the digits behind the point that tell apart numbers with this distance. */
function digitsFor(step) {
  let digits = 0;
  while (digits < 6 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits++;
  return digits;
}

/**
 * Return the labels of ticks, ascending: all in one unit, the largest in which two digits behind the point tell them
 * apart.
 */
export function labels(kind, ticks) {
  const top = ticks.at(-1) ?? 0;
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : top;
  const fitting = UNITS[kind].filter(([size]) => Math.abs(top) >= size);
  const [per, unit] = fitting.findLast(([size]) => digitsFor(step / size) <= MAX_DIGITS) ?? UNITS[kind][0];
  const space = kind === "count" || kind === "percent" ? "" : " ";
  return ticks.map((tick) => (tick === 0 ? "0" : `${(tick / per).toFixed(digitsFor(step / per))}${space}${unit}`));
}

/** Return a number in a unit, with about three digits: 1,234, 12.3, 0.12. */
export function inUnit(number, per) {
  if (!Number.isFinite(number)) return "–";
  const value = number / per;
  const digits = value === 0 || Math.abs(value) >= 100 || Number.isInteger(value) ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
