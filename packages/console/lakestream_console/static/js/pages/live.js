/** Live tail: messages of a subject as they are published. */

import { html, useEffect, useRef, useState } from "../../vendor/htm-preact.js";
import { live } from "../lib/api.js";
import { fromBase64 } from "../lib/bytes.js";
import { count, counted, rate } from "../lib/format.js";
import { go, link } from "../lib/router.js";
import { Head } from "../parts/figures.js";
import { Message } from "../parts/message.js";
import { Empty, Warning } from "../parts/notes.js";

const KEPT = 300;
const PAINT_MS = 150;
const HIGHLIGHTED = 15; // messages per second: above it everything would be marked

/** Follow subjects; return messages (newest first), totals, the state of the connection, and `clear`. */
function useLive(subjects, paused) {
  const [state, setState] = useState({ messages: [], total: 0, dropped: 0, rate: 0, status: "idle" });
  const hold = useRef(paused);
  hold.current = paused;
  const key = subjects.join(" ");
  const clear = useRef(() => {});
  useEffect(() => {
    if (!subjects.length) {
      setState((old) => ({ ...old, status: "idle" }));
      return undefined;
    }
    let [waiting, total, dropped, number] = [[], 0, 0, 0];
    let shown = [];
    const times = [];
    let [status, reason] = ["connecting", ""];
    const source = live(subjects);
    source.onopen = () => (status = "open");
    source.onerror = () => (status = source.readyState === EventSource.CLOSED ? "failed" : "connecting");
    source.addEventListener("message", (event) => {
      const message = JSON.parse(event.data);
      total++;
      times.push(performance.now());
      const headers = message.headers ?? {};
      waiting.push({ ...message, headers, data: fromBase64(message.data_base64), key: ++number });
      if (waiting.length > KEPT) waiting = waiting.slice(-KEPT);
    });
    source.addEventListener("end", (event) => {
      reason = JSON.parse(event.data).error;
      status = "failed";
      source.close();
    });
    source.addEventListener("dropped", (event) => {
      dropped += Number(JSON.parse(event.data)?.count ?? event.data) || 0;
    });
    const paint = () => {
      if (!hold.current && waiting.length) {
        shown = [...waiting.reverse(), ...shown].slice(0, KEPT);
        waiting = [];
      }
      const since = performance.now() - 3000;
      while (times.length && times[0] < since) times.shift();
      setState({ messages: shown, total, dropped, rate: times.length / 3, status, reason });
    };
    clear.current = () => {
      shown = waiting = [];
      paint();
    };
    const timer = setInterval(paint, PAINT_MS);
    return () => {
      clearInterval(timer);
      source.close();
    };
  }, [key]);
  return { ...state, clear: () => clear.current() };
}

const STATUS = {
  idle: "",
  connecting: "Connecting…",
  open: "Following",
  failed: "The server ended the tail. This user may not subscribe here, or the session has ended.",
};

/** The page; the subjects are in the address, so that a tail can be shared. */
export function Live({ query }) {
  const asked = query.get("subject") ?? "";
  const [text, setText] = useState(asked);
  const [paused, setPaused] = useState(false);
  const subjects = asked.split(/[\s,]+/).filter(Boolean);
  const tail = useLive(subjects, paused);
  const submit = (event) => {
    event.preventDefault();
    setPaused(false);
    go(link("live", { subject: text.trim() }), { replace: true });
  };
  return html`<${Head} title="Live tail">Messages as they are published, stored or not.<//>
    <form class="toolbar" onSubmit=${submit}>
      <div class="search">
        <label class="sr" for="live-subject">Subject</label>
        <input id="live-subject" class="code" data-search placeholder="orders.>" spellcheck="false" autocomplete="off"
          autocapitalize="none" value=${text} onInput=${(event) => setText(event.target.value)} />
      </div>
      <button class="button button-main" type="submit">Follow</button>
      ${subjects.length > 0 && html`
        <button class="button" type="button" aria-pressed=${paused} onClick=${() => setPaused(!paused)}>Pause</button>
        <button class="button" type="button" onClick=${tail.clear}>Clear</button>
        <button class="button" type="button"
          onClick=${() => (setText(""), go(link("live"), { replace: true }))}>Stop</button>`}
    </form>
    ${tail.status === "failed"
      ? html`<${Warning}>${tail.reason ? `The tail has ended: ${tail.reason}` : STATUS.failed}<//>`
        : subjects.length > 0 &&
          html`<p class="soft" role="status">
            ${paused ? "Paused" : STATUS[tail.status]} · ${counted(tail.total, "message")} · ${rate(tail.rate)}
              ${tail.dropped > 0 &&
                html` · <span class="warn">${count(tail.dropped)} left out: too many to show</span>`}
                </p>`}
    ${tail.messages.length > 0 &&
      html`<div class="messages section">
        ${tail.messages.map((message) =>
          html`<${Message} key=${message.key} message=${message} fresh=${tail.rate < HIGHLIGHTED} />`)}
          </div>`}
    ${!subjects.length && html`<${Empty} title="Choose a subject to follow">
      <p>Wildcards work: <code>orders.*.eu</code> follows one level, <code>orders.></code> everything below. Several
        subjects are separated by spaces.</p>
    <//>`}
    ${subjects.length > 0 && !tail.messages.length && tail.status === "open" &&
      html`<p class="loading">Waiting for the first message…</p>`}`;
}
