// <log-view>: an attempt's log, live, of any length. <log-panel>: shows the log of whichever attempt is the newest.
import { fill, parse } from "./log-lines.js";
import { LogRows } from "./log-rows.js";
import { LogStore, Search } from "./log-store.js";
import { ResumingSocket } from "./resuming-socket.js";

const TYPING_MS = 250;
const LINE_OF_ADDRESS = /^#L(\d{1,9})$/;
const PARTS = ["box", "sheet", "body", "find", "count", "state", "first", "end", "empty", "level", "process", "wrap", "link", "total"];
const asked = () => { const found = LINE_OF_ADDRESS.exec(location.hash); return found ? Number(found[1]) - 1 : -1; };

class LogView extends HTMLElement {
  connectedCallback() {
    if (this.socket) return;
    this.parts = Object.fromEntries(PARTS.map((name) => [name, this.querySelector(`[data-log-${name}]`)]));
    Object.assign(this, { whole: 0, tail: "", at: null, shown: null, found: null, hit: -1, chosen: -1, summary: { first: null } });
    const { box, sheet, body } = this.parts;
    body.replaceChildren();
    this.store = new LogStore({ address: this.dataset.lines, onLines: () => this.rows.refresh() });
    this.rows = new LogRows({
      box, sheet, body, draw: (row, old) => this.draw(row, old), onMove: () => this.tellFollows(),
    });
    this.isOwn = this.hasAttribute("data-own");
    this.toShow = this.isOwn ? asked() : -1;
    this.setWrap(localStorage.getItem("slipway-log-wrap") !== "no");
    this.listen();
    this.socket = new ResumingSocket({
      address: () => `/ws/attempts/${this.dataset.attempt}/log/${this.at === null ? "" : `?after=${this.at}`}`,
      onMessage: (message) => this.hear(message),
      onState: (state) => this.say(state),
    });
  }

  disconnectedCallback() {
    this.socket?.end();
    this.socket = null;
    this.stop?.abort();
    this.rows?.end();
    this.store?.end();
    this.found?.stop();
    this.filtering?.stop();
  }

  listen() {
    this.stop = new AbortController();
    const { signal } = this.stop;
    const { end, first, wrap, level, process, find, body, box } = this.parts;
    const on = (element, kind, act) => element.addEventListener(kind, act, { signal });
    on(end, "click", () => this.rows.setFollows(true));
    on(first, "click", () => this.showFirst());
    on(wrap, "click", () => this.setWrap(box.dataset.wrap !== "yes"));
    on(level, "change", () => this.filter());
    on(process, "change", () => this.filter());
    on(find, "input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.search(), TYPING_MS);
    });
    on(find, "keydown", (event) => {
      if (event.key === "Enter") { event.preventDefault(); this.step(event.shiftKey ? -1 : 1); }
      if (event.key === "Escape") { find.value = ""; this.search(); box.focus(); }
    });
    on(body, "click", (event) => {
      const anchor = event.target.closest("[data-line]");
      if (anchor) { event.preventDefault(); this.choose(Number(anchor.dataset.line)); }
    });
    on(box, "keydown", (event) => this.key(event));
    on(window, "hashchange", () => { if (this.isOwn && asked() >= 0) this.showLine(asked()); });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      "/": () => this.parts.find.focus(), n: () => this.step(1), N: () => this.step(-1), w: () => this.parts.wrap.click(),
      f: () => this.rows.setFollows(true), x: () => this.showFirst(), End: () => this.rows.setFollows(true),
      PageDown: () => this.rows.page(1), PageUp: () => this.rows.page(-1),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  // -- what comes in

  say(state) {
    this.dataset.state = state;
    this.parts.state.textContent = this.dataset[`word${state[0].toUpperCase()}${state.slice(1)}`] ?? state;
  }

  hear(message) {
    if ("text" in message) this.take(message);
    if (message.summary) this.takeSummary(message.summary);
    if (message.complete) {
      this.socket.end();
      this.say("complete");
    }
    this.parts.empty.hidden = this.total > 0;
    if (this.toShow >= 0 && this.total > 0) {
      this.showLine(this.toShow);
      this.toShow = -1;
    }
  }

  get total() { return this.whole + (this.tail ? 1 : 0); }

  take({ offset, end, line, text }) {
    // Only what continues the own position is taken: a doubled or torn message must not show.
    if (this.at !== null && offset !== this.at) return;
    if (this.at === null) this.whole = line;
    this.at = end;
    const lines = (this.tail + text).split("\n");
    this.tail = lines.pop();
    for (const raw of lines) {
      this.store.put(this.whole, raw);
      this.notice(this.whole, raw);
      this.whole += 1;
    }
    this.recount();
  }

  notice(number, raw) {
    const searches = [this.filtering, this.found].filter(Boolean);
    if (!searches.length) return;
    const line = parse(raw);
    for (const search of searches) search.take(number, line, raw);
  }

  takeSummary(summary) {
    this.summary = summary;
    const { process, first } = this.parts;
    const known = new Set([...process.options].map((one) => one.value));
    for (const name of summary.processes) {
      if (!known.has(name)) process.add(new Option(name, name));
    }
    process.hidden = summary.processes.length === 0;
    first.hidden = summary.first === null;
    if (summary.first !== null) first.querySelector("[data-log-first-text]").textContent = parse(summary.cause).text;
    this.recount();
  }

  recount() {
    this.rows.setCount(this.shown ? this.shown.numbers.length : this.total);
    const number = (value) => value.toLocaleString(document.documentElement.lang);
    const { gaps = 0 } = this.summary;
    const shown = this.shown ? `${number(this.shown.numbers.length)} / ${number(this.total)}` : number(this.total);
    this.parts.total.textContent = `${shown} ${this.dataset.wordLines}${gaps ? ` · ${this.dataset.wordGaps}: ${number(gaps)}` : ""}`;
    this.tellCount();
  }

  // -- rows

  rowOf(number) { return this.shown ? this.shown.numbers.position(number) : number; }

  draw(row, old) {
    const number = this.shown ? this.shown.numbers.at(row) : row;
    const raw = number === this.whole && this.tail ? this.tail : this.store.get(number);
    if (raw === undefined) this.askFor(number);
    else this.store.touch(number);
    const isHit = this.found?.numbers.has(number) ?? false;
    const isHere = number === this.chosen;
    if (old && old.number === number && old.raw === raw && old.isHit === isHit && old.isHere === isHere) return old;
    const element = fill(old ?? document.createElement("div"), raw, number);
    element.classList.toggle("hit", isHit);
    element.classList.toggle("here", isHere);
    Object.assign(element, { isHit, isHere });
    return element;
  }

  // What one drawing misses is asked for once it is drawn.
  askFor(number) {
    if (this.missing) { this.missing.push(number); return; }
    this.missing = [number];
    queueMicrotask(() => { this.store.need(this.missing); this.missing = null; });
  }

  setWrap(wraps) {
    this.parts.box.dataset.wrap = wraps ? "yes" : "no";
    this.parts.wrap.setAttribute("aria-pressed", String(wraps));
    localStorage.setItem("slipway-log-wrap", wraps ? "yes" : "no");
    this.rows.reset();
  }

  tellFollows() { this.parts.end.setAttribute("aria-pressed", String(this.rows.follows)); }

  choose(number) {
    this.chosen = number;
    this.parts.link.hidden = false;
    this.parts.link.dataset.copy = new URL(`${this.dataset.link}#L${number + 1}`, location.href).href;
    if (this.isOwn) history.replaceState(history.state, "", `#L${number + 1}`);
    this.rows.refresh();
  }

  showLine(number) {
    const line = Math.max(0, Math.min(number, this.total - 1));
    this.choose(line);
    this.rows.show(this.rowOf(line));
  }

  async showFirst() {
    const { first } = this.summary;
    if (first === null) return;
    if (this.shown && !this.shown.numbers.has(first)) { // a filter hides it
      this.parts.level.value = this.parts.process.value = "";
      await this.filter();
    }
    this.showLine(first);
    this.parts.box.focus({ preventScroll: true });
  }

  // -- filters and search

  begin(text, onMore) {
    const { level, process } = this.parts;
    return new Search({
      address: this.dataset.matches, level: level.value, process: process.value, text, before: this.whole, onMore,
    });
  }

  async filter() {
    this.filtering?.stop();
    const { level, process } = this.parts;
    const search = level.value || process.value ? this.begin("", () => {}) : null;
    this.filtering = search;
    if (search && !(await search.run())) {
      if (this.filtering === search) this.say("lost");
      return;
    }
    this.shown = search;
    this.rows.reset();
    this.recount();
    if (!this.rows.follows && this.chosen >= 0) this.rows.show(this.rowOf(this.chosen));
    if (this.parts.find.value) this.search();
  }

  async search() {
    this.found?.stop();
    this.hit = -1;
    const text = this.parts.find.value;
    const search = text ? this.begin(text, () => { this.tellCount(); this.rows.refresh(); }) : null;
    this.found = search;
    this.tellCount();
    this.rows.refresh();
    if (!search || !(await search.run()) || this.found !== search) return;
    this.tellCount();
    if (search.numbers.length && this.hit < 0) this.step(-1);
  }

  step(by) {
    const numbers = this.found?.numbers;
    if (!numbers?.length) return;
    const { length } = numbers;
    this.hit = this.hit < 0 ? (by > 0 ? 0 : length - 1) : (this.hit + by + length) % length;
    this.showLine(numbers.at(this.hit));
    this.tellCount();
  }

  tellCount() {
    const numbers = this.found?.numbers;
    this.parts.count.textContent = numbers ? `${this.hit + 1 || "–"} / ${numbers.length.toLocaleString(document.documentElement.lang)}` : "";
  }
}

class LogPanel extends HTMLElement {
  connectedCallback() {
    this.stop = new AbortController();
    document.addEventListener("slipway:changed", ({ detail }) => {
      if (["instance", "attempt", "deployment", "job"].includes(detail.kind)) this.look();
    }, { signal: this.stop.signal });
    this.timer = setInterval(() => this.look(), 2000);
    this.look();
  }

  disconnectedCallback() {
    this.stop.abort();
    clearInterval(this.timer);
  }

  async look() {
    if (this.busy || document.hidden) return;
    this.busy = true;
    try {
      const shown = this.querySelector("[data-log-shown]")?.dataset.logShown ?? "";
      const answer = await fetch(`${this.dataset.src}?shown=${shown}`, { headers: { "X-Live": "1" } });
      if (answer.ok && answer.status !== 204 && !answer.redirected) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        this.replaceChildren(...page.body.childNodes);
      }
    } catch {
      // The next look finds it.
    } finally {
      this.busy = false;
    }
  }
}

customElements.define("log-view", LogView);
customElements.define("log-panel", LogPanel);
