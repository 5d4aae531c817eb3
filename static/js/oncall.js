// The on-call page by keyboard: j and k choose a problem, a letter presses its button. The buttons ask before they do anything.
const keys = document.getElementById("oncall-keys");
const problems = () => [...document.querySelectorAll("[data-problem]")];
// The id, not the element: the page is morphed while it lives, and what is chosen may move up or down.
let chosen = "";

function choose(step) {
  const all = problems();
  if (!all.length) return;
  const at = all.findIndex((one) => one.id === chosen);
  const next = at < 0 ? all[0] : all[Math.min(all.length - 1, Math.max(0, at + step))];
  chosen = next.id;
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}
const current = () => document.getElementById(chosen) ?? problems()[0];

document.addEventListener("focusin", (event) => {
  const problem = event.target.closest?.("[data-problem]");
  if (problem) chosen = problem.id;
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input,textarea,select,dialog[open]")) return;
  const { key } = event;
  if (key === "?") keys.showModal();
  else if (key === "j" || key === "k") choose(key === "j" ? 1 : -1);
  else if (key === "e") {
    const details = current()?.querySelector("details");
    if (details) details.open = !details.open;
  } else if (key === "Enter" && event.target.matches("[data-problem]")) location.assign(event.target.dataset.url);
  else if (/^[a-zA-Z]$/.test(key)) {
    const button = document.querySelector(`[data-page-key="${key}"]`) ?? current()?.querySelector(`[data-key="${key}"]`);
    if (!button) return;
    button.click();
  } else return;
  if (key !== "Enter") event.preventDefault();
});
