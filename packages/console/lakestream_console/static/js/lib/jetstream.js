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

/** Create a stream. */
export const createStream = (config) => jetstream(`STREAM.CREATE.${config.name}`, config);

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
