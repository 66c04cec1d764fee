/**
 * Acquiring a lock that may be held for a while: a place in its line, kept over as many requests as it takes (SDK-11).
 *
 * Each request lets the service keep it for a slice of the wait; the same owner token asks again and takes its own place
 * over, through lost connections, 5xx and 429, until the lock is granted or the time is up. Whoever is made to stop
 * waiting gives the place back.
 *
 * A lease counts from its grant, which may have come at the end of a long request or at its begin, and who asked cannot
 * tell. So an answer that took longer than a third of the TTL is confirmed by one renewal before anybody gets the lease,
 * and the deadline counts from that one. A lease that cannot be confirmed, or that ran out unheard of, is given back, and
 * waited for anew with a new token.
 *
 * Not promised: a place in the order of those who began to wait, once this client was silent for longer than the service
 * keeps its place.
 */

import { type Clock, restUntil } from "../clock.ts";
import { attach, LockHeldError, LockOwnershipLostError, TransportError, type VolcanoError } from "../errors.ts";
import { Rests, worthARest } from "./backoff.ts";
import { newUuid } from "./messages.ts";
import { type Flows, type Granted, mayHaveBeenServed, type Owner, type Pace } from "./operations.ts";

export const WAIT_SLICE_SECONDS = 50;
/** An answer later than this part of the TTL is confirmed. */
export const CONFIRM_AFTER_FRACTION: number = 1 / 3;
/** "Held" sooner than after this part of what was asked for is followed by a rest. */
export const WAITED_FRACTION = 0.5;

/** A lease got by waiting, and the token that owns it. */
export interface Won {
  readonly token: string;
  readonly granted: Granted;
}

/** A wait of `waitSeconds` (may be infinite) for the lease that `owner` asks for. */
export class Wait {
  readonly #flows: Flows;
  readonly #clock: Clock;
  readonly #ttlSeconds: number;
  readonly #pace: Pace;
  readonly #until: number;
  readonly #rests = new Rests();
  #owner: Owner;
  #requests = 0;
  /** Whether the token may hold the lock, for all that is known. */
  #uncertain = false;

  constructor(flows: Flows, clock: Clock, owner: Owner, ttlSeconds: number, waitSeconds: number, pace: Pace) {
    this.#flows = flows;
    this.#clock = clock;
    this.#owner = owner;
    this.#ttlSeconds = ttlSeconds;
    this.#pace = pace;
    this.#until = clock.now() + waitSeconds;
  }

  /** The lease; once. Rejects with a `VolcanoError`, after what the token may have got was given back (SDK-2). */
  async won(): Promise<Won> {
    try {
      for (;;) {
        const won = await this.#try();
        if (won !== null) return won;
      }
    } catch (error) {
      const leaves = this.#requests > 0 && this.#pace.signal?.aborted;
      if (this.#uncertain || leaves) attach(error, await this.#flows.giveUp(this.#owner));
      throw error;
    }
  }

  get #left(): number {
    return Math.max(0, this.#until - this.#clock.now());
  }

  get #goesOn(): boolean {
    return this.#left > 0 && !this.#pace.signal?.aborted;
  }

  /** The lease, or null if it is to be asked for again, now. Throws what ends the wait. */
  async #try(): Promise<Won | null> {
    const waitSeconds = Math.min(WAIT_SLICE_SECONDS, this.#left);
    const askedAt = this.#clock.now();
    let granted: Granted;
    try {
      if (!this.#pace.signal?.aborted) this.#requests += 1;
      granted = await this.#flows.acquireOnce(this.#owner, this.#ttlSeconds, waitSeconds, this.#pace);
    } catch (error) {
      // What an answer that nobody got had granted is over.
      if (error instanceof LockOwnershipLostError && this.#uncertain && this.#goesOn) return this.#anew();
      this.#uncertain ||= mayHaveBeenServed(error);
      const seconds = this.#clock.now() - askedAt;
      await this.#rest(error as VolcanoError, () => this.#pauseAfter(error as VolcanoError, seconds, waitSeconds));
      return null;
    }
    this.#rests.reset();
    if (this.#clock.now() - askedAt <= this.#ttlSeconds * CONFIRM_AFTER_FRACTION) {
      return { token: this.#owner.token, granted };
    }
    return this.#confirmed();
  }

  #pauseAfter(error: VolcanoError, seconds: number, waitSeconds: number): number {
    if (error instanceof LockHeldError) {
      if (seconds < waitSeconds * WAITED_FRACTION) return this.#rests.next(null);
      this.#rests.reset();
      return 0;
    }
    if (this.#requests === 1 && error instanceof TransportError) return 0;
    return this.#rests.next(error.retryAfter);
  }

  /** What a late answer granted, if it is still there. */
  async #confirmed(): Promise<Won | null> {
    const { token } = this.#owner;
    const until = this.#clock.now() + this.#ttlSeconds;
    const pace = { ...this.#pace, requestId: newUuid(), attempts: 1, until };
    this.#uncertain = true;
    try {
      return { token, granted: await this.#flows.renew(this.#owner, this.#ttlSeconds, pace) };
    } catch (error) {
      if (!this.#goesOn) throw error;
      await this.#anew();
      if (error instanceof LockOwnershipLostError) return null;
      await this.#rest(error as VolcanoError, () => this.#rests.next((error as VolcanoError).retryAfter));
      return null;
    }
  }

  /** Gives back what the token may still hold; the next request has another, since this one may be retired. */
  async #anew(): Promise<null> {
    await this.#flows.giveUp(this.#owner);
    this.#owner = { key: this.#owner.key, token: newUuid() };
    this.#uncertain = false;
    return null;
  }

  /** Rests for `pause()`, or throws `error` where asking again is worth nothing or the wait is over before that. */
  async #rest(error: VolcanoError, pause: () => number): Promise<void> {
    const again = worthARest(error) || error instanceof LockHeldError;
    if (!this.#goesOn || !again) throw error;
    const seconds = pause();
    if (seconds >= this.#left) throw error;
    if (seconds > 0) await restUntil(this.#clock, this.#clock.now() + seconds, this.#pace.signal);
  }
}
