/** SDK-13 leading, SDK-16 functions that run under a lock. */

import { setTimeout as pause } from "node:timers/promises";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { type LockGuard, LockHeldError, LockOwnershipLostError, TransportError } from "../src/index.ts";
import { deferred, KEY, methods, type Stage, stage, TTL, there } from "./stage.ts";

const unhandled = vi.fn();
beforeEach(() => {
  unhandled.mockReset();
  process.on("unhandledRejection", unhandled);
});
afterEach(() => {
  process.off("unhandledRejection", unhandled);
  expect(unhandled).not.toHaveBeenCalled();
});

/** A leader whose runs end when they are told to, or when their signal aborts. */
function led(on: Stage, signal?: AbortSignal) {
  const runs: Array<{ guard: LockGuard; ended: boolean; end: (value: string) => void; fail: (error: Error) => void }> =
    [];
  const result = on.client.locks.lead(KEY, { ttl: TTL, signal }, async (guard) => {
    expect(runs.every((run) => run.ended)).toBe(true);
    const { promise, resolve, reject } = deferred<string>();
    const run = { guard, ended: false, end: resolve, fail: reject };
    runs.push(run);
    guard.signal.addEventListener("abort", () => reject(guard.signal.reason));
    try {
      return await promise;
    } finally {
      run.ended = true;
    }
  });
  return { runs, result };
}

async function usurped(on: Stage): Promise<void> {
  await on.rival.locks.forceRelease(KEY);
  await on.rival.locks.acquire(KEY, { ttl: 60 });
  await on.clock.advance(12);
}

describe("SDK-13: leading", () => {
  it("waits for the lock, runs while it is held, and gives back what the function returned, and the lock", async () => {
    const on = stage();
    const rival = there((await on.rival.locks.acquire(KEY, { ttl: 7_776_000 })).lease);
    const { runs, result } = led(on);
    await on.clock.advance(100);
    expect(runs).toHaveLength(0);
    await on.rival.locks.release(KEY, rival);
    await on.clock.advance(600);
    expect(runs.map((run) => run.guard.lost)).toEqual([false]);
    runs[0]?.end("done");
    expect(await result).toEqual({ data: "done", error: null });
    expect((await on.rival.locks.get(KEY)).state?.held).toBe(false);
    expect(on.clock.waiting).toBe(0);
  });

  it("a loss stops the run, and the next campaign begins when that has ended", async () => {
    const on = stage();
    const { runs, result } = led(on);
    await on.clock.settle();
    await usurped(on);
    expect(runs.map((run) => run.ended)).toEqual([true]);
    expect(runs[0]?.guard.signal.reason).toBeInstanceOf(LockOwnershipLostError);
    await on.clock.advance(60);
    expect(runs.map((run) => run.ended)).toEqual([true, false]);
    expect(runs[1]?.guard.lease.fencingToken).toBeGreaterThan(runs[0]?.guard.lease.fencingToken ?? 0);
    runs[1]?.end("in the end");
    expect((await result).data).toBe("in the end");
    expect(new Set(on.network.seen.map((one) => one.token)).size).toBe(2);
  });

  it("no campaign while a run that ignores its loss goes on; whatever it then returns was not while it led", async () => {
    const on = stage();
    const first = deferred<string>();
    let runs = 0;
    const result = on.client.locks.lead(KEY, { ttl: TTL }, () => {
      runs += 1;
      return runs === 1 ? first.promise : "led";
    });
    await on.clock.settle();
    await usurped(on);
    await on.clock.advance(300);
    expect(runs).toBe(1);
    first.resolve("too late");
    expect(await result).toEqual({ data: "led", error: null });
  });

  it("a run that an AbortError of its signal ended is one that was stopped", async () => {
    const on = stage();
    let runs = 0;
    const result = on.client.locks.lead(KEY, { ttl: TTL }, async ({ signal }) => {
      runs += 1;
      if (runs === 1) await pause(1e9, null, { signal, ref: false });
      return runs;
    });
    await on.clock.settle();
    on.clock.jump(31);
    await on.clock.advance(5);
    expect(await result).toEqual({ data: 2, error: null });
  });

  it("what the function throws ends it, also beside a loss, which is attached", async () => {
    for (const lost of [false, true]) {
      const on = stage();
      const mine = new Error("mine");
      const { resolve, promise } = deferred();
      const result = on.client.locks.lead(KEY, { ttl: TTL }, async () => {
        await promise;
        throw mine;
      });
      await on.clock.settle();
      if (lost) await usurped(on);
      resolve();
      const { data, error } = await result;
      expect([data, error]).toEqual([null, mine]);
      expect("suppressed" in mine).toBe(lost);
    }
  });

  it("the loss of another lock, thrown by the function, is an error like any other", async () => {
    const on = stage();
    const other = new LockOwnershipLostError("another lock's");
    const { error } = await on.client.locks.lead(KEY, { ttl: TTL }, () => Promise.reject(other));
    expect(error).toBe(other);
  });

  it("goes on over an outage and a restart, for as long as it takes", async () => {
    const on = stage();
    const { runs, result } = led(on);
    await on.clock.settle();
    on.network.otherwise = "drop_before_send";
    await on.clock.advance(600);
    expect(runs.map((run) => run.ended)).toEqual([true]);
    on.network.otherwise = "unavailable";
    await on.clock.advance(600);
    on.server.restart();
    on.network.otherwise = "pass";
    await on.clock.advance(10);
    expect(runs.map((run) => run.ended)).toEqual([true, false]);
    runs[1]?.end("");
    await result;
    expect(on.clock.waiting).toBe(0);
  });

  it("a grant that was never heard of, and is over, is a lost one too", async () => {
    const on = stage();
    on.network.script = ["drop_after_send", { status: 409, body: '{"code": "lock_ownership_lost"}' }];
    const result = on.client.locks.lead(KEY, { ttl: TTL }, () => "led");
    await on.clock.advance(10);
    expect(await result).toEqual({ data: "led", error: null });
    expect(methods(on.network)).toBe("POST POST DELETE POST DELETE");
  });

  it("the caller's signal ends the campaign, and gives the place back", async () => {
    const on = stage();
    await on.rival.locks.acquire(KEY, { ttl: 600 });
    const caller = new AbortController();
    const { runs, result } = led(on, caller.signal);
    await on.clock.advance(60);
    caller.abort(new Error("enough"));
    const { data, error } = await result;
    expect(data).toBeNull();
    expect(error).toBeInstanceOf(TransportError);
    expect(error?.cause).toBe(caller.signal.reason);
    expect(runs).toEqual([]);
    expect((await on.rival.locks.view(KEY)).view?.waiters).toBe(0);
    expect(on.clock.waiting).toBe(0);
  });

  it("the caller's signal stops a run with its reason, once, and the lock is released", async () => {
    const on = stage();
    const caller = new AbortController();
    const { runs, result } = led(on, caller.signal);
    await on.clock.settle();
    const reason = new Error("enough");
    caller.abort(reason);
    expect(await result).toEqual({ data: null, error: reason });
    expect(runs.map((run) => run.ended)).toEqual([true]);
    expect((await on.rival.locks.get(KEY)).state?.held).toBe(false);
  });

  it("what cannot get better ends it", async () => {
    const on = stage([{ status: 401 }]);
    const run = vi.fn();
    expect(await on.client.locks.lead(KEY, { ttl: TTL }, run)).toMatchObject({
      error: { name: "AuthenticationError" },
    });
    expect(run).not.toHaveBeenCalled();
  });

  it("SDK-21: a refusal at entry is an error of lead and of exclusive, never a result", async () => {
    const on = stage();
    on.network.otherwise = { status: 409, body: '{"error": "lost", "code": "lock_ownership_lost"}' };
    const run = vi.fn();
    const { data, error } = await on.client.locks.lead(KEY, { ttl: TTL }, run);
    expect(data).toBeNull();
    expect(error).toBeInstanceOf(LockOwnershipLostError);
    await expect(on.client.locks.exclusive(KEY, { ttl: TTL }, run)()).rejects.toThrow(LockOwnershipLostError);
    expect(await on.client.locks.exclusive(KEY, { ttl: TTL, onHeld: "skip" }, run)()).toBeUndefined();
    expect(run).not.toHaveBeenCalled();
  });

  it("two leaders take turns, and never overlap", async () => {
    const on = stage();
    const running: string[] = [];
    const lead = (name: string, locks: Stage["client"]["locks"], signal: AbortSignal) =>
      locks.lead(KEY, { ttl: TTL, signal }, async (guard) => {
        running.push(name);
        await new Promise((resolve) => guard.signal.addEventListener("abort", resolve));
        running.splice(running.indexOf(name), 1);
        throw guard.signal.reason;
      });
    const caller = new AbortController();
    const both = [lead("a", on.client.locks, caller.signal), lead("b", on.rival.locks, caller.signal)];
    const led: string[] = [];
    for (let turn = 0; turn < 6; turn += 1) {
      await on.clock.advance(12);
      expect(running).toHaveLength(1);
      led.push(running[0] ?? "");
      await on.server.client().locks.forceRelease(KEY);
    }
    expect(new Set(led)).toEqual(new Set(["a", "b"]));
    caller.abort();
    await Promise.all(both);
    expect(running).toEqual([]);
  });

  it.each([
    [[3, { ttl: TTL }, () => {}], TypeError],
    [[KEY, { ttl: 1 }, () => {}], RangeError],
    [[KEY, { ttl: TTL }, null], TypeError],
    [[KEY, undefined, () => {}], TypeError],
    [[KEY, { ttl: TTL, signal: 1 }, () => {}], TypeError],
  ])("mistakes reject: %j", async (args, kind) => {
    const { client, network } = stage();
    const lead = client.locks.lead as unknown as (...args: unknown[]) => Promise<unknown>;
    await expect(lead.apply(client.locks, args)).rejects.toThrow(kind);
    expect(network.seen).toEqual([]);
  });
});

describe("SDK-16: functions that run under a lock", () => {
  it("hold it while they run, and behave as they did", async () => {
    const on = stage();
    const service = {
      name: "reports",
      report: on.client.locks.exclusive(
        (day: string, _count?: number) => `report-${day}`,
        { ttl: TTL },
        async function report(this: { name: string }, day: string, count = 1) {
          expect((await on.rival.locks.get(`report-${day}`)).state?.held).toBe(true);
          return `${this.name} ${day} ${count}`;
        },
      ),
    };
    const told: string = await service.report("monday");
    expect(told).toBe("reports monday 1");
    expect(await service.report("tuesday", 2)).toBe("reports tuesday 2");
    expect(service.report.name).toBe("report");
    expect(methods(on.network)).toBe("POST DELETE POST DELETE");
    const mine = new Error("mine");
    const failing = on.client.locks.exclusive(KEY, { ttl: TTL }, () => Promise.reject(mine));
    await expect(failing()).rejects.toBe(mine);
    expect((await on.rival.locks.get(KEY)).state?.held).toBe(false);
  });

  it("raise if it is held, unless told otherwise", async () => {
    const on = stage();
    await on.rival.locks.acquire(KEY, { ttl: TTL });
    const run = vi.fn(() => 1);
    for (const options of [{ ttl: TTL }, { ttl: TTL, onHeld: "raise" }] as const) {
      await expect(on.client.locks.exclusive(KEY, options, run)()).rejects.toBeInstanceOf(LockHeldError);
    }
    expect(run).not.toHaveBeenCalled();
  });

  it("skip without a result", async () => {
    const on = stage();
    const job = on.client.locks.exclusive(KEY, { ttl: TTL, onHeld: "skip" }, () => 1);
    const first: number | undefined = await job();
    await on.rival.locks.acquire(KEY, { ttl: TTL });
    expect([first, await job()]).toEqual([1, undefined]);
  });

  it("wait for ever", async () => {
    const on = stage();
    const rival = there((await on.rival.locks.acquire(KEY, { ttl: 7_776_000 })).lease);
    const job = on.client.locks.exclusive(KEY, { ttl: TTL, onHeld: "wait" }, (text: string) => text.length);
    const asking: Promise<number> = job("four");
    await on.clock.advance(600);
    await on.rival.locks.release(KEY, rival);
    expect(await asking).toBe(4);
  });

  it("a LockHeldError of the function is an error like any other", async () => {
    const on = stage();
    const theirs = new LockHeldError("another lock's");
    const job = on.client.locks.exclusive(KEY, { ttl: TTL, onHeld: "skip" }, () => Promise.reject(theirs));
    await expect(job()).rejects.toBe(theirs);
  });

  it("other failures reject, and a loss does", async () => {
    const on = stage([{ status: 403 }]);
    const job = on.client.locks.exclusive(KEY, { ttl: TTL, onHeld: "skip" }, () => on.clock.jump(31));
    await expect(job()).rejects.toMatchObject({ name: "PermissionDeniedError" });
    await expect(job()).rejects.toBeInstanceOf(LockOwnershipLostError);
  });

  it("get the guard as their last argument if they ask for it, and hold on if told to", async () => {
    const on = stage();
    const job = on.client.locks.exclusive(
      (name: string) => name,
      { ttl: TTL, passGuard: true, holdAtLeast: 60 },
      (name: string, guard: LockGuard) => `${name} ${guard.lost}`,
    );
    expect(await job(KEY)).toBe(`${KEY} false`);
    on.clock.jump(60);
    expect((await on.rival.locks.get(KEY)).state?.held).toBe(true);
  });

  it("each call is a block of its own", async () => {
    const on = stage();
    const end = deferred();
    const job = on.client.locks.exclusive(
      (name: string) => name,
      { ttl: TTL, onHeld: "skip" },
      () => end.promise,
    );
    const calls = [job("a"), job("b"), job("a")];
    await on.clock.settle();
    expect(await calls[2]).toBeUndefined();
    end.resolve();
    await Promise.all(calls);
    expect(new Set(on.network.seen.map((one) => one.token)).size).toBe(3);
  });

  it.each([
    ["key", ["{day}", { ttl: TTL }, () => {}], RangeError],
    ["key", [undefined, { ttl: TTL }, () => {}], TypeError],
    ["options", [KEY, undefined, () => {}], TypeError],
    ["ttl", [KEY, { ttl: 1 }, () => {}], RangeError],
    ["onHeld", [KEY, { ttl: TTL, onHeld: "ignore" }, () => {}], RangeError],
    ["onHeld", [KEY, { ttl: TTL, onHeld: 1 }, () => {}], TypeError],
    ["holdAtLeast", [KEY, { ttl: TTL, holdAtLeast: -1 }, () => {}], RangeError],
    ["run", [KEY, { ttl: TTL }, "run"], TypeError],
  ])("a mistake in %s is thrown when the function is made", (name, args, kind) => {
    const exclusive = stage().client.locks.exclusive as unknown as (...args: unknown[]) => unknown;
    expect(() => exclusive(...args)).toThrow(kind);
    expect(() => exclusive(...args)).toThrow(name);
  });

  it("a key that the arguments make wrong rejects the call, before anything is sent", async () => {
    const { client, network } = stage();
    const job = client.locks.exclusive(
      (name: string) => name,
      { ttl: TTL },
      () => 1,
    );
    await expect(job("a b")).rejects.toThrow(RangeError);
    expect(network.seen).toEqual([]);
  });
});
