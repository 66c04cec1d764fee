// Which page is shown: the fragment of the address, such as #/locks/billing.
import { computed, signal } from "./lib.js";

const fragment = signal(location.hash);

/** The one-time code of a sign-in link, removed from the address and the history before anything else runs. */
export function takeCode() {
  const found = /^#code=([^&]+)$/.exec(location.hash);
  if (!found) return null;
  resetRoute();
  return decodeURIComponent(found[1] ?? "");
}

/** Show the first page, and remove the path from the address. */
export function resetRoute() {
  history.replaceState(null, "", location.pathname);
  fragment.value = "";
}

/** The parts of the path, such as ["locks", "billing"]. */
export const route = computed(() =>
  fragment.value
    .replace(/^#\/?/, "")
    .split("/")
    .filter((part) => part !== "")
    .map(decoded),
);

/** @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** @param {string[]} parts */
export const address = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

export function startRoute() {
  addEventListener("hashchange", () => {
    fragment.value = location.hash;
  });
}
