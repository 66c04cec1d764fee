/**
 * One lock of a fake server: the lease rules and the wait queue, at the clock's instant.
 *
 * Waiters are granted first in, first out, in the moment when the lock becomes free. A waiter stays queued for a while
 * after its request ended; while it has no request it is skipped. The lock sets an expiry timer only while it has waiters
 * or subscribers.
 */

import { whenAborted } from "../abort.ts";

import { LOCK_HELD, LOCK_OWNERSHIP_LOST } from "../errors.ts";
import { ACQUISITION_SECONDS_MAX, MARGIN_SECONDS } from "../protocol/renewal_plan.ts";
import type { ManualClock } from "./clock.ts";
import type { EventLog, LockEvent } from "./event_log.ts";

export const WAITER_KEPT_SECONDS = 5;
const GRACE_SECONDS = 1;

type Kind = LockEvent["kind"];

/** An acquire or a renewal. */
export interface LeaseRequest {
  readonly token: string;
  readonly holder: string | null;
  readonly ttlSeconds: number;
}

interface Waiter {
  request: LeaseRequest;
  /** Responds to the waiter's request; null while it has none. */
  respond: ((response: Response) => void) | null;
  keptUntil: number;
}

interface CurrentLease extends LeaseRequest {
  readonly acquiredAt: Date;
  readonly deadline: number;
  renewedAt: Date;
  expiresAt: number;
  ttlSeconds: number;
}

/** One hold, as the history has it. The fake knows no service keys, addresses and clients. */
interface FakeHold {
  readonly fencingToken: number;
  readonly holder: string | null;
  readonly began: string;
  readonly beganAt: Date;
  renewals: number;
  renewedAt: Date | null;
  expiresAt: Date;
  ended: string | null;
  endedAt: Date | null;
  reason: string | null;
}

/** One lock. It is never deleted. */
export class FakeLock {
  readonly key: string;
  readonly #clock: ManualClock;
  readonly #events: EventLog;
  readonly #retired: Set<string> = new Set();
  readonly #history: FakeHold[] = [];
  #queue: Waiter[] = [];
  #lease: CurrentLease | null = null;
  #fencingToken = 0;
  #cancelExpiry: () => void = () => {};

  constructor(key: string, clock: ManualClock, events: EventLog) {
    this.key = key;
    this.#clock = clock;
    this.#events = events;
  }

  /** Whether the lock is held, grace included. */
  get held(): boolean {
    return this.#lease !== null && this.#clock.now() < this.#lease.expiresAt + GRACE_SECONDS;
  }

  /** Whether the list shows the lock: it was acquired before, or has waiters. */
  get known(): boolean {
    return this.#fencingToken > 0 || this.#queue.length > 0;
  }

  acquire(request: LeaseRequest, waited = false): Response {
    const before = this.#lease;
    if (this.held) {
      return before?.token === request.token ? this.#extend(request, "repeated", 201) : this.#heldResponse();
    }
    if (this.#retired.has(request.token)) return errorResponse(409, LOCK_OWNERSHIP_LOST);
    if (before !== null) this.#expire();
    this.#retired.clear();
    const now = this.#clock.utcNow();
    this.#fencingToken = Math.max(this.#fencingToken + 1, now.getTime());
    const deadline = this.#clock.now() + ACQUISITION_SECONDS_MAX;
    this.#lease = { ...request, acquiredAt: now, renewedAt: now, expiresAt: 0, deadline };
    const why = waited ? "waited" : before === null ? "free" : "taken_over";
    const hold = { began: why, beganAt: now, renewals: 0, renewedAt: null, ended: null, endedAt: null, reason: null };
    this.#history.unshift({ fencingToken: this.#fencingToken, holder: request.holder, expiresAt: now, ...hold });
    return this.#grantResponse(this.#lease, request.ttlSeconds, "acquired", why, 201);
  }

  renew(request: LeaseRequest): Response {
    return this.#extend(request, "renewed", 200);
  }

  #extend({ token, ttlSeconds }: LeaseRequest, why: string, status: number): Response {
    const lease = this.#lease;
    if (lease === null || lease.token !== token || this.#clock.now() >= lease.expiresAt - MARGIN_SECONDS) {
      return errorResponse(409, LOCK_OWNERSHIP_LOST);
    }
    lease.renewedAt = this.#clock.utcNow();
    const hold = this.#history[0];
    if (hold !== undefined) Object.assign(hold, { renewals: hold.renewals + 1, renewedAt: lease.renewedAt });
    return this.#grantResponse(lease, ttlSeconds, "renewed", why, status);
  }

  release(token: string): Response {
    const waiter = this.#findWaiter(token);
    if (waiter !== undefined) this.#removeWaiter(waiter, errorResponse(409, LOCK_OWNERSHIP_LOST));
    if (this.held && this.#lease?.token !== token) {
      return waiter === undefined ? errorResponse(409, LOCK_OWNERSHIP_LOST) : new Response(null, { status: 204 });
    }
    return this.#free("released", "released", token);
  }

  /** The lock's last fencing token, 0 if it has had none. */
  get fencingToken(): number {
    return this.#fencingToken;
  }

  forceRelease(reason?: string): Response {
    return this.#free("force_released", "forced", this.#lease?.token ?? null, reason);
  }

  /** Acquires the lock, or queues a waiter. Responds "held" when the time is up. */
  wait(request: LeaseRequest, seconds: number, signal: AbortSignal | null): Response | Promise<Response> {
    if (!this.held || this.#lease?.token === request.token) return this.acquire(request);
    return new Promise((resolve, reject) => {
      const waiter = this.#enqueue(request);
      const settleRequest = (settle: () => void): void => {
        cancelTimeout();
        removeCallback();
        waiter.respond = null;
        settle();
      };
      const cancelTimeout = this.#clock.at(this.#clock.now() + seconds, () => {
        waiter.keptUntil = this.#clock.now() + WAITER_KEPT_SECONDS;
        waiter.respond?.(this.#heldResponse());
        this.scheduleExpiry();
      });
      const removeCallback = whenAborted(signal, () => {
        settleRequest(() => reject(signal?.reason));
        this.#removeWaiter(waiter, null);
      });
      waiter.respond = (response) => settleRequest(() => resolve(response));
      this.scheduleExpiry();
    });
  }

  /** Responds 503 to every waiter and empties the queue. */
  disconnectWaiters(): void {
    const waiters = this.#queue;
    this.#queue = [];
    for (const { respond } of waiters)
      respond?.(errorResponse(503, "lock_service_unavailable", { "Retry-After": "1" }));
    this.scheduleExpiry();
  }

  /** Sets a timer for the lease's expiry if the lock has waiters or subscribers. */
  scheduleExpiry(): void {
    this.#cancelExpiry();
    this.#cancelExpiry = () => {};
    const lease = this.held ? this.#lease : null;
    if (lease === null || !(this.#events.hasSubscriber(this.key) || this.#queue.some((one) => one.respond))) return;
    this.#cancelExpiry = this.#clock.at(lease.expiresAt + GRACE_SECONDS, () => {
      if (this.held) return this.scheduleExpiry();
      this.#expire();
      this.#handOff();
    });
  }

  /** The response to a read. */
  read(): Response {
    return Response.json(this.held && this.#lease !== null ? { held: true, ...this.#termFields(this.#lease) } : FREE);
  }

  /** The lock's view, which is also its row in the list. */
  view(): Record<string, unknown> {
    const lease = this.held ? this.#lease : null;
    return {
      key: this.key,
      held: lease !== null,
      holder: lease?.holder ?? null,
      acquired_at: lease?.acquiredAt ?? null,
      renewed_at: lease?.renewedAt ?? null,
      expires_at: lease === null ? null : this.#dateOf(lease.expiresAt),
      ttl_seconds: lease?.ttlSeconds ?? null,
      fencing_token: this.#fencingToken || null,
      waiters: this.#queue.filter((one) => one.respond !== null).length,
    };
  }

  #grantResponse(lease: CurrentLease, ttl: number, kind: Kind, why: string, status: number): Response {
    lease.ttlSeconds = ttl;
    lease.expiresAt = Math.min(this.#clock.now() + ttl, lease.deadline);
    if (this.#history[0] !== undefined) this.#history[0].expiresAt = this.#dateOf(lease.expiresAt);
    this.#publish(kind, lease.holder, this.#fencingToken, why, this.#dateOf(lease.expiresAt).getTime());
    this.scheduleExpiry();
    return Response.json(this.#termFields(lease), { status });
  }

  #free(kind: Kind, why: string, retired: string | null, reason?: string): Response {
    const lease = this.#lease;
    if (lease !== null && !this.held) this.#expire();
    else if (lease !== null) {
      this.#publish(kind, lease.holder, this.#fencingToken, why, undefined, reason);
      this.#endHold(why, this.#clock.utcNow(), reason);
    }
    this.#lease = null;
    if (retired !== null) this.#retired.add(retired);
    this.#handOff();
    return new Response(null, { status: 204 });
  }

  #expire(): void {
    const lease = this.#lease;
    this.#lease = null;
    if (lease === null) return;
    this.#publish("expired", lease.holder, this.#fencingToken, "not_renewed");
    this.#endHold("expired", this.#dateOf(lease.expiresAt + GRACE_SECONDS));
  }

  #endHold(ended: string, endedAt: Date, reason?: string): void {
    const hold = this.#history[0];
    if (hold !== undefined) Object.assign(hold, { ended, endedAt, reason: reason ?? null });
  }

  /** The entries of the lock's history, the latest first. */
  history(): Record<string, unknown>[] {
    if (!this.held) this.#expire();
    const now = this.#clock.utcNow().getTime();
    return this.#history.map((hold) => ({
      key: this.key,
      fencing_token: hold.fencingToken,
      holder: hold.holder,
      ...UNKNOWN_REQUESTER,
      began: hold.began,
      began_at: hold.beganAt,
      renewals: hold.renewals,
      renewed_at: hold.renewedAt,
      ended: hold.ended,
      reason: hold.reason,
      ended_at: hold.endedAt,
      expires_at: hold.expiresAt,
      held_seconds: ((hold.endedAt?.getTime() ?? now) - hold.beganAt.getTime()) / 1_000,
    }));
  }

  #handOff(): void {
    while (!this.held) {
      const next = this.#queue.find((one) => one.respond !== null);
      if (next === undefined) break;
      this.#queue = this.#queue.filter((one) => one !== next);
      next.respond?.(this.acquire(next.request, true));
    }
    this.scheduleExpiry();
  }

  #findWaiter(token: string): Waiter | undefined {
    const now = this.#clock.now();
    const stays = (one: Waiter): boolean => one.respond !== null || now < one.keptUntil;
    for (const gone of this.#queue.filter((one) => !stays(one))) this.#removeWaiter(gone, null);
    return this.#queue.find((one) => one.request.token === token);
  }

  #enqueue(request: LeaseRequest): Waiter {
    const own = this.#findWaiter(request.token);
    own?.respond?.(this.#heldResponse());
    if (own !== undefined) return Object.assign(own, { request });
    const waiter: Waiter = { request, respond: null, keptUntil: 0 };
    this.#queue.push(waiter);
    this.#publish("waiting", request.holder, null, "held");
    return waiter;
  }

  #removeWaiter(waiter: Waiter, response: Response | null): void {
    this.#queue = this.#queue.filter((one) => one !== waiter);
    this.#publish("gave_up", waiter.request.holder, null, response === null ? "left" : "refused");
    if (response !== null) waiter.respond?.(response);
    this.scheduleExpiry();
  }

  /** The response to a refused acquire names the current lease, as far as it is known. */
  #heldResponse(): Response {
    const lease = this.held ? this.#lease : null;
    const term = lease === null ? { expires_at: null, fencing_token: null } : this.#termFields(lease);
    return Response.json({ ...problem(LOCK_HELD), holder: lease?.holder ?? null, ...term }, { status: 409 });
  }

  #publish(
    kind: Kind,
    holder: string | null,
    fencingToken: number | null,
    why: string,
    expiresAtMs?: number,
    reason?: string,
  ): void {
    this.#events.publish({ key: this.key, kind, fencingToken, holder, why, expiresAtMs, reason });
  }

  #termFields(lease: CurrentLease): { expires_at: Date; fencing_token: number } {
    return { expires_at: this.#dateOf(lease.expiresAt), fencing_token: this.#fencingToken };
  }

  #dateOf(instant: number): Date {
    const left = Math.round((instant - this.#clock.now()) * 1_000);
    return new Date(this.#clock.utcNow().getTime() + left);
  }
}

const UNKNOWN_REQUESTER = {
  key_id: null,
  key_name: null,
  address: null,
  client: null,
  waited_seconds: null,
  ended_by: null,
} as const;

const FREE = { held: false } as const;

export function errorResponse(status: number, code: string, headers: Record<string, string> = {}): Response {
  return Response.json(problem(code), { status, headers });
}

function problem(code: string): { error: string; code: string } {
  return { error: code.replaceAll("_", " "), code };
}
