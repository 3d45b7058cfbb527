/** Values that several components show, and the hook that follows them. */

import { useEffect, useState } from "../../vendor/htm-preact.js";

/** Return a store: a value, `set` to replace it, and `follow` to be called after each change. */
export function createStore(value) {
  const followers = new Set();
  return {
    get value() {
      return value;
    },
    set(next) {
      value = next;
      for (const follower of [...followers]) follower(value);
    },
    follow(follower) {
      followers.add(follower);
      return () => followers.delete(follower);
    },
  };
}

/** Return the time in ms, and render again every second. */
export function useClock() {
  const [now, set] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

/** Return the value of a store, and render again when it changes. */
export function useStore(store) {
  const [, render] = useState(0);
  useEffect(() => store.follow(() => render((count) => count + 1)), [store]);
  return store.value;
}
