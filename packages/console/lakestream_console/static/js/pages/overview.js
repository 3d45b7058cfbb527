/** The overview: traffic, latencies, and what wants attention. */

import { html } from "../../vendor/htm-preact.js";
import { session } from "../lib/api.js";
import { bytes, compact, count, counted, elapsed, millis, NONE, rate, shortName, span, time } from "../lib/format.js";
import { link } from "../lib/router.js";
import { samples } from "../lib/samples.js";
import { useStore } from "../lib/store.js";
import { Figures, Head, Updated } from "../parts/figures.js";
import { History } from "../parts/history.js";
import { StreamName } from "../parts/names.js";
import { Empty, Failed, Loading, Warning } from "../parts/notes.js";
import { Table } from "../parts/table.js";

const LAG_SECONDS = 120;
const BUSIEST = 8;

/** Return the warnings of a sample as [{key, text}]. */
function warningsOf({ varz, streams }) {
  const found = [];
  const add = (key, text) => found.push({ key, text });
  const lake = varz.lake;
  const waiting = Object.values(lake?.lag ?? {}).reduce((sum, lag) => sum + lag, 0);
  if (lake && !lake.compactor?.alive && waiting > 0) {
    add("compactor",
      html`<strong>No compactor is running.</strong> ${counted(waiting, "message")} not in the tables yet, but safe
        in the log. Start <code>lakestream up</code>, or run <code>lakestream compact</code>.`);
  }
  for (const [name, text] of Object.entries(lake?.errors ?? {})) add(`error-${name}`,
    html`<strong>${name}</strong>: ${text}`);
  for (const stream of streams ?? []) {
    if (stream.lake?.lag_seconds > LAG_SECONDS && lake.compactor?.alive) add(`lag-${stream.account}/${stream.name}`,
      html`<${StreamName} stream=${stream} tab="table" />: the table is ${span(stream.lake.lag_seconds)} behind.`);
  }
  if (varz.slow_consumers > 0) add("slow",
    html`<strong>
      ${counted(varz.slow_consumers, "slow consumer")}</strong> disconnected since the server started:
        not reading fast enough.`);
  for (const stream of streams ?? []) {
    const late = (stream.cluster?.replicas ?? []).filter((replica) => replica.offline);
    if (late.length) add(`offline-${stream.name}`,
      html`<${StreamName} stream=${stream} />: ${late.map(({ name }) => name).join(", ")} offline.`);
  }
  return found;
}

const BUSY_COLUMNS = [
  { title: "Stream", cell: (row) => html`<${StreamName} stream=${row} />` },
  { title: "Stored, msg/s", num: true, cell: (row) => compact(Math.round(row.rate ?? NaN)) },
  { title: "Messages", num: true, cell: (row) => compact(row.state.messages) },
];

const plots = (plot, some, data) => html`
  ${plot("Messages per second", "count", compact, [["stored", "stored"], ["in", "in"], ["out", "out"]])}
  ${data && !("ack50" in data.series) ? null : plot("Time to the ack", "time", span,
    [["p50", "ack50", true], ["p99", "ack99", true], ["fsync p99", "sync99", true]],
    "Latencies appear here once messages are stored.")}
  ${plot("Bytes per second", "bytes", bytes, [["in", "in_bytes"], ["out", "out_bytes"]])}
  ${some("lag_seconds") && plot("Table lag", "time", span, [["oldest message", "lag_seconds"]])}
  ${some("memory") && plot("Memory", "bytes", bytes, [["of the server", "memory"]])}
  ${some("cpu") && plot("CPU", "percent", (value) => `${Math.round(value)} %`, [["of one core", "cpu"]])}`;

/** The page. */
export function Overview() {
  const sample = useStore(samples);
  const { varz, now, streams, error, received } = sample;
  const head = html`<${Head} title="Overview" tools=${html`<${Updated} at=${received} />`}>
    <span title=${session.value.server}>${shortName(session.value.server)}</span> · lakestream ${session.value.version}
    ${varz && ` · up ${elapsed(varz.uptime)}`}<//>`;
  if (!varz) return html`${head}${error ? html`<${Failed} error=${error} />` : html`<${Loading} />`}`;
  const warnings = warningsOf(sample);
  const total = (of) => (streams ?? []).reduce((sum, each) => sum + of(each), 0);
  const lags = Object.values(varz.lake?.lag_seconds ?? {});
  const started = millis(varz.start);
  const busy = [...(streams ?? [])].filter((each) => each.rate > 0).sort((one, other) => other.rate - one.rate).slice(0,
    BUSIEST);
  const pending = (streams ?? [])
    .flatMap((stream) => (stream.consumer_detail ?? []).map((each) => ({ ...each, stream })))
    .filter((each) => each.num_pending + each.num_ack_pending > 0)
    .sort((one, other) => other.num_pending - one.num_pending)
    .slice(0, BUSIEST);
  const figures = [
    { title: "Stored", value: rate(now.stored ?? NaN),
      under: counted(total((each) => each.state.messages), "message", compact) },
    { title: "Delivered", value: rate(now.out ?? NaN), under: `${rate(now.in ?? NaN)} in` },
    { title: "Streams", value: count(streams?.length ?? 0), under: bytes(total((each) => each.state.bytes)) },
    { title: "Connections", value: count(varz.connections),
      under: varz.total_connections === undefined ? undefined
        : `${count(varz.total_connections)} since ${time(started).split(" ")[0]}` },
    varz.lake && { title: "Table lag", value: lags.length ? span(Math.max(...lags)) : NONE,
      under: varz.lake.compactor?.batch ? `batch ${count(varz.lake.compactor.batch.batch)} took ${span(
        varz.lake.compactor.batch.seconds)}` : varz.lake.compactor?.alive ? "compactor is running"
        : varz.lake.compactor?.starting ? "compactor is starting" : "no compactor",
      tone: Math.max(0,
        ...lags) > LAG_SECONDS ? "warn" : undefined },
    varz.mem !== undefined && { title: "Memory", value: bytes(varz.mem), under: `${varz.cores} cores` },
  ];
  return html`${head}
    ${warnings.length > 0 &&
      html`<section class="warnings" aria-label="Needs attention">
        ${warnings.slice(0, 6).map(({ key, text }) => html`<${Warning} key=${key}>${text}<//>`)}
          ${warnings.length > 6 && html`<p class="quiet">and ${warnings.length - 6} more</p>`}</section>
            <div class="section"></div>`}
    <${Figures} of=${figures} />
    <div class="section columns">
      <section>
        <div class="section-head"><h2>Busiest streams</h2><a href=${link("streams")}>All streams</a></div>
        ${busy.length
          ? html`<${Table} caption="Busiest streams" columns=${BUSY_COLUMNS} rows=${busy}
            keyOf=${(row) => `${row.account}/${row.name}`} />`
            : html`<p class="quiet">No stream is being written to right now.</p>`}
      </section>
      <section>
        <div class="section-head"><h2>Consumers behind</h2></div>
        ${pending.length
          ? html`<${Table}
              caption="Consumers behind"
              keyOf=${(row) => `${row.stream.account}/${row.stream.name}/${row.name}`}
              rows=${pending}
              columns=${[
                { title: "Consumer", cell: (row) =>
                  html`<span class="name">${row.name}</span>
                    <span class="under"><${StreamName} stream=${row.stream} tab="consumers" /></span>` },
                { title: "Pending", num: true, cell: (row) => count(row.num_pending) },
                { title: "Unacked", num: true, cell: (row) => count(row.num_ack_pending) },
              ]}
            />`
          : html`<p class="quiet">Every consumer is up to date.</p>`}
      </section>
    </div>
    <${History} plots=${plots} />
    ${streams?.length === 0 &&
    html`<${Empty} title="This account has no streams yet">
      <p>Create one on the page <a href=${link("streams")}>Streams</a>, or from a terminal:</p>
      <pre tabindex="0" role="region" aria-label="Command">nats stream add ORDERS --subjects 'orders.>' --defaults</pre>
    <//>`}`;
}
