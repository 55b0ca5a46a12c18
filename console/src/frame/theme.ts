import { useSyncExternalStore } from "react";

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

/** The theme that is shown, for what is drawn and not styled. */
export const useTheme = () => useSyncExternalStore(onTheme, () => document.documentElement.dataset.theme);

function onTheme(change: () => void) {
  const watched = new MutationObserver(change);
  watched.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  return () => watched.disconnect();
}
