/** The hook that repeats a request while its component is shown and the page is visible. */

import { useEffect, useRef, useState } from "../../vendor/htm-preact.js";

/**
 * Call `load(signal)` at once and then `every` ms after each answer; 0: once.
 *
 * Return `{data, error, loading, refresh}`. A change of `keys` discards the data and loads again; an error keeps it.
 */
export function usePoll(load, every, keys = []) {
  const [state, setState] = useState({ data: null, error: null, loading: true });
  const again = useRef(() => {});
  const latest = useRef(load);
  latest.current = load;
  useEffect(() => {
    let timer = 0;
    let running = false;
    let wanted = false;
    let ended = false;
    const aborter = new AbortController();
    setState({ data: null, error: null, loading: true });
    const run = async () => {
      clearTimeout(timer);
      if (running) {
        wanted = true;
        return;
      }
      running = true;
      try {
        const data = await latest.current(aborter.signal);
        if (!ended) setState({ data, error: null, loading: false });
      } catch (error) {
        if (!ended) setState((old) => ({ data: old.data, error, loading: false }));
      }
      running = false;
      if (ended) return;
      if (wanted) {
        wanted = false;
        run();
      } else if (every) timer = setTimeout(tick, every);
    };
    const tick = () => (document.hidden ? (timer = setTimeout(tick, every)) : run());
    again.current = run;
    run();
    return () => {
      ended = true;
      clearTimeout(timer);
      aborter.abort();
    };
  }, [every, ...keys]);
  return { ...state, refresh: () => again.current() };
}

/** Keep the last data of a poll while the next loads, so that lists do not blink. */
export function useKept(polled) {
  const [kept] = useState({ data: null });
  if (polled.data) kept.data = polled.data;
  return { ...polled, data: polled.data ?? (polled.error ? null : kept.data) };
}
