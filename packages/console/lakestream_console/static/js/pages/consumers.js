/** The consumers of a stream: their state, and what can be done with them. */

import { html, useState } from "../../vendor/htm-preact.js";
import { ago, count, millis, NONE, span, time } from "../lib/format.js";
import { answerMessage, consumers, deleteConsumer, nextMessage, pauseConsumer, resetConsumer,
  saveConsumer } from "../lib/jetstream.js";
import { usePoll } from "../lib/poll.js";
import { go, link } from "../lib/router.js";
import { ChoiceField, Confirm, FormDialog, TextField } from "../parts/dialog.js";
import { Icon } from "../parts/icons.js";
import { Message } from "../parts/message.js";
import { Empty, Failed, Loading, toast } from "../parts/notes.js";
import { Table } from "../parts/table.js";
import { nanos, wrongDuration } from "./stream_form.js";

const REFRESH_MS = 2000;
const NEW = { name: "", filter: "", deliver: "all", start: "", ack: "explicit", wait: "30s", most: "", pending: "1000",
  push: "", inactive: "", description: "" };
const DELIVER = [["all", "all messages"], ["new", "new messages only"], ["last", "the last message"],
  ["last_per_subject", "the last of each subject"], ["by_start_sequence", "from a sequence on"],
  ["by_start_time", "from a time on"]];

const kindOf = ({ config }) => [config.durable_name ? "" : "ephemeral",
  config.deliver_subject ? `push to ${config.deliver_subject}` : "pull",
  ...(config.filter_subjects ?? [config.filter_subject])].filter(Boolean).join(" · ");

/** The tab; the consumer that is shown in detail is in the address. */
export function Consumers({ name, state, query, changed }) {
  const { data, error, loading, refresh } = usePoll((signal) => consumers(name, { signal }), REFRESH_MS, [name]);
  const [creating, create] = useState(false);
  const chosen = query.get("consumer");
  const open = (consumer) => go(link("streams", name, "consumers", { consumer }), { replace: true });
  const again = () => (refresh(), changed());
  const columns = [
    { title: "Consumer", by: (row) => row.name, cell: (row) =>
      html`<button class="row-button" type="button" onClick=${() => open(row.name)}>${row.name}</button>
        <span class="under">${kindOf(row)}</span>${row.paused && html`<span class="tag tag-warn">paused</span>`}` },
    { title: "Pending", num: true, by: (row) => row.num_pending, cell: (row) => count(row.num_pending) },
    { title: "Unacked", num: true, by: (row) => row.num_ack_pending, cell: (row) =>
      html`<span class=${row.num_ack_pending && row.num_ack_pending >= row.config.max_ack_pending ? "warn" : ""}>
        ${count(row.num_ack_pending)}</span>` },
    { title: "Redelivered", num: true, wide: true, by: (row) => row.num_redelivered, cell: (row) =>
      count(row.num_redelivered) },
    !chosen && { title: "Acked through", num: true, wide: true, by: (row) => row.ack_floor.stream_seq, cell: (row) =>
      html`${count(row.ack_floor.stream_seq)}<span class="under">of ${count(state.last_seq)}</span>` },
    !chosen && { title: "Waiting pulls", num: true, wide: true, cell: (row) =>
      (row.config.deliver_subject ? NONE : count(row.num_waiting)) },
    !chosen && { title: "Last delivery", wide: true, cell: (row) =>
      (Number.isNaN(millis(row.delivered.last_active)) ? html`<span class="quiet">never</span>`
        : html`<span class="nowrap">${ago(Date.now() - millis(row.delivered.last_active))} ago</span>`) },
  ].filter(Boolean);
  const consumer = data?.find((each) => each.name === chosen);
  const button = html`<button class="button" type="button" onClick=${() => create(true)}>
    <${Icon} name="plus" /> Create consumer</button>`;
  return html`<${Failed} error=${error} retry=${refresh} />
    ${loading && !data && html`<${Loading} />`}
    ${data?.length > 0 && html`<div class="toolbar">${button}</div>
      <div class="split" data-open=${Boolean(consumer)}>
        <section aria-label="Consumers">
          <${Table} caption="Consumers" columns=${columns} rows=${data} keyOf=${(row) => row.name} chosen=${chosen}
            sorted=${{ column: 0, down: false }} key=${Boolean(consumer)} />
        </section>
        ${consumer && html`<${Detail} key=${chosen} stream=${name} last=${state.last_seq} consumer=${consumer}
          close=${() => open()} again=${again} />`}
      </div>`}
    ${data?.length === 0 &&
      html`<${Empty} title="Nobody consumes this stream">
        <p>Applications create consumers. You can also create one here, or from a terminal:</p>
        <pre tabindex="0" role="region" aria-label="Command">nats consumer add ${name} READER --pull --defaults</pre>
        ${button}<//>`}
    ${creating && html`<${Create} stream=${name} close=${() => create(false)}
      created=${(made) => (again(), open(made))} />`}`;
}

/** One consumer: its state, its configuration, and its acts. */
function Detail({ stream, last, consumer, close, again }) {
  const { name, config } = consumer;
  const [shown, show] = useState(null);
  const [message, setMessage] = useState(null);
  const [error, setError] = useState(null);
  const hide = () => show(null);
  const attempt = (act) => async () => {
    setError(null);
    try {
      await act();
    } catch (failure) {
      setError(failure);
    }
    again();
  };
  const next = attempt(async () => {
    const found = await nextMessage(stream, name);
    setMessage(found);
    if (!found) toast("There is no message for this consumer now.");
  });
  const answered = (text, said) => attempt(async () => {
    await answerMessage(message, text);
    setMessage(null);
    toast(`Message ${count(message.seq)} was ${said}.`);
  });
  const resume = attempt(async () => {
    await pauseConsumer(stream, name, "");
    toast(`Consumer ${name} delivers again.`);
  });
  const facts = [
    ["Kind", kindOf(consumer)],
    ["Pending", count(consumer.num_pending)],
    ["Unacked", `${count(consumer.num_ack_pending)} of at most ${config.max_ack_pending > 0
      ? count(config.max_ack_pending) : "any number"}`],
    ["Redelivered", count(consumer.num_redelivered)],
    ["Delivered through", `${count(consumer.delivered.stream_seq)} of ${count(last)}`],
    ["Acked through", count(consumer.ack_floor.stream_seq)],
    ["Waiting pulls", config.deliver_subject ? NONE : count(consumer.num_waiting)],
    ["Delivers", (DELIVER.find(([value]) => value === config.deliver_policy) ?? [])[1] ?? config.deliver_policy],
    ["Acks", config.ack_policy],
    config.ack_policy !== "none" && ["Ack wait", span(config.ack_wait / 1e9)],
    ["Maximum deliveries", config.max_deliver > 0 ? `at most ${count(config.max_deliver)}` : "no limit"],
    consumer.paused && ["Paused until", time(config.pause_until, { fraction: false })],
    ["Created", time(consumer.created, { fraction: false })],
  ];
  const needs = (verb) => `$JS.API.CONSUMER.${verb}.${stream}.${name}`;
  return html`<section class="detail" aria-label=${`Consumer ${name}`}>
    <div class="detail-head">
      <h2>${name}</h2>
      <button class="button button-bare" type="button" aria-label="Close the consumer" onClick=${close}>
        <${Icon} name="close" /></button>
    </div>
    <div class="head-tools">
      ${!config.deliver_subject && html`<button class="button" type="button" onClick=${next}>Next message</button>`}
      ${consumer.paused ? html`<button class="button" type="button" onClick=${resume}>Resume</button>`
        : html`<button class="button" type="button" onClick=${() => show("pause")}>Pause…</button>`}
      <button class="button" type="button" onClick=${() => show("reset")}>Reset…</button>
      <button class="button button-bad" type="button" onClick=${() => show("delete")}>Delete…</button>
    </div>
    <${Failed} error=${error} />
    ${message && html`<div class="messages"><${Message} key=${message.ack} message=${message} tools=${html`
      <span class="quiet">delivery ${message.deliveries}</span>
      ${config.ack_policy !== "none" && html`<div class="group push">
        <button class="button button-small" type="button" onClick=${answered("+ACK", "acked")}>Ack</button>
        <button class="button button-small" type="button" onClick=${answered("-NAK", "given back")}>Give back</button>
        <button class="button button-small" type="button" onClick=${answered("+TERM", "terminated")}>Terminate</button>
      </div>`}`} opened /></div>`}
    ${config.description && html`<p>${config.description}</p>`}
    <dl class="list">${facts.filter(Boolean).map(([title, value]) => [html`<dt>${title}</dt>`,
      html`<dd>${value}</dd>`])}</dl>
    <details><summary class="quiet">Configuration as JSON</summary>
      <pre class="payload" tabindex="0" role="region"
        aria-label="Configuration as JSON">${JSON.stringify(config, null, 2)}</pre>
    </details>
    ${shown === "pause" && html`<${Pause} stream=${stream} name=${name} close=${hide} again=${again}
      needs=${needs("PAUSE")} />`}
    ${shown === "reset" && html`<${Reset} stream=${stream} name=${name} last=${last} close=${hide} again=${again}
      needs=${needs("RESET")} />`}
    ${shown === "delete" && html`<${Confirm} title=${`Delete consumer ${name}`} name=${name} button="Delete consumer"
      needs=${needs("DELETE")} close=${hide} send=${async () => {
      await deleteConsumer(stream, name);
      toast(`Consumer ${name} was deleted.`);
      again();
      close();
    }}><p>Its position is lost. If an application creates it again, it starts where its configuration says.</p><//>`}
  </section>`;
}

function Pause({ stream, name, close, again, needs }) {
  const [values, set] = useState({ time: "1h" });
  const send = async () => {
    const until = new Date(Date.now() + nanos(values.time) / 1e6).toISOString();
    await pauseConsumer(stream, name, until);
    toast(`Consumer ${name} is paused until ${time(until, { fraction: false })}.`);
    again();
  };
  return html`<${FormDialog} title=${`Pause ${name}`} button="Pause" close=${close} send=${send} needs=${needs}
    ready=${Boolean(values.time.trim()) && !wrongDuration(values.time)}>
    <p>It delivers nothing until then, and keeps its position.</p>
    <${TextField} label="For" name="time" bad=${wrongDuration(values.time)} values=${values} set=${set} data-first />
  <//>`;
}

function Reset({ stream, name, last, close, again, needs }) {
  const [values, set] = useState({ seq: "" });
  const send = async () => {
    await resetConsumer(stream, name, Number(values.seq));
    toast(`Consumer ${name} was reset.`);
    again();
  };
  return html`<${Confirm} title=${`Reset ${name}`} name=${name} button="Reset" close=${close} send=${send}
    needs=${needs}>
    <p>Messages that were delivered and not acked count as never delivered. With a sequence,
      the consumer delivers from there
      on, whatever was acked.</p>
    <${TextField} label="From sequence" name="seq" type="number" min="1" max=${last + 1}
      placeholder="what is not acked" values=${values} set=${set} />
  <//>`;
}

function Create({ stream, close, created }) {
  const [values, set] = useState(NEW);
  const bind = { values, set };
  const wrong = /[\s.*>/\\]/.test(values.name) ? "A name cannot contain spaces, dots, *, > or slashes." : "";
  const duration = (name) => ({ name, bad: wrongDuration(values[name]), ...bind });
  const bad = [values.wait, values.inactive].some(wrongDuration);
  const send = async () => {
    const filters = values.filter.split(/[\s,]+/).filter(Boolean);
    const config = {
      name: values.name,
      durable_name: values.name,
      description: values.description || undefined,
      deliver_policy: values.deliver,
      opt_start_seq: values.deliver === "by_start_sequence" ? Number(values.start) : undefined,
      opt_start_time: values.deliver === "by_start_time" ? new Date(values.start).toISOString() : undefined,
      ack_policy: values.ack,
      ack_wait: values.ack === "none" ? undefined : nanos(values.wait) || undefined,
      max_deliver: Number(values.most) || -1,
      max_ack_pending: Number(values.pending) || -1,
      inactive_threshold: nanos(values.inactive) || undefined,
      replay_policy: "instant",
      deliver_subject: values.push.trim() || undefined,
      ...(filters.length > 1 ? { filter_subjects: filters } : { filter_subject: filters[0] }),
    };
    await saveConsumer(stream, config, "create");
    toast(`Consumer ${values.name} was created.`);
    created(values.name);
  };
  const start = { by_start_sequence: { label: "Sequence", type: "number", min: 1 },
    by_start_time: { label: "Time", type: "datetime-local", step: 1 } }[values.deliver];
  return html`<${FormDialog} title="Create a consumer" button="Create consumer" close=${close} send=${send}
    needs=${`$JS.API.CONSUMER.CREATE.${stream}.${values.name || "*"}`}
    ready=${Boolean(values.name) && !wrong && !bad && (!start || Boolean(values.start))}>
    <${TextField} label="Name" name="name" bad=${wrong} ...${bind} required spellcheck="false" />
    <${TextField} label="Subjects" hint="Separated by spaces. If you leave them out, it gets the whole stream." name="filter"
      class="code"
      placeholder="all" spellcheck="false" ...${bind} />
    <div class="pair">
      <${ChoiceField} label="Delivers" name="deliver" options=${DELIVER} ...${bind} />
      ${start && html`<${TextField} ...${start} name="start" ...${bind} required />`}
    </div>
    <div class="pair">
      <${ChoiceField} label="Acks" name="ack" ...${bind} options=${[["explicit", "each message"], ["all",
        "all up to a message"], ["none", "none"]]} />
      <${TextField} label="Redeliver after" hint="Without an ack." ...${duration("wait")} />
    </div>
    <div class="pair">
      <${TextField} label="Maximum deliveries" name="most" type="number" min="1" placeholder="no limit"
        ...${bind} />
      <${TextField} label="Unacked messages" name="pending" type="number" min="1" placeholder="no limit" ...${bind} />
    </div>
    <div class="pair">
      <${TextField} label="Push to subject" hint="Without one, clients pull." name="push" class="code" ...${bind} />
      <${TextField} label="Delete when unused for" placeholder="never" ...${duration("inactive")} />
    </div>
    <${TextField} label="Description" name="description" ...${bind} />
  <//>`;
}
