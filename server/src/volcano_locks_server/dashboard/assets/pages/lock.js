// One lock: who holds it, who held it during the last day, who waits, what happens, and how to free it.

import { get, mayManage } from "../api.js";
import { html, signal, useEffect, useMemo, useState } from "../lib.js";
import { applyEvent, isNotRenewing, lockOf } from "../locks.js";
import { Badge, Card, Fault, Heading, useEvery } from "../parts/basics.js";
import { EventList, Waiters } from "../parts/events.js";
import { ForceRelease } from "../parts/force_release.js";
import { HolderCard } from "../parts/holder.js";
import { LastDay } from "../parts/last_day.js";
import { Live } from "../parts/live.js";
import { Snippets } from "../parts/snippets.js";
import { address } from "../route.js";
import { EventStream } from "../stream.js";
import { nowMs, serverNow, toMs } from "../time.js";
import { HOLDS_MIN } from "../usual.js";

/** @typedef {import("../../types.js").Lock} Lock */
/** @typedef {import("../../types.js").LockEvent} LockEvent */
/** @typedef {import("../../types.js").Hold} Hold */

const EVENTS_SHOWN_MAX = 50;

/** The state of the page of one lock. */
class LockState {
  lock = signal(/** @type {Lock | null} */ (null));
  holds = signal(/** @type {Hold[] | null} */ (null));
  statistics = signal(/** @type {import("../../types.js").HeldStatistics | null} */ (null));
  events = signal(/** @type {LockEvent[]} */ ([]));
  queue = signal(/** @type {import("../../types.js").Queued[]} */ ([]));
  fault = signal(/** @type {unknown} */ (null));
  historyFault = signal(/** @type {unknown} */ (null));
  #historyTimer = 0;
  #rowTimer = 0;

  /** @param {string} name */
  constructor(name) {
    this.path = `/locks/${encodeURIComponent(name)}`;
  }

  async load() {
    await this.loadRow();
    await this.loadHistory();
  }

  async loadRow() {
    try {
      const row = await get(`${this.path}?view=full`);
      this.lock.value = lockOf(row, serverNow());
      this.queue.value = row.queue ?? [];
      this.fault.value = null;
    } catch (error) {
      this.fault.value = error;
    }
  }

  async loadHistory() {
    try {
      const page = await get(`${this.path}/history?limit=200`); // all entries that are kept of a lock
      this.holds.value = page.items;
      this.statistics.value = page.held ?? null;
      this.historyFault.value = null;
    } catch (error) {
      this.historyFault.value = error;
    }
  }

  /** @param {LockEvent} event */
  take(event) {
    if (this.lock.value) {
      const lock = { ...this.lock.value };
      applyEvent(lock, event);
      this.lock.value = lock;
    }
    this.events.value = [event, ...this.events.value].slice(0, EVENTS_SHOWN_MAX);
    if (event.event === "renewed") {
      this.holds.value = this.holds.value?.map((hold) => renewed(hold, event)) ?? null;
      return;
    }
    clearTimeout(this.#rowTimer);
    this.#rowTimer = setTimeout(() => void this.loadRow(), 200); // the queue is in no event
    if (event.event === "waiting" || event.event === "gave_up") return;
    clearTimeout(this.#historyTimer);
    this.#historyTimer = setTimeout(() => void this.loadHistory(), 500);
  }
}

/** @param {{ name: string }} props */
export function LockPage({ name }) {
  const state = useMemo(() => new LockState(name), [name]);
  useEffect(() => {
    const stream = new EventStream(`${state.path}/events`, {
      onEvent: (event) => state.take(event),
      onBegin: () => void state.load(),
    });
    void state.load();
    return () => stream.end();
  }, [state]);
  useEvery(() => void state.load(), 30);
  const [freeing, setFreeing] = useState(/** @type {Lock | null} */ (null));
  const lock = state.lock.value;
  const current = state.holds.value?.find((hold) => hold.fencing_token === lock?.fencingToken) ?? null;
  const title = html`<a class="back" href=${address("locks")}>Locks</a>`;
  return html`
    <${Heading} title=${name} lead=${title}>
      <${Live} />
      ${
        lock?.held &&
        (mayManage()
          ? html`<button type="button" class="danger-outline" onClick=${() => setFreeing(lock)}>Force release …</button>`
          : html`<span class="quiet">This key can read, but not free locks.</span>`)
      }
    </${Heading}>
    ${state.fault.value !== null && html`<${Fault} error=${state.fault.value} retry=${() => void state.load()} />`}
    ${
      lock &&
      html`
      <p class="state-line">${lock.held ? html`<${Badge} kind="good">held</${Badge}>` : html`<${Badge}>${lock.expired ? "free, the last lease expired" : "free"}</${Badge}>`}
        ${isNotRenewing(lock) && html`<${Badge} kind="warn">not renewing</${Badge}>`}
        ${isLong(lock, state.statistics.value) && html`<${Badge} kind="warn">longer than usual</${Badge}>`}</p>
      <div class="columns">
        <${HolderCard} lock=${lock} hold=${current} statistics=${state.statistics.value} />
        <div><${Waiters} count=${lock.waiters} queue=${state.queue.value} />
          <${Card} title="Use this lock"><${Snippets} name=${name} /></${Card}></div>
      </div>
      <${LastDay} holds=${state.holds.value} fault=${state.historyFault.value} lock=${lock} path=${state.path} />
      <${EventList} events=${state.events.value} />`
    }
    ${
      freeing &&
      html`<${ForceRelease} lock=${freeing} current=${lock} path=${state.path}
      onClose=${() => setFreeing(null)} onDone=${() => void state.load()} />`
    }
  `;
}

/**
 * The hold after a renewal, if it is the renewed one and was not read after that.
 * @param {Hold} hold
 * @param {LockEvent} event
 * @returns {Hold}
 */
function renewed(hold, event) {
  const isKnown = hold.renewed_at !== null && toMs(hold.renewed_at) >= toMs(event.at);
  if (hold.fencing_token !== event.fencing_token || hold.renewals === null || isKnown) return hold;
  return { ...hold, renewals: hold.renewals + 1, renewed_at: event.at };
}

/**
 * @param {Lock} lock
 * @param {import("../../types.js").HeldStatistics | null} statistics
 */
function isLong(lock, statistics) {
  if (!lock.held || !statistics || statistics.count < HOLDS_MIN || statistics.p95_seconds === null) return false;
  return nowMs.value - lock.acquiredMs > statistics.p95_seconds * 1000 + 1000;
}
