/** The clients that are connected, and those that were. */

import { html, useState } from "../../vendor/htm-preact.js";
import { page, session } from "../lib/api.js";
import { bytes, compact, count, elapsed, NONE, time } from "../lib/format.js";
import { kick } from "../lib/jetstream.js";
import { usePoll } from "../lib/poll.js";
import { Confirm } from "../parts/dialog.js";
import { Head } from "../parts/figures.js";
import { Empty, Failed, Loading, toast } from "../parts/notes.js";
import { Table } from "../parts/table.js";

const SORTS = [["cid", "Newest id"], ["msgs_from", "Messages from"], ["msgs_to", "Messages to"], ["bytes_to",
  "Bytes to"], ["pending", "Unsent bytes"], ["subs", "Subscriptions"], ["rtt", "Round trip"]];
const LIMIT = 200;

const columns = (closed, kicked) => [
  { title: "Client", by: (row) => row.name ?? "", cell: (row) =>
    html`<span class="name">${row.name || `connection ${row.cid}`}</span><span class="under">
      ${[row.authorized_user, row.account, row.lang && `${row.lang} ${row.version ?? ""}`].filter(Boolean).join(" · ")}
        </span>` },
  { title: "Address", wide: true, cell: (row) =>
    html`<span class="mono">${row.ip ? `${row.ip}:${row.port}` : NONE}</span><span class="under">id ${row.cid}
      ${row.tls_version ? ` · TLS ${row.tls_version}` : ""}</span>` },
  { title: "From", num: true, by: (row) => row.in_msgs, cell: (row) =>
    html`${compact(row.in_msgs)}<span class="under">${bytes(row.in_bytes)}</span>` },
  { title: "To", num: true, by: (row) => row.out_msgs, cell: (row) =>
    html`${compact(row.out_msgs)}<span class="under">${bytes(row.out_bytes)}</span>` },
  { title: "Subs", num: true, wide: true, by: (row) => row.subscriptions, cell: (row) => count(row.subscriptions) },
  closed
    ? { title: "Closed", cell: (row) =>
      html`${time(row.stop, { fraction: false })}<span class="under">${row.reason}</span>` }
    : { title: "Unsent", num: true, by: (row) => row.pending_bytes, cell: (row) =>
      html`<span class=${row.pending_bytes > 1048576 ? "warn" : ""}>${bytes(row.pending_bytes)}</span>` },
  !closed && { title: "Round trip", num: true, wide: true, cell: (row) => elapsed(row.rtt) },
  { title: "Up", num: true, wide: true, cell: (row) => elapsed(row.uptime) },
  kicked && !closed && { title: html`<span class="sr">Actions</span>`, num: true, cell: (row) =>
    html`<button class="button button-small button-bad" type="button" aria-label=${`Kick connection ${row.cid}`}
      onClick=${() => kicked(row)}>Kick…</button>` },
].filter(Boolean);

/** The page. */
export function Connections() {
  const [state, setState] = useState("open");
  const [sort, setSort] = useState("cid");
  const { data, error, loading, refresh } = usePoll((signal) => page("connz", { state,
    sort: state === "closed" ? "stop" : sort, auth: "true", limit: LIMIT }, signal), 3000, [state, sort]);
  const rows = data?.connections ?? [];
  const [kicked, setKicked] = useState(null);
  const mayKick = session.value.system_account;
  return html`<${Head} title="Connections">${data && `${count(data.total)} ${state}`}<//>
    <div class="toolbar">
      <div class="group" role="group" aria-label="Which connections">
        ${[["open", "Open"], ["closed", "Closed"]].map(([value, text]) =>
          html`<button class="button" type="button" aria-pressed=${state === value} onClick=${() => setState(value)}>
            ${text}</button>`)}
      </div>
      ${state === "open" && html`<label class="sr" for="connections-sort">Sort by</label>
        <select id="connections-sort" value=${sort} onChange=${(event) => setSort(event.target.value)}>
          ${SORTS.map(([value, text]) => html`<option value=${value}>${text}</option>`)}
        </select>`}
      ${!mayKick && html`<span class="quiet">A user of the system account can close connections here.</span>`}
    </div>
    <${Failed} error=${error} retry=${refresh} />
    ${loading && !data && html`<${Loading} />`}
    ${rows.length > 0 &&
      html`<${Table} caption="Connections" columns=${columns(state === "closed", mayKick && setKicked)} rows=${rows}
        keyOf=${(row) => row.cid}
        key=${state} />`}
    ${data && data.total > rows.length &&
      html`<p class="quiet">The first ${count(rows.length)} of ${count(data.total)} are shown.</p>`}
    ${data && !rows.length &&
      html`<${Empty} title=${state === "open" ? "Nobody is connected" : "No closed connections"}><p>
        ${state === "open" ? "Clients of this account appear here while they are connected."
          : "The last clients that disconnected appear here, with the reason."}
          </p><//>`}
    ${kicked && html`<${Confirm} title=${`Close connection ${kicked.cid}`} name=${String(kicked.cid)} button="Kick"
      needs=${`$SYS.REQ.SERVER.${data.server_id}.KICK`} close=${() => setKicked(null)} send=${async () => {
      await kick(data.server_id, kicked.cid);
      toast(`Connection ${kicked.cid} is closed.`);
      refresh();
    }}><p>The server closes the connection of ${kicked.name || "this client"}${kicked.ip
      && ` at ${kicked.ip}:${kicked.port}`}.
      Most clients connect again by themselves.</p><//>`}`;
}
