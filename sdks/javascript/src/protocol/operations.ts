/**
 * The operation behind each verb: which requests it sends, which failures it retries, and how it cleans up.
 *
 * SDK-1: token and request id are generated before the first send and kept through every retry.
 * SDK-2: an acquire is sent at most twice; a 4xx is final. If an attempt may have been served and the caller does not get
 * the lease, the client sends a release with its token, even after the caller's `signal` aborted.
 * SDK-18: it sends no release if the caller chose the token and can recover the lease.
 *
 * Limit: that release is best effort. If it does not arrive, the lock may stay held for one TTL; an acquire with the same
 * `token` then returns the same lease.
 */

import type { Clock } from "../clock.ts";
import {
  attachSuppressed,
  LockOwnershipLostError,
  ServerError,
  TransportError,
  UnavailableError,
  VolcanoError,
} from "../errors.ts";
import type { ByteStream, LockRequest, Transport } from "../http/transport.ts";
import type { Log } from "../log.ts";
import { newUuid } from "./arguments.ts";
import { type HistoryPage, parseHistoryPage } from "./hold_entry.ts";
import type { Lease } from "./lease.ts";
import { type LockView, parsePage, parseView, type ViewPage } from "./lock_view.ts";
import {
  errorFromResponse,
  hasAmpleQuota,
  type LeaseTerm,
  type LockResponse,
  malformedResponse,
  parseGrantedTerm,
  parseHeldTerm,
} from "./messages.ts";

export const ATTEMPTS_MAX = 2;
export const BEST_EFFORT_RELEASE_SECONDS_MAX = 2;
export const RETRY_PAUSE_SECONDS = 0.5;
export const RETRY_PAUSE_SECONDS_MAX = 2;
const PAGE_ROWS_MAX = 500;
const PAGE_BYTES_MAX = 1_048_576;
const REQUEST_TIMEOUT_STATUS = 408;
const RECOVERY = "; the outcome is unknown: acquire again with the same token and requestId to recover the lease";

/** A granted lease term and its local deadline: the instant on the client's clock until which to rely on it. */
export interface Grant extends LeaseTerm {
  readonly deadline: number;
  /** Whether the project's quota allows renewals more often than the TTL requires. */
  readonly hasAmpleQuota: boolean;
}

/** A lease that the service granted or renewed. */
export interface ConfirmedLease {
  readonly lease: Lease;
  readonly grant: Grant;
}

/** A lock's key and the owner token of the caller. */
export interface Owner {
  readonly key: string;
  readonly token: string;
}

/** Options of one operation: its request id, its cancellation signal and its limits. */
export interface CallOptions {
  readonly requestId: string;
  readonly signal?: AbortSignal | undefined;
  /** Time-out of one request. */
  readonly timeoutSeconds: number;
  /** The instant on the client's clock by which the operation must end. */
  readonly until?: number;
  readonly attempts?: number;
}

/** A grant whose lease expired before the response arrived (case 14). */
class LateResponseError extends TransportError {}

/** The operations of one client. Each resolves with its result or rejects with a `VolcanoError`. */
export class Operations {
  readonly #transport: Transport;
  readonly #clock: Clock;
  readonly log: Log;
  /** As the last response showed. */
  #hasAmpleQuota = true;

  constructor(transport: Transport, clock: Clock, log: Log) {
    this.#transport = transport;
    this.#clock = clock;
    this.log = log;
  }

  /**
   * Acquires a lease. Its deadline is the send time plus the TTL; a later response is a failure. If the outcome is
   * unknown and `onUncertain` is given, it is called, no release is sent, and the failure is thrown.
   */
  async acquire(owner: Owner, ttlSeconds: number, call: CallOptions, onUncertain?: () => void): Promise<Grant> {
    let uncertain = false;
    const once = async (): Promise<Grant> => {
      try {
        return rejectLateGrant(owner, await this.acquireOnce(owner, ttlSeconds, 0, call), this.#clock, call);
      } catch (error) {
        uncertain ||= mayHaveBeenServed(error);
        throw error;
      }
    };
    try {
      return await this.#logged("acquire", owner, this.#withRetry(once, call));
    } catch (error) {
      if (onUncertain !== undefined && isOutcomeUnknown(error) && !call.signal?.aborted) {
        (error as VolcanoError).message += RECOVERY;
        onUncertain();
      } else if (uncertain) attachSuppressed(error, await this.releaseBestEffort(owner));
      throw error;
    }
  }

  /**
   * Sends one acquire, which the service may hold in the lock's queue for `waitSeconds`. The caller must check the
   * deadline, which may have passed before the response arrived.
   */
  acquireOnce(owner: Owner, ttlSeconds: number, waitSeconds: number, call: CallOptions): Promise<Grant> {
    const timeoutSeconds = waitSeconds + Math.min(call.timeoutSeconds, ttlSeconds);
    const more = waitSeconds > 0 ? { waitSeconds } : {};
    return this.#requestLease("POST", 201, owner, ttlSeconds, { ...call, timeoutSeconds }, more);
  }

  /** Sends one release, even after the caller's signal aborted. Resolves with its error, if any. */
  async releaseBestEffort(owner: Owner): Promise<VolcanoError | null> {
    const call = { requestId: newUuid(), timeoutSeconds: BEST_EFFORT_RELEASE_SECONDS_MAX };
    try {
      const release = this.#send("DELETE", leasePath(owner.key), 204, call, { token: owner.token });
      await this.#logged("release", owner, release);
      return null;
    } catch (error) {
      return error as VolcanoError;
    }
  }

  /** Sets a new expiry of the lease, which keeps its fencing token and its owner token. */
  renew(owner: Owner, ttlSeconds: number, call: CallOptions): Promise<Grant> {
    const once = async (): Promise<Grant> =>
      rejectLateGrant(owner, await this.#requestLease("PATCH", 200, owner, ttlSeconds, call), this.#clock, call);
    const failed = (): "debug" | "warn" => (call.signal?.aborted ? "debug" : "warn");
    return this.#logged("renew", owner, this.#withRetry(once, call), failed);
  }

  /**
   * Releases the lock. If an earlier attempt may have been served, ownership lost counts as success: that attempt
   * released the lock, and another caller acquired it meanwhile (case 19). A cancelled release is sent once more
   * without the caller's signal, before the cancellation is reported (SDK-23).
   */
  async release(owner: Owner, call: CallOptions): Promise<void> {
    let uncertain = false;
    const once = async (): Promise<void> => {
      try {
        await this.#send("DELETE", leasePath(owner.key), 204, call, { token: owner.token });
      } catch (error) {
        if (uncertain && error instanceof LockOwnershipLostError) return;
        uncertain ||= mayHaveBeenServed(error);
        throw error;
      }
    };
    try {
      await this.#logged("release", owner, this.#withRetry(once, call));
    } catch (error) {
      if (call.signal?.aborted) attachSuppressed(error, await this.releaseBestEffort(owner));
      throw error;
    }
  }

  /** Reads the lease term of a held lock; null for a free one. */
  get(key: string, call: CallOptions): Promise<LeaseTerm | null> {
    const once = async (): Promise<LeaseTerm | null> =>
      parseHeldTerm(await this.#send("GET", lockPath(key), 200, call), call.requestId);
    return this.#withRetry(once, call);
  }

  /** Reads the full view of a lock. */
  view(key: string, call: CallOptions): Promise<LockView> {
    const once = async (): Promise<LockView> =>
      parseView(await this.#send("GET", `${lockPath(key)}?view=full`, 200, call), call.requestId);
    return this.#withRetry(once, call);
  }

  /** Reads one page of the list. */
  listPage(prefix: string, state: string, cursor: string | null, call: CallOptions): Promise<ViewPage> {
    const query = new URLSearchParams({ prefix, state, limit: String(PAGE_ROWS_MAX) });
    if (cursor !== null) query.set("cursor", cursor);
    const once = async (): Promise<ViewPage> => {
      const response = await this.#send("GET", `/locks?${query}`, 200, call, { responseBytesMax: PAGE_BYTES_MAX });
      const page = parsePage(response, call.requestId);
      if (page.nextCursor === null || page.nextCursor !== cursor) return page;
      throw malformedResponse(response, "its next page is itself", call.requestId);
    };
    return this.#withRetry(once, call);
  }

  /** Reads one page of the history at `path`. */
  historyPage(path: string, query: URLSearchParams, cursor: string | null, call: CallOptions): Promise<HistoryPage> {
    const parameters = new URLSearchParams(query);
    parameters.set("limit", String(PAGE_ROWS_MAX));
    if (cursor !== null) parameters.set("cursor", cursor);
    const once = async (): Promise<HistoryPage> => {
      const response = await this.#send("GET", `${path}?${parameters}`, 200, call, {
        responseBytesMax: PAGE_BYTES_MAX,
      });
      const page = parseHistoryPage(response, call.requestId);
      if (page.nextCursor === null || page.nextCursor !== cursor) return page;
      throw malformedResponse(response, "its next page is itself", call.requestId);
    };
    return this.#withRetry(once, call);
  }

  /** Opens a stream of the lock's events from now on, or after `lastEventId`. One attempt. */
  async openEvents(key: string, lastEventId: string | null, call: CallOptions): Promise<ByteStream> {
    const { requestId, timeoutSeconds } = call;
    const resumed = lastEventId === null ? {} : { lastEventId };
    const request = { method: "GET", path: `${lockPath(key)}/events`, requestId, timeoutSeconds, ...resumed } as const;
    const opened = await this.#transport.open(request, call.signal);
    if ("stream" in opened) return opened.stream;
    const { response } = opened;
    if (response.status === 200) throw malformedResponse(response, "it is not an event stream", requestId);
    throw errorFromResponse(response, requestId, key);
  }

  /**
   * Frees the lock; with a fencing token only from that lease. Without one it is retried only if the request was not sent:
   * a second one could evict the next holder.
   */
  async forceRelease(
    key: string,
    fencingToken: number | undefined,
    reason: string | undefined,
    call: CallOptions,
  ): Promise<void> {
    const path = fencingToken === undefined ? lockPath(key) : `${lockPath(key)}/leases/${fencingToken}`;
    const more = reason === undefined ? {} : { reason };
    const once = (): Promise<LockResponse> => this.#send("DELETE", path, 204, call, more);
    await this.#withRetry(once, call, (error) => fencingToken !== undefined || !mayHaveBeenServed(error));
  }

  async #requestLease(
    method: "POST" | "PATCH",
    status: number,
    owner: Owner,
    ttlSeconds: number,
    call: CallOptions,
    more: Pick<LockRequest, "waitSeconds"> = {},
  ): Promise<Grant> {
    const deadline = this.#clock.now() + ttlSeconds;
    const { key, token } = owner;
    const response = await this.#send(method, leasePath(key), status, call, { token, ttlSeconds, ...more }, key);
    const term = parseGrantedTerm(response, call.requestId);
    return { ...term, deadline, hasAmpleQuota: this.#hasAmpleQuota };
  }

  #logged<T>(verb: string, { key }: Owner, work: Promise<T>, failureLevel?: () => "debug" | "warn"): Promise<T> {
    return this.log.outcome(`${verb} ${key}`, work, failureLevel);
  }

  async #send(
    method: LockRequest["method"],
    path: string,
    status: number,
    call: CallOptions,
    more: Pick<LockRequest, "token" | "ttlSeconds" | "waitSeconds" | "responseBytesMax" | "reason"> = {},
    key: string | null = null,
  ): Promise<LockResponse> {
    const timeoutSeconds = Math.min(call.timeoutSeconds, (call.until ?? Number.POSITIVE_INFINITY) - this.#clock.now());
    const request: LockRequest = { method, path, requestId: call.requestId, timeoutSeconds, ...more };
    const response = await this.#transport.send(request, call.signal);
    this.#hasAmpleQuota = hasAmpleQuota(response) ?? this.#hasAmpleQuota;
    if (response.status === status) return response;
    throw errorFromResponse(response, call.requestId, key);
  }

  async #withRetry<T>(
    once: () => Promise<T>,
    call: CallOptions,
    safeToRepeat: (error: unknown) => boolean = () => true,
  ): Promise<T> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await once();
      } catch (error) {
        const again = attempt < (call.attempts ?? ATTEMPTS_MAX) && isOutcomeUnknown(error) && safeToRepeat(error);
        const pause = retryPause(error);
        const late = this.#clock.now() + pause >= (call.until ?? Number.POSITIVE_INFINITY);
        if (!again || late || call.signal?.aborted) throw error;
        if (pause > 0) await this.#clock.pause(pause, call.signal);
      }
    }
  }
}

/** A valid key needs no URL escaping. */
function leasePath(key: string): string {
  return `/locks/${key}/lease`;
}

export function lockPath(key: string): string {
  return `/locks/${key}`;
}

function rejectLateGrant(owner: Owner, grant: Grant, clock: Clock, call: CallOptions): Grant {
  if (clock.now() < grant.deadline) return grant;
  const late = `the lease of ${owner.key} expired before the response that granted it arrived`;
  throw new LateResponseError(late, { requestId: call.requestId });
}

/** Whether the outcome is unknown, so that the same request may be retried. */
function isOutcomeUnknown(error: unknown): boolean {
  if (error instanceof LateResponseError) return false;
  return error instanceof TransportError || error instanceof UnavailableError;
}

/** Whether the service may have served a request that failed with `error`. */
export function mayHaveBeenServed(error: unknown): boolean {
  if (error instanceof TransportError) return error.requestSent;
  if (error instanceof VolcanoError) return error instanceof ServerError || error.status === REQUEST_TIMEOUT_STATUS;
  return true;
}

/** Seconds before the retry: none after a broken connection, the service's `Retry-After` after a 503. */
function retryPause(error: unknown): number {
  if (!(error instanceof UnavailableError)) return 0;
  return Math.min(error.retryAfter ?? RETRY_PAUSE_SECONDS, RETRY_PAUSE_SECONDS_MAX);
}
