/** A field for SQL: colours behind the text, and completion. */

import { html, useEffect, useRef, useState } from "../../vendor/htm-preact.js";
import { candidates, common, wordBefore } from "../lib/completion.js";

const OFFERED = 12;
const PIECES = /(--[^\n]*|\/\*[\s\S]*?\*\/)|('(?:[^']|'')*'?)|("(?:[^"]|"")*"?|`[^`]*`?)|(\b\d[\d_.]*(?:e[+-]?\d+)?\b)|([A-Za-z_]\w*)/gi;
const WORDS = new Set(`select from where group by order limit offset having join left right full inner outer cross on using with as
  union all distinct between and or not in is null like ilike case when then else end asc desc interval version timestamp of
  describe summarize show tables functions history explain qualify over partition rows values cast true false exists
  any filter nulls first last lateral pivot unpivot`.split(/\s+/));
const KINDS = ["s-note", "s-text", "s-name", "s-number"];

/** Return SQL as coloured pieces. */
function coloured(text) {
  const pieces = [];
  let end = 0;
  for (const match of text.matchAll(PIECES)) {
    const kind = match[5] ? (WORDS.has(match[5].toLowerCase()) ? "s-word" : "")
      : KINDS[match.slice(1, 5).findIndex((part) => part !== undefined)];
    if (!kind) continue;
    pieces.push(text.slice(end, match.index), html`<span class=${kind}>${match[0]}</span>`);
    end = match.index + match[0].length;
  }
  pieces.push(text.slice(end));
  return pieces;
}

/**
 * The field. `change(text)` and `submit()` are called; `insert.current` becomes a function that inserts a word at the
 * cursor.
 * Tab completes the word before the cursor; Esc and then Tab leave the field.
 */
export function Editor({ id, label, value, change, submit, insert }) {
  const field = useRef(null);
  const behind = useRef(null);
  const leaving = useRef(false);
  const [offered, setOffered] = useState([]);
  const [at, setAt] = useState(-1);
  const offer = (words) => (setOffered(words.slice(0, OFFERED)), setAt(-1));
  const put = (text, start, end) => {
    field.current.focus();
    field.current.setRangeText(text, start, end, "end");
    change(field.current.value);
  };
  const pick = (word) => {
    const end = field.current.selectionStart;
    put(word, end - wordBefore(value.slice(0, end)).length, end);
    offer([]);
  };
  insert.current = (word) => {
    const { selectionStart: start, selectionEnd: end } = field.current;
    put(/[\w"`]$/.test(value.slice(0, start)) ? ` ${word}` : word, start, end);
  };
  /** Complete the word before the cursor as far as it is clear, and show what it may become. */
  const complete = async () => {
    const [given, end] = [field.current.value, field.current.selectionStart];
    const found = await candidates(given.slice(0, end), given.slice(end));
    if (field.current?.value !== given || found.length === 0) return offer([]);
    const [start, next] = [end - wordBefore(given.slice(0, end)).length, common(found)];
    if (next.length >= end - start) put(next, start, end);
    offer(found.length > 1 ? found : []);
  };
  const keys = (event) => {
    const { target, key } = event;
    const taken = () => event.preventDefault();
    const plain = !event.shiftKey && !event.ctrlKey && !event.altKey && target.selectionStart === target.selectionEnd;
    if (key === "Enter" && (event.ctrlKey || event.metaKey)) return taken(), offer([]), submit();
    if (offered.length && (key === "ArrowDown" || key === "ArrowUp")) {
      taken();
      return setAt((at + (key === "ArrowDown" ? 1 : offered.length + (at < 0))) % offered.length);
    }
    if (at >= 0 && plain && (key === "Enter" || key === "Tab")) return taken(), pick(offered[at]);
    if (key === "Tab" && plain && !leaving.current && wordBefore(target.value.slice(0, target.selectionStart))) {
      taken();
      complete();
    }
    if (key === "Escape") offer([]);
    leaving.current = key === "Escape";
  };
  const scrolled = () => (behind.current.scrollTop = field.current.scrollTop);
  useEffect(scrolled);
  return html`<div class="code-field">
      <label class="sr" for=${id}>${label}</label>
      <pre ref=${behind} aria-hidden="true">${coloured(value)}${"\n"}</pre>
      <textarea ref=${field} id=${id} class="code" data-search rows="7" spellcheck="false" autocapitalize="none"
        autocomplete="off" placeholder="SELECT …" value=${value} onScroll=${scrolled} onKeyDown=${keys}
        onInput=${(event) => (offer([]), change(event.target.value))}></textarea>
    </div>
    ${offered.length > 0 && html`<div class="offered" role="status" aria-label="Completions">
      ${offered.map((word, index) => html`<button class="button button-small" type="button" tabindex="-1"
        aria-pressed=${index === at} onClick=${() => pick(word)}><code>${word}</code></button>`)}
    </div>`}`;
}
