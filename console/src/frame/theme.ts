const KEY = "moorage-theme";
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

export function isDark(): boolean {
  const chosen = localStorage.getItem(KEY);
  return chosen ? chosen === "dark" : prefersDark.matches;
}

export function applyTheme() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
}

export function toggleTheme() {
  localStorage.setItem(KEY, isDark() ? "light" : "dark");
  applyTheme();
}

prefersDark.addEventListener("change", applyTheme);
