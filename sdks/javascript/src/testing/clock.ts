/**
 * A clock that stands still until the test moves it.
 *
 * `advance` stops at every timer and runs the code that is due before it moves on, so ten minutes of behaviour run at
 * once. `jump` moves without stopping, like a suspended machine. Requests to a real server take real time: `advance`
 * waits for those that were passed to `track`.
 *
 * The client's pause before a retry moves the clock itself, since the test awaits the call and cannot move it.
 */

import type { Clock } from "../clock.ts";

const SETTLE_MS_MAX = 20_000;
const QUIET_TURNS = 4;
const BUSY_TURNS_MAX = 100;
const START_MS: number = Date.UTC(2026, 0, 1);
const START_SECONDS = 1_000;

const realNow: () => number = performance.now.bind(performance);
const realTimeout: typeof setTimeout = setTimeout;
const eventLoopTurn: () => Promise<void> =
  typeof setImmediate === "function"
    ? (
        (immediate) => () =>
          new Promise<void>((resolve) => void immediate(resolve))
      )(setImmediate)
    : () => pauseMs(0);

interface Timer {
  readonly until: number;
  readonly wake: () => void;
}

/** A `Clock` for tests. */
export class ManualClock implements Clock {
  readonly #onMove: ((seconds: number) => void) | undefined;
  readonly #timers: Set<Timer> = new Set();
  #seconds = START_SECONDS;
  #tracked = 0;

  /** `onMove` is called with each step in seconds before it takes effect, for example to move a server's clock. */
  constructor(options: { onMove?: ((seconds: number) => void) | undefined } = {}) {
    this.#onMove = options.onMove;
  }

  now(): number {
    return this.#seconds;
  }

  /** The clock's date: 2026-01-01 plus every move. */
  utcNow(): Date {
    return new Date(START_MS + Math.round((this.#seconds - START_SECONDS) * 1_000));
  }

  at(until: number, wake: () => void): () => void {
    const timer: Timer = { until, wake };
    this.#timers.add(timer);
    if (until <= this.#seconds) void this.track(eventLoopTurn().then(() => this.#wake(timer)));
    return () => void this.#timers.delete(timer);
  }

  /** Moves the clock by `seconds`. */
  async pause(seconds: number): Promise<void> {
    this.jump(seconds);
  }

  /** Moves at once and fires the timers that are due, without waiting for their effects. */
  jump(seconds: number): void {
    if (!(seconds >= 0)) throw new RangeError(`seconds must not be negative, got ${seconds}`);
    this.#moveTo(this.#instantAfter(seconds));
  }

  /** Moves from timer to timer and settles at each. */
  async advance(seconds: number): Promise<void> {
    const target = this.#instantAfter(seconds);
    await this.settle();
    while (this.#seconds < target) {
      this.#moveTo(Math.min(this.nextDue(), target));
      await this.settle();
    }
  }

  /** The instant of the next timer; infinite if there is none. */
  nextDue(): number {
    const later = [...this.#timers].map((timer) => timer.until).filter((until) => until > this.#seconds);
    return Math.min(...later, Number.POSITIVE_INFINITY);
  }

  /** The number of pending timers. Zero once everything has ended. */
  get waiting(): number {
    return this.#timers.size;
  }

  /** Resolves when all code waits on a timer. Rejects if tracked work does not end within 20 real seconds. */
  async settle(): Promise<void> {
    const timeoutAt = realNow() + SETTLE_MS_MAX;
    for (let quiet = 0, turns = 0; quiet < QUIET_TURNS; turns += 1) {
      await eventLoopTurn();
      quiet = this.#tracked === 0 ? quiet + 1 : 0;
      if (realNow() > timeoutAt) throw new Error("tracked work did not end within 20 seconds");
      if (turns > BUSY_TURNS_MAX) await pauseMs(1);
    }
  }

  /** Makes `settle` wait for `work` that does not depend on this clock, such as a request to a real server. */
  async track<T>(work: Promise<T>): Promise<T> {
    this.#tracked += 1;
    try {
      return await work;
    } finally {
      this.#tracked -= 1;
    }
  }

  /** Rounds to microseconds, and up to a timer within one microsecond, so that added steps reach it exactly. */
  #instantAfter(seconds: number): number {
    const instant = Math.round((this.#seconds + seconds) * 1e6) / 1e6;
    const near = [...this.#timers].map((timer) => timer.until).filter((until) => Math.abs(until - instant) < 1e-6);
    return Math.max(instant, ...near);
  }

  #moveTo(instant: number): void {
    this.#onMove?.(instant - this.#seconds);
    this.#seconds = instant;
    for (const timer of [...this.#timers].sort((one, other) => one.until - other.until)) {
      if (timer.until <= this.#seconds) this.#wake(timer);
    }
  }

  #wake(timer: Timer): void {
    if (this.#timers.delete(timer)) timer.wake();
  }
}

function pauseMs(ms: number): Promise<void> {
  return new Promise((resolve) => void realTimeout(resolve, ms));
}
