// Runs before the first paint, so that a dark page never flashes light: applies the system's choice where the person made none.
(() => {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    if (root.dataset.theme === "auto") root.dataset.bsTheme = dark.matches ? "dark" : "light";
  };
  apply();
  dark.addEventListener("change", apply);
})();
