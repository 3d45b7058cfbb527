/** Key-value buckets: keys and values now and at any moment, revisions, and writes. */

import { html, useState } from "../../vendor/htm-preact.js";
import { publish, session } from "../lib/api.js";
import { preview, textToBase64, toText } from "../lib/bytes.js";
import { bytes, count, counted, NONE, span, time } from "../lib/format.js";
import { useEntries } from "../lib/entries.js";
import { createStream, deleteStream, streamInfo } from "../lib/jetstream.js";
import { revisions } from "../lib/messages.js";
import { changeTimes, earliest, isTravelling, useSettled } from "../lib/past.js";
import { useKept, usePoll } from "../lib/poll.js";
import { go, link } from "../lib/router.js";
import { isOwn, refresh as resample, samples } from "../lib/samples.js";
import { useStore } from "../lib/store.js";
import { Confirm, Field, FormDialog, TextField } from "../parts/dialog.js";
import { Head } from "../parts/figures.js";
import { Icon } from "../parts/icons.js";
import { NoJetStream } from "../parts/names.js";
import { Empty, Failed, Loading, toast, Warning } from "../parts/notes.js";
import { Pages } from "../parts/pages.js";
import { Payload } from "../parts/payload.js";
import { Restore } from "../parts/restore.js";
import { Table } from "../parts/table.js";
import { TimeSlider } from "../parts/time.js";
import { nanos, wrongDuration } from "./stream_form.js";

const PREFIX = "KV_";
const MAX_KEYS = 1000;
const MAX_HISTORY = 64;

/** Return the operation of a revision: "PUT", "DEL" or "PURGE". */
function operation(message) {
  const named = message.headers["KV-Operation"]?.[0];
  return named ?? (message.headers["Nats-Marker-Reason"] ? "PURGE" : "PUT");
}

const OPERATIONS = { DEL: "deleted", PURGE: "purged" };

/** The page: `path` is ["buckets", bucket, key]. */
export function Buckets({ path }) {
  return path[1] ? html`<${Bucket} bucket=${path[1]} chosen=${path[2]} />` : html`<${List} />`;
}

function List() {
  const { streams, error } = useStore(samples);
  const [creating, setCreating] = useState(false);
  const found = (streams ?? []).filter((each) => isOwn(each) && each.name.startsWith(PREFIX));
  const create = html`<button class="button button-main" type="button" onClick=${() => setCreating(true)}>
    <${Icon} name="plus" /> Create bucket</button>`;
  const columns = [
    { title: "Bucket", by: (row) => row.name, cell: (row) =>
      html`<a class="name" href=${link("buckets", row.name.slice(PREFIX.length))}>${row.name.slice(PREFIX.length)}</a>
        ${row.config?.description && html`<span class="under">${row.config.description}</span>`}` },
    { title: "Keys", num: true, by: (row) => row.state.num_subjects, cell: (row) =>
      count(row.state.num_subjects ?? 0) },
    { title: "Revisions", num: true, wide: true, by: (row) => row.state.messages, cell: (row) =>
      count(row.state.messages) },
    { title: "Size", num: true, by: (row) => row.state.bytes, cell: (row) => bytes(row.state.bytes) },
    { title: "History", num: true, wide: true, cell: (row) =>
      (row.config?.max_msgs_per_subject > 0 ? count(row.config.max_msgs_per_subject) : NONE) },
    { title: "Time to live", num: true, wide: true, cell: (row) =>
      (row.config?.max_age ? span(row.config.max_age / 1e9) : "forever") },
    { title: "Time travel", num: true, cell: (row) =>
      row.config?.metadata?.["lakestream.time_travel"] ?? html`<span class="quiet">off</span>` },
  ];
  if (session.value.jetstream === false) return html`<${Head} title="Key-value" /><${NoJetStream} />`;
  return html`<${Head} title="Key-value" tools=${create} />
    ${error && !streams && html`<${Failed} error=${error} />`}
    ${!streams && !error && html`<${Loading} />`}
    ${found.length > 0 &&
      html`<${Table} caption="Buckets" columns=${columns} rows=${found} keyOf=${(row) => `${row.account}/${row.name}`}
        sorted=${{ column: 0, down: false }} />`}
    ${streams && !found.length &&
      html`<${Empty} title="No buckets yet">
        <p>A bucket keeps the last value of each key, and as many earlier ones as you want. With time travel it can be
          read as it was at any moment.</p>
          ${create}<//>`}
    ${creating && html`<${CreateBucket} close=${() => setCreating(false)} />`}`;
}

function CreateBucket({ close }) {
  const [values, set] = useState({ name: "", history: "5", ttl: "", past: "30d" });
  const bind = { values, set };
  const wrong = values.name &&
    !/^[\w-]+$/.test(values.name) ? "A bucket's name may contain letters, digits, - and _ only." : "";
  const send = async () => {
    const age = nanos(values.ttl);
    await createStream({
      name: PREFIX + values.name,
      subjects: [`$KV.${values.name}.>`],
      storage: "file",
      max_msgs_per_subject: Number(values.history),
      max_age: age,
      duplicate_window: age ? Math.min(age, 120e9) : 120e9,
      discard: "new",
      num_replicas: 1,
      allow_rollup_hdrs: true,
      deny_delete: true,
      allow_direct: true,
      ...(values.past.trim() ? { metadata: { "lakestream.time_travel": values.past.trim() } } : {}),
    });
    toast(`Bucket ${values.name} was created.`);
    await resample();
    go(link("buckets", values.name));
  };
  return html`<${FormDialog} title="Create a bucket" button="Create bucket" close=${close} send=${send}
    needs=${`$JS.API.STREAM.CREATE.${PREFIX}${values.name || "*"}`}
    ready=${Boolean(values.name) && !wrong && !wrongDuration(values.past) && !wrongDuration(values.ttl)}>
    <${TextField} label="Name" name="name" bad=${wrong} ...${bind} required spellcheck="false" />
    <div class="pair">
      <${TextField} label="Revisions of each key" name="history" type="number" min="1" max=${MAX_HISTORY} ...${bind}
        required />
      <${TextField} label="Time to live" hint="Keys expire after this time." name="ttl" placeholder="forever"
        bad=${wrongDuration(values.ttl)} ...${bind} />
    </div>
    <${TextField} label="Time travel" hint="How far back the bucket can be read as it was." name="past"
      placeholder="off" bad=${wrongDuration(values.past)} ...${bind} />
  <//>`;
}

function Bucket({ bucket, chosen }) {
  const stream = PREFIX + bucket;
  const prefix = `$KV.${bucket}.`;
  const [at, setAt] = useState(null);
  const [filter, setFilter] = useState("");
  const [withDeleted, setWithDeleted] = useState(false);
  const [shown, show] = useState(null);
  const moment = useSettled(at);
  const info = usePoll((signal) => streamInfo(stream, undefined, { signal }), 1000, [stream]);
  const last = info.data?.state.last_seq ?? 0;
  const changes = usePoll((signal) => (info.data ? changeTimes(info.data, `${prefix}>`, { signal }) : []), 0, [stream,
    last, Boolean(info.data)]);
  const wanted = filter.trim().toLowerCase();
  const nameOf = (subject) => subject.slice(prefix.length);
  const entries = useEntries(info.data, prefix, moment, { wanted, chosen: chosen && prefix + chosen, nameOf });
  const { pages } = entries;
  const times = useKept(changes).data ?? [];
  const crumb = { href: link("buckets"), text: "Key-value" };
  if (!info.data) {
    const gone = info.error?.status === 404;
    return html`<${Head} title=${bucket} crumb=${crumb} />
      ${gone ? html`<${Empty} title="There is no such bucket"><p><a href=${link("buckets")}>See all buckets</a></p><//>`
        : html`<${Failed} error=${info.error} retry=${info.refresh} />`}
      ${info.loading && html`<${Loading} />`}`;
  }
  const { config, state } = info.data;
  const all = (entries.data ?? []).map((message) => ({ ...message, key: nameOf(message.subject),
    operation: operation(message) }));
  const rows = all
    .filter((each) => (withDeleted || each.operation === "PUT") &&
      (!pages || pages.has(each.subject)) && (!wanted || each.key.toLowerCase().includes(wanted)))
    .sort((one, other) => one.key.localeCompare(other.key));
  const current = all.find((each) => each.key === chosen);
  const close = () => show(null);
  const changed = () => (info.refresh(), resample());
  const columns = [
    { title: "Key", by: (row) => row.key, cell: (row) =>
      html`<button class="row-button" type="button"
        onClick=${() => go(link("buckets", bucket, row.key), { replace: true })}>
        ${row.key}</button>` },
    { title: "Value", cell: (row) =>
      (row.operation === "PUT" ? html`<span class="mono wrap">${preview(row.data, 80)}</span>` : html`<span class="tag">
        ${OPERATIONS[row.operation] ?? row.operation}</span>`) },
    { title: "Revision", num: true, wide: true, by: (row) => row.seq, cell: (row) => count(row.seq) },
    { title: "Written", wide: Boolean(chosen), by: (row) => row.millis, cell: (row) =>
      html`<span class="nowrap soft">${time(row.time, { fraction: false })}</span>` },
  ];
  const tools = html`
    <button class="button button-main" type="button" disabled=${at !== null}
      onClick=${() => show({ put: "" })}>Put a key</button>
    ${session.value.sql && html`<button class="button" type="button"
      onClick=${() => show({ restore: true })}>Restore…</button>`}
    <button class="button button-bad" type="button" onClick=${() => show({ remove: true })}>Delete…</button>`;
  const limits = [counted(state.num_subjects ?? 0, "key"), config.max_msgs_per_subject > 0 &&
    `history ${config.max_msgs_per_subject}`, config.max_age > 0 && `keys live ${span(config.max_age / 1e9)}`,
      bytes(state.bytes)];
  return html`
    <${Head} title=${bucket} crumb=${crumb} tools=${tools}>
      ${limits.filter(Boolean).join(" · ")} · <a href=${link("streams", stream)}>stream ${stream}</a><//>
    <${TimeSlider} at=${at} from=${earliest(info.data)} changes=${times} choose=${setAt} what="The bucket as it was:" />
    ${at !== null && !isTravelling(info.data) &&
      html`<${Warning}>This bucket does not record its past, so only values that are still stored can be seen. Set the
        metadata <code>lakestream.time_travel</code> on <a
        href=${link("streams", stream, "configuration")}>
        ${stream}</a> to keep it.<//><div class="section"></div>`}
    <div class="split" data-open=${Boolean(chosen)}>
      <section aria-label="Keys">
        <div class="toolbar">
          <div class="search"><label class="sr" for="keys-filter">Filter keys</label>
            <input id="keys-filter" type="search" data-search placeholder="Filter keys" value=${filter}
              onInput=${(event) => setFilter(event.target.value)} />
              </div>
          <label class="check">
            <input type="checkbox" checked=${withDeleted}
              onChange=${(event) => setWithDeleted(event.target.checked)} /> Deleted keys</label>
        </div>
        <${Failed} error=${entries.error} retry=${entries.refresh} />
        ${!entries.data && entries.loading && html`<${Loading}>Reading keys…<//>`}
        ${rows.length > 0 &&
          html`<${Table} caption=${at === null ? "Keys" : `Keys at ${time(at)}`} columns=${columns}
            rows=${rows.slice(0, MAX_KEYS)} keyOf=${(row) => row.key} chosen=${chosen} />`}
        ${rows.length > MAX_KEYS &&
          html`<p class="quiet">${count(rows.length - MAX_KEYS)} more: filter to see them.</p>`}
        ${pages && html`<${Pages} what="keys" ...${pages} />`}
        ${pages?.partial && html`<p class="quiet">Keys that left the bucket since are not listed: it has no table with its
          past.</p>`}
        ${pages?.cut && html`<p class="quiet">Further keys are not listed. The address of this page may end in the name of
          any key.</p>`}
        ${entries.data && !rows.length &&
          html`<${Empty} title=${wanted ? "No key matches" : at === null ? "No keys" : "No keys at that moment"}><p>
            ${wanted ? `No key contains “${filter}”.` : at === null ? "Put a key here, or with any NATS client."
              : "The bucket was empty then."}
              </p><//>`}
      </section>
      ${chosen &&
        html`<${Key} key=${chosen} info=${info.data} bucket=${bucket} name=${chosen} entry=${current} at=${at}
          last=${last} show=${show} />`}
    </div>
    ${shown?.put !== undefined &&
      html`<${Put} bucket=${bucket} close=${close} changed=${changed} name=${shown.put} value=${shown.value} />`}
    ${shown?.restore && html`<${Restore} stream=${stream} prefix=${PREFIX} at=${at} close=${close}
      open=${(made) => (resample(), go(link("buckets", made)))} />`}
    ${shown?.erase &&
      html`<${Confirm} title=${`Delete key ${shown.erase}`} name=${shown.erase} button="Delete key" close=${close}
        needs=${`${prefix}${shown.erase}`} send=${async () => {
      await publish(`${prefix}${shown.erase}`, { headers: { "KV-Operation": ["DEL"] } });
      toast(`Key ${shown.erase} was deleted.`);
      changed();
    }}><p>Readers find no value from now on. Earlier revisions stay in the history.</p><//>`}
    ${shown?.remove &&
      html`<${Confirm} title=${`Delete bucket ${bucket}`} name=${bucket} button="Delete bucket" close=${close}
        needs=${`$JS.API.STREAM.DELETE.${stream}`} send=${async () => {
      await deleteStream(stream);
      toast(`Bucket ${bucket} was deleted.`);
      await resample();
      go(link("buckets"));
    }}><p>The bucket, its ${counted(state.num_subjects ?? 0, "key")} and their history are removed.</p><//>`}`;
}

function Key({ info, bucket, name, entry, at, last, show }) {
  const subject = `$KV.${bucket}.${name}`;
  const history = useKept(usePoll((signal) => revisions(info, subject, MAX_HISTORY, { signal }), 0, [subject, last]));
  const put = entry?.operation === "PUT";
  return html`<section class="detail" aria-label=${`Key ${name}`}>
    <div class="detail-head">
      <h2>${name}</h2>
      <button class="button button-bare" type="button" aria-label="Close the key"
        onClick=${() => go(link("buckets", bucket), { replace: true })}>
        <${Icon} name="close" /></button>
    </div>
    ${entry
      ? html`<p class="soft">
        ${put ? `Revision ${count(entry.seq)}`
          : html`<span class="tag">${OPERATIONS[entry.operation]}</span>`} · ${time(entry.time)}
          </p>`
        : html`<p class="soft">${at === null ? "This key does not exist." : "This key did not exist at that moment."}
          </p>`}
    ${put && html`<${Payload} data=${entry.data} name=${name} />`}
    ${at === null && html`<div class="head-tools">
      <button class="button" type="button"
        onClick=${() => show({ put: name, value: entry && put ? toText(entry.data) ?? "" : "" })}>Edit</button>
      ${put &&
        html`<button class="button button-bad" type="button" onClick=${() => show({ erase: name })}>Delete…</button>`}
    </div>`}
    <div>
      <h3>History</h3>
      <${Failed} error=${history.error} retry=${history.refresh} />
      ${[...(history.data ?? [])].reverse().map((each) => html`<div class="revision" key=${each.seq}>
        <span>${time(each.time)}</span><span class="quiet">
          ${operation(each) === "PUT" ? `revision ${count(each.seq)}` : OPERATIONS[operation(each)]}</span>
        ${operation(each) === "PUT" && html`<pre>${preview(each.data, 400)}</pre>`}
      </div>`)}
      ${history.data?.length === 0 && html`<p class="quiet">No revision is kept.</p>`}
    </div>
  </section>`;
}

function Put({ bucket, close, changed, name, value = "" }) {
  const [values, set] = useState({ name, value });
  const wrong = values.name &&
    !/^[-/_=.a-zA-Z0-9]+$/.test(values.name) ? "A key may contain letters, digits and - / _ = . only." : "";
  const send = async () => {
    const ack = await publish(`$KV.${bucket}.${values.name}`, { data_base64: textToBase64(values.value) });
    if (!ack) throw new Error("No stream stored the key.");
    toast(`${values.name} is revision ${count(ack.seq)}.`);
    changed();
  };
  return html`<${FormDialog} title=${name ? `Edit ${name}` : "Put a key"} button="Put" close=${close} send=${send}
    needs=${`$KV.${bucket}.${values.name || "*"}`} ready=${Boolean(values.name) && !wrong}>
    ${!name &&
      html`<${TextField} label="Key" name="name" class="code" spellcheck="false" bad=${wrong} values=${values}
        set=${set} required />`}
    <${Field} label="Value">
      ${(id) =>
        html`<textarea id=${id} class="code" rows="8" spellcheck="false" value=${values.value}
          onInput=${(event) => set({ ...values, value: event.target.value })}>
          </textarea>`}
        <//>
  <//>`;
}
