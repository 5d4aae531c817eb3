// The deploy form: only engines of the model's host are offered, and a name is proposed until someone types one.
const form = document.getElementById("deploy-form");
const copy = form.elements.copy;
const engine = form.elements.engine;
const name = form.elements.name;
const none = form.querySelector("[data-no-engines]");
let proposed = "";

function offerEngines() {
  const host = copy.selectedOptions[0]?.dataset.host;
  let fitting = 0;
  for (const option of engine.options) {
    if (!option.value) continue;
    const fits = !host || option.dataset.host === host;
    option.hidden = option.disabled = !fits;
    if (fits) fitting += 1;
  }
  none.hidden = !host || fitting > 0;
  if (engine.selectedOptions[0]?.disabled) engine.value = "";
  const choices = [...engine.options].filter((option) => option.value && !option.disabled);
  // The newest is proposed: 0.32 comes after 0.9.
  choices.sort((one, other) => other.textContent.localeCompare(one.textContent, "en", { numeric: true }));
  if (host && !engine.value && choices.length) engine.value = choices[0].value;
}

function proposeName() {
  if (name.value && name.value !== proposed) return;
  const model = copy.value ? copy.selectedOptions[0].textContent.split(" · ")[0] : "";
  proposed = model.toLowerCase().split("/").at(-1).replace(/[^a-z0-9._-]+/g, "-").replace(/^[^a-z0-9]+|[^a-z0-9]+$/g, "").slice(0, 62);
  name.value = proposed;
}

function markChanged(event) {
  const fold = event.target.closest("details.fold");
  fold?.classList.toggle("changed", [...fold.querySelectorAll("input,textarea")].some((field) => field.value));
}

copy.addEventListener("change", () => { offerEngines(); proposeName(); });
form.addEventListener("input", markChanged);
offerEngines();
if (copy.value && !name.value) proposeName();
