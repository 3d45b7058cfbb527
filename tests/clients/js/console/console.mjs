// The web console in headless Chromium: `node console.mjs TRIAL`, with the addresses in the environment:
// CHROMIUM (the program), CONSOLE (the page), NATS (the server), USERS (the page of a server with users), ACCOUNTS (that
// of a server with accounts), CLUSTER (that of a node of three), PICTURES (a folder for screenshots, or empty).
// `node console.mjs --list` prints the names of the trials. The exit code is 0 if a trial passes.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(import.meta.url);
const { ACCOUNTS, CHROMIUM, CLUSTER, CONSOLE, NATS, USERS, PICTURES } = process.env;
const FLAGS = ["--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage"];
const WAIT = 10_000;
const SOON = 2_000; // a published message must be seen within this time
const BUSY = 60_000; // of writes, while pictures are taken
const PHONE = { width: 375, height: 740 };
const DESK = { width: 1280, height: 860 };
const SERIOUS = ["serious", "critical"];

/** Pages: the route, and the text or role that shows that its content has come. */
const PAGES = {
  overview: ["/overview", (page) => page.getByText("Busiest streams").waitFor()],
  streams: ["/streams", (page) => page.getByRole("link", { name: "ORDERS" }).waitFor()],
  messages: ["/streams/ORDERS", (page) => page.getByRole("article").first().waitFor()],
  consumers: ["/streams/ORDERS/consumers", (page) => page.getByRole("cell", { name: "billing pull" }).waitFor()],
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

/** Each page opens in light and dark and at phone width, without an error and without a serious finding of axe-core. */
const pages = Object.entries(PAGES).map(([name, [route, shown]]) => [
  `page-${name}`,
  async (desk) => {
    for (const scheme of ["light", "dark"]) {
      const page = await desk.page(`${CONSOLE}#${route}`, { scheme });
      await shown(page);
      await accessible(page, `${name}, ${scheme}`);
      await fits(page, name);
      await page.setViewportSize(PHONE);
      await fits(page, `${name} at ${PHONE.width} px`);
      await accessible(page, `${name}, ${scheme}, at ${PHONE.width} px`);
      await page.getByRole("button", { name: "Menu" }).click();
      await page.getByRole("navigation", { name: "Pages" }).waitFor();
      await fits(page, `${name} with its menu`);
      await page.context().close();
    }
  },
]);

const trials = {
  ...Object.fromEntries(pages),

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
    await page.getByText("There is no message from here on").waitFor();
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
    await dialog.getByLabel("Maximum age").fill("soon");
    await dialog.getByRole("button", { name: "Create stream" }).click();
    await dialog.getByRole("alert").getByText("write a duration").waitFor();
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
    const [format, bytes, histogram] = await Promise.all(
      ["format.js", "bytes.js", "histogram.js"].map((name) => import(new URL(name, lib))),
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
    const read = (one, two, count) => ({ counts: [[0.001, one], [0.002, two]], count });
    assert.equal(histogram.quantile(read(10, 10, 10), read(10, 20, 20), 0.5), 0.0015);
    assert.equal(histogram.quantile(read(10, 10, 10), read(10, 20, 40), 0.99), 0.002); // above the last bound
    assert.equal(histogram.quantile(read(10, 20, 20), read(10, 20, 20), 0.5), null);
    assert.equal(histogram.quantile(undefined, read(10, 20, 20), 0.5), null);
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
    assert.equal(await page.getByRole("link", { name: /^OF_/ }).count(), 0); // their messages are the accounts' own
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
    await page.getByText("Every replica is where it should be").waitFor();
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
