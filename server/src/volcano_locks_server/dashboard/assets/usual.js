// How long each lock is usually held, from the history of the project.

import { get } from "./api.js";
import { signal } from "./lib.js";

/** @typedef {import("../types.js").Hold} Hold */

export const HOLDS_MIN = 5; // fewer say nothing about what is usual
const PAGES_MAX = 4;
const REFRESH_MS = 60_000;

/** The 95th percentile of the holds of each lock, in milliseconds. */
export const usualMs = signal(/** @type {Map<string, number>} */ (new Map()));

let loadedMs = 0;

export function resetUsual() {
  loadedMs = 0;
  usualMs.value = new Map();
}

/**
 * Read the newest holds, at most once a minute. Without history nothing is marked.
 * @param {string} prefix
 */
export async function loadUsual(prefix) {
  if (Date.now() - loadedMs < REFRESH_MS) return;
  loadedMs = Date.now();
  /** @type {Map<string, number[]>} */
  const held = new Map();
  let cursor = "";
  for (let page = 0; page < PAGES_MAX; page += 1) {
    const query = new URLSearchParams({ prefix, limit: "500" });
    if (cursor) query.set("cursor", cursor);
    const found = await get(`/history?${query}`);
    for (const hold of /** @type {Hold[]} */ (found.items)) {
      if (hold.ended === null) continue;
      held.set(hold.key, [...(held.get(hold.key) ?? []), hold.held_seconds * 1000]);
    }
    cursor = found.next_cursor;
    if (!cursor) break;
  }
  usualMs.value = new Map([...held].filter(([, all]) => all.length >= HOLDS_MIN).map(([key, all]) => [key, p95(all)]));
}

/** @param {number[]} values */
function p95(values) {
  const ascending = values.sort((a, b) => a - b);
  return ascending[Math.min(ascending.length - 1, Math.ceil(ascending.length * 0.95) - 1)] ?? 0;
}
