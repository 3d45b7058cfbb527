/** Names of streams, and the state of an account without any. */

import { html } from "../../vendor/htm-preact.js";
import { link } from "../lib/router.js";
import { isOwn } from "../lib/samples.js";
import { Empty } from "./notes.js";

/** The name of a stream as a link to its page; only those of the session's account have one. */
export function StreamName({ stream, tab }) {
  if (!isOwn(stream)) return html`<span class="name">${stream.name}</span>`;
  return html`<a class="name" href=${tab ? link("streams", stream.name, tab) : link("streams", stream.name)}>
    ${stream.name}</a>`;
}

/** Instead of a list, for accounts that can have no streams. */
export function NoJetStream() {
  return html`<${Empty} title="JetStream is off">
    <p>This account has no JetStream: messages are delivered, and not stored. Start the server with <code>-js</code>,
      or enable JetStream for the account.</p>
  <//>`;
}
