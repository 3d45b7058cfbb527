/** SQL over the tables and the log's tail: a statement, its rows, and a plot of them. */

import { html, useMemo, useRef, useState } from "../../vendor/htm-preact.js";
import { session, sql } from "../lib/api.js";
import { candidates, common, wordBefore } from "../lib/completion.js";
import { compact, counted, span } from "../lib/format.js";
import { isOwn, samples } from "../lib/samples.js";
import { useStore } from "../lib/store.js";
import { Head } from "../parts/figures.js";
import { Empty, Failed, Loading, Warning } from "../parts/notes.js";
import { Pages } from "../parts/pages.js";
import { download } from "../parts/payload.js";
import { Plot } from "../parts/plot.js";

const SHOWN = 200;
const PLOTTED = 5000;
const KEPT = "lakestream.sql";
const OFFERED = 12;

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

/** The page; `query` of the route is a statement to begin with. */
export function Sql({ query }) {
  const { streams } = useStore(samples);
  const given = query.get("query");
  const [text, setText] = useState(() => given ?? sessionStorage.getItem(KEPT) ?? "");
  const [state, setState] = useState({ result: null, error: null, busy: false });
  const [view, setView] = useState("table");
  const [engine, setEngine] = useState("duckdb");
  const aborter = useRef(null);
  const run = async (statement) => {
    const asked = statement.trim().replace(/;\s*$/, "");
    if (!asked) return;
    aborter.current?.abort();
    aborter.current = new AbortController();
    const { signal } = aborter.current;
    setState((old) => ({ ...old, error: null, busy: true }));
    sessionStorage.setItem(KEPT, statement);
    try {
      const result = await sql(asked, { engine, signal });
      if (!signal.aborted) setState({ result: { ...result, number: Date.now() }, error: null, busy: false });
    } catch (error) {
      if (!signal.aborted) setState({ result: null, error, busy: false });
    }
  };
  const cancel = () => {
    aborter.current?.abort();
    setState((old) => ({ ...old, busy: false }));
  };
  const [offered, setOffered] = useState([]);
  const leaving = useRef(false);
  /** Complete the word before the cursor as far as it is clear, and show what it may become. */
  const complete = async (field) => {
    const [given, end] = [field.value, field.selectionStart];
    const found = await candidates(given.slice(0, end));
    if (field.value !== given || found.length === 0) return setOffered([]);
    const [start, next] = [end - wordBefore(given.slice(0, end)).length, common(found)];
    if (next.length >= end - start) field.setRangeText(next, start, end, "end");
    setOffered(found.length > 1 ? found : []);
    setText(field.value);
  };
  const keys = (event) => {
    const { target, key } = event;
    // Esc and then Tab leave the field, as Tab does without a word before it.
    const isPlain = !event.shiftKey && !event.ctrlKey && !event.altKey && target.selectionStart === target.selectionEnd;
    if (key === "Tab" && isPlain && !leaving.current && wordBefore(target.value.slice(0, target.selectionStart))) {
      event.preventDefault();
      complete(target);
    }
    leaving.current = key === "Escape";
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run(text);
    }
  };
  const { result, error, busy } = state;
  const submit = (event) => (event.preventDefault(), run(text));
  return html`<${Head} title="SQL">SQL as DuckDB or Spark has it, over the tables and the log’s tail: every acked message, read-only.<//>
    ${session.value.sql === false &&
      html`<${Warning}>This server cannot run SQL: it has no lake, or the extra is not installed. Run <code>pip
        install 'lakestream[lake]'</code> where it runs.<//>
        <div class="section"></div>`}
    <form class="editor" onSubmit=${submit}>
      <label class="sr" for="sql-text">Statement</label>
      <textarea id="sql-text" class="code" data-search rows="6" spellcheck="false" autocapitalize="none"
        placeholder="SELECT …" value=${text} onInput=${(event) => (setOffered([]), setText(event.target.value))} onKeyDown=${keys}>
        </textarea>
      ${offered.length > 0 && html`<p class="quiet" role="status"><code>
        ${offered.slice(0, OFFERED).join("  ")}${offered.length > OFFERED && " …"}</code></p>`}
      <div class="toolbar">
        <button class="button button-main" type="submit" disabled=${busy || !text.trim()}>Run</button>
        ${busy ? html`<button class="button" type="button" onClick=${cancel}>Cancel</button>`
          : html`<span class="quiet wide"><kbd>Ctrl</kbd> <kbd>Enter</kbd> runs, <kbd>Tab</kbd> completes</span>`}
        <label class="sr" for="sql-engine">Engine</label>
        <select id="sql-engine" class="push" value=${engine} onChange=${(event) => setEngine(event.target.value)}>
          <option value="duckdb">DuckDB</option>
          <option value="spark">Spark (committed)</option>
        </select>
        <label class="sr" for="sql-examples">Begin with an example</label>
        <select id="sql-examples" value="" onChange=${(event) => {
          const [, statement] = examples(streams)[Number(event.target.value)] ?? [];
          event.target.value = "";
          if (statement) setText(statement);
        }}>
          <option value="">Examples</option>
          ${examples(streams).map(([title], index) => html`<option value=${index}>${title}</option>`)}
        </select>
      </div>
    </form>
    <${Failed} error=${error} />
    ${busy && html`<${Loading}>Running… the first statement of a session takes some seconds.<//>`}
    ${result && html`<section class="section" aria-label="Result">
      <div class="section-head">
        <p role="status"><strong>
          ${counted(result.rows.length, "row")}</strong> <span class="soft">in ${span((result.elapsed_ms ?? 0) / 1000)}
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
    ${!result && !error && !busy &&
      html`<${Empty} title="Ask the lake">
        <p>Each stream is a table
          with <code>seq</code>, <code>time</code>, <code>subject</code>, <code>headers</code>, <code>data</code>
            and <code>json</code>.
            Choose an example above, or try:</p>
          <pre tabindex="0" role="region" aria-label="Example">${examples(streams)[0][1]}</pre><p>
            <button class="button" type="button" onClick=${() => {
      const [, statement] = examples(streams)[0];
      setText(statement);
      run(statement);
    }}>Run it</button></p><//>`}`;
}
