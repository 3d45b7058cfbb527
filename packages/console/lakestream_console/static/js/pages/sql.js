/** SQL over the tables and the log's tail: a statement, its rows, and a plot of them. */

import { html, useEffect, useMemo, useRef, useState } from "../../vendor/htm-preact.js";
import { session } from "../lib/api.js";
import { ago, compact, counted, span, time } from "../lib/format.js";
import { go, link } from "../lib/router.js";
import { isOwn, samples } from "../lib/samples.js";
import { cancel, forget, past, run, setEngine, setText, statement, takeUp } from "../lib/statements.js";
import { useClock, useStore } from "../lib/store.js";
import { Editor } from "../parts/editor.js";
import { Head } from "../parts/figures.js";
import { Empty, Failed, toast, Warning } from "../parts/notes.js";
import { Pages } from "../parts/pages.js";
import { download } from "../parts/payload.js";
import { Plot } from "../parts/plot.js";
import { Tables } from "../parts/tables.js";

const SHOWN = 200;
const PLOTTED = 5000;
const ENGINES = { duckdb: "DuckDB", spark: "Spark (committed)" };

/** Return statements to begin with, for the stream with the most messages. */
function examples(streams) {
  const plain = (streams ?? []).filter((each) => isOwn(each) && each.state.messages && !/^(KV|OBJ)_/.test(each.name));
  const name = plain.sort((one, other) => other.state.messages - one.state.messages)[0]?.name ?? "ORDERS";
  const table = /^[A-Za-z_][A-Za-z0-9_]*$/.test(name) ? name : `"${name}"`;
  return [
    ["Newest messages",
      `SELECT seq, time, subject, text(data) AS data\nFROM ${table}\nORDER BY seq DESC\nLIMIT 50`],
    ["Messages by minute",
      `SELECT date_trunc('minute', time) AS minute, count(*) AS messages\nFROM ${table}\nGROUP BY 1\nORDER BY 1`],
    ["Messages by subject",
      `SELECT subject, count(*) AS messages, sum(octet_length(data)) AS bytes\nFROM ${table}\nGROUP BY subject\nORDER BY messages DESC\nLIMIT 100`],
    ["Tables", "SHOW TABLES"],
  ];
}

const isNumber = (value) => typeof value === "number" || typeof value === "bigint";
const isTime = (type) => /timestamp|date/i.test(type);

/** Return a value of a cell as text. */
function written(value) {
  if (value === null || value === undefined) return null;
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Return rows as CSV, quoted where needed. */
function csv({ columns, rows }) {
  const quoted = (value) => {
    const text = written(value) ?? "";
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns.map(({ name }) => quoted(name)), ...rows.map((row) => row.map(quoted))].map((row) =>
    row.join(",")).join("\n");
}

/** Return the seconds of a time that came without a zone: it is UTC. */
const instant = (value) => Date.parse(/[zZ]|[+-]\d\d:?\d\d$/.test(value) ? value : `${String(value).replace(" ",
  "T")}Z`) / 1000;

/** Return the columns that can be the horizontal axis, and those that can be drawn. */
function plottable({ columns, rows }) {
  const numbers = columns.map((column, at) => at).filter((at) => rows.some((row) => isNumber(row[at])) &&
    rows.every((row) => row[at] === null || isNumber(row[at])));
  const times = columns.map((column, at) => at).filter((at) => isTime(columns[at].type));
  return { axes: [...times, ...numbers], values: numbers, times: new Set(times) };
}

function ResultPlot({ result }) {
  const { axes, values, times } = useMemo(() => plottable(result), [result]);
  const [axis, setAxis] = useState(axes[0]);
  const [chosen, setChosen] = useState(null);
  const drawn = (chosen === null ? values.filter((at) => at !== axis).slice(0, 4) : [chosen]).filter((at) =>
    at !== axis);
  if (axes.length === 0 || values.filter((at) => at !== axis).length === 0) {
    return html`<${Empty} title="Nothing to plot">
      <p>A plot needs a column of times or numbers for the axis, and another with numbers. Try <em>Messages by
        minute</em>.</p>
        <//>`;
  }
  const rows = result.rows.slice(0, PLOTTED).filter((row) => row[axis] !== null);
  const at = (row) => (times.has(axis) ? instant(row[axis]) : Number(row[axis]));
  const sorted = [...rows].sort((one, other) => at(one) - at(other));
  const name = (index) => result.columns[index].name;
  const options = (list) => list.map((index) => html`<option value=${index}>${name(index)}</option>`);
  return html`<div class="toolbar">
      <div class="field"><label for="plot-axis">Axis</label>
        <select id="plot-axis" value=${axis} onChange=${(event) => setAxis(Number(event.target.value))}>${options(axes)}
          </select></div>
      <div class="field"><label for="plot-value">Values</label>
        <select id="plot-value" value=${chosen ?? ""}
          onChange=${(event) => setChosen(event.target.value === "" ? null : Number(event.target.value))}>
          <option value="">All numbers</option>${options(values)}</select></div>
    </div>
    <${Plot} title=${`${drawn.map(name).join(", ")} by ${name(axis)}`} x=${sorted.map(at)} times=${times.has(axis)}
      kind="count" format=${compact} none="No rows to plot."
        series=${drawn.map((index) => ({ label: name(index), values: sorted.map((row) => (row[index] === null ? null
          : Number(row[index]))) }))} />`;
}

function ResultTable({ result }) {
  const [page, setPage] = useState(0);
  const { columns, rows } = result;
  const shown = rows.slice(page * SHOWN, (page + 1) * SHOWN);
  const numeric = columns.map((column, at) => shown.some((row) => isNumber(row[at])));
  return html`<div class="scroll result" role="region" aria-label="Rows" tabindex="0">
      <table>
        <caption class="sr">Rows of the result</caption>
        <thead><tr>
          ${columns.map((column, at) =>
            html`<th scope="col" class=${numeric[at] ? "num" : ""}>${column.name}<span class="under">
              ${column.type.toLowerCase()}</span></th>`)}
            </tr></thead>
        <tbody>${shown.map((row, index) => html`<tr key=${index}>${row.map((value, at) => {
          const text = written(value);
          return html`<td class=${numeric[at] ? "num" : ""} title=${text?.length > 60 ? text : undefined}>
            ${text === null ? html`<span class="null">null</span>` : text}</td>`;
        })}</tr>`)}</tbody>
      </table>
    </div>
    <${Pages} what="rows" total=${rows.length} page=${page} size=${SHOWN} show=${setPage} />`;
}

/** How long the statement has run, and the button that stops it. */
function Running({ began }) {
  const now = useClock();
  return html`<button class="button" type="button" onClick=${cancel}>Cancel</button>
    <span class="quiet" role="timer">running for ${ago(now - began)}${now - began > 3000 &&
      "; the first statement of a session takes some seconds"}</span>`;
}

/** Statements that were run before. */
function Past({ entries }) {
  if (!entries.length) return html`<p class="quiet">Statements that you run are listed here, in this browser.</p>`;
  return html`<ol class="past">
    ${entries.map((each) => html`<li key=${each.at}>
      <button class="row-button" type="button" onClick=${() => (setText(each.statement), setEngine(each.engine))}>
        <code>${each.statement}</code></button>
      <span class="under quiet">${time(each.at, { fraction: false })} · ${each.failed ? html`<span
        class="bad">failed</span>`
        : counted(each.rows, "row")} in ${span(each.took / 1000)}${each.engine === "spark" && " · Spark"}</span>
    </li>`)}
  </ol>
  <button class="button button-small" type="button" onClick=${forget}>Forget them</button>`;
}

/** The page; `query` of the route is a statement to begin with. */
export function Sql({ query }) {
  takeUp();
  const { streams } = useStore(samples);
  const { text, engine, running, result, error } = useStore(statement);
  const entries = useStore(past);
  const [view, setView] = useState("table");
  const [pane, setPane] = useState("tables");
  const insert = useRef(() => {});
  const given = query.get("query");
  useEffect(() => {
    if (given && !statement.value.running) {
      setText(given);
      if (query.get("engine") in ENGINES) setEngine(query.get("engine"));
    }
  }, [given]);
  const submit = (event) => (event?.preventDefault(), run(text));
  const share = async () => {
    go(link("sql", { query: text, engine: engine === "duckdb" ? "" : engine }), { replace: true });
    try {
      await navigator.clipboard.writeText(location.href);
      toast("The link to this statement was copied.");
    } catch {
      toast("The address of this page is now the link to this statement."); // no clipboard without https
    }
  };
  const example = (title) => examples(streams).find(([each]) => each === title)[1];
  return html`<${Head} title="SQL">Every acked message, in the tables or still in the log; read-only.<//>
    ${session.value.sql === false &&
      html`<${Warning}>This server cannot run SQL: it has no lake, or the extra is not installed. Run <code>pip
        install 'lakestream-server[lake]'</code> where it runs.<//>
        <div class="section"></div>`}
    <div class="workbench">
      <aside class="pane" aria-label="Tables and history">
        <div class="group" role="group" aria-label="Show">
          ${[["tables", "Tables"], ["past", "History"]].map(([value, title]) => html`<button class="button button-small"
            type="button" aria-pressed=${pane === value} onClick=${() => setPane(value)}>${title}</button>`)}
        </div>
        ${pane === "tables" ? html`<${Tables} streams=${streams} insert=${(word) => insert.current(word)} />`
          : html`<${Past} entries=${entries} />`}
      </aside>
      <div class="work">
        <form class="editor" onSubmit=${submit}>
          <${Editor} id="sql-text" label="Statement" value=${text} change=${setText} submit=${submit}
            insert=${insert} />
          <div class="toolbar">
            ${running ? html`<${Running} began=${running.began} />`
              : html`<button class="button button-main" type="submit" disabled=${!text.trim()}>Run</button>
                <span class="quiet wide"><kbd>Ctrl</kbd> <kbd>Enter</kbd> runs, <kbd>Tab</kbd> completes</span>`}
            <label class="sr" for="sql-engine">Engine</label>
            <select id="sql-engine" class="push" value=${engine} onChange=${(event) => setEngine(event.target.value)}>
              ${Object.entries(ENGINES).map(([value, title]) => html`<option value=${value}>${title}</option>`)}
            </select>
            <label class="sr" for="sql-examples">Begin with an example</label>
            <select id="sql-examples" value="" onChange=${(event) => {
              const title = event.target.value;
              event.target.value = "";
              if (title) setText(example(title));
            }}>
              <option value="">Examples</option>
              ${examples(streams).map(([title]) => html`<option value=${title}>${title}</option>`)}
            </select>
            <button class="button" type="button" disabled=${!text.trim()} onClick=${share}>Share</button>
          </div>
        </form>
        <div class="sql-error"><${Failed} error=${error} /></div>
        ${result && html`<section class="section" aria-label="Result" data-old=${Boolean(running)}>
          <div class="section-head">
            <p role="status"><strong>
              ${counted(result.rows.length, "row")}</strong> <span
                class="soft">in ${span((result.elapsed_ms ?? 0) / 1000)}
                ${result.truncated && " · more rows exist: only the first are shown"}</span></p>
            <div class="head-tools">
              <div class="group" role="group" aria-label="Show the result as">
                <button class="button button-small" type="button" aria-pressed=${view === "table"}
                  onClick=${() => setView("table")}>Table</button>
                <button class="button button-small" type="button" aria-pressed=${view === "plot"}
                  onClick=${() => setView("plot")}>Plot</button>
              </div>
              <button class="button button-small" type="button"
                onClick=${() => download(csv(result), "result.csv", "text/csv")}>CSV</button>
            </div>
          </div>
          ${view === "table" ? html`<${ResultTable} key=${result.number} result=${result} />`
            : html`<${ResultPlot} key=${result.number} result=${result} />`}
        </section>`}
        ${!result && !error && !running &&
          html`<${Empty} title="Ask the lake">
            <p>Each stream is a table with <code>seq</code>, <code>time</code>, <code>subject</code>, <code>headers</code>, <code>data</code> and <code>json</code>. Choose an example above, or try:</p>
            <pre tabindex="0" role="region" aria-label="Example">${example("Newest messages")}</pre><p>
              <button class="button" type="button" onClick=${() => run(example("Newest messages"))}>Run it</button></p><//>`}
      </div>
    </div>`;
}
