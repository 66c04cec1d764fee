import { describe, expect, it, vi } from "vitest";
import { type LockGuard, LockHeldError, LockOwnershipLostError } from "../../src/index.ts";
import { createHarness, deferred, KEY, sentMethods, TTL } from "../harness.ts";

describe("SDK-16: functions that run under a lock", () => {
  it("hold the lock while they run, with the original `this`, arguments, result and name", async () => {
    const harness = createHarness();
    const service = {
      name: "reports",
      report: harness.client.locks.exclusive(
        (day: string, _count?: number) => `report-${day}`,
        { ttl: TTL },
        async function report(this: { name: string }, day: string, count = 1) {
          expect((await harness.rival.locks.get(`report-${day}`)).state?.held).toBe(true);
          return `${this.name} ${day} ${count}`;
        },
      ),
    };
    const result: string = await service.report("monday");
    expect(result).toBe("reports monday 1");
    expect(await service.report("tuesday", 2)).toBe("reports tuesday 2");
    expect(service.report.name).toBe("report");
    expect(sentMethods(harness.transport)).toBe("POST DELETE POST DELETE");
    const mine = new Error("mine");
    const failing = harness.client.locks.exclusive(KEY, { ttl: TTL }, () => Promise.reject(mine));
    await expect(failing()).rejects.toBe(mine);
    expect((await harness.rival.locks.get(KEY)).state?.held).toBe(false);
  });

  it("a LockHeldError of the function rejects, even with onHeld skip", async () => {
    const harness = createHarness();
    const theirs = new LockHeldError("another lock's");
    const job = harness.client.locks.exclusive(KEY, { ttl: TTL, onHeld: "skip" }, () => Promise.reject(theirs));
    await expect(job()).rejects.toBe(theirs);
  });

  it("other failures and a loss reject", async () => {
    const harness = createHarness([{ status: 403 }]);
    const job = harness.client.locks.exclusive(KEY, { ttl: TTL, onHeld: "skip" }, () => harness.clock.jump(31));
    await expect(job()).rejects.toMatchObject({ name: "PermissionDeniedError" });
    await expect(job()).rejects.toBeInstanceOf(LockOwnershipLostError);
  });

  it("get the guard as their last argument with passGuard, and keep the lock with holdAtLeast", async () => {
    const harness = createHarness();
    const job = harness.client.locks.exclusive(
      (name: string) => name,
      { ttl: TTL, passGuard: true, holdAtLeast: 60 },
      (name: string, guard: LockGuard) => `${name} ${guard.lost}`,
    );
    expect(await job(KEY)).toBe(`${KEY} false`);
    harness.clock.jump(60);
    expect((await harness.rival.locks.get(KEY)).state?.held).toBe(true);
  });

  it("each call is its own block", async () => {
    const harness = createHarness();
    const end = deferred();
    const job = harness.client.locks.exclusive(
      (name: string) => name,
      { ttl: TTL, onHeld: "skip" },
      () => end.promise,
    );
    const calls = [job("a"), job("b"), job("a")];
    await harness.clock.settle();
    expect(await calls[2]).toBeUndefined();
    end.resolve();
    await Promise.all(calls);
    expect(new Set(harness.transport.seen.map((one) => one.token)).size).toBe(3);
  });

  it("case 77: a call rejects with what the function threw, whatever it is", async () => {
    const { client } = createHarness();
    for (const thrown of [new Response(null, { status: 302 }), "text", 0, undefined, null, Object.freeze({})]) {
      const job = client.locks.exclusive(KEY, { ttl: TTL }, () => {
        throw thrown;
      });
      await expect(job()).rejects.toBe(thrown);
    }
  });

  it("case 44: generator functions are refused, and functions that return a generator", async () => {
    const { client, transport } = createHarness();
    const { locks } = client;
    const ran = vi.fn();
    function* generator() {
      yield ran();
    }
    async function* asyncGenerator() {
      yield ran();
    }
    const functions: (() => unknown)[] = [generator, asyncGenerator];
    for (const run of functions) {
      expect(() => locks.exclusive(KEY, { ttl: TTL }, run)).toThrow(TypeError);
      await expect(locks.withLock(KEY, { ttl: TTL }, run)).rejects.toThrow("must not be a generator function");
      await expect(locks.lead(KEY, { ttl: TTL }, run)).rejects.toThrow("must not be a generator function");
    }
    expect(transport.seen).toEqual([]);
    const callers: (() => unknown)[] = [() => generator(), async () => asyncGenerator()];
    for (const run of callers) {
      await expect(locks.exclusive(KEY, { ttl: TTL }, run)()).rejects.toThrow("must not return a generator");
      const results = [await locks.withLock(KEY, { ttl: TTL }, run), await locks.lead(KEY, { ttl: TTL }, run)];
      for (const { data, error } of results) {
        expect([data, error]).toEqual([null, expect.any(TypeError)]);
      }
    }
    expect(ran).not.toHaveBeenCalled();
    expect((await locks.get(KEY)).state?.held).toBe(false);
  });

  it("SDK-16: iterators, iterables, streams and functions that yield nothing pass", async () => {
    const { locks } = createHarness().client;
    const results = [
      [1][Symbol.iterator](),
      new Map([[1, 2]]).entries(),
      new Set(),
      new ReadableStream(),
      locks.watch(KEY),
    ];
    for (const result of results) {
      expect(await locks.exclusive(KEY, { ttl: TTL }, () => result)()).toBe(result);
    }
  });
});
