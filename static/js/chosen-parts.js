// Parts of a form that belong to a choice: <div data-when="name=value"> is shown while the radio button or select NAME has VALUE;
// <div data-when="name=this|that"> for either of two.
// Without scripts all parts are shown; the server reads only those of the choice.
// data-when-not="name=value" is hidden for that value and shown for every other.
const parts = [...document.querySelectorAll("[data-when], [data-when-not]")];

function chosen(form, name) {
  const field = form?.elements.namedItem(name);
  return field?.value ?? "";
}

function show() {
  for (const part of parts) {
    const [name, value] = (part.dataset.when ?? part.dataset.whenNot).split("=");
    const isChosen = value.split("|").includes(chosen(part.closest("form"), name));
    part.hidden = part.dataset.when ? !isChosen : isChosen;
  }
}

document.addEventListener("change", show);
show();
