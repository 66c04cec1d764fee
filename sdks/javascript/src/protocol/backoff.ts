/**
 * How long to rest before asking again, in something that goes on by itself: ever longer, and never in step with others.
 *
 * What the service told in `Retry-After` goes first (SDK-11).
 */

import { RateLimitedError, TransportError, type VolcanoError } from "../errors.ts";

export const REST_SECONDS_MIN = 0.2;
export const REST_SECONDS_MAX = 5;
const RETRY_AFTER_SPREAD = 0.1;
const FAILURES_COUNTED_MAX = 16;

/** The rests between the tries of one endeavour. */
export class Rests {
  #failures = 0;

  /** Seconds to rest after one more failure: `retryAfter`, if that is any, and up to a tenth more. */
  next(retryAfter: number | null): number {
    this.#failures = Math.min(this.#failures + 1, FAILURES_COUNTED_MAX);
    const longest = Math.min(REST_SECONDS_MIN * 2 ** this.#failures, REST_SECONDS_MAX);
    if (retryAfter !== null && retryAfter > 0) return retryAfter * (1 + Math.random() * RETRY_AFTER_SPREAD);
    return longest * (1 + Math.random()) * 0.5;
  }

  /** It went well: the next failure is the first again. */
  reset(): void {
    this.#failures = 0;
  }
}

/** Whether the same request may go better later: no answer, a 429 or a 5xx. */
export function worthARest(error: VolcanoError): boolean {
  if (error instanceof TransportError || error instanceof RateLimitedError) return true;
  return error.status !== null && error.status >= 500;
}
