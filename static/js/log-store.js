// The lines of one log, as far as they were needed, and searches in it.
import { isOfLevel, isOfProcess } from "./log-lines.js";

const PAGE = 200;
const MOST_PAGES = 400;
const FETCH_AT_ONCE = 300;
const GATHER_MS = 40;

// Line numbers in rising order. A million take 4 MB.
export class Numbers {
  constructor() { this.data = new Uint32Array(1024); this.length = 0; }

  reserve(more) {
    if (this.length + more <= this.data.length) return;
    const grown = new Uint32Array(Math.max(this.data.length * 2, this.length + more));
    grown.set(this.data.subarray(0, this.length));
    this.data = grown;
  }

  push(number) { this.reserve(1); this.data[this.length++] = number; }

  append(numbers) { this.reserve(numbers.length); this.data.set(numbers, this.length); this.length += numbers.length; }

  at(position) { return this.data[position]; }

  // Position of the first number that is not smaller.
  position(number) {
    let low = 0, high = this.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.data[middle] < number) low = middle + 1; else high = middle;
    }
    return low;
  }

  has(number) { return this.data[this.position(number)] === number && this.position(number) < this.length; }
}

// Pages of lines by number; those that were used least recently are dropped.
export class LogStore {
  constructor({ address, onLines }) {
    this.address = address;
    this.onLines = onLines;
    this.pages = new Map();
    this.wanted = new Set();
    this.ended = new AbortController();
  }

  get(number) { return this.pages.get(Math.floor(number / PAGE))?.[number % PAGE]; }

  put(number, text) {
    const key = Math.floor(number / PAGE);
    let page = this.pages.get(key);
    if (page) { page[number % PAGE] = text; return; }
    page = new Array(PAGE);
    page[number % PAGE] = text;
    this.pages.set(key, page);
    for (const old of this.pages.keys()) {
      if (this.pages.size <= MOST_PAGES) break;
      this.pages.delete(old);
    }
  }

  // Keep the page of this line: it is being looked at.
  touch(number) {
    const key = Math.floor(number / PAGE);
    const page = this.pages.get(key);
    if (page) { this.pages.delete(key); this.pages.set(key, page); }
  }

  need(numbers) {
    this.wanted = new Set(numbers);
    if (this.wanted.size && !this.timer && !this.busy) this.timer = setTimeout(() => this.fetch(), GATHER_MS);
  }

  // Only what is looked at now is asked for: whoever drags the bar through a million lines leaves nothing behind that is waited for.
  async fetch() {
    this.timer = 0;
    const numbers = [...this.wanted].filter((one) => this.get(one) === undefined).sort((a, b) => a - b).slice(0, FETCH_AT_ONCE);
    this.wanted.clear();
    if (!numbers.length) return;
    this.busy = true;
    const [first, last] = [numbers[0], numbers.at(-1)];
    const isRun = last - first < FETCH_AT_ONCE;
    const query = isRun ? `from=${first}&count=${last - first + 1}` : `at=${numbers.join(",")}`;
    try {
      const answer = await fetch(`${this.address}?${query}`, { signal: this.ended.signal });
      if (answer.ok) {
        const { lines } = await answer.json();
        lines.forEach((text, at) => this.put(isRun ? first + at : numbers[at], text));
      }
    } catch {
      // The connection is away: what is still looked at is asked for again with the next drawing.
    } finally {
      this.busy = false;
      if (!this.ended.signal.aborted) this.onLines();
    }
  }

  end() { this.ended.abort(); clearTimeout(this.timer); }
}

// The lines that match: those that were there when it began are found by the server, those that come later are looked at here.
export class Search {
  constructor({ address, level = "", process = "", text = "", before, onMore }) {
    Object.assign(this, { address, level, process, text, before, onMore, numbers: new Numbers(), late: new Numbers(), isDone: false });
    this.ended = new AbortController();
  }

  stop() { this.ended.abort(); }

  take(number, line, raw) {
    if (!isOfLevel(line, this.level) || !isOfProcess(line, this.process)) return false;
    if (this.text && !raw.toLowerCase().includes(this.text.toLowerCase())) return false;
    (this.isDone ? this.numbers : this.late).push(number);
    return this.isDone;
  }

  // True once all are found; false if it was stopped or the connection is away.
  async run() {
    try {
      await this.read();
    } catch {
      return false;
    }
    this.numbers.append(this.late.data.subarray(0, this.late.length));
    this.isDone = true;
    return !this.ended.signal.aborted;
  }

  // The answer is numbers of four bytes each, in the order of the log.
  async read() {
    const { level, process, text } = this;
    const answer = await fetch(`${this.address}?${new URLSearchParams({ level, process, text })}`, { signal: this.ended.signal });
    if (!answer.ok) throw new Error(String(answer.status));
    const reader = answer.body.getReader();
    let rest = new Uint8Array(0);
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const bytes = new Uint8Array(rest.length + value.length);
      bytes.set(rest);
      bytes.set(value, rest.length);
      const whole = bytes.length - (bytes.length % 4);
      rest = bytes.slice(whole);
      const view = new DataView(bytes.buffer, 0, whole);
      const numbers = new Uint32Array(whole / 4);
      for (let at = 0; at < numbers.length; at += 1) numbers[at] = view.getUint32(at * 4, true);
      const late = numbers.findIndex((one) => one >= this.before);
      this.numbers.append(late < 0 ? numbers : numbers.subarray(0, late));
      this.onMore();
    }
  }
}
