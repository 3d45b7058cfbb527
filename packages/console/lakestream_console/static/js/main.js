/** The console: session, frame and navigation, shortcuts, and the page of the current route. */

import { html, render, useEffect, useLayoutEffect, useErrorBoundary, useRef, useState } from "../vendor/htm-preact.js";
import { logout, open, session } from "./lib/api.js";
import { ago, shortName, time } from "./lib/format.js";
import { go, link, useRoute } from "./lib/router.js";
import { life, samples, start, stop } from "./lib/samples.js";
import { useClock, useStore } from "./lib/store.js";
import { Buckets } from "./pages/buckets.js";
import { Cluster } from "./pages/cluster.js";
import { Connections } from "./pages/connections.js";
import { Live } from "./pages/live.js";
import { Login } from "./pages/login.js";
import { Objects } from "./pages/objects.js";
import { Overview } from "./pages/overview.js";
import { PublishDialog } from "./pages/publish.js";
import { Sql } from "./pages/sql.js";
import { Stream } from "./pages/stream.js";
import { Streams } from "./pages/streams.js";
import { Dialog } from "./parts/dialog.js";
import { Icon, Mark } from "./parts/icons.js";
import { Empty, Failed, Toasts } from "./parts/notes.js";

/** The pages: segment of the route, title, letter of the shortcut after g, and component. */
const PAGES = [
  { path: "overview", title: "Overview", letter: "o", show: Overview },
  { path: "streams", title: "Streams", letter: "s", show: (props) =>
    (props.path[1] ? html`<${Stream} ...${props} />` : html`<${Streams} />`) },
  { path: "buckets", title: "Key-value", letter: "k", show: Buckets },
  { path: "objects", title: "Objects", letter: "b", show: Objects },
  { path: "live", title: "Live tail", letter: "l", show: Live, gap: true },
  { path: "sql", title: "SQL", letter: "q", show: Sql },
  { path: "cluster", title: "Cluster", letter: "c", show: Cluster, gap: true },
  { path: "connections", title: "Connections", letter: "n", show: Connections },
];

const THEMES = { auto: "System colours", light: "Light colours", dark: "Dark colours" };

/** Time for which a restart of the server is told. */
const RESTART_SHOWN_MS = 120_000;

function currentTheme() {
  return document.documentElement.dataset.theme ?? "auto";
}

/** Go on to the next of system, light and dark colours, and remember it in this browser. */
function nextTheme() {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(currentTheme()) + 1) % names.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("lakestream.theme", next);
  } catch {
    // It lasts for this page only then.
  }
}

/** Call actions for keys that are pressed outside of fields and dialogs. */
function useShortcuts(actions) {
  useEffect(() => {
    let leading = 0;
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (event.target.closest("input, textarea, select, [contenteditable]")) return;
      const chosen = PAGES.find(({ letter }) => letter === event.key);
      if (Date.now() - leading < 1200 && chosen) {
        leading = 0;
        event.preventDefault();
        go(link(chosen.path));
      } else if (event.key === "g") leading = Date.now();
      else if (actions[event.key]) {
        event.preventDefault();
        actions[event.key]();
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

function Shortcuts({ close }) {
  const rows = [
    ...PAGES.map(({ title, letter }) => [["g", letter], title]),
    [["/"], "Search or filter on this page"],
    [["p"], "Publish a message"],
    [["t"], "Change the colours"],
    [["?"], "Show these shortcuts"],
    [["Esc"], "Close a dialog"],
  ];
  return html`<${Dialog} title="Keyboard shortcuts" close=${close}>
    <dl class="shortcuts">
      ${rows.map(([keys, text]) => [html`<dt>${keys.map((key) => html`<kbd>${key}</kbd>`)}</dt>`,
        html`<dd>${text}</dd>`])}
    </dl>
  <//>`;
}

function Navigation({ active, opened, show }) {
  const account = useStore(session);
  const [, again] = useState(0);
  const theme = () => {
    nextTheme();
    again((count) => count + 1);
  };
  return html`<div class="side" id="navigation" data-open=${opened}>
    <a class="brand" href=${link("overview")}><${Mark} /> lakestream</a>
    <nav class="nav" aria-label="Pages">
      ${PAGES.map(({ path, title, gap }) => [
        gap && html`<div class="nav-gap" aria-hidden="true"></div>`,
        html`<a href=${link(path)} aria-current=${path === active ? "page" : undefined}><${Icon} name=${path} />${title}
          </a>`,
      ])}
    </nav>
    <div class="side-foot">
      <div class="who">
        <b>${account.user || (account.auth_required ? "logged in" : "no login needed")}</b>
        <span class="quiet wrap" title=${account.account}>account ${shortName(account.account_name
          || account.account)}</span>
        <span class="quiet wrap" title=${account.server}>${shortName(account.server)} · ${account.version}</span>
      </div>
      <div class="side-tools">
        <button class="button button-bare" type="button" title=${THEMES[currentTheme()]}
          aria-label=${`Change the colours (now ${THEMES[currentTheme()]})`} onClick=${theme}>
          <${Icon} name="theme" />
        </button>
        <button class="button button-bare" type="button" title="Keyboard shortcuts" aria-label="Keyboard shortcuts"
          onClick=${() => show("help")}>
          <${Icon} name="help" />
        </button>
        ${account.auth_required &&
        html`<button class="button button-bare" type="button" onClick=${() => logout()}>
          <${Icon} name="leave" /> Log out</button>`}
      </div>
    </div>
  </div>`;
}

/** The page of the route; an error in it is shown in its place, and the rest of the console goes on. */
function Page({ page, route }) {
  const [error, reset] = useErrorBoundary();
  const key = route.path.join("/");
  const failed = useRef(key);
  useEffect(() => {
    if (error && failed.current !== key) reset();
    failed.current = key;
  }, [key, error]);
  if (error) return html`<${Failed} error=${error} retry=${reset} />`;
  if (!page) return html`<${Empty} title="There is no such page"><p><a href=${link("overview")}>Go to the overview</a>
    </p><//>`;
  return html`<${page.show} path=${route.path} query=${route.query} key=${route.path.slice(0, 2).join("/")} />`;
}

/** What the reader must know about the server: it does not answer, or it was restarted. */
function Banner() {
  const { silent, restart } = useStore(life);
  const { received } = useStore(samples);
  const now = useClock();
  if (silent) {
    const since = `The server has not answered for ${ago(now - silent)}.`;
    return html`<div class="banner" role="alert">${since} Trying again.
      ${received > 0 && ` Showing the last figures, of ${time(received, { date: false, fraction: false })}.`}</div>`;
  }
  if (!restart || now - restart.seen > RESTART_SHOWN_MS) return null;
  return html`<div class="banner" role="status">The server was restarted at ${time(restart.start, { date: false,
    fraction: false })}.
    <button class="button button-bare button-small" type="button"
      onClick=${() => life.set({ ...life.value, restart: null })}>
      Close</button></div>`;
}

function Frame() {
  const route = useRoute();
  const [opened, setOpened] = useState(false);
  const [shown, show] = useState(null);
  const main = useRef(null);
  const first = useRef(true);
  const name = route.path[0] ?? "overview";
  const page = PAGES.find(({ path }) => path === name);
  useShortcuts({
    "?": () => show("help"),
    p: () => show("publish"),
    t: nextTheme,
    "/": () => document.querySelector("[data-search]")?.focus(),
  });
  const where = route.path.slice(0, 2).join("/");
  // Before the next key: an effect after the frame would take the focus from what a quick hand has just focused.
  useLayoutEffect(() => {
    setOpened(false);
    document.title = [route.path[1], page?.title, "lakestream console"].filter(Boolean).join(" · ");
    if (!first.current) {
      main.current?.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
    first.current = false;
  }, [where]);
  useEffect(() => {
    start();
    return stop;
  }, []);
  return html`
    <a class="skip" href="#main"
      onClick=${(event) => (event.preventDefault(), main.current.focus())}>Skip to the page</a>
    <div class="bar">
      <a class="brand" href=${link("overview")}><${Mark} /> lakestream</a>
      <button class="button button-bare" type="button" aria-expanded=${opened} aria-controls="navigation"
        onClick=${() => setOpened(!opened)}>
        <${Icon} name=${opened ? "close" : "menu"} /> Menu
      </button>
    </div>
    <div class="frame">
      <${Navigation} active=${name} opened=${opened} show=${show} />
      <div>
        <${Banner} />
        <main class="main" id="main" tabindex="-1" ref=${main}>
          <${Page} page=${page} route=${route} />
        </main>
      </div>
    </div>
    ${shown === "help" && html`<${Shortcuts} close=${() => show(null)} />`}
    ${shown === "publish" && html`<${PublishDialog} close=${() => show(null)} />`}
    <${Toasts} />
  `;
}

function Console() {
  const state = useStore(session);
  useEffect(() => {
    open();
  }, []);
  if (state === undefined) return html`<p class="boot" role="status">Opening the console…</p>`;
  if (state.login) return html`<${Login} kinds=${state.kinds} ended=${state.ended} />`;
  if (state.failed) {
    return html`<main class="main"><h1>The console is not available</h1>
      <${Failed} error=${{ message: state.failed }} retry=${open} /></main>`;
  }
  return html`<${Frame} key=${state.csrf} />`;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${Console} />`, root);
