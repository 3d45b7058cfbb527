/** Dialogs: forms over the page, and confirmations that ask for the name of what will be destroyed. */

import { html, useEffect, useRef, useState } from "../../vendor/htm-preact.js";
import { mayPublish } from "../lib/permissions.js";
import { Icon } from "./icons.js";
import { Failed } from "./notes.js";

let numbered = 0;

/** A modal dialog; the browser keeps the focus inside and closes it on Escape. */
export function Dialog({ title, close, children }) {
  const element = useRef(null);
  const id = useRef(`dialog-${++numbered}`).current;
  useEffect(() => {
    const before = document.activeElement;
    element.current.showModal();
    (element.current.querySelector("[data-first]") ?? element.current.querySelector("input, textarea, select"))?.focus();
    return () => before?.isConnected && before.focus();
  }, []);
  const outside = (event) => event.target === element.current && close();
  return html`<dialog ref=${element} aria-labelledby=${id} onClose=${close} onMouseDown=${outside}>
    <div class="dialog-head">
      <h2 id=${id}>${title}</h2>
      <button class="button button-bare" type="button" aria-label="Close" onClick=${close}><${Icon} name="close" />
        </button>
    </div>
    <div class="dialog-body">${children}</div>
  </dialog>`;
}

/** The permission that an act needs; it stands out if the user does not have it. */
function Needs({ subject }) {
  return mayPublish(subject)
    ? html`<p class="needs quiet">Needs permission to publish to <code>${subject}</code>.</p>`
    : html`<p class="needs warn">This user may not publish to <code>${subject}</code>: the server will refuse it.</p>`;
}

/**
 * A form in a dialog: `send` is awaited, its error is shown, success closes the dialog unless `send` returns false.
 * `needs` is the subject to which the user must be allowed to publish.
 */
export function FormDialog({ title, close, send, button, children, bad = false, ready = true, needs }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      if ((await send()) === false) setBusy(false);
      else close();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${title} close=${close}>
    <form class="dialog-form" onSubmit=${submit}>
      <div class="stack">
        ${children}
        <${Failed} error=${error} />
        ${needs && html`<${Needs} subject=${needs} />`}
        <div class="dialog-foot">
          <button class="button" type="button" onClick=${close}>Cancel</button>
          <button class=${`button button-main ${bad ? "button-bad" : ""}`} type="submit" disabled=${busy || !ready}>
            ${busy ? "Working…" : button}
          </button>
        </div>
      </div>
    </form>
  <//>`;
}

/** A confirmation of something that cannot be undone: the button works once the name was typed. */
export function Confirm({ title, name, button, close, send, children, needs }) {
  const [typed, setTyped] = useState("");
  return html`<${FormDialog} title=${title} button=${button} close=${close} send=${send} bad needs=${needs}
    ready=${typed === name}>
    ${children}
    <${Field} label=${html`Type <code>${name}</code> to confirm`}>
      ${(id) =>
        html`<input id=${id} class="code" autocomplete="off" spellcheck="false" value=${typed}
          onInput=${(event) => setTyped(event.target.value)} />`}
    <//>
  <//>`;
}

/** A label, its control (a function of the control's id), and a hint. */
export function Field({ label, hint, bad, children }) {
  const id = useRef(`field-${++numbered}`).current;
  return html`<div class="field">
    <label for=${id}>${label}</label>
    ${(Array.isArray(children) ? children[0] : children)(id)}
    ${bad ? html`<span class="hint-bad" role="alert">${bad}</span>` : hint && html`<span class="hint">${hint}</span>`}
  </div>`;
}

/** A text field bound to a key of a form's values. */
export function TextField({ label, hint, bad, values, set, name, ...rest }) {
  return html`<${Field} label=${label} hint=${hint} bad=${bad}>
    ${(id) =>
      html`<input id=${id} autocomplete="off" ...${rest} value=${values[name] ?? ""}
        onInput=${(event) => set({ ...values, [name]: event.target.value })} />`}
  <//>`;
}

/** A choice bound to a key of a form's values; `options` are [value, text] pairs. */
export function ChoiceField({ label, hint, values, set, name, options }) {
  return html`<${Field} label=${label} hint=${hint}>
    ${(id) =>
      html`<select id=${id} value=${values[name]} onChange=${(event) => set({ ...values, [name]: event.target.value })}>
      ${options.map(([value, text]) =>
        html`<option value=${value} selected=${values[name] === value}>${text}</option>`)}
    </select>`}
  <//>`;
}

/**
 * A field whose text is the reader's until it is sent by Enter or by leaving it; what `value` becomes meanwhile waits.
 */
export function Draft({ value, send, ...rest }) {
  const [draft, setDraft] = useState(null);
  const done = (event) => {
    setDraft(null);
    send(event.target.value);
  };
  return html`<input ...${rest} value=${draft ?? value} onInput=${(event) => setDraft(event.target.value)}
    onChange=${done} onBlur=${() => setDraft(null)} />`;
}

/** A checkbox bound to a key of a form's values. */
export function CheckField({ label, values, set, name }) {
  return html`<label class="check"><input type="checkbox" checked=${values[name]}
    onChange=${(event) => set({ ...values, [name]: event.target.checked })} /> ${label}</label>`;
}
