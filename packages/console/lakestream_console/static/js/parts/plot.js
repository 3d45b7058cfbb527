/** Line plots over time or numbers, drawn by uPlot in the page's colours. */

import { html, useEffect, useRef } from "../../vendor/htm-preact.js";
import { createStore, useStore } from "../lib/store.js";
import { labels as labelled, stepsOf } from "../lib/units.js";

const HEIGHT = 180;

/** Counts changes of the colours, so that plots are drawn anew. */
const colours = createStore(0);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => colours.set(colours.value + 1));
new MutationObserver(() => colours.set(colours.value + 1)).observe(document.documentElement, {
  attributeFilter: ["data-theme"],
});

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function options({ series, kind, times, width, cursor, range }) {
  const axis = {
    stroke: colour("--ink-3"),
    font: `12px ${colour("--sans")}`,
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
  };
  const lines = series.map(({ label, sparse = true }, index) => ({
    label,
    stroke: colour(`--series-${(index % 4) + 1}`),
    width: 1.6,
    spanGaps: sparse,
    points: { show: sparse, size: 4, fill: colour(`--series-${(index % 4) + 1}`) },
  }));
  return {
    width,
    height: HEIGHT,
    padding: [8, 26, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    scales: { x: { time: times, ...(range && { range: () => range() }) }, y: { range: (plot, low, high) => [Math.min(0, low ?? 0),
      high > 0 ? high * 1.08 : kind === "count" ? 4 : 1] } }, // steps of whole messages where there are none
    series: [{}, ...lines],
    axes: [
      { ...axis, grid: { show: false }, size: 28, space: 90, ...(times ? { values: clock } : {}) },
      { ...axis, size: 62, gap: 6, space: 34, incrs: stepsOf(kind), values: (plot, ticks) => labelled(kind, ticks) },
    ],
    hooks: { setCursor: [cursor] },
  };
}

const two = (number) => String(number).padStart(2, "0");

/** Return labels of times: the clock, with seconds only where ticks are closer than a minute. */
function clock(plot, ticks, axis, space, step) {
  return ticks.map((value) => {
    const at = new Date(value * 1000);
    const day = step >= 86400 ? `${two(at.getMonth() + 1)}-${two(at.getDate())}` : "";
    const hours = `${two(at.getHours())}:${two(at.getMinutes())}`;
    return day || (step < 60 ? `${hours}:${two(at.getSeconds())}` : hours);
  });
}

/**
 * A plot with its title and key.
 *
 * `x` has the horizontal values (seconds since the epoch if `times`), `range` their first and last (else those of `x`),
 * `series` is [{label, values, sparse}], `kind` that of their values (units.js), `format` writes one. Lines of `sparse` series
 * join what is apart. The key shows the values under the pointer, else the last ones.
 */
export function Plot({ title, x, range, series, kind = "count", format, times = true, none = "Collecting the first figures…" }) {
  const box = useRef(null);
  const key = useRef(null);
  const plot = useRef(null);
  const turn = useStore(colours);
  const drawn = "uPlot" in globalThis; // it does not load in browsers whose language is no valid tag, as in the locale C
  const filled = drawn && x.length > 1 && series.some(({ values }) => values.some((value) => value !== null &&
    value !== undefined));
  const data = [x, ...series.map(({ values }) => values)];
  const current = useRef({});
  current.current = { data, format, range };
  const show = (index) => {
    const { data: all, format: write } = current.current;
    const at = index ?? all[0].findLastIndex((_, place) => all.slice(1).some((values) => (values[place] ?? null) !== null));
    key.current?.querySelectorAll("b").forEach((cell, number) => {
      const value = all[number + 1]?.[at];
      cell.textContent = value === null || value === undefined ? "–" : write(value);
    });
  };
  const labels = series.map(({ label }) => label).join("|");
  useEffect(() => {
    if (!filled) return undefined;
    const width = box.current.clientWidth;
    const shown = new globalThis.uPlot(
      options({ series, kind, times, width, cursor: (one) => show(one.cursor.idx),
        range: range && (() => current.current.range) }),
      data,
      box.current,
    );
    plot.current = shown;
    const resized = new ResizeObserver(() => shown.setSize({ width: box.current?.clientWidth || width,
      height: HEIGHT }));
    resized.observe(box.current);
    return () => {
      resized.disconnect();
      shown.destroy();
      plot.current = null;
    };
  }, [filled, turn, labels, times]);
  useEffect(() => {
    plot.current?.setData(data);
    show(plot.current?.cursor.idx);
  });
  return html`<figure class="plot" aria-label=${title}>
    <figcaption class="plot-head">
      <h2>${title}</h2>
      <div class="plot-key" ref=${key}>
        ${series.map(({ label }, index) =>
          html`<span key=${label}><i class=${`c${(index % 4) + 1}`}></i>${label} <b>–</b></span>`)}
      </div>
    </figcaption>
    ${filled ? html`<div class="plot-box" ref=${box} key="box"></div>`
      : html`<div class="plot-none" key="none">${drawn ? none : "This browser cannot draw the plot."}</div>`}
  </figure>`;
}
