/** The strip of a stream: its sequences from first to last, what of them the table holds, and where consumers are. */

import { html } from "../../vendor/htm-preact.js";
import { compact, count } from "../lib/format.js";

const MARKS = 4;
const APART = 0.13;

/**
 * The strip; nothing for an empty stream. `lag` has the messages that are only in the log; undefined without a table.
 */
export function Strip({ state, lag, consumers }) {
  const { first_seq: first, last_seq: last, messages } = state;
  if (!messages || last <= first) return null;
  const place = (seq) => Math.min(1, Math.max(0, (seq - first + 1) / (last - first + 1)));
  const held = Math.max(0, messages - (lag ?? messages));
  const lake = held && (lag ? Math.min(place(last - lag), 0.995) : 1);
  const sorted = [...consumers].sort((one, other) => one.ack_floor.stream_seq - other.ack_floor.stream_seq);
  const marks = [];
  for (const each of sorted) {
    const at = place(each.ack_floor.stream_seq);
    if (marks.length < MARKS && (!marks.length || at - marks.at(-1).at > APART)) marks.push({ at, names: [each.name] });
    else marks.at(-1).names.push(each.name);
  }
  const side = (at) => (at < 0.12 ? "start" : at > 0.88 ? "end" : "middle");
  const label = `Sequences ${count(first)} to ${count(last)}. ${lake ? `${Math.round(lake * 100)} % are in the table.`
    : "None is in the table."}`;
  return html`<div class="strip">
    <div class="strip-track" role="img" aria-label=${label}>
      ${lake > 0 && html`<div class="strip-lake" style=${{ width: `${lake * 100}%` }}></div>`}
      ${lake < 1 && html`<div class="strip-log"></div>`}
    </div>
    ${marks.length > 0 && html`<div class="strip-marks">
      ${marks.map(({ at, names }) =>
        html`<span class="strip-mark" data-side=${side(at)} style=${{ left: `${at * 100}%` }}
          title=${`acked by ${names.join(", ")}`}>
          ${names[0]}${names.length > 1 && ` +${names.length - 1}`}</span>`)}
    </div>`}
    <div class="key">
      ${lake > 0 && html`<span><i class="key-lake"></i>${compact(held)} in the Delta table</span>`}
      ${lake < 1 && html`<span><i class="key-log"></i>${compact(messages - held)} in the log</span>`}
      ${marks.length > 0 && html`<span>names: acked through here</span>`}
    </div>
  </div>`;
}
