// Brought into a board's page before its own scripts: doubles its charts up to 24, and plays updates into them as fast as the
// page draws. Each animation frame gets `atOnce` seconds, as a tab does that was behind others.
const CHARTS = 24;

document.addEventListener("readystatechange", () => {
  const source = document.getElementById("metric-charts");
  const grid = document.querySelector(".chart-grid");
  if (document.readyState !== "interactive" || !source || !grid) return;
  const charts = JSON.parse(source.textContent);
  const cards = [...grid.children];
  for (let at = 0; charts.length < CHARTS; at += 1) {
    const twin = cards[at].cloneNode(true);
    const id = `${charts[at].id}-again`;
    charts.push({ ...charts[at], id });
    twin.querySelector("[data-plot]").dataset.plot = id;
    grid.append(twin);
  }
  source.textContent = JSON.stringify(charts);
});

window.replay = {
  begin() {
    const board = document.querySelector("metric-board");
    clearTimeout(board.timer);
    board.socket?.end();
    board.data.empty = {};
    this.board = board;
    this.last = board.data.t.at(-1);
  },
  async updates(count, atOnce) {
    for (let done = 0; done < count; done += atOnce) {
      const points = Array.from({ length: Math.min(atOnce, count - done) }, () => this.point());
      this.board.add(points);
      await new Promise(requestAnimationFrame);
    }
  },
  point() {
    this.last += 1000;
    const phase = this.last / 60_000;
    const values = Object.keys(this.board.data.groups[0].values).map((key, at) => [key, 0.5 + 0.4 * Math.sin(phase + at) + 0.05 * Math.random()]);
    return { t: this.last, groups: { all: Object.fromEntries(values) } };
  },
};
