import { describe, expect, it } from "vitest";
import { LockOwnershipLostError } from "../src/index.ts";
import { FakeClient, FakeLocks, ManualClock } from "../src/testing/index.ts";
import { granted, KEY, TTL, there } from "./stage.ts";

const OTHER = "0b7a2a51-9d0a-4d0c-8f7e-1de3a1c5b6aa";

describe("SDK-10: the fake keeps the lease rules", () => {
  it("LEASE-2 LEASE-3 LEASE-7: each change of hands has a higher fencing token, renewals keep it", async () => {
    const { locks, clock } = new FakeClient();
    const tokens: number[] = [];
    for (let hands = 0; hands < 3; hands += 1) {
      const lease = granted(await locks.acquire(KEY, { ttl: TTL }));
      expect((await locks.renew(KEY, lease)).lease?.fencingToken).toBe(lease.fencingToken);
      tokens.push(lease.fencingToken);
      if (hands === 0) await locks.release(KEY, lease);
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
    const { lease: again, reason } = await locks.acquire(KEY, { ttl: TTL, token: lease.token });
    if (expected === "lost") expect(reason).toBe("lock_ownership_lost");
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
    const shorter = there((await locks.renew(KEY, lease, { ttl: 10 })).lease);
    expect(shorter.expiresAt.getTime() - clock.utcNow().getTime()).toBe(10_000);
    clock.jump(9);
    expect((await locks.renew(KEY, shorter)).error).toBeInstanceOf(LockOwnershipLostError);
  });

  it("LEASE-9 LEASE-10 LEASE-11: releases, force releases, and retired tokens", async () => {
    const { locks } = new FakeClient();
    const lease = there((await locks.acquire(KEY, { ttl: TTL })).lease);
    await locks.release(KEY, lease);
    expect(await locks.release(KEY, lease)).toEqual({ error: null });
    expect((await locks.acquire(KEY, { ttl: TTL, token: lease.token })).reason).toBe("lock_ownership_lost");
    const next = there((await locks.acquire(KEY, { ttl: TTL })).lease);
    expect((await locks.release(KEY, lease)).error).toBeInstanceOf(LockOwnershipLostError);
    expect(await locks.forceRelease(KEY)).toEqual({ error: null });
    expect(await locks.forceRelease(KEY)).toEqual({ error: null });
    expect((await locks.acquire(KEY, { ttl: TTL, token: next.token })).reason).toBe("lock_ownership_lost");
  });

  it("LEASE-7 LEASE-11: a lapsed token may take the lock over again, unless it was forced out", async () => {
    const { locks, clock } = new FakeClient();
    const { token } = there((await locks.acquire(KEY, { ttl: TTL })).lease);
    clock.jump(31);
    expect(await locks.acquire(KEY, { ttl: TTL, token })).toMatchObject({ acquired: true });
    clock.jump(31);
    await locks.forceRelease(KEY);
    expect((await locks.acquire(KEY, { ttl: TTL, token })).reason).toBe("lock_ownership_lost");
  });

  it("the deadline of 90 days does not move", async () => {
    const { locks, clock } = new FakeClient();
    const lease = there((await locks.acquire(KEY, { ttl: 7_776_000 })).lease);
    clock.jump(100);
    expect((await locks.renew(KEY, lease)).lease?.expiresAt).toEqual(lease.expiresAt);
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

describe("SDK-10: the fake lets callers wait, and can be listed, viewed and watched", () => {
  function asked(server: FakeLocks, method: string, path: string, token = OTHER, body?: object, signal?: AbortSignal) {
    const headers = { "X-Volcano-Lock-Token": token, "X-Volcano-Lock-Holder": `holder-${token.slice(0, 2)}` };
    const text = body === undefined ? {} : { body: JSON.stringify(body) };
    return server.fetch(`http://x.test${path}`, { method, headers, signal: signal ?? null, ...text });
  }

  const wait = (seconds: number): object => ({ ttl_seconds: TTL, wait_seconds: seconds });
  const token = (name: string): string => `${name}${OTHER.slice(2)}`;

  async function held(server: FakeLocks): Promise<() => Promise<unknown>> {
    const { locks } = server.client();
    const lease = there((await locks.acquire(KEY, { ttl: 7_776_000 })).lease);
    return () => locks.release(KEY, lease);
  }

  async function ended(asking: Promise<Response>): Promise<string> {
    const response = await asking;
    const text = response.status === 204 ? "" : ((await response.json()) as { code?: string }).code;
    return `${response.status} ${text ?? ""}`.trim();
  }

  it("serves who waits in the order of their coming, those who hung up or are absent not at all", async () => {
    const server = new FakeLocks();
    const free = await held(server);
    const gone = new AbortController();
    const line = ["aa", "bb", "cc"].map((name) =>
      asked(server, "POST", `/locks/${KEY}/lease`, token(name), wait(name === "bb" ? 1 : 20), gone.signal),
    );
    const last = asked(server, "POST", `/locks/${KEY}/lease`, token("dd"), wait(20));
    for (const one of line) one.catch(() => {});
    await server.clock.advance(1);
    expect(await ended(there(line[1]))).toBe("409 lock_held");
    gone.abort();
    await free();
    expect(await ended(last)).toBe("201");
    await expect(line[0]).rejects.toThrow();
    expect(server.clock.waiting).toBe(0);
  });

  it("the same token takes its own place over, and keeps it for a while after its request ended", async () => {
    const server = new FakeLocks();
    const free = await held(server);
    const first = asked(server, "POST", `/locks/${KEY}/lease`, token("aa"), wait(20));
    const behind = asked(server, "POST", `/locks/${KEY}/lease`, token("bb"), wait(60));
    const again = asked(server, "POST", `/locks/${KEY}/lease`, token("aa"), wait(1));
    expect(await ended(first)).toBe("409 lock_held");
    await server.clock.advance(5);
    expect(await ended(again)).toBe("409 lock_held");
    const third = asked(server, "POST", `/locks/${KEY}/lease`, token("aa"), wait(60));
    await free();
    expect(await ended(third)).toBe("201");
    await server.clock.advance(60);
    expect(await ended(behind)).toBe("201");
  });

  it("a release takes its token out of the line", async () => {
    const server = new FakeLocks();
    await held(server);
    const waiting = asked(server, "POST", `/locks/${KEY}/lease`, OTHER, wait(20));
    expect(await ended(asked(server, "DELETE", `/locks/${KEY}/lease`))).toBe("204");
    expect(await ended(waiting)).toBe("409 lock_ownership_lost");
    expect(await ended(asked(server, "DELETE", `/locks/${KEY}/lease`))).toBe("409 lock_ownership_lost");
  });

  it("tells all that happens to the locks of a prefix, and from any event on", async () => {
    const server = new FakeLocks();
    const { signal } = new AbortController();
    const stream = async (path: string, lastEventId?: string): Promise<() => Promise<string[]>> => {
      const headers: Record<string, string> = lastEventId === undefined ? {} : { "Last-Event-ID": lastEventId };
      const reader = there(
        (await server.fetch(`http://x.test${path}`, { method: "GET", headers, signal })).body,
      ).getReader();
      const decoder = new TextDecoder();
      let reading = reader.read();
      return async () => {
        let text = "";
        for (;;) {
          const next = await Promise.race([reading, new Promise<null>((none) => setImmediate(none, null))]);
          if (next === null || next.done)
            return [...text.matchAll(/^(?:id|event): (.*)$/gm)].map(([, told = ""]) => told);
          text += decoder.decode(next.value);
          reading = reader.read();
        }
      };
    };
    const told = await stream("/locks/events?prefix=daily");
    expect(await told()).toEqual(["0"]);
    const client = server.client();
    await client.locks.acquire("other", { ttl: TTL });
    const lease = there((await client.locks.acquire(KEY, { ttl: TTL })).lease);
    await client.locks.renew(KEY, lease);
    const waiting = asked(server, "POST", `/locks/${KEY}/lease`, OTHER, wait(20));
    await client.locks.release(KEY, lease);
    await waiting;
    await server.clock.advance(TTL + 1);
    const kinds = ["2", "acquired", "3", "renewed", "4", "waiting", "5", "released", "6", "acquired", "7", "expired"];
    expect(await told()).toEqual(kinds);
    expect(await (await stream(`/locks/${KEY}/events`, "5"))()).toEqual(["5", ...kinds.slice(8)]);
    server.restart();
    expect(await (await stream("/locks/events?prefix=", "5"))()).toEqual(["8", "8", "reset"]);
    expect((await client.locks.get("events")).state?.held).toBe(false);
  });

  it("a restart sends those who wait elsewhere", async () => {
    const server = new FakeLocks();
    await held(server);
    const waiting = asked(server, "POST", `/locks/${KEY}/lease`, OTHER, wait(20));
    server.restart();
    expect(await ended(waiting)).toBe("503 lock_service_unavailable");
    expect(server.clock.waiting).toBe(0);
  });
});
