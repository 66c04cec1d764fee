/**
 * The verbs, `client.locks`. Each takes its arguments apart before anything is sent: a mistake in them rejects with
 * `TypeError` or `RangeError`. Everything else that can happen is in what it resolves with.
 */

import type { Clock } from "./clock.ts";
import { ConflictError, contentionReason, type VolcanoError } from "./errors.ts";
import { type Exclusive, exclusiveIn } from "./features/exclusive.ts";
import { type LeadResult, leading } from "./features/leader.ts";
import { type Leadership, Watch } from "./features/watch.ts";
import { type BlockEnd, runBlock, type WithLockResult } from "./holding/block.ts";
import type { LockGuard } from "./holding/guard.ts";
import { Wait } from "./protocol/acquire_wait.ts";
import { type AnyLease, checkedLeaseOf, Lease, type LockState, type UncertainLease } from "./protocol/lease.ts";
import type { LockView, Page } from "./protocol/lock_view.ts";
import {
  checkedChoice,
  checkedFunction,
  checkedHoldAtLeast,
  checkedKey,
  checkedPrefix,
  checkedSignal,
  checkedTtl,
  checkedWait,
  givenOrNewUuid,
  newUuid,
  optionsOf,
} from "./protocol/messages.ts";
import {
  ATTEMPTS_MAX,
  type Flows,
  GIVE_UP_SECONDS_MAX,
  type Granted,
  type Owner,
  type Pace,
} from "./protocol/operations.ts";
import type {
  AcquireOptions,
  AcquireResult,
  LeadOptions,
  LeaseResult,
  ListOptions,
  ReleaseResult,
  RenewOptions,
  RequestOptions,
  StateResult,
  ViewResult,
  WatchOptions,
  WithLockOptions,
} from "./protocol/options.ts";

const STATES = ["all", "held", "free"] as const;

/** The verbs of one client. */
export class Locks {
  /**
   * Makes of a function one of which every call holds the lock (see `ExclusiveOptions`). The key is a text, or a function
   * of the call's arguments. The call resolves with what the function returned; it rejects with what that threw, with the
   * loss of the lock, or with why it could not be had.
   */
  readonly exclusive: Exclusive = exclusiveIn((key, options, body) => this.#block(key, options, body));
  readonly #flows: Flows;
  readonly #clock: Clock;
  readonly #timeoutSeconds: number;
  /** On this client's clock, so not the lease's own: another client may have another. */
  readonly #deadlines: WeakMap<AnyLease, number> = new WeakMap();

  /** Made by `Client`. */
  constructor(flows: Flows, clock: Clock, timeoutSeconds: number) {
    this.#flows = flows;
    this.#clock = clock;
    this.#timeoutSeconds = timeoutSeconds;
  }

  /**
   * A lease of `ttl` seconds. `acquired: false` without an error is contention: another caller has the lock, still so at
   * the end of `wait`; or the lease of this token has ended. `reason` says which.
   *
   * With a `token` of your own and without `wait`, a time-out, a transport failure or a 503 sends no release. The result
   * then has an `UncertainLease` beside its `error`: acquire again with the same `token` and `requestId` to recover it.
   */
  async acquire(key: string, options: AcquireOptions): Promise<AcquireResult> {
    let uncertain: UncertainLease | null = null;
    const acquire = this.#acquisition(key, options, (lease) => {
      uncertain = lease;
    });
    try {
      return { acquired: true, lease: (await acquire()).lease, error: null };
    } catch (error) {
      if (!(error instanceof ConflictError)) return { acquired: false, lease: uncertain, error: error as VolcanoError };
      return { acquired: false, lease: null, error: null, reason: contentionReason(error) };
    }
  }

  /**
   * The lease of the lock `key`, now ending `ttl` seconds from now. `LockOwnershipLostError`: it is not this holder's any
   * more.
   *
   * Never renew a block's lease by hand: the block does not learn of it. Never shorten a lease after a renewal that
   * timed out: a late duplicate of the shorter renewal may still land, after a longer one, and end the lease before
   * the deadline you go by.
   */
  async renew(key: string, lease: AnyLease, options: RenewOptions = {}): Promise<LeaseResult> {
    const owner = checkedLeaseOf(key, lease);
    const ttlSeconds = optionsOf(options).ttl === undefined ? owner.ttlSeconds : checkedTtl(options.ttl);
    const deadline = this.#deadlines.get(owner) ?? Number.NEGATIVE_INFINITY;
    // Worth waiting for until the lease's deadline; past it, and of a lease from elsewhere, only the service can tell.
    const until = deadline > this.#clock.now() ? deadline : Number.POSITIVE_INFINITY;
    const pace = { ...this.#pace(options), until };
    try {
      const granted = await this.#flows.renew(owner, ttlSeconds, pace);
      return { lease: this.#leaseOf(owner, ttlSeconds, granted), error: null };
    } catch (error) {
      return { lease: null, error: error as VolcanoError };
    }
  }

  /** Frees the lock `key`, by the lease's token alone. */
  async release(key: string, lease: AnyLease, options: RequestOptions = {}): Promise<ReleaseResult> {
    const owner = checkedLeaseOf(key, lease);
    const pace = this.#pace(options);
    return told(() => this.#flows.release(owner, pace));
  }

  /** Whether the lock is held, until when, and its fencing token. */
  async get(key: string, options: RequestOptions = {}): Promise<StateResult> {
    const name = checkedKey(key);
    const pace = this.#pace(options);
    try {
      const term = await this.#flows.get(name, pace);
      const { expiresAt, fencingToken } = term ?? { expiresAt: null, fencingToken: null };
      const state = Object.freeze({ held: term !== null, expiresAt, fencingToken });
      return { state: state as LockState, error: null };
    } catch (error) {
      return { state: null, error: error as VolcanoError };
    }
  }

  /** Frees the lock whoever holds it. Its holder is told of the loss at its next renewal. */
  async forceRelease(key: string, options: RequestOptions = {}): Promise<ReleaseResult> {
    const name = checkedKey(key);
    const pace = this.#pace(options);
    return told(() => this.#flows.forceRelease(name, pace));
  }

  /**
   * Holds the lock, renewed in the background, while `body` runs, and releases it then. `body` gets a guard with
   * `signal` and `lease`; it should stop when `signal` aborts, which means that the lock is lost. An error of the body
   * comes back as `error`; so does a loss, beside what the body returned as `data`.
   *
   * `options.signal` gives up the acquire, and once the body runs it aborts the body's signal. `options.token` and
   * `options.requestId` belong to the acquire alone.
   */
  async withLock<T>(
    key: string,
    options: WithLockOptions,
    body: (guard: LockGuard) => T | PromiseLike<T>,
  ): Promise<WithLockResult<T>> {
    return (await this.#block(key, options, checkedFunction("body", body))).result;
  }

  /**
   * Waits for the lock for ever, runs `run` while it holds it, and does so again whenever it was lost: its `signal`
   * aborts then, and the next campaign begins once it has ended. Resolves with what `run` returned while leading, with
   * what it threw, or with why the lock cannot be asked for any more. `options.signal` ends the campaign, or aborts the
   * signal of the run.
   */
  async lead<T>(
    key: string,
    options: LeadOptions,
    run: (guard: LockGuard) => T | PromiseLike<T>,
  ): Promise<LeadResult<T>> {
    const { ttl, signal } = optionsOf(options);
    checkedFunction("run", run);
    const campaign = (): Promise<BlockEnd<T>> => this.#block(key, { ttl, signal, wait: Number.POSITIVE_INFINITY }, run);
    return leading(campaign);
  }

  /**
   * The changes of who holds the lock: first how it is now, then each change. It goes on over lost connections and
   * restarted servers; what cannot get better (a wrong key, no permission) is thrown as a `VolcanoError`, and the reason
   * of `options.signal` once that aborts. Leaving the loop ends the request.
   */
  watch(key: string, options: WatchOptions = {}): AsyncIterableIterator<Leadership> {
    const signal = checkedSignal(optionsOf(options).signal);
    const means = { flows: this.#flows, clock: this.#clock, timeoutSeconds: this.#timeoutSeconds };
    return new Watch(means, checkedKey(key), signal);
  }

  /** What there is to see of the lock: who holds it, since when, until when, and how many wait. */
  async view(key: string, options: RequestOptions = {}): Promise<ViewResult> {
    const name = checkedKey(key);
    const pace = this.#pace(options);
    try {
      return { view: await this.#flows.view(name, pace), error: null };
    } catch (error) {
      return { view: null, error: error as VolcanoError };
    }
  }

  /**
   * The project's locks whose keys begin with `prefix`, in the order of their keys; each page is asked for when the
   * loop comes to it. Failures are thrown as a `VolcanoError`.
   */
  list(prefix = "", options: ListOptions = {}): AsyncIterableIterator<LockView> {
    const begin = checkedPrefix(prefix);
    const { state = "all" } = optionsOf(options);
    this.#pace(options);
    return this.#rows(begin, checkedChoice("state", state, STATES), () => this.#pace(options));
  }

  async *#rows(prefix: string, state: string, pace: () => Pace): AsyncGenerator<LockView, void> {
    for (let cursor: string | null = null; ; ) {
      const { views, nextCursor }: Page = await this.#flows.page(prefix, state, cursor, pace());
      yield* views;
      if (nextCursor === null) return;
      cursor = nextCursor;
    }
  }

  async #block<T>(
    key: string,
    options: WithLockOptions,
    body: (guard: LockGuard) => T | PromiseLike<T>,
  ): Promise<BlockEnd<T>> {
    return runBlock(
      {
        acquire: this.#acquisition(key, options),
        holdAtLeastSeconds: checkedHoldAtLeast(options.holdAtLeast),
        signal: options.signal,
        flows: this.#flows,
        clock: this.#clock,
        timeoutSeconds: this.#timeoutSeconds,
        prolonged: (lease, granted) => this.#leaseOf(lease, lease.ttlSeconds, granted),
      },
      body,
    );
  }

  /** `onUncertain` gets the lease that the caller can recover after a failure, with its own token and without a wait. */
  #acquisition(
    key: string,
    options: AcquireOptions,
    onUncertain?: (lease: UncertainLease) => void,
  ): () => Promise<{ lease: Lease; granted: Granted }> {
    const name = checkedKey(key);
    const ttlSeconds = checkedTtl(optionsOf(options).ttl);
    const ownToken = (options.token ?? null) !== null;
    const token = givenOrNewUuid("token", options.token);
    const waitSeconds = checkedWait(options.wait);
    const pace = this.#pace(options);
    const owner = { key: name, token };
    return async () => {
      if (waitSeconds > 0) {
        const won = await new Wait(this.#flows, this.#clock, owner, ttlSeconds, waitSeconds, pace).won();
        return { lease: this.#leaseOf({ key: name, token: won.token }, ttlSeconds, won.granted), granted: won.granted };
      }
      const recover = (): void => onUncertain?.(this.#uncertainLeaseOf(owner, ttlSeconds));
      const recovery = ownToken && onUncertain !== undefined ? recover : undefined;
      const granted = await this.#flows.acquire(owner, ttlSeconds, pace, recovery);
      return { lease: this.#leaseOf(owner, ttlSeconds, granted), granted };
    };
  }

  #pace(options: RequestOptions): Pace {
    const { requestId, signal } = optionsOf(options);
    return {
      requestId: givenOrNewUuid("requestId", requestId),
      signal: checkedSignal(signal),
      timeoutSeconds: this.#timeoutSeconds,
      attempts: ATTEMPTS_MAX,
    };
  }

  #leaseOf({ key, token }: Owner, ttlSeconds: number, granted: Granted): Lease {
    const { expiresAt, fencingToken, deadline } = granted;
    const lease = new Lease({ key, token, ttlSeconds, expiresAt, fencingToken, dispose: this.#dispose });
    this.#deadlines.set(lease, deadline);
    return lease;
  }

  #uncertainLeaseOf({ key, token }: Owner, ttlSeconds: number): UncertainLease {
    return new Lease({ key, token, ttlSeconds, expiresAt: null, fencingToken: null, dispose: this.#dispose });
  }

  /** `await using`: bounded and quiet. */
  readonly #dispose = async (lease: AnyLease): Promise<void> => {
    const timeoutSeconds = Math.min(this.#timeoutSeconds, GIVE_UP_SECONDS_MAX);
    await told(() => this.#flows.release(lease, { requestId: newUuid(), timeoutSeconds, attempts: ATTEMPTS_MAX }));
  };
}

async function told(ask: () => Promise<void>): Promise<ReleaseResult> {
  try {
    await ask();
    return { error: null };
  } catch (error) {
    return { error: error as VolcanoError };
  }
}
