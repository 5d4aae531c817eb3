// Parts of a form that belong to a choice: <div data-when="name=value"> is shown while the radio button or select NAME has VALUE.
// Without scripts all parts are shown; the server reads only those of the choice.
const parts = [...document.querySelectorAll("[data-when]")];

function chosen(form, name) {
  const field = form?.elements.namedItem(name);
  return field?.value ?? "";
}

function show() {
  for (const part of parts) {
    const [name, value] = part.dataset.when.split("=");
    part.hidden = chosen(part.closest("form"), name) !== value;
  }
}

document.addEventListener("change", show);
show();
