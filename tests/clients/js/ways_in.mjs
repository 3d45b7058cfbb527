// A login of the unmodified npm packages over one transport: `node ways_in.mjs LIBRARY OPTIONS`. OPTIONS is JSON with
// `url`, `name` (of the stream and the bucket), `refused` (the login must fail), and the login. The exit code is 0 if all
// is well. Over WebSocket, NODE_EXTRA_CA_CERTS has the authority of the server's certificate.
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const WAIT = 5_000;
const bytes = (string) => new TextEncoder().encode(string);

async function load(library, web) {
  if (library === "nats") return web ? await import("./node_modules/nats.ws/esm/nats.js") : require("nats");
  const core = require(web ? "@nats-io/nats-core" : "@nats-io/transport-node");
  return { ...core, connect: web ? core.wsconnect : core.connect };
}

async function open(library, { url, user, pass, token, seed, creds, tls }) {
  const web = url.startsWith("ws");
  const nats = await load(library, web);
  const options = { servers: url, timeout: WAIT, reconnect: false, user, pass, token };
  if (seed) options.authenticator = nats.nkeyAuthenticator(bytes(seed));
  if (creds) options.authenticator = nats.credsAuthenticator(bytes(creds));
  if (tls && !web) options.tls = tls;
  return await nats.connect(options);
}

async function parts(library, nc) {
  if (library === "nats") {
    const js = nc.jetstream({ timeout: WAIT });
    return { js, manager: await nc.jetstreamManager({ timeout: WAIT }), bucket: (name) => js.views.kv(name) };
  }
  const { jetstream, jetstreamManager } = require("@nats-io/jetstream");
  const { Kvm } = require("@nats-io/kv");
  const js = jetstream(nc, { timeout: WAIT });
  return { js, manager: await jetstreamManager(nc, { timeout: WAIT }), bucket: (name) => new Kvm(js).create(name) };
}

function check(good, said) {
  if (!good) throw new Error(said);
}

async function main(library, options) {
  if (options.refused) {
    const error = await open(library, options).then(() => new Error("the login was accepted"), (error) => error);
    check(/authorization violation/i.test(String(error)), `refused with ${error}`);
    return;
  }
  const nc = await open(library, options);
  const received = (async () => {
    for await (const message of nc.subscribe("core", { max: 1 })) return message.data.length;
  })();
  nc.publish("core", new Uint8Array(100_000));
  check((await received) === 100_000, "another message");
  const { js, manager, bucket } = await parts(library, nc);
  await manager.streams.add({ name: options.name, subjects: [`${options.name}.>`] });
  check((await js.publish(`${options.name}.a`, bytes("one"))).seq === 1, "another sequence");
  const kv = await bucket(`B${options.name}`);
  await kv.put("key", bytes("value"));
  check((await kv.get("key")).string() === "value", "another value");
  await nc.close();
}

main(process.argv[2], JSON.parse(process.argv[3])).then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
