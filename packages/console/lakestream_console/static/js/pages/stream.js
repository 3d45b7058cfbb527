/** One stream: messages, consumers, table, configuration; publish, purge and delete. */

import { html, useState } from "../../vendor/htm-preact.js";
import { page, session, sql } from "../lib/api.js";
import { ago, bytes, compact, count, counted, millis, NONE, rate, shortName, span, time } from "../lib/format.js";
import { deleteStream, maintain, purgeStream, streamInfo } from "../lib/jetstream.js";
import { mayPublish } from "../lib/permissions.js";
import { usePoll } from "../lib/poll.js";
import { go, link } from "../lib/router.js";
import { refresh as resample, samples } from "../lib/samples.js";
import { useClock, useStore } from "../lib/store.js";
import { Confirm, TextField } from "../parts/dialog.js";
import { Figures, Head } from "../parts/figures.js";
import { History } from "../parts/history.js";
import { OfAnother } from "../parts/names.js";
import { Empty, Failed, Loading, toast, Warning } from "../parts/notes.js";
import { Restore } from "../parts/restore.js";
import { Strip } from "../parts/strip.js";
import { Table } from "../parts/table.js";
import { Consumers } from "./consumers.js";
import { Messages } from "./messages.js";
import { PublishDialog } from "./publish.js";
import { EditStream } from "./stream_form.js";

const TABS = [["messages", "Messages"], ["consumers", "Consumers"], ["history", "History"], ["table", "Table"],
  ["configuration", "Configuration"]];
const REFRESH_MS = 1000;
const TABLE_REFRESH_MS = 5000;
const COMMITS = 20;
const MISFITS = 20;

/** The page: `path` is ["streams", name, tab]. */
export function Stream({ path, query }) {
  const [, name, tab = "messages"] = path;
  const [shown, show] = useState(null);
  const info = usePoll((signal) => streamInfo(name, undefined, { signal }), REFRESH_MS, [name]);
  const sample = useStore(samples);
  const sampled = sample.streams?.find((each) => each.name === name);
  const stream = info.data;
  const crumb = { href: link("streams"), text: "Streams" };
  const account = query.get("account");
  if (account && account !== session.value.account) {
    return html`<${Head} title=${name} crumb=${crumb} /><${OfAnother} name=${name} account=${account} />`;
  }
  if (!stream) {
    const gone = info.error?.status === 404;
    return html`<${Head} title=${name} crumb=${crumb} />
      ${gone ? html`<${Empty} title="There is no such stream">
        <p>It may have been deleted. <a href=${link("streams")}>See all streams</a>.</p><//>`
        : html`<${Failed} error=${info.error} retry=${info.refresh} />`}
      ${info.loading && html`<${Loading} />`}`;
  }
  const { config, state } = stream;
  const lake = sampled?.lake;
  const close = () => show(null);
  const changed = () => (info.refresh(), resample());
  const tools = html`
    <button class="button button-main" type="button" onClick=${() => show("publish")}>Publish</button>
    <button class="button" type="button" onClick=${() => show("edit")}>Edit…</button>
    ${session.value.sql && lake && html`<button class="button" type="button"
      onClick=${() => show("restore")}>Restore…</button>`}
    <button class="button button-bad" type="button" onClick=${() => show("purge")}>Purge…</button>
    <button class="button button-bad" type="button" onClick=${() => show("delete")}>Delete…</button>`;
  const tags = [
    config.storage === "memory" && "memory",
    config.num_replicas > 1 && `${config.num_replicas} replicas`,
    config.retention !== "limits" && `${config.retention} retention`,
    config.mirror && `mirror of ${config.mirror.name}`,
    config.sources?.length && counted(config.sources.length, "source"),
    config.sealed && "sealed",
    config.metadata?.["lakestream.time_travel"] && `time travel ${config.metadata["lakestream.time_travel"]}`,
  ].filter(Boolean);
  const first = (config.subjects ?? [])[0] ?? "";
  return html`
    <${Head} title=${name} crumb=${crumb} tools=${tools}
      tags=${tags.length > 0 && tags.map((text) => html`<span class="tag">${text}</span>`)}>
      ${config.description || html`<span class="mono">${(config.subjects ?? []).join("  ")}</span>`}
    <//>
    <${Failed} error=${info.error} retry=${info.refresh} />
    <div class="stream"><div class="stream-state"><${Figures} of=${[
      { title: "Messages", value: compact(state.messages), under: counted(state.num_subjects ?? 0, "subject",
        compact) },
      { title: "Size", value: bytes(state.bytes), under: state.messages ? `${bytes(state.bytes / state.messages)} each`
        : undefined },
      { title: "Stored", value: rate(sampled?.rate ?? NaN),
        under: `last ${state.last_seq ? time(state.last_ts, { date: false, fraction: false }) : NONE}` },
      { title: "Sequences", value: compact(state.last_seq), under: `from ${count(state.first_seq)}` },
      { title: "Consumers", value: count(state.consumer_count), under: stream.cluster?.leader
        ? `led by ${shortName(stream.cluster.leader)}` : undefined },
      lake && { title: "Table", value: lake.lag_msgs ? `${compact(lake.lag_msgs)} behind` : state.messages ? "complete"
        : "empty",
        under: lake.lag_msgs ? `oldest ${span(Math.round(lake.lag_seconds ?? 0))}` : undefined,
        tone: lake.error ? "bad" : undefined },
    ]} />
    <${Strip} state=${state} lag=${lake?.lag_msgs} consumers=${sampled?.consumer_detail ?? []} /></div>
    <div class="stream-parts"><nav class="tabs" aria-label="Parts of the stream">
      ${TABS.map(([value, text]) =>
        html`<a href=${link("streams", name, value)} aria-current=${value === tab ? "page" : undefined}>${text}
          ${value === "consumers" && state.consumer_count > 0 &&
            html` <span class="quiet">${state.consumer_count}</span>`}
            </a>`)}
    </nav>
    ${tab === "messages" && html`<${Messages} info=${stream} query=${query} changed=${changed} />`}
    ${tab === "consumers" && html`<${Consumers} name=${name} state=${state} query=${query} changed=${changed} />`}
    ${tab === "history" && html`<${History} stream=${name} plots=${plots} />`}
    ${tab === "table" && html`<${LakeTable} name=${name} account=${sampled?.account} />`}
    ${tab === "configuration" && html`<${Configuration} stream=${stream} />`}</div></div>
    ${shown === "publish" &&
      html`<${PublishDialog} close=${close} subject=${/[*>]/.test(first) ? first.replace(/[*>].*/, "") : first || name}
        published=${changed} />`}
    ${shown === "edit" && html`<${EditStream} config=${config} close=${close} changed=${changed} />`}
    ${shown === "restore" && html`<${Restore} stream=${name} at=${null} close=${close}
      open=${(made) => (resample(), go(link("streams", made)))} />`}
    ${shown === "purge" && html`<${Purge} name=${name} state=${state} close=${close} changed=${changed} />`}
    ${shown === "delete" &&
      html`<${Confirm} title=${`Delete ${name}`} name=${name} button="Delete stream" close=${close}
        needs=${`$JS.API.STREAM.DELETE.${name}`} send=${async () => {
      await deleteStream(name);
      toast(`Stream ${name} was deleted.`);
      await resample();
      go(link("streams"));
    }}>
      <p>The stream, its ${counted(state.messages, "message")} and its
        ${counted(state.consumer_count, "consumer")} are
        removed. Its Delta table is ${config.metadata?.["lakestream.on_delete"] === "keep" ? "kept" : "dropped"}.</p>
    <//>`}`;
}

const plots = (plot, some, data) => html`
  ${plot("Messages stored per second", "count", compact, [["stored", "stored"]],
    data && !data.times.length ? "Figures appear here once messages are stored." : undefined)}
  ${some("lag") && plot("Messages not in the table yet", "count", compact, [["messages", "lag"]])}`;

function Purge({ name, state, close, changed }) {
  const [values, set] = useState({ filter: "", keep: "" });
  const send = async () => {
    const limits = {};
    if (values.filter.trim()) limits.filter = values.filter.trim();
    if (values.keep.trim()) limits.keep = Number(values.keep);
    const { purged } = await purgeStream(name, limits);
    toast(`Purged ${counted(purged, "message")}.`);
    changed();
  };
  return html`<${Confirm} title=${`Purge ${name}`} name=${name} button="Purge messages" close=${close} send=${send}
    needs=${`$JS.API.STREAM.PURGE.${name}`}>
    <p>Messages are removed from the stream; it holds ${count(state.messages)}. Consumers go on with what is left.</p>
    <div class="pair">
      <${TextField} label="Only this subject" class="code" placeholder="all" name="filter" values=${values}
        set=${set} />
      <${TextField} label="Keep the newest" type="number" min="0" placeholder="none" name="keep" values=${values}
        set=${set} />
    </div>
  <//>`;
}

/** Return the columns of commits; a version leads to the table as it was then. */
const commitColumns = (name) => [
  { title: "Version", cell: (row) => (session.value.sql
    ? html`<a href=${link("sql", { query: `SELECT seq, time, subject, text(data) AS data\nFROM delta.\`streams/${name}\` VERSION AS OF ${row.version}\nORDER BY seq DESC\nLIMIT 100` })}
      title="Open the table at this version">${count(row.version)}</a>` : count(row.version)) },
  { title: "Time", cell: (row) => html`<span class="nowrap">${time(row.time, { fraction: false })}</span>` },
  { title: "Operation", cell: (row) => row.operation },
  { title: "Messages", num: true, cell: (row) => (row.messages === null ||
    row.messages === undefined ? NONE : count(row.messages)) },
  { title: "Files", num: true, wide: true, cell: (row) => (row.files_added === null ||
    row.files_added === undefined ? NONE : `+${count(row.files_added)}`) },
  { title: "Took", num: true, cell: (row) => (row.duration_ms === null ||
    row.duration_ms === undefined ? NONE : span(row.duration_ms / 1000)) },
];

/** The maintenance of the table: what runs, when all tables are due, the last result; and a button to do it now. */
function Maintenance({ name, compactor }) {
  const now = useClock();
  const [asked, setAsked] = useState(null);
  const [error, setError] = useState(null);
  const needs = `$LAKE.API.MAINTAIN.${name}`;
  const { next, running, last, last_time: at } = compactor?.maintenance ?? {};
  const waits = asked && !(millis(at) > asked);
  const run = async () => {
    setError(null);
    try {
      await maintain(name);
      setAsked(Date.now());
    } catch (failure) {
      setError(failure);
    }
  };
  const state = running ? `Maintaining ${running}…` : waits ? "Requested: the compactor starts within seconds."
    : next ? `Next maintenance ${millis(next) > now ? `in ${ago(millis(next) - now)}` : "is due"}.`
      : compactor?.alive ? "Tables are not maintained (maintain_every: 0)."
        : "Without a compactor tables are not maintained.";
  return html`<div class="toolbar section">
    <span role="status">${state} ${last && html`<span
      class="quiet">Last, ${ago(now - millis(at))} ago: ${last}.</span>`}</span>
    <button class="button button-small push" type="button" disabled=${!next || waits} onClick=${run}
      title=${mayPublish(needs) ? `Needs permission to publish to ${needs}` : `This user may not publish to ${needs}`}>
      Maintain now</button>
  </div><${Failed} error=${error} />`;
}

const misfitColumns = (name) => [
  { title: "Sequence", num: true, cell: ({ seq }) => html`<a href=${link("streams", name, "messages", { seq })}>
    ${count(seq)}</a>` },
  { title: "Subject", cell: ({ subject }) => html`<span class="mono">${subject}</span>` },
  { title: "Schema", wide: true, cell: ({ schema }) => schema ?? NONE },
  { title: "Field", cell: ({ field }) => html`<span class="mono">${field || NONE}</span>` },
  { title: "Rule", cell: ({ rule }) => rule },
  { title: "Reason", cell: ({ reason }) => html`<span class="wrap">${reason}</span>` },
  { title: "Payload", wide: true, cell: ({ data }) => html`<span class="mono wrap">${data ?? NONE}</span>` },
];

/** Return the newest misfits of a stream, with the beginnings of their payloads. */
async function newestMisfits(name, signal) {
  const { rows } = await sql(`SELECT m.seq, m.subject, m.schema, m.field, m.rule, m.reason, left(text(s.data), 200)
    FROM misfits.\`${name}\` m LEFT JOIN delta.\`streams/${name}\` s ON s.seq = m.seq
    ORDER BY m.seq DESC LIMIT ${MISFITS}`, { signal });
  return rows.map(([seq, subject, schema, field, rule, reason, data]) =>
    ({ seq, subject, schema, field, rule, reason, data }));
}

/** The newest misfits of the stream, and a button to decode all of them again. */
function Misfits({ name, total, compactor }) {
  const now = useClock();
  const { last, last_time: at } = compactor?.maintenance ?? {};
  const found = usePoll((signal) => (session.value.sql ? newestMisfits(name, signal) : null), 0, [name, total, at]);
  const [asked, setAsked] = useState(null);
  const [error, setError] = useState(null);
  const waits = asked && !(millis(at) > asked);
  const needs = `$LAKE.API.REPLAY.${name}`;
  const run = async () => {
    setError(null);
    try {
      await maintain(name, "REPLAY");
      setAsked(Date.now());
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<section class="section">
    <div class="section-head"><h2>Misfits</h2></div>
    <div class="toolbar">
      <span role="status">${found.data?.length === 0 ? "All misfits fit by now, or are gone."
        : `${counted(total, "message")} did not fit the schema.`}
        ${waits ? " Requested: the compactor decodes them again." : asked && html` <span class="quiet">${last}, ${
          ago(now - millis(at))} ago.</span>`}</span>
      <button class="button button-small push" type="button" disabled=${waits} onClick=${run}
        title=${mayPublish(needs) ? `Needs permission to publish to ${needs}`
          : `This user may not publish to ${needs}`}>Replay misfits</button>
    </div>
    <${Failed} error=${error ?? found.error} retry=${error ? undefined : found.refresh} />
    ${found.data?.length > 0 && html`<${Table} caption="Newest misfits" columns=${misfitColumns(name)} rows=${found.data}
      keyOf=${({ seq }) => seq} dense />`}
  </section>`;
}

/** The stream's Delta table: position, lag, files, small files, and the last commits. */
function LakeTable({ name, account }) {
  const load = (signal) => page("lakez", { stream: name, commits: COMMITS, ...(account ? { acc: account } : {}) },
    signal);
  const { data, error, loading, refresh } = usePoll(load, TABLE_REFRESH_MS, [name, account]);
  if (!data) return html`<${Failed} error=${error} retry=${refresh} />
    ${loading && html`<${Loading}>Reading the table…<//>`}`;
  const stream = (data.streams ?? []).find((each) => each.name === name);
  if (session.value.lake === false) return html`<${Empty} title="This server has no lake">
    <p>Messages stay in the log. Start the server with <code>--lake</code> to have them in Delta tables as well.</p>
      <//>`;
  if (!stream) return html`<${Empty} title="This stream has no table">
    <p>Streams in memory, archives and streams that opted out are not written to the lake.</p><//>`;
  const { table, commits = [] } = stream;
  const share = table?.files ? table.small_files / table.files : 0;
  const timed = commits.filter((each) => Number.isFinite(each.duration_ms));
  return html`<${Failed} error=${error} retry=${refresh} />
    ${stream.error && html`<${Warning}>${stream.error}<//><div class="section"></div>`}
    <${Figures} of=${[
      { title: "Position", value: compact(stream.position), under: table ? `log index; version ${count(table.version)}`
        : "not written yet" },
      { title: "Lag", value: stream.lag_msgs ? compact(stream.lag_msgs) : "none", under: stream.lag_msgs
        ? `oldest ${span(Math.round(stream.lag_seconds ?? 0))}` : undefined },
      table && { title: "Rows", value: compact(table.rows ?? NaN), under: bytes(table.bytes) },
      table && { title: "Files", value: count(table.files), under: table.files
        ? `${bytes(table.bytes / table.files)} each` : undefined },
      table && { title: "Small files", value: count(table.small_files), under: `${bytes(table.small_bytes)} to rewrite`,
        tone: share > 0.8 && table.small_files > 100 ? "warn" : undefined },
      { title: "Compactor", value: data.compactor?.alive ? "running" : "none", under: data.compactor?.batch
        ? `${counted(data.compactor.batch.segments, "segment")} in ${span(data.compactor.batch.seconds)}`
        : timed.length ? `last ${span(timed[0].duration_ms / 1000)}` : undefined, tone: data.compactor?.alive
          || !stream.lag_msgs
          ? undefined : "warn" },
    ]} />
    ${table && html`<${Maintenance} name=${name} compactor=${data.compactor} />`}
    <p class="quiet wrap section">
      ${data.url && html`The table is in <code>${data.url}</code>. `}Query it on the page <a
        href=${link("sql",
          { query: `SELECT * FROM delta.\`streams/${name}\` ORDER BY seq DESC LIMIT 100` })}>SQL</a>.</p>
    ${stream.misfits > 0 && html`<${Misfits} name=${name} total=${stream.misfits} compactor=${data.compactor} />`}
    <section class="section">
      <div class="section-head"><h2>Last commits</h2></div>
      ${commits.length
        ? html`<${Table} caption="Last commits" columns=${commitColumns(name)} rows=${commits}
          keyOf=${(row) => row.version} />`
          : html`<p
            class="quiet">Nothing was committed yet. The compactor writes a segment once it is sealed, after some
              seconds.</p>`}
    </section>`;
}

const DURATIONS = new Set(["max_age", "duplicate_window", "subject_delete_marker_ttl"]);

/** Return the text of a value of the configuration. */
function shown(key, value) {
  if (DURATIONS.has(key)) return value ? span(value / 1e9) : "no limit";
  if (/^max_/.test(key) && value === -1) return "no limit";
  if (/bytes|msg_size/.test(key)) return bytes(value);
  if (Array.isArray(value) && value.every((each) => typeof each === "string")) return value.join("  ");
  if (typeof value === "object") return html`<pre tabindex="0" role="region" aria-label=${key}>
    ${JSON.stringify(value, null, 2)}</pre>`;
  return String(value);
}

function Configuration({ stream }) {
  const [raw, setRaw] = useState(false);
  const text = JSON.stringify(stream.config, null, 2);
  const metadata = Object.entries(stream.config.metadata ?? {});
  const entries = Object.entries(stream.config).filter(([key]) => key !== "metadata");
  return html`<div class="toolbar">
      <div class="group" role="group" aria-label="Show the configuration as">
        <button class="button button-small" type="button" aria-pressed=${!raw}
          onClick=${() => setRaw(false)}>List</button>
        <button class="button button-small" type="button" aria-pressed=${raw}
          onClick=${() => setRaw(true)}>JSON</button>
      </div>
    </div>
    ${raw
      ? html`<pre class="payload" tabindex="0" role="region" aria-label="Configuration as JSON">${text}</pre>`
      : html`<div class="columns">
          <dl class="list">
            ${entries.map(([key, value]) => [html`<dt>${key.replaceAll("_", " ")}</dt>`,
              html`<dd>${shown(key, value)}</dd>`])}
              </dl>
          <div>
            <h2>Metadata</h2>
            ${metadata.length
              ? html`<dl class="list">
                ${metadata.map(([key, value]) => [html`<dt class="mono">${key}</dt>`,
                  html`<dd class="mono">${value}</dd>`])}
                  </dl>`
                : html`<p class="quiet">None.</p>`}
            <p class="quiet">Created ${time(stream.created, { fraction: false })}</p>
          </div>
        </div>`}`;
}
