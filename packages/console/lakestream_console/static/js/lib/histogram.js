/** Quantiles of the server's histograms: `{counts: [[upper bound, observations up to it]], count, sum}`. */

/** Return a quantile of what a histogram counted between two readings; null if that is nothing. */
export function quantile(before, after, share) {
  const total = (after?.count ?? 0) - (before?.count ?? 0);
  if (!before || !(total > 0)) return null;
  const wanted = total * share;
  let [lower, counted] = [0, 0];
  for (const [at, [bound, count]] of after.counts.entries()) {
    const grown = count - before.counts[at][1];
    if (grown >= wanted) return lower + ((bound - lower) * (wanted - counted)) / (grown - counted || 1);
    [lower, counted] = [bound, grown];
  }
  return lower; // above the last bound
}
