// Reading lists that come in pages (ADMIN-10).
import { get } from "./api.js";

const PAGES_MAX = 20;

/**
 * All items of a list.
 * @template T
 * @param {string} path
 * @returns {Promise<T[]>}
 */
export async function all(path) {
  /** @type {T[]} */
  const items = [];
  let cursor = "";
  for (let page = 0; page < PAGES_MAX; page += 1) {
    const query = new URLSearchParams({ limit: "100", ...(cursor ? { cursor } : {}) });
    const found = await get(`${path}?${query}`);
    items.push(...found.items);
    cursor = found.next_cursor ?? "";
    if (!cursor) break;
  }
  return items;
}
