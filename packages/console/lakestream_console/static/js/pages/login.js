/** The login: as a NATS client logs in, by user and password, token, credentials file or nkey seed. */

import { html, useState } from "../../vendor/htm-preact.js";
import { login } from "../lib/api.js";
import { Field, TextField } from "../parts/dialog.js";
import { Mark } from "../parts/icons.js";
import { Failed } from "../parts/notes.js";

const KINDS = { user: "Password", token: "Token", creds: "Credentials", nkey: "NKey" };
const FIELDS = { user: ["user", "password"], token: ["token"], creds: ["creds"], nkey: ["nkey"] };

/** The form of each kind of login. */
function Fields({ kind, values, set }) {
  if (kind === "user") {
    return html`<${TextField} label="User" name="user" values=${values} set=${set} autocomplete="username"
      autocapitalize="none" required />
      <${TextField} label="Password" name="password" type="password" values=${values} set=${set}
        autocomplete="current-password" required />`;
  }
  if (kind === "token") return html`<${TextField} label="Token" name="token" type="password" values=${values} set=${set}
    required />`;
  if (kind === "nkey") return html`<${TextField} label="Seed" hint="It begins with SU." name="nkey" type="password"
    values=${values} set=${set} required />`;
  const read = async (event) => set({ ...values, creds: (await event.target.files[0]?.text()) ?? "" });
  return html`<${Field} label="Credentials file" hint="The .creds file of the user. It is used for this session only.">
    ${(id) => html`<input id=${id} type="file" onChange=${read} required />`}
  <//>`;
}

/** The login page; `ended` if a session has just ended. */
export function Login({ kinds, ended }) {
  const shown = Object.keys(KINDS).filter((kind) => kinds.includes(kind));
  const [kind, choose] = useState(shown[0] ?? "user");
  const [values, set] = useState({});
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const given = Object.fromEntries(FIELDS[kind].map((name) => [name, values[name] ?? ""]));
      await login(values.inbox ? { ...given, inbox: values.inbox } : given);
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return html`<main class="login">
    <div class="login-box">
      <h1 class="brand"><${Mark} size=${26} /> lakestream</h1>
      <p>${ended ? "The session has ended. Log in again to continue." : "Log in as you would with a NATS client."}</p>
      <form onSubmit=${submit}>
        ${shown.length > 1 &&
        html`<div class="group" role="group" aria-label="Log in with">
          ${shown.map((each) =>
            html`<button class="button" type="button" aria-pressed=${each === kind} onClick=${() => choose(each)}>
              ${KINDS[each]}</button>`)}
        </div>`}
        <${Fields} kind=${kind} values=${values} set=${set} key=${kind} />
        <details>
          <summary class="quiet">Inbox prefix</summary>
          <${TextField} label="Prefix of reply subjects" hint="For users whose permissions allow a prefix other than _INBOX."
            name="inbox" class="code" values=${values} set=${set} />
        </details>
        <${Failed} error=${error} />
        <button class="button button-main" type="submit" disabled=${busy}>${busy ? "Logging in…" : "Log in"}</button>
      </form>
    </div>
  </main>`;
}
