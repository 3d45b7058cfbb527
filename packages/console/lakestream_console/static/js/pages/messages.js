/** The messages of a stream, by sequence, time and subject, from log or table alike. */

import { html, useEffect, useRef, useState } from "../../vendor/htm-preact.js";
import { session } from "../lib/api.js";
import { count, localInput } from "../lib/format.js";
import { deleteMessage } from "../lib/jetstream.js";
import { browse, PAGE, search } from "../lib/messages.js";
import { usePoll } from "../lib/poll.js";
import { go, link } from "../lib/router.js";
import { Confirm, Draft } from "../parts/dialog.js";
import { Message } from "../parts/message.js";
import { Empty, Failed, Loading, toast } from "../parts/notes.js";
import { PublishDialog } from "./publish.js";

/** The tab; the place, the filter and whether new messages are followed are in the address. */
export function Messages({ info, query, changed }) {
  const name = info.config.name;
  const filter = query.get("subject") ?? "";
  const found = query.get("search") ?? "";
  const place = { seq: Number(query.get("seq")) || 0, time: query.get("time") ?? "",
    before: Number(query.get("before")) || 0 };
  const following = !place.seq && !place.time && !place.before && !found;
  const newestFirst = following || Boolean(found);
  const [resent, resend] = useState(null);
  const [removing, remove] = useState(null);
  const [open, setOpen] = useState(new Set());
  const [text, setText] = useState(filter);
  const last = info.state.last_seq;
  const latest = useRef(info);
  latest.current = info;
  const keys = [name, filter, place.seq, place.time, place.before, found];
  const load = (signal) => (found ? search(name, found, filter, place.before, { signal })
    : browse(latest.current, place, filter, { signal }));
  const { data, error, loading, refresh } = usePoll(load, 0, keys);
  const seen = useRef(info.state);
  const held = following && (data ?? []).some((message) => open.has(message.seq));
  useEffect(() => {
    const { last_seq: before, messages } = seen.current;
    const removed = info.state.messages - messages < last - before;
    if (held && !removed) return; // what is being read stays where it is, unless it is gone
    if (following && (removed || before !== last)) refresh();
    seen.current = info.state;
  }, [last, info.state.messages, held]);
  const newest = useRef(Infinity);
  useEffect(() => {
    if (data?.length) newest.current = data.at(-1).seq;
  }, [data]);
  const show = (given) => {
    setOpen(new Set());
    go(link("streams", name, "messages", { subject: text.trim(), search: found, ...given }), { replace: true });
  };
  const toggled = (seq, opened) => setOpen((old) => new Set(opened ? [...old, seq] : [...old].filter((each) =>
    each !== seq)));
  const shown = data ? (newestFirst ? [...data].reverse() : data) : [];
  const lowest = data?.length ? data[0].seq : 0;
  const highest = data?.length ? data.at(-1).seq : 0;
  const waiting = held ? "new ones wait until the open message is closed" : "new ones appear by themselves";
  const order = found ? ", newest first" : following ? `, newest first; ${waiting}` : ", oldest first";
  const submit = (event) => {
    event.preventDefault();
    show(following ? {} : { seq: place.seq || undefined, time: place.time || undefined });
  };
  return html`
    <form class="toolbar messages-form" onSubmit=${submit}>
      <div class="field search">
        <label for="messages-subject">Subject</label>
        <input id="messages-subject" class="code" data-search placeholder="all" spellcheck="false" autocomplete="off"
          autocapitalize="none" value=${text} onInput=${(event) => setText(event.target.value)} onChange=${submit} />
      </div>
      <div class="field">
        <label for="messages-seq">From sequence</label>
        <${Draft} id="messages-seq" type="number" min="1" value=${place.seq || ""} send=${(seq) => show({ seq })} />
      </div>
      <div class="field">
        <label for="messages-time">From time</label>
        <${Draft} id="messages-time" type="datetime-local" step="1" value=${place.time ? localInput(place.time) : ""}
          send=${(text) => show(text ? { time: new Date(text).toISOString() } : {})} />
      </div>
      ${session.value.sql && html`<div class="field">
        <label for="messages-search">Payload contains</label>
        <${Draft} id="messages-search" type="search" placeholder="any text" autocomplete="off" value=${found}
          send=${(wanted) => wanted.trim() !== found && show({ search: wanted.trim(), seq: "", time: "" })} />
      </div>`}
      <div class="group push" role="group" aria-label="Move through the stream">
        <button class="button" type="button" disabled=${Boolean(found)}
          onClick=${() => show({ seq: Math.max(1, info.state.first_seq) })}>Oldest</button>
        <button class="button" type="button" disabled=${!lowest || lowest <= info.state.first_seq}
          onClick=${() => show({ before: lowest })}>Earlier</button>
        <button class="button" type="button" disabled=${newestFirst || !highest || highest >= last}
          onClick=${() => show({ seq: highest + 1 })}>Later</button>
        <button class="button" type="button" aria-pressed=${following}
          onClick=${() => show({ search: "" })}>Newest</button>
      </div>
    </form>
    <${Failed} error=${error} retry=${refresh} />
    ${loading && !data && html`<${Loading}>${found ? "Searching: the first search of a session takes some seconds."
      : "Reading messages…"}<//>`}
    ${shown.length > 0 && html`<p class="quiet" role="status">${count(lowest)} to ${count(highest)}${order}</p>
      <div class="messages">
        ${shown.map((message) => html`<${Message}
          key=${message.seq}
          message=${message}
          toggled=${(opened) => toggled(message.seq, opened)}
          fresh=${following && message.seq > newest.current}
          tools=${html`<button class="button button-small push" type="button"
            onClick=${() => resend(message)}>Resend…</button><button class="button button-small button-bad"
              type="button"
            onClick=${() => remove(message.seq)}>Delete…</button>`}
        />`)}
      </div>`}
    ${data && !shown.length && (info.state.messages
      ? html`<${Empty} title="No message matches"><p>
        ${found ? `No payload contains “${found}”.` : filter
          ? html`No stored message from here on has a subject that matches <code>${filter}</code>.`
          : "There are no messages from here on."}
          </p><button class="button" type="button"
            onClick=${() => (setText(""), go(link("streams", name, "messages"),
              { replace: true }))}>Show the newest</button>
            <//>`
      : html`<${Empty} title="This stream is empty">
        <p>A message on one of its subjects appears here as soon as it is stored:</p>
          <pre tabindex="0" role="region"
            aria-label="Command">nats pub ${((info.config.subjects ?? [])[0] ?? name).replace(/[*>]/g,
              "first")} hello</pre>
            <//>`)}
    ${resent && html`<${PublishDialog} again=${resent} close=${() => resend(null)} published=${changed} />`}
    ${removing &&
      html`<${Confirm} title=${`Delete message ${removing}`} name=${String(removing)} button="Delete message"
        needs=${`$JS.API.STREAM.MSG.DELETE.${name}`}
        close=${() => remove(null)} send=${async () => {
      await deleteMessage(name, removing);
      toast(`Message ${removing} was deleted.`);
      refresh();
      changed();
    }}><p>The message is overwritten and removed for good, from the log and from the table.</p><//>`}
    ${shown.length > 0 && shown.length < PAGE && !newestFirst && html`<p
      class="quiet">That was the last message.</p>`}`;
}
