/** Conversions between bytes, base64, text, JSON and hex. */

/** Return the bytes of a base64 text. */
export function fromBase64(text) {
  const binary = atob(text ?? "");
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

/** Return bytes as base64. */
export function toBase64(bytes) {
  let binary = "";
  for (let at = 0; at < bytes.length; at += 32768) {
    binary += String.fromCharCode(...bytes.subarray(at, at + 32768));
  }
  return btoa(binary);
}

/** Return a text as base64 of its UTF-8 bytes. */
export const textToBase64 = (text) => toBase64(new TextEncoder().encode(text));

/** Return a text as base64 for URLs and subjects. */
export const textToBase64Url = (text) => textToBase64(text).replaceAll("+", "-").replaceAll("/", "_");

/** Return the text of UTF-8 bytes, or null if they are not UTF-8 or have control characters. */
export function toText(bytes) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return /[\u0000-\u0008\u000e-\u001f]/.test(text) ? null : text;
  } catch {
    return null;
  }
}

/** Return the text of any bytes, with replacement characters for those that are not UTF-8. */
export const toLossyText = (bytes) => new TextDecoder().decode(bytes);

/** Return JSON text indented by two blanks, or null if it is no object or array. Numbers keep their digits. */
export function toPrettyJson(text) {
  if (text === null || !/^\s*[[{]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  return indented(text);
}

/** Indent valid JSON without parsing its values, so that numbers beyond 2^53 stay as they were sent. */
function indented(text) {
  let out = "";
  let depth = 0;
  for (const [token] of text.matchAll(/"(?:\\.|[^"\\])*"|[[\]{},:]|[^\s[\]{},:"]+/g)) {
    const last = out.at(-1);
    if (token === "}" || token === "]") {
      depth--;
      if (last !== "{" && last !== "[") out += `\n${"  ".repeat(depth)}`;
      out += token;
      continue;
    }
    if (last === "{" || last === "[") out += `\n${"  ".repeat(depth)}`;
    if (token === ",") out += `,\n${"  ".repeat(depth)}`;
    else if (token === ":") out += ": ";
    else out += token;
    if (token === "{" || token === "[") depth++;
  }
  return out;
}

/** Return a hex dump: offset, sixteen bytes, and their ASCII characters on each line. */
export function toHex(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const hex = row.map((byte, index) => byte.toString(16).padStart(2, "0") + (index === 7 ? " " : ""));
    const ascii = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.join(" ").padEnd(49)} ${ascii}`);
  }
  return lines.join("\n");
}

/** Return one line of at most `length` characters that shows a payload. */
export function preview(bytes, length = 160) {
  const text = toText(bytes.subarray(0, length * 4));
  if (text !== null) return text.slice(0, length).replace(/\s+/g, " ");
  const hex = [...bytes.subarray(0, Math.floor(length / 3))].map((byte) => byte.toString(16).padStart(2, "0"));
  return hex.join(" ");
}
