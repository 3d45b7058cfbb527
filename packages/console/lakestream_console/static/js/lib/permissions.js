/** What the session's user may publish to, as far as its permissions tell; the server decides. */

import { session } from "./api.js";

/** Return true if a subject matches a pattern with wildcards. */
export function matches(pattern, subject) {
  const [wanted, given] = [pattern.split("."), subject.split(".")];
  for (const [at, token] of wanted.entries()) {
    if (token === ">") return given.length > at;
    if (given[at] === undefined || (token !== "*" && token !== given[at])) return false;
  }
  return wanted.length === given.length;
}

/** Return true unless the user's permissions deny publishing to a subject. */
export function mayPublish(subject) {
  const { allow, deny } = session.value?.permissions?.publish ?? {};
  const any = (patterns) => (patterns ?? []).some((pattern) => matches(pattern, subject));
  return (!allow?.length || any(allow)) && !any(deny);
}
