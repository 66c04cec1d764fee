/**
 * The client's time: seconds that never run backwards and count suspended time as far as it can be seen (SDK-4).
 *
 * A lease runs out on the server whether or not this machine was suspended. `performance.now()` stands still in
 * suspend on some systems; `Date.now()` does not, but can be stepped. `SystemClock` reads both: time goes by the
 * monotonic one, and where the wall clock has run ahead of it by more than a tenth of a second since the last
 * reading, that is counted as time too. A wall clock stepped forward therefore ends a hold early, never late; one
 * that is stepped back changes nothing.
 *
 * Not promised: a suspend during which the wall clock was also set back by as much is not seen. A pause of the
 * process is noticed when the process next runs, not before.
 */

/** Timers overflow past 2^31 - 1 ms and stand still in suspend; waiting in naps does neither (SDK-7). */
export const NAP_SECONDS_MAX = 2;
const WALL_AHEAD_SECONDS_MAX = 0.1;

/** Where a client reads the time and rests. Tests give one that they move. */
export interface Clock {
  /** Seconds since some fixed instant; never backwards. */
  now(): number;
  /**
   * Calls `wake` once, later than this call and not before `now() >= until`; the returned function cancels that. An
   * infinite `until` wakes never.
   * Keeps the process alive until then: the client waits only while a promise of its caller is pending (SDK-19).
   */
  at(until: number, wake: () => void): () => void;
  /** Rest before the caller's own next attempt. Keeps the process alive. Ends early when `signal` aborts. */
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
    let timer: Timer;
    const nap = (): void => {
      timer = setTimeout(
        () => {
          if (this.now() >= until) wake();
          else nap();
        },
        napMs(until - this.now()),
      );
    };
    nap();
    return () => clearTimeout(timer);
  }

  pause(seconds: number, signal?: AbortSignal): Promise<void> {
    const until = this.now() + seconds;
    return new Promise((resolve) => {
      let timer: Timer;
      const done = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", done);
        resolve();
      };
      const nap = (): void => {
        const left = until - this.now();
        if (left <= 0 || signal?.aborted) done();
        else timer = setTimeout(nap, napMs(left));
      };
      signal?.addEventListener("abort", done);
      nap();
    });
  }
}

/** Resolves once `clock` shows `until`, or `signal` aborts, whichever is first. */
export function restUntil(clock: Clock, until: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const done = (): void => {
      cancel();
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const cancel = clock.at(until, done);
    signal?.addEventListener("abort", done);
  });
}

type Timer = ReturnType<typeof setTimeout>;

function napMs(seconds: number): number {
  return Math.max(0, Math.ceil(Math.min(seconds, NAP_SECONDS_MAX) * 1_000));
}
