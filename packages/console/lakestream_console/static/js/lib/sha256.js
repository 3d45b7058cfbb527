/**
 * SHA-256 of bytes that come in pieces: browsers have their own only for whole messages, and only in secure contexts.
 */

const fraction = (root) => Math.floor((root - Math.floor(root)) * 2 ** 32);

const PRIMES = [];
for (let number = 2; PRIMES.length < 64; number++) if (PRIMES.every((prime) => number % prime)) PRIMES.push(number);
const ROUNDS = Uint32Array.from(PRIMES, (prime) => fraction(Math.cbrt(prime)));
const START = PRIMES.slice(0, 8).map((prime) => fraction(Math.sqrt(prime)));

const turned = (word, by) => (word >>> by) | (word << (32 - by));

/** The sum of what `add` was given so far. Source: FIPS 180-4. */
export class Sha256 {
  constructor() {
    this.state = Uint32Array.from(START);
    this.block = new Uint8Array(64);
    this.words = new Uint32Array(64);
    this.length = 0;
  }

  /** Add bytes. */
  add(bytes) {
    for (let at = 0; at < bytes.length; ) {
      const filled = this.length % 64;
      const taken = Math.min(64 - filled, bytes.length - at);
      this.block.set(bytes.subarray(at, at + taken), filled);
      this.length += taken;
      at += taken;
      if (filled + taken === 64) this.#turn();
    }
    return this;
  }

  /** Return the sum, 32 bytes; nothing can be added afterwards. */
  end() {
    const bits = this.length * 8;
    const padding = new Uint8Array(((119 - (this.length % 64)) % 64) + 9);
    padding[0] = 0x80;
    const view = new DataView(padding.buffer);
    view.setUint32(padding.length - 8, Math.floor(bits / 2 ** 32));
    view.setUint32(padding.length - 4, bits >>> 0);
    this.add(padding);
    const sum = new DataView(new ArrayBuffer(32));
    this.state.forEach((word, at) => sum.setUint32(at * 4, word));
    return new Uint8Array(sum.buffer);
  }

  #turn() {
    const { words, state } = this;
    const view = new DataView(this.block.buffer);
    for (let at = 0; at < 16; at++) words[at] = view.getUint32(at * 4);
    for (let at = 16; at < 64; at++) {
      const [one, two] = [words[at - 15], words[at - 2]];
      words[at] = words[at - 16] + (turned(one, 7) ^ turned(one, 18) ^ (one >>> 3)) + words[at - 7]
        + (turned(two, 17) ^ turned(two, 19) ^ (two >>> 10));
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let at = 0; at < 64; at++) {
      const first = (h + (turned(e, 6) ^ turned(e, 11) ^ turned(e,
        25)) + ((e & f) ^ (~e & g)) + ROUNDS[at] + words[at]) | 0;
      const second = ((turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) | 0, c, b, a, (first + second) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((word, at) => (state[at] += word));
  }
}
