/** A payload as JSON, text or hex, and the headers of a message. */

import { html, useMemo, useState } from "../../vendor/htm-preact.js";
import { toHex, toLossyText, toPrettyJson, toText } from "../lib/bytes.js";
import { bytes as sized } from "../lib/format.js";

const MAX_SHOWN = 64 * 1024;

/** Return JSON text as coloured pieces. */
function coloured(text) {
  const pieces = [];
  let end = 0;
  for (const match of text.matchAll(/"(?:\\.|[^"\\])*"(?=(:)?)|-?\d[\d.eE+-]*|\b(?:true|false|null)\b/g)) {
    if (match.index > end) pieces.push(text.slice(end, match.index));
    const kind = match[0][0] === '"' ? (match[1] ? "j-key" : "j-text") : "j-word";
    pieces.push(html`<span class=${kind}>${match[0]}</span>`);
    end = match.index + match[0].length;
  }
  pieces.push(text.slice(end));
  return pieces;
}

/** Offer bytes as a file. */
export function download(data, name, type = "application/octet-stream") {
  const url = URL.createObjectURL(new Blob([data], { type }));
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** A payload with its size, a choice of forms, and a download. */
export function Payload({ data, name = "payload" }) {
  const part = data.length > MAX_SHOWN ? data.subarray(0, MAX_SHOWN) : data;
  const text = useMemo(() => toText(part), [part]);
  const json = useMemo(() => (part === data ? toPrettyJson(text) : null), [text]);
  const [chosen, choose] = useState(null);
  const forms = [json !== null && "JSON", "Text", "Hex"].filter(Boolean);
  const form = forms.includes(chosen) ? chosen : json !== null ? "JSON" : text !== null ? "Text" : "Hex";
  if (!data.length) return html`<p class="quiet">The payload is empty.</p>`;
  const body = { JSON: () => coloured(json), Text: () => text ?? toLossyText(part), Hex: () => toHex(part) }[form]();
  return html`<div class="payload">
    <div class="payload-head">
      <span>${sized(data.length)}</span>
      ${part !== data && html`<span>· the first ${sized(MAX_SHOWN)} are shown</span>`}
      <button class="button button-bare button-small" type="button"
        onClick=${() => download(data, name)}>Download</button>
      <div class="group" role="group" aria-label="Show payload as">
        ${forms.map(
          (each) =>
            html`<button class="button button-small" type="button" aria-pressed=${each === form}
              onClick=${() => choose(each)}>
              ${each}</button>`,
        )}
      </div>
    </div>
    <pre class=${form === "Hex" ? "" : "flow"} tabindex="0" role="region" aria-label=${`Payload as ${form}`}>${body}
      </pre>
  </div>`;
}

/** The headers of a message; nothing if it has none. */
export function Headers({ headers }) {
  const all = Object.entries(headers ?? {}).flatMap(([name, values]) => values.map((value) => [name, value]));
  if (!all.length) return null;
  return html`<dl class="list" aria-label="Headers">
    ${all.map(([name, value]) => [html`<dt class="mono">${name}</dt>`, html`<dd class="mono">${value}</dd>`])}
  </dl>`;
}
