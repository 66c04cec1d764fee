/**
 * Holding a lock: what is known of one acquisition, and the guard that shows it to the code inside the block.
 *
 * `lost` is not a flag somebody sets in time: it compares the clock with the local deadline whenever it is asked, so
 * it is right even if timers are starved, stuck or dead (SDK-4, case 10). The guard's `signal` does the same when it is asked
 * for `aborted`. Loss is told once, and a renewal confirmed after it is not believed.
 *
 * Once its block is being left a guard counts as lost too, for work that outlives the block (SDK-5). That is no loss: the
 * signal does not abort for it (SDK-20), and the block's own outcome knows only a loss while it was held.
 *
 * Not promised: code that neither asks nor listens is not stopped. Writes after a long pause are refused only by a
 * check of the fencing token where they land.
 */

import { type Clock, restUntil } from "../clock.ts";
import { LOCK_OWNERSHIP_LOST, LockOwnershipLostError, VolcanoError } from "../errors.ts";
import type { Lease } from "../protocol/lease.ts";
import type { Granted } from "../protocol/operations.ts";
import { Heartbeat, type Step } from "../protocol/renewal_plan.ts";

const INSPECT = Symbol.for("nodejs.util.inspect.custom");

/** One acquisition: its newest lease, its plan, and at most one loss. */
export class Hold {
  readonly #clock: Clock;
  readonly #heartbeat: Heartbeat;
  readonly #over = new AbortController();
  readonly #renewals = new AbortController();
  readonly #body = new AbortController();
  #lease: Lease;
  #loss: LockOwnershipLostError | null = null;
  #left: LockOwnershipLostError | null = null;
  #lastFailure: unknown = undefined;
  #forgetDeadline: () => void;
  /** Aborted on loss and by `stop`, and for nothing else: what the body listens to. */
  readonly signal: AbortSignal;

  /** `acquiredAt`: an instant before the grant, which may have been told by the answer to a later request. */
  constructor(
    lease: Lease,
    deadline: number,
    clock: Clock,
    timeoutSeconds: number,
    jitter: number,
    acquiredAt: number = deadline - lease.ttlSeconds,
  ) {
    this.#lease = lease;
    this.#clock = clock;
    this.#heartbeat = new Heartbeat({
      ttlSeconds: lease.ttlSeconds,
      acquiredAt,
      deadline,
      timeoutSeconds,
      jitter,
    });
    this.signal = askingFirst(this.#body.signal, () => this.loss());
    this.#forgetDeadline = this.#watchDeadline();
  }

  /** The newest confirmed lease. */
  get lease(): Lease {
    return this.#lease;
  }

  /** The instant on the client's clock after which the lease must not be relied on. */
  get deadline(): number {
    return this.#heartbeat.deadline;
  }

  /** Aborted once the lease was lost or the block left: no renewal begins after that. */
  get over(): AbortSignal {
    return this.#over.signal;
  }

  /** Aborted once the lease was lost, or by `cut`: what a renewal under way listens to. */
  get renewals(): AbortSignal {
    return this.#renewals.signal;
  }

  /** The one loss of this hold, found by looking at the clock if need be. After `leave` it stays as it was. */
  loss(): LockOwnershipLostError | null {
    if (this.#loss === null && this.#left === null && this.#clock.now() >= this.#heartbeat.deadline) {
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

  /** Why the lease must not be relied on now: the loss, or else that the block was left. */
  heldNoMore(): LockOwnershipLostError | null {
    return this.loss() ?? this.#left;
  }

  /** What the renewals do now. */
  nextStep(): Step | { readonly kind: "left" } {
    if (this.#left !== null) return { kind: "left" };
    return this.loss() === null ? this.#heartbeat.nextStep(this.#clock.now()) : { kind: "lost" };
  }

  /** A renewal was confirmed. Ignored once the block was left or the lease was lost (cases 3 and 8). */
  renewed(lease: Lease, deadline: number): void {
    if (this.heldNoMore() !== null) return;
    if (!this.#heartbeat.renewed(deadline, this.#clock.now())) return;
    this.#lease = lease;
    this.#lastFailure = undefined;
    this.#forgetDeadline();
    this.#forgetDeadline = this.#watchDeadline();
  }

  /** A renewal was not confirmed: no loss yet (SDK-3). */
  failed(error: unknown): void {
    this.#lastFailure = error;
    this.#heartbeat.failed(this.#clock.now(), error instanceof VolcanoError ? error.retryAfter : null);
  }

  /** The lease is lost. Only the first loss counts (case 12). */
  lose(error: LockOwnershipLostError): void {
    if (this.#loss !== null || this.#left !== null) return;
    this.#loss = error;
    this.#end();
    this.cut();
    this.#body.abort(error);
  }

  /** The caller's own signal aborted: so does the body's, and renewals go on until the body has ended. */
  stop(reason: unknown): void {
    this.#body.abort(reason);
  }

  /** The block is being left: a last look at the clock, then nothing changes any more. The signal stays as it is. */
  leave(): void {
    this.loss();
    const message = `the lease of ${this.#lease.key} is not to be relied on any more: its block was left`;
    this.#left = new LockOwnershipLostError(message, { code: LOCK_OWNERSHIP_LOST });
    this.#end();
  }

  /** Ends a renewal that is under way. */
  cut(): void {
    this.#renewals.abort();
  }

  #end(): void {
    this.#forgetDeadline();
    this.#over.abort();
  }

  /** Beside the renewals, so that one that hangs cannot hide the deadline (case 6). */
  #watchDeadline(): () => void {
    return this.#clock.at(this.#heartbeat.deadline, () => this.loss());
  }
}

/** How a hold's lease is renewed, once. */
export type Renewal = (lease: Lease, timeoutSeconds: number, signal: AbortSignal) => Promise<Renewed>;

export interface Renewed {
  readonly lease: Lease;
  readonly granted: Granted;
}

/** Renew `hold` until it is left or lost. Never rejects (SDK-6, case 9); what cannot go on is a loss. */
export async function keep(hold: Hold, clock: Clock, renew: Renewal): Promise<void> {
  try {
    await renewing(hold, clock, renew);
  } catch (error) {
    const message = `the lease of ${hold.lease.key} is lost: its renewals cannot go on`;
    hold.lose(new LockOwnershipLostError(message, { code: LOCK_OWNERSHIP_LOST, cause: error }));
  }
}

async function renewing(hold: Hold, clock: Clock, renew: Renewal): Promise<void> {
  for (;;) {
    const step = hold.nextStep();
    if (step.kind === "left" || step.kind === "lost") return;
    if (step.kind === "wait") {
      await restUntil(clock, step.until, hold.over);
      continue;
    }
    try {
      const { lease, granted } = await renew(hold.lease, step.timeoutSeconds, hold.renewals);
      hold.renewed(lease, granted.deadline);
    } catch (error) {
      if (error instanceof LockOwnershipLostError) hold.lose(error);
      else hold.failed(error);
    }
  }
}

/** The lock as the body of `withLock` sees it. */
export class LockGuard {
  readonly #hold: Hold;
  readonly #releaseError: () => VolcanoError | null;

  constructor(hold: Hold, releaseError: () => VolcanoError | null) {
    this.#hold = hold;
    this.#releaseError = releaseError;
  }

  /**
   * Aborts when the lock is lost, with the `LockOwnershipLostError` as its reason, or when the caller's own signal aborts.
   * A block that ends well does not abort it: code that may outlive the block calls `throwIfLost`.
   */
  get signal(): AbortSignal {
    return this.#hold.signal;
  }

  /** The newest lease: renewals replace it (case 22). */
  get lease(): Lease {
    return this.#hold.lease;
  }

  /** Whether the lease must not be relied on any more, judged now: it was lost, or its block was left. */
  get lost(): boolean {
    return this.#hold.heldNoMore() !== null;
  }

  /** Throws a `LockOwnershipLostError` if `lost`; it says whether by a loss or because the block was left. */
  throwIfLost(): void {
    const loss = this.#hold.heldNoMore();
    if (loss !== null) throw loss;
  }

  /** After the block: why its release was not confirmed; the lock then frees itself at its expiry. */
  get releaseError(): VolcanoError | null {
    return this.#releaseError();
  }

  /** @internal */
  [INSPECT](): string {
    const { key, fencingToken } = this.lease;
    return `LockGuard(${key}, fencing token ${fencingToken}${this.lost ? ", lost" : ""})`;
  }
}

/** `signal`, which looks at the clock before it answers, so that a blocked event loop cannot make it lie (case 10). */
function askingFirst(signal: AbortSignal, look: () => unknown): AbortSignal {
  const inherited = (name: "aborted" | "reason"): unknown => Reflect.get(AbortSignal.prototype, name, signal);
  const looking = (name: "aborted" | "reason"): PropertyDescriptor => ({
    get: () => {
      look();
      return inherited(name);
    },
    configurable: true,
  });
  return Object.defineProperties(signal, {
    aborted: looking("aborted"),
    reason: looking("reason"),
    throwIfAborted: {
      value: () => {
        look();
        if (inherited("aborted")) throw inherited("reason");
      },
      configurable: true,
    },
  });
}
