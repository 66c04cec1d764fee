/**
 * A clock that stands still until the test moves it.
 *
 * `advance` stops at every instant somebody waits for and lets what is due there run to its next rest before it
 * moves on, so that ten minutes pass as they would, at once. `jump` moves without stopping, like a suspended machine.
 * Time on the way to a real server takes what it takes: `advance` waits for the requests that `track` was told of.
 *
 * A caller's own pause between two attempts moves the clock by itself: the caller is the one who would move it.
 */

import type { Clock } from "../clock.ts";

const SETTLE_MS_MAX = 20_000;
const QUIET_TURNS = 4;
const BUSY_TURNS_MAX = 100;
const START_MS: number = Date.UTC(2026, 0, 1);
const START_SECONDS = 1_000;

const realNow: () => number = performance.now.bind(performance);
const realTimeout: typeof setTimeout = setTimeout;
const turn: () => Promise<void> =
  typeof setImmediate === "function"
    ? (
        (immediate) => () =>
          new Promise<void>((resolve) => void immediate(resolve))
      )(setImmediate)
    : () => pauseMs(0);

interface Wait {
  readonly until: number;
  readonly wake: () => void;
}

/** A `Clock` for tests. */
export class ManualClock implements Clock {
  readonly #onMove: ((seconds: number) => void) | undefined;
  readonly #waits: Set<Wait> = new Set();
  #seconds = START_SECONDS;
  #tracked = 0;

  /** `onMove` is told each step in seconds first: move a server's clock in step there. */
  constructor(options: { onMove?: ((seconds: number) => void) | undefined } = {}) {
    this.#onMove = options.onMove;
  }

  now(): number {
    return this.#seconds;
  }

  /** The date this clock shows: 2026-01-01 plus what it was moved. */
  utcNow(): Date {
    return new Date(START_MS + Math.round((this.#seconds - START_SECONDS) * 1_000));
  }

  at(until: number, wake: () => void): () => void {
    const wait: Wait = { until, wake };
    this.#waits.add(wait);
    if (until <= this.#seconds) void this.track(turn().then(() => this.#wake(wait)));
    return () => void this.#waits.delete(wait);
  }

  /** Moves the clock by `seconds` itself. */
  async pause(seconds: number): Promise<void> {
    this.jump(seconds);
  }

  /** Move at once and wake whoever is due, waiting for nobody. */
  jump(seconds: number): void {
    if (!(seconds >= 0)) throw new RangeError(`seconds must not be negative, got ${seconds}`);
    this.#moveTo(this.#after(seconds));
  }

  /** Move step by step, settling at each. */
  async advance(seconds: number): Promise<void> {
    const target = this.#after(seconds);
    await this.settle();
    while (this.#seconds < target) {
      this.#moveTo(Math.min(this.nextDue(), target));
      await this.settle();
    }
  }

  /** The next instant somebody waits for; infinite if nobody does. */
  nextDue(): number {
    const later = [...this.#waits].map((wait) => wait.until).filter((until) => until > this.#seconds);
    return Math.min(...later, Number.POSITIVE_INFINITY);
  }

  /** How many wait on this clock: none, once everything has ended. */
  get waiting(): number {
    return this.#waits.size;
  }

  /** Resolves once everything has run to its next rest. Rejects if tracked work does not end within real seconds. */
  async settle(): Promise<void> {
    const giveUp = realNow() + SETTLE_MS_MAX;
    for (let quiet = 0, turns = 0; quiet < QUIET_TURNS; turns += 1) {
      await turn();
      quiet = this.#tracked === 0 ? quiet + 1 : 0;
      if (realNow() > giveUp) throw new Error("work that the clock was told of does not end");
      if (turns > BUSY_TURNS_MAX) await pauseMs(1);
    }
  }

  /** Have `settle` wait for `work`, which does not wait on this clock: a request to a real server. */
  async track<T>(work: Promise<T>): Promise<T> {
    this.#tracked += 1;
    try {
      return await work;
    } finally {
      this.#tracked -= 1;
    }
  }

  /** To the microsecond, so that steps which add up to an instant meet it; so does a step up to what `nextDue` told. */
  #after(seconds: number): number {
    const instant = Math.round((this.#seconds + seconds) * 1e6) / 1e6;
    const near = [...this.#waits].map((wait) => wait.until).filter((until) => Math.abs(until - instant) < 1e-6);
    return Math.max(instant, ...near);
  }

  #moveTo(instant: number): void {
    this.#onMove?.(instant - this.#seconds);
    this.#seconds = instant;
    for (const wait of [...this.#waits].sort((one, other) => one.until - other.until)) {
      if (wait.until <= this.#seconds) this.#wake(wait);
    }
  }

  #wake(wait: Wait): void {
    if (this.#waits.delete(wait)) wait.wake();
  }
}

function pauseMs(ms: number): Promise<void> {
  return new Promise((resolve) => void realTimeout(resolve, ms));
}
