import { setTimeout as pause } from "node:timers/promises";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Hold } from "../src/holding/hold.ts";
import { Client, type Lease, type LockGuard, LockOwnershipLostError, TransportError } from "../src/index.ts";
import { FakeClient, type Fault } from "../src/testing/index.ts";
import { deferred, granted, KEY, methods, type Stage, stage, TTL, there } from "./stage.ts";

const unhandled = vi.fn();
beforeEach(() => {
  unhandled.mockReset();
  process.on("unhandledRejection", unhandled);
});
afterEach(() => {
  process.off("unhandledRejection", unhandled);
  expect(unhandled).not.toHaveBeenCalled();
});

/** A block whose body waits to be ended. */
async function held(on: Stage, ttl: number = TTL, signal?: AbortSignal) {
  const end = deferred<string>();
  const entered = deferred<LockGuard>();
  const result = on.client.locks.withLock(KEY, { ttl, signal }, (guard) => {
    entered.resolve(guard);
    return end.promise;
  });
  const guard = await entered.promise;
  await on.clock.settle();
  return { guard, result, ...end };
}

async function microtasks(count: number): Promise<void> {
  for (let done = 0; done < count; done += 1) await null;
}

function renewals(on: Stage): number {
  return on.network.seen.filter((one) => one.method === "PATCH").length;
}

describe("withLock", () => {
  it("runs the body with signal and lease, renews, releases, and gives its result", async () => {
    const on = stage();
    const { guard, result, resolve } = await held(on);
    const { signal, lease } = guard;
    expect(signal).toBeInstanceOf(AbortSignal);
    expect(lease.fencingToken).toBeGreaterThan(0);
    await on.clock.advance(300);
    expect([signal.aborted, guard.lost]).toEqual([false, false]);
    guard.throwIfLost();
    resolve("done");
    expect(await result).toEqual({ acquired: true, data: "done", error: null });
    expect((await on.client.locks.get(KEY)).state?.held).toBe(false);
    expect(on.clock.waiting).toBe(0);
    expect(guard.releaseError).toBeNull();
  });

  it("case 18: the body never runs without the lock", async () => {
    const on = stage();
    await on.rival.locks.acquire(KEY, { ttl: TTL });
    const body = vi.fn();
    expect(await on.client.locks.withLock(KEY, { ttl: TTL }, body)).toEqual({
      acquired: false,
      data: null,
      error: null,
      reason: "lock_held",
    });
    on.network.script = ["reset", "reset"];
    const { acquired, data, error } = await on.client.locks.withLock("other", { ttl: TTL }, body);
    expect([acquired, data]).toEqual([false, null]);
    expect(error).toBeInstanceOf(TransportError);
    const aborted = await on.client.locks.withLock("third", { ttl: TTL, signal: AbortSignal.abort() }, body);
    expect(aborted).toMatchObject({ acquired: false, data: null });
    expect(aborted.error).toBeInstanceOf(TransportError);
    expect(body).not.toHaveBeenCalled();
    expect(on.clock.waiting).toBe(0);
  });

  it("case 18: whenever the caller's signal aborts around the grant, no body runs on unaware, and the lock is free", async () => {
    const told = new Set<boolean>();
    for (let delay = 0; delay < 40; delay += 1) {
      const on = stage();
      const caller = new AbortController();
      const client = on.server.client({
        fetch: (url, init) => {
          if (init.method === "POST") void microtasks(delay).then(() => caller.abort());
          return on.network.fetch(url, init);
        },
      });
      const result = await client.locks.withLock(KEY, { ttl: TTL, signal: caller.signal }, async ({ signal }) => {
        await microtasks(50);
        return signal.aborted;
      });
      expect(result.data).not.toBe(false);
      told.add(result.acquired);
      await on.clock.settle();
      expect((await on.client.locks.get(KEY)).state?.held).toBe(false);
      expect(on.clock.waiting).toBe(0);
    }
    expect(told).toEqual(new Set([true, false]));
  });

  it("the ids given belong to the acquire alone", async () => {
    const on = stage();
    const requestId = "139241af-f4e8-4bdb-8494-dc0804c380a7";
    await on.client.locks.withLock(KEY, { ttl: TTL, requestId }, () => on.clock.advance(11.5));
    expect(methods(on.network)).toBe("POST PATCH DELETE");
    expect(new Set(on.network.seen.map((one) => one.requestId)).size).toBe(3);
    expect(on.network.seen[0]?.requestId).toBe(requestId);
  });
});

describe("renewal", () => {
  it("SDK-3: comes at about a third of the TTL", async () => {
    const on = stage();
    const { result, resolve } = await held(on);
    await on.clock.advance(8.9);
    expect(renewals(on)).toBe(0);
    await on.clock.advance(2.2);
    expect(renewals(on)).toBe(1);
    resolve("");
    await result;
  });

  it.each<Fault>(["drop_before_send", "drop_after_send", "reset", "unavailable", "rate_limited", { status: 500 }])(
    "SDK-3 case 4: %j on renewals is ridden out inside the lease",
    async (fault) => {
      const on = stage();
      const { guard, result, resolve } = await held(on);
      on.network.otherwise = fault;
      await on.clock.advance(20);
      expect(renewals(on)).toBeGreaterThan(3);
      on.network.otherwise = "pass";
      await on.clock.advance(60);
      expect(guard.lost).toBe(false);
      resolve("kept");
      expect(await result).toMatchObject({ data: "kept", error: null });
    },
  );

  it("case 1: one that times out is tried again, and later holds of the same key renew as well", async () => {
    const on = stage();
    const first = await held(on);
    on.network.script = ["hang_before"];
    await on.clock.advance(60);
    first.resolve("");
    expect((await first.result).error).toBeNull();
    const second = await held(on);
    await on.clock.advance(60);
    expect(second.guard.lost).toBe(false);
    second.resolve("");
    expect((await second.result).error).toBeNull();
  });

  it("case 2 case 9: a fetch that throws out of turn ends in a loss at the deadline, not in a crash", async () => {
    const on = stage();
    const { guard, result, resolve } = await held(on);
    Object.assign(on.network, {
      fetch: () => {
        throw new Error("a bug");
      },
    });
    await on.clock.advance(29.9);
    expect(guard.lost).toBe(false);
    await on.clock.advance(0.1);
    expect(guard.signal.aborted).toBe(true);
    expect(guard.signal.reason).toBeInstanceOf(LockOwnershipLostError);
    resolve("");
    expect((await result).error).toBe(guard.signal.reason);
  });

  it("case 2: a clock that breaks is a loss, not a crash", async () => {
    const on = stage();
    const { guard, result, resolve } = await held(on);
    const at = vi.spyOn(on.clock, "at").mockImplementation(() => {
      throw new Error("no timers");
    });
    on.clock.jump(11.5);
    await on.clock.settle();
    expect(guard.signal.aborted).toBe(true);
    at.mockRestore();
    resolve("");
    expect((await result).error).toBe(guard.signal.reason);
  });

  it("case 3 case 5: only a confirmed answer moves the deadline, and lost is found by looking", async () => {
    const on = stage();
    const { guard, result, resolve } = await held(on);
    on.network.otherwise = "drop_after_send";
    await on.clock.advance(25);
    expect(guard.lost).toBe(false);
    await on.clock.advance(5);
    expect(guard.lost).toBe(true);
    resolve("");
    await result;
  });

  it("SDK-4 case 6: the loss is told at the local deadline though a renewal hangs", async () => {
    const on = stage([], { timeoutSeconds: 3_600 });
    const { guard, result, resolve } = await held(on, 5);
    on.network.otherwise = "hang_before";
    const aborted = vi.fn();
    guard.signal.addEventListener("abort", () => aborted(on.clock.now()));
    const start = on.clock.now();
    await on.clock.advance(60);
    expect(aborted.mock.calls).toEqual([[start + 5]]);
    on.network.otherwise = "pass";
    resolve("");
    await result;
    expect(on.clock.waiting).toBe(0);
  });

  it("case 8: a renewal under way when the block is left re-arms nothing", async () => {
    const on = stage();
    const { guard, result, resolve } = await held(on);
    const before = guard.lease;
    on.network.script = [{ delaySeconds: 3 }];
    await on.clock.advance(11.5);
    expect(renewals(on)).toBe(1);
    resolve("");
    expect((await result).error).toBeNull();
    await on.clock.advance(60);
    expect(guard.lease).toBe(before);
    expect(methods(on.network)).toBe("POST PATCH DELETE");
    expect((await on.client.locks.get(KEY)).state?.held).toBe(false);
  });

  it("case 22: the guard shows the newest lease", async () => {
    const on = stage();
    const { guard, result, resolve } = await held(on);
    const first: Lease = guard.lease;
    await on.clock.advance(12);
    expect(guard.lease.expiresAt.getTime()).toBeGreaterThan(first.expiresAt.getTime());
    expect(guard.lease.fencingToken).toBe(first.fencingToken);
    resolve("");
    await result;
  });

  it("SDK-7 case 33: a hold of 90 days is renewed a few times, and its absolute end is a loss", async () => {
    const on = stage();
    const { guard, result, resolve } = await held(on, 7_776_000);
    await on.clock.advance(7_775_999);
    expect(guard.lost).toBe(false);
    expect(renewals(on)).toBe(0);
    await on.clock.advance(1);
    expect(guard.lost).toBe(true);
    resolve("");
    await result;
  });
});

describe("loss", () => {
  it("SDK-4 case 10: a blocked event loop cannot make signal or guard lie, and the end is bounded and quiet", async () => {
    const on = stage();
    const { guard, result, resolve } = await held(on);
    const { signal } = guard;
    on.network.otherwise = "hang_before";
    const start = on.clock.now();
    on.clock.jump(31);
    expect(signal.aborted).toBe(true);
    resolve("too late");
    await on.clock.advance(1);
    const { data, error } = await result;
    expect(data).toBe("too late");
    expect(error).toBeInstanceOf(LockOwnershipLostError);
    expect(on.clock.now() - start).toBeLessThanOrEqual(32);
  });

  it("case 10: asked in the same breath as the pause ends, before any timer", async () => {
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

  it("case 10: a body that never asked, and ended before any timer, did not succeed", async () => {
    let seconds = 0;
    const starved = { now: () => seconds, at: () => () => {}, pause: () => Promise.resolve() };
    const { locks } = new FakeClient().server.client({ clock: starved });
    const { error } = await locks.withLock(KEY, { ttl: TTL }, () => {
      seconds = 30;
    });
    expect(error).toBeInstanceOf(LockOwnershipLostError);
  });

  it("case 11: after an outage of a lease's length the guard is lost, whatever answers come then", async () => {
    const on = stage();
    const { guard, result, resolve } = await held(on);
    on.network.otherwise = { delaySeconds: 1 };
    on.clock.jump(40);
    expect(guard.lost).toBe(true);
    on.network.otherwise = "pass";
    await on.clock.advance(60);
    expect(guard.lost).toBe(true);
    expect(() => guard.throwIfLost()).toThrow(LockOwnershipLostError);
    resolve("");
    await result;
  });

  it("case 12: displaced amid a storm of failures, the loss is told exactly once", async () => {
    const on = stage();
    const { guard, result, resolve } = await held(on);
    const aborted = vi.fn();
    guard.signal.addEventListener("abort", aborted);
    await on.rival.locks.forceRelease(KEY);
    await on.rival.locks.acquire(KEY, { ttl: 600 });
    on.network.script = ["unavailable", "rate_limited", "reset", { status: 404 }, { status: 500 }];
    await on.clock.advance(120);
    expect(aborted).toHaveBeenCalledTimes(1);
    const reason = guard.signal.reason;
    expect(reason).toMatchObject({ name: "LockOwnershipLostError", status: 409 });
    resolve("");
    expect(await result).toEqual({ acquired: true, data: "", error: reason });
    expect(methods(on.network)).not.toContain("DELETE");
    expect((await on.rival.locks.get(KEY)).state?.held).toBe(true);
  });

  it("SDK-5 SDK-20: a body that succeeded without its lock is a loss, beside what it returned", async () => {
    const on = stage();
    const { guard, result, resolve } = await held(on);
    on.clock.jump(30);
    resolve("work");
    expect(await result).toEqual({ acquired: true, data: "work", error: guard.signal.reason });
  });

  it("SDK-5: a loss that only the release finds is told as well", async () => {
    const on = stage();
    const { result, resolve } = await held(on);
    await on.rival.locks.forceRelease(KEY);
    await on.rival.locks.acquire(KEY, { ttl: TTL });
    resolve("work");
    expect((await result).error).toMatchObject({ name: "LockOwnershipLostError", status: 409 });
  });

  it("a body that stops because of the signal ends in the loss itself", async () => {
    for (const stop of [
      (signal: AbortSignal) => pause(1e9, null, { signal, ref: false }),
      async (signal: AbortSignal) => {
        while (true) {
          signal.throwIfAborted();
          await Promise.race([new Promise((resolve) => signal.addEventListener("abort", resolve))]);
        }
      },
    ]) {
      const on = stage();
      const result = on.client.locks.withLock(KEY, { ttl: TTL }, ({ signal }) => stop(signal));
      await on.clock.settle();
      on.clock.jump(31);
      const { error } = await result;
      expect(error).toBeInstanceOf(LockOwnershipLostError);
      expect(error).not.toHaveProperty("suppressed");
    }
  });
});

describe("one hold, without its renewals", () => {
  async function made() {
    const { clock, client } = stage();
    const lease = granted(await client.locks.acquire(KEY, { ttl: TTL }));
    const renewed = there((await client.locks.renew(KEY, lease)).lease);
    return { clock, lease, renewed, hold: new Hold(lease, clock.now() + TTL, clock, 10, 0.5) };
  }

  it("case 8: a renewal that is confirmed once it was left changes nothing", async () => {
    const { clock, hold, lease, renewed } = await made();
    hold.leave();
    hold.renewed(renewed, clock.now() + 60);
    expect(hold.lease).toBe(lease);
    expect(hold.nextAction()).toEqual({ kind: "left" });
    expect(clock.waiting).toBe(0);
  });

  it("case 12: only the first loss counts, and none after it was left", async () => {
    const [first, second] = [new LockOwnershipLostError("first"), new LockOwnershipLostError("second")];
    const { hold } = await made();
    hold.lose(first);
    hold.lose(second);
    expect([hold.loss(), hold.signal.reason]).toEqual([first, first]);
    const left = (await made()).hold;
    left.leave();
    left.lose(first);
    expect([left.loss(), left.signal.aborted, left.notHeldReason()]).toEqual([
      null,
      false,
      expect.any(LockOwnershipLostError),
    ]);
  });

  it("case 6: its deadline is watched by itself, also after it has moved", async () => {
    const { clock, hold, renewed } = await made();
    const aborted = vi.fn();
    hold.signal.addEventListener("abort", aborted);
    clock.jump(20);
    hold.renewed(renewed, clock.now() + TTL);
    clock.jump(29);
    expect(aborted).not.toHaveBeenCalled();
    clock.jump(1);
    expect(aborted).toHaveBeenCalledTimes(1);
    expect(clock.waiting).toBe(0);
  });
});

describe("leaving", () => {
  it("SDK-5 case 21: the body's error wins, and a failed release is attached to it", async () => {
    const on = stage();
    const { guard, result, reject } = await held(on);
    const mine = new Error("mine");
    on.network.otherwise = "reset";
    reject(mine);
    const { acquired, data, error } = await result;
    expect([acquired, data]).toEqual([true, null]);
    expect(error).toBe(mine);
    expect(error).toMatchObject({ suppressed: [{ name: "TransportError" }] });
    expect(guard.releaseError).toBeInstanceOf(TransportError);
  });

  it("SDK-5 case 21: the body's error wins over the loss, which is attached to it", async () => {
    const on = stage();
    const { guard, result, reject } = await held(on);
    on.clock.jump(31);
    const mine = Object.freeze(new Error("frozen"));
    reject(mine);
    expect((await result).error).toBe(mine);
    const again = await held(on);
    on.clock.jump(31);
    const other = new Error("mine");
    again.reject(other);
    expect((await again.result).error).toBe(other);
    expect(other).toMatchObject({ suppressed: [again.guard.signal.reason] });
    expect(guard.lost).toBe(true);
  });

  it("what is thrown but is no error comes back as an error, so that it cannot pass for success", async () => {
    const { client } = stage();
    for (const thrown of [undefined, null, 0, "", "text", { some: "object" }]) {
      const { acquired, error } = await client.locks.withLock(KEY, { ttl: TTL }, () => {
        throw thrown;
      });
      expect(acquired).toBe(true);
      expect(error).toBeInstanceOf(Error);
      expect(error?.cause).toBe(thrown);
    }
  });

  it("a block that owned its lock throughout succeeds though its release was not confirmed", async () => {
    const on = stage();
    const { guard, result, resolve } = await held(on);
    on.network.otherwise = "drop_before_send";
    resolve("worked");
    expect(await result).toEqual({ acquired: true, data: "worked", error: null });
    expect(guard.releaseError).toBeInstanceOf(TransportError);
  });

  it("the release is bounded: five seconds while the lease lives, one once it is lost", async () => {
    const on = stage();
    const { result, resolve } = await held(on);
    on.network.otherwise = "hang_before";
    resolve("worked");
    const start = on.clock.now();
    let end = Number.NaN;
    void result.then(() => {
      end = on.clock.now();
    });
    await on.clock.advance(60);
    expect(end - start).toBe(5);
    expect((await result).error).toBeNull();
  });

  it("SDK-20 case 46: a block that ends well aborts nothing; code that outlives it asks its guard", async () => {
    const on = stage();
    const { guard, result, resolve } = await held(on);
    const { signal } = guard;
    const aborted = vi.fn();
    signal.addEventListener("abort", aborted);
    resolve("worked");
    expect(await result).toEqual({ acquired: true, data: "worked", error: null });
    expect([guard.lost, signal.aborted, signal.reason]).toEqual([true, false, undefined]);
    expect(() => guard.throwIfLost()).toThrow(LockOwnershipLostError);
    on.clock.jump(60);
    expect(() => guard.throwIfLost()).toThrow("its block was left");
    expect(signal.aborted).toBe(false);
    expect(aborted).not.toHaveBeenCalled();
  });

  it("SDK-5 SDK-20: a body that threw aborts nothing either; a lost one keeps its loss as the reason", async () => {
    const on = stage();
    const failing = await held(on);
    failing.reject(new Error("the body's own"));
    expect(there((await failing.result).error).message).toBe("the body's own");
    expect([failing.guard.lost, failing.guard.signal.aborted]).toEqual([true, false]);
    const losing = await held(on);
    on.clock.jump(TTL);
    losing.resolve("too late");
    const { error } = await losing.result;
    expect(error).toBe(losing.guard.signal.reason);
    expect(() => losing.guard.throwIfLost()).toThrow("not renewed");
  });

  it("SDK-20: a body that stops because of its loss has returned nothing", async () => {
    const on = stage();
    const { guard, result, reject } = await held(on);
    on.clock.jump(TTL);
    reject(guard.signal.reason);
    expect(await result).toEqual({ acquired: true, data: null, error: guard.signal.reason });
  });

  it("case 16: nothing that the caller aborts cuts the release short", async () => {
    const on = stage();
    const caller = new AbortController();
    const { result, resolve } = await held(on, TTL, caller.signal);
    on.network.script = [{ delaySeconds: 1 }];
    resolve("worked");
    await on.clock.settle();
    caller.abort();
    await on.clock.advance(1);
    expect(await result).toMatchObject({ data: "worked", error: null });
    expect((await on.client.locks.get(KEY)).state?.held).toBe(false);
  });

  it("SDK-5: the caller's signal stops the body with its own reason; the lease lives until the body has ended", async () => {
    const on = stage();
    const caller = new AbortController();
    const { guard, result, reject } = await held(on, TTL, caller.signal);
    caller.abort(new Error("shutting down"));
    expect(guard.signal.reason).toBe(caller.signal.reason);
    await on.clock.advance(60);
    expect([guard.lost, renewals(on) > 4]).toEqual([false, true]);
    reject(guard.signal.reason);
    expect((await result).error).toBe(caller.signal.reason);
    expect((await on.client.locks.get(KEY)).state?.held).toBe(false);
  });

  it("case 9 SDK-6: whatever happens, no timer, no listener and no unhandled rejection is left", async () => {
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
        const on = stage();
        const caller = new AbortController();
        const remove = vi.spyOn(caller.signal, "removeEventListener");
        const add = vi.spyOn(caller.signal, "addEventListener");
        const { result, resolve } = await held(on, 5, caller.signal);
        on.network.otherwise = renewal;
        await on.clock.advance(4);
        on.network.otherwise = release;
        resolve("");
        await on.clock.advance(20);
        await result;
        await on.clock.settle();
        expect(on.clock.waiting).toBe(0);
        expect(remove.mock.calls.length).toBe(add.mock.calls.length);
      }
    }
  });

  it("SDK-6: a hold on the real clock keeps no timer once it was left", async () => {
    vi.useFakeTimers();
    const { server } = stage();
    const client = new Client({ apiUrl: "http://x.test", serviceKey: "sk", fetch: server.fetch });
    expect(await client.locks.withLock(KEY, { ttl: TTL }, () => vi.getTimerCount())).toMatchObject({ data: 3 });
    expect(vi.getTimerCount()).toBe(0);
    vi.useRealTimers();
  });

  it("two blocks of one client are each their own", async () => {
    const { client, clock, rival } = stage();
    const one = client.locks.withLock("one", { ttl: 10 }, () => clock.advance(30).then(() => "one"));
    const two = client.locks.withLock("two", { ttl: 60 }, async ({ signal }) => {
      await rival.locks.forceRelease("two");
      await clock.advance(25);
      return signal.aborted;
    });
    expect(await one).toMatchObject({ data: "one" });
    expect(there((await two).error).name).toBe("LockOwnershipLostError");
  });
});
