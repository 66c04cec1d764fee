/** `withLock`: its results, its renewals, its loss and its end. */

import { setTimeout as pause } from "node:timers/promises";
import { describe, expect, it, vi } from "vitest";
import {
  Client,
  type Fetch,
  type Lease,
  type LockGuard,
  LockOwnershipLostError,
  TransportError,
} from "../../src/index.ts";
import { FakeClient, type Fault } from "../../src/testing/index.ts";
import { createHarness, deferred, defined, type Harness, KEY, sentCount, sentMethods, TTL } from "../harness.ts";

/** Enters a block whose body runs until the test ends it. */
async function held(harness: Harness, ttl: number = TTL, signal?: AbortSignal) {
  const end = deferred<string>();
  const entered = deferred<LockGuard>();
  const result = harness.client.locks.withLock(KEY, { ttl, signal }, (guard) => {
    entered.resolve(guard);
    return end.promise;
  });
  const guard = await entered.promise;
  await harness.clock.settle();
  return { guard, result, ...end };
}

async function microtasks(count: number): Promise<void> {
  for (let done = 0; done < count; done += 1) await null;
}

describe("withLock", () => {
  it("runs the body with signal and lease, renews, releases, and resolves with its result", async () => {
    const harness = createHarness();
    const { guard, result, resolve } = await held(harness);
    const { signal, lease } = guard;
    expect(signal).toBeInstanceOf(AbortSignal);
    expect(lease.fencingToken).toBeGreaterThan(0);
    await harness.clock.advance(300);
    expect([signal.aborted, guard.lost]).toEqual([false, false]);
    guard.throwIfLost();
    resolve("done");
    expect(await result).toEqual({ acquired: true, data: "done", error: null });
    expect((await harness.client.locks.get(KEY)).state?.held).toBe(false);
    expect(harness.clock.waiting).toBe(0);
    expect(guard.releaseError).toBeNull();
  });

  it("case 18: the body never runs without the lock", async () => {
    const harness = createHarness();
    await harness.rival.locks.acquire(KEY, { ttl: TTL });
    const body = vi.fn();
    expect(await harness.client.locks.withLock(KEY, { ttl: TTL }, body)).toEqual({
      acquired: false,
      data: null,
      error: null,
      reason: "lock_held",
    });
    harness.transport.script = ["reset", "reset"];
    const { acquired, data, error } = await harness.client.locks.withLock("other", { ttl: TTL }, body);
    expect([acquired, data]).toEqual([false, null]);
    expect(error).toBeInstanceOf(TransportError);
    const aborted = await harness.client.locks.withLock("third", { ttl: TTL, signal: AbortSignal.abort() }, body);
    expect(aborted).toMatchObject({ acquired: false, data: null });
    expect(aborted.error).toBeInstanceOf(TransportError);
    expect(body).not.toHaveBeenCalled();
    expect(harness.clock.waiting).toBe(0);
  });

  it("case 18: if the caller's signal aborts around the grant, the body sees it and the lock is released", async () => {
    const outcomes = new Set<boolean>();
    for (let delay = 0; delay < 40; delay += 1) {
      const harness = createHarness();
      const caller = new AbortController();
      const client = harness.server.client({
        fetch: (url, init) => {
          if (init.method === "POST") void microtasks(delay).then(() => caller.abort());
          return harness.transport.fetch(url, init);
        },
      });
      const result = await client.locks.withLock(KEY, { ttl: TTL, signal: caller.signal }, async ({ signal }) => {
        await microtasks(50);
        return signal.aborted;
      });
      expect(result.data).not.toBe(false);
      outcomes.add(result.acquired);
      await harness.clock.settle();
      expect((await harness.client.locks.get(KEY)).state?.held).toBe(false);
      expect(harness.clock.waiting).toBe(0);
    }
    expect(outcomes).toEqual(new Set([true, false]));
  });

  it("the given ids apply to the acquire only", async () => {
    const harness = createHarness();
    const requestId = "139241af-f4e8-4bdb-8494-dc0804c380a7";
    await harness.client.locks.withLock(KEY, { ttl: TTL, requestId }, () => harness.clock.advance(11.5));
    expect(sentMethods(harness.transport)).toBe("POST PATCH DELETE");
    expect(new Set(harness.transport.seen.map((one) => one.requestId)).size).toBe(3);
    expect(harness.transport.seen[0]?.requestId).toBe(requestId);
  });
});

describe("renewals", () => {
  it("case 1: a renewal that times out is retried, and later holds of the same key renew too", async () => {
    const harness = createHarness();
    const first = await held(harness);
    harness.transport.script = ["hang_before"];
    await harness.clock.advance(60);
    first.resolve("");
    expect((await first.result).error).toBeNull();
    const second = await held(harness);
    await harness.clock.advance(60);
    expect(second.guard.lost).toBe(false);
    second.resolve("");
    expect((await second.result).error).toBeNull();
  });

  it("case 2 case 9: a fetch that throws synchronously ends in a loss at the deadline, not in a crash", async () => {
    const harness = createHarness();
    const { guard, result, resolve } = await held(harness);
    Object.assign(harness.transport, {
      fetch: () => {
        throw new Error("a bug");
      },
    });
    await harness.clock.advance(29.9);
    expect(guard.lost).toBe(false);
    await harness.clock.advance(0.1);
    expect(guard.signal.aborted).toBe(true);
    expect(guard.signal.reason).toBeInstanceOf(LockOwnershipLostError);
    resolve("");
    expect((await result).error).toBe(guard.signal.reason);
  });

  it("case 2: a clock that throws is a loss, not a crash", async () => {
    const harness = createHarness();
    const { guard, result, resolve } = await held(harness);
    const at = vi.spyOn(harness.clock, "at").mockImplementation(() => {
      throw new Error("no timers");
    });
    harness.clock.jump(11.5);
    await harness.clock.settle();
    expect(guard.signal.aborted).toBe(true);
    at.mockRestore();
    resolve("");
    expect((await result).error).toBe(guard.signal.reason);
  });

  it("case 3 case 5: only a confirmed renewal moves the deadline, and `lost` checks the clock", async () => {
    const harness = createHarness();
    const { guard, result, resolve } = await held(harness);
    harness.transport.otherwise = "drop_after_send";
    await harness.clock.advance(25);
    expect(guard.lost).toBe(false);
    await harness.clock.advance(5);
    expect(guard.lost).toBe(true);
    resolve("");
    await result;
  });

  it("case 22: the guard has the newest lease", async () => {
    const harness = createHarness();
    const { guard, result, resolve } = await held(harness);
    const first: Lease = guard.lease;
    await harness.clock.advance(12);
    expect(guard.lease.expiresAt.getTime()).toBeGreaterThan(first.expiresAt.getTime());
    expect(guard.lease.fencingToken).toBe(first.fencingToken);
    resolve("");
    await result;
  });
});

describe("SDK-3: the renewal interval", () => {
  /** The seconds between two requests of a block of `ttl` seconds, with these rate limit header fields. */
  async function intervals(
    ttl: number,
    headers: Record<string, string>,
    renewEvery: number | undefined,
    seconds: number,
  ): Promise<number[]> {
    const harness = createHarness();
    const { fetch } = harness.transport;
    const sentAt: number[] = [];
    Object.assign(harness.transport, {
      fetch: async (...args: Parameters<Fetch>) => {
        sentAt.push(harness.clock.now());
        const response = await fetch(...args);
        for (const [name, value] of Object.entries(headers)) response.headers.set(name, value);
        return response;
      },
    });
    const end = deferred();
    const result = harness.client.locks.withLock(KEY, { ttl, renewEvery }, () => end.promise);
    await harness.clock.advance(seconds);
    end.resolve();
    await result;
    return sentAt.slice(1, -1).map((at, index) => at - (sentAt[index] ?? 0));
  }

  const quota = (limit: string, remaining: string) => ({
    "X-RateLimit-Limit": limit,
    "X-RateLimit-Remaining": remaining,
  });

  it.each([
    ["a third of a short TTL", 30, {}, undefined, 10],
    ["at most a minute without a quota (case 51)", 86_400, {}, undefined, 60],
    ["at most a minute with a limit of 0, which is none", 3_600, quota("0", "0"), undefined, 60],
    ["at most a minute above half of the quota", 3_600, quota("100", "51"), undefined, 60],
    ["a third of the TTL at half of the quota", 3_600, quota("100", "50"), undefined, 1_200],
    ["a third of a short TTL at half of the quota", 30, quota("100", "50"), undefined, 10],
    ["renewEvery whatever the quota", 3_600, quota("100", "1"), 30, 30],
    ["a longer renewEvery", 3_600, {}, 1_200, 1_200],
  ])("is %s", async (_, ttl, headers, renewEvery, seconds) => {
    const found = await intervals(ttl, headers, renewEvery, 4 * seconds);
    expect(found.length).toBeGreaterThan(1);
    for (const one of found) expect(Math.abs(one - seconds)).toBeLessThanOrEqual(seconds * 0.1 + 0.001);
  });

  it("case 51: a holder of a day's lease sees a forced release within about a minute", async () => {
    const harness = createHarness();
    const { guard, result, resolve } = await held(harness, 86_400);
    await harness.rival.locks.forceRelease(KEY);
    await harness.clock.advance(60);
    expect(guard.signal.aborted).toBe(true);
    resolve("");
    await result;
  });

  it("lead and exclusive take renewEvery too", async () => {
    const harness = createHarness();
    const body = () => harness.clock.advance(10);
    await harness.client.locks.lead(KEY, { ttl: TTL, renewEvery: 1 }, body);
    await harness.client.locks.exclusive(KEY, { ttl: TTL, renewEvery: 1 }, body)();
    expect(sentCount(harness, "PATCH")).toBeGreaterThan(16);
  });
});

describe("loss", () => {
  it("case 10: signal detects the loss right after a pause, before any timer fires", async () => {
    const client = new FakeClient();
    let seconds = 0;
    const starved = { now: () => seconds, at: () => () => {}, pause: () => Promise.resolve() };
    const { locks } = client.server.client({ clock: starved });
    const { error } = await locks.withLock(KEY, { ttl: TTL }, ({ signal }) => {
      expect([signal.aborted, signal.reason]).toEqual([false, undefined]);
      signal.throwIfAborted();
      const listener = vi.fn();
      signal.addEventListener("abort", listener);
      seconds = 30;
      expect(() => signal.throwIfAborted()).toThrow(LockOwnershipLostError);
      expect(listener).toHaveBeenCalledTimes(1);
      expect(signal.reason).toBeInstanceOf(LockOwnershipLostError);
    });
    expect(error).toBeInstanceOf(LockOwnershipLostError);
  });

  it("case 10: a body that returns after its lease expired, before any timer fires, has not succeeded", async () => {
    let seconds = 0;
    const starved = { now: () => seconds, at: () => () => {}, pause: () => Promise.resolve() };
    const { locks } = new FakeClient().server.client({ clock: starved });
    const { error } = await locks.withLock(KEY, { ttl: TTL }, () => {
      seconds = 30;
    });
    expect(error).toBeInstanceOf(LockOwnershipLostError);
  });

  it("case 11: after an outage of a lease's length the guard stays lost, whatever responses arrive later", async () => {
    const harness = createHarness();
    const { guard, result, resolve } = await held(harness);
    harness.transport.otherwise = { delaySeconds: 1 };
    harness.clock.jump(40);
    expect(guard.lost).toBe(true);
    harness.transport.otherwise = "pass";
    await harness.clock.advance(60);
    expect(guard.lost).toBe(true);
    expect(() => guard.throwIfLost()).toThrow(LockOwnershipLostError);
    resolve("");
    await result;
  });

  it("SDK-5 SDK-20: a body that returns after a loss gives the loss as error and its result as data", async () => {
    const harness = createHarness();
    const { guard, result, resolve } = await held(harness);
    harness.clock.jump(30);
    resolve("work");
    expect(await result).toEqual({ acquired: true, data: "work", error: guard.signal.reason });
  });

  it("a body that stops because of its signal ends with the loss itself", async () => {
    for (const stop of [
      (signal: AbortSignal) => pause(1e9, null, { signal, ref: false }),
      async (signal: AbortSignal) => {
        while (true) {
          signal.throwIfAborted();
          await Promise.race([new Promise((resolve) => signal.addEventListener("abort", resolve))]);
        }
      },
    ]) {
      const harness = createHarness();
      const result = harness.client.locks.withLock(KEY, { ttl: TTL }, ({ signal }) => stop(signal));
      await harness.clock.settle();
      harness.clock.jump(31);
      const { error } = await result;
      expect(error).toBeInstanceOf(LockOwnershipLostError);
      expect(error).not.toHaveProperty("suppressed");
    }
  });
});

describe("end of the block", () => {
  it("SDK-5 case 21: the body's error takes precedence over the loss, which is attached to it", async () => {
    const harness = createHarness();
    const { guard, result, reject } = await held(harness);
    harness.clock.jump(31);
    const mine = Object.freeze(new Error("frozen"));
    reject(mine);
    expect((await result).error).toBe(mine);
    const again = await held(harness);
    harness.clock.jump(31);
    const other = new Error("mine");
    again.reject(other);
    expect((await again.result).error).toBe(other);
    expect(other).toMatchObject({ suppressed: [again.guard.signal.reason] });
    expect(guard.lost).toBe(true);
  });

  it("case 76: a loss is appended to the suppressed of the body's error, and appending never throws", async () => {
    const harness = createHarness();
    const suppressedOf = async (thrown: object): Promise<unknown> => {
      const block = await held(harness);
      harness.clock.jump(TTL);
      block.reject(thrown);
      const { error } = await block.result;
      expect(error).toBe(thrown);
      harness.clock.jump(1);
      return (thrown as { suppressed?: unknown }).suppressed;
    };
    const [earlier, loss] = [new Error("earlier"), expect.any(LockOwnershipLostError)];
    const error = (suppressed: unknown): Error => Object.assign(new Error("mine"), { suppressed });
    expect(await suppressedOf(new Error("mine"))).toEqual([loss]);
    expect(await suppressedOf(error([earlier]))).toEqual([earlier, loss]);
    expect(await suppressedOf(error(earlier))).toEqual([earlier, loss]);
    expect(await suppressedOf(error(Object.freeze([earlier])))).toEqual([earlier, loss]);
    const fixed = (value: unknown) => Object.defineProperty(new Error("mine"), "suppressed", { value });
    expect(await suppressedOf(fixed([earlier]))).toEqual([earlier, loss]);
    expect(await suppressedOf(fixed(earlier))).toBe(earlier);
    expect(await suppressedOf(Object.freeze(error(earlier)))).toBe(earlier);
    const hostile = Object.defineProperty(new Error("mine"), "suppressed", {
      get: () => {
        throw new Error("hostile");
      },
    });
    await expect(suppressedOf(hostile)).rejects.toThrow("hostile"); // by the test's own read
  });

  it("case 76: nested blocks attach to the same error one after the other", async () => {
    const harness = createHarness();
    const { locks } = harness.client;
    const mine = new Error("the body's own");
    harness.transport.otherwise = "pass";
    const outer = await locks.withLock(KEY, { ttl: TTL }, async () => {
      const inner = await locks.withLock("inner", { ttl: TTL }, async () => {
        harness.transport.otherwise = { status: 500 };
        throw mine;
      });
      throw defined(inner.error);
    });
    expect(outer.error).toBe(mine);
    const ids = (mine as Error & { suppressed: { requestId: string }[] }).suppressed.map((one) => one.requestId);
    expect(new Set(ids).size).toBe(2);
  });

  it("a thrown value that is not an error is wrapped in one, so that it cannot pass for success", async () => {
    const { client } = createHarness();
    for (const thrown of [undefined, null, 0, "", "text", { some: "object" }]) {
      const { acquired, error } = await client.locks.withLock(KEY, { ttl: TTL }, () => {
        throw thrown;
      });
      expect(acquired).toBe(true);
      expect(error).toBeInstanceOf(Error);
      expect(error?.cause).toBe(thrown);
    }
  });

  it("a block that held its lock throughout succeeds although its release was not confirmed", async () => {
    const harness = createHarness();
    const { guard, result, resolve } = await held(harness);
    harness.transport.otherwise = "drop_before_send";
    resolve("worked");
    expect(await result).toEqual({ acquired: true, data: "worked", error: null });
    expect(guard.releaseError).toBeInstanceOf(TransportError);
  });

  it("SDK-20 case 46: the end of a block does not abort its signal; code that outlives it checks the guard", async () => {
    const harness = createHarness();
    const { guard, result, resolve } = await held(harness);
    const { signal } = guard;
    const aborted = vi.fn();
    signal.addEventListener("abort", aborted);
    resolve("worked");
    expect(await result).toEqual({ acquired: true, data: "worked", error: null });
    expect([guard.lost, signal.aborted, signal.reason]).toEqual([true, false, undefined]);
    expect(() => guard.throwIfLost()).toThrow(LockOwnershipLostError);
    harness.clock.jump(60);
    expect(() => guard.throwIfLost()).toThrow("its block was left");
    expect(signal.aborted).toBe(false);
    expect(aborted).not.toHaveBeenCalled();
  });

  it("SDK-5 SDK-20: a body that throws does not abort its signal; after a loss the guard keeps the loss", async () => {
    const harness = createHarness();
    const failing = await held(harness);
    failing.reject(new Error("the body's own"));
    expect(defined((await failing.result).error).message).toBe("the body's own");
    expect([failing.guard.lost, failing.guard.signal.aborted]).toEqual([true, false]);
    const losing = await held(harness);
    harness.clock.jump(TTL);
    losing.resolve("too late");
    const { error } = await losing.result;
    expect(error).toBe(losing.guard.signal.reason);
    expect(() => losing.guard.throwIfLost()).toThrow("not renewed");
  });

  it("SDK-20: a body that throws its loss has null data", async () => {
    const harness = createHarness();
    const { guard, result, reject } = await held(harness);
    harness.clock.jump(TTL);
    reject(guard.signal.reason);
    expect(await result).toEqual({ acquired: true, data: null, error: guard.signal.reason });
  });

  it("case 16: the caller's signal does not cancel the release", async () => {
    const harness = createHarness();
    const caller = new AbortController();
    const { result, resolve } = await held(harness, TTL, caller.signal);
    harness.transport.script = [{ delaySeconds: 1 }];
    resolve("worked");
    await harness.clock.settle();
    caller.abort();
    await harness.clock.advance(1);
    expect(await result).toMatchObject({ data: "worked", error: null });
    expect((await harness.client.locks.get(KEY)).state?.held).toBe(false);
  });

  it("SDK-5: the caller's signal aborts the body with its reason; renewals continue until the body has ended", async () => {
    const harness = createHarness();
    const caller = new AbortController();
    const { guard, result, reject } = await held(harness, TTL, caller.signal);
    caller.abort(new Error("shutting down"));
    expect(guard.signal.reason).toBe(caller.signal.reason);
    await harness.clock.advance(60);
    expect([guard.lost, sentCount(harness, "PATCH") > 4]).toEqual([false, true]);
    reject(guard.signal.reason);
    expect((await result).error).toBe(caller.signal.reason);
    expect((await harness.client.locks.get(KEY)).state?.held).toBe(false);
  });

  it("case 9 SDK-6: no failure leaves a timer, a listener or an unhandled rejection", async () => {
    const faults: Fault[] = [
      "pass",
      "hang_before",
      "hang_after",
      "reset",
      "unavailable",
      { status: 500 },
      { status: 409 },
    ];
    for (const renewal of faults) {
      for (const release of faults) {
        const harness = createHarness();
        const caller = new AbortController();
        const remove = vi.spyOn(caller.signal, "removeEventListener");
        const add = vi.spyOn(caller.signal, "addEventListener");
        const { result, resolve } = await held(harness, 5, caller.signal);
        harness.transport.otherwise = renewal;
        await harness.clock.advance(4);
        harness.transport.otherwise = release;
        resolve("");
        await harness.clock.advance(20);
        await result;
        await harness.clock.settle();
        expect(harness.clock.waiting).toBe(0);
        expect(remove.mock.calls.length).toBe(add.mock.calls.length);
      }
    }
  });

  it("SDK-6: a block on the real clock leaves no timer", async () => {
    vi.useFakeTimers();
    const { server } = createHarness();
    const client = new Client({ apiUrl: "http://x.test", serviceKey: "sk", fetch: server.fetch });
    expect(await client.locks.withLock(KEY, { ttl: TTL }, () => vi.getTimerCount())).toMatchObject({ data: 3 });
    expect(vi.getTimerCount()).toBe(0);
    vi.useRealTimers();
  });
});

describe("SDK-12: holdAtLeast", () => {
  it("a failed renewal counts as a failed release, and the lease expires unchanged", async () => {
    const harness = createHarness();
    let guard: { releaseError: unknown } | undefined;
    const result = await harness.client.locks.withLock(KEY, { ttl: TTL, holdAtLeast: 60 }, (given) => {
      guard = given;
      harness.transport.otherwise = "reset";
      return "done";
    });
    expect(result).toEqual({ acquired: true, data: "done", error: null });
    expect(guard?.releaseError).toBeInstanceOf(TransportError);
    expect(sentMethods(harness.transport)).toBe("POST PATCH PATCH");
    expect((await harness.rival.locks.get(KEY)).state?.held).toBe(true);
  });

  it("a renewal in flight when the body ends does not shorten the lease", async () => {
    const harness = createHarness();
    const renewal = deferred();
    let first = true;
    const fetch: Fetch = (url, init) => {
      if (init.method !== "PATCH" || !first) return harness.transport.fetch(url, init);
      first = false;
      renewal.resolve();
      // Like a real service: cancelling a request does not undo it.
      const response = new Promise<void>((due) => harness.clock.at(harness.clock.now() + 0.5, due)).then(() =>
        harness.server.fetch(url, { ...init, signal: null }),
      );
      const hangUp = new Promise<never>((_, reject) =>
        init.signal?.addEventListener("abort", () => reject(new Error("cut"))),
      );
      return Promise.race([response, hangUp]);
    };
    const work = harness.server
      .client({ fetch })
      .locks.withLock(KEY, { ttl: TTL, holdAtLeast: 600 }, () => renewal.promise);
    await harness.clock.advance(60);
    expect(await work).toMatchObject({ acquired: true, error: null });
    await harness.clock.advance(500);
    expect((await harness.rival.locks.get(KEY)).state?.held).toBe(true);
  });

  it("a hanging renewal in flight delays the end of the block only briefly", async () => {
    const harness = createHarness();
    harness.transport.script = ["pass", "hang_before"];
    const start = harness.clock.now();
    const bodyEnd = deferred();
    const work = harness.client.locks
      .withLock(KEY, { ttl: TTL, holdAtLeast: 600 }, () => bodyEnd.promise)
      .then(() => harness.clock.now() - start);
    while (sentCount(harness, "PATCH") === 0) await harness.clock.advance(1);
    bodyEnd.resolve();
    await harness.clock.advance(2);
    expect(await work).toBeLessThan(TTL / 2);
    expect(sentMethods(harness.transport)).toBe("POST PATCH PATCH");
    expect(harness.clock.waiting).toBe(0);
  });

  it("a loss found by the final renewal is a loss", async () => {
    const harness = createHarness();
    const { error } = await harness.client.locks.withLock(KEY, { ttl: TTL, holdAtLeast: 60 }, async () => {
      await harness.rival.locks.forceRelease(KEY);
    });
    expect(error).toMatchObject({ name: "LockOwnershipLostError", status: 409 });
  });

  it("if the caller's signal aborts before the body starts, the lock is released", async () => {
    const outcomes = new Set<boolean>();
    for (let delay = 0; delay < 40; delay += 1) {
      const harness = createHarness();
      const caller = new AbortController();
      const fetch: Fetch = async (url, init) => {
        if (init.method === "POST") void microtasks(delay).then(() => caller.abort());
        return harness.transport.fetch(url, init);
      };
      const body = vi.fn();
      const options = { ttl: TTL, holdAtLeast: 600, signal: caller.signal };
      const { acquired } = await harness.server.client({ fetch }).locks.withLock(KEY, options, body);
      outcomes.add(acquired && body.mock.calls.length === 0);
      expect((await harness.rival.locks.get(KEY)).state?.held).toBe(body.mock.calls.length > 0);
    }
    expect(outcomes).toEqual(new Set([true, false]));
  });
});
