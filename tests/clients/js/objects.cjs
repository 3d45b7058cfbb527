// Tests of object stores through the npm clients; harness.cjs describes how to run them.
"use strict";

const { assert, bytes, collect, refused, run, text, until } = require("./harness.cjs");
const { createHash } = require("node:crypto");

const CHUNK = 128 * 1024;

async function withStore(lib, name, options, use) {
  const os = await lib.store(name, options);
  try {
    return await use(os);
  } finally {
    await os.destroy();
  }
}

const content = (size) => new Uint8Array(size).map((_, n) => (n * 7 + (n >> 8)) % 251);
// The clients return a Buffer or a plain array.
const same = (read, data) => assert.ok(read !== null && Buffer.from(read).equals(Buffer.from(data)), "other data");
const digest = (data) => `SHA-256=${createHash("sha256").update(data).digest("base64url").padEnd(44, "=")}`;
const messages = async (os) => (await os.status()).streamInfo.state.messages;
const told = (info) => [info.name, info.size, info.chunks, info.digest, info.deleted ?? false, info.revision];

// Returns a stream of parts; reading fails at a part that is an Error.
const streamOf = (...parts) =>
  new ReadableStream({
    pull(controller) {
      const part = parts.shift();
      if (part === undefined) controller.close();
      else if (part instanceof Error) controller.error(part);
      else controller.enqueue(part);
    },
  });

function reading(watch) {
  const iterator = watch[Symbol.asyncIterator]();
  return async (count) => {
    const infos = [];
    while (infos.length < count) {
      const { value } = await iterator.next();
      if (value !== null) infos.push(value); // null is the older client's end of the initial values
    }
    return infos.map((info) => [info.name, info.size, info.deleted ?? false]);
  };
}

const tests = {
  async sizes(lib, name) {
    return await withStore(lib, name, {}, async (os) => {
      const infos = [];
      for (const size of [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17]) {
        const data = content(size);
        const info = await os.putBlob({ name: `o${size}` }, data);
        assert.deepEqual([info.size, info.chunks, info.digest], [size, Math.ceil(size / CHUNK), digest(data)]);
        same(await os.getBlob(`o${size}`), data);
        infos.push(told(await os.info(`o${size}`)));
      }
      return infos;
    });
  },

  async streamsOfParts(lib, name) {
    return await withStore(lib, name, {}, async (os) => {
      const parts = [content(10), content(200_000), content(0), content(70_000)];
      const whole = Buffer.concat(parts);
      const info = await os.put({ name: "parts" }, streamOf(...parts.map((part) => part.slice())));
      assert.deepEqual([info.size, info.chunks, info.digest], [whole.length, 3, digest(whole)]);
      const result = await os.get("parts");
      const read = await new Response(result.data).arrayBuffer();
      assert.equal(await result.error ?? null, null);
      assert.ok(Buffer.from(read).equals(whole));
    });
  },

  async metadata(lib, name) {
    return await withStore(lib, name, {}, async (os) => {
      const headers = lib.headers();
      headers.append("Kind", "one");
      headers.append("Kind", "two");
      const meta = {
        name: "dir/ünï cödé & more", description: "what it is", headers, metadata: { a: "b" }, options: { max_chunk_size: 1000 },
      };
      await os.putBlob(meta, content(2500));
      const info = await os.info(meta.name);
      assert.deepEqual([info.description, info.headers.values("Kind"), info.metadata.a], ["what it is", ["one", "two"], "b"]);
      assert.deepEqual([info.chunks, info.options.max_chunk_size, info.bucket], [3, 1000, name]);
      assert.equal(await os.info("nothing"), null);
      assert.equal(await os.get("nothing"), null);
      assert.equal(await os.getBlob("nothing"), null);
      return told(info);
    });
  },

  async replaced(lib, name) {
    return await withStore(lib, name, {}, async (os) => {
      const first = await os.putBlob({ name: "o" }, content(3 * CHUNK));
      assert.equal(await messages(os), 4);
      const second = await os.putBlob({ name: "o" }, bytes("short"));
      assert.notEqual(first.nuid, second.nuid);
      assert.equal(text(await os.getBlob("o")), "short");
      assert.equal(await messages(os), 2, "the first one's chunks are purged, its meta rolled up");
      return (await os.status()).streamInfo;
    });
  },

  async listed(lib, name) {
    return await withStore(lib, name, {}, async (os) => {
      assert.deepEqual(await os.list(), []);
      for (const one of ["b", "a", "c"]) await os.putBlob({ name: one }, bytes(one));
      await os.delete("a");
      const list = await os.list();
      assert.deepEqual(list.map((info) => info.name), ["b", "c"]);
      return list.map((info) => [info.name, info.size, info.digest]);
    });
  },

  async deleted(lib, name) {
    return await withStore(lib, name, {}, async (os) => {
      await os.putBlob({ name: "o" }, content(2 * CHUNK));
      const answer = await os.delete("o");
      assert.deepEqual([answer.success, answer.purged], [true, 2]);
      assert.equal(await os.get("o"), null);
      const info = await os.info("o");
      assert.deepEqual([info.deleted, info.size, info.chunks, info.digest], [true, 0, 0, ""]);
      const nothing = await os.delete("nothing");
      await assert.rejects(os.update("o", { description: "x" }), /deleted/);
      await os.putBlob({ name: "o" }, bytes("back"));
      assert.equal(text(await os.getBlob("o")), "back");
      return [nothing, await messages(os)];
    });
  },

  async watched(lib, name) {
    return await withStore(lib, name, {}, async (os) => {
      await os.putBlob({ name: "a" }, bytes("1"));
      await os.putBlob({ name: "b" }, bytes("22"));
      await os.delete("b");
      const [all, fresh, live] = [
        await os.watch({ includeHistory: true }), await os.watch(), await os.watch({ includeHistory: true, ignoreDeletes: true }),
      ];
      await os.putBlob({ name: "c" }, bytes("333"));
      await os.delete("a");
      await os.putBlob({ name: "d" }, bytes("4444"));
      const [c, d] = [["c", 3, false], ["d", 4, false]];
      assert.deepEqual(await reading(all)(5), [["a", 1, false], ["b", 0, true], c, ["a", 0, true], d]);
      assert.deepEqual(await reading(fresh)(3), [c, ["a", 0, true], d]);
      assert.deepEqual(await reading(live)(3), [["a", 1, false], c, d]);
      for (const watch of [all, fresh, live]) watch.stop();
    });
  },

  async updated(lib, name) {
    return await withStore(lib, name, {}, async (os) => {
      await os.putBlob({ name: "o", description: "old" }, content(1000));
      await os.update("o", { description: "new" });
      assert.equal((await os.info("o")).description, "new");
      await os.putBlob({ name: "taken" }, bytes("x"));
      await assert.rejects(os.update("o", { name: "taken" }), /already exists/);
      await assert.rejects(os.update("nothing", { description: "x" }));
      await os.update("o", { name: "renamed", description: "newer" });
      assert.equal(await os.info("o"), null);
      assert.equal((await os.info("renamed")).description, "newer");
      same(await os.getBlob("renamed"), content(1000));
      return (await os.list()).map((info) => info.name).sort();
    });
  },

  async links(lib, name) {
    return await withStore(lib, name, {}, async (os) => {
      return await withStore(lib, `${name}_too`, {}, async (other) => {
        const info = await os.putBlob({ name: "o" }, content(1000));
        const link = await os.link("here", info);
        assert.deepEqual(link.options.link, { bucket: name, name: "o" });
        same(await os.getBlob("here"), content(1000));
        await other.link("from afar", info);
        same(await other.getBlob("from afar"), content(1000));
        await assert.rejects(os.link("of a link", link), /is a link/);
        await assert.rejects(os.link("o", info), /already exists/);
        const whole = await os.linkStore("all of it", other);
        assert.deepEqual(whole.options.link, { bucket: `${name}_too` });
        await assert.rejects(os.get("all of it"), /is a bucket/);
        await os.delete("o");
        await assert.rejects(os.link("of nothing", await os.info("o")), /is deleted/);
        assert.equal(await os.getBlob("here"), null);
        return (await os.list()).map((one) => [one.name, one.options?.link ?? null]);
      });
    });
  },

  async sealed(lib, name) {
    return await withStore(lib, name, {}, async (os) => {
      await os.putBlob({ name: "o" }, content(1000));
      assert.equal((await os.status()).sealed, false);
      assert.equal((await os.seal()).sealed, true);
      await refused(lib, os.putBlob({ name: "o" }, bytes("x")), 10109);
      await refused(lib, os.delete("o"), 10109);
      await refused(lib, os.update("o", { description: "x" }), 10109);
      same(await os.getBlob("o"), content(1000));
      return (await os.status()).streamInfo;
    });
  },

  async status(lib, name) {
    const options = {
      description: "what it is for", ttl: lib.nanos(3_600_000), max_bytes: 10_000_000, storage: "memory",
      metadata: { owner: "tests" }, compression: true,
    };
    return await withStore(lib, name, options, async (os) => {
      await os.putBlob({ name: "o" }, content(1000));
      const status = await os.status();
      const { bucket, description, ttl, storage, replicas, sealed, backingStore, compression } = status;
      assert.deepEqual(
        [bucket, description, ttl, storage, replicas, sealed, backingStore, compression],
        [name, "what it is for", lib.nanos(3_600_000), "memory", 1, false, "JetStream", true],
      );
      assert.ok(status.size > 1000 && status.size < 2000);
      assert.equal(status.metadata.owner, "tests");
      return status.streamInfo.config;
    });
  },

  async expectedRevisions(lib, name) {
    return await withStore(lib, name, {}, async (os) => {
      const first = await os.putBlob({ name: "o" }, bytes("1"), { previousRevision: 0 });
      const before = await messages(os);
      await refused(lib, os.putBlob({ name: "o" }, content(3 * CHUNK), { previousRevision: first.revision + 7 }), 10071);
      assert.equal(await messages(os), before, "the chunks of what was refused are purged");
      assert.equal(text(await os.getBlob("o")), "1");
      await os.putBlob({ name: "o" }, bytes("2"), { previousRevision: first.revision });
      return told(await os.info("o"));
    });
  },

  async interruptedUpload(lib, name) {
    return await withStore(lib, name, {}, async (os) => {
      const broken = () => streamOf(content(3 * CHUNK), new Error("the source broke"));
      await assert.rejects(os.put({ name: "new" }, broken()), /the source broke/);
      assert.equal(await os.info("new"), null);
      await os.putBlob({ name: "o" }, bytes("old"));
      await assert.rejects(os.put({ name: "o" }, broken()), /the source broke/);
      assert.equal(text(await os.getBlob("o")), "old");
      // The client purges without waiting for the chunks' acks. nats-server may purge before it has stored them.
      if (!lib.nc.info.go.startsWith("go")) await until(() => messages(os), (count) => count === 2);
      return (await os.list()).map((info) => info.name);
    });
  },

  async fullStore(lib, name) {
    return await withStore(lib, name, { max_bytes: 2 * CHUNK }, async (os) => {
      await os.putBlob({ name: "o" }, content(1000));
      await refused(lib, os.putBlob({ name: "large" }, content(5 * CHUNK)), 10077);
      assert.equal(await os.info("large"), null);
      same(await os.getBlob("o"), content(1000));
      assert.equal(await messages(os), 2);
    });
  },

  async corruptedObject(lib, name) {
    return await withStore(lib, name, {}, async (os) => {
      const info = await os.putBlob({ name: "o" }, content(2 * CHUNK));
      await lib.manager.streams.purge(`OBJ_${name}`, { filter: `$O.${name}.C.${info.nuid}`, keep: 1 });
      await assert.rejects(os.getBlob("o"), /corrupt/);
    });
  },

  async storeTtl(lib, name) {
    return await withStore(lib, name, { ttl: lib.nanos(1000) }, async (os) => {
      await os.putBlob({ name: "o" }, content(1000));
      await until(() => messages(os), (count) => count === 0);
      assert.equal(await os.info("o"), null);
    });
  },

  async severalAtOnce(lib, name) {
    return await withStore(lib, name, {}, async (os) => {
      const sizes = [...Array(8).keys()].map((n) => n * 77_777);
      await Promise.all(sizes.map((size) => os.putBlob({ name: `o${size}` }, content(size))));
      const read = await Promise.all(sizes.map((size) => os.getBlob(`o${size}`)));
      read.forEach((data, n) => same(data, content(sizes[n])));
      return (await os.list()).map((info) => info.name).sort();
    });
  },

  async large(lib, name) {
    return await withStore(lib, name, {}, async (os) => {
      const part = content(1 << 20);
      const parts = Array(24).fill(part);
      const hash = createHash("sha256");
      for (const one of parts) hash.update(one);
      const wanted = hash.digest("hex");
      const info = await os.put({ name: "large" }, streamOf(...parts.map((one) => one.slice())));
      assert.deepEqual([info.size, info.chunks], [24 << 20, 192]);
      const read = createHash("sha256");
      const result = await os.get("large");
      for await (const one of result.data) read.update(one);
      assert.equal(await result.error ?? null, null);
      assert.equal(read.digest("hex"), wanted);
    });
  },
};

const newer = {
  async inBatches(lib, name) {
    return await withStore(lib, name, { allowBatched: true }, async (os) => {
      const data = content(40 * 10_000 + 7);
      const info = await os.putBlob({ name: "o", options: { max_chunk_size: 10_000 } }, data);
      assert.deepEqual([info.size, info.chunks, info.digest], [data.length, 41, digest(data)]);
      same(await os.getBlob("o"), data);
      await assert.rejects(os.put({ name: "o" }, streamOf(content(3 * CHUNK), new Error("the source broke"))), /the source broke/);
      same(await os.getBlob("o"), data);
      await until(() => messages(os), (count) => count === 42);
      return [told(await os.info("o")), (await os.status()).streamInfo.config];
    });
  },

  async storesAreListed(lib, name) {
    return await withStore(lib, name, {}, async (os) => {
      await os.putBlob({ name: "o" }, bytes("x"));
      return await withStore(lib, `${name}_too`, { compression: true }, async () => {
        const listed = (await collect(lib.stores())).filter((status) => status.bucket.startsWith(name));
        return listed.map((status) => [status.bucket, status.size, status.compression]).sort();
      });
    });
  },

  async openedAgain(lib, name) {
    return await withStore(lib, name, {}, async (os) => {
      await os.putBlob({ name: "o" }, bytes("x"));
      const again = await lib.openStore(name);
      assert.equal(text(await again.getBlob("o")), "x");
      await assert.rejects(lib.openStore(`${name}_not`));
    });
  },
};

run("stores", tests, newer);
