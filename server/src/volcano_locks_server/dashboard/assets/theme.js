// Light or dark: as the system says, or as chosen here. The choice is the only thing that is stored in the browser.
import { signal } from "./lib.js";

const NAME = "volcano-locks-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

/** @type {import("@preact/signals").Signal<"light" | "dark">} */
export const theme = signal("light");

let chosen = "";

function apply() {
  theme.value = chosen === "light" || chosen === "dark" ? chosen : dark.matches ? "dark" : "light";
  document.documentElement.dataset.theme = theme.value;
}

export function startTheme() {
  try {
    chosen = localStorage.getItem(NAME) ?? "";
  } catch {
    // The browser stores nothing: the choice lasts as long as the page.
  }
  dark.addEventListener("change", apply);
  apply();
}

export function toggleTheme() {
  chosen = theme.value === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(NAME, chosen);
  } catch {
    // As above.
  }
  apply();
}
