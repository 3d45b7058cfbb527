/** The list of streams, and the dialog that creates one. */

import { html, useState } from "../../vendor/htm-preact.js";
import { session } from "../lib/api.js";
import { compact, count, NONE, shortName, span } from "../lib/format.js";
import { createStream } from "../lib/jetstream.js";
import { go, link } from "../lib/router.js";
import { refresh, samples } from "../lib/samples.js";
import { useStore } from "../lib/store.js";
import { inUnit, unitOf } from "../lib/units.js";
import { FormDialog } from "../parts/dialog.js";
import { Head, Updated } from "../parts/figures.js";
import { Icon } from "../parts/icons.js";
import { NoJetStream, StreamName } from "../parts/names.js";
import { Empty, Failed, Loading, toast } from "../parts/notes.js";
import { Table } from "../parts/table.js";
import { configOf, isComplete, NEW_STREAM, StreamFields } from "./stream_form.js";

const MAX_ROWS = 500;
const LATE_SECONDS = 120;

const pendingOf = (stream) => Math.max(0, ...(stream.consumer_detail ?? []).map((each) => each.num_pending));

/** Return a number to sort by the state of a table: none, empty, complete, then how far it is behind. */
const tableOrder = ({ lake, state }) => (!lake ? -3 : !state.messages ? -2 : lake.lag_msgs || -1);

/**
 * The state of a stream's table: none, in error, empty, complete, or how far it is behind; `late`: no compactor is at
 * work.
 */
function TableState({ stream: { lake, state }, late }) {
  if (!lake) return html`<span class="quiet">no table</span>`;
  if (lake.error) return html`<span class="tag tag-bad" title=${lake.error}>error</span>`;
  if (lake.lag_msgs) return html`<span class=${late || lake.lag_seconds > LATE_SECONDS ? "warn"
    : ""}>${compact(lake.lag_msgs)} behind</span>
    <span class="quiet"> ${span(Math.round(lake.lag_seconds))}</span>`;
  return state.messages ? html`<span class="good">complete</span>` : html`<span class="quiet">empty</span>`;
}

/** Return the columns; sizes are in one unit, that of the largest. */
function columnsOf(streams, several, late) {
  const { per, unit } = unitOf("bytes", Math.max(0, ...streams.map((each) => each.state.bytes)));
  return [
    { title: "Stream", by: (row) => row.name, cell: (row) => html`<${StreamName} stream=${row} />` },
    several && { title: "Account", by: (row) => row.account, cell: (row) => html`<span
      title=${row.account}>${shortName(row.account)}</span>` },
    { title: "Subjects", wide: true, cell: (row) => html`<span class="mono quiet clip">
      ${(row.config?.subjects ?? []).join(" ") || (row.config?.mirror ? `mirror of ${row.config.mirror.name}`
        : "")}</span>` },
    { title: "Stored, msg/s", num: true, wide: true, by: (row) => row.rate, cell: (row) => inUnit(row.rate ?? NaN, 1) },
    { title: "Messages", num: true, by: (row) => row.state.messages, cell: (row) => count(row.state.messages) },
    { title: `Size, ${unit}`, num: true, wide: true, by: (row) => row.state.bytes,
      cell: (row) => inUnit(row.state.bytes, per) },
    { title: "Consumers", num: true, wide: true, by: (row) => row.state.consumer_count, cell: (row) =>
      count(row.state.consumer_count) },
    { title: "Most pending", num: true, roomy: true, by: pendingOf, cell: (row) =>
      (row.state.consumer_count ? count(pendingOf(row)) : html`<span class="quiet">${NONE}</span>`) },
    { title: "Table", by: tableOrder, cell: (row) => html`<span class="nowrap"><${TableState} stream=${row}
      late=${late} /></span>` },
  ].filter(Boolean);
}

/** The page. */
export function Streams() {
  const { streams, varz, error, received } = useStore(samples);
  const [filter, setFilter] = useState("");
  const [creating, setCreating] = useState(false);
  const [kind, setKind] = useState("streams");
  const wanted = filter.trim().toLowerCase();
  const plain = (stream) => !/^(KV|OBJ)_/.test(stream.name);
  const rows = (streams ?? []).filter(
    (each) => (kind === "all" || plain(each)) && (!wanted || each.name.toLowerCase().includes(wanted) ||
      (each.config?.subjects ?? []).some((subject) => subject.toLowerCase().includes(wanted))),
  );
  const several = new Set((streams ?? []).map((each) => each.account)).size > 1;
  const columns = columnsOf(rows, several, varz?.lake?.compactor?.alive === false);
  const stores = session.value.jetstream !== false;
  const create = stores && html`<button class="button button-main" type="button" onClick=${() => setCreating(true)}>
    <${Icon} name="plus" /> Create stream</button>`;
  if (!stores && streams?.length === 0) return html`<${Head} title="Streams" /><${NoJetStream} />`;
  return html`<${Head} title="Streams" tools=${create} />
    <div class="toolbar">
      <div class="search">
        <label class="sr" for="streams-filter">Filter by name or subject</label>
        <input id="streams-filter" type="search" data-search placeholder="Filter by name or subject" value=${filter}
          onInput=${(event) => setFilter(event.target.value)} />
      </div>
      <div class="group" role="group" aria-label="Which streams">
        <button class="button" type="button" aria-pressed=${kind === "streams"}
          onClick=${() => setKind("streams")}>Streams</button>
        <button class="button" type="button" aria-pressed=${kind === "all"}
          onClick=${() => setKind("all")}>With buckets</button>
      </div>
      <span class="push"><${Updated} at=${received} /></span>
    </div>
    ${error && !streams && html`<${Failed} error=${error} />`}
    ${!streams && !error && html`<${Loading} />`}
    ${rows.length > 0 &&
      html`<${Table} dense caption="Streams" columns=${columns} rows=${rows.slice(0, MAX_ROWS)}
        keyOf=${(row) => `${row.account}/${row.name}`} sorted=${{ column: 0, down: false }} />`}
    ${rows.length > MAX_ROWS && html`<p class="quiet">${count(rows.length - MAX_ROWS)} more: filter to see them.</p>`}
    ${streams && !rows.length && (wanted
      ? html`<${Empty} title="No stream matches"><p>No name and no subject contains “${filter}”.</p><//>`
      : html`<${Empty} title="No streams yet">
        <p>A stream stores the messages of its subjects. Publishers get an ack once a message is on disk, and the
          compactor moves it into a Delta table.</p>
          ${create}<//>`)}
    ${creating && html`<${CreateStream} close=${() => setCreating(false)} />`}`;
}

function CreateStream({ close }) {
  const [values, set] = useState(NEW_STREAM);
  const send = async () => {
    await createStream({ ...configOf(values), allow_direct: true });
    toast(`Stream ${values.name} was created.`);
    await refresh();
    go(link("streams", values.name));
  };
  return html`<${FormDialog} title="Create a stream" button="Create stream" close=${close} send=${send}
    needs=${`$JS.API.STREAM.CREATE.${values.name || "*"}`} ready=${isComplete(values)}>
    <${StreamFields} values=${values} set=${set} />
  <//>`;
}
