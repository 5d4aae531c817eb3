// A board of charts: <metric-board data-series data-socket data-csv> with the charts' descriptions in #metric-charts.
// Every chart has bounded arrays that live points are appended to, and one Plotly.react a tick; nothing else holds data.
import { words } from "./words.js";
import { ResumingSocket } from "./resuming-socket.js";

const LIVE_RANGE = 900;
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash"];
// Told apart by people who don't see all colours (after Okabe and Ito), and by their dashes.
const APART = ["#2f7ed8", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a6ff0", "#8a8f98"];
const ROLE_DASH = { calm: "dot", warn: "dash", bad: "dashdot", dim: "longdash" };
const UNITS = {
  seconds: { suffix: "s", tick: "~s", hover: (v) => (v < 1 ? `${(v * 1000).toPrecision(3)} ms` : `${v.toPrecision(3)} s`) },
  share: { tick: ",.0%", hover: (v) => `${(v * 100).toFixed(1)} %` },
  tokens: { axis: "tokens", tick: "~s", hover: (v) => `${Math.round(v).toLocaleString("en")} tokens` },
  "tokens/s": { axis: "tokens/s", tick: "~s", hover: (v) => `${v.toPrecision(4)} tokens/s` },
  "requests/s": { axis: "requests/s", tick: "~g", hover: (v) => `${v.toPrecision(3)} /s` },
  GiB: { axis: "GiB", tick: "~g", hover: (v) => `${v.toPrecision(4)} GiB` },
  W: { axis: "W", tick: "~g", hover: (v) => `${Math.round(v)} W` },
  "°C": { axis: "°C", tick: "~g", hover: (v) => `${Math.round(v)} °C` },
  MHz: { axis: "MHz", tick: "~g", hover: (v) => `${Math.round(v)} MHz` },
  "bytes/s": { axis: "bytes/s", tick: "~s", hover: (v) => `${inBytes(v)}/s` },
  load: { axis: "processes", tick: "~g", hover: (v) => v.toFixed(2) },
  requests: { axis: "requests", tick: "~g", hover: (v) => String(Math.round(v * 10) / 10) },
};

function inBytes(value) {
  const steps = ["B", "kB", "MB", "GB", "TB"];
  const at = Math.min(steps.length - 1, Math.floor(Math.log10(Math.max(1, value)) / 3));
  return `${(value / 1000 ** at).toPrecision(3)} ${steps[at]}`;
}

function colours() {
  const style = getComputedStyle(document.body);
  return Object.fromEntries(["accent", "calm", "warn", "bad", "ok", "dim", "line", "ink", "card"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

// Milliseconds between UTC and a zone's clock at a moment.
function offsetOf(zone, at) {
  const parts = new Intl.DateTimeFormat("en-GB", { timeZone: zone, hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" }).formatToParts(at);
  const part = (type) => Number(parts.find((one) => one.type === type).value);
  return Date.UTC(part("year"), part("month") - 1, part("day"), part("hour"), part("minute"), part("second")) - Math.floor(at / 1000) * 1000;
}

class MetricBoard extends HTMLElement {
  connectedCallback() {
    this.charts = JSON.parse(document.getElementById("metric-charts").textContent);
    this.state = { range: LIVE_RANGE, apart: false, compare: "", live: true, zone: document.documentElement.dataset.zone || "UTC", from: 0, to: 0 };
    this.ends = new AbortController();
    this.nameOwnZone();
    this.read();
    this.places = new Map([...this.querySelectorAll("[data-plot]")].map((place) => [place.dataset.plot, place]));
    this.listen();
    this.seen = new Set(this.places.keys());
    this.observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        this.seen[entry.isIntersecting ? "add" : "delete"](entry.target.dataset.plot);
        if (entry.isIntersecting) this.drawSoon();
      }
    }, { rootMargin: "200px" });
    for (const place of this.places.values()) this.observer.observe(place);
    this.themes = new MutationObserver(() => this.draw());
    this.themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-bs-theme"] });
    this.load();
  }

  disconnectedCallback() {
    this.ends.abort();
    this.observer.disconnect();
    this.themes.disconnect();
    this.socket?.end();
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
    for (const place of this.places.values()) window.Plotly.purge(place);
  }

  // -- what is asked for ---------------------------------------------------------------------------------------------

  read() {
    const query = new URLSearchParams(location.search);
    for (const name of ["range", "from", "to"]) if (query.get(name)) this.state[name] = Number(query.get(name));
    this.state.apart = query.get("apart") === "1";
    this.state.compare = query.get("compare") || "";
    if (this.state.from && this.state.to) this.state.live = false;
    this.show();
  }

  // The reader's own zone, for those who look from elsewhere than their settings say.
  nameOwnZone() {
    const choice = this.querySelector("[data-zone-local]");
    if (!choice) return;
    const own = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
    const twice = [...choice.parentElement.options].some((one) => one.value === own);
    if (twice) choice.remove();
    else {
      choice.value = own;
      choice.textContent = own;
    }
  }

  query() {
    const { range, apart, compare, from, to } = this.state;
    const query = new URLSearchParams(from ? { from, to } : { range });
    if (apart) query.set("apart", "1");
    if (compare) query.set("compare", compare);
    return query;
  }

  change(values) {
    Object.assign(this.state, values);
    history.replaceState(null, "", `?${this.query()}`);
    this.show();
    this.load();
  }

  show() {
    const { range, apart, compare, live, from, zone } = this.state;
    for (const button of this.querySelectorAll("[data-range]")) button.setAttribute("aria-pressed", String(!from && Number(button.dataset.range) === range));
    for (const button of this.querySelectorAll("[data-apart]")) button.setAttribute("aria-pressed", String((button.dataset.apart === "1") === apart));
    const choice = this.querySelector("[data-compare]");
    if (choice) choice.value = compare;
    const zones = this.querySelector("[data-zone-choice]");
    if (zones) zones.value = [...zones.options].some((one) => one.value === zone) ? zone : zones.value;
    this.dataset.live = String(live);
    for (const part of this.querySelectorAll("[data-when]")) part.hidden = (part.dataset.when === "live") !== live;
    this.querySelector("[data-zoom-out]").hidden = !from;
    const table = this.querySelector("[data-csv-link]");
    if (table) table.href = `${this.dataset.csv}?${this.query()}`;
  }

  listen() {
    const { signal } = this.ends;
    this.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      if (button.dataset.range) this.change({ range: Number(button.dataset.range), from: 0, to: 0, live: true });
      else if (button.dataset.apart) this.change({ apart: button.dataset.apart === "1" });
      else if ("pause" in button.dataset) this.toggle();
      else if ("zoomOut" in button.dataset) this.change({ from: 0, to: 0, live: true });
      else if (button.dataset.png) this.save(button.dataset.png);
    }, { signal });
    this.addEventListener("change", (event) => {
      if (event.target.matches("[data-compare]")) this.change({ compare: event.target.value });
      if (event.target.matches("[data-zone-choice]")) { this.state.zone = event.target.value; this.draw(); if (this.data) this.listMarks(); }
    }, { signal });
    document.addEventListener("keydown", (event) => {
      if (event.target.closest("input, select, textarea, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
      const buttons = [...this.querySelectorAll("[data-range]")];
      if (event.key === "p") this.toggle();
      else if (event.key === "0" && this.state.from) this.change({ from: 0, to: 0, live: true });
      else if (Number(event.key) >= 1 && Number(event.key) <= buttons.length) buttons[Number(event.key) - 1].click();
    }, { signal });
    document.addEventListener("visibilitychange", () => { if (!document.hidden && this.state.live) this.load(); }, { signal });
  }

  toggle() {
    if (this.state.live) this.pause({ live: false });
    else this.change({ live: true, from: 0, to: 0 });
  }

  // Pausing keeps what is on the screen.
  pause(values) {
    Object.assign(this.state, values);
    this.socket?.end();
    this.socket = null;
    clearTimeout(this.timer);
    this.show();
  }

  // -- data ------------------------------------------------------------------------------------------------------------

  async load() {
    clearTimeout(this.timer);
    const turn = (this.turn = (this.turn ?? 0) + 1);
    try {
      const answer = await fetch(`${this.dataset.series}?${this.query()}`, { credentials: "same-origin", signal: this.ends.signal });
      const data = await answer.json();
      if (turn !== this.turn) return;
      if (!answer.ok) throw new Error(data.error);
      this.take(data);
      this.tell("");
    } catch (error) {
      if (this.ends.signal.aborted || turn !== this.turn) return;
      this.tell(error instanceof SyntaxError || error instanceof TypeError ? words.failed : error.message);
      this.timer = setTimeout(() => this.load(), 5000);
      return;
    }
    this.follow();
  }

  tell(text) {
    const place = this.querySelector("[data-problem]");
    place.hidden = !text;
    place.querySelector("span").textContent = text;
  }

  take(data) {
    this.data = data;
    this.groups = data.groups.map((group) => group.key);
    const figures = this.querySelector("[data-figures]");
    figures?.replaceChildren(...data.totals.map((one) => {
      const box = document.createElement("div");
      for (const [tag, text] of [["small", one.name], ["strong", one.value], ["span", one.note]]) {
        const part = document.createElement(tag);
        part.textContent = text;
        box.append(part);
      }
      return box;
    }));
    const nothing = this.querySelector("[data-nothing-compared]");
    if (nothing) {
      nothing.textContent = data.compared?.empty ?? "";
      nothing.hidden = !nothing.textContent;
    }
    this.listMarks();
    this.drawSoon();
  }

  // The marks in words, the newest first: for keyboards, screen readers and fingers.
  listMarks() {
    const place = this.querySelector("[data-marks]");
    if (!place) return;
    const { marks } = this.data;
    place.hidden = !marks.length;
    place.querySelector("[data-marks-count]").textContent = String(marks.length);
    const clock = new Intl.DateTimeFormat("sv-SE", { timeZone: this.state.zone, dateStyle: "short", timeStyle: "medium" });
    place.querySelector("[data-marks-list]").replaceChildren(...[...marks].reverse().map((mark) => {
      const row = document.createElement("li");
      const when = document.createElement("time");
      when.dateTime = new Date(mark.t).toISOString();
      when.textContent = clock.format(mark.t);
      const sign = document.createElement("i");
      sign.className = `chart-mark mark-${mark.tone}`;
      sign.textContent = mark.sign;
      const text = document.createElement(mark.url ? "a" : "span");
      if (mark.url) text.href = mark.url;
      text.textContent = mark.text;
      row.append(when, sign, text);
      return row;
    }));
  }

  // The last quarter of an hour comes point by point; longer ranges are asked for again when they have a new slot.
  follow() {
    const { live, range } = this.state;
    if (!live) return;
    const bySocket = range <= LIVE_RANGE && Boolean(this.dataset.socket);
    if (!bySocket) {
      this.socket?.end();
      this.socket = null;
      this.timer = setTimeout(() => this.load(), Math.max(10, this.data.span.step) * 1000);
      return;
    }
    const address = `${this.dataset.socket}${this.state.apart ? "?apart=1" : ""}`;
    if (this.socket && this.address === address) return;
    this.socket?.end();
    this.address = address;
    this.socket = new ResumingSocket({
      address: () => address,
      onMessage: (message) => this.add(message.points),
      onState: (state) => {
        this.dataset.link = state;
        if (state === "live" && this.wasLost) this.load();
        this.wasLost = state === "lost";
      },
    });
    this.timer = setTimeout(() => this.refresh(), 60_000);
  }

  // Figures, marks and the reasons of empty charts change slowly; so does who takes part.
  refresh() {
    if (this.state.live && !document.hidden) this.load();
    else this.timer = setTimeout(() => this.refresh(), 60_000);
  }

  add(points) {
    if (!this.data || !this.state.live) return;
    const { t, groups, span, empty } = this.data;
    for (const point of points) {
      let at = t.length - 1;
      if (at >= 0 && point.t <= t[at]) {
        at = t.indexOf(point.t, Math.max(0, t.length - 8));
        if (at < 0) continue;
      } else {
        if (at >= 0 && point.t - t[at] > 3000) this.push(t[at] + 2000, null);
        this.push(point.t, null);
        at = t.length - 1;
      }
      for (const group of groups) {
        const values = point.groups[group.key] ?? {};
        for (const key of Object.keys(group.values)) group.values[key][at] = values[key] ?? null;
      }
      if (Object.keys(point.groups).some((key) => !this.groups.includes(key)) && !this.asking) {
        this.asking = setTimeout(() => { this.asking = null; this.load(); }, 1000);
      }
    }
    const oldest = t.at(-1) - this.state.range * 1000;
    let gone = 0;
    while (t[gone] < oldest) gone += 1;
    if (gone) {
      t.splice(0, gone);
      for (const group of groups) for (const key of Object.keys(group.values)) group.values[key].splice(0, gone);
    }
    for (const chart of this.charts) {
      if (empty[chart.id] && groups.some((group) => chart.lines.some((line) => group.values[line.key]?.at(-1) != null))) delete empty[chart.id];
    }
    span.end = t.at(-1) / 1000;
    span.first = span.end - this.state.range;
    const clock = this.querySelector("[data-fresh]");
    if (clock) clock.dataset.at = String(t.at(-1));
    this.drawSoon();
  }

  push(moment, value) {
    this.data.t.push(moment);
    for (const group of this.data.groups) for (const key of Object.keys(group.values)) group.values[key].push(value);
  }

  // -- drawing ---------------------------------------------------------------------------------------------------------

  drawSoon() {
    this.frame ??= requestAnimationFrame(() => { this.frame = null; this.draw(); });
  }

  draw() {
    if (!this.data || !window.Plotly || document.hidden) return;
    const palette = colours();
    const at = this.data.t.at(-1) ?? this.data.span.end * 1000;
    // Plotly takes numbers for moments and writes them in the browser's own zone, which is taken off again here.
    const shift = offsetOf(this.state.zone, at) + new Date(at).getTimezoneOffset() * 60_000;
    const zoneName = this.querySelector("[data-zone-name]");
    if (zoneName) zoneName.textContent = this.state.zone;
    const x = this.data.t.map((moment) => moment + shift);
    for (const chart of this.charts) {
      const place = this.places.get(chart.id);
      if (place && this.seen.has(chart.id)) this.drawOne(chart, place, x, shift, palette);
    }
    this.drawings = (this.drawings ?? 0) + 1;
    this.dataset.drawn = String(this.drawings);
  }

  drawOne(chart, place, x, shift, palette) {
    const note = this.data.empty[chart.id];
    const card = place.closest(".chart-card");
    card.classList.toggle("is-empty", Boolean(note));
    card.querySelector("[data-empty]").textContent = note ?? "";
    place.hidden = Boolean(note);
    if (note) return;
    const unit = UNITS[chart.unit];
    const data = this.traces(chart, x, palette).map((trace) => ({ ...trace, type: "scatter", mode: "lines", connectgaps: false, hovertemplate: "%{text}", text: trace.y.map((value) => (value == null ? "" : unit.hover(value))) }));
    const compared = this.data.compared;
    if (compared) {
      const y = compared.values[chart.main] ?? [];
      data.push({ type: "scatter", mode: "lines", name: compared.name, x: compared.t.map((moment) => moment + shift), y, line: { color: palette.dim, width: 1.2, dash: "dot" }, hovertemplate: "%{text}", text: y.map((value) => (value == null ? "" : unit.hover(value))) });
    }
    window.Plotly.react(place, data, this.layout(chart, shift, palette, unit), { displayModeBar: false, responsive: true, doubleClick: false, scrollZoom: false });
    if (!place.dataset.wired) this.wire(place);
  }

  traces(chart, x, palette) {
    if (!this.state.apart) {
      const values = this.data.groups[0]?.values ?? {};
      const shown = chart.lines.filter((line) => (values[line.key] ?? []).some((value) => value != null));
      return shown.map((line) => ({ name: line.name, x, y: values[line.key], line: { color: palette[line.role], width: 1.6, dash: ROLE_DASH[line.role] ?? "solid" } }));
    }
    return this.data.groups.map((group, at) => ({ name: group.name, x, y: group.values[chart.main] ?? [], line: { color: APART[(Number(group.key) - 1) % APART.length], width: 1.5, dash: DASHES[at % DASHES.length] } }));
  }

  layout(chart, shift, palette, unit) {
    const { span, marks } = this.data;
    const axis = { gridcolor: palette.line, zerolinecolor: palette.line, linecolor: palette.line, tickcolor: palette.line };
    const inside = marks.filter((mark) => mark.t >= span.first * 1000 && mark.t <= span.end * 1000);
    return {
      height: 208,
      margin: { l: 50, r: 12, t: 8, b: 26 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11.5, color: palette.dim },
      showlegend: false,
      hovermode: "x unified",
      hoverlabel: { bgcolor: palette.card, bordercolor: palette.line, font: { color: palette.ink, size: 12 } },
      dragmode: "zoom",
      uirevision: `${this.state.range}-${this.state.from}`,
      xaxis: { ...axis, type: "date", range: [span.first * 1000 + shift, span.end * 1000 + shift], showgrid: false, hoverformat: "%Y-%m-%d %H:%M:%S", nticks: 6 },
      yaxis: { ...axis, rangemode: "tozero", tickformat: unit.tick, ticksuffix: unit.suffix ?? "", title: unit.axis ? { text: unit.axis, standoff: 4 } : undefined, fixedrange: true, nticks: 5, ...(chart.unit === "share" ? { range: [0, 1.02] } : {}) },
      shapes: inside.map((mark) => ({ type: "line", x0: mark.t + shift, x1: mark.t + shift, yref: "paper", y0: 0, y1: 1, line: { width: 1, dash: "dot", color: palette[mark.tone] } })),
      annotations: inside.map((mark) => ({ x: mark.t + shift, yref: "paper", y: 1, yanchor: "top", text: mark.sign, showarrow: false, hovertext: mark.text, font: { size: 12, color: palette[mark.tone] } })),
    };
  }

  // The same instant on all charts, and a drag that zooms all of them.
  wire(place) {
    place.dataset.wired = "1";
    place.on("plotly_hover", (event) => {
      if (this.echoing || !event.points?.length) return;
      const moment = event.points[0].x;
      this.echoing = true;
      cancelAnimationFrame(this.hoverFrame);
      this.hoverFrame = requestAnimationFrame(() => {
        for (const other of this.places.values()) {
          if (other !== place && !other.hidden && other._fullLayout && this.seen.has(other.dataset.plot)) window.Plotly.Fx.hover(other, [{ xval: +new Date(`${moment}Z`.replace(" ", "T")) || moment, curveNumber: 0, pointNumber: event.points[0].pointNumber }]);
        }
        this.echoing = false;
      });
    });
    place.on("plotly_unhover", () => {
      cancelAnimationFrame(this.hoverFrame);
      this.echoing = false;
      for (const other of this.places.values()) if (other !== place && other._fullLayout) window.Plotly.Fx.unhover(other);
    });
    place.on("plotly_relayout", (event) => {
      const [low, high] = [event["xaxis.range[0]"], event["xaxis.range[1]"]];
      if (low === undefined) return;
      const shift = offsetOf(this.state.zone, this.data.span.end * 1000);
      const [from, to] = [low, high].map((edge) => Math.round((typeof edge === "number" ? edge : Date.parse(`${String(edge).replace(" ", "T")}Z`)) - shift));
      if (to - from >= 10_000) this.change({ from, to, live: false });
      else this.draw();
    });
  }

  async save(id) {
    const chart = this.charts.find((one) => one.id === id);
    const place = this.places.get(id);
    if (!place || place.hidden) return;
    const palette = colours();
    await window.Plotly.downloadImage({ data: place.data, layout: { ...place.layout, title: { text: chart.title, font: { color: palette.ink, size: 15 } }, showlegend: true, legend: { orientation: "h", y: -0.2 }, paper_bgcolor: palette.card, margin: { l: 60, r: 20, t: 48, b: 60 } } }, { format: "png", width: 1200, height: 480, filename: `${this.dataset.name}-${id}` });
  }
}
customElements.define("metric-board", MetricBoard);
