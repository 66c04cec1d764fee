/** SDK-11 waiting for a lock, and SDK-12 holding it at least so long. */

import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { Fetch } from "../src/http/transport.ts";
import { LockOwnershipLostError, TransportError } from "../src/index.ts";
import { WAIT_SLICE_SECONDS } from "../src/protocol/acquire_wait.ts";
import { BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_MIN, Backoff } from "../src/protocol/backoff.ts";
import type { Fault } from "../src/testing/index.ts";
import { deferred, KEY, methods, type Stage, stage, TOKEN, TTL, there } from "./stage.ts";

const unhandled = vi.fn();
beforeEach(() => {
  unhandled.mockReset();
  process.on("unhandledRejection", unhandled);
});
afterEach(() => {
  process.off("unhandledRejection", unhandled);
  expect(unhandled).not.toHaveBeenCalled();
});

/** A lock that the rival holds, renewed for as long as it takes. */
async function heldByRival(on: Stage, ttl = 7_776_000) {
  const lease = there((await on.rival.locks.acquire(KEY, { ttl })).lease);
  return { free: () => on.rival.locks.release(KEY, lease) };
}

/** What each acquire asked to wait for. */
function recorded(on: Stage): Array<number | undefined> {
  const asked: Array<number | undefined> = [];
  const { fetch } = on.network;
  const recording: Fetch = (url, init) => {
    if (init.method === "POST") asked.push(JSON.parse(String(init.body)).wait_seconds);
    return fetch(url, init);
  };
  Object.assign(on.network, { fetch: recording });
  return asked;
}

async function ticks(count: number): Promise<void> {
  for (let done = 0; done < count; done += 1) await null;
}

function sent(on: Stage, method: string): number {
  return on.network.seen.filter((one) => one.method === method).length;
}

describe("SDK-11: waiting for a lock", () => {
  it("is granted the moment it is released, with one request", async () => {
    const on = stage();
    const rival = await heldByRival(on);
    const asking = on.client.locks.acquire(KEY, { ttl: TTL, wait: 20 });
    await on.clock.advance(3);
    await rival.free();
    expect(await asking).toMatchObject({ acquired: true, error: null });
    expect(methods(on.network)).toBe("POST");
    expect(on.clock.waiting).toBe(0);
  });

  it("without contention costs what it costs without waiting", async () => {
    const on = stage();
    expect(await on.client.locks.acquire(KEY, { ttl: TTL, wait: 20 })).toMatchObject({ acquired: true });
    expect(methods(on.network)).toBe("POST");
  });

  it("without `wait`, or with 0, does not wait and sends no such field", async () => {
    const on = stage();
    const asked = recorded(on);
    await heldByRival(on);
    for (const options of [{ ttl: TTL }, { ttl: TTL, wait: 0 }]) {
      expect(await on.client.locks.acquire(KEY, options)).toEqual({
        acquired: false,
        lease: null,
        error: null,
        reason: "lock_held",
      });
    }
    expect(asked).toEqual([undefined, undefined]);
  });

  it("asks slice by slice with the same token and request id, and ends in contention when the time is up", async () => {
    const on = stage();
    const asked = recorded(on);
    await heldByRival(on);
    const start = on.clock.now();
    const asking = on.client.locks.acquire(KEY, { ttl: TTL, wait: 110 });
    await on.clock.advance(110);
    expect(await asking).toEqual({ acquired: false, lease: null, error: null, reason: "lock_held" });
    expect(on.clock.now() - start).toBe(110);
    expect(asked).toEqual([WAIT_SLICE_SECONDS, WAIT_SLICE_SECONDS, 10]);
    expect(new Set(on.network.seen.map((one) => one.token)).size).toBe(1);
    expect(new Set(on.network.seen.map((one) => one.requestId)).size).toBe(1);
    expect(methods(on.network)).toBe("POST POST POST");
    expect(on.clock.waiting).toBe(0);
  });

  it("waits for ever if it is to, past what a timer can hold", async () => {
    const on = stage();
    const rival = await heldByRival(on);
    const asking = on.client.locks.acquire(KEY, { ttl: TTL, wait: Number.POSITIVE_INFINITY });
    await on.clock.advance(3_600);
    await rival.free();
    expect((await asking).acquired).toBe(true);
    expect(sent(on, "POST")).toBe(3_600 / WAIT_SLICE_SECONDS + 1);
  });

  it("is first come, first served, and keeps its place from one request to the next", async () => {
    const on = stage();
    const rival = await heldByRival(on);
    const order: string[] = [];
    const mine = on.client.locks.withLock(KEY, { ttl: TTL, wait: 600 }, () => void order.push("mine"));
    await on.clock.advance(1);
    const theirs = on.rival.locks.withLock(KEY, { ttl: TTL, wait: 600 }, () => void order.push("theirs"));
    await on.clock.advance(WAIT_SLICE_SECONDS * 3 + 0.5);
    await rival.free();
    await Promise.all([mine, theirs]);
    expect(order).toEqual(["mine", "theirs"]);
  });

  it("takes over after expiry and grace of a holder that died", async () => {
    const on = stage();
    await heldByRival(on, 10);
    const start = on.clock.now();
    const asking = on.client.locks.acquire(KEY, { ttl: TTL, wait: 20 }).then(() => on.clock.now() - start);
    await on.clock.advance(20);
    expect(await asking).toBe(11);
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
  ])("rides out %j with the same token, and rests between", async (fault) => {
    const on = stage([fault, fault, fault]);
    const start = on.clock.now();
    const asking = on.client.locks.acquire(KEY, { ttl: TTL, wait: 300, token: TOKEN });
    await on.clock.advance(300);
    expect((await asking).lease?.token).toBe(TOKEN);
    expect(new Set(on.network.seen.map((one) => one.token))).toEqual(new Set([TOKEN]));
    expect(sent(on, "POST")).toBe(4);
    expect(on.clock.now()).toBeGreaterThan(start);
    expect(sent(on, "DELETE")).toBe(0);
  });

  it("sends a first request that got no answer again at once, and rests only then", async () => {
    const on = stage(["reset", "reset"]);
    const start = on.clock.now();
    const asking = on.client.locks.acquire(KEY, { ttl: TTL, wait: 300 }).then(() => on.clock.now() - start);
    await on.clock.settle();
    expect(methods(on.network)).toBe("POST POST");
    await on.clock.advance(300);
    expect(await asking).toBeGreaterThanOrEqual(BACKOFF_SECONDS_MIN);
    expect(methods(on.network)).toBe("POST POST POST");
  });

  it("goes on over a restart of the server", async () => {
    const on = stage();
    const rival = await heldByRival(on);
    const asking = on.client.locks.acquire(KEY, { ttl: TTL, wait: Number.POSITIVE_INFINITY });
    await on.clock.advance(5);
    on.server.restart();
    await on.clock.advance(5);
    await rival.free();
    expect((await asking).acquired).toBe(true);
  });

  it("honours Retry-After, and ends at once where that is later than the end of the wait", async () => {
    const on = stage([{ status: 429, headers: { "Retry-After": "40" } }]);
    const start = on.clock.now();
    const asking = on.client.locks.acquire(KEY, { ttl: TTL, wait: 100 });
    await on.clock.advance(39.9);
    expect(sent(on, "POST")).toBe(1);
    await on.clock.advance(60);
    expect((await asking).acquired).toBe(true);
    on.network.script = [{ status: 429, headers: { "Retry-After": "40" } }];
    const { error } = await on.client.locks.acquire("other", { ttl: TTL, wait: 10 });
    expect(error).toMatchObject({ name: "RateLimitedError", retryAfter: 40 });
    expect(on.clock.now() - start).toBeCloseTo(99.9);
  });

  it("tells the last failure if the last try failed, and gives back what it may have got", async () => {
    const on = stage();
    on.network.otherwise = "drop_after_send";
    const start = on.clock.now();
    const asking = on.client.locks.acquire(KEY, { ttl: TTL, wait: 10 }).then((result) => {
      expect(on.clock.now() - start).toBeGreaterThan(10 - BACKOFF_SECONDS_MAX);
      return result;
    });
    await on.clock.advance(10);
    const { acquired, error } = await asking;
    expect(acquired).toBe(false);
    expect(error).toBeInstanceOf(TransportError);
    expect(methods(on.network)).toMatch(/^(POST ){4,}DELETE$/);
    expect((await on.rival.locks.get(KEY)).state?.held).toBe(false);
  });

  it.each([
    [401, "AuthenticationError"],
    [403, "PermissionDeniedError"],
    [400, "ValidationError"],
  ])("%i ends it", async (status, name) => {
    const on = stage([{ status }]);
    const { error } = await on.client.locks.acquire(KEY, { ttl: TTL, wait: 100 });
    expect(error?.name).toBe(name);
    expect(methods(on.network)).toBe("POST");
  });

  it("a token of the caller's that is retired ends it: nobody but the caller knows what it stood for", async () => {
    const on = stage();
    const lease = there((await on.client.locks.acquire(KEY, { ttl: TTL })).lease);
    await on.client.locks.release(KEY, lease);
    const { reason } = await on.client.locks.acquire(KEY, { ttl: TTL, wait: 10, token: lease.token });
    expect(reason).toBe("lock_ownership_lost");
  });

  it("a grant that ran out before anybody heard of it is waited for anew, with a new token", async () => {
    const on = stage(["drop_after_send", { status: 503, headers: { "Retry-After": "9" } }]);
    const asking = on.client.locks.acquire(KEY, { ttl: 10, wait: 100, token: TOKEN });
    await on.clock.advance(15);
    const { lease } = await asking;
    expect(methods(on.network)).toBe("POST POST POST DELETE POST");
    expect(on.network.seen.map((one) => one.token === TOKEN)).toEqual([true, true, true, true, false]);
    expect((await on.client.locks.renew(KEY, there(lease))).error).toBeNull();
  });

  it("a new token that is told of a loss at once ends it", async () => {
    const on = stage(["drop_after_send"]);
    on.network.otherwise = { status: 409, body: '{"error": "lost", "code": "lock_ownership_lost"}' };
    const { reason } = await on.client.locks.acquire(KEY, { ttl: TTL, wait: 100 });
    expect(reason).toBe("lock_ownership_lost");
    expect(methods(on.network)).toBe("POST POST DELETE POST");
  });

  it("a service that does not wait is not hammered", async () => {
    const on = stage();
    on.network.otherwise = { status: 409, body: '{"error": "held", "code": "lock_held"}' };
    const asking = on.client.locks.acquire(KEY, { ttl: TTL, wait: 100 });
    await on.clock.advance(100);
    expect(await asking).toEqual({ acquired: false, lease: null, error: null, reason: "lock_held" });
    expect(sent(on, "POST")).toBeGreaterThan(95 / BACKOFF_SECONDS_MAX);
    expect(sent(on, "POST")).toBeLessThan(60);
  });

  it("SDK-2: who cancels gives the place back, and nobody is granted what nobody wants", async () => {
    const on = stage();
    const rival = await heldByRival(on);
    const caller = new AbortController();
    const asking = on.client.locks.acquire(KEY, { ttl: TTL, wait: 600, signal: caller.signal });
    await on.clock.advance(3);
    caller.abort(new Error("enough"));
    const { acquired, error } = await asking;
    expect(acquired).toBe(false);
    expect(error).toBeInstanceOf(TransportError);
    expect(error?.cause).toBe(caller.signal.reason);
    expect(methods(on.network)).toBe("POST DELETE");
    await rival.free();
    expect((await on.rival.locks.get(KEY)).state?.held).toBe(false);
    expect(on.clock.waiting).toBe(0);
  });

  it("SDK-2: also while it rests between two requests, where the place is still kept", async () => {
    const on = stage();
    await heldByRival(on);
    const caller = new AbortController();
    const asking = on.client.locks.acquire(KEY, { ttl: TTL, wait: 600, signal: caller.signal });
    await on.clock.settle();
    on.network.script = ["rate_limited"];
    await on.clock.advance(WAIT_SLICE_SECONDS + 0.5);
    expect(methods(on.network)).toBe("POST POST");
    caller.abort();
    expect((await asking).error).toMatchObject({ requestSent: false });
    expect(methods(on.network)).toBe("POST POST DELETE");
    expect(on.clock.waiting).toBe(0);
  });

  it("a signal that has aborted sends nothing", async () => {
    const on = stage();
    const signal = AbortSignal.abort();
    expect((await on.client.locks.acquire(KEY, { ttl: TTL, wait: 9, signal })).error).toBeInstanceOf(TransportError);
    expect(on.network.seen).toEqual([]);
  });

  it("case 18: the body never runs without the lock, wherever the caller gives up", async () => {
    const on = stage();
    await heldByRival(on);
    const body = vi.fn();
    const waiting = on.client.locks.withLock(KEY, { ttl: TTL, wait: 40 }, body);
    await on.clock.advance(40);
    expect(await waiting).toEqual({ acquired: false, data: null, error: null, reason: "lock_held" });
    const signal = AbortSignal.abort();
    expect((await on.client.locks.withLock(KEY, { ttl: TTL, wait: 40, signal }, body)).acquired).toBe(false);
    expect(body).not.toHaveBeenCalled();
  });

  it.each([
    [{ wait: "5" }, TypeError],
    [{ wait: true }, TypeError],
    [{ wait: null }, TypeError],
    [{ wait: -1 }, RangeError],
    [{ wait: Number.NaN }, RangeError],
  ])("%j is a mistake", async (options, kind) => {
    const { client, network } = stage();
    await expect(client.locks.acquire(KEY, { ttl: TTL, ...(options as object) })).rejects.toThrow(kind);
    await expect(client.locks.withLock(KEY, { ttl: TTL, ...(options as object) }, () => {})).rejects.toThrow("wait");
    expect(network.seen).toEqual([]);
  });
});

describe("SDK-4: the deadline of a lease that was waited for", () => {
  it("counts from the request if the answer came within a third of the TTL", async () => {
    const on = stage();
    const rival = await heldByRival(on);
    const start = on.clock.now();
    const asking = on.client.locks.withLock(KEY, { ttl: TTL, wait: 20 }, ({ signal }) => {
      expect(methods(on.network)).toBe("POST");
      on.clock.jump(start + TTL - 0.001 - on.clock.now());
      expect(signal.aborted).toBe(false);
      on.clock.jump(0.001);
      return signal.aborted;
    });
    await on.clock.advance(TTL / 3 - 2);
    await rival.free();
    expect((await asking).error).toBeInstanceOf(LockOwnershipLostError);
  });

  it("is confirmed by one renewal if it came later, and counts from that", async () => {
    const on = stage();
    const rival = await heldByRival(on);
    const asking = on.client.locks.withLock(KEY, { ttl: 5, wait: 20 }, ({ signal }) => {
      expect(methods(on.network)).toBe("POST PATCH");
      on.clock.jump(4.999);
      expect(signal.aborted).toBe(false);
      on.clock.jump(0.001);
      expect(signal.aborted).toBe(true);
    });
    await on.clock.advance(15);
    await rival.free();
    expect((await asking).error).toBeInstanceOf(LockOwnershipLostError);
  });

  it("a lease that was lost before its answer came is waited for anew, with a new token", async () => {
    const on = stage();
    on.network.script = [{ takesSeconds: 20 }];
    const { lease } = await on.client.locks.acquire(KEY, { ttl: 10, wait: 60, token: TOKEN });
    expect(methods(on.network)).toBe("POST PATCH DELETE POST");
    expect(there(lease).token).not.toBe(TOKEN);
    expect((await on.client.locks.renew(KEY, there(lease))).error).toBeNull();
  });

  it("one that cannot be confirmed is given back, and waited for with a new token", async () => {
    const on = stage();
    on.network.script = [{ takesSeconds: 20 }, "reset"];
    const asking = on.client.locks.acquire(KEY, { ttl: 50, wait: 60, token: TOKEN });
    await on.clock.settle();
    await on.clock.advance(5);
    expect(there((await asking).lease).token).not.toBe(TOKEN);
    expect(methods(on.network)).toBe("POST PATCH DELETE POST");
    expect(on.network.seen[2]?.token).toBe(TOKEN);
  });

  it("a failure to confirm that comes when the time is up is told, and given back", async () => {
    const on = stage();
    on.network.script = [{ takesSeconds: 20 }, "reset"];
    const { error } = await on.client.locks.acquire(KEY, { ttl: 50, wait: 15 });
    expect(error).toBeInstanceOf(TransportError);
    expect(methods(on.network)).toBe("POST PATCH DELETE");
    expect((await on.rival.locks.get(KEY)).state?.held).toBe(false);
  });

  it("who cancels while it is being confirmed gives it back", async () => {
    const on = stage();
    const caller = new AbortController();
    on.network.script = [{ takesSeconds: 20 }, "hang_after"];
    const asking = on.client.locks.acquire(KEY, { ttl: TTL, wait: 60, signal: caller.signal });
    await on.clock.settle();
    caller.abort();
    expect((await asking).acquired).toBe(false);
    expect(methods(on.network)).toBe("POST PATCH DELETE");
    expect((await on.rival.locks.get(KEY)).state?.held).toBe(false);
  });
});

describe("SDK-4: the end of an acquisition", () => {
  it.each([{ wait: 60 }, {}])(
    "with %j counts from before its grant, not from the repetition that told of it",
    async (more) => {
      const on = stage(["drop_after_send", ...("wait" in more ? (["unavailable"] as const) : [])]);
      const ttl = 7_776_000;
      const start = on.clock.now();
      const held = on.client.locks.withLock(KEY, { ttl, ...more }, ({ signal }) => {
        expect(methods(on.network)).toMatch(/^POST POST( POST)?$/);
        on.clock.jump(start + ttl - 0.001 - on.clock.now());
        expect(signal.aborted).toBe(false);
        on.clock.jump(0.001);
        expect(signal.aborted).toBe(true);
      });
      await on.clock.advance(2);
      expect((await held).error).toBeInstanceOf(LockOwnershipLostError);
    },
  );
});

describe("SDK-11: rests", () => {
  it("grow to a bound, with jitter, and begin anew", () => {
    const rests = new Backoff();
    const taken = Array.from({ length: 12 }, () => rests.next(null));
    const firsts = Array.from({ length: 20 }, () => new Backoff().next(null));
    expect(new Set(firsts).size).toBeGreaterThan(10);
    for (const first of firsts) expect(first).toBeGreaterThanOrEqual(BACKOFF_SECONDS_MIN);
    for (const first of firsts) expect(first).toBeLessThanOrEqual(2 * BACKOFF_SECONDS_MIN);
    expect(Math.max(...taken)).toBeLessThanOrEqual(BACKOFF_SECONDS_MAX);
    expect(taken.at(-1)).toBeGreaterThanOrEqual(BACKOFF_SECONDS_MAX / 2);
    for (let turn = 0; turn < 20; turn += 1) {
      const told = rests.next(20);
      expect(told).toBeGreaterThanOrEqual(20);
      expect(told).toBeLessThanOrEqual(22);
    }
    expect(rests.next(0)).toBeGreaterThan(BACKOFF_SECONDS_MIN);
    rests.reset();
    expect(rests.next(null)).toBeLessThanOrEqual(2 * BACKOFF_SECONDS_MIN);
  });
});

describe("SDK-12: holding at least so long", () => {
  it("a job that ends sooner leaves the lock taken until then", async () => {
    const on = stage();
    const start = on.clock.now();
    const work = on.client.locks.withLock(KEY, { ttl: TTL, holdAtLeast: 60 }, () => on.clock.advance(0.2));
    expect(await work).toMatchObject({ acquired: true, error: null });
    expect(methods(on.network)).toBe("POST PATCH");
    on.clock.jump(start + 60.999 - on.clock.now());
    expect((await on.rival.locks.get(KEY)).state?.held).toBe(true);
    on.clock.jump(1);
    expect((await on.rival.locks.get(KEY)).state?.held).toBe(false);
    expect(on.clock.waiting).toBe(0);
  });

  it("shortens a long lease to the rest, in whole seconds", async () => {
    const on = stage();
    await on.client.locks.withLock(KEY, { ttl: 3_600, holdAtLeast: 60 }, () => on.clock.jump(20.5));
    on.clock.jump(41);
    expect((await on.rival.locks.get(KEY)).state?.held).toBe(false);
  });

  it("never below the shortest lease", async () => {
    const on = stage();
    await on.client.locks.withLock(KEY, { ttl: TTL, holdAtLeast: 10 }, () => on.clock.jump(9));
    on.clock.jump(5.9);
    expect((await on.rival.locks.get(KEY)).state?.held).toBe(true);
    on.clock.jump(0.1);
    expect((await on.rival.locks.get(KEY)).state?.held).toBe(false);
  });

  it("a job that took as long releases as ever", async () => {
    const on = stage();
    await on.client.locks.withLock(KEY, { ttl: 600, holdAtLeast: 10 }, () => on.clock.jump(10));
    expect(methods(on.network)).toBe("POST DELETE");
  });

  it("also when the body throws, whose error is told as ever", async () => {
    const on = stage();
    const mine = new Error("mine");
    const result = await on.client.locks.withLock(KEY, { ttl: TTL, holdAtLeast: 60 }, () => Promise.reject(mine));
    expect(result.error).toBe(mine);
    expect((await on.rival.locks.get(KEY)).state?.held).toBe(true);
  });

  it("a renewal that fails is noted as a failed release is; the lease expires as it is", async () => {
    const on = stage();
    let guard: { releaseError: unknown } | undefined;
    const result = await on.client.locks.withLock(KEY, { ttl: TTL, holdAtLeast: 60 }, (given) => {
      guard = given;
      on.network.otherwise = "reset";
      return "done";
    });
    expect(result).toEqual({ acquired: true, data: "done", error: null });
    expect(guard?.releaseError).toBeInstanceOf(TransportError);
    expect(methods(on.network)).toBe("POST PATCH PATCH");
    expect((await on.rival.locks.get(KEY)).state?.held).toBe(true);
  });

  it("a renewal under way as the body ends does not cut the rest short", async () => {
    const on = stage();
    const renewal = deferred();
    let first = true;
    const fetch: Fetch = (url, init) => {
      if (init.method !== "PATCH" || !first) return on.network.fetch(url, init);
      first = false;
      renewal.resolve();
      // As of a service: who hangs up does not take back what was sent.
      const answer = new Promise<void>((due) => on.clock.at(on.clock.now() + 0.5, due)).then(() =>
        on.server.fetch(url, { ...init, signal: null }),
      );
      const hangUp = new Promise<never>((_, reject) =>
        init.signal?.addEventListener("abort", () => reject(new Error("cut"))),
      );
      return Promise.race([answer, hangUp]);
    };
    const work = on.server.client({ fetch }).locks.withLock(KEY, { ttl: TTL, holdAtLeast: 600 }, () => renewal.promise);
    await on.clock.advance(60);
    expect(await work).toMatchObject({ acquired: true, error: null });
    await on.clock.advance(500);
    expect((await on.rival.locks.get(KEY)).state?.held).toBe(true);
  });

  it("but is not waited for without end", async () => {
    const on = stage();
    on.network.script = ["pass", "hang_before"];
    const start = on.clock.now();
    const begun = deferred();
    const work = on.client.locks
      .withLock(KEY, { ttl: TTL, holdAtLeast: 600 }, () => begun.promise)
      .then(() => on.clock.now() - start);
    while (sent(on, "PATCH") === 0) await on.clock.advance(1);
    begun.resolve();
    await on.clock.advance(2);
    expect(await work).toBeLessThan(TTL / 2);
    expect(methods(on.network)).toBe("POST PATCH PATCH");
    expect(on.clock.waiting).toBe(0);
  });

  it("a loss that only the last renewal finds is a loss", async () => {
    const on = stage();
    const { error } = await on.client.locks.withLock(KEY, { ttl: TTL, holdAtLeast: 60 }, async () => {
      await on.rival.locks.forceRelease(KEY);
    });
    expect(error).toMatchObject({ name: "LockOwnershipLostError", status: 409 });
  });

  it("a lost lease is not taken for held", async () => {
    const on = stage();
    await on.client.locks.withLock(KEY, { ttl: TTL, holdAtLeast: 600 }, () => on.clock.jump(31));
    expect(methods(on.network)).toBe("POST DELETE");
  });

  it("a body that never began holds nothing, whenever the caller's signal aborts around the grant", async () => {
    const told = new Set<boolean>();
    for (let delay = 0; delay < 40; delay += 1) {
      const on = stage();
      const caller = new AbortController();
      const fetch: Fetch = async (url, init) => {
        if (init.method === "POST") void ticks(delay).then(() => caller.abort());
        return on.network.fetch(url, init);
      };
      const body = vi.fn();
      const options = { ttl: TTL, holdAtLeast: 600, signal: caller.signal };
      const { acquired } = await on.server.client({ fetch }).locks.withLock(KEY, options, body);
      told.add(acquired && body.mock.calls.length === 0);
      expect((await on.rival.locks.get(KEY)).state?.held).toBe(body.mock.calls.length > 0);
    }
    expect(told).toEqual(new Set([true, false]));
  });

  it.each([
    [{ holdAtLeast: "60" }, TypeError],
    [{ holdAtLeast: -1 }, RangeError],
    [{ holdAtLeast: Number.POSITIVE_INFINITY }, RangeError],
  ])("%j is a mistake", async (options, kind) => {
    const { client, network } = stage();
    await expect(client.locks.withLock(KEY, { ttl: TTL, ...(options as object) }, () => {})).rejects.toThrow(kind);
    expect(network.seen).toEqual([]);
  });
});
