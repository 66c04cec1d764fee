/**
 * The guard: the view of a held lock that a block passes to its body.
 */

import type { VolcanoError } from "../errors.ts";
import type { Lease } from "../protocol/lease.ts";
import type { Hold } from "./hold.ts";

const INSPECT = Symbol.for("nodejs.util.inspect.custom");

/** What the body of `withLock` sees of its lock. */
export class LockGuard {
  readonly #hold: Hold;
  readonly #releaseError: () => VolcanoError | null;

  constructor(hold: Hold, releaseError: () => VolcanoError | null) {
    this.#hold = hold;
    this.#releaseError = releaseError;
  }

  /**
   * Aborts when the lock is lost, with the `LockOwnershipLostError` as its reason, or when the caller's own signal aborts.
   * The end of the block does not abort it: code that may outlive the block calls `throwIfLost`.
   */
  get signal(): AbortSignal {
    return this.#hold.signal;
  }

  /** The newest lease, which renewals replace. */
  get lease(): Lease {
    return this.#hold.lease;
  }

  /** Whether the lease was lost or its block was left; checked against the clock at each read. */
  get lost(): boolean {
    return this.#hold.notHeldReason() !== null;
  }

  /** Throws a `LockOwnershipLostError` if `lost`; its message says whether the lease was lost or the block was left. */
  throwIfLost(): void {
    const loss = this.#hold.notHeldReason();
    if (loss !== null) throw loss;
  }

  /** After the block: why the release was not confirmed. The lock then becomes free when its lease expires. */
  get releaseError(): VolcanoError | null {
    return this.#releaseError();
  }

  /** @internal */
  [INSPECT](): string {
    const { key, fencingToken } = this.lease;
    return `LockGuard(${key}, fencing token ${fencingToken}${this.lost ? ", lost" : ""})`;
  }
}
