// Which locks the list shows, and in which order.
import { isNotRenewing } from "./locks.js";

/** @typedef {import("../types.js").Lock} Lock */
/** @typedef {"held" | "contended" | "not_renewing" | "long" | "all"} Choice */
/** @typedef {"key" | "holder" | "acquired" | "expires" | "renewed" | "waiters" | "token"} Column */
/** @typedef {{ text: string, begins: boolean, choice: Choice, column: Column, descending: boolean }} Filter */

/** @type {Record<Choice, string>} */
export const CHOICES = {
  held: "Held",
  contended: "Contended",
  not_renewing: "Not renewing",
  long: "Longer than usual",
  all: "All",
};

/** @type {Record<Column, (lock: Lock) => string | number>} */
const VALUES = {
  key: (lock) => lock.key,
  holder: (lock) => lock.holder ?? "\uffff",
  acquired: (lock) => orLast(-lock.acquiredMs),
  expires: (lock) => orLast(lock.expiresMs),
  renewed: (lock) => orLast(-lock.renewedMs),
  waiters: (lock) => lock.waiters,
  token: (lock) => lock.fencingToken ?? 0,
};

/** @param {number} value */
const orLast = (value) => (Number.isNaN(value) ? Number.MAX_VALUE : value);

/**
 * Whether the lock is held for longer than 95 % of its earlier holds.
 * @param {Lock} lock
 * @param {Map<string, number>} usualMs the 95th percentile of each lock that has one
 * @param {number} now
 */
export function isLongerThanUsual(lock, usualMs, now) {
  const usual = usualMs.get(lock.key);
  return lock.held && usual !== undefined && now - lock.acquiredMs > usual + 1000;
}

/**
 * The locks to show, and how many locks each choice has. In the default order those that are not renewed come first.
 * @param {Iterable<Lock>} locks
 * @param {Filter} filter
 * @param {Map<string, number>} usualMs
 * @param {number} now
 */
export function viewOf(locks, filter, usualMs, now) {
  const counts = { held: 0, contended: 0, not_renewing: 0, long: 0, all: 0 };
  /** @type {Lock[]} */
  const shown = [];
  /** @type {Lock[]} */
  const flagged = [];
  const isDefaultOrder = filter.column === "key" && !filter.descending;
  const text = filter.text.toLowerCase();
  const { choice } = filter;
  // One pass without objects of its own: there may be 100,000 locks.
  for (const lock of locks) {
    if (text && !matches(lock, text, filter)) continue;
    const isWaitedFor = lock.waiters > 0;
    const isStale = isNotRenewing(lock);
    const isLong = isLongerThanUsual(lock, usualMs, now);
    counts.all += 1;
    if (lock.held) counts.held += 1;
    if (isWaitedFor) counts.contended += 1;
    if (isStale) counts.not_renewing += 1;
    if (isLong) counts.long += 1;
    const isShown =
      choice === "all" ||
      (choice === "held" && lock.held) ||
      (choice === "contended" && isWaitedFor) ||
      (choice === "not_renewing" && isStale) ||
      (choice === "long" && isLong);
    if (isShown) (isStale && isDefaultOrder ? flagged : shown).push(lock);
  }
  return { shown: [...sorted(flagged, filter), ...sorted(shown, filter)], counts };
}

/**
 * @param {Lock} lock
 * @param {string} text
 * @param {Filter} filter
 */
function matches(lock, text, filter) {
  if (filter.begins) return lock.key.startsWith(filter.text);
  return lock.key.toLowerCase().includes(text) || (lock.holder?.toLowerCase().includes(text) ?? false);
}

/**
 * @param {Lock[]} locks
 * @param {Filter} filter
 */
function sorted(locks, { column, descending }) {
  const value = VALUES[column];
  const sign = descending ? -1 : 1;
  if (column === "key") return locks.sort((a, b) => (a.key < b.key ? -sign : sign));
  return locks.sort((a, b) => {
    const [first, second] = [value(a), value(b)];
    if (first !== second) return first < second ? -sign : sign;
    return a.key < b.key ? -1 : 1;
  });
}
