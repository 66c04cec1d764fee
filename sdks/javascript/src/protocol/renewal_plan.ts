/**
 * Plans when to renew a lease, without a clock, timers or I/O.
 *
 * Call `nextAction(now)` and carry it out: `renew` now, `wait` until an instant, or treat the lease as `lost`. Report the
 * outcome with `renewed` or `failed`, and call it again.
 *
 * SDK-3: the first attempt comes at about a third of the TTL, with jitter so that many holders do not renew in step, and at
 * most 60 seconds after the last confirmation, so that a holder of a long lease soon notices a forced release (case 51).
 * The 60 seconds do not apply while the project is short of its quota, and `renewEvery` replaces both. A failed attempt
 * is retried with back-off until the last second of the lease. A `Retry-After` is honoured up to half of the remaining
 * time, so that there is always another attempt.
 * SDK-4: the deadline moves only on a confirmed renewal, to its send time plus the TTL, and never past the absolute end
 * of the acquisition. Once it has passed, nothing restores the lease.
 *
 * In the last second the plan stops renewing; the service refuses renewals there by its own clock.
 */

export const ACQUISITION_SECONDS_MAX = 7_776_000;
export const RENEW_AT_FRACTION: number = 1 / 3;
export const RENEW_SECONDS_MAX = 60;
export const JITTER_FRACTION = 0.1;
export const MARGIN_SECONDS = 1;
export const RENEWAL_BACKOFF_SECONDS_MIN = 0.2;
export const RENEWAL_BACKOFF_SECONDS_MAX = 10;
export const ATTEMPT_SECONDS_MIN = 1;
const FAILURES_COUNTED_MAX = 32;

/** What to do next: send a renewal with this time-out, wait until an instant, or stop because the deadline has passed. */
export type RenewalAction =
  | { readonly kind: "renew"; readonly timeoutSeconds: number }
  | { readonly kind: "wait"; readonly until: number }
  | { readonly kind: "lost" };

/** The start of an acquisition. Instants are seconds on the client's clock. */
export interface RenewalPlanStart {
  readonly ttlSeconds: number;
  /** An instant before the acquire was sent. */
  readonly acquiredAt: number;
  readonly deadline: number;
  /** Time-out of one request. */
  readonly timeoutSeconds: number;
  /** In [0, 1): where this holder's attempts lie within the spread. */
  readonly jitter: number;
  /** The caller's own interval in seconds. */
  readonly renewEvery?: number | undefined;
  /** Whether the quota allows renewals that come more often than they must. */
  readonly hasAmpleQuota: boolean;
}

/** The renewal plan of one acquisition. */
export class RenewalPlan {
  readonly #start: RenewalPlanStart;
  readonly #end: number;
  #deadline: number;
  #nextAttempt: number;
  #failures = 0;

  constructor(start: RenewalPlanStart) {
    this.#start = start;
    this.#end = start.acquiredAt + ACQUISITION_SECONDS_MAX;
    this.#deadline = Math.min(start.deadline, this.#end);
    this.#nextAttempt = this.#firstAttempt(this.#deadline - start.ttlSeconds, start.hasAmpleQuota);
  }

  /** The local deadline: do not rely on the lease after it. */
  get deadline(): number {
    return this.#deadline;
  }

  /** The action at `now`. */
  nextAction(now: number): RenewalAction {
    if (now >= this.#deadline) return { kind: "lost" };
    if (this.#lastAttempt <= now) return { kind: "wait", until: this.#deadline };
    if (now < this.#nextAttempt) return { kind: "wait", until: Math.min(this.#nextAttempt, this.#lastAttempt) };
    const left = this.#deadline - now;
    return {
      kind: "renew",
      timeoutSeconds: Math.min(this.#start.timeoutSeconds, left, Math.max(ATTEMPT_SECONDS_MIN, left / 2)),
    };
  }

  /** Records a renewal confirmed until `deadline`. False if it came too late and changes nothing. */
  renewed(deadline: number, now: number, hasAmpleQuota: boolean): boolean {
    if (now >= this.#deadline) return false;
    this.#failures = 0;
    this.#nextAttempt = this.#firstAttempt(deadline - this.#start.ttlSeconds, hasAmpleQuota);
    this.#deadline = Math.min(deadline, this.#end);
    return true;
  }

  /** Records a failed renewal and plans the next attempt. */
  failed(now: number, retryAfter: number | null): void {
    const backoff = Math.min(
      RENEWAL_BACKOFF_SECONDS_MIN * 2 ** this.#failures,
      RENEWAL_BACKOFF_SECONDS_MAX,
      this.#start.ttlSeconds / 10,
    );
    this.#failures = Math.min(this.#failures + 1, FAILURES_COUNTED_MAX);
    const pause = Math.max(backoff * this.#spread, retryAfter ?? 0);
    this.#nextAttempt = now + Math.max(Math.min(pause, (this.#lastAttempt - now) / 2), RENEWAL_BACKOFF_SECONDS_MIN);
  }

  get #lastAttempt(): number {
    return this.#deadline - MARGIN_SECONDS;
  }

  get #spread(): number {
    return 1 + JITTER_FRACTION * (2 * this.#start.jitter - 1);
  }

  #firstAttempt(sentAt: number, hasAmpleQuota: boolean): number {
    const { ttlSeconds, renewEvery, jitter } = this.#start;
    const shorter = 1 - JITTER_FRACTION * jitter;
    if (renewEvery !== undefined) return sentAt + renewEvery * shorter;
    const third = ttlSeconds * RENEW_AT_FRACTION * this.#spread;
    return sentAt + (hasAmpleQuota ? Math.min(third, RENEW_SECONDS_MAX * shorter) : third);
  }
}
