// The unmodified npm package `nats` against a server: `node client.cjs URL TEST` runs one of the tests below.
// The exit code is 0 if it passes. A test gets a connection, and a name that no other test uses.
"use strict";

const assert = require("node:assert/strict");
const { readFileSync } = require("node:fs");
const { join } = require("node:path");
const {
  AckPolicy, Empty, connect, consumerOpts, createInbox, DeliverPolicy, headers, nanos, StringCodec,
} = require("nats");

const { command } = require("./command.cjs");

const sc = StringCodec();
const WAIT = 5000;

async function withStream(nc, name, config, use) {
  const jsm = await nc.jetstreamManager();
  await jsm.streams.add({ name, subjects: [`${name}.>`], ...config });
  try {
    return await use(nc.jetstream(), jsm, name);
  } finally {
    await jsm.streams.delete(name);
  }
}

async function fill(js, subject, count) {
  for (let n = 0; n < count; n++) await js.publish(subject, sc.encode(String(n)));
}

async function collect(iterator, count) {
  const items = [];
  for await (const item of iterator) {
    items.push(item);
    if (items.length === count) break;
  }
  return items;
}

const rejectsWith = (promise, code) =>
  assert.rejects(promise, (error) => error.api_error?.err_code === code || error.code === code);

const tests = {
  async core(nc) {
    const subscription = nc.subscribe("core.*", { max: 1 });
    const h = headers();
    h.set("A", "b");
    nc.publish("core.1", sc.encode("hello"), { headers: h });
    const [message] = await collect(subscription, 1);
    assert.equal(sc.decode(message.data), "hello");
    assert.equal(message.headers.get("A"), "b");
    nc.subscribe("service", { callback: (_, m) => m.respond(sc.encode("answer")) });
    assert.equal(sc.decode((await nc.request("service", Empty, { timeout: WAIT })).data), "answer");
    await rejectsWith(nc.request("nobody", Empty, { timeout: WAIT }), "503");
  },

  async publish(nc, name) {
    await withStream(nc, name, {}, async (js, jsm) => {
      for (let n = 1; n <= 10; n++) {
        const ack = await js.publish(`${name}.a`, sc.encode(String(n)));
        assert.deepEqual([ack.stream, ack.seq, ack.duplicate], [name, n, false]);
      }
      const id = { msgID: "x" };
      assert.equal((await js.publish(`${name}.a`, Empty, id)).seq, 11);
      assert.deepEqual((await js.publish(`${name}.a`, Empty, id)).duplicate, true);
      await rejectsWith(js.publish(`${name}.a`, Empty, { expect: { lastSequence: 3 } }), 10071);
      await rejectsWith(js.publish(`${name}.a`, Empty, { expect: { streamName: "other" } }), 10060);
      await js.publish(`${name}.a`, Empty, { expect: { lastSubjectSequence: 11 } });
      assert.equal((await jsm.streams.info(name)).state.last_seq, 12);
    });
  },

  async streams(nc, name) {
    await withStream(nc, name, { max_msgs: 3 }, async (js, jsm) => {
      await fill(js, `${name}.a`, 5);
      assert.equal((await jsm.streams.info(name)).state.first_seq, 3);
      await jsm.streams.update(name, { max_msgs: 2, subjects: [`${name}.>`] });
      assert.equal((await jsm.streams.info(name)).state.messages, 2);
      assert.ok((await jsm.streams.names().next()).includes(name));
      assert.ok((await jsm.streams.list().next()).some((info) => info.config.name === name));
      assert.equal(await jsm.streams.find(`${name}.a`), name);
      const stored = await jsm.streams.getMessage(name, { seq: 5 });
      assert.equal(sc.decode(stored.data), "4");
      await jsm.streams.deleteMessage(name, 5);
      await rejectsWith(jsm.streams.getMessage(name, { seq: 5 }), 10037);
      assert.equal((await jsm.streams.purge(name)).purged, 1);
      assert.ok((await jsm.getAccountInfo()).streams >= 1);
    });
    const jsm = await nc.jetstreamManager();
    await rejectsWith(jsm.streams.info(name), 10059);
  },

  async directGet(nc, name) {
    await withStream(nc, name, { allow_direct: true }, async (js, jsm) => {
      await fill(js, `${name}.a`, 5);
      await fill(js, `${name}.b`, 3);
      assert.equal(sc.decode((await jsm.direct.getMessage(name, { seq: 2 })).data), "1");
      assert.equal((await jsm.direct.getMessage(name, { last_by_subj: `${name}.a` })).seq, 5);
      assert.equal((await jsm.direct.getMessage(name, { seq: 1, next_by_subj: `${name}.b` })).seq, 6);
      const last = [];
      for await (const m of await jsm.direct.getBatch(name, { multi_last: [`${name}.*`] })) last.push(m.seq);
      assert.deepEqual(last, [5, 8]);
    });
  },

  async fetch(nc, name) {
    await withStream(nc, name, {}, async (js, jsm) => {
      await fill(js, `${name}.a`, 10);
      await jsm.consumers.add(name, { durable_name: "d", ack_policy: AckPolicy.Explicit, ack_wait: nanos(400) });
      const consumer = await js.consumers.get(name, "d");
      const messages = [];
      for await (const m of await consumer.fetch({ max_messages: 6, expires: 2000 })) {
        messages.push(m);
        if (m.seq === 2) m.nak();
        else if (m.seq === 3) m.term();
        else assert.ok(await m.ackAck());
      }
      assert.deepEqual(messages.map((m) => m.seq), [1, 2, 3, 4, 5, 6]);
      const again = await consumer.next({ expires: 2000 });
      assert.deepEqual([again.seq, again.redelivered, again.info.redeliveryCount], [2, true, 2]);
      again.ack();
      const rest = [];
      for await (const m of await consumer.fetch({ max_messages: 10, expires: 1000 })) {
        rest.push(m.seq);
        m.ack();
      }
      assert.deepEqual(rest, [7, 8, 9, 10]);
      await nc.flush();
      const info = await consumer.info();
      assert.deepEqual([info.num_ack_pending, info.num_pending, info.ack_floor.stream_seq], [0, 0, 10]);
    });
  },

  async consume(nc, name) {
    await withStream(nc, name, {}, async (js, jsm) => {
      await jsm.consumers.add(name, { durable_name: "d", ack_policy: AckPolicy.Explicit });
      const consumer = await js.consumers.get(name, "d");
      const iterator = await consumer.consume({ max_messages: 50 });
      const publishing = fill(js, `${name}.a`, 200);
      const numbers = [];
      for await (const m of iterator) {
        numbers.push(Number(sc.decode(m.data)));
        m.ack();
        if (numbers.length === 200) break;
      }
      await publishing;
      assert.deepEqual(numbers, [...Array(200).keys()]);
    });
  },

  async consumers(nc, name) {
    await withStream(nc, name, {}, async (js, jsm) => {
      for (const durable_name of ["a", "b"]) {
        await jsm.consumers.add(name, { durable_name, ack_policy: AckPolicy.Explicit, filter_subject: `${name}.${durable_name}` });
      }
      assert.deepEqual((await jsm.consumers.list(name).next()).map((info) => info.name), ["a", "b"]);
      assert.equal((await jsm.consumers.update(name, "a", { max_deliver: 7 })).config.max_deliver, 7);
      await jsm.consumers.delete(name, "a");
      await rejectsWith(jsm.consumers.info(name, "a"), 10014);
    });
  },

  async orderedConsumer(nc, name) {
    await withStream(nc, name, {}, async (js) => {
      await Promise.all([...Array(1000).keys()].map((n) => js.publish(`${name}.${n % 3}`, sc.encode(String(n)))));
      const consumer = await js.consumers.get(name, { filterSubjects: [`${name}.0`, `${name}.2`] });
      const wanted = 667;
      const sequences = (await collect(await consumer.consume(), wanted)).map((m) => m.seq);
      assert.equal(sequences.length, wanted);
      assert.deepEqual(sequences, [...sequences].sort((a, b) => a - b));
      const late = await js.consumers.get(name, { opt_start_seq: 999, deliver_policy: DeliverPolicy.StartSequence });
      assert.deepEqual((await collect(await late.fetch({ max_messages: 2, expires: 2000 }), 2)).map((m) => m.seq), [999, 1000]);
    });
  },

  async pushSubscribe(nc, name) {
    await withStream(nc, name, {}, async (js) => {
      await fill(js, `${name}.a`, 5);
      const options = consumerOpts();
      options.deliverTo(createInbox());
      options.durable("d");
      options.manualAck();
      options.ackExplicit();
      options.idleHeartbeat(500);
      options.flowControl();
      const subscription = await js.subscribe(`${name}.>`, options);
      const first = await collectAcked(subscription, 5);
      assert.deepEqual(first, [0, 1, 2, 3, 4]);
    });
  },

  async orderedPush(nc, name) {
    await withStream(nc, name, {}, async (js) => {
      const body = new Uint8Array(1024).fill(120);
      await Promise.all([...Array(2000)].map(() => js.publish(`${name}.a`, body)));
      const options = consumerOpts();
      options.orderedConsumer();
      const subscription = await js.subscribe(`${name}.>`, options);
      const sequences = (await collect(subscription, 2000)).map((m) => m.seq);
      assert.deepEqual(sequences, [...Array(2000).keys()].map((n) => n + 1));
    });
  },
};

async function collectAcked(subscription, count) {
  const numbers = [];
  for await (const message of subscription) {
    numbers.push(Number(sc.decode(message.data)));
    message.ack();
    if (numbers.length === count) break;
  }
  return numbers;
}

async function main([url, name]) {
  const installed = JSON.parse(readFileSync(join(__dirname, "node_modules", "nats", "package.json"))).version;
  assert.equal(installed, "2.29.3");
  assert.ok(tests[name], `no test ${name}; there are: ${Object.keys(tests).join(" ")}`);
  const nc = await connect({ servers: url, timeout: WAIT, reconnect: false });
  await tests[name](nc, `JS_${name}`);
  await nc.close();
}

if (process.argv[2] === "--list") {
  console.log(Object.keys(tests).join("\n"));
} else {
  command(main);
}
