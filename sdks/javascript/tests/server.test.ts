/** Against the real server, over real sockets. */

import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { AuthenticationError, Client, LockOwnershipLostError, type LockView, TransportError } from "../src/index.ts";
import { type Address, type RealServer, START_MS_MAX, startedServer } from "./real_server.ts";
import { granted, there } from "./stage.ts";

/** An address where nobody listens any more. */
async function silentUrl(): Promise<string> {
  const listener = createServer().listen(0, "127.0.0.1");
  await once(listener, "listening");
  const { port } = listener.address() as AddressInfo;
  listener.close();
  await once(listener, "close");
  return `http://127.0.0.1:${port}`;
}

/** Asks until it is so; the test's own limit is the end of it. */
async function until(so: () => Promise<boolean>): Promise<void> {
  while (!(await so())) await new Promise((resolve) => setTimeout(resolve, 20));
}

describe("the real server", () => {
  let server: RealServer;
  let at: Address;

  beforeAll(async () => {
    server = await startedServer();
    at = server.at;
  }, START_MS_MAX);

  afterAll(() => server.stop(), START_MS_MAX);

  it("grants, renews, tells, releases", async () => {
    const { locks } = new Client(at);
    const lease = granted(await locks.acquire("verbs", { ttl: 30 }));
    expect(await locks.acquire("verbs", { ttl: 30 })).toMatchObject({ acquired: false, lease: null, error: null });
    const renewed = there((await locks.renew("verbs", lease, { ttl: 60 })).lease);
    expect(renewed.fencingToken).toBe(lease.fencingToken);
    expect((await locks.get("verbs")).state).toEqual({
      held: true,
      expiresAt: renewed.expiresAt,
      fencingToken: lease.fencingToken,
    });
    expect(await locks.release("verbs", lease)).toEqual({ error: null });
    expect((await locks.get("verbs")).state).toEqual({ held: false, expiresAt: null, fencingToken: null });
    const next = granted(await locks.acquire("verbs", { ttl: 30 }));
    expect(next.fencingToken).toBeGreaterThan(lease.fencingToken);
    expect(await locks.forceRelease("verbs")).toEqual({ error: null });
    expect((await locks.renew("verbs", next)).error).toBeInstanceOf(LockOwnershipLostError);
  });

  it("elects one of many", async () => {
    const { locks } = new Client(at);
    let running = 0;
    const results = await Promise.all(
      Array.from({ length: 40 }, () =>
        locks.withLock("election", { ttl: 5 }, async ({ signal }) => {
          running += 1;
          expect(running).toBe(1);
          await Promise.all(Array.from({ length: 5 }, () => locks.get("election")));
          running -= 1;
          return signal.aborted;
        }),
      ),
    );
    expect(results.some((one) => one.acquired)).toBe(true);
    expect(results.every((one) => one.error === null && one.data !== true)).toBe(true);
  });

  it("SDK-11 SDK-13: grants those who wait one after the other, and leaders take turns", async () => {
    const { locks } = new Client(at);
    let running = 0;
    const run = async (): Promise<number> => {
      running += 1;
      expect(running).toBe(1);
      await locks.get("line");
      running -= 1;
      return running;
    };
    const blocks = Array.from({ length: 20 }, () => locks.withLock("line", { ttl: 30, wait: 60 }, run));
    const terms = Array.from({ length: 5 }, () => locks.lead("line", { ttl: 30 }, run));
    expect(await Promise.all(blocks)).toEqual(Array(20).fill({ acquired: true, data: 0, error: null }));
    expect(await Promise.all(terms)).toEqual(Array(5).fill({ data: 0, error: null }));
  });

  it("SDK-11: who gives up waiting leaves no place and no lease behind", async () => {
    const { locks } = new Client(at);
    const lease = there((await locks.acquire("left", { ttl: 30 })).lease);
    const caller = new AbortController();
    const waiting = locks.acquire("left", { ttl: 30, wait: Number.POSITIVE_INFINITY, signal: caller.signal });
    await until(async () => (await locks.view("left")).view?.waiters === 1);
    caller.abort();
    expect((await waiting).error?.cause).toBe(caller.signal.reason);
    await until(async () => (await locks.view("left")).view?.waiters === 0);
    await locks.release("left", lease);
    expect((await locks.get("left")).state?.held).toBe(false);
    const short = await new Client(at).locks.acquire("left", { ttl: 30, wait: 0.05 });
    expect(short.acquired).toBe(true);
    expect(await locks.acquire("left", { ttl: 30, wait: 0.05 })).toMatchObject({
      acquired: false,
      lease: null,
      error: null,
    });
  });

  it("SDK-12: leaves a lock taken for as long as it is to be", async () => {
    const { locks } = new Client(at);
    expect(await locks.withLock("nightly", { ttl: 30, holdAtLeast: 60 }, () => 1)).toMatchObject({ error: null });
    const left = there((await locks.get("nightly")).state?.expiresAt).getTime() - Date.now();
    expect(left).toBeGreaterThan(50_000);
    expect(left).toBeLessThan(70_000);
  });

  it("SDK-14: tells who leads, and each change", async () => {
    const { locks } = new Client({ ...at, holder: "a/1" });
    const changes: Array<string | null> = [];
    const caller = new AbortController();
    const watching = (async () => {
      for await (const { held, holder } of locks.watch("led", { signal: caller.signal })) {
        changes.push(held ? holder : null);
      }
    })();
    await until(async () => changes.length === 1);
    const lease = there((await locks.acquire("led", { ttl: 30 })).lease);
    await until(async () => changes.length === 2);
    await locks.release("led", lease);
    await until(async () => changes.length === 3);
    caller.abort(new Error("enough"));
    await expect(watching).rejects.toThrow("enough");
    expect(changes).toEqual([null, "a/1", null]);
  });

  it("SDK-15: lists and views", async () => {
    const { locks } = new Client({ ...at, holder: "a/1" });
    const lease = there((await locks.acquire("listed:2", { ttl: 30 })).lease);
    await locks.release("listed:1", there((await locks.acquire("listed:1", { ttl: 30 })).lease));
    const rows: LockView[] = [];
    for await (const row of locks.list("listed:")) rows.push(row);
    expect(rows.map(({ key, held, holder }) => [key, held, holder])).toEqual([
      ["listed:1", false, null],
      ["listed:2", true, "a/1"],
    ]);
    const { view } = await locks.view("listed:2");
    expect(view).toMatchObject({ expiresAt: lease.expiresAt, fencingToken: lease.fencingToken, ttlSeconds: 30 });
    expect(rows[1]).toEqual(view);
    expect((await locks.list("listed:", { state: "free" }).next()).value).toMatchObject({ key: "listed:1" });
  });

  it("tells wrong keys and silent addresses apart", async () => {
    const wrong = await new Client({ ...at, serviceKey: "sk-wrong" }).locks.acquire("a:b", { ttl: 5 });
    expect(wrong.error).toBeInstanceOf(AuthenticationError);
    expect(wrong.error).toMatchObject({ status: 401, code: "invalid_credentials", requestId: expect.any(String) });
    const silent = new Client({ ...at, apiUrl: await silentUrl() });
    const { error } = await silent.locks.acquire("a:b", { ttl: 5 });
    expect(error).toBeInstanceOf(TransportError);
    expect(error).toMatchObject({ requestSent: false });
  });
});
