/** The form of a stream's configuration, for a new stream and for one that is changed. */

import { html, useState } from "../../vendor/htm-preact.js";
import { bytes, seconds, size } from "../lib/format.js";
import { updateStream } from "../lib/jetstream.js";
import { CheckField, ChoiceField, FormDialog, TextField } from "../parts/dialog.js";
import { toast } from "../parts/notes.js";

const NANOS = 1e9;
const PAST = "lakestream.time_travel";

/** The values of a new stream's form. */
export const NEW_STREAM = { name: "", subjects: "", storage: "file", retention: "limits", max_age: "", max_bytes: "",
  max_msgs: "", max_msgs_per_subject: "", replicas: "1", past: "", description: "", discard: "old", duplicates: "" };

/** Return what is wrong with the text of a duration, "" if nothing is. */
export const wrongDuration = (text) => (text?.trim() && Number.isNaN(seconds(text))
  ? `Cannot read “${text.trim()}” as a duration: write 90s, 12h or 30d.` : "");

const wrongSize = (text) => (text?.trim() && Number.isNaN(size(text))
  ? `Cannot read “${text.trim()}” as a size: write 512 MiB or 10 GiB.` : "");

const wrongName = (name) => (/[\s.*>/\\]/.test(name) ? "A name cannot contain spaces, dots, *, > or slashes." : "");

/** Return the nanoseconds of a duration field; 0 if it is empty. */
export const nanos = (text) => (text?.trim() ? Math.round(seconds(text) * NANOS) : 0);

const whole = (text) => (String(text).trim() ? Number(text) : -1);

/** Return true if a form can be sent. */
export const isComplete = (values) => Boolean(values.name) && !wrongName(values.name) && !wrongSize(values.max_bytes) &&
  ![values.max_age, values.past, values.duplicates].some(wrongDuration);

/** Return the configuration that a form describes, without what it has no field for. */
export function configOf(values) {
  const subjects = values.subjects.split(/[\s,]+/).filter(Boolean);
  return {
    name: values.name,
    description: values.description || undefined,
    subjects: subjects.length ? subjects : undefined,
    storage: values.storage,
    retention: values.retention,
    discard: values.discard,
    max_age: nanos(values.max_age),
    max_bytes: values.max_bytes.trim() ? size(values.max_bytes) : -1,
    max_msgs: whole(values.max_msgs),
    max_msgs_per_subject: whole(values.max_msgs_per_subject),
    duplicate_window: values.duplicates.trim() ? nanos(values.duplicates) : undefined,
    num_replicas: Number(values.replicas),
    metadata: values.past.trim() ? { [PAST]: values.past.trim() } : undefined,
  };
}

/** Return a duration in ns as it may be written into a field. */
function written(duration) {
  if (!duration) return "";
  const [per, unit] = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"], [1e-3, "ms"]].find(([each]) =>
    duration % (each * NANOS) === 0) ?? [1e-9, "ns"];
  return `${Math.round(duration / NANOS / per)}${unit}`;
}

/** Return a size in bytes as it may be written into a field: exactly. */
const sizeWritten = (number) => (number < 0 ? "" : size(bytes(number)) === number ? bytes(number) : String(number));

/** Return the values of the form for a configuration. */
const valuesOf = (config) => ({
  name: config.name,
  subjects: (config.subjects ?? []).join(" "),
  storage: config.storage,
  retention: config.retention,
  discard: config.discard ?? "old",
  description: config.description ?? "",
  max_age: written(config.max_age),
  max_bytes: sizeWritten(config.max_bytes ?? -1),
  max_msgs: config.max_msgs > 0 ? String(config.max_msgs) : "",
  max_msgs_per_subject: config.max_msgs_per_subject > 0 ? String(config.max_msgs_per_subject) : "",
  duplicates: written(config.duplicate_window),
  replicas: String(config.num_replicas),
  past: config.metadata?.[PAST] ?? "",
});

/** The fields; `existing`: the stream is there already, so some cannot be changed. */
export function StreamFields({ values, set, existing = false }) {
  const bind = { values, set };
  const duration = (name) => ({ name, bad: wrongDuration(values[name]), spellcheck: "false", ...bind });
  return html`
    ${!existing && html`<${TextField} label="Name" name="name" bad=${wrongName(values.name)} ...${bind} required
      spellcheck="false" />`}
    <${TextField} label="Subjects" hint="Separated by spaces. If you leave them out, the stream captures the subject with its own name."
      name="subjects" class="code" placeholder="orders.>" ...${bind} spellcheck="false" />
    <${TextField} label="Description" name="description" ...${bind} />
    ${!existing && html`<div class="pair">
      <${ChoiceField} label="Storage" name="storage" ...${bind} options=${[["file", "Disk"], ["memory", "Memory"]]} />
      <${ChoiceField} label="Keep messages" name="retention" ...${bind}
        options=${[["limits", "until a limit is reached"], ["interest", "while consumers want them"], ["workqueue",
          "until consumed once"]]} />
    </div>`}
    <div class="pair">
      <${TextField} label="Maximum age" placeholder="no limit" ...${duration("max_age")} />
      <${TextField} label="Maximum size" name="max_bytes" placeholder="no limit" bad=${wrongSize(values.max_bytes)}
        ...${bind} />
    </div>
    <div class="pair">
      <${TextField} label="Maximum messages" name="max_msgs" type="number" min="1" placeholder="no limit" ...${bind} />
      <${TextField} label="Messages of each subject" name="max_msgs_per_subject" type="number" min="1"
        placeholder="no limit" ...${bind} />
    </div>
    <div class="pair">
      <${ChoiceField} label="At a limit" name="discard" ...${bind} options=${[["old", "remove the oldest"], ["new",
        "refuse new messages"]]} />
      <${TextField} label="Reject duplicates within" placeholder="2m" ...${duration("duplicates")} />
    </div>
    <div class="pair">
      <${ChoiceField} label="Replicas" name="replicas" ...${bind}
        options=${["1", "3", "5"].map((each) => [each, each])} />
      <${TextField} label="Time travel" hint="How far back the stream can be read as it was." placeholder="off"
        ...${duration("past")} />
    </div>`;
}

/** The dialog that changes a stream; what it has no field for stays as it is. */
export function EditStream({ config, close, changed }) {
  const [values, set] = useState(() => ({ ...valuesOf(config), direct: config.allow_direct ?? false }));
  const send = async () => {
    const { metadata, ...next } = configOf(values);
    const others = Object.entries(config.metadata ?? {}).filter(([name]) => name !== PAST
      && !name.startsWith("_nats."));
    await updateStream({ ...config, ...next, subjects: next.subjects ?? config.subjects, allow_direct: values.direct,
      description: values.description || undefined, metadata: { ...Object.fromEntries(others), ...metadata } });
    toast(`Stream ${config.name} was changed.`);
    changed();
  };
  return html`<${FormDialog} title=${`Edit ${config.name}`} button="Save" close=${close} send=${send}
    needs=${`$JS.API.STREAM.UPDATE.${config.name}`} ready=${isComplete(values)}>
    <${StreamFields} values=${values} set=${set} existing />
    <${CheckField} label="Allow direct gets" name="direct" values=${values} set=${set} />
  <//>`;
}
