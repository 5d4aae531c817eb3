// Ctrl-K: search pages and objects. The server answers with links; arrows move, Enter goes.
const dialog = document.getElementById("palette");
const input = dialog.querySelector("input");
const results = document.getElementById("palette-results");

const options = () => [...results.querySelectorAll("a[role=option]")];

function select(at) {
  const all = options();
  if (!all.length) return;
  const index = (at + all.length) % all.length;
  for (const [i, option] of all.entries()) option.setAttribute("aria-selected", String(i === index));
  input.setAttribute("aria-activedescendant", all[index].id);
  all[index].scrollIntoView({ block: "nearest" });
}
const selected = () => options().findIndex((option) => option.getAttribute("aria-selected") === "true");

function open() {
  if (dialog.open) return;
  dialog.showModal();
  input.select();
  htmx.trigger(input, "palette");
}

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    open();
  }
});
document.addEventListener("click", (event) => { if (event.target.closest("[data-palette]")) open(); });
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
input.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown") select(selected() + 1);
  else if (event.key === "ArrowUp") select(selected() - 1);
  else return;
  event.preventDefault();
});
dialog.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  options()[Math.max(0, selected())]?.click();
});
document.body.addEventListener("htmx:afterSwap", (event) => { if (event.detail.target === results) select(0); });
