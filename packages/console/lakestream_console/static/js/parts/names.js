/** Names of streams, and the state of an account without any. */

import { html } from "../../vendor/htm-preact.js";
import { logout, session } from "../lib/api.js";
import { shortName } from "../lib/format.js";
import { link } from "../lib/router.js";
import { isOwn } from "../lib/samples.js";
import { Empty } from "./notes.js";

/** The name of a stream as a link to its page; for those of other accounts it tells how to open them. */
export function StreamName({ stream, tab }) {
  if (!isOwn(stream)) return html`<a class="name" href=${link("streams", stream.name, "of",
    { account: stream.account })}>
    ${stream.name}</a>`;
  return html`<a class="name" href=${tab ? link("streams", stream.name, tab) : link("streams", stream.name)}>
    ${stream.name}</a>`;
}

/** Instead of the page of a stream that is not the session's account's. */
export function OfAnother({ name, account }) {
  return html`<${Empty} title=${`${name} is a stream of account ${shortName(account)}`}>
    <p>You are logged in to account ${shortName(session.value.account)}${session.value.system_account
      ? ", the system account" : ""}: it
      sees the figures of all accounts, but not their messages,
        which are only for users of their own account. To open the
      stream, log out and log in as a user of account ${account}.</p>
    ${session.value.auth_required && html`<button class="button" type="button"
      onClick=${() => logout()}>Log out</button>`}
  <//>`;
}

/** Instead of a list, for accounts that can have no streams. */
export function NoJetStream() {
  return html`<${Empty} title="JetStream is off">
    <p>This account has no JetStream: messages are delivered, and not stored. Start the server with <code>-js</code>,
      or enable JetStream for the account.</p>
  <//>`;
}
