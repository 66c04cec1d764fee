import { describe, expect, it } from "vitest";
import { LockOwnershipLostError } from "../src/index.ts";
import { FakeClient, FakeLocks, ManualClock } from "../src/testing/index.ts";
import { KEY, TTL, there } from "./stage.ts";

const OTHER = "0b7a2a51-9d0a-4d0c-8f7e-1de3a1c5b6aa";

describe("SDK-10: the fake keeps the lease rules", () => {
  it("LEASE-2 LEASE-3 LEASE-7: each change of hands has a higher fencing token, renewals keep it", async () => {
    const { locks, clock } = new FakeClient();
    const tokens: number[] = [];
    for (let hands = 0; hands < 3; hands += 1) {
      const lease = there((await locks.acquire(KEY, { ttl: TTL })).lease);
      expect((await locks.renew(lease)).lease?.fencingToken).toBe(lease.fencingToken);
      tokens.push(lease.fencingToken);
      if (hands === 0) await locks.release(lease);
      else clock.jump(TTL + 1);
    }
    expect(tokens).toEqual([...new Set(tokens)].sort());
    expect(tokens[0]).toBe(Date.UTC(2026, 0, 1));
  });

  it.each([
    [0, 28.999, "same lease"],
    [0, 29, "lost"],
    [0, 30.999, "lost"],
    [0, 31, "new lease"],
  ])("LEASE-4 LEASE-5 LEASE-7: the same token after %d + %d seconds: %s", async (start, seconds, expected) => {
    const { locks, clock } = new FakeClient();
    clock.jump(start);
    const lease = there((await locks.acquire(KEY, { ttl: TTL })).lease);
    clock.jump(seconds);
    const { lease: again, error } = await locks.acquire(KEY, { ttl: TTL, token: lease.token });
    if (expected === "lost") expect(error).toBeInstanceOf(LockOwnershipLostError);
    else expect(again?.fencingToken === lease.fencingToken).toBe(expected === "same lease");
  });

  it("LEASE-6 LEASE-12: others wait for the grace, and a read says so", async () => {
    const { locks, clock } = new FakeClient();
    await locks.acquire(KEY, { ttl: TTL });
    clock.jump(30.999);
    expect((await locks.get(KEY)).state?.held).toBe(true);
    expect(await locks.acquire(KEY, { ttl: TTL, token: OTHER })).toMatchObject({ acquired: false, error: null });
    clock.jump(0.001);
    expect((await locks.get(KEY)).state?.held).toBe(false);
    expect(await locks.acquire(KEY, { ttl: TTL, token: OTHER })).toMatchObject({ acquired: true });
  });

  it("LEASE-8: a renewal sets the expiry, also to sooner, and is refused in the margin", async () => {
    const { locks, clock } = new FakeClient();
    const lease = there((await locks.acquire(KEY, { ttl: TTL })).lease);
    const shorter = there((await locks.renew(lease, { ttl: 10 })).lease);
    expect(shorter.expiresAt.getTime() - clock.utcNow().getTime()).toBe(10_000);
    clock.jump(9);
    expect((await locks.renew(shorter)).error).toBeInstanceOf(LockOwnershipLostError);
  });

  it("LEASE-9 LEASE-10 LEASE-11: releases, force releases, and retired tokens", async () => {
    const { locks } = new FakeClient();
    const lease = there((await locks.acquire(KEY, { ttl: TTL })).lease);
    await locks.release(lease);
    expect(await locks.release(lease)).toEqual({ error: null });
    expect((await locks.acquire(KEY, { ttl: TTL, token: lease.token })).error).toBeInstanceOf(LockOwnershipLostError);
    const next = there((await locks.acquire(KEY, { ttl: TTL })).lease);
    expect((await locks.release(lease)).error).toBeInstanceOf(LockOwnershipLostError);
    expect(await locks.forceRelease(KEY)).toEqual({ error: null });
    expect(await locks.forceRelease(KEY)).toEqual({ error: null });
    expect((await locks.acquire(KEY, { ttl: TTL, token: next.token })).error).toBeInstanceOf(LockOwnershipLostError);
  });

  it("LEASE-7 LEASE-11: a lapsed token may take the lock over again, unless it was forced out", async () => {
    const { locks, clock } = new FakeClient();
    const { token } = there((await locks.acquire(KEY, { ttl: TTL })).lease);
    clock.jump(31);
    expect(await locks.acquire(KEY, { ttl: TTL, token })).toMatchObject({ acquired: true });
    clock.jump(31);
    await locks.forceRelease(KEY);
    expect((await locks.acquire(KEY, { ttl: TTL, token })).error).toBeInstanceOf(LockOwnershipLostError);
  });

  it("the deadline of 90 days does not move", async () => {
    const { locks, clock } = new FakeClient();
    const lease = there((await locks.acquire(KEY, { ttl: 7_776_000 })).lease);
    clock.jump(100);
    expect((await locks.renew(lease)).lease?.expiresAt).toEqual(lease.expiresAt);
  });

  it("is shared by as many clients as a test wants, whose clock tells a server's too", async () => {
    const moves: number[] = [];
    const clock = new ManualClock({ onMove: (seconds) => moves.push(seconds) });
    const server = new FakeLocks(clock);
    const [one, two] = [server.client({ holder: "one" }), new FakeClient(clock, server)];
    expect(await one.locks.acquire(KEY, { ttl: TTL })).toMatchObject({ acquired: true });
    expect(await two.locks.acquire(KEY, { ttl: TTL })).toMatchObject({ acquired: false });
    await clock.advance(3);
    expect(moves).toEqual([3]);
    expect((await server.fetch("http://x.test/elsewhere", { method: "PUT" })).status).toBe(404);
  });
});
