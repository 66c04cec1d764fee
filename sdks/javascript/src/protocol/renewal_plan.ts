/**
 * When to renew, as a plan without a clock, a timer or a socket.
 *
 * Ask `nextStep(now)` and do what it says: `renew` now, `wait` until an instant, or take the lease for `lost`. Tell it
 * the outcome with `renewed` or `failed`, and ask again.
 *
 * SDK-3: the first try comes at about a third of the TTL, moved by jitter so that many holders do not ask in step. A
 * failed try is repeated with back-off while the lease is safely alive; a `Retry-After` is honoured, but never past
 * the half of what is left, so that a healthy holder always has another try.
 * SDK-4: the deadline moves only on a confirmed answer, to `time that request was sent + ttl`, and never past the
 * absolute end of one acquisition. Once it has passed, nothing brings the lease back.
 *
 * Not promised: that a try in the last second would be refused. The service refuses renewals there by its own clock;
 * the plan merely stops asking.
 */

export const ACQUISITION_SECONDS_MAX = 7_776_000;
export const RENEW_AT_FRACTION: number = 1 / 3;
export const JITTER_FRACTION = 0.1;
export const MARGIN_SECONDS = 1;
export const BACK_OFF_SECONDS_MIN = 0.2;
export const BACK_OFF_SECONDS_MAX = 10;
export const TRY_SECONDS_MIN = 1;
const FAILURES_COUNTED_MAX = 32;

/** What to do: send a renewal and give it so long; nothing before `until`; or stop, the deadline has passed. */
export type Step =
  | { readonly kind: "renew"; readonly timeoutSeconds: number }
  | { readonly kind: "wait"; readonly until: number }
  | { readonly kind: "lost" };

/** How an acquisition begins. Instants are seconds on the client's clock. */
export interface HeartbeatStart {
  readonly ttlSeconds: number;
  /** The time before the acquire was sent. */
  readonly acquiredAt: number;
  readonly deadline: number;
  /** The most one request may take. */
  readonly timeoutSeconds: number;
  /** In [0, 1): this holder's place in the spread. */
  readonly jitter: number;
}

/** The plan of one acquisition. */
export class Heartbeat {
  readonly #start: HeartbeatStart;
  readonly #end: number;
  #deadline: number;
  #due: number;
  #failures = 0;

  constructor(start: HeartbeatStart) {
    this.#start = start;
    this.#end = start.acquiredAt + ACQUISITION_SECONDS_MAX;
    this.#deadline = Math.min(start.deadline, this.#end);
    this.#due = this.#firstTry(this.#deadline - start.ttlSeconds);
  }

  /** The instant after which the lease must not be relied on. */
  get deadline(): number {
    return this.#deadline;
  }

  /** What to do at `now`. */
  nextStep(now: number): Step {
    if (now >= this.#deadline) return { kind: "lost" };
    if (this.#lastTry <= now || this.#deadline >= this.#end) return { kind: "wait", until: this.#deadline };
    if (now < this.#due) return { kind: "wait", until: Math.min(this.#due, this.#lastTry) };
    const left = this.#deadline - now;
    return {
      kind: "renew",
      timeoutSeconds: Math.min(this.#start.timeoutSeconds, left, Math.max(TRY_SECONDS_MIN, left / 2)),
    };
  }

  /** A renewal was confirmed, good until `deadline`. False: it came too late and changes nothing. */
  renewed(deadline: number, now: number): boolean {
    if (now >= this.#deadline) return false;
    this.#failures = 0;
    this.#due = this.#firstTry(deadline - this.#start.ttlSeconds);
    this.#deadline = Math.min(deadline, this.#end);
    return true;
  }

  /** A renewal was not confirmed; plan the next try. */
  failed(now: number, retryAfter: number | null): void {
    const backOff = Math.min(
      BACK_OFF_SECONDS_MIN * 2 ** this.#failures,
      BACK_OFF_SECONDS_MAX,
      this.#start.ttlSeconds / 10,
    );
    this.#failures = Math.min(this.#failures + 1, FAILURES_COUNTED_MAX);
    const pause = Math.max(backOff * this.#spread, retryAfter ?? 0);
    this.#due = now + Math.max(Math.min(pause, (this.#lastTry - now) / 2), BACK_OFF_SECONDS_MIN);
  }

  get #lastTry(): number {
    return this.#deadline - MARGIN_SECONDS;
  }

  get #spread(): number {
    return 1 + JITTER_FRACTION * (2 * this.#start.jitter - 1);
  }

  #firstTry(sentAt: number): number {
    return sentAt + this.#start.ttlSeconds * RENEW_AT_FRACTION * this.#spread;
  }
}
