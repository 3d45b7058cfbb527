/** Plots of the figures that the server has kept, with the range that the reader chooses. */

import { html } from "../../vendor/htm-preact.js";
import { time } from "../lib/format.js";
import { RANGES, useHistory } from "../lib/history.js";
import { Failed } from "./notes.js";
import { Plot } from "./plot.js";

/**
 * A section with plots of the server's figures, or of a stream's. `plots` gets a function of title, kind, format, series
 * ([label, name, sparse]) and a text for no figures, `some(name)` and the data; it returns what is shown.
 */
export function History({ stream, plots }) {
  const { range, choose, data, error } = useHistory(stream);
  const bounds = data && [data.now - range, data.now];
  const line = ([label, name, sparse = false]) => ({ label, sparse, values: data?.series[name] ?? [] });
  const some = (name) => data?.series[name]?.some((value) => value !== null);
  const none = data?.kept === 0 ? "The server keeps no history (console.history: 0)." : undefined;
  const plot = (title, kind, format, series, empty) => html`<${Plot} title=${title} x=${data?.times ?? []}
    range=${bounds} kind=${kind} format=${format} series=${series.map(line)} none=${none ?? empty} />`;
  return html`<section class="section" aria-label="History">
    <div class="section-head"><h2>History</h2>
      ${data && data.started > bounds[0] && html`<span
        class="quiet">since the server’s start, ${time(data.started * 1000, { fraction: false })}</span>`}
      <div class="group push" role="group" aria-label="Range">
        ${RANGES.map(([seconds, text]) => html`<button class="button button-small" type="button"
          aria-pressed=${seconds === range} onClick=${() => choose(seconds)}>${text}</button>`)}
      </div>
    </div>
    <${Failed} error=${error} />
    <div class="columns">${plots(plot, some, data)}</div>
  </section>`;
}
