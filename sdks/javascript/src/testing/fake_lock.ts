/**
 * One lock of a fake: the lease rules and the lock's line, at the clock's instant.
 *
 * Who waits is served first come, first served, in the moment in which the lock becomes free. A place is kept for a
 * while after its request ended, and whoever is absent is passed over without losing it. The clock is asked for a call
 * at the lock's expiry only while somebody waits or watches.
 */

import { LOCK_HELD, LOCK_OWNERSHIP_LOST } from "../errors.ts";
import { ACQUISITION_SECONDS_MAX, MARGIN_SECONDS } from "../protocol/renewal_plan.ts";
import type { ManualClock } from "./clock.ts";
import type { Happening, Happenings } from "./event_log.ts";

export const PLACE_KEPT_SECONDS = 5;
const GRACE_SECONDS = 1;

/** Who asks for a lease. */
export interface Asking {
  readonly token: string;
  readonly holder: string | null;
  readonly ttlSeconds: number;
}

interface Place {
  asking: Asking;
  /** Ends the request that waits here; null while nobody asks. */
  answer: ((response: Response) => void) | null;
  keptUntil: number;
}

interface Holding extends Asking {
  readonly acquiredAt: Date;
  readonly deadline: number;
  renewedAt: Date;
  expiresAt: number;
  ttlSeconds: number;
}

/** A lock that is not thrown away once it was known. */
export class FakeLock {
  readonly key: string;
  readonly #clock: ManualClock;
  readonly #happenings: Happenings;
  readonly #retired: Set<string> = new Set();
  #line: Place[] = [];
  #holding: Holding | null = null;
  #fencingToken = 0;
  #forgetExpiry: () => void = () => {};

  constructor(key: string, clock: ManualClock, happenings: Happenings) {
    this.key = key;
    this.#clock = clock;
    this.#happenings = happenings;
  }

  /** Whether nobody may take it over yet. */
  get held(): boolean {
    return this.#holding !== null && this.#clock.now() < this.#holding.expiresAt + GRACE_SECONDS;
  }

  /** Whether it is listed: somebody had it, or waits for it. */
  get known(): boolean {
    return this.#fencingToken > 0 || this.#line.length > 0;
  }

  acquire(asking: Asking, waited = false): Response {
    const before = this.#holding;
    if (this.held) {
      return before?.token === asking.token ? this.#renewed(asking, "repeated", 201) : refused(409, LOCK_HELD);
    }
    if (this.#retired.has(asking.token)) return refused(409, LOCK_OWNERSHIP_LOST);
    if (before !== null) this.#expired();
    this.#retired.clear();
    const now = this.#clock.utcNow();
    this.#fencingToken = Math.max(this.#fencingToken + 1, now.getTime());
    const deadline = this.#clock.now() + ACQUISITION_SECONDS_MAX;
    this.#holding = { ...asking, acquiredAt: now, renewedAt: now, expiresAt: 0, deadline };
    const why = before === null ? "free" : "taken_over";
    return this.#granted(this.#holding, asking.ttlSeconds, "acquired", waited ? "waited" : why, 201);
  }

  renew(asking: Asking): Response {
    return this.#renewed(asking, "renewed", 200);
  }

  #renewed({ token, ttlSeconds }: Asking, why: string, status: number): Response {
    const lease = this.#holding;
    if (lease === null || lease.token !== token || this.#clock.now() >= lease.expiresAt - MARGIN_SECONDS) {
      return refused(409, LOCK_OWNERSHIP_LOST);
    }
    lease.renewedAt = this.#clock.utcNow();
    return this.#granted(lease, ttlSeconds, "renewed", why, status);
  }

  release(token: string): Response {
    const place = this.#placeOf(token);
    if (place !== undefined) this.#leave(place, refused(409, LOCK_OWNERSHIP_LOST));
    if (this.held && this.#holding?.token !== token) {
      return place === undefined ? refused(409, LOCK_OWNERSHIP_LOST) : new Response(null, { status: 204 });
    }
    return this.#free("released", "released", token);
  }

  forceRelease(): Response {
    return this.#free("force_released", "forced", this.#holding?.token ?? null);
  }

  /** As `acquire`, after a place in the line if that would be refused; "held" once the time is up. */
  wait(asking: Asking, seconds: number, signal: AbortSignal | null): Response | Promise<Response> {
    if (!this.held || this.#holding?.token === asking.token) return this.acquire(asking);
    return new Promise((resolve, reject) => {
      const place = this.#taken(asking);
      const end = (settle: () => void): void => {
        forgetEnd();
        signal?.removeEventListener("abort", onAbort);
        place.answer = null;
        settle();
      };
      const forgetEnd = this.#clock.at(this.#clock.now() + seconds, () => {
        place.keptUntil = this.#clock.now() + PLACE_KEPT_SECONDS;
        place.answer?.(refused(409, LOCK_HELD));
        this.attend();
      });
      const onAbort = (): void => {
        end(() => reject(signal?.reason));
        this.#leave(place, null);
      };
      place.answer = (response) => end(() => resolve(response));
      signal?.addEventListener("abort", onAbort);
      this.attend();
    });
  }

  /** Whoever waits is told to ask elsewhere, and has no place here any more. */
  dismiss(): void {
    const waiting = this.#line;
    this.#line = [];
    for (const place of waiting) place.answer?.(refused(503, "lock_service_unavailable", { "Retry-After": "1" }));
    this.attend();
  }

  /** Be there when the lease runs out, if anybody cares. */
  attend(): void {
    this.#forgetExpiry();
    this.#forgetExpiry = () => {};
    const lease = this.held ? this.#holding : null;
    if (lease === null || !(this.#happenings.watched(this.key) || this.#line.some((one) => one.answer))) return;
    this.#forgetExpiry = this.#clock.at(lease.expiresAt + GRACE_SECONDS, () => {
      if (this.held) return this.attend();
      this.#expired();
      this.#serve();
    });
  }

  /** What a read says. */
  read(): Response {
    return Response.json(this.held && this.#holding !== null ? { held: true, ...this.#term(this.#holding) } : FREE);
  }

  /** One row of the list. */
  row(): Record<string, unknown> {
    const lease = this.held ? this.#holding : null;
    return {
      key: this.key,
      held: lease !== null,
      holder: lease?.holder ?? null,
      acquired_at: lease?.acquiredAt ?? null,
      renewed_at: lease?.renewedAt ?? null,
      expires_at: lease === null ? null : this.#dateOf(lease.expiresAt),
      ttl_seconds: lease?.ttlSeconds ?? null,
      fencing_token: this.#fencingToken || null,
      waiters: this.#line.filter((one) => one.answer !== null).length,
    };
  }

  #granted(lease: Holding, ttl: number, kind: Happening["kind"], why: string, status: number): Response {
    lease.ttlSeconds = ttl;
    lease.expiresAt = Math.min(this.#clock.now() + ttl, lease.deadline);
    this.#tell(kind, lease.holder, this.#fencingToken, why, this.#dateOf(lease.expiresAt).getTime());
    this.attend();
    return Response.json(this.#term(lease), { status });
  }

  #free(kind: Happening["kind"], why: string, retired: string | null): Response {
    const lease = this.#holding;
    if (lease !== null && !this.held) this.#expired();
    else if (lease !== null) this.#tell(kind, lease.holder, this.#fencingToken, why);
    this.#holding = null;
    if (retired !== null) this.#retired.add(retired);
    this.#serve();
    return new Response(null, { status: 204 });
  }

  #expired(): void {
    const lease = this.#holding;
    this.#holding = null;
    if (lease !== null) this.#tell("expired", lease.holder, this.#fencingToken, "not_renewed");
  }

  #serve(): void {
    while (!this.held) {
      const next = this.#line.find((one) => one.answer !== null);
      if (next === undefined) break;
      this.#line = this.#line.filter((one) => one !== next);
      next.answer?.(this.acquire(next.asking, true));
    }
    this.attend();
  }

  #placeOf(token: string): Place | undefined {
    const now = this.#clock.now();
    const stays = (one: Place): boolean => one.answer !== null || now < one.keptUntil;
    for (const gone of this.#line.filter((one) => !stays(one))) this.#leave(gone, null);
    return this.#line.find((one) => one.asking.token === token);
  }

  #taken(asking: Asking): Place {
    const own = this.#placeOf(asking.token);
    own?.answer?.(refused(409, LOCK_HELD));
    if (own !== undefined) return Object.assign(own, { asking });
    const place: Place = { asking, answer: null, keptUntil: 0 };
    this.#line.push(place);
    this.#tell("waiting", asking.holder, null, "held");
    return place;
  }

  #leave(place: Place, response: Response | null): void {
    this.#line = this.#line.filter((one) => one !== place);
    this.#tell("gave_up", place.asking.holder, null, response === null ? "left" : "refused");
    if (response !== null) place.answer?.(response);
    this.attend();
  }

  #tell(kind: Happening["kind"], holder: string | null, fencingToken: number | null, why: string, ms?: number): void {
    const until = ms === undefined ? {} : { expiresAtMs: ms };
    this.#happenings.tell({ key: this.key, kind, fencingToken, holder, why, ...until });
  }

  #term(lease: Holding): { expires_at: Date; fencing_token: number } {
    return { expires_at: this.#dateOf(lease.expiresAt), fencing_token: this.#fencingToken };
  }

  #dateOf(instant: number): Date {
    const left = Math.round((instant - this.#clock.now()) * 1_000);
    return new Date(this.#clock.utcNow().getTime() + left);
  }
}

const FREE = { held: false } as const;

export function refused(status: number, code: string, headers: Record<string, string> = {}): Response {
  return Response.json({ error: code.replaceAll("_", " "), code }, { status, headers });
}
