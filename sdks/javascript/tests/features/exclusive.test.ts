import { describe, expect, it } from "vitest";
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
});
