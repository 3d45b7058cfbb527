/** The place in a long list, and the steps through its pages. */

import { html } from "../../vendor/htm-preact.js";
import { count } from "../lib/format.js";

/** The steps: `what` names the rows; nothing for a list of one page. */
export function Pages({ what, total, page, size, show }) {
  if (total <= size) return null;
  const first = page * size + 1;
  return html`<div class="toolbar section">
    <span class="quiet">${what} ${count(first)} to ${count(Math.min(total, first + size - 1))} of ${count(total)}</span>
    <div class="group push">
      <button class="button" type="button" disabled=${page === 0} onClick=${() => show(page - 1)}>Previous</button>
      <button class="button" type="button" disabled=${first + size > total}
        onClick=${() => show(page + 1)}>Next</button>
    </div>
  </div>`;
}
