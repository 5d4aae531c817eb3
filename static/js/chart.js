// Figures that the server made: <div data-chart="ID"> draws the JSON of <script id="ID">, in the theme's colours.
const ROLES = ["accent", "bad", "warn", "ok", "calm", "soft", "line"];

function palette() {
  const style = getComputedStyle(document.body);
  const named = (name) => style.getPropertyValue(`--${name}`).trim();
  return { ...Object.fromEntries(ROLES.map((role) => [role, named(role)])), ink: named("ink"), dim: named("dim") };
}

function coloured(value, colours) {
  if (Array.isArray(value)) return value.map((one) => coloured(one, colours));
  return typeof value === "string" ? colours[value] ?? value : value;
}

// A long name loses its middle where the chart is narrow: both of its ends tell models apart, and Plotly would cut off the beginning.
function shortened(name, most) {
  const tail = Math.floor(most / 2);
  return name.length <= most ? name : `${name.slice(0, most - tail - 1)}…${name.slice(-tail)}`;
}

function draw(place) {
  const source = document.getElementById(place.dataset.chart);
  if (!source || !window.Plotly) return;
  const figure = JSON.parse(source.textContent);
  const colours = palette();
  const data = figure.data.map((trace) => {
    const drawn = { ...trace };
    // A part that a trace hasn't must stay away: Plotly stumbles over one that is undefined.
    for (const part of ["marker", "line"]) {
      if (trace[part]) drawn[part] = { ...trace[part], color: coloured(trace[part].color, colours) };
    }
    return drawn;
  });
  const axis = { gridcolor: colours.line, zerolinecolor: colours.line, linecolor: colours.line };
  const layout = {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colours.dim },
    bargap: 0.3,
    ...figure.layout,
    margin: { l: 8, r: 16, t: 6, b: 40, ...figure.layout.margin },
    xaxis: { ...axis, ...figure.layout.xaxis },
    yaxis: { ...axis, ...figure.layout.yaxis },
  };
  const bars = data.find((trace) => trace.orientation === "h" && trace.y);
  if (bars) {
    const most = Math.max(12, Math.floor(place.clientWidth / 14));
    Object.assign(layout.yaxis, { tickmode: "array", tickvals: bars.y, ticktext: bars.y.map((name) => shortened(String(name), most)) });
  }
  window.Plotly.react(place, data, layout, { displayModeBar: false, responsive: true });
}

const drawAll = () => document.querySelectorAll("[data-chart]").forEach(draw);

// Modules run after deferred scripts of the page, so Plotly is there.
drawAll();
document.body.addEventListener("htmx:afterSettle", drawAll);
document.body.addEventListener("htmx:oobAfterSwap", drawAll);
document.addEventListener("slipway:replaced", drawAll);
new MutationObserver(drawAll).observe(document.documentElement, { attributes: true, attributeFilter: ["data-bs-theme"] });
