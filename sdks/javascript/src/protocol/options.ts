/** What the verbs take and what they resolve with. */

import type { ContentionReason, VolcanoError } from "../errors.ts";
import type { Lease, LockState, UncertainLease } from "./lease.ts";
import type { LockView } from "./lock_view.ts";

/** What every verb takes. */
export interface RequestOptions {
  /** A UUID that the service's logs carry; made if it is left out or null. */
  requestId?: string | null | undefined;
  /** Cancels the request. An acquire that may have been served by then is released. */
  signal?: AbortSignal | undefined;
}

export interface AcquireOptions extends RequestOptions {
  /** Whole seconds from now that the lease lasts, 5 to 7,776,000. */
  ttl: number;
  /**
   * The owner token, a UUID; made if it is left out or null. The same one again gives the same lease. A token of your own
   * recovers an acquire without `wait` whose outcome is unknown: the client then sends no release.
   */
  token?: string | null | undefined;
  /**
   * Seconds to wait in the lock's line while somebody else holds it, `Infinity` for ever; 0 if left out. A lost
   * connection or a restarted server does not end the wait; `signal` does, and gives the place back.
   */
  wait?: number | undefined;
}

export interface WithLockOptions extends AcquireOptions {
  /**
   * Seconds from its grant for which nobody else gets the lock, however soon the body ends: the lease is then not
   * released but left to expire. 0 if left out.
   */
  holdAtLeast?: number | undefined;
}

export interface RenewOptions extends RequestOptions {
  /** Whole seconds from now; the lease's own when left out. */
  ttl?: number | undefined;
}

export interface LeadOptions {
  /** Whole seconds from now that a lease lasts, 5 to 7,776,000; it is renewed while the function runs. */
  ttl: number;
  /** Ends the campaign; while the function runs, aborts its signal. */
  signal?: AbortSignal | undefined;
}

export interface WatchOptions {
  /** Ends the loop, which throws its reason. */
  signal?: AbortSignal | undefined;
}

export interface ListOptions extends RequestOptions {
  /** Which locks; `all` if left out. */
  state?: "held" | "free" | "all" | undefined;
}

/**
 * Contention (a 409: the lock is held elsewhere, or the lease of this token has ended) is neither a lease nor an error;
 * `reason` says which. A failed acquire has a lease only if its outcome is unknown and the token is the caller's own.
 */
export type AcquireResult =
  | { readonly acquired: true; readonly lease: Lease; readonly error: null; readonly reason?: undefined }
  | { readonly acquired: false; readonly lease: null; readonly error: null; readonly reason: ContentionReason }
  | {
      readonly acquired: false;
      readonly lease: UncertainLease | null;
      readonly error: VolcanoError;
      readonly reason?: undefined;
    };

export type LeaseResult =
  | { readonly lease: Lease; readonly error: null }
  | { readonly lease: null; readonly error: VolcanoError };

export type StateResult =
  | { readonly state: LockState; readonly error: null }
  | { readonly state: null; readonly error: VolcanoError };

export type ViewResult =
  | { readonly view: LockView; readonly error: null }
  | { readonly view: null; readonly error: VolcanoError };

export interface ReleaseResult {
  readonly error: VolcanoError | null;
}
