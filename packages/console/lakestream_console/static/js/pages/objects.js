/** Object stores: objects now and at any moment, their facts, and downloads. */

import { html, useState } from "../../vendor/htm-preact.js";
import { CallError, publish, request, session } from "../lib/api.js";
import { fromBase64, textToBase64, textToBase64Url, toBase64, toLossyText } from "../lib/bytes.js";
import { bytes, count, counted, NONE, time } from "../lib/format.js";
import { isInTable, messagesAt, useEntries } from "../lib/entries.js";
import { createStream, deleteStream, purgeStream, streamInfo } from "../lib/jetstream.js";
import { direct } from "../lib/messages.js";
import { changeTimes, earliest, isTravelling, useSettled } from "../lib/past.js";
import { useKept, usePoll } from "../lib/poll.js";
import { go, link } from "../lib/router.js";
import { isOwn, refresh as resample, samples } from "../lib/samples.js";
import { Sha256 } from "../lib/sha256.js";
import { useStore } from "../lib/store.js";
import { Confirm, Field, FormDialog, TextField } from "../parts/dialog.js";
import { Head } from "../parts/figures.js";
import { Icon } from "../parts/icons.js";
import { NoJetStream } from "../parts/names.js";
import { Empty, Failed, Loading, toast, Warning } from "../parts/notes.js";
import { Pages } from "../parts/pages.js";
import { download } from "../parts/payload.js";
import { Restore } from "../parts/restore.js";
import { Table } from "../parts/table.js";
import { TimeSlider } from "../parts/time.js";
import { nanos, wrongDuration } from "./stream_form.js";

const PREFIX = "OBJ_";
const MAX_DOWNLOAD = 64 * 1024 * 1024;
const CHUNKS = 32;
const CHUNK_BYTES = 256 * 1024;
const BATCH_BYTES = 4 * 1024 * 1024;

/** The page: `path` is ["objects", store, object]. */
export function Objects({ path }) {
  return path[1] ? html`<${Store} store=${path[1]} chosen=${path[2]} />` : html`<${List} />`;
}

function List() {
  const { streams, error } = useStore(samples);
  const [creating, setCreating] = useState(false);
  const found = (streams ?? []).filter((each) => isOwn(each) && each.name.startsWith(PREFIX));
  const create = html`<button class="button button-main" type="button" onClick=${() => setCreating(true)}>
    <${Icon} name="plus" /> Create store</button>`;
  const columns = [
    { title: "Store", by: (row) => row.name, cell: (row) =>
      html`<a class="name" href=${link("objects", row.name.slice(PREFIX.length))}>${row.name.slice(PREFIX.length)}</a>
        ${row.config?.description && html`<span class="under">${row.config.description}</span>`}` },
    { title: "Size", num: true, by: (row) => row.state.bytes, cell: (row) => bytes(row.state.bytes) },
    { title: "Chunks and entries", num: true, wide: true, by: (row) => row.state.messages, cell: (row) =>
      count(row.state.messages) },
    { title: "Last change", wide: true, by: (row) => row.state.last_seq, cell: (row) =>
      (row.state.last_seq ? time(row.state.last_ts, { fraction: false }) : NONE) },
    { title: "Time travel", num: true, cell: (row) =>
      row.config?.metadata?.["lakestream.time_travel"] ?? html`<span class="quiet">off</span>` },
  ];
  if (session.value.jetstream === false) return html`<${Head} title="Objects" /><${NoJetStream} />`;
  return html`<${Head} title="Objects" tools=${create} />
    ${error && !streams && html`<${Failed} error=${error} />`}
    ${!streams && !error && html`<${Loading} />`}
    ${found.length > 0 &&
      html`<${Table} caption="Object stores" columns=${columns} rows=${found}
        keyOf=${(row) => `${row.account}/${row.name}`} sorted=${{ column: 0, down: false }} />`}
    ${streams && !found.length &&
      html`<${Empty} title="No object stores yet">
        <p>A store keeps files of any size in chunks. Create one here, or from a terminal:</p>
          <pre tabindex="0" role="region" aria-label="Command">nats object add reports</pre>${create}<//>`}
    ${creating && html`<${CreateStore} close=${() => setCreating(false)} />`}`;
}

function CreateStore({ close }) {
  const [values, set] = useState({ name: "", description: "", past: "" });
  const bind = { values, set };
  const wrong = values.name && !/^[\w-]+$/.test(values.name) ? "A store's name may contain letters, digits, - and _ only." : "";
  const send = async () => {
    await createStream({
      name: PREFIX + values.name,
      description: values.description || undefined,
      subjects: [`$O.${values.name}.C.>`, `$O.${values.name}.M.>`],
      storage: "file",
      discard: "new",
      num_replicas: 1,
      allow_rollup_hdrs: true,
      allow_direct: true,
      ...(values.past.trim() ? { metadata: { "lakestream.time_travel": values.past.trim() } } : {}),
    });
    toast(`Store ${values.name} was created.`);
    await resample();
    go(link("objects", values.name));
  };
  return html`<${FormDialog} title="Create an object store" button="Create store" close=${close} send=${send}
    needs=${`$JS.API.STREAM.CREATE.${PREFIX}${values.name || "*"}`}
    ready=${Boolean(values.name) && !wrong && !wrongDuration(values.past) && !wrongDuration(values.ttl)}>
    <${TextField} label="Name" name="name" bad=${wrong} ...${bind} required spellcheck="false" />
    <${TextField} label="Description" name="description" ...${bind} />
    <${TextField} label="Time travel" hint="How far back the list can be read as it was." name="past" placeholder="off"
      bad=${wrongDuration(values.past)} ...${bind} />
  <//>`;
}

/**
 * Return the bytes of an object from its chunks: those in the stream, else those of the moment `at` from the table.
 * Raises CallError if it is too large, or chunks are missing.
 */
async function fetchObject(info, store, object, at) {
  if (object.size > MAX_DOWNLOAD) throw new CallError(`This object has ${bytes(object.size)}; the console downloads up to ${bytes(MAX_DOWNLOAD)}. Use: nats object get ${store} '${object.name}'`);
  const stream = info.config.name;
  const subject = `$O.${store}.C.${object.nuid}`;
  const inStream = (seq) => direct(stream, { seq, next_by_subj: subject, batch: CHUNKS, max_bytes: BATCH_BYTES });
  const inTable = async (seq) => (await messagesAt(stream, subject, at, seq, CHUNKS))
    .map(([each, data]) => ({ seq: each, data: fromBase64(data) }));
  const data = await collect(object.size, inStream) ??
    (at !== null && isInTable(info) ? await collect(object.size, inTable) : null);
  if (!data) throw new CallError("Chunks of this object are no longer in the stream: it has been replaced or deleted. Restore the store as of that time to get it.");
  await verify(data, object.digest);
  return data;
}

/** Return `size` bytes from the chunks that `read(seq)` returns from a sequence on; null if they are fewer. */
async function collect(size, read) {
  const data = new Uint8Array(size);
  let [at, seq] = [0, 1];
  while (at < size) {
    const chunks = await read(seq);
    if (!chunks.length) return null;
    for (const chunk of chunks) {
      if (at + chunk.data.length > size) throw new CallError("The chunks do not match the object's size.");
      data.set(chunk.data, at);
      at += chunk.data.length;
      seq = chunk.seq + 1;
    }
  }
  return data;
}

/** Mark an object as deleted, then remove its chunks, as NATS clients do. */
async function deleteObject(stream, store, { subject, seq, time: stored, millis, ...object }) {
  const marker = { ...object, mtime: "0001-01-01T00:00:00Z", size: 0, chunks: 0, deleted: true };
  delete marker.digest;
  const ack = await publish(subject, {
    data_base64: textToBase64(JSON.stringify(marker)), headers: { "Nats-Rollup": ["sub"] } });
  if (!ack) throw new CallError("No stream stored the deletion.");
  await purgeStream(stream, { filter: `$O.${store}.C.${object.nuid}` });
}

/** Return the name of an object from the last token of its subject. */
function nameOf(token) {
  try {
    return toLossyText(fromBase64(token.replaceAll("-", "+").replaceAll("_", "/")));
  } catch {
    return token;
  }
}

/** Return the SHA-256 of bytes as objects have it; browsers have their own only in secure contexts. */
async function digestOf(data) {
  const sum = globalThis.crypto?.subtle ? new Uint8Array(await crypto.subtle.digest("SHA-256", data))
    : new Sha256().add(data).end();
  return `SHA-256=${toBase64(sum).replaceAll("+", "-").replaceAll("/", "_")}`;
}

/** Check the SHA-256 of an object. */
async function verify(data, digest) {
  if (!digest?.startsWith("SHA-256=")) return;
  const plain = (text) => text.replace(/=+$/, "");
  if (plain(await digestOf(data)) !== plain(digest)) throw new CallError("The object does not match its SHA-256.");
}

/** Store a message; raise the error of a stream that refuses it. */
async function stored(subject, options) {
  const [reply] = await request(subject, options);
  const ack = JSON.parse(toLossyText(fromBase64(reply.data_base64)) || "{}");
  if (ack.error) throw new CallError(ack.error.description, ack.error.code, ack.error.err_code);
}

/**
 * Put a file into a store in chunks, as NATS clients do; `progress(bytes)` is told how far it is. The chunks of
 * `before` go.
 */
async function putObject(info, store, name, file, before, progress) {
  const data = new Uint8Array(await file.arrayBuffer());
  const nuid = crypto.getRandomValues(new Uint8Array(11)).reduce((text, byte) => text + byte.toString(16).padStart(2,
    "0"), "");
  const size = Math.min(CHUNK_BYTES, session.value.max_payload > 0 ? session.value.max_payload : CHUNK_BYTES);
  const chunks = `$O.${store}.C.${nuid}`;
  try {
    for (let at = 0; at < data.length; at += size) {
      await stored(chunks, { data_base64: toBase64(data.subarray(at, at + size)) });
      progress(Math.min(at + size, data.length));
    }
    const entry = { name, bucket: store, nuid, size: data.length, chunks: Math.ceil(data.length / size),
      digest: await digestOf(data), mtime: new Date().toISOString(), options: { max_chunk_size: size } };
    await stored(`$O.${store}.M.${textToBase64Url(name)}`, { data: JSON.stringify(entry),
      headers: { "Nats-Rollup": ["sub"] } });
  } catch (error) {
    await purgeStream(info.config.name, { filter: chunks }).catch(() => {}); // nobody knows them
    throw error;
  }
  if (before?.nuid && !before.deleted) await purgeStream(info.config.name, { filter: `$O.${store}.C.${before.nuid}` });
}

function read({ subject, seq, time: at, millis, data }) {
  const stored = { subject, seq, time: at, millis };
  try {
    return { ...JSON.parse(toLossyText(data)), ...stored };
  } catch {
    return { name: subject, broken: true, ...stored };
  }
}

function Store({ store, chosen }) {
  const stream = PREFIX + store;
  const prefix = `$O.${store}.M.`;
  const [at, setAt] = useState(null);
  const [wanted, setWanted] = useState("");
  const [removing, setRemoving] = useState(false);
  const [shown, show] = useState(null);
  const [erased, erase] = useState(null);
  const moment = useSettled(at);
  const info = usePoll((signal) => streamInfo(stream, undefined, { signal }), 1000, [stream]);
  const last = info.data?.state.last_seq ?? 0;
  const changes = useKept(usePoll((signal) => (info.data ? changeTimes(info.data, `${prefix}>`, { signal }) : []), 0,
    [stream,
    last, Boolean(info.data)]));
  const entries = useEntries(info.data, prefix, moment, { wanted: wanted.trim().toLowerCase(),
    chosen: chosen && prefix + textToBase64Url(chosen), nameOf: (subject) => nameOf(subject.slice(prefix.length)) });
  const { pages } = entries;
  const crumb = { href: link("objects"), text: "Objects" };
  if (!info.data) {
    const gone = info.error?.status === 404;
    return html`<${Head} title=${store} crumb=${crumb} />
      ${gone ? html`<${Empty} title="There is no such store"><p><a href=${link("objects")}>See all stores</a></p><//>`
        : html`<${Failed} error=${info.error} retry=${info.refresh} />`}
      ${info.loading && html`<${Loading} />`}`;
  }
  const all = (entries.data ?? []).map(read);
  const rows = all.filter((each) => !each.deleted && (!pages || pages.has(each.subject)) &&
    each.name.toLowerCase().includes(wanted.trim().toLowerCase())).sort((one, other) =>
      one.name.localeCompare(other.name));
  const object = all.find((each) => each.name === chosen && !each.deleted);
  const columns = [
    { title: "Object", by: (row) => row.name, cell: (row) =>
      html`<button class="row-button" type="button"
        onClick=${() => go(link("objects", store, row.name), { replace: true })}>
        ${row.name}</button>${row.description && html`<span class="under">${row.description}</span>`}` },
    { title: "Size", num: true, by: (row) => row.size, cell: (row) => (row.options?.link ? "link" : bytes(row.size)) },
    { title: "Changed", wide: Boolean(chosen), by: (row) => row.millis, cell: (row) =>
      html`<span class="nowrap soft">${time(row.time, { fraction: false })}</span>` },
  ];
  const total = rows.reduce((sum, each) => sum + (each.size || 0), 0);
  return html`
    <${Head} title=${store} crumb=${crumb}
      tools=${html`<button class="button button-main" type="button" disabled=${at !== null}
          onClick=${() => show("upload")}>Upload…</button>
        ${session.value.sql && html`<button class="button" type="button"
          onClick=${() => show("restore")}>Restore…</button>`}
        <button class="button button-bad" type="button" onClick=${() => setRemoving(true)}>Delete…</button>`}>
      ${counted(pages?.total ?? rows.length, "object")}${!pages && ` · ${bytes(total)}`} · <a
        href=${link("streams", stream)}>stream ${stream}</a><//>
    <${TimeSlider} at=${at} from=${earliest(info.data)} changes=${changes.data ?? []} choose=${setAt}
      what="The store as it was:" />
    ${at !== null && !isTravelling(info.data) &&
      html`<${Warning}>This store does not record its past, so only entries that are still stored can be seen. Set the
        metadata <code>lakestream.time_travel</code> on <a
        href=${link("streams", stream, "configuration")}>
        ${stream}</a> to keep it.<//><div class="section"></div>`}
    <div class="split" data-open=${Boolean(chosen)}>
      <section aria-label="Objects">
        <div class="toolbar"><div class="search"><label class="sr" for="objects-filter">Filter objects</label>
          <input id="objects-filter" type="search" data-search placeholder="Filter objects" value=${wanted}
            onInput=${(event) => setWanted(event.target.value)} />
            </div></div>
        <${Failed} error=${entries.error} retry=${entries.refresh} />
        ${!entries.data && entries.loading && html`<${Loading}>Reading objects…<//>`}
        ${rows.length > 0 &&
          html`<${Table} caption=${at === null ? "Objects" : `Objects at ${time(at)}`} columns=${columns} rows=${rows}
            keyOf=${(row) => row.name} chosen=${chosen} />`}
        ${pages && html`<${Pages} what="objects" ...${pages} />`}
        ${pages?.partial && html`<p class="quiet">Objects that left the store since are not listed: it has no table with
          its past.</p>`}
        ${entries.data && !rows.length &&
          html`<${Empty}
            title=${wanted ? "No object matches" : at === null ? "No objects" : "No objects at that moment"}>
            <p>${wanted ? `No name contains “${wanted}”.` : "Applications put objects here. From a terminal:"}</p>
              ${!wanted &&
                html`<pre tabindex="0" role="region" aria-label="Command">nats object put ${store} FILE</pre>`}
                <//>`}
      </section>
      ${chosen &&
        html`<${ObjectDetail} key=${chosen} info=${info.data} store=${store} name=${chosen} object=${object}
          at=${moment}
          erase=${() => erase(object)} />`}
    </div>
    ${shown === "upload" && html`<${Upload} info=${info.data} store=${store}
      existing=${(name) => all.find((each) => each.name === name)}
      close=${() => show(null)} done=${(name) => (info.refresh(), resample(), go(link("objects", store, name),
        { replace: true }))} />`}
    ${shown === "restore" && html`<${Restore} stream=${stream} prefix=${PREFIX} at=${at} close=${() => show(null)}
      open=${(made) => (resample(), go(link("objects", made)))} />`}
    ${erased &&
      html`<${Confirm} title=${`Delete object ${erased.name}`} name=${erased.name} button="Delete object"
        needs=${`$O.${store}.M.*`}
        close=${() => erase(null)} send=${async () => {
      await deleteObject(stream, store, erased);
      toast(`Object ${erased.name} was deleted.`);
      info.refresh();
    }}><p>Readers find no object from now on.
        ${isTravelling(info.data) && " Its bytes can still be read as of earlier moments."}</p><//>`}
    ${removing &&
      html`<${Confirm} title=${`Delete store ${store}`} name=${store} button="Delete store"
        needs=${`$JS.API.STREAM.DELETE.${stream}`}
        close=${() => setRemoving(false)} send=${async () => {
      await deleteStream(stream);
      toast(`Store ${store} was deleted.`);
      await resample();
      go(link("objects"));
    }}><p>The store and all its objects are removed.</p><//>`}`;
}

function ObjectDetail({ info, store, name, object, at, erase }) {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const get = async () => {
    setBusy(true);
    setError(null);
    try {
      download(await fetchObject(info, store, object, at), name.split("/").at(-1) || "object");
    } catch (failure) {
      setError(failure);
    }
    setBusy(false);
  };
  const facts = object && [
    ["Size", object.size < 1024 ? bytes(object.size) : `${bytes(object.size)} (${count(object.size)} bytes)`],
    ["Chunks", count(object.chunks)],
    ["Digest", html`<span class="mono">${object.digest ?? NONE}</span>`],
    ["Changed", time(object.time)],
    ["Id", html`<span class="mono">${object.nuid ?? NONE}</span>`],
    ...Object.entries(object.headers ?? {}).map(([key, value]) => [key, [value].flat().join(", ")]),
    ...Object.entries(object.metadata ?? {}).map(([key, value]) => [key, value]),
    object.options?.link && ["Link to", [object.options.link.bucket,
      object.options.link.name].filter(Boolean).join("/")],
  ];
  return html`<section class="detail" aria-label=${`Object ${name}`}>
    <div class="detail-head">
      <h2>${name}</h2>
      <button class="button button-bare" type="button" aria-label="Close the object"
        onClick=${() => go(link("objects", store), { replace: true })}>
        <${Icon} name="close" /></button>
    </div>
    ${object
      ? html`<dl class="list">
        ${facts.filter(Boolean).map(([title, value]) => [html`<dt>${title}</dt>`, html`<dd>${value}</dd>`])}</dl>
          <${Failed} error=${error} />
          <div class="head-tools">
            ${!object.options?.link &&
              html`<button class="button" type="button" disabled=${busy} onClick=${get}>
                ${busy ? "Reading…" : "Download"}</button>`}
            ${at === null &&
              html`<button class="button button-bad" type="button" onClick=${erase}>Delete…</button>`}
          </div>`
      : html`<p class="soft">There is no such object at this moment.</p>`}
  </section>`;
}

/** The dialog that puts a file into a store. */
function Upload({ info, store, existing, close, done }) {
  const [file, setFile] = useState(null);
  const [values, set] = useState({ name: "" });
  const [sent, setSent] = useState(null);
  const choose = (event) => {
    setFile(event.target.files[0] ?? null);
    set({ name: event.target.files[0]?.name ?? "" });
  };
  const wrong = file && file.size > MAX_DOWNLOAD ? `The console uploads up to ${bytes(MAX_DOWNLOAD)}. Use: nats object put ${store} FILE` : "";
  const before = existing(values.name);
  const send = async () => {
    await putObject(info, store, values.name, file, before, setSent);
    toast(`${values.name} is stored.`);
    done(values.name);
  };
  return html`<${FormDialog} title="Upload an object" button="Upload" close=${close} send=${send}
    needs=${`$O.${store}.>`}
    ready=${Boolean(file) && Boolean(values.name) && !wrong}>
    <${Field} label="File" bad=${wrong}>${(id) => html`<input id=${id} type="file" onChange=${choose} required />`}<//>
    <${TextField} label="Name" name="name" values=${values} set=${set} required
      hint=${before && !before.deleted ? "An object with this name exists and will be replaced." : ""} />
    ${sent !== null && html`<label>${bytes(sent)} of ${bytes(file.size)} <progress value=${sent}
      max=${file.size || 1}></progress></label>`}
  <//>`;
}
