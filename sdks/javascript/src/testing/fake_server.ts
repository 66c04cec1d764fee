/**
 * The lease rules in memory, behind the same wire, under the test's clock.
 *
 * The client is the real one: what is faked is the server, as a `fetch`. One `FakeLocks` may serve any number of
 * clients. It knows waiting, the list and the events too. Not promised: it has no quota, no credentials and no bounds,
 * and forgets no free lock.
 */

import { Client, type ClientOptions } from "../client.ts";
import { ManualClock } from "./clock.ts";
import { Happenings } from "./event_log.ts";
import { type Asking, FakeLock, refused } from "./fake_lock.ts";

export const FAKE_URL = "http://fake.invalid";
export const FAKE_SERVICE_KEY = "sk-fake";
const PAGE_ROWS = 100;

/** A lock server without a network. Pass its `fetch` to a `Client`, or ask it for one. */
export class FakeLocks {
  readonly clock: ManualClock;
  readonly #locks: Map<string, FakeLock> = new Map();
  readonly #happenings: Happenings;

  constructor(clock: ManualClock = new ManualClock()) {
    this.clock = clock;
    this.#happenings = new Happenings(clock);
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

  /**
   * As if this node stopped and another went on with the same store: whoever waits is told to ask elsewhere, streams
   * of events end, and what they told before cannot be resumed.
   */
  restart(): void {
    this.#happenings.restart();
    for (const lock of this.#locks.values()) lock.dismiss();
  }

  /** Serve one request at the clock's instant. */
  readonly fetch = async (url: string, init: RequestInit): Promise<Response> => {
    init.signal?.throwIfAborted();
    const { pathname, searchParams } = new URL(url);
    const [, , key = "", part] = pathname.split("/");
    if (init.method !== "GET") return this.#change(`${init.method} ${part ?? ""}`, key, init);
    if (key === "") return this.#page(searchParams);
    const prefix = searchParams.get("prefix");
    if (part === "events") return this.#stream((one) => one === key, init);
    if (part !== undefined) return refused(404, "not_found");
    if (key === "events" && prefix !== null) return this.#stream((one) => one.startsWith(prefix), init);
    const lock = this.#lock(key);
    return searchParams.get("view") === "full" ? Response.json(lock.row()) : lock.read();
  };

  #change(route: string, key: string, init: RequestInit): Response | Promise<Response> {
    const lock = this.#lock(key);
    const { asking, waitSeconds } = askingOf(init);
    switch (route) {
      case "POST lease":
        return waitSeconds > 0 ? lock.wait(asking, waitSeconds, init.signal ?? null) : lock.acquire(asking);
      case "PATCH lease":
        return lock.renew(asking);
      case "DELETE lease":
        return lock.release(asking.token);
      case "DELETE ":
        return lock.forceRelease();
      default:
        return refused(404, "not_found");
    }
  }

  #page(asked: URLSearchParams): Response {
    const state = asked.get("state") ?? "all";
    const limit = Number(asked.get("limit") ?? PAGE_ROWS);
    const after = asked.get("cursor") ?? "";
    const rows = [...this.#locks.values()]
      .filter((lock) => lock.known && lock.key > after && lock.key.startsWith(asked.get("prefix") ?? ""))
      .filter((lock) => state === "all" || lock.held === (state === "held"))
      .sort((one, other) => (one.key < other.key ? -1 : 1))
      .map((lock) => lock.row());
    const items = rows.slice(0, limit);
    return Response.json({ items, next_cursor: rows.length > limit ? items.at(-1)?.key : null });
  }

  #stream(matches: (key: string) => boolean, init: RequestInit): Response {
    const lastEventId = new Headers(init.headers).get("Last-Event-ID");
    const response = this.#happenings.stream(matches, lastEventId, init.signal ?? null);
    for (const lock of this.#locks.values()) lock.attend();
    return response;
  }

  #lock(key: string): FakeLock {
    const lock = this.#locks.get(key) ?? new FakeLock(key, this.clock, this.#happenings);
    this.#locks.set(key, lock);
    return lock;
  }
}

function askingOf(init: RequestInit): { asking: Asking; waitSeconds: number } {
  const headers = new Headers(init.headers);
  const body = typeof init.body === "string" ? (JSON.parse(init.body) as Record<string, number>) : {};
  const asking = {
    token: (headers.get("X-Volcano-Lock-Token") ?? "").toLowerCase(),
    holder: headers.get("X-Volcano-Lock-Holder"),
    ttlSeconds: body.ttl_seconds ?? 0,
  };
  return { asking, waitSeconds: body.wait_seconds ?? 0 };
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
