/** A row of figures, a page's head, and the age of what it shows. */

import { html } from "../../vendor/htm-preact.js";
import { ago } from "../lib/format.js";
import { useClock } from "../lib/store.js";

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

/** How old the figures of a page are; it counts on while none come. */
export function Updated({ at }) {
  const now = useClock();
  return html`<span class="quiet nowrap">${at ? `updated ${ago(now - at)} ago` : ""}</span>`;
}
