/** The dialog that restores a stream or bucket as it was at a moment, into a new one. */

import { html, useState } from "../../vendor/htm-preact.js";
import { restore, restored } from "../lib/api.js";
import { count, localInput, time } from "../lib/format.js";
import { upTo } from "../lib/past.js";
import { usePoll } from "../lib/poll.js";
import { CheckField, Field, FormDialog, TextField } from "./dialog.js";
import { Failed } from "./notes.js";

const LOOK_MS = 500;

/**
 * The dialog. `prefix` is that of the stream's name if it is a bucket, `at` a moment in ms (null: now), `open` returns
 * the
 * link to what has been made.
 */
export function Restore({ stream, prefix = "", at, close, open }) {
  const [values, set] = useState({ to: `${stream.slice(prefix.length)}${prefix ? "-" : "_"}restored`,
    moment: localInput(at ?? Date.now()), unlimited: true });
  const [begun, setBegun] = useState(false);
  const { data, error } = usePoll((signal) => (begun ? restored(signal) : null), begun ? LOOK_MS : 0, [begun]);
  const wrong = /[\s.*>/\\]/.test(values.to) ? "A name cannot contain spaces, dots, *, > or slashes." : "";
  const send = async () => {
    // The exact moment of the slider, unless the reader has chosen another one.
    const moment = at !== null && values.moment === localInput(at) ? at : Date.parse(values.moment) + 999;
    await restore({ stream, as_of: upTo(Math.min(moment, Date.now())), to: prefix + values.to,
      unlimited: values.unlimited });
    setBegun(true);
    return false;
  };
  if (data && begun) {
    const share = data.last_seq > data.first_seq ? (data.reached - data.first_seq + 1) / (data.last_seq - data.first_seq + 1) : 0;
    return html`<${FormDialog} title=${`Restore ${stream}`} button=${data.error ? "Try again" : "Open"} close=${close}
      ready=${data.done} send=${async () => {
      if (data.error) return setBegun(false), false;
      open(values.to);
      return true;
    }}>
      ${!data.done && html`<label>Restored through ${count(data.reached)} of ${count(data.last_seq)}
        <progress value=${Math.max(0, share)} max="1"></progress></label>`}
      <${Failed} error=${data.error ? { message: data.error } : error} />
      ${data.done && !data.error && html`<p role="status">${count(data.messages)} messages are in <strong>${data.to}</strong>.
        ${data.note}</p>`}
    <//>`;
  }
  return html`<${FormDialog} title=${`Restore ${stream}`} button="Restore" close=${close} send=${send}
    needs=${`$JS.API.STREAM.RESTORE.${prefix}${values.to || "*"}`}
      ready=${Boolean(values.to) && !wrong && Boolean(values.moment)}>
    <p>Makes a new ${prefix ? "bucket" : "stream"} with the messages of that moment: sequences, times,
      headers and gaps as they
      were. The old one stays as it is.</p>
    <${Field} label="As of" hint=${at === null ? "" : time(at)}>
      ${(id) => html`<input id=${id} type="datetime-local" step="1" value=${values.moment} required
        onInput=${(event) => set({ ...values, moment: event.target.value })} />`}
    <//>
    <${TextField} label="New name" name="to" bad=${wrong} values=${values} set=${set} required spellcheck="false" />
    <${CheckField} label="Without the limits of age and size, which would remove old messages at once" name="unlimited"
      values=${values} set=${set} />
  <//>`;
}
