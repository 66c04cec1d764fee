// The locks of the project, kept current from the event stream, the pages of the list and re-reads of rows in view.

import { ApiError, get } from "./api.js";
import { signal } from "./lib.js";
import { serverNow, toMs } from "./time.js";

/** @typedef {import("../types.js").Lock} Lock */
/** @typedef {import("../types.js").LockRow} LockRow */
/** @typedef {import("../types.js").LockEvent} LockEvent */

export const LOCKS_MAX = 200_000;
const PAGE_ROWS = 500;
const SUSPECTS_MAX = 50;
const PAUSE_MS = 2_000; // between two walks over all pages
const LARGE = 5_000;
const LARGE_PAUSE_MS = 60_000;

/**
 * @param {LockRow} row
 * @param {number} readMs
 * @returns {Lock}
 */
export function lockOf(row, readMs) {
  return {
    key: row.key,
    held: row.held,
    expired: false,
    holder: row.holder,
    acquiredMs: toMs(row.acquired_at),
    renewedMs: toMs(row.renewed_at),
    expiresMs: toMs(row.expires_at),
    ttlSeconds: row.ttl_seconds,
    fencingToken: row.fencing_token,
    waiters: row.waiters,
    readMs,
  };
}

/**
 * Whether the holder seems to have stopped renewing: clients renew after a third of the TTL at the latest, and half of
 * it had passed when the lock was last read. Renewals after that are not known, so the present does not count.
 * @param {Lock} lock
 * @param {number} byMs
 */
export const isNotRenewing = (lock, byMs = lock.readMs) =>
  lock.held && lock.ttlSeconds !== null && byMs - lock.renewedMs > lock.ttlSeconds * 500 + 1000;

/**
 * Apply an event to its lock.
 * @param {Lock} lock
 * @param {LockEvent} event
 */
export function applyEvent(lock, event) {
  const atMs = toMs(event.at);
  if (event.event === "waiting") lock.waiters += 1;
  else if (event.event === "gave_up") lock.waiters = Math.max(0, lock.waiters - 1);
  else if (event.fencing_token !== null && event.fencing_token < (lock.fencingToken ?? 0)) return;
  else if (event.event === "acquired" || event.event === "renewed") {
    if (event.event === "acquired") {
      lock.acquiredMs = atMs;
      if (event.why === "waited") lock.waiters = Math.max(0, lock.waiters - 1);
    }
    lock.held = true;
    lock.expired = false;
    lock.holder = event.holder;
    lock.renewedMs = atMs;
    lock.expiresMs = toMs(event.expires_at);
    lock.ttlSeconds = Math.round((lock.expiresMs - atMs) / 1000);
    lock.fencingToken = event.fencing_token;
  } else {
    lock.held = false;
    lock.expired = event.event === "expired";
    lock.holder = lock.ttlSeconds = null;
    lock.acquiredMs = lock.renewedMs = lock.expiresMs = Number.NaN;
    lock.fencingToken = event.fencing_token ?? lock.fencingToken;
  }
  lock.readMs = serverNow();
}

/** @param {string} key @returns {Lock} */
const freeLock = (key) =>
  lockOf(
    {
      key,
      held: false,
      holder: null,
      acquired_at: null,
      renewed_at: null,
      expires_at: null,
      ttl_seconds: null,
      fencing_token: null,
      waiters: 0,
    },
    0,
  );

/** @param {Promise<unknown> | number} what */
const pause = (what) => new Promise((resolve) => setTimeout(resolve, Number(what)));

export class LockList {
  /** Rises with every change, so that views are made again. */
  version = signal(0);
  /** Whether pages are still to come. */
  loading = signal(true);
  /** Why the list is incomplete, "" if it is not. */
  fault = signal("");
  isCut = signal(false);
  /** @type {Map<string, Lock>} */
  byKey = new Map();
  #walk = new AbortController();
  #changedMs = /** @type {Map<string, number>} */ (new Map());
  #pending = false;
  #walking = false;
  #walkedMs = 0;
  #isMissed = false;
  #timer = 0;

  /**
   * @param {{ prefix: string, state: "held" | "all" }} selection
   */
  constructor(selection) {
    this.selection = selection;
  }

  end() {
    clearTimeout(this.#timer);
    this.#walk.abort();
  }

  #changed() {
    if (this.#pending) return;
    this.#pending = true;
    const size = this.byKey.size;
    const delayMs = size > 20_000 ? (this.loading.value ? 2_000 : 700) : size > 2_000 ? 300 : 50;
    setTimeout(() => {
      this.#pending = false;
      this.version.value += 1;
    }, delayMs);
  }

  /** @param {LockEvent} event */
  take(event) {
    const known = this.byKey.get(event.key);
    const lock = known ?? freeLock(event.key);
    applyEvent(lock, event);
    if (!known && this.byKey.size < LOCKS_MAX) this.byKey.set(event.key, lock);
    if (this.#walking) this.#changedMs.set(event.key, Date.now());
    this.#changed();
  }

  /** Read all pages again, unless that is in progress. */
  refresh() {
    if (!this.#walking) void this.load({ quiet: true });
  }

  /**
   * Events may be missing: read all pages again. Not at once: a walk in progress is completed first, and a server that
   * cannot watch all leases of the project reports missing events every 10 seconds (EVENT-9).
   */
  missed() {
    this.#isMissed = this.#walking;
    if (this.#walking || this.#timer) return;
    const pauseMs = this.byKey.size > LARGE ? LARGE_PAUSE_MS : PAUSE_MS;
    const waitMs = Math.max(0, this.#walkedMs + pauseMs - Date.now());
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      this.refresh();
    }, waitMs);
  }

  /** Read all pages. Rows that are on no page any more are dropped. */
  async load({ quiet = false } = {}) {
    this.#walk.abort();
    const walk = new AbortController();
    this.#walk = walk;
    this.#walking = true;
    if (!quiet) this.loading.value = true;
    this.fault.value = "";
    this.#changedMs.clear();
    const seen = new Set();
    try {
      await this.#loadPages(walk, seen);
    } catch (error) {
      if (walk.signal.aborted) return;
      this.fault.value = error instanceof Error ? error.message : String(error);
    }
    if (walk !== this.#walk) return;
    if (!this.fault.value && !this.isCut.value) {
      for (const key of this.byKey.keys()) if (!seen.has(key) && !this.#changedMs.has(key)) this.byKey.delete(key);
    }
    this.#walking = this.loading.value = false;
    this.#walkedMs = Date.now();
    if (this.#isMissed) this.missed();
    this.#changed();
  }

  /**
   * @param {AbortController} walk
   * @param {Set<string>} seen
   */
  async #loadPages(walk, seen) {
    const { prefix, state } = this.selection;
    let cursor = /** @type {string | null} */ ("");
    while (cursor !== null) {
      const query = new URLSearchParams({ limit: String(PAGE_ROWS), state });
      if (prefix) query.set("prefix", prefix);
      if (cursor) query.set("cursor", cursor);
      const sentMs = Date.now();
      const page = await this.#patiently(`/locks?${query}`, walk);
      for (const row of page.items) {
        seen.add(row.key);
        if ((this.#changedMs.get(row.key) ?? 0) >= sentMs) void this.reread(row.key);
        else this.byKey.set(row.key, lockOf(row, serverNow()));
      }
      cursor = page.next_cursor;
      this.#changed();
      if (this.byKey.size >= LOCKS_MAX && cursor !== null) {
        this.isCut.value = true;
        return;
      }
    }
  }

  /**
   * Read a page, and wait when the server asks for it.
   * @param {string} path
   * @param {AbortController} walk
   */
  async #patiently(path, walk) {
    for (;;) {
      try {
        return await get(path, walk.signal);
      } catch (error) {
        const retryAfter = error instanceof ApiError ? error.retryAfterSeconds : 0;
        if (!retryAfter || walk.signal.aborted) throw error;
        await pause(retryAfter * 1000);
        if (walk.signal.aborted) throw error;
      }
    }
  }

  /**
   * Read one row again.
   * @param {string} key
   */
  async reread(key) {
    const sentMs = Date.now();
    const row = await get(`/locks/${encodeURIComponent(key)}?view=full`, this.#walk.signal);
    const known = this.byKey.get(key);
    if (!known || (this.#changedMs.get(key) ?? 0) > sentMs) return;
    Object.assign(known, lockOf(row, serverNow()), { expired: known.expired && !row.held });
    this.#changed();
  }

  /**
   * The rows of `shown` whose renewal is due and not seen, longest unread first: events of renewals are not sent.
   * @param {Lock[]} shown
   * @param {number} now
   */
  due(shown, now) {
    const late = shown.filter((lock) => {
      if (!lock.held) return false;
      const everyMs = Math.min((lock.ttlSeconds ?? 30) * 340, 60_000);
      return now > lock.renewedMs + everyMs && now - lock.readMs > Math.max(2000, Math.min(everyMs / 2, 10_000));
    });
    return late.sort((a, b) => a.readMs - b.readMs);
  }

  /**
   * The locks that would be taken as not renewing if no renewal was missed: read them to know.
   * @param {number} now
   */
  suspects(now) {
    /** @type {Lock[]} */
    const found = [];
    for (const lock of this.byKey.values()) {
      if (isNotRenewing(lock) || !isNotRenewing(lock, now)) continue;
      found.push(lock);
      if (found.length >= SUSPECTS_MAX) break;
    }
    return found;
  }
}
