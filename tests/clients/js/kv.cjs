// Tests of key-value buckets through the npm clients; harness.cjs describes how to run them.
"use strict";

const { assert, bytes, collect, refused, run, text, until } = require("./harness.cjs");

async function withBucket(lib, name, options, use) {
  const kv = await lib.bucket(name, options);
  try {
    return await use(kv);
  } finally {
    await kv.destroy();
  }
}

async function fill(kv, entries) {
  for (const [key, value] of entries) await kv.put(key, bytes(value));
}

const seen = (entry) => [entry.key, entry.operation, entry.string(), entry.revision];

// Reads a watch: next(n) returns the next n entries.
function reading(watch) {
  const iterator = watch[Symbol.asyncIterator]();
  return async (count) => {
    const entries = [];
    while (entries.length < count) entries.push((await iterator.next()).value);
    return entries.map(seen);
  };
}

const tests = {
  async putAndGet(lib, name) {
    return await withBucket(lib, name, { history: 5 }, async (kv) => {
      assert.equal(await kv.put("a.b", bytes("1")), 1);
      assert.equal(await kv.put("a.b", bytes("2")), 2);
      assert.equal(await kv.put("c", bytes("")), 3);
      assert.deepEqual(seen(await kv.get("a.b")), ["a.b", "PUT", "2", 2]);
      assert.deepEqual(seen(await kv.get("c")), ["c", "PUT", "", 3]);
      assert.ok(Math.abs((await kv.get("a.b")).created.getTime() - Date.now()) < 60_000);
      assert.equal(await kv.get("nothing"), null);
    });
  },

  async getARevision(lib, name) {
    return await withBucket(lib, name, { history: 2 }, async (kv) => {
      await fill(kv, [["k", "1"], ["k", "2"], ["k", "3"], ["other", "4"]]);
      assert.deepEqual(seen(await kv.get("k", { revision: 2 })), ["k", "PUT", "2", 2]);
      assert.equal(await kv.get("k", { revision: 1 }), null, "gone: the history is two long");
      assert.equal(await kv.get("k", { revision: 4 }), null, "a revision of another key");
      assert.equal(await kv.get("k", { revision: 99 }), null);
    });
  },

  async withoutDirectGet(lib, name) {
    return await withBucket(lib, name, { history: 3, allow_direct: false }, async (kv) => {
      await fill(kv, [["k", "1"], ["k", "2"]]);
      assert.deepEqual(seen(await kv.get("k")), ["k", "PUT", "2", 2]);
      assert.deepEqual(seen(await kv.get("k", { revision: 1 })), ["k", "PUT", "1", 1]);
      assert.equal(await kv.get("nothing"), null);
      await kv.delete("k");
      assert.deepEqual(seen(await kv.get("k")), ["k", "DEL", "", 3]);
      assert.equal((await kv.status()).streamInfo.config.allow_direct ?? false, false);
    });
  },

  async createAndUpdate(lib, name) {
    return await withBucket(lib, name, { history: 5 }, async (kv) => {
      const first = await kv.create("k", bytes("1"));
      await refused(lib, kv.create("k", bytes("2")), 10071);
      const second = await kv.update("k", bytes("2"), first);
      await refused(lib, kv.update("k", bytes("3"), first), 10071);
      await refused(lib, kv.update("never", bytes("3"), 7), 10071);
      await kv.delete("k");
      assert.ok((await kv.create("k", bytes("again"))) > second);
      await kv.purge("k");
      await kv.create("k", bytes("and again"));
      return (await collect(await kv.history({ key: "k" }))).map(seen);
    });
  },

  async expectedRevisions(lib, name) {
    return await withBucket(lib, name, { history: 5 }, async (kv) => {
      const first = await kv.put("k", bytes("1"), { previousSeq: 0 });
      await refused(lib, kv.put("k", bytes("2"), { previousSeq: 9 }), 10071);
      await refused(lib, kv.delete("k", { previousSeq: first + 1 }), 10071);
      await refused(lib, kv.purge("k", { previousSeq: first + 1 }), 10071);
      await kv.put("other", bytes("x"));
      await kv.delete("k", { previousSeq: first });
      const last = (await kv.get("k")).revision;
      assert.equal(last, 3);
      await kv.purge("k", { previousSeq: last });
      return seen(await kv.get("k"));
    });
  },

  async oneOfManyCreates(lib, name) {
    return await withBucket(lib, name, {}, async (kv) => {
      const tries = await Promise.allSettled([...Array(50).keys()].map((n) => kv.create("k", bytes(String(n)))));
      const won = tries.filter((one) => one.status === "fulfilled");
      assert.equal(won.length, 1);
      for (const lost of tries.filter((one) => one.status === "rejected")) assert.equal(lib.code(lost.reason), 10071);
      assert.equal((await kv.get("k")).revision, won[0].value);
    });
  },

  async countingByUpdates(lib, name) {
    return await withBucket(lib, name, { history: 64 }, async (kv) => {
      await kv.put("n", bytes("0"));
      const add = async () => {
        for (;;) {
          const entry = await kv.get("n");
          try {
            return await kv.update("n", bytes(String(Number(entry.string()) + 1)), entry.revision);
          } catch (error) {
            assert.equal(lib.code(error), 10071);
          }
        }
      };
      await Promise.all([...Array(12)].map(add));
      assert.deepEqual((await collect(await kv.history({ key: "n" }))).map((e) => e.string()), [...Array(13).keys()].map(String));
    });
  },

  async deleteAndPurge(lib, name) {
    return await withBucket(lib, name, { history: 5 }, async (kv) => {
      await fill(kv, [["k", "1"], ["other", "x"], ["k", "2"], ["k", "3"]]);
      await kv.delete("k");
      assert.deepEqual(seen(await kv.get("k")), ["k", "DEL", "", 5]);
      assert.equal((await collect(await kv.history({ key: "k" }))).length, 4);
      await kv.purge("k");
      assert.deepEqual((await collect(await kv.history({ key: "k" }))).map(seen), [["k", "PURGE", "", 6]]);
      await kv.delete("never.there");
      return (await collect(await kv.history())).map(seen);
    });
  },

  async deleteByWildcard(lib, name) {
    return await withBucket(lib, name, { history: 2 }, async (kv) => {
      await fill(kv, [["a.1", "x"], ["a.2", "x"], ["a.2.b", "x"], ["b.1", "x"]]);
      await kv.delete("a.*");
      assert.deepEqual((await collect(await kv.keys())).sort(), ["a.2.b", "b.1"]);
      await kv.purge(">");
      assert.deepEqual(await collect(await kv.keys()), []);
    });
  },

  async purgeDeletes(lib, name) {
    return await withBucket(lib, name, { history: 5 }, async (kv) => {
      await fill(kv, [["a", "1"], ["a", "2"], ["b", "1"], ["c", "1"]]);
      await kv.delete("a");
      await kv.purge("b");
      const young = await kv.purgeDeletes();
      assert.deepEqual([young.success, young.purged], [true, 2], "markers younger than half an hour stay");
      assert.deepEqual([seen(await kv.get("a")), seen(await kv.get("b"))], [["a", "DEL", "", 5], ["b", "PURGE", "", 6]]);
      const old = await kv.purgeDeletes(-1000);
      assert.deepEqual([old.success, old.purged], [true, 2]);
      assert.deepEqual([await kv.get("a"), await kv.get("b")], [null, null]);
      assert.equal((await kv.status()).values, 1);
    });
  },

  async purgeTheBucket(lib, name) {
    return await withBucket(lib, name, { history: 2 }, async (kv) => {
      await fill(kv, [["a", "1"], ["a", "2"], ["b", "1"]]);
      assert.equal((await kv.purgeBucket()).purged, 3);
      assert.equal(await kv.put("a", bytes("3")), 4);
      return (await collect(await kv.history())).map(seen);
    });
  },

  async historyOfKeys(lib, name) {
    return await withBucket(lib, name, { history: 3 }, async (kv) => {
      for (let n = 0; n < 5; n++) await kv.put("k", bytes(String(n)));
      await fill(kv, [["other.a", "x"], ["other.b", "y"]]);
      await kv.delete("other.a");
      assert.deepEqual((await collect(await kv.history({ key: "k" }))).map((e) => e.string()), ["2", "3", "4"]);
      assert.deepEqual((await collect(await kv.history({ key: "none" }))), []);
      const parts = [];
      for (const key of ["other.*", ">", "k"]) parts.push((await collect(await kv.history({ key }))).map(seen));
      const bare = await collect(await kv.history({ key: "k", headers_only: true }));
      return [...parts, bare.map((entry) => [...seen(entry), entry.length, entry.delta])];
    });
  },

  async keys(lib, name) {
    return await withBucket(lib, name, {}, async (kv) => {
      assert.deepEqual(await collect(await kv.keys()), []);
      await fill(kv, [["b", "x"], ["a.1", "x"], ["a.2", "x"], ["a.2.c", "x"], ["gone", "x"], ["purged", "x"], ["b", "y"]]);
      await kv.delete("gone");
      await kv.purge("purged");
      const found = [];
      for (const filter of [">", "a.*", "a.>", "*.2", "b", "none"]) found.push((await collect(await kv.keys(filter))).sort());
      assert.deepEqual(found, [["a.1", "a.2", "a.2.c", "b"], ["a.1", "a.2"], ["a.1", "a.2", "a.2.c"], ["a.2"], ["b"], []]);
    });
  },

  async watchAll(lib, name) {
    return await withBucket(lib, name, { history: 3 }, async (kv) => {
      await fill(kv, [["a", "0"], ["a", "1"], ["b", "2"]]);
      const watch = await kv.watch();
      const next = reading(watch);
      assert.deepEqual(await next(2), [["a", "PUT", "1", 2], ["b", "PUT", "2", 3]]);
      await kv.put("a", bytes("3"));
      await kv.delete("b");
      await kv.purge("a");
      assert.deepEqual(await next(3), [["a", "PUT", "3", 4], ["b", "DEL", "", 5], ["a", "PURGE", "", 6]]);
      watch.stop();
    });
  },

  async watchHistory(lib, name) {
    return await withBucket(lib, name, { history: 3 }, async (kv) => {
      await fill(kv, [["a", "0"], ["a", "1"], ["b", "2"], ["a", "3"], ["a", "4"]]);
      const watch = await kv.watch({ include: "history" });
      const next = reading(watch);
      const first = await next(4);
      await kv.put("c", bytes("5"));
      assert.deepEqual([...first, ...(await next(1))].map((entry) => entry[2]), ["1", "2", "3", "4", "5"]);
      watch.stop();
    });
  },

  async watchUpdatesOnly(lib, name) {
    return await withBucket(lib, name, { history: 3 }, async (kv) => {
      await fill(kv, [["a", "0"], ["b", "1"]]);
      const watch = await kv.watch({ include: "updates" });
      await kv.put("a", bytes("new"));
      assert.deepEqual(await reading(watch)(1), [["a", "PUT", "new", 3]]);
      watch.stop();
    });
  },

  async watchWithoutDeletes(lib, name) {
    return await withBucket(lib, name, {}, async (kv) => {
      await fill(kv, [["a", "0"], ["b", "1"]]);
      await kv.delete("a");
      const watch = await kv.watch({ ignoreDeletes: true });
      const next = reading(watch);
      assert.deepEqual(await next(1), [["b", "PUT", "1", 2]]);
      await kv.delete("b");
      await kv.put("a", bytes("back"));
      assert.deepEqual(await next(1), [["a", "PUT", "back", 5]]);
      watch.stop();
    });
  },

  async watchHeadersOnly(lib, name) {
    return await withBucket(lib, name, {}, async (kv) => {
      await fill(kv, [["a", "twelve bytes"], ["b", ""]]);
      const watch = await kv.watch({ headers_only: true });
      const entries = await collect(watch, 2);
      assert.deepEqual(entries.map((e) => [e.key, e.string(), e.length]), [["a", "", 12], ["b", "", 0]]);
    });
  },

  async watchWildcards(lib, name) {
    return await withBucket(lib, name, {}, async (kv) => {
      await fill(kv, [["a.1", "0"], ["b.1", "1"], ["a.1.x", "2"]]);
      const watches = [await kv.watch({ key: "a.*" }), await kv.watch({ key: "*.1" }), await kv.watch({ key: "a.>" })];
      await kv.put("a.2", bytes("3"));
      await kv.put("c.1", bytes("4"));
      const found = await Promise.all(watches.map((watch, n) => collect(watch, [2, 3, 3][n])));
      assert.deepEqual(
        found.map((entries) => entries.map((e) => e.key)),
        [["a.1", "a.2"], ["a.1", "b.1", "c.1"], ["a.1", "a.1.x", "a.2"]],
      );
    });
  },

  async watchSeveralFilters(lib, name) {
    return await withBucket(lib, name, { history: 2 }, async (kv) => {
      await fill(kv, [["a", "0"], ["b", "1"], ["c.x", "2"], ["a", "3"]]);
      const watch = await kv.watch({ key: ["a", "c.>"] });
      const next = reading(watch);
      const first = await next(2);
      await fill(kv, [["b", "4"], ["c.y", "5"]]);
      assert.deepEqual([...first, ...(await next(1))], [["c.x", "PUT", "2", 3], ["a", "PUT", "3", 4], ["c.y", "PUT", "5", 6]]);
      watch.stop();
      const all = await kv.watch({ key: ["a", "c.>"], include: "history" });
      assert.deepEqual((await reading(all)(4)).map((entry) => entry[3]), [1, 3, 4, 6]);
      all.stop();
    });
  },

  async watchResumes(lib, name) {
    return await withBucket(lib, name, { history: 5 }, async (kv) => {
      await fill(kv, [["a", "0"], ["b", "1"], ["a", "2"], ["a", "3"]]);
      const watch = await kv.watch({ resumeFromRevision: 3 });
      const next = reading(watch);
      const first = await next(2);
      await kv.delete("b");
      assert.deepEqual([...first, ...(await next(1))].map((entry) => entry[3]), [3, 4, 5]);
      watch.stop();
    });
  },

  async watchManyChanges(lib, name) {
    return await withBucket(lib, name, { history: 64 }, async (kv) => {
      await Promise.all([...Array(300).keys()].map((n) => kv.put(`before.${n}`, bytes(String(n)))));
      const watch = await kv.watch();
      const entries = collect(watch, 900);
      await Promise.all([...Array(600).keys()].map((n) => kv.put(`after.${n % 10}`, bytes(String(n)))));
      const revisions = (await entries).map((entry) => entry.revision);
      assert.deepEqual(revisions, [...Array(900).keys()].map((n) => n + 1));
    });
  },

  async status(lib, name) {
    const options = {
      history: 7, description: "what it is for", max_bytes: 1_000_000, maxValueSize: 100, ttl: 3_600_000,
      storage: "memory", metadata: { owner: "tests" }, compression: false,
    };
    return await withBucket(lib, name, options, async (kv) => {
      await fill(kv, [["a", "0"], ["a", "1"], ["b", "2"]]);
      const status = await kv.status();
      const { values, history, description, max_bytes, maxValueSize, ttl, storage, replicas, compression } = status;
      assert.deepEqual(
        [values, history, description, max_bytes, maxValueSize, ttl, storage, replicas, compression],
        [3, 7, "what it is for", 1_000_000, 100, 3_600_000, "memory", 1, false],
      );
      assert.equal(status.metadata.owner, "tests");
      return status.streamInfo;
    });
  },

  async compressed(lib, name) {
    return await withBucket(lib, name, { compression: true, history: 3 }, async (kv) => {
      const value = "lakestream ".repeat(1000);
      await kv.put("k", bytes(value));
      const status = await kv.status();
      assert.equal(status.compression, true);
      assert.equal((await kv.get("k")).string(), value);
      return status.streamInfo;
    });
  },

  async limits(lib, name) {
    return await withBucket(lib, name, { maxValueSize: 100, max_bytes: 1024, history: 1 }, async (kv) => {
      await refused(lib, kv.put("k", bytes("x".repeat(101))), 10054);
      const fits = bytes("x".repeat(60));
      let stored = 0;
      for (; stored < 20; stored++) {
        try {
          await kv.put(`k${stored}`, fits);
        } catch (error) {
          assert.equal(lib.code(error), 10077);
          break;
        }
      }
      await kv.put("k0", bytes("y")); // replaces the older value of the key
      return [stored, (await kv.status()).values];
    });
  },

  async bucketTtl(lib, name) {
    return await withBucket(lib, name, { ttl: 1000, history: 2 }, async (kv) => {
      await kv.put("k", bytes("soon gone"));
      assert.equal((await kv.get("k")).string(), "soon gone");
      await until(() => kv.get("k"), (entry) => entry === null);
      const { state } = (await kv.status()).streamInfo;
      return [state.messages, state.last_seq];
    });
  },

  async openedAgain(lib, name) {
    return await withBucket(lib, name, { history: 3 }, async (kv) => {
      await kv.put("k", bytes("1"));
      const again = await lib.bucket(name, { history: 9 });
      assert.equal((await again.status()).history, 3, "an existing bucket stays as it is");
      const bound = await lib.open(name, { allow_direct: true });
      assert.equal((await bound.get("k")).string(), "1");
      assert.equal(await bound.put("k", bytes("2")), 2);
    });
  },

  async republished(lib, name) {
    const republish = { src: ">", dest: `told.${name}.>` };
    return await withBucket(lib, name, { republish, history: 2 }, async (kv) => {
      const told = collect(lib.nc.subscribe(`told.${name}.>`), 3);
      await lib.nc.flush();
      await fill(kv, [["a", "1"], ["a", "2"]]);
      await kv.delete("a");
      return (await told).map((m) => {
        const h = Object.fromEntries(m.headers.keys().filter((key) => !/time/i.test(key)).map((key) => [key, m.headers.get(key)]));
        return [m.subject, text(m.data), h];
      });
    });
  },

  async sourced(lib, name) {
    const [one, two] = [`${name}_1`, `${name}_2`];
    return await withBucket(lib, one, {}, async (a) => {
      return await withBucket(lib, two, { history: 3 }, async (b) => {
        return await withBucket(lib, name, { history: 5, sources: [{ name: one }, { name: two }] }, async (kv) => {
          const holds = (count) => until(() => kv.status(), ({ values }) => values === count);
          await a.put("k", bytes("of one"));
          await holds(1);
          await b.put("k", bytes("of two"));
          await holds(2);
          await refused(lib, kv.update("k", bytes("own"), 1), 10071);
          await kv.update("k", bytes("own"), 2);
          await kv.create("new", bytes("own"));
          await b.delete("k");
          await holds(5);
          const history = (await collect(await kv.history())).map(seen);
          return [history, (await collect(await kv.keys())).sort(), seen(await kv.get("k"))];
        });
      });
    });
  },

  async codecs(lib, name) {
    const flip = (k) => [...k].reverse().join("");
    const same = { encode: (v) => v, decode: (v) => v };
    const codec = { key: { encode: flip, decode: flip }, value: same };
    return await withBucket(lib, name, { codec }, async (kv) => {
      await kv.put("abc.def", bytes("1"));
      const plain = await lib.open(name);
      return [(await kv.get("abc.def")).string(), await collect(await plain.keys())];
    });
  },

  async keysOfEverySpelling(lib, name) {
    return await withBucket(lib, name, { history: 2 }, async (kv) => {
      const keys = ["a", "A", "a-b", "a_b", "a/b", "a=b", "0", "a.b.c", "-", "_", "=", "/", "x".repeat(200)];
      for (const key of keys) await kv.put(key, bytes(key));
      for (const key of keys) assert.equal((await kv.get(key)).string(), key);
      for (const bad of ["", ".a", "a.", "a b", "a*", "ü"]) await assert.rejects(async () => await kv.put(bad, bytes("x")));
      return (await collect(await kv.keys())).sort();
    });
  },
};

const newer = {
  async keysOfSeveralFilters(lib, name) {
    return await withBucket(lib, name, {}, async (kv) => {
      await fill(kv, [["b", "x"], ["a.1", "x"], ["a.2", "x"], ["c", "x"]]);
      return (await collect(await kv.keys(["a.*", "c"]))).sort();
    });
  },

  async historyOfSeveralFilters(lib, name) {
    return await withBucket(lib, name, { history: 3 }, async (kv) => {
      await fill(kv, [["b", "1"], ["a.1", "2"], ["a.1", "3"], ["c", "4"]]);
      return (await collect(await kv.history({ key: ["a.*", "c"] }))).map(seen);
    });
  },

  async markerTtl(lib, name) {
    return await withBucket(lib, name, { markerTTL: 1000, history: 3 }, async (kv) => {
      const watch = await kv.watch();
      const next = reading(watch);
      await kv.create("k", bytes("short"), "1s");
      await kv.put("stays", bytes("x"));
      assert.deepEqual(await next(2), [["k", "PUT", "short", 1], ["stays", "PUT", "x", 2]]);
      assert.deepEqual(await next(1), [["k", "PURGE", "", 3]], "the server's own marker is seen as a purge");
      const { values } = await until(() => kv.status(), ({ values }) => values === 1);
      watch.stop();
      const { config } = (await kv.status()).streamInfo;
      return [values, config];
    });
  },

  async purgeWithTtl(lib, name) {
    return await withBucket(lib, name, { markerTTL: 1000, history: 3 }, async (kv) => {
      await fill(kv, [["k", "1"], ["k", "2"]]);
      await kv.purge("k", { ttl: "1s" });
      assert.deepEqual((await collect(await kv.history({ key: "k" }))).map(seen), [["k", "PURGE", "", 3]]);
      await until(() => kv.get("k"), (entry) => entry === null);
      const { state } = (await kv.status()).streamInfo;
      return [state.messages, state.last_seq];
    });
  },

  async createAfterAMarker(lib, name) {
    return await withBucket(lib, name, { markerTTL: 2000, history: 3 }, async (kv) => {
      await kv.create("k", bytes("short"), "2s");
      await until(() => kv.get("k"), (entry) => entry.operation === "PURGE");
      const revision = await kv.create("k", bytes("again"));
      return [revision, seen(await kv.get("k"))];
    });
  },

  async ttlWithoutMarkersIsRefused(lib, name) {
    return await withBucket(lib, name, {}, async (kv) => {
      await refused(lib, kv.create("k", bytes("x"), "1s"), 10166);
      assert.equal(await kv.get("k"), null);
    });
  },

  async watchTellsUpdates(lib, name) {
    return await withBucket(lib, name, {}, async (kv) => {
      await fill(kv, [["a", "1"], ["b", "2"]]);
      const watch = await kv.watch();
      const iterator = watch[Symbol.asyncIterator]();
      const told = [];
      for (let n = 0; n < 2; n++) told.push((await iterator.next()).value.isUpdate);
      await kv.put("a", bytes("3"));
      told.push((await iterator.next()).value.isUpdate);
      watch.stop();
      return told;
    });
  },

  async bucketsAreListed(lib, name) {
    return await withBucket(lib, name, { history: 4 }, async () => {
      return await withBucket(lib, `${name}_too`, {}, async () => {
        const listed = (await collect(lib.buckets())).filter((status) => status.bucket.startsWith(name));
        return listed.map((status) => [status.bucket, status.history, status.values]).sort();
      });
    });
  },
};

run("buckets", tests, newer);
