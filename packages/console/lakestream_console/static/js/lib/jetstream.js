/** The JetStream API: streams, consumers and stored messages, by NATS requests with this user's permissions. */

import { CallError, request } from "./api.js";
import { fromBase64, toLossyText } from "./bytes.js";

/** Call a subject of the JetStream API; return its answer. */
export async function jetstream(subject, body, options = {}) {
  const data = body === undefined ? "" : JSON.stringify(body);
  const [reply] = await request(`$JS.API.${subject}`, { data, ...options });
  if (!reply) throw new CallError("No answer came in time.", 504);
  const answer = JSON.parse(toLossyText(fromBase64(reply.data_base64)) || "{}");
  if (answer.error) throw new CallError(answer.error.description, answer.error.code, answer.error.err_code);
  return answer;
}

/** Return a stream's information; with `subjects`, a filter, also the number of messages by subject. */
export const streamInfo = (name, subjects, options) =>
  jetstream(`STREAM.INFO.${name}`, subjects ? { subjects_filter: subjects } : undefined, options);

/** Return one page of a stream's subjects that match a filter, from `offset` on: `names`, and the `total`. */
export async function subjectPage(name, filter, offset, options) {
  const { state, total } = await jetstream(`STREAM.INFO.${name}`, { subjects_filter: filter, offset }, options);
  return { names: Object.keys(state.subjects ?? {}), total: total ?? 0 };
}

const OVERLAP = 10065;

/** Return the names of the streams that have subjects in common with `subject`. */
export const streamsWith = async (subject) => (await jetstream("STREAM.NAMES", { subject })).streams ?? [];

/** Send a configuration; an error about subjects names the streams that have them. */
async function configure(action, config) {
  try {
    return await jetstream(`STREAM.${action}.${config.name}`, config);
  } catch (error) {
    if (error.code !== OVERLAP) throw error;
    for (const subject of config.subjects ?? [config.name]) {
      const others = (await streamsWith(subject)).filter((name) => name !== config.name);
      if (others.length) throw new CallError(`${error.message}: ${subject} overlaps with stream ${others.join(", ")}.`);
    }
    throw error;
  }
}

/** Create a stream, or change its configuration. */
export const createStream = (config) => configure("CREATE", config);
export const updateStream = (config) => configure("UPDATE", config);

/** Delete a stream and its messages. */
export const deleteStream = (name) => jetstream(`STREAM.DELETE.${name}`);

/** Purge messages; `limits` may have `filter`, `seq` or `keep`. */
export const purgeStream = (name, limits = {}) => jetstream(`STREAM.PURGE.${name}`, limits);

/** Delete one message. */
export const deleteMessage = (name, seq) => jetstream(`STREAM.MSG.DELETE.${name}`, { seq });

/** Return all consumers of a stream. */
export async function consumers(name, options) {
  const found = [];
  for (;;) {
    const page = await jetstream(`CONSUMER.LIST.${name}`, { offset: found.length }, options);
    found.push(...(page.consumers ?? []));
    if (!page.consumers?.length || found.length >= page.total) return found;
  }
}

/** Delete a consumer. */
export const deleteConsumer = (stream, name) => jetstream(`CONSUMER.DELETE.${stream}.${name}`);

/** Create a consumer, or change its configuration; `action` is "create" or "update". */
export const saveConsumer = (stream, config, action) =>
  jetstream(`CONSUMER.CREATE.${stream}.${config.name}`, { stream_name: stream, config, action });

/** Pause a consumer until a time (RFC 3339); "": let it go on. */
export const pauseConsumer = (stream, name, until) =>
  jetstream(`CONSUMER.PAUSE.${stream}.${name}`, until ? { pause_until: until } : {});

/** Let a consumer deliver again from a sequence on; 0: what it has not acked. */
export const resetConsumer = (stream, name, seq) =>
  jetstream(`CONSUMER.RESET.${stream}.${name}`, seq ? { seq } : undefined);

/** Ask a pull consumer for its next message; return it, or null if there is none now. `answer(text)` acks it. */
export async function nextMessage(stream, name) {
  const [reply] = await request(`$JS.API.CONSUMER.MSG.NEXT.${stream}.${name}`, { data: JSON.stringify({ batch: 1,
    no_wait: true }) });
  if (!reply || reply.status === 404 || reply.status === 408) return null;
  if (reply.status) throw new CallError(reply.description, reply.status);
  // $JS.ACK.[<domain>.<account hash>.]<stream>.<consumer>.<deliveries>.<seq>.<consumer seq>.<time>.<pending>[.<token>]
  const tokens = reply.reply.split(".");
  const [deliveries, seq, , time] = tokens.slice(tokens.length > 9 ? 6 : 4);
  return { subject: reply.subject, headers: reply.headers, data: fromBase64(reply.data_base64), seq: Number(seq),
    deliveries: Number(deliveries), time: new Date(Number(BigInt(time) / 1000000n)).toISOString(), ack: reply.reply };
}

/** Answer a delivered message: "+ACK", "-NAK" or "+TERM"; return once the server has noted it. */
export const answerMessage = (message, text) => request(message.ack, { data: text });

/** Ask a stream's leader, or that of the meta group, to hand over to another node. */
export const stepDown = (stream) => jetstream(stream ? `STREAM.LEADER.STEPDOWN.${stream}` : "META.LEADER.STEPDOWN");

/** Ask the compactor to maintain a stream's table now; `action` "REPLAY": to decode the misfits again. */
export async function maintain(stream, action = "MAINTAIN") {
  const [reply] = await request(`$LAKE.API.${action}.${stream}`);
  const { error } = JSON.parse(toLossyText(fromBase64(reply.data_base64)));
  if (error) throw new CallError(error.description, error.code);
}

/** Close a client's connection to a server, by its id. */
export async function kick(server, cid) {
  const [reply] = await request(`$SYS.REQ.SERVER.${server}.KICK`, { data: JSON.stringify({ cid }) });
  const { error } = JSON.parse(toLossyText(fromBase64(reply.data_base64)) || "{}");
  if (error) throw new CallError(error.description, error.code);
}
