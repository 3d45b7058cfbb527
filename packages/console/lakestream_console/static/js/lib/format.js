/** Numbers, sizes, times and durations as texts. */

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** Sign for a value that is absent. */
export const NONE = "–";

/** Return a number with separators. */
export const count = (number) => (Number.isFinite(number) ? whole.format(number) : NONE);

/** Return a number and its noun, in the plural unless it is one: 1 key, 2 keys. */
export const counted = (number, noun, text = count) => `${text(number)} ${noun}${number === 1 ? "" : "s"}`;

/** Return a large number in three digits and a letter: 12.3M. */
export function compact(number) {
  if (!Number.isFinite(number)) return NONE;
  return Math.abs(number) < 10000 ? whole.format(number) : short.format(number);
}

/** Return a size in units of 1,024 bytes. */
export function bytes(number) {
  if (!Number.isFinite(number)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  let size = number;
  while (Math.abs(size) >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit++;
  }
  return `${unit && size < 100 ? fine.format(size) : whole.format(size)} ${units[unit]}`;
}

/** Return a number per second. */
export function rate(number) {
  if (!Number.isFinite(number)) return NONE;
  return `${number > 0 && number < 10 ? fine.format(number) : compact(Math.round(number))}/s`;
}

/** Return seconds as a duration in one or two units; below a second in ms or µs. */
export function span(seconds) {
  if (!Number.isFinite(seconds)) return NONE;
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return `${fine.format(seconds * 1e6)} µs`;
  if (seconds < 1) return `${fine.format(seconds * 1e3)} ms`;
  if (seconds < 60) return `${fine.format(seconds)} s`;
  const total = Math.round(seconds);
  const parts = [
    [Math.floor(total / 86400), "d"],
    [Math.floor((total % 86400) / 3600), "h"],
    [Math.floor((total % 3600) / 60), "min"],
    [total % 60, "s"],
  ];
  const first = parts.findIndex(([value]) => value > 0);
  return parts
    .slice(first, first + 2)
    .filter(([value]) => value > 0)
    .map(([value, unit]) => `${value} ${unit}`)
    .join(" ");
}

/** Return a time in ms that has passed, in whole seconds or longer units. */
export const ago = (passed) => span(Math.max(0, Math.round(passed / 1000)));

/** Return the name of a server or account as people know it: one that is only its id of 56 characters is shortened. */
export const shortName = (name) => (/^[NA][A-Z2-7]{55}$/.test(name) ? `${name[0] === "N" ? "server "
  : ""}${name.slice(0, 6)}…` : name);

const two = (number) => String(number).padStart(2, "0");

/** Return a time as milliseconds since the epoch; NaN for none and for the zero time of Go. */
export function millis(time) {
  const value = typeof time === "number" ? time : Date.parse(time ?? "");
  return value > 0 ? value : NaN;
}

/** Return a date and time of this browser's zone, to the millisecond. */
export function time(value, { date = true, fraction = true } = {}) {
  const at = new Date(millis(value));
  if (Number.isNaN(at.getTime())) return NONE;
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const part = fraction ? `.${String(at.getMilliseconds()).padStart(3, "0")}` : "";
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return date ? `${day} ${clock}${part}` : `${clock}${part}`;
}

/** Return the value of an input of type datetime-local for a time. */
export function localInput(value) {
  return time(value, { fraction: false }).replace(" ", "T");
}

/** Return the seconds of a duration as people and metadata write it ("30d", "12h", "90s", "1w"); NaN if it is none. */
export function seconds(text) {
  const units = { ns: 1e-9, µs: 1e-6, us: 1e-6, ms: 0.001, s: 1, m: 60, h: 3600, d: 86400, w: 604800, y: 31536000 };
  const parts = [...text.trim().matchAll(/(\d+(?:\.\d+)?)\s*(ns|µs|us|ms|[smhdwy])/g)];
  if (!parts.length || parts.map(([part]) => part).join("") !== text.replace(/\s+/g, "")) return NaN;
  return parts.reduce((sum, [, number, unit]) => sum + Number(number) * units[unit], 0);
}

/** Return a duration of a monitoring page ("18m15s", "438.687µs") as a text of this console. */
export const elapsed = (text) => span(seconds(text ?? ""));

/** Return the bytes of a size as people write it ("10 GiB", "512M", "1000"); NaN if it is none. */
export function size(text) {
  const found = /^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*$/i.exec(text);
  return found ? Math.round(Number(found[1]) * 1024 ** " kmgt".indexOf((found[2] || " ").toLowerCase())) : NaN;
}
