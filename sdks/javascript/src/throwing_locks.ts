/**
 * The verbs without envelopes: they resolve with the value and reject with the error (SDK-24).
 *
 * A result that no code looks at hides the failure of a scheduled job (case 65); a rejection does not.
 */

import type { BlockBody, BlockOutcome } from "./holding/block.ts";
import type { Locks } from "./locks.ts";
import type {
  AcquireOptions,
  ForceReleaseOptions,
  LeadOptions,
  RenewOptions,
  RequestOptions,
  WithLockOptions,
} from "./options.ts";
import type { AnyLease, Lease, LockState } from "./protocol/lease.ts";
import type { LockView } from "./protocol/lock_view.ts";

/** What the throwing verbs need beside the verbs with envelopes, whose results lack the error of contention. */
interface Calls {
  acquire(key: string, options: AcquireOptions): Promise<Lease>;
  runBlock<T>(key: string, options: WithLockOptions, body: BlockBody<T>): Promise<BlockOutcome<T>>;
  lead<T>(key: string, options: LeadOptions, run: BlockBody<T>): Promise<BlockOutcome<T>>;
}

/** The verbs of one client that reject. `exclusive`, `watch`, `list` and `history` are those of `client.locks`. */
export class ThrowingLocks {
  readonly exclusive: Locks["exclusive"];
  readonly watch: Locks["watch"];
  readonly list: Locks["list"];
  readonly history: Locks["history"];
  readonly #locks: Locks;
  readonly #calls: Calls;

  /** Created by `client.locks.throwOnError()`. */
  constructor(locks: Locks, calls: Calls) {
    this.#locks = locks;
    this.#calls = calls;
    this.exclusive = locks.exclusive;
    this.watch = (key, options) => locks.watch(key, options);
    this.list = (prefix, options) => locks.list(prefix, options);
    this.history = (key, options) => locks.history(key, options);
  }

  /**
   * Resolves with the lease. Rejects with a `LockHeldError` if another caller holds the lock.
   *
   * @example
   * ```ts
   * const lease = await client.locks.throwOnError().acquire("migration", { ttl: 60 });
   * ```
   */
  acquire(key: string, options: AcquireOptions): Promise<Lease> {
    return this.#calls.acquire(key, options);
  }

  /** Resolves with the renewed lease. */
  async renew(key: string, lease: AnyLease, options?: RenewOptions): Promise<Lease> {
    const result = await this.#locks.renew(key, lease, options);
    if (result.error !== null) throw result.error;
    return result.lease;
  }

  async release(key: string, lease: AnyLease, options?: RequestOptions): Promise<void> {
    const { error } = await this.#locks.release(key, lease, options);
    if (error !== null) throw error;
  }

  /** Resolves with the state. */
  async get(key: string, options?: RequestOptions): Promise<LockState> {
    const result = await this.#locks.get(key, options);
    if (result.error !== null) throw result.error;
    return result.state;
  }

  async forceRelease(key: string, options?: ForceReleaseOptions): Promise<void> {
    const { error } = await this.#locks.forceRelease(key, options);
    if (error !== null) throw error;
  }

  /** Resolves with the view. */
  async view(key: string, options?: RequestOptions): Promise<LockView> {
    const result = await this.#locks.view(key, options);
    if (result.error !== null) throw result.error;
    return result.view;
  }

  /**
   * Resolves with what `body` returned. Rejects with what it threw, whatever that is, with the loss of the lock, or with
   * the reason why the lock was not acquired: a `LockHeldError` if another caller holds it.
   */
  async withLock<T>(key: string, options: WithLockOptions, body: BlockBody<T>): Promise<T> {
    return resultOf(await this.#calls.runBlock(key, options, body));
  }

  /** Resolves with what `run` returned while it held the lock. Rejects with what it threw or what ended the campaign. */
  async lead<T>(key: string, options: LeadOptions, run: BlockBody<T>): Promise<T> {
    return resultOf(await this.#calls.lead(key, options, run));
  }
}

function resultOf<T>({ result, rejection }: BlockOutcome<T>): T {
  if (rejection !== null) throw rejection.reason;
  return result.data as T;
}
