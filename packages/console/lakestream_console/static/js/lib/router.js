/** Routes in the fragment of the address: `#/streams/ORDERS/messages?seq=7`. */

import { createStore, useStore } from "./store.js";

const decoded = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};

const read = () => {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query) };
};

const route = createStore(read());
addEventListener("hashchange", () => route.set(read()));

/** Return the current route: `path`, an array of decoded segments, and `query`. */
export const useRoute = () => useStore(route);

/** Return the address of a page from its segments; an object as the last argument becomes the query. */
export function link(...segments) {
  const last = segments.at(-1);
  const query = last && typeof last === "object" ? segments.pop() : {};
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#/${segments.map((each) => encodeURIComponent(each)).join("/")}${text ? `?${text}` : ""}`;
}

/** Open a page; with `replace` without an entry in the history. */
export function go(address, { replace = false } = {}) {
  if (replace) {
    history.replaceState(null, "", address);
    route.set(read());
  } else location.hash = address.slice(1);
}
