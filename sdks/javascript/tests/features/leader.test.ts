import { setTimeout as pause } from "node:timers/promises";
import { describe, expect, it, vi } from "vitest";
import { LockOwnershipLostError } from "../../src/index.ts";
import { createHarness, deferred, type Harness, KEY, sentMethods, TTL } from "../harness.ts";

async function loseLock(harness: Harness): Promise<void> {
  await harness.rival.locks.forceRelease(KEY);
  await harness.rival.locks.acquire(KEY, { ttl: 60 });
  await harness.clock.advance(12);
}

describe("SDK-13: leader election", () => {
  it("no campaign starts while a run ignores its loss, and its late result is discarded", async () => {
    const harness = createHarness();
    const first = deferred<string>();
    let runs = 0;
    const result = harness.client.locks.lead(KEY, { ttl: TTL }, () => {
      runs += 1;
      return runs === 1 ? first.promise : "led";
    });
    await harness.clock.settle();
    await loseLock(harness);
    await harness.clock.advance(300);
    expect(runs).toBe(1);
    first.resolve("too late");
    expect(await result).toEqual({ data: "led", error: null });
  });

  it("a run that ends with the AbortError of its signal campaigns again", async () => {
    const harness = createHarness();
    let runs = 0;
    const result = harness.client.locks.lead(KEY, { ttl: TTL }, async ({ signal }) => {
      runs += 1;
      if (runs === 1) await pause(1e9, null, { signal, ref: false });
      return runs;
    });
    await harness.clock.settle();
    harness.clock.jump(31);
    await harness.clock.advance(5);
    expect(await result).toEqual({ data: 2, error: null });
  });

  it("an error of the function ends lead; a loss is attached to it", async () => {
    for (const lost of [false, true]) {
      const harness = createHarness();
      const mine = new Error("mine");
      const { resolve, promise } = deferred();
      const result = harness.client.locks.lead(KEY, { ttl: TTL }, async () => {
        await promise;
        throw mine;
      });
      await harness.clock.settle();
      if (lost) await loseLock(harness);
      resolve();
      const { data, error } = await result;
      expect([data, error]).toEqual([null, mine]);
      expect("suppressed" in mine).toBe(lost);
    }
  });

  it("the loss of another lock, thrown by the function, ends lead", async () => {
    const harness = createHarness();
    const other = new LockOwnershipLostError("another lock's");
    const { error } = await harness.client.locks.lead(KEY, { ttl: TTL }, () => Promise.reject(other));
    expect(error).toBe(other);
  });

  it("an expired grant whose response was lost does not end lead", async () => {
    const harness = createHarness();
    harness.transport.script = ["drop_after_send", { status: 409, body: '{"code": "lock_ownership_lost"}' }];
    const result = harness.client.locks.lead(KEY, { ttl: TTL }, () => "led");
    await harness.clock.advance(10);
    expect(await result).toEqual({ data: "led", error: null });
    expect(sentMethods(harness.transport)).toBe("POST POST DELETE POST DELETE");
  });

  it("an error that a retry cannot resolve ends lead", async () => {
    const harness = createHarness([{ status: 401 }]);
    const run = vi.fn();
    expect(await harness.client.locks.lead(KEY, { ttl: TTL }, run)).toMatchObject({
      error: { name: "AuthenticationError" },
    });
    expect(run).not.toHaveBeenCalled();
  });

  it("SDK-21: ownership lost at entry is an error of lead and of exclusive", async () => {
    const harness = createHarness();
    harness.transport.otherwise = { status: 409, body: '{"error": "lost", "code": "lock_ownership_lost"}' };
    const run = vi.fn();
    const { data, error } = await harness.client.locks.lead(KEY, { ttl: TTL }, run);
    expect(data).toBeNull();
    expect(error).toBeInstanceOf(LockOwnershipLostError);
    await expect(harness.client.locks.exclusive(KEY, { ttl: TTL }, run)()).rejects.toThrow(LockOwnershipLostError);
    expect(await harness.client.locks.exclusive(KEY, { ttl: TTL, onHeld: "skip" }, run)()).toBeUndefined();
    expect(run).not.toHaveBeenCalled();
  });
});
