/**
 * Waits for a lock: one queued waiter, kept over as many acquire requests as needed (SDK-11).
 *
 * The service holds each request for a slice of the wait. The client repeats the request with the same owner token, which
 * keeps its position in the queue, through lost connections, 5xx and 429, until the lock is granted or the wait ends. A
 * cancelled wait sends a release, which leaves the queue.
 *
 * The TTL counts from the grant, but the client cannot know whether the grant came at the start or at the end of a long
 * request. So if the response took longer than a third of the TTL, one renewal confirms the lease, and the deadline
 * counts from the renewal. A lease that cannot be confirmed, or that expired before its response arrived, is released,
 * and the wait continues with a new token.
 *
 * Limits: a client that sends no request for longer than the service keeps its waiter loses its position. Where the runtime
 * caps connections, waits beyond its share poll with back-off instead of queueing (case 78).
 */

import { type Clock, waitUntil } from "../clock.ts";
import {
  attachSuppressed,
  LockHeldError,
  LockOwnershipLostError,
  TransportError,
  type VolcanoError,
} from "../errors.ts";
import { takeLongRequest } from "../http/long_requests.ts";
import { newUuid } from "./arguments.ts";
import { Backoff, isRetryable } from "./backoff.ts";
import { type CallOptions, type Grant, mayHaveBeenServed, type Operations, type Owner } from "./operations.ts";

export const WAIT_SLICE_SECONDS = 50;
/** A response that took longer than this part of the TTL is confirmed. */
export const CONFIRM_AFTER_FRACTION: number = 1 / 3;
/** If "held" comes before this part of the requested slice has passed, the client backs off. */
export const WAITED_FRACTION = 0.5;

/** The grant at the end of a wait, and the owner token that holds it. */
export interface WaitedGrant {
  readonly token: string;
  readonly grant: Grant;
}

/** Waits up to `waitSeconds` (may be infinite) for the lease of `owner`. */
export class AcquireWait {
  readonly #operations: Operations;
  readonly #clock: Clock;
  readonly #ttlSeconds: number;
  readonly #call: CallOptions;
  readonly #until: number;
  readonly #backoff = new Backoff();
  #owner: Owner;
  #requests = 0;
  /** Whether the token may hold the lock without our knowledge. */
  #uncertain = false;

  constructor(
    operations: Operations,
    clock: Clock,
    owner: Owner,
    ttlSeconds: number,
    waitSeconds: number,
    call: CallOptions,
  ) {
    this.#operations = operations;
    this.#clock = clock;
    this.#owner = owner;
    this.#ttlSeconds = ttlSeconds;
    this.#call = call;
    this.#until = clock.now() + waitSeconds;
  }

  /** Runs the wait; call it once. Rejects with a `VolcanoError`, after releasing what the token may hold (SDK-2). */
  run(): Promise<WaitedGrant> {
    const { log } = this.#operations;
    log.debug(`wait for ${this.#owner.key}`);
    return log.outcome(`wait for ${this.#owner.key}`, this.#run());
  }

  async #run(): Promise<WaitedGrant> {
    try {
      for (;;) {
        const waited = await this.#attempt();
        if (waited !== null) return waited;
      }
    } catch (error) {
      const mayBeQueued = this.#requests > 0 && this.#call.signal?.aborted;
      if (this.#uncertain || mayBeQueued)
        attachSuppressed(error, await this.#operations.releaseBestEffort(this.#owner));
      throw error;
    }
  }

  get #secondsLeft(): number {
    return Math.max(0, this.#until - this.#clock.now());
  }

  get #continues(): boolean {
    return this.#secondsLeft > 0 && !this.#call.signal?.aborted;
  }

  /** Sends one acquire. Resolves with null if the next one may be sent at once; throws what ends the wait. */
  async #attempt(): Promise<WaitedGrant | null> {
    const giveBack = takeLongRequest();
    const waitSeconds = giveBack === null ? 0 : Math.min(WAIT_SLICE_SECONDS, this.#secondsLeft);
    const sentAt = this.#clock.now();
    let grant: Grant;
    try {
      if (!this.#call.signal?.aborted) this.#requests += 1;
      grant = await this.#operations.acquireOnce(this.#owner, this.#ttlSeconds, waitSeconds, this.#call);
    } catch (error) {
      // A grant whose response was lost has ended.
      if (error instanceof LockOwnershipLostError && this.#uncertain && this.#continues) return this.#startOver();
      this.#uncertain ||= mayHaveBeenServed(error);
      const seconds = this.#clock.now() - sentAt;
      giveBack?.();
      await this.#backOff(error as VolcanoError, () => this.#pauseAfter(error as VolcanoError, seconds, waitSeconds));
      return null;
    } finally {
      giveBack?.();
    }
    this.#backoff.reset();
    if (this.#clock.now() - sentAt <= this.#ttlSeconds * CONFIRM_AFTER_FRACTION) {
      return { token: this.#owner.token, grant };
    }
    return this.#confirm();
  }

  #pauseAfter(error: VolcanoError, seconds: number, waitSeconds: number): number {
    if (error instanceof LockHeldError) {
      if (waitSeconds === 0 || seconds < waitSeconds * WAITED_FRACTION) return this.#backoff.next(null);
      this.#backoff.reset();
      return 0;
    }
    if (this.#requests === 1 && error instanceof TransportError) return 0;
    return this.#backoff.next(error.retryAfter);
  }

  /** Confirms the grant of a late response by a renewal. */
  async #confirm(): Promise<WaitedGrant | null> {
    const { token } = this.#owner;
    const until = this.#clock.now() + this.#ttlSeconds;
    const call = { ...this.#call, requestId: newUuid(), attempts: 1, until };
    this.#uncertain = true;
    try {
      return { token, grant: await this.#operations.renew(this.#owner, this.#ttlSeconds, call) };
    } catch (error) {
      if (!this.#continues) throw error;
      await this.#startOver();
      if (error instanceof LockOwnershipLostError) return null;
      await this.#backOff(error as VolcanoError, () => this.#backoff.next((error as VolcanoError).retryAfter));
      return null;
    }
  }

  /** Releases what the token may still hold. The next request has a new token, since this one may be retired. */
  async #startOver(): Promise<null> {
    await this.#operations.releaseBestEffort(this.#owner);
    this.#owner = { key: this.#owner.key, token: newUuid() };
    this.#uncertain = false;
    return null;
  }

  /** Pauses for `pause()`. Throws `error` if a retry is pointless or the wait would end during the pause. */
  async #backOff(error: VolcanoError, pause: () => number): Promise<void> {
    const retryable = isRetryable(error) || error instanceof LockHeldError;
    if (!this.#continues || !retryable) throw error;
    const seconds = pause();
    if (seconds >= this.#secondsLeft) throw error;
    if (seconds > 0) await waitUntil(this.#clock, this.#clock.now() + seconds, this.#call.signal);
  }
}
