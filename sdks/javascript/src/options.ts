/** The options and results of the verbs of `client.locks`. */

import type { ContentionReason, VolcanoError } from "./errors.ts";
import type { OptionNames } from "./protocol/arguments.ts";
import type { Lease, LockState, UncertainLease } from "./protocol/lease.ts";
import type { LockView } from "./protocol/lock_view.ts";

/** Options of every verb. */
export interface RequestOptions {
  /** A UUID that the service logs; generated if left out or null. */
  requestId?: string | null | undefined;
  /**
   * Cancels the request. If an acquire may already have been served, the client releases it. A cancelled release is still
   * carried out.
   */
  signal?: AbortSignal | undefined;
}

export interface AcquireOptions extends RequestOptions {
  /** Duration of the lease in whole seconds, 5 to 7,776,000. */
  ttl: number;
  /**
   * The owner token, a UUID; generated if left out or null. A repeat with the same token returns the same lease. With
   * your own token and without `wait` you can recover an acquire whose outcome is unknown: the client sends no release.
   */
  token?: string | null | undefined;
  /**
   * Seconds to wait in the lock's queue while another caller holds it, or `Infinity`; defaults to 0. The wait survives
   * lost connections and restarted servers. `signal` ends the wait and leaves the queue.
   */
  wait?: number | undefined;
}

/** Options of verbs that renew the lease while a function runs. */
export interface RenewalOptions {
  /**
   * Seconds between two renewals, 1 to a third of `ttl`. Defaults to a third of `ttl`, but at most 60 while more than half
   * of the project's quota is left.
   */
  renewEvery?: number | undefined;
}

export interface WithLockOptions extends AcquireOptions, RenewalOptions {
  /**
   * Seconds from the grant during which the lock stays held even if the body ends sooner: the client then lets the
   * lease expire instead of releasing it. Defaults to 0.
   */
  holdAtLeast?: number | undefined;
}

export interface RenewOptions extends RequestOptions {
  /** New duration in whole seconds from now; defaults to the lease's own TTL. */
  ttl?: number | undefined;
}

export interface ForceReleaseOptions extends RequestOptions {
  /**
   * Frees the lock only from the lease with this fencing token, such as `view` shows it. If the lock has changed hands
   * since, nothing is freed, and `error` is a `ConflictError` with the code `lock_changed`.
   */
  fencingToken?: number | null | undefined;
  /** Why, in at most 200 characters, for the server's log and the `force_released` event. */
  reason?: string | null | undefined;
}

export interface LeadOptions extends RenewalOptions {
  /** Duration of a lease in whole seconds, 5 to 7,776,000; the client renews it while the function runs. */
  ttl: number;
  /** Ends the campaign, or aborts the function's signal while it runs. */
  signal?: AbortSignal | undefined;
}

export interface WatchOptions {
  /** Ends the loop, which throws the signal's reason. */
  signal?: AbortSignal | undefined;
}

export interface ListOptions extends RequestOptions {
  /** Which locks to list; defaults to `all`. */
  state?: "held" | "free" | "all" | undefined;
}

export interface HistoryOptions extends RequestOptions {
  /** Only the hold that lasted at this instant. */
  at?: Date | undefined;
  /** Only holds that lasted at this instant or later. */
  since?: Date | undefined;
  /** Only holds that began before this instant. */
  before?: Date | undefined;
}

const REQUEST: OptionNames<RequestOptions> = { requestId: true, signal: true };
const ACQUIRE: OptionNames<AcquireOptions> = { ttl: true, token: true, wait: true, ...REQUEST };
const WITH_LOCK: OptionNames<WithLockOptions> = { ...ACQUIRE, holdAtLeast: true, renewEvery: true };
const RENEW: OptionNames<RenewOptions> = { ttl: true, ...REQUEST };
const FORCE_RELEASE: OptionNames<ForceReleaseOptions> = { fencingToken: true, reason: true, ...REQUEST };
const LEAD: OptionNames<LeadOptions> = { ttl: true, signal: true, renewEvery: true };
const WATCH: OptionNames<WatchOptions> = { signal: true };
const LIST: OptionNames<ListOptions> = { state: true, ...REQUEST };
const HISTORY: OptionNames<HistoryOptions> = { at: true, since: true, before: true, ...REQUEST };

/** The options that each verb takes. */
export const OPTION_NAMES = {
  request: REQUEST,
  acquire: ACQUIRE,
  withLock: WITH_LOCK,
  renew: RENEW,
  forceRelease: FORCE_RELEASE,
  lead: LEAD,
  watch: WATCH,
  list: LIST,
  history: HISTORY,
} as const;

/**
 * Contention (a 409) gives neither a lease nor an error; `reason` says whether another caller holds the lock or the
 * lease of this token has ended. A failed acquire has a lease only if its outcome is unknown and the caller chose the
 * token.
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
