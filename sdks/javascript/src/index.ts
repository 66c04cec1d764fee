/**
 * Elect one holder for a piece of work, keep its lease renewed while the work runs, and be notified if it is lost.
 *
 *     const { acquired, data, error } = await client.locks.withLock("daily-rollup", { ttl: 30 }, async ({ signal, lease }) =>
 *       rollup({ signal, fencingToken: lease.fencingToken }));
 *
 * Limit: a lease cannot stop a process that is paused. Check the fencing token where you write.
 */

export { Client, type ClientOptions } from "./client.ts";
export { type Clock, SystemClock } from "./clock.ts";
export {
  AuthenticationError,
  ConflictError,
  type ContentionReason,
  LockHeldError,
  LockOwnershipLostError,
  NotFoundError,
  PermissionDeniedError,
  RateLimitedError,
  ServerError,
  TransportError,
  UnavailableError,
  ValidationError,
  VolcanoError,
} from "./errors.ts";
export type { Exclusive, ExclusiveOptions, ExclusiveResult } from "./features/exclusive.ts";
export type { LeadResult } from "./features/leader.ts";
export type { Leadership } from "./features/watch.ts";
export type { WithLockResult } from "./holding/block.ts";
export type { LockGuard } from "./holding/guard.ts";
export type { Fetch } from "./http/fetch_sender.ts";
export type { Locks } from "./locks.ts";
export type { Logger } from "./log.ts";
export type {
  AcquireOptions,
  AcquireResult,
  ForceReleaseOptions,
  LeadOptions,
  LeaseResult,
  ListOptions,
  ReleaseResult,
  RenewalOptions,
  RenewOptions,
  RequestOptions,
  StateResult,
  ViewResult,
  WatchOptions,
  WithLockOptions,
} from "./options.ts";
export type { HoldEntry } from "./protocol/hold_entry.ts";
export {
  Lease,
  type LeaseOutcome,
  type LeaseRecord,
  type LockState,
  type UncertainLease,
  type UncertainLeaseRecord,
} from "./protocol/lease.ts";
export type { LockView } from "./protocol/lock_view.ts";
export type { ThrowingLocks } from "./throwing_locks.ts";
export { VERSION } from "./version.ts";
