// One lock in the list, and the head of its columns.
import { html, useEffect, useState } from "../lib.js";
import { isLongerThanUsual } from "../lock_view.js";
import { isNotRenewing } from "../locks.js";
import { address } from "../route.js";
import { ago, count, duration, nowMs, wholeSeconds } from "../time.js";
import { Badge } from "./basics.js";
import { TimeLeft } from "./time_left.js";

/** @typedef {import("../../types.js").Lock} Lock */
/** @typedef {import("../lock_view.js").Filter} Filter */
/** @typedef {import("../lock_view.js").Column} Column */

export const LOCK_COLUMNS = 7;
const ROW_HEIGHT = 46;
const ROW_HEIGHT_NARROW = 84;
const NARROW = "(max-width: 860px)";

/** @type {[Column, string, string][]} */
const COLUMNS = [
  ["key", "Lock", ""],
  ["holder", "Holder", ""],
  ["acquired", "Held for", "number"],
  ["expires", "Expires in", ""],
  ["renewed", "Renewed", "number"],
  ["waiters", "Waiting", "number"],
  ["token", "Token", "number"],
];

/** The height of a row, which the style sheet gives for the width of the window. */
export function useRowHeight() {
  const [narrow, setNarrow] = useState(matchMedia(NARROW).matches);
  useEffect(() => {
    const query = matchMedia(NARROW);
    const change = () => setNarrow(query.matches);
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
  }, []);
  return narrow ? ROW_HEIGHT_NARROW : ROW_HEIGHT;
}

/** @param {{ filter: Filter, onSort: (part: Partial<Filter>) => void }} props */
export function LockHead({ filter, onSort }) {
  return html`<div class="rows-head" role="rowgroup"><div class="row-cells" role="row" aria-rowindex="1">
    ${COLUMNS.map(([column, name, kind]) => {
      const isSorted = filter.column === column;
      const order = filter.descending ? "descending" : "ascending";
      return html`<div role="columnheader" class=${`cell-${column} ${kind}`} aria-sort=${isSorted ? order : "none"}>
        <button type="button" onClick=${() => onSort({ column, descending: isSorted && !filter.descending })}>
          ${name}<span class="sort-mark" aria-hidden="true">${isSorted ? (filter.descending ? "↓" : "↑") : ""}</span>
        </button></div>`;
    })}
  </div></div>`;
}

/** @param {{ lock: Lock, usualMs: Map<string, number> }} props */
export function LockCells({ lock, usualMs }) {
  const now = nowMs.value;
  const heldSeconds = wholeSeconds(now - lock.acquiredMs);
  return html`<div class="row-cells" role="presentation">
    <div role="cell" class="cell-key">
      <span class="state state-${lock.held ? (isNotRenewing(lock) ? "stale" : "held") : "free"}" aria-hidden="true"></span>
      <a class="mono" href=${address("locks", lock.key)} title=${lock.key}>${lock.key}</a>
      <span class="badges">
        ${!lock.held && html`<${Badge}>${lock.expired ? "expired" : "free"}</${Badge}>`}
        ${isNotRenewing(lock) && html`<${Badge} kind="warn">not renewing</${Badge}>`}
        ${isLongerThanUsual(lock, usualMs, now) && html`<${Badge} kind="warn">longer than usual</${Badge}>`}
      </span>
    </div>
    <div role="cell" class="cell-holder" title=${lock.holder ?? ""}>${lock.held ? (lock.holder ?? html`<span class="quiet">no label</span>`) : ""}</div>
    <div role="cell" class="cell-acquired number">${lock.held && html`<span class="only-narrow">for </span>${duration(heldSeconds)}`}</div>
    <div role="cell" class="cell-expires">${lock.held && html`<${TimeLeft} lock=${lock} now=${now} /><span class="only-narrow"> left</span>`}</div>
    <div role="cell" class="cell-renewed number">${lock.held ? ago(lock.renewedMs, now) : ""}</div>
    <div role="cell" class="cell-waiters number">${
      lock.waiters
        ? html`<strong>${count(lock.waiters)}</strong><span class="only-narrow"> waiting</span>`
        : html`<span class="quiet only-wide">0</span>`
    }</div>
    <div role="cell" class="cell-token number quiet">${lock.fencingToken ?? ""}</div>
  </div>`;
}
