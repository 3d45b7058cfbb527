// Apply the chosen colours before the first paint: a classic script, because modules run after it.
(() => {
  try {
    const theme = localStorage.getItem("lakestream.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage can be forbidden; the system's colours are used then.
  }
})();
