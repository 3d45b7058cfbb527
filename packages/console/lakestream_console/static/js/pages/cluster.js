/** The cluster: nodes, Raft groups with roles, terms and lag, and replicas that move. */

import { html, useState } from "../../vendor/htm-preact.js";
import { page, session } from "../lib/api.js";
import { bytes, compact, count, elapsed, NONE, shortName } from "../lib/format.js";
import { stepDown, streamInfo } from "../lib/jetstream.js";
import { usePoll } from "../lib/poll.js";
import { streamsOf } from "../lib/samples.js";
import { Confirm } from "../parts/dialog.js";
import { Figures, Head } from "../parts/figures.js";
import { StreamName } from "../parts/names.js";
import { Empty, Failed, Loading, toast, Warning } from "../parts/notes.js";
import { Table } from "../parts/table.js";

const REFRESH_MS = 2000;
const GROUPS = 200;
const ASKED = 20;
const ASK_MS = 1000;

/** Load everything the page shows; pages that this user may not see are left out. */
async function load(signal) {
  const optional = (promise) => promise.catch((error) => (error.name === "AbortError" ||
    error.status === 0 ? Promise.reject(error) : null));
  const account = session.value?.account;
  const [varz, jsz, routez, meta, own] = await Promise.all([
    page("varz", {}, signal),
    page("jsz", { accounts: "true", streams: "true", config: "true", raft: "true" }, signal),
    session.value?.system ? optional(page("routez", {}, signal)) : null,
    optional(page("raftz", {}, signal)),
    account ? optional(page("raftz", { acc: account }, signal)) : null,
  ]);
  const groups = {};
  for (const answer of [meta, own]) for (const [name,
    found] of Object.entries(answer ?? {})) groups[name] = { ...groups[name], ...found };
  return { varz, jsz, routez, groups, streams: await asLed(streamsOf(jsz), varz.server_name, signal) };
}

/** Ask the leaders of streams that look late from this node: only a stream's leader knows how far its replicas are. */
async function asLed(streams, here, signal) {
  const account = session.value?.account;
  const doubtful = movesOf(streams).filter((stream) => stream.account === account && stream.cluster.leader !== here);
  const known = new Map();
  for (const stream of doubtful.slice(0, ASKED)) {
    const info = await streamInfo(stream.name, undefined, { signal, timeout: ASK_MS }).catch(() => null);
    if (info?.cluster) known.set(stream, { ...stream, cluster: info.cluster });
  }
  return streams.map((stream) => known.get(stream) ?? stream);
}

/** Return the nodes: this one, and those that it has routes to or shares Raft groups with. */
function nodesOf({ varz, jsz, routez, groups }) {
  const meta = jsz.meta_cluster ?? {};
  const nodes = new Map([[varz.server_name, { name: varz.server_name, self: true, current: true }]]);
  for (const { peers } of groupRows(groups)) {
    for (const { name } of Object.values(peers ?? {})) if (name && !nodes.has(name)) nodes.set(name, { name });
  }
  for (const each of meta.replicas ?? []) {
    if (each.name === varz.server_name) continue;
    // Only the leader knows how far the others are.
    const current = meta.leader === varz.server_name ? each.current : meta.leader === each.name || undefined;
    nodes.set(each.name, { ...each, current });
  }
  for (const route of routez?.routes ?? []) {
    const name = route.remote_name ?? route.name ?? route.remote_id;
    if (name && name !== varz.server_name) nodes.set(name, { ...nodes.get(name), name,
      route: nodes.get(name)?.route ?? route });
  }
  return [...nodes.values()].map((node) => {
    const connected = node.self || Boolean(node.route) || !routez;
    return { ...node, leader: meta.leader === node.name, offline: node.offline ?? !connected, seen: node.self ||
      Boolean(routez) };
  });
}

/** Return streams whose replicas are not as configured, or not all current. */
function movesOf(streams) {
  return streams.filter((stream) => {
    const replicas = stream.cluster?.replicas ?? [];
    const wanted = stream.config?.num_replicas ?? 1;
    return replicas.some((replica) => !replica.current || replica.offline) || (replicas.length > 0 &&
      replicas.length + 1 !== wanted);
  });
}

function Replica({ replica }) {
  const state = replica.offline ? "offline" : replica.current ? "" : replica.lag ? `${compact(replica.lag)} behind`
    : "catching up";
  return html`<span class=${`tag ${replica.offline ? "tag-bad" : replica.current ? ""
    : "tag-warn"}`}>${shortName(replica.name)}
    ${state && ` · ${state}`}</span>`;
}

const NODE_COLUMNS = [
  { title: "Node", by: (row) => row.name, cell: (row) =>
    html`<span class="name" title=${row.name}>${shortName(row.name)}</span>${row.self && html`<span
      class="under">this server</span>`}` },
  { title: "Role", cell: (row) =>
    (row.leader ? html`<span class="tag tag-good">meta leader</span>` : html`<span class="tag">follower</span>`) },
  { title: "State", cell: (row) =>
    (row.offline ? html`<span class="tag tag-bad">offline</span>` : row.current === false ? html`<span
      class="tag tag-warn">
      ${row.lag ? `${compact(row.lag)} behind` : "catching up"}</span>` : row.seen ? html`<span class="good">
        ${row.current ? "current" : "connected"}</span>` : html`<span class="quiet">${NONE}</span>`) },
  { title: "Round trip", num: true, wide: true, cell: (row) => elapsed(row.route?.rtt) },
  { title: "Sent to it", num: true, wide: true, cell: (row) =>
    bytes(row.route?.link?.out_bytes ?? row.route?.out_bytes ?? NaN) },
  { title: "From it", num: true, wide: true, cell: (row) =>
    bytes(row.route?.link?.in_bytes ?? row.route?.in_bytes ?? NaN) },
];

function groupRows(groups) {
  return Object.entries(groups).flatMap(([account, found]) => Object.entries(found).map(([name, group]) => ({ ...group,
    account, name })));
}

const behind = (group) => Math.max(0, ...Object.values(group.peers ?? {}).map((peer) => (peer.last_replicated_index === undefined ? 0 : group.pindex - peer.last_replicated_index)));

/**
 * Return true if the session may ask the leader of a group for another one: those of its account, or the meta group.
 */
const canStepDown = (row) => (row.name === "_meta_" ? session.value.system_account
  : row.stream && row.account === session.value.account);

const groupColumns = (stepDownOf) => [
  { title: "Group", by: (row) => row.name, cell: (row) =>
    html`<span class="name mono">${row.stream ?? row.name}</span><span class="under">${row.account}</span>` },
  { title: "Role here", by: (row) => row.state, cell: (row) =>
    html`<span class=${`tag ${row.state === "LEADER" ? "tag-good" : ""}`}>${row.state.toLowerCase()}</span>` },
  { title: "Term", num: true, by: (row) => row.term, cell: (row) => count(row.term) },
  { title: "Members", num: true, wide: true, cell: (row) =>
    html`${row.size}<span class="under">quorum ${row.quorum_needed}</span>` },
  { title: "Committed", num: true, wide: true, cell: (row) => compact(row.committed) },
  { title: "To apply", num: true, by: (row) => row.committed - row.applied, cell: (row) => count(Math.max(0,
    row.committed - row.applied)) },
  { title: "Match lag", num: true, by: behind, cell: (row) =>
    (row.state === "LEADER" ? html`<span class=${behind(row) > 1000 ? "warn" : ""}>${count(behind(row))}
      </span>` : html`<span class="quiet">${NONE}</span>`) },
  { title: html`<span class="sr">Actions</span>`, num: true, cell: (row) => canStepDown(row) &&
    html`<button class="button button-small" type="button"
      aria-label=${`Step down the leader of ${row.stream ?? row.name}`}
      onClick=${() => stepDownOf(row)}>Step down…</button>` },
];

/** The page. */
export function Cluster() {
  const { data, error, loading, refresh } = usePoll(load, REFRESH_MS, []);
  const [filter, setFilter] = useState("");
  const [led, setLed] = useState(null);
  if (!data) return html`<${Head} title="Cluster" /><${Failed} error=${error} retry=${refresh} />
    ${loading && html`<${Loading} />`}`;
  const { varz, jsz, groups } = data;
  const meta = jsz.meta_cluster;
  const { streams } = data;
  const byGroup = new Map(streams.filter((each) => each.cluster?.raft_group).map((each) => [each.cluster.raft_group,
    each.name]));
  const rows = groupRows(groups).map((row) => ({ ...row, stream: byGroup.get(row.name) }));
  const wanted = filter.trim().toLowerCase();
  const shown = rows.filter((row) => `${row.name} ${row.stream ?? ""} ${row.account}`.toLowerCase().includes(wanted));
  const replicated = streams.filter((each) => (each.config?.num_replicas ?? 1) > 1);
  const moves = movesOf(streams);
  const nodes = nodesOf(data);
  const late = nodes.filter((node) => node.offline);
  const alone = !meta && nodes.length === 1;
  if (alone) {
    return html`<${Head} title="Cluster">${shortName(varz.server_name)}<//>
      <${Figures} of=${[
        { title: "Nodes", value: "1", under: "a single server" },
        { title: "Streams", value: count(streams.length), under: "led here" },
        varz.mem !== undefined && { title: "Memory", value: bytes(varz.mem), under: `${varz.cores} cores` },
        { title: "Up", value: elapsed(varz.uptime) },
      ]} />
      <${Empty} title="This server runs alone">
        <p>Every message is on its disk before the ack. With two more nodes and <code>replicas: 3</code>, streams
          survive the failure of one node, and this page shows roles, terms and lag.</p>
          <pre tabindex="0" role="region" aria-label="Command">lakestream serve -js --cluster nats://0.0.0.0:6222 \\
  --routes nats://node-2:6222,nats://node-3:6222</pre><//>`;
  }
  return html`<${Head} title="Cluster">${varz.cluster?.name ?? meta?.name ?? ""}<//>
    <${Failed} error=${error} retry=${refresh} />
    ${late.length > 0 &&
      html`<${Warning}><strong>
        ${late.map((node) => shortName(node.name)).join(", ")} offline.</strong> Streams with a quorum on the other nodes continue.<//>
          <div class="section"></div>`}
    <${Figures} of=${[
      { title: "Nodes", value: count(meta?.cluster_size ?? nodes.length), under: late.length ? `${late.length} offline`
        : "all seen", tone: late.length ? "bad" : undefined },
      { title: "Meta leader", value: meta?.leader ? shortName(meta.leader) : "none", under: groups.$SYS?._meta_
        ? `term ${groups.$SYS._meta_.term}` : undefined, tone: meta && !meta.leader ? "bad" : undefined },
      { title: "Replicated streams", value: count(replicated.length), under: `of ${count(streams.length)} here` },
      { title: "Moving or behind", value: count(moves.length), tone: moves.length ? "warn" : undefined },
    ]} />
    <section class="section">
      <div class="section-head"><h2>Nodes</h2></div>
      <${Table} caption="Nodes" columns=${NODE_COLUMNS} rows=${nodes} keyOf=${(row) => row.name}
        sorted=${{ column: 0, down: false }} />
    </section>
    <section class="section">
      <div class="section-head"><h2>Moves and replicas behind</h2></div>
      ${moves.length
        ? html`<${Table} caption="Moves and replicas behind" rows=${moves}
          keyOf=${(row) => `${row.account}/${row.name}`} columns=${[
            { title: "Stream", cell: (row) => html`<${StreamName} stream=${row} />` },
            { title: "Leader", cell: (row) => (row.cluster.leader ? shortName(row.cluster.leader) : "") || html`<span
              class="tag tag-bad">none</span>` },
            { title: "Replicas", cell: (row) =>
              html`<span class="members">
                ${row.cluster.replicas.map((replica) => html`<${Replica} key=${replica.name} replica=${replica} />`)}
                  </span>` },
            { title: "Wanted", num: true, cell: (row) => count(row.config?.num_replicas ?? 1) },
          ]} />`
        : html`<p class="quiet">Every replica is in place and up to date.</p>`}
    </section>
    <section class="section">
      <div class="section-head"><h2>Raft groups on this node</h2>
        <div class="search"><label class="sr" for="groups-filter">Filter groups</label>
          <input id="groups-filter" type="search" data-search placeholder="Filter groups" value=${filter}
            onInput=${(event) => setFilter(event.target.value)} />
            </div>
      </div>
      ${shown.length
        ? html`<${Table} caption="Raft groups" columns=${groupColumns(setLed)} rows=${shown.slice(0, GROUPS)}
          keyOf=${(row) => `${row.account}/${row.name}`} />`
          : html`<p class="quiet">
            ${rows.length ? "No group matches." : "This account has no replicated streams on this node."}</p>`}
      ${shown.length > GROUPS && html`<p class="quiet">${count(shown.length - GROUPS)} more: filter to see them.</p>`}
    </section>
    ${led && html`<${Confirm} title=${`Step down the leader of ${led.stream ?? led.name}`}
      name=${led.stream ?? led.name}
      button="Step down" close=${() => setLed(null)}
      needs=${led.stream ? `$JS.API.STREAM.LEADER.STEPDOWN.${led.stream}` : "$JS.API.META.LEADER.STEPDOWN"}
        send=${async () => {
      await stepDown(led.stream);
      toast(`The leader of ${led.stream ?? led.name} hands over leadership.`);
      refresh();
    }}><p>Another member that has everything takes over within a moment. Clients go on; requests of that moment may be sent
      again.</p><//>`}`;
}
