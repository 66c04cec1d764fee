/** SDK-11: waiting for a lock. */

import { describe, expect, it, vi } from "vitest";
import { type Fetch, LockOwnershipLostError, TransportError } from "../../src/index.ts";
import { WAIT_SLICE_SECONDS } from "../../src/protocol/acquire_wait.ts";
import { BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_MIN } from "../../src/protocol/backoff.ts";
import type { Fault } from "../../src/testing/index.ts";
import { createHarness, defined, type Harness, KEY, sentCount, sentMethods, TOKEN, TTL } from "../harness.ts";

/** Makes the rival hold the lock. */
async function heldByRival(harness: Harness, ttl = 7_776_000) {
  const lease = defined((await harness.rival.locks.acquire(KEY, { ttl })).lease);
  return { free: () => harness.rival.locks.release(KEY, lease) };
}

/** Records the wait_seconds of each acquire. */
function recordWaits(harness: Harness): Array<number | undefined> {
  const waits: Array<number | undefined> = [];
  const { fetch } = harness.transport;
  const recording: Fetch = (url, init) => {
    if (init.method === "POST") waits.push(JSON.parse(String(init.body)).wait_seconds);
    return fetch(url, init);
  };
  Object.assign(harness.transport, { fetch: recording });
  return waits;
}

describe("SDK-11: waiting for a lock", () => {
  it("without `wait`, or with 0, sends no wait_seconds", async () => {
    const harness = createHarness();
    const waits = recordWaits(harness);
    await heldByRival(harness);
    for (const options of [{ ttl: TTL }, { ttl: TTL, wait: 0 }]) {
      expect(await harness.client.locks.acquire(KEY, options)).toEqual({
        acquired: false,
        lease: null,
        error: null,
        reason: "lock_held",
      });
    }
    expect(waits).toEqual([undefined, undefined]);
  });

  it.each<Fault>([
    "drop_before_send",
    "drop_after_send",
    "reset",
    "unavailable",
    "rate_limited",
    "hang_before",
    { status: 500 },
    { status: 502, body: "<html>" },
  ])("survives %j with the same token, and backs off between requests", async (fault) => {
    const harness = createHarness([fault, fault, fault]);
    const start = harness.clock.now();
    const pending = harness.client.locks.acquire(KEY, { ttl: TTL, wait: 300, token: TOKEN });
    await harness.clock.advance(300);
    expect((await pending).lease?.token).toBe(TOKEN);
    expect(new Set(harness.transport.seen.map((one) => one.token))).toEqual(new Set([TOKEN]));
    expect(sentCount(harness, "POST")).toBe(4);
    expect(harness.clock.now()).toBeGreaterThan(start);
    expect(sentCount(harness, "DELETE")).toBe(0);
  });

  it("retries a first request without a response at once, and backs off after that", async () => {
    const harness = createHarness(["reset", "reset"]);
    const start = harness.clock.now();
    const pending = harness.client.locks.acquire(KEY, { ttl: TTL, wait: 300 }).then(() => harness.clock.now() - start);
    await harness.clock.settle();
    expect(sentMethods(harness.transport)).toBe("POST POST");
    await harness.clock.advance(300);
    expect(await pending).toBeGreaterThanOrEqual(BACKOFF_SECONDS_MIN);
    expect(sentMethods(harness.transport)).toBe("POST POST POST");
  });

  it("honours Retry-After, and ends at once if that is later than the end of the wait", async () => {
    const harness = createHarness([{ status: 429, headers: { "Retry-After": "40" } }]);
    const start = harness.clock.now();
    const pending = harness.client.locks.acquire(KEY, { ttl: TTL, wait: 100 });
    await harness.clock.advance(39.9);
    expect(sentCount(harness, "POST")).toBe(1);
    await harness.clock.advance(60);
    expect((await pending).acquired).toBe(true);
    harness.transport.script = [{ status: 429, headers: { "Retry-After": "40" } }];
    const { error } = await harness.client.locks.acquire("other", { ttl: TTL, wait: 10 });
    expect(error).toMatchObject({ name: "RateLimitedError", retryAfter: 40 });
    expect(harness.clock.now() - start).toBeCloseTo(99.9);
  });

  it.each([
    [401, "AuthenticationError"],
    [403, "PermissionDeniedError"],
    [400, "ValidationError"],
  ])("%i ends the wait", async (status, name) => {
    const harness = createHarness([{ status }]);
    const { error } = await harness.client.locks.acquire(KEY, { ttl: TTL, wait: 100 });
    expect(error?.name).toBe(name);
    expect(sentMethods(harness.transport)).toBe("POST");
  });

  it("SDK-2, SDK-11, case 63: a damaged record ends an acquire at once, with and without a wait", async () => {
    for (const wait of [0, 100]) {
      const harness = createHarness();
      harness.transport.otherwise = { status: 503, body: '{"error": "damaged", "code": "lock_record_damaged"}' };
      const { error } = await harness.client.locks.acquire(KEY, { ttl: TTL, wait });
      expect(error).toMatchObject({ name: "ServerError", code: "lock_record_damaged" });
      expect(sentCount(harness, "POST")).toBe(1);
    }
  });

  it("if a grant expired before its response arrived, the wait continues with a new token", async () => {
    const harness = createHarness(["drop_after_send", { status: 503, headers: { "Retry-After": "9" } }]);
    const pending = harness.client.locks.acquire(KEY, { ttl: 10, wait: 100, token: TOKEN });
    await harness.clock.advance(15);
    const { lease } = await pending;
    expect(sentMethods(harness.transport)).toBe("POST POST POST DELETE POST");
    expect(harness.transport.seen.map((one) => one.token === TOKEN)).toEqual([true, true, true, true, false]);
    expect((await harness.client.locks.renew(KEY, defined(lease))).error).toBeNull();
  });

  it("an ownership loss of a new token ends the wait", async () => {
    const harness = createHarness(["drop_after_send"]);
    harness.transport.otherwise = { status: 409, body: '{"error": "lost", "code": "lock_ownership_lost"}' };
    const { reason } = await harness.client.locks.acquire(KEY, { ttl: TTL, wait: 100 });
    expect(reason).toBe("lock_ownership_lost");
    expect(sentMethods(harness.transport)).toBe("POST POST DELETE POST");
  });

  it("backs off if the service does not hold requests", async () => {
    const harness = createHarness();
    harness.transport.otherwise = { status: 409, body: '{"error": "held", "code": "lock_held"}' };
    const pending = harness.client.locks.acquire(KEY, { ttl: TTL, wait: 100 });
    await harness.clock.advance(100);
    expect(await pending).toEqual({ acquired: false, lease: null, error: null, reason: "lock_held" });
    expect(sentCount(harness, "POST")).toBeGreaterThan(95 / BACKOFF_SECONDS_MAX);
    expect(sentCount(harness, "POST")).toBeLessThan(60);
  });

  it("SDK-2: a cancelled wait leaves the queue and is not granted the lock", async () => {
    const harness = createHarness();
    const rival = await heldByRival(harness);
    const caller = new AbortController();
    const pending = harness.client.locks.acquire(KEY, { ttl: TTL, wait: 600, signal: caller.signal });
    await harness.clock.advance(3);
    caller.abort(new Error("enough"));
    const { acquired, error } = await pending;
    expect(acquired).toBe(false);
    expect(error).toBeInstanceOf(TransportError);
    expect(error?.cause).toBe(caller.signal.reason);
    expect(sentMethods(harness.transport)).toBe("POST DELETE");
    await rival.free();
    expect((await harness.rival.locks.get(KEY)).state?.held).toBe(false);
    expect(harness.clock.waiting).toBe(0);
  });

  it("SDK-2: a wait that is cancelled during back-off leaves the queue too", async () => {
    const harness = createHarness();
    await heldByRival(harness);
    const caller = new AbortController();
    const pending = harness.client.locks.acquire(KEY, { ttl: TTL, wait: 600, signal: caller.signal });
    await harness.clock.settle();
    harness.transport.script = ["rate_limited"];
    await harness.clock.advance(WAIT_SLICE_SECONDS + 0.5);
    expect(sentMethods(harness.transport)).toBe("POST POST");
    caller.abort();
    expect((await pending).error).toMatchObject({ requestSent: false });
    expect(sentMethods(harness.transport)).toBe("POST POST DELETE");
    expect(harness.clock.waiting).toBe(0);
  });

  it("a signal that has already aborted sends nothing", async () => {
    const harness = createHarness();
    const signal = AbortSignal.abort();
    expect((await harness.client.locks.acquire(KEY, { ttl: TTL, wait: 9, signal })).error).toBeInstanceOf(
      TransportError,
    );
    expect(harness.transport.seen).toEqual([]);
  });

  it("case 18: the body does not run if the wait ends or is cancelled", async () => {
    const harness = createHarness();
    await heldByRival(harness);
    const body = vi.fn();
    const waiting = harness.client.locks.withLock(KEY, { ttl: TTL, wait: 40 }, body);
    await harness.clock.advance(40);
    expect(await waiting).toEqual({ acquired: false, data: null, error: null, reason: "lock_held" });
    const signal = AbortSignal.abort();
    expect((await harness.client.locks.withLock(KEY, { ttl: TTL, wait: 40, signal }, body)).acquired).toBe(false);
    expect(body).not.toHaveBeenCalled();
  });
});

describe("SDK-11: confirmation of a late grant", () => {
  it("if the confirmation fails at the end of the wait, its error is returned and the lease released", async () => {
    const harness = createHarness();
    harness.transport.script = [{ takesSeconds: 20 }, "reset"];
    const { error } = await harness.client.locks.acquire(KEY, { ttl: 50, wait: 15 });
    expect(error).toBeInstanceOf(TransportError);
    expect(sentMethods(harness.transport)).toBe("POST PATCH DELETE");
    expect((await harness.rival.locks.get(KEY)).state?.held).toBe(false);
  });

  it("cancelling during the confirmation releases the lease", async () => {
    const harness = createHarness();
    const caller = new AbortController();
    harness.transport.script = [{ takesSeconds: 20 }, "hang_after"];
    const pending = harness.client.locks.acquire(KEY, { ttl: TTL, wait: 60, signal: caller.signal });
    await harness.clock.settle();
    caller.abort();
    expect((await pending).acquired).toBe(false);
    expect(sentMethods(harness.transport)).toBe("POST PATCH DELETE");
    expect((await harness.rival.locks.get(KEY)).state?.held).toBe(false);
  });
});

describe("SDK-4: the end of an acquisition", () => {
  it.each([{ wait: 60 }, {}])(
    "with %j counts from before the grant, not from the retry that reported it",
    async (more) => {
      const harness = createHarness(["drop_after_send", ...("wait" in more ? (["unavailable"] as const) : [])]);
      const ttl = 7_776_000;
      const start = harness.clock.now();
      const held = harness.client.locks.withLock(KEY, { ttl, ...more }, ({ signal }) => {
        expect(sentMethods(harness.transport)).toMatch(/^POST POST( POST)?$/);
        harness.clock.jump(start + ttl - 0.001 - harness.clock.now());
        expect(signal.aborted).toBe(false);
        harness.clock.jump(0.001);
        expect(signal.aborted).toBe(true);
      });
      await harness.clock.advance(2);
      expect((await held).error).toBeInstanceOf(LockOwnershipLostError);
    },
  );
});
