/** Tables: columns as data, sorted by a click on their heads. */

import { html, useState } from "../../vendor/htm-preact.js";

/**
 * A table.
 *
 * A column has `title`, `cell(row)`, and optionally `by(row)` to sort by, `num` (right-aligned), `wide` (hidden on
 * phones),
 * `roomy` (hidden on narrow screens). `caption` names the table for screen readers; `dense`: low rows.
 */
export function Table({ caption, columns, rows, keyOf, sorted, chosen, dense = false }) {
  const [order, setOrder] = useState(sorted ?? null);
  const by = order && columns[order.column]?.by;
  const shown = by
    ? [...rows].sort((one, other) => {
        const [a, b] = [by(one), by(other)];
        const less = typeof a === "string" ? a.localeCompare(b) : (a ?? -Infinity) - (b ?? -Infinity);
        return order.down ? -less : less;
      })
    : rows;
  const click = (column) =>
    setOrder((old) => (old?.column === column ? { column, down: !old.down } : { column,
      down: Boolean(columns[column].num) }));
  const classes = ({ num, wide, roomy }) => [num && "num", wide && "wide", roomy && "roomy"].filter(Boolean).join(" ")
    || undefined;
  const head = (column, index) => {
    const active = order?.column === index;
    const sort = active ? (order.down ? "descending" : "ascending") : undefined;
    const arrow = active && html`<span class="arrow" aria-hidden="true">${order.down ? "▼" : "▲"}</span>`;
    return html`<th scope="col" class=${classes(column)} aria-sort=${sort}>
      ${column.by
        ? html`<button type="button" onClick=${() => click(index)}>${column.num && arrow}${column.title}
          ${!column.num && arrow}</button>`
          : column.title}
    </th>`;
  };
  return html`<div class="scroll" role="region" aria-label=${caption} tabindex="0">
    <table class=${dense ? "dense" : undefined}>
      <caption class="sr">${caption}</caption>
      <thead><tr>${columns.map(head)}</tr></thead>
      <tbody>
        ${shown.map(
          (row) => html`<tr key=${keyOf(row)} data-chosen=${chosen !== undefined && keyOf(row) === chosen}>
            ${columns.map((column) => html`<td class=${classes(column)}>${column.cell(row)}</td>`)}
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}
