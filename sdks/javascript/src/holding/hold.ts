/**
 * One held lock: its newest lease, its renewal plan, and at most one loss.
 *
 * A hold does not rely on timers to detect a loss: every query compares the clock with the local deadline, so the result
 * is right even if timers are delayed or never fire (SDK-4, case 10). The body's `signal` does the same when the body
 * reads `aborted`. A loss is reported once, and a renewal confirmed after it is ignored.
 *
 * After its block was left, a hold counts as lost for code that outlives the block (SDK-5). The signal does not abort for
 * that (SDK-20), and the block's result reports only a loss during the block.
 *
 * Limit: code that neither checks nor listens is not stopped. Only a check of the fencing token at the storage refuses its
 * late writes.
 */

import type { Clock } from "../clock.ts";
import { LOCK_OWNERSHIP_LOST, LockOwnershipLostError, VolcanoError } from "../errors.ts";
import type { Log } from "../log.ts";
import type { Lease } from "../protocol/lease.ts";
import type { ConfirmedLease } from "../protocol/operations.ts";
import { type RenewalAction, RenewalPlan } from "../protocol/renewal_plan.ts";

/** The start of a hold. */
export interface HoldStart extends ConfirmedLease {
  readonly clock: Clock;
  readonly log: Log;
  readonly timeoutSeconds: number;
  readonly jitter: number;
  readonly renewEvery?: number | undefined;
  /** An instant before the grant; it may precede the request whose response reported the grant. */
  readonly acquiredAt?: number;
}

/** The state of one acquisition. */
export class Hold {
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #plan: RenewalPlan;
  readonly #ended = new AbortController();
  readonly #renewalAbort = new AbortController();
  readonly #bodyAbort = new AbortController();
  #lease: Lease;
  #loss: LockOwnershipLostError | null = null;
  #leftReason: LockOwnershipLostError | null = null;
  #lastFailure: unknown = undefined;
  #cancelDeadlineTimer: () => void;
  /** The body's signal: aborts on a loss and by `abortBody`, for nothing else. */
  readonly signal: AbortSignal;

  constructor({ lease, grant, clock, log, ...plan }: HoldStart) {
    const { ttlSeconds } = lease;
    const { deadline, hasAmpleQuota } = grant;
    const acquiredAt = plan.acquiredAt ?? deadline - ttlSeconds;
    this.#lease = lease;
    this.#clock = clock;
    this.#log = log;
    this.#plan = new RenewalPlan({ ...plan, ttlSeconds, deadline, hasAmpleQuota, acquiredAt });
    this.signal = checkedOnRead(this.#bodyAbort.signal, () => this.loss());
    this.#cancelDeadlineTimer = this.#startDeadlineTimer();
  }

  /** The newest confirmed lease. */
  get lease(): Lease {
    return this.#lease;
  }

  /** The local deadline on the client's clock: do not rely on the lease after it. */
  get deadline(): number {
    return this.#plan.deadline;
  }

  /** Aborts when the lease is lost or the block is left: no renewal starts after that. */
  get ended(): AbortSignal {
    return this.#ended.signal;
  }

  /** Cancels a renewal in flight: aborts when the lease is lost, or by `cancelRenewal`. */
  get renewalSignal(): AbortSignal {
    return this.#renewalAbort.signal;
  }

  /** The loss of this hold, detected by the clock if necessary. It no longer changes after `leave`. */
  loss(): LockOwnershipLostError | null {
    if (this.#loss === null && this.#leftReason === null && this.#clock.now() >= this.#plan.deadline) {
      const { key, ttlSeconds } = this.#lease;
      this.lose(
        new LockOwnershipLostError(`the lease of ${key} is lost: not renewed within its ${ttlSeconds} seconds`, {
          code: LOCK_OWNERSHIP_LOST,
          cause: this.#lastFailure,
        }),
      );
    }
    return this.#loss;
  }

  /** Why the lease cannot be relied on now: its loss, or that the block was left. Null while it is held. */
  notHeldReason(): LockOwnershipLostError | null {
    return this.loss() ?? this.#leftReason;
  }

  /** What the renewer does now. */
  nextAction(): RenewalAction | { readonly kind: "left" } {
    if (this.#leftReason !== null) return { kind: "left" };
    return this.loss() === null ? this.#plan.nextAction(this.#clock.now()) : { kind: "lost" };
  }

  /** Records a confirmed renewal. Ignored after the block was left or the lease was lost (cases 3 and 8). */
  renewed({ lease, grant }: ConfirmedLease): void {
    if (this.notHeldReason() !== null) return;
    if (!this.#plan.renewed(grant.deadline, this.#clock.now(), grant.hasAmpleQuota)) return;
    this.#lease = lease;
    this.#lastFailure = undefined;
    this.#cancelDeadlineTimer();
    this.#cancelDeadlineTimer = this.#startDeadlineTimer();
  }

  /** Records a failed renewal, which is not yet a loss (SDK-3). */
  failed(error: unknown): void {
    this.#lastFailure = error;
    this.#plan.failed(this.#clock.now(), error instanceof VolcanoError ? error.retryAfter : null);
  }

  /** Records the loss of the lease. Only the first one counts (case 12). */
  lose(error: LockOwnershipLostError): void {
    if (this.#loss !== null || this.#leftReason !== null) return;
    this.#loss = error;
    this.#log.warn(`the lock ${this.#lease.key} is lost: ${error.message}`);
    this.#stopRenewals();
    this.cancelRenewal();
    this.#bodyAbort.abort(error);
  }

  /** Aborts the body's signal for the caller's own signal. Renewals continue until the body has ended. */
  abortBody(reason: unknown): void {
    this.#bodyAbort.abort(reason);
  }

  /** Leaves the block: checks the clock a last time, then freezes the state. The signal does not abort. */
  leave(): void {
    this.loss();
    const message = `the lease of ${this.#lease.key} may have been released: its block was left`;
    this.#leftReason = new LockOwnershipLostError(message, { code: LOCK_OWNERSHIP_LOST });
    this.#stopRenewals();
  }

  /** Cancels a renewal in flight. */
  cancelRenewal(): void {
    this.#renewalAbort.abort();
  }

  #stopRenewals(): void {
    this.#cancelDeadlineTimer();
    this.#ended.abort();
  }

  /** Independent of the renewer, so that a hanging renewal cannot hide the deadline (case 6). */
  #startDeadlineTimer(): () => void {
    return this.#clock.at(this.#plan.deadline, () => this.loss());
  }
}

/** Makes `signal` call `check` before it is read, so that it is right even after a blocked event loop (case 10). */
function checkedOnRead(signal: AbortSignal, check: () => unknown): AbortSignal {
  const inherited = (name: "aborted" | "reason"): unknown => Reflect.get(Object.getPrototypeOf(signal), name, signal);
  const checkedProperty = (name: "aborted" | "reason"): PropertyDescriptor => ({
    get: () => {
      check();
      return inherited(name);
    },
    configurable: true,
  });
  return Object.defineProperties(signal, {
    aborted: checkedProperty("aborted"),
    reason: checkedProperty("reason"),
    throwIfAborted: {
      value: () => {
        check();
        if (inherited("aborted")) throw inherited("reason");
      },
      configurable: true,
    },
  });
}
