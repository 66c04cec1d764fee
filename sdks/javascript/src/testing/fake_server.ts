/**
 * A fake lock server in memory: the lease rules behind the real HTTP API, under the test's clock.
 *
 * The client is the real one; the fake replaces its `fetch`. One `FakeLocks` may serve any number of clients. It supports
 * waits, the list and events. Limits: it has no quota, no credentials and no size limits, and never purges free locks.
 */

import { Client, type ClientOptions } from "../client.ts";
import { ManualClock } from "./clock.ts";
import { EventLog } from "./event_log.ts";
import { errorResponse, FakeLock, type LeaseRequest } from "./fake_lock.ts";

export const FAKE_URL = "http://fake.invalid";
export const FAKE_SERVICE_KEY = "sk-fake";
const PAGE_ROWS = 100;

/** A lock server without a network. Pass its `fetch` to a `Client`, or call `client()`. */
export class FakeLocks {
  readonly clock: ManualClock;
  readonly #locks: Map<string, FakeLock> = new Map();
  readonly #events: EventLog;

  constructor(clock: ManualClock = new ManualClock()) {
    this.clock = clock;
    this.#events = new EventLog(clock);
  }

  /** Creates a client of this server under its clock. */
  client(options: ClientOptions = {}): Client {
    return new Client({
      apiUrl: FAKE_URL,
      serviceKey: FAKE_SERVICE_KEY,
      clock: this.clock,
      fetch: this.fetch,
      ...options,
    });
  }

  /**
   * Simulates a node that stops while another continues with the same store: waiters get a 503, event streams end, and
   * earlier events cannot be resumed.
   */
  restart(): void {
    this.#events.restart();
    for (const lock of this.#locks.values()) lock.disconnectWaiters();
  }

  /** Serves one request at the clock's instant. */
  readonly fetch = async (url: string, init: RequestInit): Promise<Response> => {
    init.signal?.throwIfAborted();
    const { pathname, searchParams } = new URL(url);
    const [, , key = "", part, fencingToken] = pathname.split("/");
    if (init.method !== "GET")
      return this.#handleChange(`${init.method} ${part ?? ""}`, key, init, Number(fencingToken));
    if (key === "") return this.#listPage(searchParams);
    const prefix = searchParams.get("prefix");
    if (part === "history") return this.#history(this.#lock(key), searchParams);
    if (part === "events") return this.#openStream((one) => one === key, init);
    if (part !== undefined) return errorResponse(404, "not_found");
    if (key === "events" && prefix !== null) return this.#openStream((one) => one.startsWith(prefix), init);
    const lock = this.#lock(key);
    return searchParams.get("view") === "full" ? Response.json(lock.view()) : lock.read();
  };

  #handleChange(route: string, key: string, init: RequestInit, token: number): Response | Promise<Response> {
    const lock = this.#lock(key);
    const { request, waitSeconds } = parseLeaseRequest(init);
    switch (route) {
      case "POST lease":
        return waitSeconds > 0 ? lock.wait(request, waitSeconds, init.signal ?? null) : lock.acquire(request);
      case "PATCH lease":
        return lock.renew(request);
      case "DELETE lease":
        return lock.release(request.token);
      case "DELETE ":
        return lock.forceRelease(reasonOf(init));
      case "DELETE leases":
        return token === lock.fencingToken ? lock.forceRelease(reasonOf(init)) : errorResponse(409, "lock_changed");
      default:
        return errorResponse(404, "not_found");
    }
  }

  #listPage(query: URLSearchParams): Response {
    const state = query.get("state") ?? "all";
    const limit = Number(query.get("limit") ?? PAGE_ROWS);
    const after = query.get("cursor") ?? "";
    const rows = [...this.#locks.values()]
      .filter((lock) => lock.known && lock.key > after && lock.key.startsWith(query.get("prefix") ?? ""))
      .filter((lock) => state === "all" || lock.held === (state === "held"))
      .sort((one, other) => (one.key < other.key ? -1 : 1))
      .map((lock) => lock.view());
    const items = rows.slice(0, limit);
    return Response.json({ items, next_cursor: rows.length > limit ? items.at(-1)?.key : null });
  }

  /** All entries on one page. */
  #history(lock: FakeLock, query: URLSearchParams): Response {
    const [since, before, at] = ["from", "to", "at"].map((name) => Date.parse(query.get(name) ?? ""));
    const items = lock.history().filter((hold) => {
      const [began, ended] = [Number(hold.began_at), hold.ended_at === null ? Infinity : Number(hold.ended_at)];
      return !(ended <= Number(since) || began >= Number(before) || began > Number(at) || ended <= Number(at));
    });
    return Response.json({ items, next_cursor: null });
  }

  #openStream(matches: (key: string) => boolean, init: RequestInit): Response {
    const lastEventId = new Headers(init.headers).get("Last-Event-ID");
    const response = this.#events.subscribe(matches, lastEventId, init.signal ?? null);
    for (const lock of this.#locks.values()) lock.scheduleExpiry();
    return response;
  }

  #lock(key: string): FakeLock {
    const lock = this.#locks.get(key) ?? new FakeLock(key, this.clock, this.#events);
    this.#locks.set(key, lock);
    return lock;
  }
}

function reasonOf(init: RequestInit): string | undefined {
  return decodeURIComponent(new Headers(init.headers).get("X-Volcano-Reason") ?? "") || undefined;
}

function parseLeaseRequest(init: RequestInit): { request: LeaseRequest; waitSeconds: number } {
  const headers = new Headers(init.headers);
  const body = typeof init.body === "string" ? (JSON.parse(init.body) as Record<string, number>) : {};
  const request = {
    token: (headers.get("X-Volcano-Lock-Token") ?? "").toLowerCase(),
    holder: headers.get("X-Volcano-Lock-Holder"),
    ttlSeconds: body.ttl_seconds ?? 0,
  };
  return { request, waitSeconds: body.wait_seconds ?? 0 };
}

/** A `Client` of its own fake server, or of a given one. */
export class FakeClient extends Client {
  readonly clock: ManualClock;
  readonly server: FakeLocks;

  constructor(clock: ManualClock = new ManualClock(), server: FakeLocks = new FakeLocks(clock)) {
    super({ apiUrl: FAKE_URL, serviceKey: FAKE_SERVICE_KEY, clock: server.clock, fetch: server.fetch });
    this.clock = server.clock;
    this.server = server;
  }
}
