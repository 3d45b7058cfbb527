/** Icons of 16 by 16, drawn with strokes in the colour of the text. */

import { html } from "../../vendor/htm-preact.js";

const PATHS = {
  overview: "M2 12.5h12M4 12.5v-4M8 12.5v-9M12 12.5v-6",
  streams: "M2 4.5c2-1.5 4-1.5 6 0s4 1.5 6 0M2 8c2-1.5 4-1.5 6 0s4 1.5 6 0M2 11.5c2-1.5 4-1.5 6 0s4 1.5 6 0",
  buckets: "M10.5 2.5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8.3 7.7 2.5 13.5M4.5 11.5l2 2",
  objects: "M8 1.8 13.5 5v6L8 14.2 2.5 11V5zM2.5 5 8 8l5.5-3M8 8v6.2",
  live: "M3 8h2l2-5 3 10 2-5h2",
  sql: "M3 4l4 4-4 4M8.5 12.5H13",
  cluster: "M8 2.5v4M8 6.5l-4.5 5M8 6.5l4.5 5M8 2.5h.01M3.5 12h.01M12.5 12h.01",
  connections: "M5.5 10.5l5-5M7 4.5l1.5-1.5a3 3 0 0 1 4.5 4.5L11.5 9M9 11.5 7.5 13A3 3 0 0 1 3 8.5L4.5 7",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  close: "M4 4l8 8M12 4l-8 8",
  theme: "M8 2.5a5.5 5.5 0 1 0 0 11zM8 2.5a5.5 5.5 0 0 1 0 11",
  help: "M6 6a2 2 0 1 1 3 1.7c-.7.4-1 .8-1 1.6M8 11.7v.01M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8z",
  leave: "M9.5 8H2.5M5 5.5 2.5 8 5 10.5M7 3h6.5v10H7",
  warning: "M8 2.2 14.3 13.3H1.7zM8 6.5v3M8 11.5v.01",
  plus: "M8 3v10M3 8h10",
};

/** An icon; decoration only, so it is hidden from screen readers. */
export function Icon({ name, size = 16 }) {
  return html`<svg
    width=${size}
    height=${size}
    viewBox="0 0 16 16"
    fill="none"
    stroke="currentColor"
    stroke-width="1.4"
    stroke-linecap="round"
    stroke-linejoin="round"
    aria-hidden="true"
  >
    <path d=${PATHS[name]} />
  </svg>`;
}

/** The mark of lakestream: a stream that widens. */
export function Mark({ size = 22 }) {
  return html`<svg
    width=${size}
    height=${size}
    viewBox="0 0 24 24"
    fill="none"
    stroke="currentColor"
    stroke-width="2.2"
    stroke-linecap="round"
    aria-hidden="true"
  >
    <path d="M8.5 6c2.3-1.7 4.7-1.7 7 0M5.5 12c2.2-1.9 4.3-1.9 6.5 0s4.3 1.9 6.5 0M2.5 18c3.2-2.3 6.3-2.3 9.5 0s6.3 2.3 9.5 0" />
  </svg>`;
}
