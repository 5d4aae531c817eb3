// A list of any length of which only the rows in sight exist. Rows may differ in height: the scroll bar counts rows, not pixels, and
// what is in sight hangs on one row: the first one, or at the end the last.
const MOST_PX = 12e6; // browsers stop counting beyond some 16 million pixels
const BESIDE = 12; // rows drawn beyond either edge

export class LogRows {
  constructor({ box, sheet, body, draw, onMove }) {
    Object.assign(this, { box, sheet, body, draw, onMove, count: 0, follows: true, rowPx: 20, drawn: new Map() });
    this.stop = new AbortController();
    box.addEventListener("scroll", () => this.moved(), { signal: this.stop.signal, passive: true });
    this.sized = new ResizeObserver(() => { this.measured = false; this.refresh(); });
    this.sized.observe(box);
  }

  end() { this.stop.abort(); this.sized.disconnect(); cancelAnimationFrame(this.frame); }

  setCount(count) {
    const { first } = this;
    const grown = count > this.count;
    this.count = count;
    this.refresh();
    if (this.follows || !grown || first === undefined) return;
    // The bar has a limited length: in a long list each row that comes shortens what stands for one. What is read stays in sight.
    this.resize();
    const top = (first / Math.max(1, count - this.fit)) * this.maximum;
    if (Math.abs(top - this.box.scrollTop) > this.rowPx / 4) this.place(top);
  }

  // All rows are drawn anew: they look different now, or others are meant.
  reset() { this.drawn.clear(); this.body.replaceChildren(); this.measured = false; this.refresh(); }

  refresh() { this.frame ||= requestAnimationFrame(() => { this.frame = 0; this.render(); }); }

  get maximum() { return Math.max(0, this.height - this.box.clientHeight); }
  get height() { return Math.min(this.count * this.rowPx, MOST_PX); }
  get isAtEnd() { return this.box.scrollTop >= this.maximum - 2; }
  get fit() { return this.fits ?? this.box.clientHeight / this.rowPx; }

  moved() {
    const { scrollTop } = this.box;
    if (Math.abs(scrollTop - (this.top ?? 0)) < 1) return;
    // Up means reading; the end means following. What the list itself did to the bar counts as neither.
    if (scrollTop < this.top - 3 && !this.isAtEnd) this.setFollows(false);
    else if (this.isAtEnd) this.setFollows(true);
    this.top = scrollTop;
    this.refresh();
  }

  setFollows(follows) {
    if (this.follows !== follows) { this.follows = follows; this.onMove(); }
    if (follows) this.refresh();
  }

  place(top) { this.box.scrollTop = top; this.top = this.box.scrollTop; }

  // Bring a row into sight; `share`: where, 0 is the upper edge and 1 the lower one.
  show(row, share = 0.4) {
    this.setFollows(false);
    this.resize();
    const first = Math.max(0, row - this.fit * share);
    this.place(this.count > this.fit ? (first / (this.count - this.fit)) * this.maximum : 0);
    this.render();
    const element = this.drawn.get(row);
    if (!element) return;
    const [seen, around] = [element.getBoundingClientRect(), this.box.getBoundingClientRect()];
    // Rows that are higher than the others may have pushed it out: the bar is moved by whole rows then.
    if (seen.top < around.top || seen.bottom > around.bottom) {
      this.place(Math.min(this.maximum, (row / Math.max(1, this.count - this.fit)) * this.maximum));
      this.render();
    }
  }

  // A page up or down by what is really in sight, however high the rows are.
  page(by) {
    const around = this.box.getBoundingClientRect();
    const inside = [...this.drawn].filter(([, one]) => {
      const { top, bottom } = one.getBoundingClientRect();
      return bottom > around.top && top < around.bottom;
    }).map(([row]) => row);
    if (!inside.length) return;
    const [first, last] = [Math.min(...inside), Math.max(...inside)];
    if (by > 0 && last >= this.count - 1) this.setFollows(true);
    else this.show(by > 0 ? last : Math.max(0, first - Math.max(1, last - first - 1)), 0);
  }

  resize() {
    const height = `${this.height}px`;
    if (this.sheet.style.height !== height) this.sheet.style.height = height;
  }

  render() {
    if (!this.box.isConnected || !this.box.clientHeight) return;
    this.resize();
    if (this.follows) this.place(this.maximum);
    const view = this.box.clientHeight;
    const few = this.count <= this.fit;
    if (this.count === 0) { this.sync(0, 0); return; }
    if (this.follows || (this.isAtEnd && !few)) this.renderEnd(view);
    else this.renderFrom(view);
    if (!this.measured) this.measure();
  }

  renderFrom(view) {
    const beyond = this.maximum ? (this.box.scrollTop / this.maximum) * Math.max(0, this.count - this.fit) : 0;
    const first = Math.min(this.count - 1, Math.floor(beyond));
    this.first = beyond;
    this.sync(Math.max(0, first - BESIDE), Math.min(this.count, first + Math.ceil(view / 16) + BESIDE));
    const element = this.drawn.get(first);
    this.move(this.box.scrollTop - (element.offsetTop + (beyond - first) * element.offsetHeight));
  }

  renderEnd(view) {
    const from = Math.max(0, this.count - Math.ceil(view / 16) - BESIDE);
    this.first = Math.max(0, this.count - this.fit);
    this.sync(from, this.count);
    const height = this.body.offsetHeight;
    this.move(height < view && from === 0 ? 0 : this.height > height ? this.height - height : Math.min(0, view - height) + this.box.scrollTop);
    let px = 0, rows = 0;
    for (let row = this.count - 1; row >= from && px < view; row -= 1, rows += 1) px += this.drawn.get(row).offsetHeight;
    this.fits = px > view ? rows - (px - view) / this.drawn.get(this.count - rows).offsetHeight : undefined;
  }

  move(px) { this.body.style.transform = `translateY(${px}px)`; }

  // The height of most rows decides how far a turn of the wheel goes.
  measure() {
    this.measured = true;
    const usual = this.body.childElementCount ? this.body.offsetHeight / this.body.childElementCount : 20;
    if (usual < 8 || Math.abs(usual - this.rowPx) < 1) return;
    const share = this.maximum ? this.box.scrollTop / this.maximum : 0;
    this.rowPx = usual;
    this.fits = undefined;
    this.resize();
    this.place(share * this.maximum);
    this.refresh();
  }

  sync(from, to) {
    for (const [row, element] of this.drawn) {
      if (row < from || row >= to) { element.remove(); this.drawn.delete(row); }
    }
    let before = this.body.firstElementChild;
    for (let row = from; row < to; row += 1) {
      const old = this.drawn.get(row);
      const element = this.draw(row, old);
      if (element === old) before = old.nextElementSibling;
      else {
        if (old) old.replaceWith(element); else this.body.insertBefore(element, before);
        this.drawn.set(row, element);
        before = element.nextElementSibling;
      }
    }
  }
}
