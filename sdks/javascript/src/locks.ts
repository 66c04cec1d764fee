/**
 * The verbs of `client.locks`. Each checks its arguments before it sends anything: an invalid one rejects with a
 * `TypeError` or `RangeError`. Every other outcome is part of the resolved value.
 */

import type { Clock } from "./clock.ts";
import { ConflictError, contentionReason, type VolcanoError } from "./errors.ts";
import { createExclusive, type Exclusive } from "./features/exclusive.ts";
import { type LeadResult, runCampaigns } from "./features/leader.ts";
import { type Leadership, Watch } from "./features/watch.ts";
import { type BlockBody, type BlockOutcome, runBlock, type WithLockResult } from "./holding/block.ts";
import { OpenBlocks } from "./holding/reentrancy.ts";
import {
  type AcquireOptions,
  type AcquireResult,
  type ForceReleaseOptions,
  type HistoryOptions,
  type LeadOptions,
  type LeaseResult,
  type ListOptions,
  OPTION_NAMES,
  type ReleaseResult,
  type RenewOptions,
  type RequestOptions,
  type StateResult,
  type ViewResult,
  type WatchOptions,
  type WithLockOptions,
} from "./options.ts";
import { AcquireWait } from "./protocol/acquire_wait.ts";
import {
  checkedBody,
  checkedChoice,
  checkedFencingToken,
  checkedHoldAtLeast,
  checkedInstant,
  checkedKey,
  checkedOptions,
  checkedPrefix,
  checkedReason,
  checkedRenewEvery,
  checkedSignal,
  checkedTtl,
  checkedWait,
  givenOrNewUuid,
  newUuid,
  type OptionNames,
} from "./protocol/arguments.ts";
import type { HistoryPage, HoldEntry } from "./protocol/hold_entry.ts";
import { type AnyLease, checkedLeaseOf, Lease, type LockState, type UncertainLease } from "./protocol/lease.ts";
import type { LockView, ViewPage } from "./protocol/lock_view.ts";
import {
  ATTEMPTS_MAX,
  BEST_EFFORT_RELEASE_SECONDS_MAX,
  type CallOptions,
  type ConfirmedLease,
  type Grant,
  lockPath,
  type Operations,
  type Owner,
} from "./protocol/operations.ts";
import { ThrowingLocks } from "./throwing_locks.ts";

const LIST_STATES = ["all", "held", "free"] as const;
const HISTORY_PARAMETERS = [
  ["at", "at"],
  ["since", "from"],
  ["before", "to"],
] as const;

/** The verbs of one client. */
export class Locks {
  /**
   * Wraps a function so that each call holds the lock (see `ExclusiveOptions`). The key is a string, or a function of the
   * call's arguments. A call resolves with the function's result. It rejects with the function's error, with the loss of
   * the lock, or with the reason why the lock was not acquired.
   *
   * @example
   * ```ts
   * const report = client.locks.exclusive((day: string) => `report-${day}`, { ttl: 60, onHeld: "skip" }, makeReport);
   * await report("2026-07-20"); // undefined if another caller makes it
   * ```
   */
  readonly exclusive: Exclusive = createExclusive((key, options, body) => this.#runBlock(key, options, body));
  readonly #operations: Operations;
  readonly #clock: Clock;
  readonly #timeoutSeconds: number;
  readonly #openBlocks = new OpenBlocks();
  /** Local deadlines on this client's clock. They are not part of a lease, since another client has another clock. */
  readonly #deadlines: WeakMap<AnyLease, number> = new WeakMap();

  /** Created by `Client`. */
  constructor(operations: Operations, clock: Clock, timeoutSeconds: number) {
    this.#operations = operations;
    this.#clock = clock;
    this.#timeoutSeconds = timeoutSeconds;
  }

  /**
   * The same verbs without envelopes: they resolve with the value and reject with the error, which is a `LockHeldError` on
   * contention. Prefer them where no code looks at a result, such as in scheduled jobs.
   *
   * @example
   * ```ts
   * const locks = client.locks.throwOnError();
   * await locks.withLock("daily-rollup", { ttl: 30 }, ({ lease }) => rollup(lease.fencingToken));
   * ```
   */
  throwOnError(): ThrowingLocks {
    return new ThrowingLocks(this, {
      acquire: async (key, options) => (await this.#prepareAcquire(key, options, () => {})()).lease,
      runBlock: (key, options, body) => this.#runBlock(key, options, checkedBody("body", body)),
      lead: (key, options, run) => this.#lead(key, options, run),
    });
  }

  /**
   * Acquires the lock for `ttl` seconds. `acquired: false` without an error is contention, and `reason` says which:
   * another caller holds the lock (still so at the end of `wait`), or the lease of this token has ended.
   *
   * With your own `token` and without `wait`, the client sends no release after a time-out, a transport failure or a 503.
   * The result then has an `UncertainLease` and an `error`: acquire again with the same `token` and `requestId` to
   * recover the lease.
   *
   * @example
   * ```ts
   * const { acquired, lease, error } = await client.locks.acquire("migration", { ttl: 60 });
   * if (error) throw error;
   * if (acquired) await client.locks.release("migration", lease);
   * ```
   */
  async acquire(key: string, options: AcquireOptions): Promise<AcquireResult> {
    let uncertain: UncertainLease | null = null;
    const acquire = this.#prepareAcquire(key, options, (lease) => {
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
   * Renews the lease of the lock `key` so that it ends `ttl` seconds from now. A `LockOwnershipLostError` means that this
   * holder no longer owns it.
   *
   * Never renew a block's lease by hand: the block does not see it. Never shorten a lease after a renewal that timed
   * out: a late duplicate of the shorter renewal may arrive after a longer one and end the lease before the deadline
   * that you rely on.
   *
   * @example
   * ```ts
   * const { lease: renewed, error } = await client.locks.renew("migration", lease, { ttl: 60 });
   * if (error) throw error; // the lock may be lost
   * ```
   */
  async renew(key: string, lease: AnyLease, options: RenewOptions = {}): Promise<LeaseResult> {
    const owner = checkedLeaseOf(key, lease);
    const call = this.#callOptions(options, OPTION_NAMES.renew, "renew");
    const ttlSeconds = options.ttl === undefined ? owner.ttlSeconds : checkedTtl(options.ttl);
    const deadline = this.#deadlines.get(owner) ?? Number.NEGATIVE_INFINITY;
    // Wait for a response until the lease's deadline. Past it, or without one, only the service can decide.
    const until = deadline > this.#clock.now() ? deadline : Number.POSITIVE_INFINITY;
    try {
      const grant = await this.#operations.renew(owner, ttlSeconds, { ...call, until });
      return { lease: this.#createLease(owner, ttlSeconds, grant), error: null };
    } catch (error) {
      return { lease: null, error: error as VolcanoError };
    }
  }

  /**
   * Releases the lock `key`. Only the lease's token decides, so an older lease of the same acquisition works too.
   *
   * @example
   * ```ts
   * const { error } = await client.locks.release("migration", lease);
   * ```
   */
  async release(key: string, lease: AnyLease, options: RequestOptions = {}): Promise<ReleaseResult> {
    const owner = checkedLeaseOf(key, lease);
    const call = this.#callOptions(options, OPTION_NAMES.request, "release");
    return releaseResult(() => this.#operations.release(owner, call));
  }

  /**
   * Reads whether the lock is held, until when, and its fencing token.
   *
   * @example
   * ```ts
   * const { state, error } = await client.locks.get("migration");
   * if (state?.held) console.log(state.expiresAt, state.fencingToken);
   * ```
   */
  async get(key: string, options: RequestOptions = {}): Promise<StateResult> {
    const name = checkedKey(key);
    const call = this.#callOptions(options, OPTION_NAMES.request, "get");
    try {
      const term = await this.#operations.get(name, call);
      const { expiresAt, fencingToken } = term ?? { expiresAt: null, fencingToken: null };
      const state = Object.freeze({ held: term !== null, expiresAt, fencingToken });
      return { state: state as LockState, error: null };
    } catch (error) {
      return { state: null, error: error as VolcanoError };
    }
  }

  /**
   * Frees the lock regardless of its holder, which learns of the loss at its next renewal. With `fencingToken` it frees
   * the lock only from that lease. A server that is too old for that answers with a `NotFoundError` and frees nothing.
   *
   * @example
   * ```ts
   * const { view } = await client.locks.view("migration");
   * if (view?.held) await client.locks.forceRelease("migration", { fencingToken: view.fencingToken, reason: "host is gone" });
   * ```
   */
  async forceRelease(key: string, options: ForceReleaseOptions = {}): Promise<ReleaseResult> {
    const name = checkedKey(key);
    const call = this.#callOptions(options, OPTION_NAMES.forceRelease, "forceRelease");
    const fencingToken = checkedFencingToken(options.fencingToken);
    const reason = checkedReason(options.reason);
    return releaseResult(() => this.#operations.forceRelease(name, fencingToken, reason, call));
  }

  /**
   * Runs `body` while it holds the lock, renews the lease in the background and releases the lock afterwards. `body` gets
   * a guard with `signal` and `lease`; it should stop when `signal` aborts, which means that the lock is lost. `error` is
   * the body's error or the loss. After a loss `data` is still what the body returned.
   *
   * `options.signal` cancels the acquire; once the body runs, it aborts the body's signal. `options.token` and
   * `options.requestId` apply to the acquire only.
   *
   * @example
   * ```ts
   * const { acquired, data, error } = await client.locks.withLock("daily-rollup", { ttl: 30 }, async ({ signal, lease }) =>
   *   rollup({ signal, fencingToken: lease.fencingToken }),
   * );
   * if (error) throw error;
   * ```
   */
  async withLock<T>(key: string, options: WithLockOptions, body: BlockBody<T>): Promise<WithLockResult<T>> {
    return (await this.#runBlock(key, options, checkedBody("body", body))).result;
  }

  /**
   * Waits for the lock without limit, calls `run` while it holds the lock, and campaigns again after a loss: then the
   * run's `signal` aborts, and the next campaign starts when the run has ended. Resolves with what `run` returned while it
   * held the lock, with what it threw, or with an error that a retry cannot resolve. `options.signal` ends the campaign,
   * or aborts the signal of the run.
   *
   * @example
   * ```ts
   * await client.locks.lead("scheduler", { ttl: 15 }, async ({ signal, lease }) => {
   *   while (!signal.aborted) await tick({ signal, fencingToken: lease.fencingToken });
   * });
   * ```
   */
  async lead<T>(key: string, options: LeadOptions, run: BlockBody<T>): Promise<LeadResult<T>> {
    const { result, contention } = await this.#lead(key, options, run);
    return { data: result.data, error: contention ?? result.error } as LeadResult<T>;
  }

  /**
   * Iterates over who holds the lock: first the current holder, then each change. It survives lost connections and
   * restarted servers. It throws a `VolcanoError` that a retry cannot resolve (a wrong key, no permission), or the
   * reason of `options.signal` when that aborts. Leaving the loop ends the request.
   *
   * @example
   * ```ts
   * for await (const { held, holder } of client.locks.watch("scheduler", { signal })) {
   *   console.log(held ? `${holder} leads` : "no leader");
   * }
   * ```
   */
  watch(key: string, options: WatchOptions = {}): AsyncIterableIterator<Leadership> {
    const signal = checkedSignal(checkedOptions(options, OPTION_NAMES.watch, "watch").signal);
    const context = { operations: this.#operations, clock: this.#clock, timeoutSeconds: this.#timeoutSeconds };
    return new Watch(context, checkedKey(key), signal);
  }

  /**
   * Reads who holds the lock, since when, until when, and how many waiters it has.
   *
   * @example
   * ```ts
   * const { view, error } = await client.locks.view("scheduler");
   * if (view) console.log(view.holder, view.expiresAt, view.waiters);
   * ```
   */
  async view(key: string, options: RequestOptions = {}): Promise<ViewResult> {
    const name = checkedKey(key);
    const call = this.#callOptions(options, OPTION_NAMES.request, "view");
    try {
      return { view: await this.#operations.view(name, call), error: null };
    } catch (error) {
      return { view: null, error: error as VolcanoError };
    }
  }

  /**
   * Iterates over the project's locks whose keys begin with `prefix`, ordered by key. It requests each page when the loop
   * reaches it. Failures are thrown as a `VolcanoError`.
   *
   * @example
   * ```ts
   * for await (const { key, holder } of client.locks.list("report-", { state: "held" })) console.log(key, holder);
   * ```
   */
  list(prefix = "", options: ListOptions = {}): AsyncIterableIterator<LockView> {
    const checked = checkedPrefix(prefix);
    const call = (): CallOptions => this.#callOptions(options, OPTION_NAMES.list, "list");
    call();
    return this.#listViews(checked, checkedChoice("state", options.state ?? "all", LIST_STATES), call);
  }

  /**
   * Iterates over who held the lock, the latest hold first: the current one, expired ones, and those of the last days
   * (`--history-days` of the server). It requests each page when the loop reaches it. Failures are thrown as a
   * `VolcanoError`.
   */
  history(key: string, options: HistoryOptions = {}): AsyncIterableIterator<HoldEntry> {
    const path = `${lockPath(checkedKey(key))}/history`;
    const call = (): CallOptions => this.#callOptions(options, OPTION_NAMES.history, "history");
    call();
    const query = new URLSearchParams();
    for (const [name, parameter] of HISTORY_PARAMETERS) {
      const instant = options[name];
      if (instant !== undefined) query.set(parameter, checkedInstant(name, instant).toISOString());
    }
    return this.#listEntries(path, query, call);
  }

  async *#listEntries(path: string, query: URLSearchParams, call: () => CallOptions): AsyncGenerator<HoldEntry, void> {
    for (let cursor: string | null = null; ; ) {
      const { entries, nextCursor }: HistoryPage = await this.#operations.historyPage(path, query, cursor, call());
      yield* entries;
      if (nextCursor === null) return;
      cursor = nextCursor;
    }
  }

  async *#listViews(prefix: string, state: string, call: () => CallOptions): AsyncGenerator<LockView, void> {
    for (let cursor: string | null = null; ; ) {
      const { views, nextCursor }: ViewPage = await this.#operations.listPage(prefix, state, cursor, call());
      yield* views;
      if (nextCursor === null) return;
      cursor = nextCursor;
    }
  }

  async #lead<T>(key: string, options: LeadOptions, run: BlockBody<T>): Promise<BlockOutcome<T>> {
    checkedOptions(options, OPTION_NAMES.lead, "lead");
    checkedBody("run", run);
    return runCampaigns(() => this.#runBlock(key, { ...options, wait: Number.POSITIVE_INFINITY }, run));
  }

  async #runBlock<T>(key: string, options: WithLockOptions, body: BlockBody<T>): Promise<BlockOutcome<T>> {
    const acquire = this.#prepareAcquire(key, options, null, OPTION_NAMES.withLock, "withLock");
    return runBlock(
      {
        key,
        acquire,
        openBlocks: this.#openBlocks,
        renewEvery: checkedRenewEvery(options.renewEvery, options.ttl),
        holdAtLeastSeconds: checkedHoldAtLeast(options.holdAtLeast),
        signal: options.signal,
        operations: this.#operations,
        clock: this.#clock,
        timeoutSeconds: this.#timeoutSeconds,
        renewedLease: (lease, grant) => this.#createLease(lease, lease.ttlSeconds, grant),
      },
      body,
    );
  }

  /** Checks the arguments of an acquire. `onUncertain` receives the lease if the outcome is unknown and recoverable. */
  #prepareAcquire(
    key: string,
    options: AcquireOptions,
    onUncertain: ((lease: UncertainLease) => void) | null,
    names: OptionNames<AcquireOptions> = OPTION_NAMES.acquire,
    verb = "acquire",
  ): () => Promise<ConfirmedLease> {
    const name = checkedKey(key);
    const call = this.#callOptions(options, names, verb);
    const ttlSeconds = checkedTtl(options.ttl);
    const ownToken = (options.token ?? null) !== null;
    const token = givenOrNewUuid("token", options.token);
    const waitSeconds = checkedWait(options.wait);
    const owner = { key: name, token };
    return async () => {
      if (waitSeconds > 0) {
        const waited = await new AcquireWait(this.#operations, this.#clock, owner, ttlSeconds, waitSeconds, call).run();
        return {
          lease: this.#createLease({ key: name, token: waited.token }, ttlSeconds, waited.grant),
          grant: waited.grant,
        };
      }
      const recover = (): void => onUncertain?.(this.#createUncertainLease(owner, ttlSeconds));
      const recovery = ownToken && onUncertain !== null ? recover : undefined;
      const grant = await this.#operations.acquire(owner, ttlSeconds, call, recovery);
      return { lease: this.#createLease(owner, ttlSeconds, grant), grant };
    };
  }

  #callOptions<T extends RequestOptions>(options: T, names: OptionNames<T>, verb: string): CallOptions {
    const { requestId, signal } = checkedOptions(options, names, verb);
    return {
      requestId: givenOrNewUuid("requestId", requestId),
      signal: checkedSignal(signal),
      timeoutSeconds: this.#timeoutSeconds,
      attempts: ATTEMPTS_MAX,
    };
  }

  #createLease({ key, token }: Owner, ttlSeconds: number, grant: Grant): Lease {
    const { expiresAt, fencingToken, deadline } = grant;
    const lease = new Lease({ key, token, ttlSeconds, expiresAt, fencingToken, dispose: this.#dispose });
    this.#deadlines.set(lease, deadline);
    return lease;
  }

  #createUncertainLease({ key, token }: Owner, ttlSeconds: number): UncertainLease {
    return new Lease({ key, token, ttlSeconds, expiresAt: null, fencingToken: null, dispose: this.#dispose });
  }

  /** The release at the end of an `await using` scope: bounded in time, and never throws. */
  readonly #dispose = async (lease: AnyLease): Promise<void> => {
    const timeoutSeconds = Math.min(this.#timeoutSeconds, BEST_EFFORT_RELEASE_SECONDS_MAX);
    await releaseResult(() =>
      this.#operations.release(lease, { requestId: newUuid(), timeoutSeconds, attempts: ATTEMPTS_MAX }),
    );
  };
}

async function releaseResult(release: () => Promise<void>): Promise<ReleaseResult> {
  try {
    await release();
    return { error: null };
  } catch (error) {
    return { error: error as VolcanoError };
  }
}
