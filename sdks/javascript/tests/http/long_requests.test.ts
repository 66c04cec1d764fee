import { afterEach, describe, expect, it, vi } from "vitest";
import { LONG_REQUEST_FRACTION } from "../../src/http/long_requests.ts";
import type { Leadership } from "../../src/index.ts";
import { createHarness, deferred, granted, KEY, TTL } from "../harness.ts";

const REQUESTS_MAX = 8;
const CALLS = 20;

afterEach(() => vi.unstubAllGlobals());

describe("case 78: a runtime that caps its connections", () => {
  /** A harness whose long requests in flight are counted. */
  function counted() {
    const harness = createHarness();
    const { fetch } = harness.transport;
    const longRequests = { inFlight: 0, most: 0 };
    Object.assign(harness.transport, {
      fetch: async (...[url, init]: Parameters<typeof fetch>) => {
        const isStream = url.endsWith("/events");
        if (!isStream && !String(init.body).includes("wait_seconds")) return fetch(url, init);
        longRequests.inFlight += 1;
        longRequests.most = Math.max(longRequests.most, longRequests.inFlight);
        const end = (): void => {
          longRequests.inFlight -= 1;
        };
        init.signal?.addEventListener("abort", end);
        const response = await fetch(url, init);
        if (!isStream) end();
        return response;
      },
    });
    return { ...harness, longRequests };
  }

  function stubBun(): void {
    vi.stubGlobal("Bun", {});
    vi.stubEnv("BUN_CONFIG_MAX_HTTP_REQUESTS", String(REQUESTS_MAX));
  }

  it("Bun: waits beyond the share of long requests poll, and all are granted", async () => {
    stubBun();
    const { client, clock, longRequests } = counted();
    const end = deferred();
    const block = client.locks.withLock(KEY, { ttl: TTL }, () => end.promise);
    await clock.settle();
    const waits = Array.from({ length: CALLS }, async () => {
      const lease = granted(await client.locks.acquire(KEY, { ttl: TTL, wait: Number.POSITIVE_INFINITY }));
      await client.locks.release(KEY, lease);
    });
    await clock.advance(300);
    expect(longRequests).toEqual({
      inFlight: REQUESTS_MAX * LONG_REQUEST_FRACTION,
      most: REQUESTS_MAX * LONG_REQUEST_FRACTION,
    });
    end.resolve();
    expect((await block).error).toBeNull();
    await clock.advance(60);
    await Promise.all(waits);
    expect(longRequests.inFlight).toBe(0);
    expect(clock.waiting).toBe(0);
  });

  it("Bun: a wait that polls ends when its time is up", async () => {
    stubBun();
    const { client, clock, rival } = counted();
    await rival.locks.acquire(KEY, { ttl: 600 });
    const waits = Array.from({ length: CALLS }, () => client.locks.acquire(KEY, { ttl: TTL, wait: 30 }));
    await clock.advance(31);
    for (const result of await Promise.all(waits))
      expect(result).toMatchObject({ acquired: false, reason: "lock_held" });
  });

  it("Bun: watches beyond the share read the lock again and again, and miss no last change", async () => {
    stubBun();
    const { client, clock, rival, longRequests } = counted();
    const last: (Leadership | undefined)[] = Array(CALLS).fill(undefined);
    const watches = last.map((_, index) => {
      const watch = client.locks.watch(KEY);
      const follow = async (): Promise<void> => {
        for await (const change of watch) last[index] = change;
      };
      return { watch, ended: follow() };
    });
    await clock.advance(10);
    const lease = granted(await rival.locks.acquire(KEY, { ttl: 600 }));
    await clock.advance(10);
    expect(last.map((one) => one?.fencingToken)).toEqual(Array(CALLS).fill(lease.fencingToken));
    expect(longRequests.most).toBe(REQUESTS_MAX * LONG_REQUEST_FRACTION);
    await Promise.all(watches.map(({ watch }) => watch.return?.()));
    await Promise.all(watches.map(({ ended }) => ended));
    expect(longRequests.inFlight).toBe(0);
  });

  it("Node has no cap", async () => {
    const { client, clock, rival, longRequests } = counted();
    await rival.locks.acquire(KEY, { ttl: 600 });
    const waits = Array.from({ length: 300 }, () => client.locks.acquire(KEY, { ttl: TTL, wait: 5 }));
    await clock.advance(6);
    await Promise.all(waits);
    expect(longRequests.most).toBe(300);
  });
});
