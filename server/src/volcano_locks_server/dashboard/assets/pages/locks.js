// The list of locks.
import { effect, html, signal, useEffect, useMemo, useRef, useState } from "../lib.js";
import { CHOICES, viewOf } from "../lock_view.js";
import { LockList } from "../locks.js";
import { Fault, Heading, useEvery } from "../parts/basics.js";
import { Live } from "../parts/live.js";
import { LOCK_COLUMNS, LockCells, LockHead, useRowHeight } from "../parts/lock_row.js";
import { NoLocks, NoMatch } from "../parts/no_locks.js";
import { VirtualRows } from "../parts/virtual_rows.js";
import { EventStream } from "../stream.js";
import { count, nowMs } from "../time.js";
import { loadUsual, usualMs } from "../usual.js";

/** @typedef {import("../../types.js").Lock} Lock */
/** @typedef {import("../lock_view.js").Filter} Filter */
/** @typedef {import("../lock_view.js").Choice} Choice */

const EVENTS = "acquired,released,force_released,expired,waiting,gave_up";
const REREADS_A_SECOND = 4;
const REFRESHED_ROWS_MAX = 5_000; // more are not read again as a whole

/** @type {Filter} */
const NO_FILTER = { text: "", begins: false, choice: "held", column: "key", descending: false };

/** Kept while other pages are open. */
const filter = signal(NO_FILTER);

export const resetFilter = () => {
  filter.value = NO_FILTER;
};

/** @param {Partial<Filter>} part */
const setFilter = (part) => {
  filter.value = { ...filter.value, ...part };
};

export function LocksPage() {
  const { text, begins, choice } = filter.value;
  const prefix = useSettled(begins ? text : "");
  const list = useList(prefix, choice === "all" ? "all" : "held");
  const rowHeight = useRowHeight();
  const view = useView(list);
  const shown = useRef(/** @type {Lock[]} */ ([]));
  useEvery(() => {
    const now = nowMs.value;
    const suspects = choice === "not_renewing" ? list.suspects(now) : [];
    for (const lock of [...suspects, ...list.due(shown.current, now)].slice(0, REREADS_A_SECOND))
      void list.reread(lock.key).catch(() => {});
  }, 1);
  useEvery(() => {
    if (list.byKey.size <= REFRESHED_ROWS_MAX) list.refresh();
    void loadUsual("").catch(() => {});
  }, 15);
  const loading = list.loading.value;
  const isEmpty = !loading && list.byKey.size === 0 && !text;
  return html`
    <${Heading} title="Locks" lead=${summary(view.counts, loading, list)}><${Live} /></${Heading}>
    <${FilterBar} counts=${view.counts} />
    ${list.fault.value && html`<${Fault} error=${list.fault.value} retry=${() => void list.load()} />`}
    ${
      list.isCut.value &&
      html`<p class="notice notice-warn">
      The list shows the first ${count(list.byKey.size)} locks. Narrow it with a beginning of keys.</p>`
    }
    ${
      view.shown.length
        ? html`<${VirtualRows} rows=${view.shown} rowHeight=${rowHeight} label="Locks" columns=${LOCK_COLUMNS}
            keyOf=${(/** @type {Lock} */ lock) => lock.key}
            onShown=${(/** @type {Lock[]} */ rows) => {
              shown.current = rows;
            }}
            head=${html`<${LockHead} filter=${filter.value} onSort=${setFilter} />`}
            row=${(/** @type {Lock} */ lock) => html`<${LockCells} lock=${lock} usualMs=${usualMs.value} />`} />`
        : !loading &&
          (
            isEmpty
              ? html`<${NoLocks} all=${choice === "all"} onAll=${() => setFilter({ choice: "all" })} />`
              : html`<${NoMatch} choice=${choice} text=${text} onClear=${() => setFilter({ text: "", choice: "held" })} />`
          )
    }
  `;
}

/**
 * @param {Record<Choice, number>} counts
 * @param {boolean} loading
 * @param {LockList} list
 */
function summary(counts, loading, list) {
  if (loading) return `Loading: ${count(list.byKey.size)} so far …`;
  const waited = counts.contended ? `, ${count(counts.contended)} waited for` : "";
  return `${count(counts.held)} held${waited}`;
}

/**
 * The list of a selection, with its stream, as long as the page shows it.
 * @param {string} prefix
 * @param {"held" | "all"} state
 */
function useList(prefix, state) {
  const list = useMemo(() => new LockList({ prefix, state }), [prefix, state]);
  useEffect(() => {
    const query = new URLSearchParams({ prefix, events: EVENTS });
    const stream = new EventStream(`/locks/events?${query}`, {
      onEvent: (event) => list.take(event),
      onBegin: (missed) => (missed ? list.missed() : void list.load()),
    });
    void loadUsual("").catch(() => {});
    // Without a stream the list is read all the same.
    const stop = effect(() => {
      if (stream.state.value === "lost" && list.byKey.size === 0) void list.load().catch(() => {});
    });
    return () => {
      stop();
      stream.end();
      list.end();
    };
  }, [list]);
  return list;
}

/**
 * The rows to show, made again when the list, the filter or (slowly) the time changes.
 * @param {LockList} list
 */
function useView(list) {
  const version = list.version.value;
  const slowly = Math.floor(nowMs.value / (list.byKey.size > 5_000 ? 10_000 : 1_000));
  return useMemo(
    () => viewOf(list.byKey.values(), filter.value, usualMs.value, nowMs.peek()),
    [list, version, filter.value, usualMs.value, slowly],
  );
}

/**
 * A text once it has not changed for a moment.
 * @param {string} text
 */
function useSettled(text) {
  const [settled, setSettled] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(text), 250);
    return () => clearTimeout(timer);
  }, [text]);
  return settled;
}

/** @param {{ counts: Record<Choice, number> }} props */
function FilterBar({ counts }) {
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  useEffect(() => {
    /** @param {KeyboardEvent} event */
    const focus = (event) => {
      const inField = event.target instanceof HTMLElement && /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
      if (event.key !== "/" || inField || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      input.current?.select();
      input.current?.focus();
    };
    addEventListener("keydown", focus);
    return () => removeEventListener("keydown", focus);
  }, []);
  const { text, begins, choice } = filter.value;
  return html`<div class="filters" role="search" aria-label="Filter locks">
    <div class="filter-text">
      <select aria-label="How the text is compared" value=${begins ? "begins" : "contains"}
        onChange=${(/** @type {any} */ event) => setFilter({ begins: event.currentTarget.value === "begins" })}>
        <option value="contains">Contains</option><option value="begins">Begins with</option>
      </select>
      <input ref=${input} type="search" aria-label="Text in key or holder" placeholder=${begins ? "Beginning of the key" : "Key or holder"}
        spellcheck=${false} autocapitalize="off" autocomplete="off" value=${text} aria-keyshortcuts="/"
        onInput=${(/** @type {any} */ event) => setFilter({ text: event.currentTarget.value.trim() })}
        onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Escape" && setFilter({ text: "" })} />
      ${!text && html`<kbd aria-hidden="true">/</kbd>`}
    </div>
    <div class="choices" role="group" aria-label="Which locks">
      ${
        /** @type {Choice[]} */ (Object.keys(CHOICES)).map(
          (
            one,
          ) => html`<button type="button" aria-pressed=${choice === one} onClick=${() => setFilter({ choice: one })}>
          ${CHOICES[one]}${one !== "all" && html`<span class=${`choice-count ${one === "not_renewing" && counts[one] ? "choice-count-warn" : ""}`}>${count(counts[one])}</span>`}</button>`,
        )
      }
    </div>
  </div>`;
}
