// The unmodified npm packages `nats.ws` and `@nats-io/*` over WebSocket: `node websocket.mjs LIBRARY TRIAL URL`.
// `node websocket.mjs --list` prints the names of the trials. The exit code is 0 if a trial passes.
import { createRequire } from "node:module";

import { openBundle, trials } from "./trials.mjs";

const require = createRequire(import.meta.url);
const { command } = require("./command.cjs");
const WAIT = 10_000;

const libraries = {
  async "nats.ws"(url) {
    return openBundle(await import("./node_modules/nats.ws/esm/nats.js"), url, {});
  },

  async "nats-io"(url) {
    const { Empty, headers, wsconnect } = require("@nats-io/nats-core");
    const { jetstream, jetstreamManager } = require("@nats-io/jetstream");
    const { Kvm } = require("@nats-io/kv");
    const { Objm } = require("@nats-io/obj");
    const nc = await wsconnect({ servers: url, timeout: WAIT, reconnect: false });
    const js = jetstream(nc, { timeout: WAIT });
    return {
      nc,
      js,
      manager: await jetstreamManager(nc, { timeout: WAIT }),
      headers,
      empty: Empty,
      bucket: (name, more) => new Kvm(js).create(name, more),
      store: (name, more) => new Objm(js).create(name, more),
    };
  },
};

async function main([library, trial, url]) {
  const opened = await libraries[library](url);
  await trials[trial]({ ...opened, name: `WS_${trial}` });
  await opened.nc.close();
}

if (process.argv[2] === "--list") {
  console.log(Object.keys(trials).join("\n"));
} else {
  command(main);
}
