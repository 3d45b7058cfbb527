// The web console in headless Chromium: `node console.mjs TRIAL`, with the addresses in the environment:
// CHROMIUM (the program), CONSOLE (the page), NATS (the server), USERS (the page of a server with users), ACCOUNTS (that
// of a server with accounts), EMPTY (that of a server without streams), CLUSTER (that of a node of three), PICTURES (a
// folder for the pictures of the documentation, or empty), LOOKS (one for a screenshot of each page, or empty), LAKESTREAM
// (the program), LAKE (the lake of CONSOLE), ACCOUNTS_PORT (the clients' port of the server with accounts), COMPACTOR (set if one runs beside the server).
// `node console.mjs --list` prints the names of the trials. The exit code is 0 if a trial passes.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer as createWebServer } from "node:http";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const require = createRequire(import.meta.url);
const { ACCOUNTS, CHROMIUM, CLUSTER, COMPACTOR, CONSOLE, EMPTY, LAKE, LAKESTREAM, LOOKS, NATS, USERS, PICTURES } = process.env;
const FLAGS = ["--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage"];
const WAIT = 10_000;
const SOON = 2_000; // a published message must be seen within this time
const BUSY = 60_000; // of writes, while pictures are taken; of a compactor that starts
const PHONE = { width: 390, height: 844 };
const DESK = { width: 1440, height: 900 };
const SIZES = [DESK, { width: 1024, height: 768 }, PHONE];
const SERIOUS = ["serious", "critical"];

/** Pages: the route, and the text or role that shows that its content has come. */
const PAGES = {
  overview: ["/overview", (page) => page.getByText("Busiest streams").waitFor()],
  streams: ["/streams", (page) => page.getByRole("link", { name: "ORDERS" }).waitFor()],
  messages: ["/streams/ORDERS", (page) => page.getByRole("article").first().waitFor()],
  consumers: ["/streams/ORDERS/consumers", (page) => page.getByRole("cell", { name: "billing pull" }).waitFor()],
  history: ["/streams/ORDERS/history", (page) => page.getByRole("figure", { name: "Messages stored per second" }).locator("canvas").waitFor()],
  table: ["/streams/ORDERS/table", (page) => page.getByText("Last commits").first().waitFor()],
  configuration: ["/streams/ORDERS/configuration", (page) => page.getByText("lakestream.time_travel").waitFor()],
  buckets: ["/buckets", (page) => page.getByRole("link", { name: "conf" }).waitFor()],
  bucket: ["/buckets/conf/db.host", (page) => page.getByText(/^revision \d+$/).first().waitFor()],
  objects: ["/objects", (page) => page.getByRole("link", { name: "reports" }).waitFor()],
  object: ["/objects/reports/2026%2Fnovember.csv", (page) => page.getByRole("button", { name: "Download" }).waitFor()],
  live: ["/live?subject=orders.%3E", (page) => page.getByText(/Following/).waitFor()],
  sql: ["/sql", (page) => page.getByText("Ask the lake").waitFor()],
  cluster: ["/cluster", (page) => page.getByText("This server runs alone").waitFor()],
  connections: ["/connections", (page) => page.getByRole("cell", { name: /lakestream console/ }).first().waitFor()],
  unknown: ["/nowhere", (page) => page.getByText("There is no such page").waitFor()],
};

/** A browser and its pages; every error that a page reports is kept, unless its text matches `expected`. */
class Desk {
  static async open() {
    const { chromium } = await import("playwright-core");
    return new Desk(await chromium.launch({ executablePath: CHROMIUM, args: FLAGS }));
  }

  constructor(browser) {
    this.browser = browser;
    this.errors = [];
    this.expected = [];
  }

  /** Open the console in a context of its own, which has its own session. */
  async page(url = CONSOLE, { scheme = "light", viewport = DESK } = {}) {
    const context = await this.browser.newContext({ locale: "en-GB", timezoneId: "UTC", colorScheme: scheme, viewport });
    context.setDefaultTimeout(WAIT);
    const page = await context.newPage();
    page.on("pageerror", (error) => this.errors.push(error.stack));
    page.on("console", (message) => {
      const text = `${message.text()} ${message.location().url}`;
      if (message.type() === "error" && !this.expected.some((each) => each.test(text))) this.errors.push(text);
    });
    await page.goto(url);
    return page;
  }

  async close() {
    await this.browser.close();
    assert.deepEqual(this.errors, [], "errors in the browser's console");
  }
}

/** Open a route of a page that is open already. */
async function go(page, route) {
  await page.evaluate((hash) => (location.hash = hash), route);
}

async function logIn(page, user) {
  await page.getByLabel("User").fill(user);
  await page.getByLabel("Password").fill("secret");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("heading", { level: 1, name: "Overview" }).waitFor();
}

/** Fail with the findings of axe-core that are serious or critical. */
async function accessible(page, where) {
  if (!(await page.evaluate(() => "axe" in globalThis))) {
    // As DevTools does, without a script element: the page's policy allows none but its own.
    await page.evaluate(readFileSync(require.resolve("axe-core/axe.min.js"), "utf8"));
  }
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const found = violations
    .filter(({ impact }) => SERIOUS.includes(impact))
    .map(({ id, help, nodes }) => `${id}: ${help}\n${nodes.map((node) => `  ${node.html}\n  ${node.failureSummary}`).join("\n")}`);
  assert.deepEqual(found, [], where);
}

/** Fail if the page can be scrolled sideways. */
async function fits(page, where) {
  const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.ok(over <= 0, `${where} is ${over} px too wide`);
}

/** Write a screenshot if they are wanted. */
async function picture(page, name) {
  if (!PICTURES) return;
  await page.evaluate(() => document.activeElement?.blur());
  await page.mouse.move(0, 0);
  await page.waitForTimeout(300); // animations
  await page.screenshot({ path: join(PICTURES, `${name}.png`) });
}

/** Write a screenshot of a page at its width into the folder LOOKS, to be looked at. */
async function look(page, name, scheme) {
  if (!LOOKS) return;
  await page.waitForTimeout(300); // animations
  await page.screenshot({ path: join(LOOKS, `${name}-${page.viewportSize().width}-${scheme}.png`) });
}

/** Wait until a condition holds; errors mean that it does not yet. */
async function until(condition) {
  for (const end = Date.now() + 3 * WAIT; ; ) {
    if (await condition().catch(() => false)) return;
    assert.ok(Date.now() < end, "it did not happen in time");
    await new Promise((done) => setTimeout(done, 100));
  }
}

/** Run a compactor meanwhile, unless there is one. */
async function withCompactor(use) {
  if (COMPACTOR) return use();
  const compactor = spawn(LAKESTREAM, ["compact", "--lake", LAKE], { stdio: "ignore", detached: true });
  try {
    return await use();
  } finally {
    process.kill(-compactor.pid, "SIGTERM");
    await once(compactor, "exit");
  }
}

/** Return a port that is free now. */
async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

async function connect(url = NATS, options = {}) {
  const { connect: open } = require("@nats-io/transport-node");
  return open({ servers: url, timeout: WAIT, reconnect: false, ...options });
}

async function withServer(use) {
  const nc = await connect();
  try {
    return await use(nc, require("@nats-io/jetstream").jetstream(nc));
  } finally {
    await nc.close();
  }
}

/** Each page opens in light and dark and at three widths, without an error and without a serious finding of axe-core. */
const pages = Object.entries(PAGES).map(([name, [route, shown]]) => [
  `page-${name}`,
  async (desk) => {
    for (const scheme of ["light", "dark"]) {
      const page = await desk.page(`${CONSOLE}#${route}`, { scheme });
      await shown(page);
      for (const size of SIZES) {
        await page.setViewportSize(size);
        await accessible(page, `${name}, ${scheme}, at ${size.width} px`);
        await fits(page, `${name} at ${size.width} px`);
        await look(page, name, scheme);
      }
      await page.getByRole("button", { name: "Menu" }).click();
      await page.getByRole("navigation", { name: "Pages" }).waitFor();
      await fits(page, `${name} with its menu`);
      await page.context().close();
    }
  },
]);

/** The pages of a server without anything, and of one that does not answer, at three widths. */
const states = [["empty", EMPTY], ["failing", CONSOLE]].map(([state, url]) => [
  `state-${state}`,
  async (desk) => {
    if (state === "failing") desk.expected.push(/Failed to load resource.*console\/api/);
    const page = await desk.page(`${url}#/overview`, { scheme: "dark" });
    await page.getByText("Busiest streams").waitFor();
    if (state === "failing") {
      await page.route("**/console/api/**", (route) => route.abort());
      await page.getByText("The server has not answered").waitFor();
    }
    for (const route of ["overview", "streams", "buckets", "objects", "live", "sql", "cluster", "connections"]) {
      await go(page, `/${route}`);
      await page.getByRole("heading", { level: 1 }).waitFor();
      for (const size of SIZES) {
        await page.setViewportSize(size);
        await accessible(page, `${state} ${route} at ${size.width} px`);
        await fits(page, `${state} ${route} at ${size.width} px`);
        await look(page, `${state}-${route}`, "dark");
      }
    }
  },
]);

const trials = {
  ...Object.fromEntries([...pages, ...states]),

  /** The navigation reaches every page. */
  async navigation(desk) {
    const page = await desk.page();
    const links = page.getByRole("navigation", { name: "Pages" }).getByRole("link");
    for (const link of await links.all()) {
      await link.click();
      await page.getByRole("heading", { level: 1, name: await link.innerText() }).waitFor();
      assert.equal(await link.getAttribute("aria-current"), "page");
    }
    assert.equal(await links.count(), 8);
  },

  /** A message that another client publishes is in the stream's page within two seconds. */
  async "a-published-message-shows"(desk) {
    const page = await desk.page(`${CONSOLE}#/streams/ORDERS`);
    await page.getByRole("article").first().waitFor();
    await withServer(async (nc, js) => {
      const id = `orders.eu.${Date.now()}`;
      await js.publish(id, '{"fresh": true}');
      const acked = Date.now();
      await page.getByRole("article").filter({ hasText: id }).waitFor({ timeout: SOON });
      assert.ok(Date.now() - acked < SOON);
    });
  },

  /** The live tail shows a message that no stream stores within two seconds. */
  async "a-live-message-shows"(desk) {
    const page = await desk.page(`${CONSOLE}#/live`);
    await page.getByLabel("Subject").fill("news.>");
    await page.getByRole("button", { name: "Follow" }).click();
    await page.getByText("Waiting for the first message").waitFor();
    await withServer(async (nc) => {
      nc.publish("news.today", "sunny");
      await nc.flush();
      await page.getByRole("article").filter({ hasText: "sunny" }).waitFor({ timeout: SOON });
      await page.getByRole("button", { name: "Pause" }).click();
      nc.publish("news.today", "rainy");
      await nc.flush();
      await page.getByText("2 messages").waitFor();
      assert.equal(await page.getByRole("article").count(), 1);
      await page.getByRole("button", { name: "Pause" }).click();
      await page.getByRole("article").filter({ hasText: "rainy" }).waitFor();
    });
  },

  /** The overview draws what is published to a stream; tests/packages/test_first_hour.py ends with it. */
  async "the-dashboard-is-drawn"(desk) {
    const page = await desk.page();
    const shown = (async () => {
      await page.getByRole("table", { name: "Busiest streams" }).getByRole("link", { name: "ORDERS" }).waitFor({ timeout: 3 * WAIT });
      const plot = page.getByRole("figure", { name: "Messages per second" });
      await plot.getByText(/stored\s+[1-9]/).waitFor({ timeout: 3 * WAIT });
      const drawn = await plot.locator("canvas").evaluate((canvas) =>
        canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((byte) => byte));
      assert.ok(drawn, "the plot has no line");
    })();
    let done = false;
    await Promise.all([
      shown.finally(() => (done = true)),
      withServer(async (nc, js) => {
        while (!done) {
          await js.publish("orders.de", '{"id": 2, "price": 1.5}');
          await new Promise((next) => setTimeout(next, 20));
        }
      }),
    ]);
    await look(page, "dashboard", "light");
  },

  /** The plots show figures of before the page was opened, in the range that is chosen. */
  async "the-history-of-figures"(desk) {
    const page = await desk.page();
    const plot = page.getByRole("figure", { name: "Messages per second" });
    await plot.locator("canvas").waitFor();
    assert.match(await plot.innerText(), /stored\s+\d/);
    for (const range of ["5 min", "1 h", "24 h"]) {
      const answer = page.waitForResponse((response) => response.url().includes("/api/history"));
      await page.getByRole("button", { name: range, exact: true }).click();
      const { times, step } = await (await answer).json();
      assert.equal(times.length * step, { "5 min": 300, "1 h": 3600, "24 h": 86400 }[range]);
      await plot.locator("canvas").waitFor();
    }
    await page.getByText(/^updated \d s ago$/).waitFor();
    await page.getByText("since the server’s start").waitFor();
    await page.reload();
    assert.equal(await page.getByRole("button", { name: "24 h" }).getAttribute("aria-pressed"), "true");
  },

  /** A server that hangs, and one that was restarted, are told. */
  async "a-hang-and-a-restart-are-told"(desk) {
    desk.expected.push(/Failed to load resource.*console\/api/);
    const place = mkdtempSync(join(tmpdir(), "console-"));
    const port = await freePort();
    const serve = async () => {
      const made = spawn(LAKESTREAM, ["serve", "-a", "127.0.0.1", "-p", "-1", "-m", String(port), "-js", "-sd", place, "--no-lake"], { stdio: "ignore" });
      await until(async () => (await fetch(`http://127.0.0.1:${port}/healthz`)).ok);
      return made;
    };
    let server = await serve();
    try {
      const page = await desk.page(`http://127.0.0.1:${port}/console`);
      await page.getByText("Busiest streams").waitFor();
      const { server: name } = await page.evaluate(() => fetch("console/api/session").then((answer) => answer.json()));
      assert.match(name, /^N[A-Z2-7]{55}$/);
      assert.ok(!(await page.locator("body").innerText()).includes(name));
      await page.getByText(`server ${name.slice(0, 6)}…`).first().waitFor();
      server.kill("SIGSTOP");
      await page.getByText(/The server has not answered for \d+ s/).waitFor({ timeout: 2 * WAIT });
      await page.getByText(/Showing the last figures, of \d\d:\d\d:\d\d/).waitFor();
      await accessible(page, "a silent server");
      server.kill("SIGCONT");
      await page.getByText("The server has not answered").waitFor({ state: "detached", timeout: 2 * WAIT });
      assert.equal(await page.getByText("The server was restarted").count(), 0);
      server.kill("SIGKILL");
      await once(server, "exit");
      await page.getByText("The server has not answered").waitFor({ timeout: 2 * WAIT });
      server = await serve();
      await page.getByText("The server was restarted at").waitFor({ timeout: 2 * WAIT });
    } finally {
      server.kill("SIGKILL");
      rmSync(place, { recursive: true, force: true });
    }
  },

  /** Thirty streams are on one screen, with units in the heads, and the states of their tables are told apart. */
  async "thirty-streams-on-a-screen"(desk) {
    await withServer(async (nc) => {
      const manager = await require("@nats-io/jetstream").jetstreamManager(nc);
      const names = [...Array(30).keys()].map((number) => `AA_${String(number).padStart(2, "0")}`);
      for (const name of names) await manager.streams.add({ name, subjects: [`${name}.>`] });
      await manager.jetstream().publish("AA_00.x", "x");
      const page = await desk.page(`${CONSOLE}#/streams`);
      const last = page.getByRole("link", { name: "AA_29" });
      await last.waitFor();
      const { y, height } = await last.boundingBox();
      assert.ok(y + height <= DESK.height, `the thirtieth stream ends at ${y + height} px`);
      await page.getByRole("columnheader", { name: /^Size, [KMG]?i?B$/ }).waitFor();
      await page.getByRole("row", { name: /^AA_00 .* 1 behind/ }).waitFor();
      await page.getByRole("row", { name: /^AA_29 .* empty$/ }).waitFor();
      await look(page, "thirty-streams", "light");
      await page.setViewportSize(PHONE);
      await fits(page, "thirty streams");
      for (const name of names) await manager.streams.delete(name);
    });
  },

  /** On a phone the messages of a stream come before its figures. */
  async "messages-come-first-on-a-phone"(desk) {
    const page = await desk.page(`${CONSOLE}#/streams/ORDERS`, { viewport: PHONE });
    await page.getByRole("article").first().waitFor();
    const [message, figures] = await Promise.all([page.getByRole("article").first(), page.locator(".figures")].map((each) => each.boundingBox()));
    assert.ok(message.y < figures.y && message.y < PHONE.height, `message at ${message.y}, figures at ${figures.y}`);
  },

  /** What is typed into a field stays while the page asks again and again. */
  async "fields-keep-what-is-typed"(desk) {
    const page = await desk.page(`${CONSOLE}#/streams/ORDERS`);
    await page.getByRole("article").first().waitFor();
    const field = page.getByLabel("From sequence");
    await field.pressSequentially("12");
    for (let polls = 0; polls < 3; polls++) await page.waitForResponse((response) => response.url().endsWith("/api/request"));
    assert.equal(await field.inputValue(), "12");
    await field.press("Enter");
    await page.getByRole("article", { name: "Message 12", exact: true }).waitFor();
    await go(page, "/buckets/conf");
    const clock = page.getByLabel("Moment", { exact: true });
    await clock.fill("2020-01-01T10:00:00");
    await page.waitForTimeout(2500); // two polls
    await page.getByText(/^2\d{3}-\d\d-\d\d/).first().waitFor();
    assert.notEqual(await page.locator("output").innerText(), "now");
  },

  /** A stream is edited; subjects of another stream are refused with its name. */
  async "edit-a-stream"(desk) {
    await withServer(async (nc) => {
      const manager = await require("@nats-io/jetstream").jetstreamManager(nc);
      await manager.streams.add({ name: "EDITED", subjects: ["edited.>"], max_msg_size: 1000, metadata: { owner: "me" } });
      const page = await desk.page(`${CONSOLE}#/streams/EDITED/configuration`);
      await page.getByRole("button", { name: "Edit…" }).click();
      const dialog = page.getByRole("dialog");
      await dialog.getByLabel("Subjects").fill("edited.> orders.eu.*");
      await dialog.getByLabel("Maximum age").fill("36h");
      await dialog.getByLabel("Maximum size").fill("1.5 GiB");
      await dialog.getByLabel("Time travel").fill("7d");
      await dialog.getByText("Needs permission to publish to $JS.API.STREAM.UPDATE.EDITED").waitFor();
      await accessible(page, "edit a stream");
      await dialog.getByRole("button", { name: "Save" }).click();
      await dialog.getByRole("alert").getByText("orders.eu.* overlaps with stream ORDERS").waitFor();
      await dialog.getByLabel("Subjects").fill("edited.> more.>");
      await dialog.getByRole("button", { name: "Save" }).click();
      await page.getByText("Stream EDITED was changed.").waitFor();
      const { config } = await manager.streams.info("EDITED");
      assert.deepEqual([config.subjects, config.max_age, config.max_bytes, config.max_msg_size], [["edited.>", "more.>"], 36 * 3600 * 1e9, 1.5 * 1024 ** 3, 1000]);
      assert.deepEqual([config.metadata.owner, config.metadata["lakestream.time_travel"]], ["me", "7d"]);
      await page.getByRole("button", { name: "Edit…" }).click();
      assert.equal(await dialog.getByLabel("Maximum age").inputValue(), "36h");
      assert.equal(await dialog.getByLabel("Maximum size").inputValue(), "1.5 GiB");
      await manager.streams.delete("EDITED");
    });
  },

  /** A consumer is created, gives its next message, is paused, reset and deleted. */
  async "the-life-of-a-consumer"(desk) {
    await withServer(async (nc) => {
      const manager = await require("@nats-io/jetstream").jetstreamManager(nc);
      await manager.streams.add({ name: "LIVED", subjects: ["lived.*"] });
      for (const number of [1, 2, 3]) await manager.jetstream().publish(`lived.${number}`, `text ${number}`);
      const page = await desk.page(`${CONSOLE}#/streams/LIVED/consumers`);
      await page.getByRole("button", { name: "Create consumer" }).click();
      const dialog = page.getByRole("dialog");
      await dialog.getByLabel("Name").fill("worker");
      await dialog.getByLabel("Redeliver after").fill("soon");
      await dialog.getByRole("alert").getByText("Cannot read “soon” as a duration").waitFor();
      await dialog.getByLabel("Redeliver after").fill("5m");
      await accessible(page, "create a consumer");
      await dialog.getByRole("button", { name: "Create consumer" }).click();
      const detail = page.getByRole("region", { name: "Consumer worker" });
      await detail.getByRole("button", { name: "Next message" }).click();
      const message = detail.getByRole("article", { name: "Message 1", exact: true });
      await message.getByText("text 1").first().waitFor();
      await accessible(page, "a consumer and its message");
      await look(page, "consumer", "light");
      await message.getByRole("button", { name: "Ack", exact: true }).click();
      await page.getByText("Message 1 was acked.").waitFor();
      let info = await manager.consumers.info("LIVED", "worker");
      assert.deepEqual([info.ack_floor.stream_seq, info.num_ack_pending, info.config.ack_wait], [1, 0, 300 * 1e9]);
      await detail.getByRole("button", { name: "Next message" }).click();
      await detail.getByRole("article").getByRole("button", { name: "Give back" }).click();
      await page.getByText("Message 2 was given back.").waitFor();
      await detail.getByRole("button", { name: "Pause…" }).click();
      await dialog.getByLabel("For").fill("2h");
      await dialog.getByRole("button", { name: "Pause", exact: true }).click();
      await detail.getByText("Paused until").waitFor();
      assert.equal((await manager.consumers.info("LIVED", "worker")).paused, true);
      await detail.getByRole("button", { name: "Resume" }).click();
      await detail.getByText("Paused until").waitFor({ state: "detached" });
      await detail.getByRole("button", { name: "Reset…" }).click();
      assert.ok(await dialog.getByRole("button", { name: "Reset" }).isDisabled());
      await dialog.getByLabel("From sequence").fill("1");
      await dialog.getByLabel("Type worker").fill("worker");
      await dialog.getByRole("button", { name: "Reset" }).click();
      await page.getByText("Consumer worker was reset.").waitFor();
      info = await manager.consumers.info("LIVED", "worker");
      assert.deepEqual([info.num_pending, info.delivered.stream_seq], [3, 0]);
      await detail.getByRole("button", { name: "Delete…" }).click();
      await dialog.getByLabel("Type worker").fill("worker");
      await dialog.getByRole("button", { name: "Delete consumer" }).click();
      await page.getByText("Nobody consumes this stream").waitFor();
      await manager.streams.delete("LIVED");
    });
  },

  /** A file is put into a store, found there by another client, replaced, and downloaded. */
  async "upload-an-object"(desk) {
    const { Objm } = require("@nats-io/obj");
    await withServer(async (nc, js) => {
      const store = await new Objm(js).create("uploads");
      const page = await desk.page(`${CONSOLE}#/objects/uploads`);
      const dialog = page.getByRole("dialog");
      const content = Buffer.from("line of text\n".repeat(60_000));
      const put = async (buffer) => {
        await page.getByRole("button", { name: "Upload…" }).click();
        await dialog.getByLabel("File").setInputFiles({ name: "long.txt", mimeType: "text/plain", buffer });
      };
      await put(content);
      await accessible(page, "upload");
      await dialog.getByLabel("Name").fill("texts/long.txt");
      await dialog.getByRole("button", { name: "Upload", exact: true }).click();
      await page.getByText("texts/long.txt is stored.").waitFor({ timeout: 3 * WAIT });
      assert.deepEqual(Buffer.from(await store.getBlob("texts/long.txt")), content); // which checks the digest
      assert.equal((await store.info("texts/long.txt")).chunks, 3);
      await put(Buffer.from("short"));
      await dialog.getByLabel("Name").fill("texts/long.txt");
      await dialog.getByText("and will be replaced").waitFor();
      await dialog.getByRole("button", { name: "Upload", exact: true }).click();
      await page.getByText("5 B", { exact: true }).first().waitFor();
      assert.equal((await store.status()).streamInfo.state.messages, 2); // an entry and a chunk
      const [saved] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download" }).click()]);
      assert.equal(readFileSync(await saved.path(), "utf8"), "short");
      await store.destroy();
    });
  },

  /** A message is found by its payload, and sent again with its headers, but not as a duplicate. */
  async "search-and-resend"(desk) {
    await withServer(async (nc) => {
      const manager = await require("@nats-io/jetstream").jetstreamManager(nc);
      await manager.streams.add({ name: "FOUND", subjects: ["found.>"], allow_direct: true });
      const { headers } = require("@nats-io/transport-node");
      for (let number = 1; number <= 20; number++) {
        const given = headers();
        given.set("Nats-Msg-Id", `id-${number}`);
        given.set("Colour", "blue");
        await manager.jetstream().publish(`found.${number % 2 ? "odd" : "even"}`, `needle's number ${number} 100%`, { headers: given });
      }
      const page = await desk.page(`${CONSOLE}#/streams/FOUND`);
      await page.getByLabel("Payload contains").fill("needle's number 1");
      await page.getByLabel("Payload contains").press("Enter");
      await page.getByText("1 to 19, newest first").waitFor({ timeout: 3 * WAIT });
      assert.equal(await page.getByRole("article").count(), 11);
      await page.getByLabel("Subject").fill("found.odd");
      await page.getByLabel("Subject").press("Enter");
      await page.waitForFunction(() => document.querySelectorAll("article").length === 6);
      await accessible(page, "found messages");
      const found = page.getByRole("article", { name: "Message 13", exact: true });
      await found.getByRole("button").first().click();
      await found.getByText("Colour").waitFor();
      await found.getByRole("button", { name: "Resend…" }).click();
      const dialog = page.getByRole("dialog", { name: "Resend message 13" });
      assert.equal(await dialog.getByLabel("Headers").inputValue(), "Colour: blue");
      await dialog.getByRole("button", { name: "Resend" }).click();
      await page.getByText("Stored in FOUND as 21").waitFor();
      const again = await manager.streams.getMessage("FOUND", { seq: 21 });
      assert.deepEqual([again.subject, again.string(), again.header.get("Colour")], ["found.odd", "needle's number 13 100%", "blue"]);
      await page.getByLabel("Payload contains").fill("nothing of the kind");
      await page.getByLabel("Payload contains").press("Enter");
      await page.getByText("No payload contains “nothing of the kind”").waitFor({ timeout: 3 * WAIT });
      await manager.streams.delete("FOUND");
    });
  },

  /** A bucket is restored as of the moment of the slider into a new one. */
  async "restore-a-bucket"(desk) {
    const { Kvm } = require("@nats-io/kv");
    await withServer(async (nc, js) => {
      const page = await desk.page(`${CONSOLE}#/buckets/conf`);
      const bucket = await new Kvm(js).open("conf");
      const found = [];
      for await (const entry of await bucket.history({ key: "db.host" })) found.push(entry);
      const second = found.find((entry) => entry.string() === "10.0.0.8").created.getTime();
      await page.getByRole("slider").fill(String(second - 1));
      await page.getByText("10.0.0.7").first().waitFor();
      await page.getByRole("button", { name: "Restore…" }).click();
      const dialog = page.getByRole("dialog");
      await dialog.getByLabel("New name").fill("conf-then");
      await accessible(page, "restore");
      await dialog.getByRole("button", { name: "Restore", exact: true }).click();
      await dialog.getByText("KV_conf-then").waitFor({ timeout: 6 * WAIT });
      await dialog.getByRole("button", { name: "Open" }).click();
      await page.getByRole("heading", { level: 1, name: "conf-then" }).waitFor();
      const restored = await new Kvm(js).open("conf-then");
      assert.equal((await restored.get("db.host")).string(), "10.0.0.7");
      await restored.put("db.host", "new");
      assert.equal((await restored.get("db.host")).string(), "new");
      await restored.destroy();
    });
  },

  /** The past of a bucket whose stream allows no direct gets is read by SQL. */
  async "the-slider-without-direct-gets"(desk) {
    await withServer(async (nc) => {
      const manager = await require("@nats-io/jetstream").jetstreamManager(nc);
      const config = { name: "KV_plain", subjects: ["$KV.plain.>"], max_msgs_per_subject: 5, allow_direct: false, allow_rollup_hdrs: true,
        metadata: { "lakestream.time_travel": "30d" } };
      await manager.streams.add(config);
      const js = manager.jetstream();
      await js.publish("$KV.plain.colour", "blue");
      const { state } = await manager.streams.info("KV_plain");
      await new Promise((done) => setTimeout(done, 50)); // the next write has a millisecond of its own
      await js.publish("$KV.plain.colour", "green");
      await js.publish("$KV.plain.size", "large");
      const page = await desk.page(`${CONSOLE}#/buckets/plain`);
      await page.getByRole("cell", { name: "green" }).waitFor();
      await page.getByRole("slider").fill(String(Date.parse(state.last_ts) + 10));
      await page.getByRole("cell", { name: "blue" }).waitFor({ timeout: 3 * WAIT });
      assert.equal(await page.getByRole("button", { name: "size", exact: true }).count(), 0);
      await manager.streams.delete("KV_plain");
    });
  },

  /** A statement goes on while other pages are shown, can be cancelled, and is in the history and in a link. */
  async "the-life-of-a-statement"(desk) {
    desk.expected.push(/\/console\/api\/sql/); // the cancelled and the wrong statement
    const page = await desk.page(`${CONSOLE}#/sql`);
    const field = page.getByLabel("Statement");
    const columns = page.getByRole("button", { name: "Columns of ORDERS" });
    await columns.click();
    await page.getByRole("button", { name: "subject", exact: true }).waitFor({ timeout: 3 * WAIT });
    await accessible(page, "columns");
    await field.fill("SELECT count(*) AS lasted FROM range(10000000000) a, range(1000000) b");
    assert.equal(await page.locator(".code-field .s-word").first().innerText(), "SELECT");
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await page.getByText(/^running for \d s/).waitFor();
    await go(page, "/streams");
    await page.getByRole("link", { name: "ORDERS" }).waitFor();
    await go(page, "/sql");
    await page.getByText(/^running for \d+ s/).waitFor();
    assert.match(await field.inputValue(), /lasted/);
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.getByRole("alert").getByText("the query was cancelled").waitFor({ timeout: 2 * WAIT });
    await field.fill("SELECT seq,\n  nothing\nFROM ORDERS");
    await field.press("Control+Enter");
    const error = page.getByRole("alert").getByText("line 2");
    await error.waitFor({ timeout: 3 * WAIT });
    assert.match(await error.innerText(), /nothing.*\n[\s\S]*line 2[\s\S]*\n\s*\^/);
    await field.fill("SELECT max(seq) AS newest FROM ORDERS");
    await field.press("Control+Enter");
    await page.getByText("1 row").waitFor({ timeout: 3 * WAIT });
    await go(page, "/live");
    await page.getByText("Choose a subject to follow").waitFor();
    await go(page, "/sql");
    await page.getByRole("columnheader", { name: "newest" }).waitFor(); // the result is there still
    await page.getByRole("button", { name: "History", exact: true }).click();
    await accessible(page, "history of statements");
    assert.equal(await page.getByRole("listitem").count(), 3);
    await page.getByRole("button", { name: /lasted/ }).click();
    assert.match(await field.inputValue(), /lasted/);
    await page.getByRole("button", { name: "Share" }).click();
    await page.getByText("link to this statement").waitFor();
    const other = await desk.page(page.url());
    await other.waitForFunction(() => document.querySelector("#sql-text")?.value.includes("lasted"));
    await page.getByRole("button", { name: "Forget them" }).click();
    assert.equal(await page.getByRole("listitem").count(), 0);
  },

  /** A table is opened at one of its versions. */
  async "a-table-at-a-version"(desk) {
    const page = await desk.page(`${CONSOLE}#/streams/ORDERS/table`);
    await page.getByRole("region", { name: "Last commits" }).getByRole("link").first().click();
    await page.getByRole("heading", { level: 1, name: "SQL" }).waitFor();
    await page.waitForFunction(() => /VERSION AS OF \d+/.test(document.querySelector("#sql-text")?.value));
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await page.getByText("100 rows").waitFor({ timeout: 3 * WAIT });
  },

  /** A user of the system account closes a connection; others see why they cannot. */
  async "kick-a-connection"(desk) {
    desk.expected.push(/401.*\/console\/api\/session/);
    const { hostname } = new URL(ACCOUNTS);
    const client = await connect(`nats://${hostname}:${process.env.ACCOUNTS_PORT}`, { user: "bob", pass: "secret", name: "to be kicked" });
    const page = await desk.page(ACCOUNTS);
    await logIn(page, "sys");
    await go(page, "/connections");
    const row = page.getByRole("row", { name: /to be kicked/ });
    const button = row.getByRole("button", { name: /Kick connection/ });
    const cid = /\d+$/.exec(await button.getAttribute("aria-label"))[0];
    await button.click();
    const dialog = page.getByRole("dialog");
    await dialog.getByText(/Needs permission to publish to \$SYS\.REQ\.SERVER\..*\.KICK/).waitFor();
    await dialog.getByLabel(`Type ${cid}`).fill(cid);
    await dialog.getByRole("button", { name: "Kick" }).click();
    await page.getByText(`Connection ${cid} is closed.`).waitFor();
    await client.closed();
    await row.waitFor({ state: "detached" });
    const other = await desk.page(ACCOUNTS);
    await logIn(other, "bob");
    await go(other, "/connections");
    await other.getByText("A user of the system account can close connections here.").waitFor();
    assert.equal(await other.getByRole("button", { name: /Kick/ }).count(), 0);
  },

  /** The leader of a stream's group steps down, and another node leads. */
  async "step-down-a-leader"(desk) {
    const page = await desk.page(`${CLUSTER}#/cluster`);
    await page.getByRole("region", { name: "Raft groups" }).getByRole("button", { name: "Step down the leader of PAYMENTS" }).click();
    const leader = () => page.evaluate(async () => {
      const { csrf } = await (await fetch("console/api/session")).json();
      const body = JSON.stringify({ subject: "$JS.API.STREAM.INFO.PAYMENTS" });
      const answer = await fetch("console/api/request", { method: "POST", body, headers: { "Content-Type": "application/json", "X-Lakestream-Csrf": csrf } });
      return JSON.parse(atob((await answer.json()).replies[0].data_base64)).cluster.leader;
    });
    const before = await leader();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Type PAYMENTS").fill("PAYMENTS");
    await dialog.getByRole("button", { name: "Step down" }).click();
    await page.getByText("The leader of PAYMENTS hands over leadership.").waitFor();
    await until(async () => (await leader()) !== before);
  },

  /** The page says when tables are maintained next, or that no compactor does it. */
  async "maintenance-of-a-table"(desk) {
    const page = await desk.page(`${CONSOLE}#/streams/ORDERS/table`);
    const button = page.getByRole("button", { name: "Maintain now" });
    await button.waitFor();
    if (process.env.COMPACTOR) {
      await page.getByText(/Next maintenance in \d/).waitFor();
      await button.click();
      await page.getByText(/Last, .* ago: ORDERS: /).waitFor({ timeout: 6 * WAIT });
    } else {
      await page.getByText("Without a compactor tables are not maintained.").waitFor();
      assert.ok(await button.isDisabled());
    }
  },

  /** The newest misfits show with reason and payload. Once the schema is mended, the button has them decoded again. */
  async "replay-misfits"(desk) {
    const asked = async (nc, name, body) => (await nc.request(`$LAKE.API.SCHEMA.${name}.typed`, JSON.stringify(body), { timeout: WAIT })).json();
    const version = (type) => ({
      format: "json", text: JSON.stringify({ type: "object", properties: { n: { type } } }), compatibility: "none",
    });
    await withCompactor(() => withServer(async (nc, js) => {
      const manager = await require("@nats-io/jetstream").jetstreamManager(nc);
      assert.equal((await asked(nc, "ADD", version("integer"))).version, 1);
      const metadata = { "lakestream.schema": "typed" };
      await manager.streams.add({ name: "TYPED", subjects: ["typed.*"], metadata });
      await js.publish("typed.one", '{"n": 1}');
      await js.publish("typed.two", '{"n": "x"}');
      try {
        const page = await desk.page(`${CONSOLE}#/streams/TYPED/table`);
        const row = page.getByRole("table", { name: "Newest misfits" }).getByRole("row").filter({ hasText: "typed.two" });
        await row.getByText('"x" is not of type "integer"').waitFor({ timeout: 2 * BUSY });
        const text = await row.innerText();
        for (const part of ["typed@1", "type", '{"n": "x"}']) assert.ok(text.includes(part), text);
        await page.getByText("1 message did not fit the schema.").waitFor();
        await accessible(page, "misfits");
        await look(page, "misfits", "light");
        assert.equal((await asked(nc, "ADD", version(["string", "integer"]))).version, 2);
        await page.getByRole("button", { name: "Replay misfits" }).click();
        await page.getByText("All misfits fit by now, or are gone.").waitFor({ timeout: 2 * BUSY });
        assert.equal(await row.count(), 0);
        await go(page, `/sql?query=${encodeURIComponent("SELECT schema FROM TYPED WHERE seq = 2")}`);
        await page.getByRole("button", { name: "Run", exact: true }).click();
        await page.getByRole("cell", { name: "typed@2" }).waitFor({ timeout: 3 * WAIT });
      } finally {
        await manager.streams.delete("TYPED");
        await asked(nc, "DELETE", { force: true });
      }
    }));
  },

  /** Messages are found by sequence, subject and time, and shown as JSON, text and hex with their headers. */
  async "browse-messages"(desk) {
    const page = await desk.page(`${CONSOLE}#/streams/ORDERS`);
    await page.getByLabel("From sequence").fill("7");
    await page.getByLabel("From sequence").press("Enter");
    const seventh = page.getByRole("article", { name: "Message 7", exact: true });
    await seventh.waitFor();
    assert.equal(await page.getByRole("article").first().getAttribute("aria-label"), "Message 7");
    await seventh.getByRole("button").first().click();
    await seventh.getByText("Content-Type").waitFor();
    await seventh.getByRole("region", { name: "Payload as JSON" }).getByText('"currency"').waitFor();
    await seventh.getByRole("button", { name: "Hex" }).click();
    assert.match(await seventh.getByRole("region", { name: "Payload as Hex" }).innerText(), /^00000000 {2}7b 22 /);
    await page.getByRole("button", { name: "Oldest" }).click();
    await page.getByRole("article", { name: "Message 1", exact: true }).waitFor();
    await page.getByLabel("Subject").fill("orders.us.>");
    await page.getByLabel("Subject").press("Enter");
    await page.waitForFunction(() => {
      const subjects = [...document.querySelectorAll(".message-subject")].map((each) => each.textContent);
      return subjects.length > 0 && subjects.every((subject) => subject.startsWith("orders.us."));
    });
    await page.getByLabel("Subject").fill("");
    await page.getByLabel("Subject").press("Enter");
    await page.getByLabel("From time").fill("2020-01-01T00:00:00");
    await page.getByRole("article", { name: "Message 1", exact: true }).waitFor();
    await page.getByLabel("From time").fill("2099-01-01T00:00:00");
    await page.getByText("There are no messages from here on").waitFor();
    await page.getByRole("button", { name: "Newest", exact: true }).click();
    await page.getByRole("article").first().waitFor();
  },

  /** Streams without direct gets are browsed too. */
  async "browse-without-direct-gets"(desk) {
    await withServer(async (nc) => {
      const { jetstreamManager } = require("@nats-io/jetstream");
      const manager = await jetstreamManager(nc);
      await manager.streams.add({ name: "PLAIN", subjects: ["plain.>"], allow_direct: false });
      const js = manager.jetstream();
      for (const number of [1, 2, 3]) await js.publish(`plain.${number}`, `text ${number}`);
      const page = await desk.page(`${CONSOLE}#/streams/PLAIN`);
      await page.getByRole("article").filter({ hasText: "text 1" }).waitFor();
      assert.equal(await page.getByRole("article").count(), 3);
      await page.getByLabel("From time").fill("2020-01-01T00:00:00");
      await page.getByText("1 to 3, oldest first").waitFor();
      await manager.streams.delete("PLAIN");
    });
  },

  /** The time slider shows the value that a key had, and the key that was deleted. */
  async "the-slider-shows-the-old-value"(desk) {
    const page = await desk.page(`${CONSOLE}#/buckets/conf/db.host`);
    const value = page.getByRole("region", { name: "Payload as Text" });
    const keys = page.getByRole("region", { name: "Keys" });
    await value.getByText("10.0.0.8").waitFor();
    assert.equal(await keys.getByRole("button", { name: "old.key" }).count(), 0);
    const times = await withServer(async (nc, js) => {
      const { Kvm } = require("@nats-io/kv");
      const bucket = await new Kvm(js).open("conf");
      const found = [];
      for await (const entry of await bucket.history({ key: ["db.host", "old.key"] })) found.push(entry);
      return found;
    });
    const second = times.find((entry) => entry.key === "db.host" && entry.string() === "10.0.0.8").created.getTime();
    const removed = times.find((entry) => entry.key === "old.key" && entry.operation === "DEL").created.getTime();
    const slider = page.getByRole("slider");
    await slider.fill(String(second - 1));
    await value.getByText("10.0.0.7").waitFor();
    await slider.fill(String(removed - 1));
    await value.getByText("10.0.0.8").waitFor();
    await page.getByRole("region", { name: "Keys at" }).getByRole("button", { name: "old.key" }).waitFor();
    await picture(page, "time-slider");
    for (let step = 0; step < 20 && !(await value.getByText("10.0.0.7").isVisible()); step++) {
      const before = await page.locator("output").innerText();
      await page.getByRole("button", { name: "Previous change" }).click();
      await page.waitForFunction((text) => document.querySelector("output").textContent !== text, before);
      await page.waitForTimeout(250); // the slider asks once it rests
    }
    await value.getByText("10.0.0.7").waitFor();
    await page.getByRole("button", { name: "Now", exact: true }).click();
    await value.getByText("10.0.0.8").waitFor();
  },

  /** Keys are put, edited and deleted. */
  async "write-keys"(desk) {
    const page = await desk.page(`${CONSOLE}#/buckets/scratch`);
    await page.getByRole("button", { name: "Put a key" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Key").fill("colour");
    await dialog.getByLabel("Value").fill("blue");
    await dialog.getByRole("button", { name: "Put", exact: true }).click();
    await page.getByRole("button", { name: "colour", exact: true }).click();
    await page.getByRole("region", { name: "Payload as Text" }).getByText("blue").waitFor();
    await page.getByRole("button", { name: "Edit" }).click();
    await dialog.getByLabel("Value").fill("green");
    await dialog.getByRole("button", { name: "Put", exact: true }).click();
    await page.getByRole("region", { name: "Payload as Text" }).getByText("green").waitFor();
    await page.getByRole("region", { name: "Key colour" }).getByRole("button", { name: "Delete…" }).click();
    await dialog.getByLabel("Type colour").fill("colour");
    await dialog.getByRole("button", { name: "Delete key" }).click();
    await page.getByRole("region", { name: "Key colour" }).locator(".tag").waitFor();
  },

  /** A stream is created, published to, purged and deleted; what destroys asks for the name. */
  async "create-publish-purge-delete"(desk) {
    const page = await desk.page(`${CONSOLE}#/streams`);
    const dialog = page.getByRole("dialog");
    await page.getByRole("button", { name: "Create stream" }).click();
    await dialog.getByLabel("Name").fill("TRIED");
    await dialog.getByLabel("Subjects").fill("tried.>");
    await dialog.getByLabel("Maximum age").fill("7 parsecs");
    await dialog.getByRole("alert").getByText("Cannot read “7 parsecs” as a duration").waitFor();
    assert.ok(await dialog.getByRole("button", { name: "Create stream" }).isDisabled());
    await dialog.getByLabel("Maximum age").fill("1h");
    await accessible(page, "dialog");
    await dialog.getByRole("button", { name: "Create stream" }).click();
    await page.getByRole("heading", { level: 1, name: "TRIED" }).waitFor();
    await page.getByText("This stream is empty").waitFor();
    await page.getByRole("button", { name: "Publish" }).click();
    await dialog.getByLabel("Subject").fill("tried.one");
    await dialog.getByLabel("Payload").fill("first");
    await dialog.getByLabel("Headers").fill("Nats-Msg-Id: 1\nColour: blue");
    await dialog.getByRole("button", { name: "Publish" }).click();
    await page.getByText("Stored in TRIED as 1").waitFor();
    await page.getByRole("article").filter({ hasText: "first" }).getByRole("button").first().click();
    await page.getByText("Colour").waitFor();
    await page.getByRole("button", { name: "Purge…" }).click();
    assert.ok(await dialog.getByRole("button", { name: "Purge messages" }).isDisabled());
    await dialog.getByLabel("Type TRIED").fill("TRIE");
    assert.ok(await dialog.getByRole("button", { name: "Purge messages" }).isDisabled());
    await accessible(page, "confirmation");
    await dialog.getByLabel("Type TRIED").fill("TRIED");
    await dialog.getByRole("button", { name: "Purge messages" }).click();
    await page.getByText("Purged 1 message.").waitFor();
    await page.getByText("This stream is empty").waitFor();
    await page.getByRole("button", { name: "Delete…" }).click();
    await dialog.getByLabel("Type TRIED").fill("TRIED");
    await dialog.getByRole("button", { name: "Delete stream" }).click();
    await page.getByRole("heading", { level: 1, name: "Streams" }).waitFor();
    await page.getByRole("link", { name: "TRIED" }).waitFor({ state: "detached" });
  },

  /** A bucket with time travel is created, and deleted. */
  async "create-a-bucket"(desk) {
    const page = await desk.page(`${CONSOLE}#/buckets`);
    const dialog = page.getByRole("dialog");
    await page.getByRole("button", { name: "Create bucket" }).click();
    await dialog.getByLabel("Name").fill("tried");
    await dialog.getByRole("button", { name: "Create bucket" }).click();
    await page.getByRole("heading", { level: 1, name: "tried" }).waitFor();
    await withServer(async (nc, js) => {
      const { Kvm } = require("@nats-io/kv");
      const bucket = await new Kvm(js).open("tried");
      await bucket.put("a.b", "1");
      await page.getByRole("button", { name: "a.b" }).waitFor();
    });
    await page.getByRole("button", { name: "Delete…" }).click();
    await dialog.getByLabel("Type tried").fill("tried");
    await dialog.getByRole("button", { name: "Delete bucket" }).click();
    await page.getByRole("heading", { level: 1, name: "Key-value" }).waitFor();
  },

  /** An object is downloaded whole. */
  async "download-an-object"(desk) {
    const page = await desk.page(`${CONSOLE}#/objects/reports/2026%2Fnovember.csv`);
    const [saved] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download" }).click()]);
    assert.equal(saved.suggestedFilename(), "november.csv");
    const content = readFileSync(await saved.path(), "utf8");
    assert.ok(content.startsWith("day,orders\n") && content.endsWith("\n"));
    assert.equal(content.length, Number(process.env.OBJECT_BYTES));
  },

  /** A bucket with more keys than one answer may have is read page by page, now and as it was. */
  async "a-bucket-with-many-keys"(desk) {
    const { Kvm } = require("@nats-io/kv");
    const { jetstreamManager } = require("@nats-io/jetstream");
    await withServer(async (nc, js) => {
      const bucket = await new Kvm(js).create("many", { history: 2 });
      const names = [...Array(1300).keys()].map((number) => `key.${String(number).padStart(4, "0")}`);
      await Promise.all(names.map((name) => bucket.put(name, `value of ${name}`)));
      const manager = await jetstreamManager(nc);
      const moment = Date.parse((await manager.streams.info("KV_many")).state.last_ts);
      await manager.streams.purge("KV_many", { filter: "$KV.many.key.0007" });
      const page = await desk.page(`${CONSOLE}#/buckets/many`);
      await page.getByText("keys 1 to 200 of 1,299").waitFor();
      await page.getByRole("cell", { name: "value of key.0000" }).waitFor();
      await accessible(page, "a page of many keys");
      await page.getByRole("button", { name: "Next", exact: true }).click();
      await page.getByText("keys 201 to 400 of 1,299").waitFor();
      await page.getByRole("cell", { name: "value of key.0400" }).waitFor();
      await page.getByLabel("Filter keys").fill("1299");
      await page.getByRole("cell", { name: "value of key.1299" }).waitFor();
      assert.equal(await page.getByRole("cell", { name: /^value of/ }).count(), 1);
      await bucket.put("key.1299", "changed");
      await page.getByRole("cell", { name: "changed" }).waitFor();
      await page.getByLabel("Filter keys").fill("0007");
      await page.getByText("No key matches").waitFor();
      await page.getByRole("slider").fill(String(moment));
      await page.getByRole("button", { name: "key.0007", exact: true }).click();
      await page.getByRole("region", { name: "Payload as Text" }).getByText("value of key.0007").waitFor();
      await page.getByLabel("Filter keys").fill("");
      await page.getByText("keys 1 to 200 of 1,300").waitFor();
      await manager.streams.delete("KV_many");
    });
  },

  /** An object is deleted, and downloaded as of the moment before. */
  async "delete-an-object"(desk) {
    const { Objm } = require("@nats-io/obj");
    await withServer(async (nc, js) => {
      const store = await new Objm(js).open("reports");
      const content = "day,orders\n".repeat(20_000);
      const { mtime } = await store.putBlob({ name: "gone.csv", options: { max_chunk_size: 65_536 } }, new TextEncoder().encode(content));
      const page = await desk.page(`${CONSOLE}#/objects/reports/gone.csv`);
      const download = page.getByRole("button", { name: "Download" });
      await download.waitFor();
      const stored = Date.parse(mtime);
      await page.waitForTimeout(50); // the deletion has a millisecond of its own
      await page.getByRole("region", { name: "Object gone.csv" }).getByRole("button", { name: "Delete…" }).click();
      const dialog = page.getByRole("dialog");
      await dialog.getByLabel("Type gone.csv").fill("gone.csv");
      await dialog.getByRole("button", { name: "Delete object" }).click();
      await page.getByText("There is no such object").waitFor();
      assert.equal((await store.info("gone.csv")).deleted, true);
      assert.equal(await store.getBlob("gone.csv"), null);
      await page.getByRole("slider").fill(String(stored + 25));
      await download.waitFor();
      const [saved] = await Promise.all([page.waitForEvent("download"), download.click()]);
      assert.equal(readFileSync(await saved.path(), "utf8"), content);
    });
  },

  /** A statement's rows are shown as a table and as a plot; an error says what is wrong. */
  /** Texts of clients are shown as they are, on every page that shows them: none becomes a part of the page. */
  async "hostile-texts"(desk) {
    desk.expected.push(/400.*\/console\/api\/request/); // of a name that no stream can have
    const text = `<img src=x onerror="hacked=1"><script>hacked=1</script>"'\`{{7*7}}`;
    const subject = "hostile.<img/src=x/onerror=hacked=1>";
    await withServer(async (nc, js) => {
      const { headers } = require("@nats-io/transport-node");
      const manager = await js.jetstreamManager();
      const other = await connect(NATS, { name: text });
      const config = { name: "HOSTILE", subjects: ["hostile.>"], description: text, metadata: { note: text }, allow_direct: true };
      await manager.streams.add(config);
      await manager.consumers.add("HOSTILE", { durable_name: "h", description: text, metadata: { note: text } });
      const head = headers();
      head.set("X-Note", text);
      const publish = () => js.publish(subject, JSON.stringify({ [text]: text }), { headers: head });
      await publish();
      const page = await desk.page(`${CONSOLE}#/streams/HOSTILE`);
      const harmless = async (where) => {
        assert.equal(await page.evaluate(() => globalThis.hacked), undefined, where);
        assert.equal(await page.locator("img[src=x], main script").count(), 0, where);
      };
      const message = page.getByRole("article", { name: "Message 1", exact: true });
      await message.getByText(subject).first().waitFor();
      await message.getByRole("button").first().click();
      await message.getByText(text).first().waitFor();
      await harmless("message");
      await go(page, "/streams/HOSTILE/configuration");
      await page.getByText(text).first().waitFor();
      await harmless("configuration");
      await go(page, "/streams/HOSTILE/consumers");
      await page.getByRole("cell", { name: "h pull" }).waitFor();
      await harmless("consumers");
      await go(page, "/connections");
      await page.getByText(text).first().waitFor();
      await harmless("connections");
      await go(page, "/live?subject=hostile.%3E");
      await page.getByText(/Following/).waitFor();
      await publish();
      await page.getByText(subject).first().waitFor();
      await harmless("live");
      await go(page, "/sql");
      await page.getByLabel("Statement").fill(`SELECT subject, json AS "<img src=x onerror=hacked=1>" FROM HOSTILE LIMIT 1`);
      await page.getByLabel("Statement").press("Control+Enter");
      await page.getByText("1 row").waitFor({ timeout: 3 * WAIT });
      await page.getByRole("columnheader", { name: "<img src=x onerror=hacked=1>" }).waitFor();
      await harmless("sql");
      await go(page, `/streams/${encodeURIComponent(text)}`);
      await page.getByRole("heading", { level: 1 }).waitFor();
      await harmless("a stream that is not there");
      await manager.streams.delete("HOSTILE");
      await other.close();
    });
  },

  /** A page of another site, or of another port of the same host, can do nothing with the session of the console. */
  async "pages-of-others"(desk) {
    desk.expected.push(/./); // the browser reports each refusal
    const body = JSON.stringify({ subject: "$JS.API.STREAM.PURGE.SENSORS" });
    const site = createWebServer((_, response) => response.setHeader("Content-Type", "text/html").end("<h1>another site</h1>"));
    await once(site.listen(0), "listening");
    try {
      await withServer(async (nc, js) => {
        const state = async () => (await (await js.jetstreamManager()).streams.info("SENSORS")).state.messages;
        const before = await state();
        assert.ok(before > 0);
        const page = await desk.page(`${CONSOLE}#/overview`);
        await page.getByText("Busiest streams").waitFor();
        for (const host of ["localhost", "127.0.0.1"]) {
          const other = await page.context().newPage();
          await other.goto(`http://${host}:${site.address().port}/`);
          const found = await other.evaluate(async ([console_, text]) => {
            const at = (path) => new URL(path, console_).href;
            const told = [];
            const tries = [
              () => fetch(at("console/api/session"), { credentials: "include" }).then((answer) => answer.text()),
              () => fetch(at("console/api/request"), { method: "POST", credentials: "include", body: text, headers: { "Content-Type": "application/json" } }).then((answer) => answer.text()),
              () => fetch(at("console/api/request"), { method: "POST", credentials: "include", mode: "no-cors", body: text }).then((answer) => answer.text()),
            ];
            for (const each of tries) told.push(await each().catch(() => "refused"));
            const frame = document.body.appendChild(document.createElement("iframe"));
            await new Promise((done) => { frame.onload = done; frame.src = console_; });
            told.push(frame.contentDocument === null ? "refused" : frame.contentDocument.body.innerText);
            return told;
          }, [CONSOLE, body]);
          assert.deepEqual(found.map((each) => each || "refused"), ["refused", "refused", "refused", "refused"], host);
          await other.setContent(`<form method=post enctype=text/plain action="${new URL("console/api/request", CONSOLE).href}"><input name='${body.slice(0, -1)}, "x": "' value='"}'></form>`);
          await Promise.all([other.waitForNavigation(), other.evaluate(() => document.forms[0].submit())]);
          assert.match(await other.locator("body").innerText(), /40[013]|origin|Csrf|error/i, host);
          await other.close();
        }
        assert.equal(await state(), before);
        await page.reload();
        await page.getByText("Busiest streams").waitFor();
      });
    } finally {
      site.close();
    }
  },

  async "ask-in-sql"(desk) {
    desk.expected.push(/\/console\/api\/sql/); // the refused statement
    const page = await desk.page(`${CONSOLE}#/sql`);
    await page.getByLabel("Statement").fill("SELECT seq, seq * 2 AS twice FROM delta.`streams/ORDERS` ORDER BY seq LIMIT 40");
    await page.getByLabel("Statement").press("Control+Enter");
    await page.getByText("40 rows").waitFor({ timeout: 3 * WAIT });
    await page.getByRole("cell", { name: "80", exact: true }).waitFor();
    await page.getByRole("button", { name: "Plot" }).click();
    await page.locator("canvas").waitFor();
    await accessible(page, "plot of a result");
    await page.getByLabel("Statement").fill("SELECT count(*) FROM ord");
    await page.getByLabel("Statement").press("Tab");
    await page.waitForFunction(() => /FROM ORDERS$/.test(document.querySelector("#sql-text").value), null, { timeout: 3 * WAIT });
    await page.getByLabel("Statement").fill("SELECT * FROM ORDERS o WHERE o.subject_b");
    await page.getByLabel("Statement").press("Tab");
    await page.waitForFunction(() => /WHERE o\.subject_bytes$/.test(document.querySelector("#sql-text").value), null, { timeout: 3 * WAIT });
    await page.getByLabel("Statement").fill("SELECT nothing FROM nowhere");
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await page.getByRole("alert").waitFor({ timeout: 3 * WAIT });
  },

  /** A session that is lost, as after a restart of the server, begins anew by itself where no login is needed. */
  async "a-lost-session-begins-anew"(desk) {
    desk.expected.push(/401.*\/console\/api\//);
    const page = await desk.page(`${CONSOLE}#/streams/AUDIT`);
    await page.getByRole("article").first().waitFor();
    await page.context().clearCookies();
    await withServer(async (nc, js) => {
      const mark = `audit.mark.${Date.now()}`;
      await js.publish(mark, "after");
      await page.getByRole("article").filter({ hasText: mark }).waitFor();
    });
  },

  /** Where a login is needed, the page of a lost session asks for it. */
  async "a-lost-session-asks-for-the-login"(desk) {
    desk.expected.push(/401.*\/console\/api\//);
    const page = await desk.page(USERS);
    await logIn(page, "ann");
    await page.context().clearCookies();
    await page.getByText("The session has ended").waitFor();
    await page.getByRole("button", { name: "Log in" }).waitFor();
  },

  /** Conversions of numbers, times, payloads and histograms, which need no page. */
  async conversions() {
    const lib = new URL("../../../../packages/console/lakestream_console/static/js/lib/", import.meta.url);
    const [format, bytes, units, { Sha256 }] = await Promise.all(
      ["format.js", "bytes.js", "units.js", "sha256.js"].map((name) => import(new URL(name, lib))),
    );
    assert.equal(format.bytes(1536), "1.5 KiB");
    assert.equal(format.bytes(undefined), format.NONE);
    assert.deepEqual([0, 1, 1200].map((number) => format.counted(number, "subject")), ["0 subjects", "1 subject", "1,200 subjects"]);
    assert.deepEqual([0, 0.00042, 0.0312, 7.25, 3661, 90000].map(format.span), [
      "0 s", "420 µs", "31.2 ms", "7.3 s", "1 h 1 min", "1 d 1 h",
    ]);
    assert.deepEqual(["18m15s", "438.687µs", "1d2h3m4s", ""].map(format.elapsed), ["18 min 15 s", "438.7 µs", "1 d 2 h", format.NONE]);
    assert.deepEqual(["30d", "1h 30m", "90s", "soon", "10"].map(format.seconds), [2592000, 5400, 90, NaN, NaN]);
    assert.deepEqual(["10 GiB", "512M", "7", "many"].map(format.size), [10737418240, 536870912, 7, NaN]);
    assert.ok(Number.isNaN(format.millis("0001-01-01T00:00:00Z")));
    assert.equal(bytes.toPrettyJson('{"big":12345678901234567890,"list":[],"text":"a:{b}"}'), '{\n  "big": 12345678901234567890,\n  "list": [],\n  "text": "a:{b}"\n}');
    assert.equal(bytes.toPrettyJson("12"), null);
    assert.equal(bytes.toText(new Uint8Array([0xff, 0xfe])), null);
    assert.equal(bytes.toHex(new TextEncoder().encode("lakestream console")).split("\n")[1], "00000010  6c 65                                             le");
    assert.deepEqual([...bytes.fromBase64(bytes.textToBase64("€"))], [0xe2, 0x82, 0xac]);
    assert.deepEqual(units.labels("count", [0, 5000, 10000, 15000]), ["0", "5k", "10k", "15k"]);
    assert.deepEqual(units.labels("count", [1000, 1250, 1500]), ["1.00k", "1.25k", "1.50k"]);
    assert.deepEqual(units.labels("time", [0, 0.0005, 0.001]), ["0", "0.5 ms", "1.0 ms"]);
    assert.deepEqual(units.labels("time", [0, 20, 40, 60]), ["0", "20 s", "40 s", "60 s"]);
    assert.deepEqual(units.labels("time", [0, 30, 60, 90]), ["0", "0.5 min", "1.0 min", "1.5 min"]);
    assert.deepEqual(units.labels("bytes", [0, 512, 1024]), ["0", "0.5 KiB", "1.0 KiB"]);
    for (const kind of ["count", "bytes", "time", "percent"]) {
      for (let step = 1e-4; step < 1e12; step *= 5) {
        const labels = units.labels(kind, [1, 2, 3, 4, 5].map((number) => number * step));
        assert.equal(new Set(labels).size, 5, `${kind} ${labels}`);
      }
    }
    const { createHash } = await import("node:crypto");
    for (const length of [0, 1, 55, 56, 63, 64, 65, 1000]) {
      const data = new Uint8Array(length).map((_, at) => at * 7);
      const mine = new Sha256().add(data.subarray(0, length >> 1)).add(data.subarray(length >> 1)).end();
      assert.equal(Buffer.from(mine).toString("hex"), createHash("sha256").update(data).digest("hex"));
    }
  },

  /** Everything can be done with the keyboard: skip link, shortcuts, dialogs. */
  async keyboard(desk) {
    const page = await desk.page();
    await page.getByRole("heading", { level: 1, name: "Overview" }).waitFor();
    await page.keyboard.press("Tab");
    await page.getByRole("link", { name: "Skip to the page" }).press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "main");
    await page.keyboard.press("g");
    await page.keyboard.press("s");
    await page.getByLabel("Filter by name or subject").waitFor(); // it comes with the list
    await page.keyboard.press("/");
    assert.equal(await page.evaluate(() => document.activeElement.id), "streams-filter");
    await page.keyboard.type("g s?"); // letters in a field are no shortcuts
    assert.equal(await page.getByLabel("Filter by name or subject").inputValue(), "g s?");
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
    await accessible(page, "shortcuts");
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await page.keyboard.press("t");
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "light");
    await page.keyboard.press("t");
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
    await page.reload();
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  },

  /** A login with a wrong password is refused, with the right one it succeeds; a logout ends the session. */
  async "login-and-logout"(desk) {
    desk.expected.push(/401.*\/console\/api\/(session|login)/);
    const page = await desk.page(USERS);
    await page.getByLabel("User").fill("ann");
    await page.getByLabel("Password").fill("wrong");
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByRole("alert").getByText("Authorization Violation").waitFor();
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await accessible(page, `login, ${colorScheme}`);
    }
    await page.setViewportSize(PHONE);
    await fits(page, "login");
    await page.setViewportSize(DESK);
    await page.getByLabel("Password").fill("secret");
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByRole("heading", { level: 1, name: "Overview" }).waitFor();
    await page.reload();
    await page.getByRole("heading", { level: 1, name: "Overview" }).waitFor();
    await page.getByText("ann", { exact: true }).waitFor();
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByRole("button", { name: "Log in" }).waitFor();
    await page.reload();
    await page.getByRole("button", { name: "Log in" }).waitFor();
    assert.ok(!page.url().includes("secret"));
  },

  /** A user without the permission to purge sees the refusal, and the messages stay. */
  async "permissions-are-respected"(desk) {
    desk.expected.push(/401.*\/console\/api\/session/, /403.*\/console\/api\/request/);
    const page = await desk.page(USERS);
    await logIn(page, "reader");
    await go(page, "/streams/GUARDED");
    await page.getByRole("article").first().waitFor();
    await page.getByRole("button", { name: "Purge…" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Type GUARDED").fill("GUARDED");
    await dialog.getByRole("button", { name: "Purge messages" }).click();
    await dialog.getByRole("alert").getByText(/permissions violation/i).waitFor();
    await accessible(page, "refusal");
    await page.keyboard.press("Escape");
    assert.ok((await page.getByRole("article").count()) > 0);
  },

  /** The overview plots the time to the ack while messages are stored. */
  async "time-to-the-ack"(desk) {
    const page = await desk.page(`${CONSOLE}#/overview`);
    const plot = page.getByRole("figure", { name: "Time to the ack" });
    await plot.waitFor();
    let stored = false;
    const publishing = withServer(async (nc, js) => {
      for (const until = Date.now() + 3 * WAIT; !stored && Date.now() < until; ) {
        await js.publish("audit.ack", "x");
        await new Promise((done) => setTimeout(done, 50));
      }
    });
    const times = plot.getByText(/^(p50|p99|fsync p99) [\d.]+ (µs|ms|s)$/);
    await times.nth(2).waitFor({ timeout: 2 * WAIT });
    stored = true;
    await publishing;
    await plot.locator("canvas").waitFor();
  },

  /** Without the library of plots, a page shows everything else. */
  async "without-plots"(desk) {
    desk.expected.push(/uplot\.js$/);
    const page = await desk.page("about:blank");
    await page.route("**/uplot.js", (route) => route.abort());
    await page.goto(`${CONSOLE}#/overview`);
    await page.getByText("This browser cannot draw the plot.").first().waitFor();
    await page.getByText("Busiest streams").waitFor();
  },

  /** A user of an account sees nothing of other accounts on any page, and none of the server's own figures. */
  async "an-account-sees-its-own"(desk) {
    desk.expected.push(/401.*\/console\/api\/session/);
    const page = await desk.page(ACCOUNTS);
    const answers = [];
    const asked = [];
    page.on("response", (response) => {
      asked.push(new URL(response.url()).pathname);
      if (response.url().includes("/api/") && !response.url().includes("/live")) answers.push(response.text().catch(() => ""));
    });
    await logIn(page, "bob");
    await page.getByRole("figure", { name: "Bytes per second" }).waitFor();
    for (const route of ["/overview", "/streams", "/buckets", "/objects", "/live?subject=%3E", "/sql", "/cluster", "/connections"]) {
      await go(page, route);
      await page.waitForTimeout(2 * SOON); // two samples
      const text = await page.getByRole("main").innerText();
      assert.ok(!/ANN|ann/.test(text), `${route}: ${text}`);
    }
    await go(page, "/streams/OF_BOB");
    await page.getByRole("article").first().waitFor();
    await go(page, "/streams/OF_ANN");
    await page.getByText("There is no such stream").waitFor();
    for (const path of ["/metrics", "/routez", "/latencies"]) assert.ok(!asked.some((each) => each.endsWith(path)), path);
    assert.deepEqual((await Promise.all(answers)).filter((text) => /OF_ANN|"ann"|"A"/.test(text)), []);
  },

  /** The system account sees all accounts, and the server's own figures. */
  async "the-system-account-sees-all"(desk) {
    desk.expected.push(/401.*\/console\/api\/session/);
    const page = await desk.page(ACCOUNTS);
    await logIn(page, "sys");
    await page.getByRole("figure", { name: "Time to the ack" }).waitFor();
    await go(page, "/streams");
    await page.getByText("OF_ANN").first().waitFor();
    await page.getByText("OF_BOB").first().waitFor();
    await page.getByRole("link", { name: "OF_ANN" }).click();
    await page.getByText("it sees the figures of all accounts, but not their messages").waitFor();
    await go(page, "/streams");
    await page.getByText("OF_BOB").first().waitFor();
    assert.equal(await page.getByRole("button", { name: "Create stream" }).count(), 0);
    await accessible(page, "streams of all accounts");
    await go(page, "/buckets");
    await page.getByText("JetStream is off").waitFor();
    await go(page, "/cluster");
    await page.getByText("This server runs alone").waitFor();
  },

  /** The page Cluster shows the nodes, and the roles, terms and lags of the Raft groups. */
  async "the-cluster"(desk) {
    const page = await desk.page(`${CLUSTER}#/cluster`);
    const nodes = page.getByRole("region", { name: "Nodes" });
    const groups = page.getByRole("region", { name: "Raft groups" });
    for (const name of ["n1", "n2", "n3"]) await nodes.getByRole("cell", { name: new RegExp(`^${name}`) }).waitFor();
    await nodes.getByText("meta leader").waitFor();
    await groups.getByRole("row", { name: /^_meta_ \$SYS (leader|follower) \d+ 3 quorum 2 / }).waitFor();
    await groups.getByRole("row", { name: /^ORDERS \$G (leader|follower) \d+ 3 quorum 2 / }).waitFor();
    await page.getByText("Every replica is in place and up to date").waitFor();
    await accessible(page, "cluster");
    await picture(page, "cluster");
    await page.setViewportSize(PHONE);
    await fits(page, "cluster");
  },

  /** Pictures for the documentation; without PICTURES it checks only that the plots fill. */
  async pictures(desk) {
    for (const scheme of ["light", "dark"]) {
      const page = await desk.page(`${CONSOLE}#/overview`, { scheme });
      const busy = withServer(async (nc, js) => {
        const until = Date.now() + (PICTURES ? BUSY : WAIT);
        for (let number = 0; Date.now() < until; number++) {
          await js.publish(`orders.${["eu", "us", "apac"][number % 3]}.${number % 97}`, JSON.stringify({ id: number, currency: "EUR", total: number % 300 }));
          if (number % 4 === 0) await js.publish(`sensors.${number % 9}.temp`, String(18 + (number % 7)));
          await new Promise((done) => setTimeout(done, 8 + 14 * (1 + Math.sin(Date.now() / 4000))));
        }
      });
      await page.locator("canvas").first().waitFor();
      if (PICTURES) await page.waitForTimeout(BUSY - WAIT);
      const suffix = scheme === "dark" ? "-dark" : "";
      await picture(page, `overview${suffix}`);
      for (const name of scheme === "light" ? ["streams", "messages", "table", "consumers", "bucket", "sql"] : ["messages"]) {
        await go(page, PAGES[name][0]);
        await PAGES[name][1](page);
        await page.waitForTimeout(PICTURES ? 1500 : 0);
        if (name === "messages") {
          // At once, before newer messages move it down the list.
          await page.getByRole("article").nth(1).getByRole("button").first().evaluate((button) => button.click());
        }
        if (name === "sql" && PICTURES) {
          await page.getByLabel("Statement").fill("SELECT date_trunc('second', time) AS second, count(*) AS messages\nFROM delta.`streams/ORDERS`\nWHERE time > now() - INTERVAL 2 MINUTE\nGROUP BY 1\nORDER BY 1");
          await page.getByLabel("Statement").press("Control+Enter");
          await page.getByText(/\d+ rows/).waitFor({ timeout: 3 * WAIT });
          await page.getByRole("button", { name: "Plot" }).click();
        }
        if (name === "table") await page.locator("code").evaluate((element) => (element.firstChild.data = "/srv/lake"));
        await picture(page, `${name}${suffix}`);
      }
      if (scheme === "light") {
        await page.setViewportSize(PHONE);
        for (const name of ["streams", "bucket"]) {
          await go(page, PAGES[name][0]);
          await PAGES[name][1](page);
          await picture(page, `phone-${name}`);
        }
      }
      await busy;
      await page.context().close();
    }
  },
};

async function main(name) {
  const desk = await Desk.open();
  try {
    await trials[name](desk);
  } catch (error) {
    console.error(desk.errors.join("\n"));
    throw error;
  }
  await desk.close();
}

if (process.argv[2] === "--list") {
  console.log(Object.keys(trials).join("\n"));
} else {
  main(process.argv[2]).then(() => process.exit(0), (error) => {
    console.error(error);
    process.exit(1);
  });
}
