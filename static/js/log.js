// <log-view>: an attempt's log, live. <log-panel>: shows the log of whichever attempt is the newest.
import { fill, isException, namesCause } from "./log-lines.js";
import { ResumingSocket } from "./resuming-socket.js";

const MOST_ROWS = 20000;
const DROPPED_AT_ONCE = 5000;
const NEAR_END_PX = 40;
const FILE_BEGINS = 0;

class LogView extends HTMLElement {
  connectedCallback() {
    if (this.socket) return;
    const part = (name) => this.querySelector(`[data-log-${name}]`);
    this.box = part("box");
    this.body = part("body");
    this.find = part("find");
    this.count = part("count");
    this.status = part("state");
    this.first = part("first");
    this.earlier = part("earlier");
    this.toEnd = part("end");
    this.empty = part("empty");
    this.follows = true;
    this.top = 0;
    this.start = null;
    this.end = null;
    this.body.replaceChildren();
    this.tail = "";
    this.openRow = null;
    this.hits = [];
    this.hit = -1;
    this.listen();
    this.socket = new ResumingSocket({
      address: () => `/ws/attempts/${this.dataset.attempt}/log/${this.end === null ? "" : `?after=${this.end}`}`,
      onMessage: (message) => this.hear(message),
      onState: (state) => this.say(state),
    });
  }

  disconnectedCallback() {
    this.socket?.end();
    this.socket = null;
    this.stop?.abort();
  }

  listen() {
    this.stop = new AbortController();
    const { signal } = this.stop;
    const on = (element, kind, act) => element?.addEventListener(kind, act, { signal });
    // Up means reading; the end means following. Rows that only now get their height must not count as either.
    on(this.box, "scroll", () => {
      const { scrollTop } = this.box;
      if (scrollTop < this.top - 3) this.setFollows(false);
      else if (this.isAtEnd()) this.setFollows(true);
      this.top = scrollTop;
    });
    // Follows once a frame, when the rows have their heights: asking for heights after each message would cost a layout each.
    const grown = new ResizeObserver(() => { if (this.follows) this.scrollToEnd(); });
    grown.observe(this.body);
    signal.addEventListener("abort", () => grown.disconnect());
    on(this.toEnd, "click", () => this.setFollows(true));
    on(this.earlier, "click", () => this.loadEarlier());
    on(this.first, "click", () => this.showFirst());
    on(this.find, "input", () => this.search());
    on(this.find, "keydown", (event) => {
      if (event.key === "Enter") { event.preventDefault(); this.step(event.shiftKey ? -1 : 1); }
      if (event.key === "Escape") { this.find.value = ""; this.search(); }
    });
    on(this.querySelector("[data-log-level]"), "change", (event) => {
      this.box.dataset.only = event.target.value;
      if (this.follows) this.scrollToEnd();
    });
  }

  say(state) {
    this.dataset.state = state;
    this.status.textContent = this.dataset[`word${state[0].toUpperCase()}${state.slice(1)}`] ?? state;
  }

  hear(message) {
    if ("text" in message) this.take(message);
    if (message.complete) {
      if (this.tail) this.closeRow();
      this.socket.end();
      this.say("complete");
    }
    this.empty.hidden = this.body.childElementCount > 0;
  }

  take({ offset, end, text }) {
    // Only what continues the own position is taken: a doubled or torn message must not show.
    if (this.end !== null && offset !== this.end) return;
    if (this.start === null) this.start = offset;
    this.end = end;
    this.append(text);
    this.earlier.hidden = this.start === FILE_BEGINS || this.start === null;
  }

  append(text) {
    const lines = (this.tail + text).split("\n");
    this.tail = lines.pop();
    const rows = document.createDocumentFragment();
    for (const line of lines) {
      const row = this.openRow ?? document.createElement("div");
      fill(row, line);
      if (!this.openRow) rows.append(row);
      this.openRow = null;
      this.notice(row);
    }
    this.body.append(rows);
    if (this.tail) {
      if (!this.openRow) {
        this.openRow = document.createElement("div");
        this.body.append(this.openRow);
      }
      fill(this.openRow, this.tail);
    }
    this.dropOldest();
  }

  closeRow() {
    this.notice(this.openRow);
    this.openRow = null;
    this.tail = "";
  }

  notice(row) {
    if (!row) return;
    if (this.isBetterCause(row)) this.pin(row);
    if (this.find.value && this.matches(row)) { this.hits.push(row); row.classList.add("hit"); this.tellCount(); }
  }

  // The first error, unless it only says that something failed: then the first exception after it.
  isBetterCause(row) {
    return namesCause(row.line) && (!this.firstRow || (isException(row.line) && !isException(this.firstRow.line)));
  }

  pin(row) {
    this.firstRow = row;
    this.first.hidden = false;
    this.first.querySelector("[data-log-first-text]").textContent = row.line.text;
  }

  showFirst() {
    if (!this.firstRow?.isConnected) return;
    this.setFollows(false);
    this.firstRow.scrollIntoView({ block: "center" });
    this.flash(this.firstRow);
  }

  flash(row) {
    for (const old of this.body.querySelectorAll(".here")) old.classList.remove("here");
    row.classList.add("here");
  }

  dropOldest() {
    if (this.body.childElementCount <= MOST_ROWS) return;
    for (let left = DROPPED_AT_ONCE; left > 0; left -= 1) this.body.firstElementChild.remove();
    // Byte positions of the rows are not kept, so earlier lines can't be fetched any more; the download has them all.
    this.start = null;
    this.earlier.hidden = true;
  }

  async loadEarlier() {
    this.earlier.disabled = true;
    try {
      const answer = await fetch(`${this.dataset.earlier}?before=${this.start}`);
      if (!answer.ok) return;
      const piece = await answer.json();
      const lines = piece.text.split("\n");
      if (lines.at(-1) === "") lines.pop();
      const rows = document.createDocumentFragment();
      for (const line of lines) rows.append(fill(document.createElement("div"), line));
      const below = this.box.scrollHeight - this.box.scrollTop;
      this.body.prepend(rows);
      this.box.scrollTop = this.box.scrollHeight - below;
      this.start = piece.offset;
      this.earlier.hidden = this.start === FILE_BEGINS;
      this.firstRow = null;
      for (const row of this.body.children) if (this.isBetterCause(row)) this.pin(row);
      if (this.find.value) this.search();
    } finally {
      this.earlier.disabled = false;
    }
  }

  matches(row) { return row.raw.toLowerCase().includes(this.find.value.toLowerCase()); }

  search() {
    for (const row of this.hits) row.classList.remove("hit");
    this.hits = this.find.value ? [...this.body.children].filter((row) => this.matches(row)) : [];
    for (const row of this.hits) row.classList.add("hit");
    this.hit = -1;
    this.tellCount();
    if (this.hits.length) this.step(-1);
  }

  step(by) {
    if (!this.hits.length) return;
    this.hit = this.hit < 0 ? (by > 0 ? 0 : this.hits.length - 1) : (this.hit + by + this.hits.length) % this.hits.length;
    this.setFollows(false);
    this.hits[this.hit].scrollIntoView({ block: "center" });
    this.flash(this.hits[this.hit]);
    this.tellCount();
  }

  tellCount() {
    this.count.textContent = this.find.value ? `${this.hit + 1 || "–"} / ${this.hits.length}` : "";
  }

  isAtEnd() { return this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < NEAR_END_PX; }
  scrollToEnd() {
    this.box.scrollTop = this.box.scrollHeight;
    this.top = this.box.scrollTop;
  }

  setFollows(follows) {
    this.follows = follows;
    this.toEnd.setAttribute("aria-pressed", String(follows));
    if (follows && !this.isAtEnd()) this.scrollToEnd();
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
