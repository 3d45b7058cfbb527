/** The dialog that publishes a message. */

import { html, useState } from "../../vendor/htm-preact.js";
import { publish } from "../lib/api.js";
import { textToBase64, toBase64, toText } from "../lib/bytes.js";
import { bytes, count, span } from "../lib/format.js";
import { refresh } from "../lib/samples.js";
import { Field, FormDialog, TextField } from "../parts/dialog.js";
import { toast } from "../parts/notes.js";

/** Headers that would make a message that is sent again a duplicate of itself, or refused. */
const AGAIN = new Set(["Nats-Msg-Id", "Nats-Expected-Stream", "Nats-Expected-Last-Msg-Id",
  "Nats-Expected-Last-Sequence",
  "Nats-Expected-Last-Subject-Sequence"]);

/** Return headers from lines of `Name: value`; throws for a line without a colon. */
function parseHeaders(text) {
  const headers = {};
  for (const line of text.split("\n").filter((each) => each.trim())) {
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`This header line has no colon: ${line}`);
    (headers[line.slice(0, at).trim()] ??= []).push(line.slice(at + 1).trim());
  }
  return headers;
}

const lines = (headers) => Object.entries(headers ?? {}).flatMap(([name, values]) =>
  (AGAIN.has(name) ? [] : values.map((value) => `${name}: ${value}`))).join("\n");

/** A form for one message; `subject` is filled in where it is known, `again` is a message to be sent once more. */
export function PublishDialog({ close, subject = "", again, published }) {
  const text = again ? toText(again.data) : "";
  const [values, set] = useState({ subject: again?.subject ?? subject, data: text ?? "",
    headers: lines(again?.headers) });
  const send = async () => {
    const headers = parseHeaders(values.headers);
    const began = performance.now();
    const ack = await publish(values.subject.trim(), {
      data_base64: text === null ? toBase64(again.data) : textToBase64(values.data),
      headers: Object.keys(headers).length ? headers : undefined,
    });
    const took = span((performance.now() - began) / 1000);
    if (!ack) toast("Published. No stream stores this subject.");
    else if (ack.duplicate) toast(`${ack.stream} has this message already, as ${count(ack.seq)}.`);
    else toast(`Stored in ${ack.stream} as ${count(ack.seq)}, acked in ${took}.`);
    published?.(ack);
    refresh();
  };
  const area = (name, rows, placeholder) => (id) =>
    html`<textarea id=${id} class="code" rows=${rows} spellcheck="false" placeholder=${placeholder}
      value=${values[name]} onInput=${(event) => set({ ...values, [name]: event.target.value })}>
      </textarea>`;
  return html`<${FormDialog} title=${again ? `Resend message ${count(again.seq)}` : "Publish a message"}
    button=${again ? "Resend" : "Publish"} close=${close} send=${send} needs=${values.subject.trim() || "*"}
      ready=${Boolean(values.subject.trim())}>
    <${TextField} label="Subject" name="subject" class="code" spellcheck="false" values=${values} set=${set} required />
    ${text === null ? html`<p class="quiet">The payload of ${bytes(again.data.length)} is not text: it is sent as it was.</p>`
      : html`<${Field} label="Payload">${area("data", 6, "")}<//>`}
    <${Field} label="Headers" hint="One in a line.">${area("headers", 2, "Nats-Msg-Id: 1")}<//>
  <//>`;
}
