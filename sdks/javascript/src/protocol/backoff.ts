/**
 * Retry back-off with jitter: exponential up to a bound; a `Retry-After` of the service takes precedence (SDK-11).
 */

import { RateLimitedError, RECORD_DAMAGED, TransportError, type VolcanoError } from "../errors.ts";

export const BACKOFF_SECONDS_MIN = 0.2;
export const BACKOFF_SECONDS_MAX = 5;
const RETRY_AFTER_SPREAD = 0.1;
const FAILURES_COUNTED_MAX = 16;

/** The delays between the attempts of one wait or watch. */
export class Backoff {
  #failures = 0;

  /** Seconds to pause after one more failure: `retryAfter` plus up to a tenth, or else the exponential delay. */
  next(retryAfter: number | null): number {
    this.#failures = Math.min(this.#failures + 1, FAILURES_COUNTED_MAX);
    const longest = Math.min(BACKOFF_SECONDS_MIN * 2 ** this.#failures, BACKOFF_SECONDS_MAX);
    if (retryAfter !== null && retryAfter > 0) return retryAfter * (1 + Math.random() * RETRY_AFTER_SPREAD);
    return longest * (1 + Math.random()) * 0.5;
  }

  /** Starts over after a success. */
  reset(): void {
    this.#failures = 0;
  }
}

/** Whether a retry may succeed: no response, a 429, or a 5xx other than a damaged record (SDK-11). */
export function isRetryable(error: VolcanoError): boolean {
  if (error.code === RECORD_DAMAGED) return false;
  if (error instanceof TransportError || error instanceof RateLimitedError) return true;
  return error.status !== null && error.status >= 500;
}
