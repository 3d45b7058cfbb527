/** The tables that SQL can read: the streams of the account, with their columns. */

import { html, useState } from "../../vendor/htm-preact.js";
import { columnsOf, written } from "../lib/completion.js";
import { compact } from "../lib/format.js";
import { usePoll } from "../lib/poll.js";
import { isOwn } from "../lib/samples.js";

const SEARCHED = 8;

function Columns({ table, insert }) {
  const { data, error } = usePoll(() => columnsOf(table), 0, [table]);
  if (error) return html`<p class="bad">${error.message}</p>`;
  if (!data) return html`<p class="quiet">Reading columns…</p>`;
  return html`<ul>${data.map(([name, type]) => html`<li><button class="row-button" type="button"
    onClick=${() => insert(written(name))}>${name}</button> <span
      class="quiet">${type.toLowerCase()}</span></li>`)}</ul>`;
}

/** The list; a click on a name inserts it into the statement. */
export function Tables({ streams, insert }) {
  const [open, setOpen] = useState("");
  const [filter, setFilter] = useState("");
  const all = (streams ?? []).filter((each) => isOwn(each) && each.lake).map((each) => [each.name,
    each.state.messages]);
  const shown = all.filter(([name]) => name.toLowerCase().includes(filter.trim().toLowerCase()));
  if (!all.length) return html`<p class="quiet">There are no tables yet. Each stream in the lake becomes one.</p>`;
  return html`
    ${all.length > SEARCHED && html`<label class="sr" for="tables-filter">Filter tables</label>
      <input id="tables-filter" type="search" placeholder="Filter tables" value=${filter}
        onInput=${(event) => setFilter(event.target.value)} />`}
    <ul class="tables">
      ${shown.map(([name, messages]) => html`<li key=${name}>
        <button class="button button-bare button-small" type="button" aria-expanded=${open === name}
          aria-label=${`Columns of ${name}`} onClick=${() => setOpen(open === name ? "" : name)}>
          ${open === name ? "▾" : "▸"}</button>
        <button class="row-button" type="button" onClick=${() => insert(written(name))}>${name}</button>
        <span class="quiet">${compact(messages)}</span>
        ${open === name && html`<${Columns} table=${name} insert=${insert} />`}
      </li>`)}
    </ul>`;
}
