/**
 * The lease rules in memory, behind the same wire, under the test's clock.
 *
 * The client is the real one: what is faked is the server, as a `fetch`. One `FakeLocks` may serve any number of
 * clients. Not promised: it has no quota and no credentials, and forgets no free lock.
 */

import { Client, type ClientOptions } from "../client.ts";
import { LOCK_HELD, LOCK_OWNERSHIP_LOST } from "../errors.ts";
import { ACQUISITION_SECONDS_MAX, MARGIN_SECONDS } from "../heartbeat.ts";
import { ManualClock } from "./clock.ts";

export const FAKE_URL = "http://fake.invalid";
export const FAKE_SERVICE_KEY = "sk-fake";
const GRACE_SECONDS = 1;

interface Lock {
  fencingToken: number;
  owner: string | null;
  expiresAt: number;
  deadline: number;
  readonly retired: Set<string>;
}

/** A lock server without a network. Pass its `fetch` to a `Client`, or ask it for one. */
export class FakeLocks {
  readonly clock: ManualClock;
  readonly #locks: Map<string, Lock> = new Map();

  constructor(clock: ManualClock = new ManualClock()) {
    this.clock = clock;
  }

  /** A client of these locks under this clock. */
  client(options: ClientOptions = {}): Client {
    return new Client({
      apiUrl: FAKE_URL,
      serviceKey: FAKE_SERVICE_KEY,
      clock: this.clock,
      fetch: this.fetch,
      ...options,
    });
  }

  /** Serve one request at the clock's instant. */
  readonly fetch = async (url: string, init: RequestInit): Promise<Response> => {
    init.signal?.throwIfAborted();
    const [, , key = "", lease] = new URL(url).pathname.split("/");
    const token = new Headers(init.headers).get("X-Volcano-Lock-Token") ?? "";
    const ttl = typeof init.body === "string" ? (JSON.parse(init.body) as { ttl_seconds: number }).ttl_seconds : 0;
    const lock = this.#lock(key);
    switch (`${init.method} ${lease ?? ""}`) {
      case "POST lease":
        return this.#acquire(lock, token, ttl);
      case "PATCH lease":
        return this.#renew(lock, token, ttl, 200);
      case "DELETE lease":
        if (this.#held(lock) && lock.owner !== token) return refused(409, LOCK_OWNERSHIP_LOST);
        return this.#free(lock, token);
      case "GET ":
        return Response.json(this.#held(lock) ? { held: true, ...this.#term(lock) } : { held: false });
      case "DELETE ":
        return this.#free(lock, lock.owner);
      default:
        return refused(404, "not_found");
    }
  };

  #lock(key: string): Lock {
    const lock = this.#locks.get(key) ?? {
      fencingToken: 0,
      owner: null,
      expiresAt: 0,
      deadline: 0,
      retired: new Set<string>(),
    };
    this.#locks.set(key, lock);
    return lock;
  }

  /** Whether nobody may take it over yet. */
  #held(lock: Lock): boolean {
    return lock.owner !== null && this.clock.now() < lock.expiresAt + GRACE_SECONDS;
  }

  #acquire(lock: Lock, token: string, ttl: number): Response {
    if (this.#held(lock)) {
      return lock.owner === token ? this.#renew(lock, token, ttl, 201) : refused(409, LOCK_HELD);
    }
    if (lock.retired.has(token)) return refused(409, LOCK_OWNERSHIP_LOST);
    lock.owner = token;
    lock.retired.clear();
    lock.deadline = this.clock.now() + ACQUISITION_SECONDS_MAX;
    lock.fencingToken = Math.max(lock.fencingToken + 1, this.clock.utcNow().getTime());
    return this.#granted(lock, ttl, 201);
  }

  #renew(lock: Lock, token: string, ttl: number, status: number): Response {
    if (lock.owner !== token || this.clock.now() >= lock.expiresAt - MARGIN_SECONDS) {
      return refused(409, LOCK_OWNERSHIP_LOST);
    }
    return this.#granted(lock, ttl, status);
  }

  #granted(lock: Lock, ttl: number, status: number): Response {
    lock.expiresAt = Math.min(this.clock.now() + ttl, lock.deadline);
    return Response.json(this.#term(lock), { status });
  }

  #free(lock: Lock, retired: string | null): Response {
    lock.owner = null;
    if (retired !== null) lock.retired.add(retired);
    return new Response(null, { status: 204 });
  }

  #term(lock: Lock): { expires_at: string; fencing_token: number } {
    const left = Math.round((lock.expiresAt - this.clock.now()) * 1_000);
    const expiresAt = new Date(this.clock.utcNow().getTime() + left);
    return { expires_at: expiresAt.toISOString(), fencing_token: lock.fencingToken };
  }
}

/** A `Client` with a lock server of its own in memory, or the one given. */
export class FakeClient extends Client {
  readonly clock: ManualClock;
  readonly server: FakeLocks;

  constructor(clock: ManualClock = new ManualClock(), server: FakeLocks = new FakeLocks(clock)) {
    super({ apiUrl: FAKE_URL, serviceKey: FAKE_SERVICE_KEY, clock: server.clock, fetch: server.fetch });
    this.clock = server.clock;
    this.server = server;
  }
}

function refused(status: number, code: string): Response {
  return Response.json({ error: code.replaceAll("_", " "), code }, { status });
}
