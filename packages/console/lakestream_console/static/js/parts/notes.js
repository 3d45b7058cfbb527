/** States of a page without content: loading, empty, failed; and short notices of what was done. */

import { html } from "../../vendor/htm-preact.js";
import { createStore, useStore } from "../lib/store.js";
import { Icon } from "./icons.js";

/** A failed request, with a button to try again. */
export function Failed({ error, retry }) {
  if (!error || error.name === "AbortError") return null;
  return html`<div class="note note-bad" role="alert">
    <${Icon} name="warning" />
    <div class="note-body">${error.message}</div>
    ${retry && html`<button class="button button-small" type="button" onClick=${retry}>Try again</button>`}
  </div>`;
}

/** Something that wants attention, and what to do about it. */
export function Warning({ children }) {
  return html`<div class="note note-warn"><${Icon} name="warning" /><div class="note-body">${children}</div></div>`;
}

/** A list without entries: what would be here, and how to get it. */
export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}

/** Content that has not come yet. */
export function Loading({ children = "Loading…" }) {
  return html`<p class="loading" role="status">${children}</p>`;
}

const toasts = createStore([]);
let numbered = 0;
const SHOWN_MS = 5000;

/** Show a notice for some seconds; `bad` for a failure. */
export function toast(text, { bad = false } = {}) {
  const id = ++numbered;
  toasts.set([...toasts.value.slice(-3), { id, text, bad }]);
  setTimeout(() => toasts.set(toasts.value.filter((each) => each.id !== id)), SHOWN_MS);
}

/** The notices that are shown now. */
export function Toasts() {
  return html`<div class="toasts" role="status" aria-live="polite">
    ${useStore(toasts).map((each) =>
      html`<div key=${each.id} class=${each.bad ? "toast toast-bad" : "toast"}>${each.text}</div>`)}
  </div>`;
}
