/** One message in a list: a line, which opens to headers and payload. */

import { html, useState } from "../../vendor/htm-preact.js";
import { preview } from "../lib/bytes.js";
import { bytes, count, time } from "../lib/format.js";
import { Headers, Payload } from "./payload.js";

/**
 * A message; `fresh` marks it as just arrived, `tools` are shown with the open message; `toggled(opened)` is called
 * when it is.
 */
export function Message({ message, fresh, tools, toggled, opened: initially = false }) {
  const [opened, setOpened] = useState(initially);
  const toggle = () => {
    setOpened(!opened);
    toggled?.(!opened);
  };
  const { seq, subject, data, headers } = message;
  const [day, clock] = time(message.time).split(" ");
  return html`<article class=${["message", fresh && "message-new", !seq && "message-live"].filter(Boolean).join(" ")}
    aria-label=${seq ? `Message ${seq}` : subject}>
    <button type="button" aria-expanded=${opened} onClick=${toggle}>
      ${seq && html`<span class="message-seq">${count(seq)}</span>`}
      <span class="message-time">${seq && html`<span class="day">${day} </span>`}${clock}</span>
      <span class="message-subject">${subject}</span>
      <span class="message-data">${preview(data)}</span>
      <span class="message-size">${bytes(message.size ?? data.length)}</span>
    </button>
    ${opened && html`<div class="message-open">
      <${Headers} headers=${headers} />
      ${message.size > data.length &&
        html`<p class="quiet">The live tail has the first ${bytes(data.length)} of ${bytes(message.size)}.</p>`}
      <${Payload} data=${data} name=${`${subject}${seq ? `-${seq}` : ""}`} />
      <div class="toolbar"><span class="quiet">${message.time}${message.reply ? ` · reply ${message.reply}` : ""}</span>
        ${tools}</div>
    </div>`}
  </article>`;
}
