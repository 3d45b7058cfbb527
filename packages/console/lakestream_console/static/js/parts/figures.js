/** A row of figures, a page's head, and the sparkline of a rate. */

import { html } from "../../vendor/htm-preact.js";

/** A row of figures: [{title, value, under, tone}]. */
export function Figures({ of }) {
  return html`<dl class="figures">
    ${of.filter(Boolean).map(
      ({ title, value, under, tone }) => html`<div class="figure" key=${title} data-tone=${tone}>
        <dt>${title}</dt>
        <dd>${value}${under !== undefined && html`<small>${under}</small>`}</dd>
      </div>`,
    )}
  </dl>`;
}

/** The head of a page: its way back, title, a sentence, and its tools. */
export function Head({ title, crumb, tags, children, tools }) {
  return html`<header class="head">
    <div class="head-text">
      ${crumb && html`<div class="crumb"><a href=${crumb.href}>${crumb.text}</a></div>`}
      <h1 tabindex="-1">${title}</h1>
      ${children && html`<p>${children}</p>`}
      ${tags && html`<p class="tags">${tags}</p>`}
    </div>
    ${tools && html`<div class="head-tools">${tools}</div>`}
  </header>`;
}

/** A small line of the last values, scaled to their greatest. */
export function Sparkline({ values, width = 84, height = 20 }) {
  if (!values ||
    values.length < 2) return html`<svg class="spark" width=${width} height=${height} aria-hidden="true"></svg>`;
  const top = Math.max(...values, 1e-9);
  const step = (width - 2) / 59;
  const start = width - 1 - step * (values.length - 1);
  const points = values.map((value, at) =>
    `${(start + at * step).toFixed(1)},${(height - 2 - (value / top) * (height - 4)).toFixed(1)}`);
  return html`<svg class="spark" width=${width} height=${height} aria-hidden="true">
    <polyline points=${points.join(" ")} fill="none" stroke="currentColor" stroke-width="1.3" stroke-linejoin="round" />
  </svg>`;
}
