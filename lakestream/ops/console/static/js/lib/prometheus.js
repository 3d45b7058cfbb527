/** The text format of Prometheus: samples by name, and quantiles of histograms. */

/** Return the samples of a text as a Map from name to [{labels, value}]. */
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (!match) continue;
    const [, name, inside = "", value] = match;
    const labels = {};
    for (const [, label, quoted] of inside.matchAll(/(\w+)="((?:\\.|[^"\\])*)"/g)) labels[label] = quoted;
    const number = value === "+Inf" ? Infinity : Number(value);
    if (!found.has(name)) found.set(name, []);
    found.get(name).push({ labels, value: number });
  }
  return found;
}

/** Return the cumulative counts of a histogram as sorted [[bound, count]], summed over all other labels. */
export function buckets(samples, name) {
  const sums = new Map();
  for (const { labels, value } of samples.get(`${name}_bucket`) ?? []) {
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    sums.set(bound, (sums.get(bound) ?? 0) + value);
  }
  return [...sums].sort(([one], [other]) => one - other);
}

/** Return a quantile of what a histogram counted between two scrapes; null if that is nothing. */
export function quantile(before, after, share) {
  const earlier = new Map(before);
  const grown = after.map(([bound, count]) => [bound, count - (earlier.get(bound) ?? 0)]);
  const total = grown.at(-1)?.[1] ?? 0;
  if (!(total > 0)) return null;
  const wanted = total * share;
  let [lower, counted] = [0, 0];
  for (const [bound, count] of grown) {
    if (count >= wanted) {
      if (bound === Infinity) return lower;
      return count === counted ? bound : lower + ((bound - lower) * (wanted - counted)) / (count - counted);
    }
    [lower, counted] = [bound, count];
  }
  return lower;
}
