// What a client over WebSocket is put through, in Node.js and in a browser. `open(url, options)` connects, and returns
// one library's functions under common names; a trial throws unless all is well.

const WAIT = 10_000;
const text = (data) => new TextDecoder().decode(data);
const bytes = (string) => new TextEncoder().encode(string);

function same(got, wanted) {
  const [left, right] = [JSON.stringify(got), JSON.stringify(wanted)];
  if (left !== right) throw new Error(`${left} instead of ${right}`);
}

async function refused(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("was accepted");
}

function random(size) {
  const data = new Uint8Array(size);
  for (let at = 0; at < size; at += 65536) crypto.getRandomValues(data.subarray(at, Math.min(at + 65536, size)));
  return data;
}

async function digest(data) {
  return [...new Uint8Array(await crypto.subtle.digest("SHA-256", data))].join();
}

export const trials = {
  async core({ nc, headers, empty }) {
    const first = (async () => {
      for await (const message of nc.subscribe("web.*", { max: 1 })) {
        return [message.subject, text(message.data), message.headers.get("A")];
      }
    })();
    const fields = headers();
    fields.set("A", "b");
    nc.publish("web.1", bytes("hello"), { headers: fields });
    same(await first, ["web.1", "hello", "b"]);
    nc.subscribe("web-service", { callback: (_, message) => message.respond(message.data) });
    for (const size of [0, 1, 125, 126, 4095, 4097, 65535, 65536, 1_000_000]) {
      const body = random(size);
      const answer = await nc.request("web-service", body, { timeout: WAIT });
      same(await digest(answer.data), await digest(body));
    }
    await refused(nc.request("nobody", empty, { timeout: WAIT }));
  },

  async streams({ nc, js, manager, name }) {
    await manager.streams.add({ name, subjects: [`${name}.>`] });
    const body = bytes("abcdefgh".repeat(100));
    const acks = await Promise.all([...Array(500)].map(() => js.publish(`${name}.a`, body)));
    same(acks.map((ack) => ack.seq).sort((a, b) => a - b), [...Array(500).keys()].map((n) => n + 1));
    await manager.consumers.add(name, { durable_name: "c", ack_policy: "explicit" });
    const consumer = await js.consumers.get(name, "c");
    const seen = [];
    for await (const message of await consumer.consume({ max_messages: 50 })) {
      seen.push(message.seq);
      message.ack();
      if (seen.length === 500) break;
    }
    same(seen, [...Array(500).keys()].map((n) => n + 1));
    await nc.flush();
    same((await manager.consumers.info(name, "c")).num_pending, 0);
    await manager.streams.delete(name);
  },

  async keyValue({ bucket, name }) {
    const kv = await bucket(name, { history: 3 });
    const watch = await kv.watch();
    const seen = (async () => {
      const found = [];
      for await (const entry of watch) {
        found.push([entry.key, entry.operation, text(entry.value ?? new Uint8Array())]);
        if (found.length === 4) return found;
      }
    })();
    await kv.put("a", bytes("1"));
    await kv.put("b", bytes("x".repeat(10_000)));
    await kv.put("a", bytes("2"));
    await kv.delete("a");
    same(await seen, [["a", "PUT", "1"], ["b", "PUT", "x".repeat(10_000)], ["a", "PUT", "2"], ["a", "DEL", ""]]);
    same(text((await kv.get("b")).value), "x".repeat(10_000));
    await kv.destroy();
  },

  async objects({ store, name }) {
    const os = await store(name, {});
    const data = random(3_000_000);
    await os.putBlob({ name: "o" }, data);
    same(await digest(await os.getBlob("o")), await digest(data));
    await os.destroy();
  },
};

// The bundle for browsers; Node.js loads it too.
export async function openBundle(nats, url, options) {
  const nc = await nats.connect({ servers: url, timeout: WAIT, reconnect: false, ...options });
  const js = nc.jetstream({ timeout: WAIT });
  return {
    nc,
    js,
    manager: await nc.jetstreamManager({ timeout: WAIT, checkAPI: false }),
    headers: nats.headers,
    empty: nats.Empty,
    bucket: (name, more) => js.views.kv(name, more),
    store: (name, more) => js.views.os(name, more),
  };
}
