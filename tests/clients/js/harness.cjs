// Helpers of the bucket scripts: one interface to both generations of the npm client, and running one test.
// `node SCRIPT LIBRARY TEST URL…` runs a test against each server and compares the results with that of the first one.
// The exit code is 0 if all are equal. `node SCRIPT --list LIBRARY` prints the names of the tests.
"use strict";

const assert = require("node:assert/strict");
const { readFileSync } = require("node:fs");
const { join } = require("node:path");

const { command } = require("./command.cjs");

const WAIT = 10_000;
const VERSIONS = { "nats": "2.29.3", "@nats-io/kv": "3.4.0", "@nats-io/obj": "3.4.0", "@nats-io/transport-node": "3.4.0" };

const text = (data) => new TextDecoder().decode(data);
const bytes = (string) => new TextEncoder().encode(string);

// Each opens a connection and returns that library's functions under common names.
const libraries = {
  async nats(url) {
    const nats = require("nats");
    const nc = await nats.connect({ servers: url, timeout: WAIT, reconnect: false });
    const js = nc.jetstream({ timeout: WAIT });
    return {
      nc,
      js,
      manager: await nc.jetstreamManager({ timeout: WAIT }),
      headers: nats.headers,
      nanos: nats.nanos,
      bucket: (name, options) => js.views.kv(name, options),
      open: (name, options) => js.views.kv(name, { ...options, bindOnly: true }),
      store: (name, options) => js.views.os(name, options),
      code: (error) => error.api_error?.err_code,
    };
  },

  async "nats-io"(url) {
    const { connect, headers, nanos } = require("@nats-io/transport-node");
    const { jetstream, jetstreamManager } = require("@nats-io/jetstream");
    const { Kvm } = require("@nats-io/kv");
    const { Objm } = require("@nats-io/obj");
    const nc = await connect({ servers: url, timeout: WAIT, reconnect: false });
    const js = jetstream(nc, { timeout: WAIT });
    const [buckets, stores] = [new Kvm(js), new Objm(js)];
    return {
      nc,
      js,
      manager: await jetstreamManager(nc, { timeout: WAIT }),
      headers,
      nanos,
      bucket: (name, options) => buckets.create(name, options),
      open: (name, options) => buckets.open(name, options),
      buckets: () => buckets.list(),
      store: (name, options) => stores.create(name, options),
      openStore: (name) => stores.open(name),
      stores: () => stores.list(),
      code: (error) => error.code,
    };
  },
};

async function collect(iterator, count = Infinity) {
  const items = [];
  if (count === 0) return items;
  for await (const item of iterator) {
    items.push(item);
    if (items.length === count) break;
  }
  return items;
}

// Polls until the answer is wanted, for effects of a server that cause no event.
async function until(ask, wanted) {
  const deadline = Date.now() + WAIT;
  for (;;) {
    const answer = await ask();
    if (wanted(answer)) return answer;
    assert.ok(Date.now() < deadline, `never as expected: ${JSON.stringify(answer)}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const refused = (lib, promise, code) =>
  assert.rejects(promise, (error) => {
    assert.equal(lib.code(error), code, `${error}`);
    return true;
  });

// Returns a configuration or state without values that differ between servers.
function comparable(value) {
  if (Array.isArray(value)) return value.map(comparable);
  if (value === null || typeof value !== "object") return value;
  const volatile = new Set(["ts", "created", "first_ts", "last_ts", "cluster", "domain", "mtime", "nuid", "lakestream.time_travel"]);
  const kept = Object.entries(value).filter(([key]) => !volatile.has(key));
  return Object.fromEntries(kept.map(([key, inner]) => [key, comparable(inner)]));
}

async function play(library, url, test, name) {
  const lib = await libraries[library](url);
  try {
    return (await test(lib, name)) ?? null;
  } finally {
    await lib.nc.close();
  }
}

async function main(script, tests, newer, library, name, urls) {
  for (const [dependency, wanted] of Object.entries(VERSIONS)) {
    const manifest = join(__dirname, "node_modules", dependency, "package.json");
    assert.equal(JSON.parse(readFileSync(manifest)).version, wanted, dependency);
  }
  const test = tests[name] ?? (library === "nats-io" ? newer[name] : undefined);
  assert.ok(test, `no test ${name} of ${library}`);
  const unique = `${script}_${library.replace("-", "")}_${name}`;
  const played = await Promise.allSettled(urls.map((url) => play(library, url, test, unique)));
  const failures = played.flatMap((one, n) => (one.status === "rejected" ? [`server ${n}: ${one.reason?.stack}`] : []));
  if (failures.length) throw new Error(failures.join("\n"));
  for (const one of played.slice(1)) assert.deepEqual(comparable(one.value), comparable(played[0].value));
}

// tests: for both generations; newer: for @nats-io/* only.
function run(script, tests, newer) {
  const [library, name] = process.argv.slice(2);
  if (library === "--list") {
    console.log(Object.keys(name === "nats-io" ? { ...tests, ...newer } : tests).join("\n"));
    return;
  }
  command(([library, name, ...urls]) => main(script, tests, newer, library, name, urls));
}

module.exports = { assert, bytes, collect, refused, run, text, until };
