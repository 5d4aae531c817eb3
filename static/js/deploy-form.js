// The deploy form. The server draws it anew after clicks that change many fields, so everything here asks for the form each time.
const place = document.getElementById("deploy");
const form = () => document.getElementById("deploy-form");
let proposed = "";
let opened = new Set();

function fire(field, kind) {
  field.dispatchEvent(new Event(kind, { bubbles: true }));
}

function offerEngines() {
  const { copy, engine } = form().elements;
  const host = copy.selectedOptions[0]?.dataset.host;
  let fitting = 0;
  for (const option of engine.options) {
    if (!option.value) continue;
    const fits = !host || option.dataset.host === host;
    option.hidden = option.disabled = !fits;
    if (fits) fitting += 1;
  }
  form().querySelector("[data-no-engines]").hidden = !host || fitting > 0;
  const before = engine.value;
  if (engine.selectedOptions[0]?.disabled) engine.value = "";
  const choices = [...engine.options].filter((option) => option.value && !option.disabled);
  // The newest is proposed: 0.32 comes after 0.9.
  choices.sort((one, other) => other.textContent.localeCompare(one.textContent, "en", { numeric: true }));
  if (host && !engine.value && choices.length) engine.value = choices[0].value;
  if (engine.value !== before) fire(engine, "change");
}

function proposeName() {
  const { copy, name } = form().elements;
  if (name.disabled || (name.value && name.value !== proposed)) return;
  const model = copy.value ? copy.selectedOptions[0].textContent.split(" · ")[0] : "";
  proposed = model.toLowerCase().split("/").at(-1).replace(/[^a-z0-9._-]+/g, "-").replace(/^[^a-z0-9]+|[^a-z0-9]+$/g, "").slice(0, 62);
  name.value = proposed;
}

function markChanged(field) {
  field.closest("[data-arg]")?.classList.toggle("is-changed", field.value !== "");
  const fold = field.closest("details.fold");
  fold?.classList.toggle("changed", [...fold.querySelectorAll("input,textarea")].some((one) => one.value));
}

// JSON is checked while it is typed: where the mistake is, as the server would say it.
function checkJson(field) {
  const wanted = field.dataset.json;
  if (!wanted) return;
  const says = field.closest("[data-arg]").querySelector("[data-json-error]");
  const text = field.value.trim();
  let problem = "";
  if (text && (wanted !== "text" || text.startsWith("{"))) {
    try {
      JSON.parse(text);
    } catch (error) {
      const at = Number(/position (\d+)/.exec(error.message)?.[1] ?? field.value.length);
      const before = field.value.slice(0, at).split("\n");
      problem = `${before.length}:${before.at(-1).length + 1} ${error.message.replace(/ in JSON.*| \(line.*/, "")}`;
    }
  }
  says.textContent = problem;
  says.hidden = !problem;
  field.classList.toggle("is-invalid", Boolean(problem));
}

function search() {
  const text = form().querySelector("[data-arg-search]");
  if (!text) return;
  const words = text.value.toLowerCase().replaceAll("_", "-").split(/\s+/).filter(Boolean);
  const only = form().querySelector("[data-arg-changed]").checked;
  let found = 0;
  for (const group of form().querySelectorAll("[data-arg-group]")) {
    let here = 0;
    for (const row of group.querySelectorAll("[data-arg]")) {
      const hit = words.every((word) => row.dataset.search.replaceAll("_", "-").includes(word)) && (!only || row.classList.contains("is-changed"));
      row.hidden = !hit;
      if (hit) here += 1;
    }
    const filtering = words.length > 0 || only;
    group.hidden = filtering && !here;
    if (filtering) group.open = here > 0;
    found += here;
  }
  form().querySelector("[data-arg-none]").hidden = found > 0;
}

// Sliders: contexts are spaced evenly in their logarithm, rounded to what people write.
const shown = (number) => number.toLocaleString("en");
function contextAt(step, most) {
  const raw = 512 * (most / 512) ** (step / 100);
  if (step >= 100) return most;
  const grain = raw >= 8192 ? 1024 : raw >= 2048 ? 256 : 64;
  return Math.max(grain, Math.round(raw / grain) * grain);
}

function drawSliders() {
  const card = document.getElementById("fit-card");
  const sliders = place.querySelector("[data-sliders]");
  const most = Number(card.dataset.maxContext || 0);
  const context = Number(card.dataset.context || 0);
  sliders.hidden = !(most > 1024 && context);
  if (sliders.hidden) return;
  const slide = sliders.querySelector("[data-slide-context]");
  slide.dataset.most = most;
  if (document.activeElement !== slide) {
    slide.value = Math.round((100 * Math.log(Math.max(context, 512) / 512)) / Math.log(most / 512));
    sliders.querySelector("[data-slide-context-shown]").textContent = shown(context);
  }
  // Until somebody asks for a number, the second slider stands where the plan does.
  const wanted = sliders.querySelector("[data-slide-wanted]");
  if (document.activeElement === wanted || form().elements.wanted.value) return;
  const atOnce = Number(card.dataset.atOnce || 0);
  wanted.value = atOnce >= 1 ? Math.round(Math.log2(atOnce)) + 1 : 0;
  sliders.querySelector("[data-slide-wanted-shown]").textContent = shown(atOnce < 10 ? Math.round(10 * atOnce) / 10 : Math.round(atOnce));
}

// Errors stand at their field while it is typed, too. What the server drew there is out of date once its field was touched, or judged anew. Only
// then: what a service refused (code that no admin allowed, a port that is taken) the check of what is typed does not say again.
let wrong = new Set();
const touched = new WeakSet();
const rowOf = (one) => one?.closest("[data-arg],.row-field");
const fieldOf = (said) => { const found = form().elements[said.dataset.at]; return found instanceof RadioNodeList ? found[0] : found; };
const touch = (event) => { const row = rowOf(event.target); if (row) touched.add(row); };
place.addEventListener("input", touch);
place.addEventListener("change", touch);
function placeErrors() {
  const all = [...document.getElementById("field-errors").children];
  const judged = new Set(all.map((said) => rowOf(fieldOf(said))));
  for (const error of form().querySelectorAll(".field-error:not([data-json-error])")) {
    const row = rowOf(error);
    if (!row || !("typed" in error.dataset || touched.has(row) || judged.has(row))) continue;
    error.remove();
    for (const one of row.querySelectorAll(".is-invalid")) { one.classList.remove("is-invalid"); one.removeAttribute("aria-invalid"); }
  }
  const before = wrong;
  wrong = new Set();
  for (const said of all) {
    const field = fieldOf(said);
    const row = rowOf(field);
    if (!row || row.querySelector("[data-json-error]:not([hidden])")) continue;
    const error = said.cloneNode(true);
    error.dataset.typed = "";
    error.id = `${field.id}_error`;
    field.setAttribute("aria-errormessage", error.id);
    row.insertBefore(error, row.querySelector(":scope > .hint"));
    if (!isBox(field)) field.classList.add("is-invalid");
    field.setAttribute("aria-invalid", "true");
    wrong.add(said.dataset.at);
    if (!before.has(said.dataset.at)) field.closest("details")?.setAttribute("open", "");
  }
}

function slid(slide) {
  const { elements } = form();
  if ("slideContext" in slide.dataset) {
    const context = contextAt(Number(slide.value), Number(slide.dataset.most));
    slide.parentElement.querySelector("[data-slide-context-shown]").textContent = shown(context);
    elements.arg_max_model_len.value = context;
    elements.wanted.value = "";
    fire(elements.arg_max_model_len, "input");
  } else {
    const wanted = slide.value === "0" ? "" : 2 ** (Number(slide.value) - 1);
    slide.parentElement.querySelector("[data-slide-wanted-shown]").textContent = wanted || "–";
    elements.wanted.value = wanted;
    fire(elements.wanted, "input");
  }
}

function set(texts) {
  for (const [name, text] of Object.entries(texts)) {
    const field = form().elements[name];
    if (!field) continue;
    field.value = text;
    field.classList.remove("is-invalid");
    field.closest("[data-arg],.row-field")?.querySelectorAll(".field-error:not([data-json-error])").forEach((error) => error.remove());
    if (name === "arg_max_model_len") form().elements.wanted.value = "";
    fire(field, "input");
    field.closest("details")?.setAttribute("open", "");
  }
}

place.addEventListener("change", (event) => {
  // The name first: a change of engine sends the form.
  if (event.target.name === "copy") { proposeName(); offerEngines(); }
  if ("argChanged" in event.target.dataset) search();
  if (event.target.name?.startsWith("arg_")) markChanged(event.target);
});
place.addEventListener("input", (event) => {
  const field = event.target;
  if ("argSearch" in field.dataset) { search(); return; }
  if (field.type === "range") { slid(field); return; }
  markChanged(field);
  checkJson(field);
});
place.addEventListener("click", (event) => {
  const button = event.target.closest("[data-set],[data-reset]");
  if (!button) return;
  if (button.dataset.set) {
    const values = JSON.parse(button.dataset.set);
    set(values);
    // The card is drawn anew, and the button that a key pressed is gone with it: the focus goes on in the field that it changed.
    if (event.detail === 0 && button.closest("#fit-card")) form().elements[Object.keys(values)[0]]?.focus();
    return;
  }
  const field = button.closest("[data-arg]").querySelector("input,select,textarea");
  field.value = "";
  checkJson(field);
  fire(field, "input");
  field.focus();
});

// What was open stays open when the form or the card is drawn anew.
const keep = "[data-arg-group],[data-fold],[data-keep],[data-own]";
const keyOf = (one) => one.dataset.argGroup ?? one.dataset.fold ?? one.dataset.keep ?? "own";
// What somebody types while the server draws the form anew is not in its answer: it is set again afterwards.
const isBox = (field) => field.type === "checkbox" || field.type === "radio";
const typed = () => [...form().elements].filter((one) => one.name && !["hidden", "submit", "button"].includes(one.type))
  .map((one) => [`${one.name}\n${isBox(one) ? one.value : ""}`, isBox(one) ? one.checked : one.value]);
let asSent = new Map();
let typedSince = [];
let sought = null;
document.body.addEventListener("htmx:beforeRequest", (event) => {
  if (event.detail.target?.id === "deploy-form") asSent = new Map(typed());
});
function setAgain() {
  const fields = new Map([...form().elements].map((one) => [`${one.name}\n${isBox(one) ? one.value : ""}`, one]));
  for (const [key, value] of typedSince.splice(0)) {
    const field = fields.get(key);
    if (!field) continue;
    if (isBox(field)) field.checked = value; else field.value = value;
    fire(field, "input");
  }
}
// The search has no name and is not sent: a form drawn anew would show everything again, or close what was found.
function searchAgain() {
  const text = form().querySelector("[data-arg-search]");
  if (!text || !sought || !(sought.text || sought.only)) return;
  text.value = sought.text;
  form().querySelector("[data-arg-changed]").checked = sought.only;
  search();
}
// A button that was pressed is another one in the answer: by keyboard one would start at the top of the page again.
let focused = "";
function focusAgain() {
  if (!focused || document.activeElement !== document.body) return;
  (form().querySelector(focused) ?? form().querySelector("[name=name]"))?.focus({ preventScroll: true });
}
document.body.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.target?.id === "deploy-form") {
    const { activeElement: one } = document;
    focused = form().contains(one) ? (one.id ? `#${CSS.escape(one.id)}` : `[name="${CSS.escape(one.name ?? "")}"][value="${CSS.escape(one.value ?? "")}"]`) : "";
  }
  if (event.detail.target?.id === "deploy-form") typedSince = typed().filter(([key, value]) => asSent.get(key) !== value);
  const text = place.querySelector("[data-arg-search]");
  sought = text && { text: text.value, only: place.querySelector("[data-arg-changed]").checked };
  opened = new Set([...place.querySelectorAll(keep)].filter((one) => one.open).map(keyOf));
});
document.body.addEventListener("htmx:afterSettle", (event) => {
  if (event.target.id === "deploy-form" || event.detail.elt.id === "deploy-form") {
    for (const one of place.querySelectorAll(keep)) if (opened.has(keyOf(one))) one.open = true;
    setAgain();
    searchAgain();
    offerEngines();
    focusAgain();
    place.dispatchEvent(new Event("slipway:redrawn"));
    form().querySelector(".note-card")?.scrollIntoView({ block: "nearest" });
  }
  drawSliders();
});
document.body.addEventListener("htmx:oobAfterSwap", (event) => {
  if (event.detail.target?.id === "field-errors") placeErrors();
  else drawSliders();
});
// Three hundred fields that nobody filled in need not travel at each keystroke.
document.body.addEventListener("htmx:configRequest", (event) => {
  if (!event.detail.path.startsWith("/deployments/new/")) return;
  for (const name of [...event.detail.formData.keys()]) {
    if (name.startsWith("arg_") && !event.detail.formData.get(name)) event.detail.formData.delete(name);
  }
});

// Between a change and the server's answer the command that stands there is another form's: it fades, says so, and can't be copied.
const preview = document.getElementById("preview");
let changes = 0;
let answering = 0;
const isPreview = (event) => event.detail.elt === preview;
const isForm = (event) => event.detail.target?.id === "deploy-form";
const again = () => place.dispatchEvent(new Event("slipway:redrawn"));
function fade() {
  changes += 1;
  preview.inert = true;
  clearTimeout(fade.timer);
  fade.timer = setTimeout(() => { preview.parentElement.querySelector("[data-preview-waits]").hidden = !preview.inert; }, 300);
}
function say(lost) {
  clearTimeout(fade.timer);
  preview.parentElement.querySelector("[data-preview-waits]").hidden = true;
  preview.parentElement.querySelector("[data-preview-lost]").hidden = !lost;
}
place.addEventListener("input", fade);
place.addEventListener("change", fade);
document.body.addEventListener("htmx:beforeRequest", (event) => {
  if (isForm(event)) fade();
  if (isPreview(event)) answering = changes;
});
document.body.addEventListener("htmx:beforeSwap", (event) => {
  if (isForm(event)) fade();
});
document.body.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target !== preview || answering !== changes) return;
  preview.inert = false;
  say(false);
});
for (const failure of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
  document.body.addEventListener(failure, (event) => {
    // A form that was not drawn anew is still the one that was typed.
    if (isForm(event)) again();
    if (!isPreview(event)) return;
    say(true);
    if (!(event.detail.xhr?.status < 500) || !event.detail.xhr.status) setTimeout(again, 5000);
  });
}

offerEngines();
if (form().elements.copy.value && !form().elements.name.value) proposeName();
drawSliders();
