/**
 * The client's clock: monotonic seconds that include suspended time where it can be detected (SDK-4).
 *
 * A lease expires on the server even if this machine is suspended. On some systems `performance.now()` stops during
 * suspend; `Date.now()` does not, but it can be stepped. `SystemClock` reads both and follows the monotonic one. If
 * the wall clock ran ahead by more than a tenth of a second since the last reading, the difference counts as elapsed.
 * So a wall clock stepped forward ends a hold early, never late; one stepped back changes nothing.
 *
 * Limits: a suspend is missed if the wall clock was set back by the same amount meanwhile. A paused process notices
 * the pause when it next runs.
 */

import { whenAborted } from "./abort.ts";

/** The longest single timer. Longer ones overflow past 2^31 - 1 ms, and timers stop during suspend (SDK-7). */
export const TIMER_SECONDS_MAX = 2;
const WALL_AHEAD_SECONDS_MAX = 0.1;

/** The client's source of time and timers. Tests pass one that they advance. */
export interface Clock {
  /** Monotonic seconds since an arbitrary fixed instant. */
  now(): number;
  /**
   * Calls `wake` once, asynchronously, when `now() >= until`, and never if `until` is infinite. The returned function
   * cancels the timer. A pending timer keeps the process alive: the client sets one only while a promise that it
   * returned is pending.
   */
  at(until: number, wake: () => void): () => void;
  /** Pauses before a retry. Keeps the process alive. Ends early when `signal` aborts. */
  pause(seconds: number, signal?: AbortSignal): Promise<void>;
}

/** The real clock. */
export class SystemClock implements Clock {
  #monotonic: number = performance.now();
  #wall: number = Date.now();
  #seconds = 0;

  now(): number {
    const monotonic = performance.now();
    const wall = Date.now();
    const passed = Math.max(0, monotonic - this.#monotonic) / 1_000;
    const ahead = (wall - this.#wall) / 1_000 - passed;
    this.#monotonic = monotonic;
    this.#wall = wall;
    this.#seconds += ahead > WALL_AHEAD_SECONDS_MAX ? passed + ahead : passed;
    return this.#seconds;
  }

  at(until: number, wake: () => void): () => void {
    let timer: ReturnType<typeof setTimeout>;
    // A test may patch `clearTimeout` meanwhile, which then does not clear this timer.
    let cancelled = false;
    const schedule = (): void => {
      timer = setTimeout(
        () => {
          if (cancelled) return;
          if (this.now() >= until) wake();
          else schedule();
        },
        timerMs(until - this.now()),
      );
    };
    schedule();
    return () => {
      cancelled = true;
      clearTimeout(timer);
    };
  }

  pause(seconds: number, signal?: AbortSignal): Promise<void> {
    return waitUntil(this, this.now() + seconds, signal);
  }
}

/** Resolves when `clock` reaches `until` or `signal` aborts, whichever is first. */
export function waitUntil(clock: Clock, until: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const done = (): void => {
      cancel();
      removeCallback();
      resolve();
    };
    const cancel = clock.at(until, done);
    const removeCallback = whenAborted(signal, done);
  });
}

function timerMs(seconds: number): number {
  return Math.max(0, Math.ceil(Math.min(seconds, TIMER_SECONDS_MAX) * 1_000));
}
