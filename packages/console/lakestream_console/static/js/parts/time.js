/** The slider over the past of a bucket: a moment, chosen by hand, by clock, or change by change. */

import { html } from "../../vendor/htm-preact.js";
import { localInput, time } from "../lib/format.js";
import { Draft } from "./dialog.js";

/**
 * The slider.
 *
 * `at` is the chosen moment in ms, null for now; `from` the earliest; `changes` the sorted times of known changes in
 * ms.
 */
export function TimeSlider({ at, from, changes, choose, what }) {
  const now = Date.now();
  const begin = Math.min(from, now - 1000);
  const value = at ?? now;
  const place = (moment) => ((moment - begin) / (now - begin)) * 100;
  const before = changes.filter((moment) => moment < value - (at === null ? 0 : 1)).at(-1);
  const after = changes.find((moment) => moment > value);
  const pick = (moment) => choose(moment === null || moment >= Date.now() - 500 ? null : Math.max(begin, moment));
  const ticks = changes.slice(-200).filter((moment) => moment >= begin);
  return html`<div class="time" data-past=${at !== null}>
    <div class="time-head">
      <span>${what}</span>
      <output for="time-slider">${at === null ? "now" : time(at)}</output>
      <div class="push">
        <div class="group" role="group" aria-label="Step through changes">
          <button class="button button-small" type="button" disabled=${before === undefined}
            onClick=${() => pick(before)}>Previous change</button>
          <button class="button button-small" type="button" disabled=${after === undefined}
            onClick=${() => pick(after)}>Next change</button>
        </div>
        <label class="sr" for="time-clock">Moment</label>
        <${Draft} id="time-clock" type="datetime-local" step="1" value=${localInput(value)}
          send=${(text) => text && pick(Date.parse(text))} />
        <button class="button button-small" type="button" disabled=${at === null}
          onClick=${() => choose(null)}>Now</button>
      </div>
    </div>
    <label class="sr" for="time-slider">Moment in the past of this bucket</label>
    <input id="time-slider" type="range" min=${begin} max=${now} step="1" value=${value}
      aria-valuetext=${at === null ? "now" : time(at)} onInput=${(event) => pick(Number(event.target.value))} />
    <div class="time-ticks" aria-hidden="true">
      ${ticks.map((moment) => html`<i style=${{ left: `${place(moment)}%` }}></i>`)}</div>
    <div class="time-ends"><span>${time(begin, { fraction: false })}</span><span>now</span></div>
  </div>`;
}
