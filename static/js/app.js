// What every page does: keeps times current, copies, opens menus and dialogs, guards forms, and says so when a request fails.
import { duration, relative, serverNow, words } from "./words.js";

export const csrf = () => JSON.parse(document.body.getAttribute("hx-headers") || "{}")["X-CSRFToken"] || "";

export function toast(text, kind = "error") {
  const box = document.createElement("div");
  box.className = `note-box note-${kind}`;
  box.setAttribute("role", kind === "error" ? "alert" : "status");
  const body = document.createElement("div");
  body.textContent = text;
  box.append(body);
  const toasts = document.getElementById("toasts");
  for (const old of toasts.querySelectorAll("[data-toast]")) old.remove();
  box.dataset.toast = "";
  toasts.append(box);
  box.scrollIntoView({ block: "nearest" });
}

function refreshTimes() {
  const now = serverNow();
  for (const element of document.querySelectorAll("time[data-ago]")) {
    element.textContent = relative(Date.parse(element.dateTime), now);
  }
  for (const element of document.querySelectorAll("time[data-since]")) {
    element.textContent = duration((now - Date.parse(element.dateTime)) / 1000);
  }
}

async function copy(button) {
  const text = button.closest(".copyable")?.querySelector("code")?.textContent ?? button.dataset.copy;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without HTTPS browsers offer no clipboard: select the text, so that Ctrl-C does it.
    const code = button.closest(".copyable")?.querySelector("code");
    if (code) getSelection().selectAllChildren(code);
    if (!document.execCommand("copy")) return;
  }
  const label = button.querySelector("span");
  if (label) {
    const before = label.textContent;
    label.textContent = words.copied;
    setTimeout(() => { label.textContent = before; }, 1600);
  }
  button.classList.add("done");
  setTimeout(() => button.classList.remove("done"), 1600);
}

function toggleMenu(open) {
  const button = document.querySelector("[data-menu]");
  const wanted = open ?? !document.body.classList.contains("menu-open");
  document.body.classList.toggle("menu-open", wanted);
  button?.setAttribute("aria-expanded", String(wanted));
  // Not at once: what is still hidden by CSS can't take the focus.
  if (wanted) setTimeout(() => document.querySelector("#side a")?.focus(), 60);
}

function closeMenus(except) {
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (menu !== except) menu.open = false;
  }
}

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-copy],[data-dismiss],[data-menu],[data-dialog-open],[data-dialog-close]");
  closeMenus(event.target.closest("details.menu"));
  if (document.body.classList.contains("menu-open") && !event.target.closest("#side,[data-menu]")) toggleMenu(false);
  if (!target) return;
  if ("copy" in target.dataset) copy(target);
  else if ("dismiss" in target.dataset) target.closest(".note-box")?.remove();
  else if ("menu" in target.dataset) toggleMenu();
  else if ("dialogOpen" in target.dataset) {
    event.preventDefault();
    document.getElementById(target.dataset.dialogOpen)?.showModal();
  } else if (target.closest("dialog")) {
    event.preventDefault();
    target.closest("dialog").close();
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const open = document.querySelector("details.menu[open]");
  if (open) {
    open.open = false;
    open.querySelector("summary").focus();
  } else if (document.body.classList.contains("menu-open")) {
    toggleMenu(false);
    document.querySelector("[data-menu]")?.focus();
  }
});

// A second click must not send a form twice. (The server's idempotency keys are the real guard.)
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!("once" in form.dataset)) return;
  if (form.dataset.sent) {
    event.preventDefault();
    return;
  }
  form.dataset.sent = "1";
  const button = event.submitter;
  setTimeout(() => {
    if (button) {
      button.disabled = true;
      button.classList.add("busy");
    }
  });
});
window.addEventListener("pageshow", (event) => {
  if (!event.persisted) return;
  for (const form of document.querySelectorAll("form[data-sent]")) {
    delete form.dataset.sent;
    for (const button of form.querySelectorAll("button.busy")) {
      button.disabled = false;
      button.classList.remove("busy");
    }
  }
});

// Selects and dates of a filter bar apply at once.
document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-auto]");
  if (form) form.requestSubmit();
});

function openDialogs(root) {
  for (const dialog of root.querySelectorAll("dialog[data-dialog-auto]")) {
    if (!dialog.open) dialog.showModal();
    dialog.addEventListener("close", () => dialog.remove(), { once: true });
  }
}
function focusFirstError(root) {
  const wrong = root.querySelector(".is-invalid");
  if (wrong) wrong.focus();
}

// A filter that isn't used has no place in the address.
document.body.addEventListener("htmx:configRequest", (event) => {
  if (event.detail.verb !== "get") return;
  for (const [name, value] of Object.entries(event.detail.parameters)) {
    if (value === "") delete event.detail.parameters[name];
  }
});
document.body.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.xhr.status !== 409) return;
  event.detail.shouldSwap = true;
  event.detail.isError = false;
  event.detail.target = document.getElementById("toasts");
  event.detail.swapOverride = "beforeend";
});
document.body.addEventListener("htmx:afterSettle", (event) => {
  openDialogs(event.detail.elt.parentElement ?? document);
  focusFirstError(event.detail.elt);
  refreshTimes();
});
document.body.addEventListener("htmx:sendError", () => toast(words.failed));
document.body.addEventListener("htmx:responseError", (event) => {
  const { status } = event.detail.xhr;
  toast({ 403: words.refused, 404: words.gone, 401: words.signed_out }[status] ?? words.broken.replace("%s", status));
});

openDialogs(document);
focusFirstError(document.getElementById("main") ?? document);
setInterval(refreshTimes, 1000);
