// The changes socket. The server sends {"kind": "job", "id": 7} when something is stored; parts of the page that declared interest
// are fetched anew and morphed in place. A part is an element with an id and
//   data-live="job deployment"   the kinds it shows
//   data-live-id="7"             only this object of the first kind (optional)
//   data-live-url="/jobs/7/"     where to fetch it (optional; this page's own address otherwise)
//   data-live-every="2"          fetch it every 2 s as well, while the tab is seen (for what moves without a message)
// Inside a part, an element with data-live-keep is left as it is (an open log, a half-filled form).
// {"kind": "tick"} is a sign of life that the server may send; without one for 30 s after the first, the connection counts as lost.
import { toast } from "./app.js";
import { words } from "./words.js";

const GATHER_MS = 300;
const SILENT_MS = 30000;
const NO_LONGER_ALLOWED = 4403;
const badge = document.getElementById("live");
const text = badge?.querySelector("[data-live-text]");
const zone = document.documentElement.dataset.zone || undefined;
const time = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZone: zone, timeZoneName: "short" });

let socket = null;
let tries = 0;
let wasLost = false;
let signedOut = false;
let lastHeard = 0;
let ticks = false;
let waiting = null;
const changed = new Map();
const fetchedAt = new Map();
const started = Date.now();

function show(state) {
  if (!badge) return;
  badge.dataset.state = state;
  const labels = { live: `${words.live} · ${time.format(new Date())}`, lost: signedOut ? words.out : words.lost };
  const label = labels[state] ?? words.connecting;
  if (text.textContent !== label) text.textContent = label;
}

const kindsOf = (part) => part.dataset.live.split(/\s+/);

function isMeant(part) {
  const kinds = kindsOf(part);
  const wanted = part.dataset.liveId;
  return kinds.some((kind, at) => {
    const ids = changed.get(kind);
    return ids && (at > 0 || !wanted || ids.has(wanted) || ids.has("null"));
  });
}

export async function refresh(parts = [...document.querySelectorAll("[data-live][id]")]) {
  const byAddress = Map.groupBy ? Map.groupBy(parts, addressOf) : group(parts);
  for (const [address, members] of byAddress) {
    try {
      const answer = await fetch(address, { headers: { "X-Live": "1" }, credentials: "same-origin" });
      if (answer.redirected && answer.url.includes("/account/")) return leave();
      if (!answer.ok) continue;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of members) replace(part, page.getElementById(part.id));
    } catch {
      // The next change or the reconnect fetches it again.
    }
  }
}

// Signed out, disabled, or another password: what stands here goes stale, so say it and stop asking.
function leave() {
  signedOut = true;
  if (socket) socket.close();
  show("lost");
  toast(words.signed_out);
}

const addressOf = (part) => part.dataset.liveUrl || location.pathname + location.search;
function group(parts) {
  const map = new Map();
  for (const part of parts) map.set(addressOf(part), [...(map.get(addressOf(part)) ?? []), part]);
  return map;
}

function replace(part, fresh) {
  if (!fresh) return;
  Idiomorph.morph(part, fresh, {
    morphStyle: "outerHTML",
    ignoreActiveValue: true,
    callbacks: {
      beforeNodeMorphed: (old) => !(old instanceof Element && old.hasAttribute("data-live-keep")),
      beforeAttributeUpdated: (name, node) => !(name === "open" && (node.tagName === "DETAILS" || node.tagName === "DIALOG")),
    },
  });
  htmx.process(document.getElementById(part.id));
  document.dispatchEvent(new CustomEvent("slipway:replaced"));
}

function refreshDue() {
  if (document.hidden || signedOut) return;
  const now = Date.now();
  const due = [...document.querySelectorAll("[data-live-every][id]")].filter((part) => {
    const every = Number(part.dataset.liveEvery) * 1000;
    return now - (fetchedAt.get(part.id) ?? started) >= every;
  });
  for (const part of due) fetchedAt.set(part.id, now);
  if (due.length) refresh(due);
}
setInterval(refreshDue, 500);

function gather() {
  waiting = null;
  if (document.hidden) return;
  const parts = [...document.querySelectorAll("[data-live][id]")].filter(isMeant);
  changed.clear();
  if (parts.length) refresh(parts);
}

function hear(message) {
  lastHeard = Date.now();
  if (message.kind === "tick") {
    ticks = true;
    return;
  }
  if (!changed.has(message.kind)) changed.set(message.kind, new Set());
  changed.get(message.kind).add(String(message.id));
  waiting ??= setTimeout(gather, GATHER_MS);
  document.dispatchEvent(new CustomEvent("slipway:changed", { detail: message }));
}

function connect() {
  clearTimeout(connect.timer);
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  socket = new WebSocket(`${scheme}://${location.host}/ws/changes/`);
  socket.onopen = () => {
    tries = 0;
    lastHeard = Date.now();
    show("live");
    if (wasLost) refresh();
    wasLost = false;
  };
  socket.onmessage = (event) => hear(JSON.parse(event.data));
  socket.onclose = (event) => {
    wasLost = true;
    ticks = false;
    show("lost");
    if (signedOut) return;
    if (event.code === NO_LONGER_ALLOWED) refresh();
    tries += 1;
    connect.timer = setTimeout(connect, Math.min(5000, 400 * 2 ** Math.min(tries, 4)) * (0.7 + 0.6 * Math.random()));
  };
}

setInterval(() => {
  if (socket?.readyState !== WebSocket.OPEN) return;
  if (ticks && Date.now() - lastHeard > SILENT_MS) socket.close();
  else show("live");
}, 1000);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  if (socket?.readyState === WebSocket.CLOSED && !signedOut) connect();
  if (changed.size) gather();
});
window.addEventListener("online", () => { if (socket?.readyState === WebSocket.CLOSED) connect(); });
window.addEventListener("pagehide", () => { if (socket) { socket.onclose = null; socket.close(); } });
window.addEventListener("pageshow", (event) => { if (event.persisted) { wasLost = true; connect(); } });
connect();
