// The total of the chosen files, and which hosts have too little room for it, while files are chosen.
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

function readable(bytes) {
  let size = bytes;
  let unit = 0;
  while (Math.round(size) >= 1000 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || size >= 100 || Number.isInteger(size) ? 0 : 1;
  return `${size.toLocaleString(document.documentElement.lang, { maximumFractionDigits: digits })} ${UNITS[unit]}`;
}

const boxes = (form) => [...form.querySelectorAll("input[name=files]")];

function count(form) {
  const chosen = boxes(form).filter((box) => box.checked);
  const bytes = chosen.reduce((sum, box) => sum + Number(box.dataset.bytes), 0);
  form.querySelector("[data-total-bytes]").textContent = readable(bytes);
  form.querySelector("[data-total-files]").textContent = chosen.length.toLocaleString(document.documentElement.lang);
  for (const room of form.querySelectorAll("[data-free]")) {
    room.querySelector("[data-too-small]").hidden = Number(room.dataset.free) >= bytes;
  }
}

function prepare(root) {
  for (const button of root.querySelectorAll("[data-files-default], [data-files-all]")) button.hidden = false;
}

document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-files]");
  if (form) count(form);
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-files-default], [data-files-all]");
  if (!button) return;
  const form = button.closest("form");
  for (const box of boxes(form)) box.checked = "filesAll" in button.dataset ? true : box.defaultChecked;
  count(form);
});
document.body.addEventListener("htmx:afterSettle", () => prepare(document));
prepare(document);
