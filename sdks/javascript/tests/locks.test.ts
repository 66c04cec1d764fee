import { inspect } from "node:util";
import { describe, expect, it, vi } from "vitest";
import { Lease, type LockView, VolcanoError } from "../src/index.ts";
import { createHarness, defined, granted, KEY, SERVICE_KEY, sentMethods, TOKEN, TTL } from "./harness.ts";

describe("results of the verbs", () => {
  it("acquire, renew, get and release resolve with exactly the documented fields", async () => {
    const { client } = createHarness();
    const acquired = await client.locks.acquire(KEY, { ttl: TTL });
    expect(Object.keys(acquired)).toEqual(["acquired", "lease", "error"]);
    expect(acquired).toMatchObject({ acquired: true, error: null });
    const lease = defined(acquired.lease);
    expect(lease).toMatchObject({ key: KEY, ttlSeconds: TTL, expiresAt: new Date("2026-01-01T00:00:30Z") });
    const held = { held: true, expiresAt: lease.expiresAt, fencingToken: lease.fencingToken };
    expect(await client.locks.get(KEY)).toEqual({ state: held, error: null });
    const renewed = await client.locks.renew(KEY, lease, { ttl: 60 });
    expect(Object.keys(renewed)).toEqual(["lease", "error"]);
    expect(renewed.lease).toMatchObject({ ttlSeconds: 60, fencingToken: lease.fencingToken });
    expect(await client.locks.release(KEY, defined(renewed.lease))).toEqual({ error: null });
    const free = { held: false, expiresAt: null, fencingToken: null };
    expect(await client.locks.get(KEY)).toEqual({ state: free, error: null });
  });

  it("contention is neither a lease nor an error, and is not retried", async () => {
    const { client, rival, transport } = createHarness();
    await rival.locks.acquire(KEY, { ttl: TTL });
    expect(await client.locks.acquire(KEY, { ttl: TTL })).toEqual({
      acquired: false,
      lease: null,
      error: null,
      reason: "lock_held",
    });
    expect(sentMethods(transport)).toBe("POST");
  });

  it("SDK-21: the token of an ended lease is contention with its own reason, for withLock too", async () => {
    const { client } = createHarness();
    const { lease } = await client.locks.acquire(KEY, { ttl: TTL, token: TOKEN });
    await client.locks.release(KEY, defined(lease));
    const again = await client.locks.acquire(KEY, { ttl: TTL, token: TOKEN });
    const contention = { acquired: false, error: null, reason: "lock_ownership_lost" };
    expect(again).toEqual({ ...contention, lease: null });
    const body = vi.fn();
    expect(await client.locks.withLock(KEY, { ttl: TTL, token: TOKEN }, body)).toEqual({ ...contention, data: null });
    expect(body).not.toHaveBeenCalled();
  });

  it("SDK-21: a 409 with any other code is contention too, and is not retried", async () => {
    const { client, transport } = createHarness([{ status: 409, body: '{"error": "no", "code": "new_kind"}' }]);
    expect(await client.locks.acquire(KEY, { ttl: TTL })).toEqual({
      acquired: false,
      lease: null,
      error: null,
      reason: "lock_held",
    });
    expect(sentMethods(transport)).toBe("POST");
  });

  it("case 22: an older lease object still releases", async () => {
    const { client } = createHarness();
    const first = defined((await client.locks.acquire(KEY, { ttl: TTL })).lease);
    await client.locks.renew(KEY, first);
    expect(await client.locks.release(KEY, first)).toEqual({ error: null });
  });
});

describe("SDK-23: a cancelled release is still carried out", () => {
  it.each(["before it is sent", "while it is in flight"])("%s", async (when) => {
    const { client, clock, transport } = createHarness();
    const lease = granted(await client.locks.acquire(KEY, { ttl: TTL }));
    const caller = new AbortController();
    if (when === "before it is sent") caller.abort();
    transport.script = when === "before it is sent" ? [] : ["hang_before"];
    const pending = client.locks.release(KEY, lease, { signal: caller.signal });
    await clock.settle();
    caller.abort();
    expect((await pending).error).toMatchObject({ name: "TransportError", cause: caller.signal.reason });
    expect((await client.locks.get(KEY)).state?.held).toBe(false);
    expect(clock.waiting).toBe(0);
  });

  it("within a bound, even if the service does not answer", async () => {
    const { client, clock, transport } = createHarness();
    const lease = granted(await client.locks.acquire(KEY, { ttl: TTL }));
    transport.otherwise = "hang_before";
    const pending = client.locks.release(KEY, lease, { signal: AbortSignal.abort() });
    await clock.advance(2);
    expect((await pending).error).toMatchObject({ suppressed: [{ name: "TransportError" }] });
    expect(clock.waiting).toBe(0);
  });
});

describe("SDK-22: what a client returns is a value", () => {
  it("a lease, a state, a view and a change are immutable, and equal if their content is", async () => {
    const { client } = createHarness();
    const lease = granted(await client.locks.acquire(KEY, { ttl: TTL, token: TOKEN }));
    const changes = client.locks.watch(KEY);
    const values = async (): Promise<unknown[]> => [
      Lease.fromRecord(lease.toRecord()),
      defined((await client.locks.get(KEY)).state),
      defined((await client.locks.view(KEY)).view),
      defined((await client.locks.watch(KEY).next()).value),
    ];
    const [first, second] = [await values(), await values()];
    expect(first).toEqual(second);
    for (const value of first) {
      expect(Object.isFrozen(value)).toBe(true);
      expect(JSON.stringify(value) + inspect(value) + String(value)).not.toContain(TOKEN);
    }
    await changes.return?.();
  });

  it("changing a lease's date does not change the lease", async () => {
    const { client } = createHarness();
    const lease = granted(await client.locks.acquire(KEY, { ttl: TTL }));
    const before = lease.expiresAt.getTime();
    lease.expiresAt.setTime(0);
    expect(lease.expiresAt.getTime()).toBe(before);
    const source = new Date(before);
    const record = lease.toRecord();
    const copy = new Lease({ key: KEY, token: TOKEN, ttlSeconds: TTL, expiresAt: source, fencingToken: 1 });
    source.setTime(0);
    expect(copy.toRecord().expires_at).toBe(record.expires_at);
    expect(Object.keys(lease)).toEqual(["key", "ttlSeconds", "expiresAt", "fencingToken"]);
  });
});

describe("SDK-8: secrets", () => {
  it("are not shown by JSON, inspection or a copy", async () => {
    const { client } = createHarness();
    const lease = defined((await client.locks.acquire(KEY, { ttl: TTL, token: TOKEN })).lease);
    const shown: unknown[] = [client, { ...client }, lease, { ...lease }, client.locks];
    await client.locks.withLock("other", { ttl: TTL, token: TOKEN }, (guard) => {
      shown.push(guard, { ...guard }, inspect(guard, { showHidden: true, depth: 9, getters: true }));
    });
    for (const one of shown) {
      const text = JSON.stringify(one) + inspect(one, { showHidden: true, depth: 9 }) + String(one);
      expect(text).not.toContain(SERVICE_KEY);
      expect(text).not.toContain(TOKEN);
    }
    expect(JSON.parse(JSON.stringify(lease))).toEqual({
      key: KEY,
      ttlSeconds: TTL,
      expiresAt: "2026-01-01T00:00:30.000Z",
      fencingToken: lease.fencingToken,
    });
    expect(inspect(client)).toBe("Client(http://locks.test/base)");
  });
});

describe("SDK-15: list and view", () => {
  async function keys(views: AsyncIterable<LockView>): Promise<string[]> {
    const found: string[] = [];
    for await (const { key } of views) found.push(key);
    return found;
  }

  it("requests a page when the loop reaches it", async () => {
    const harness = createHarness();
    for (let lock = 0; lock < 501; lock += 1) await harness.rival.locks.acquire(`k${1_000 + lock}`, { ttl: TTL });
    const listing = harness.client.locks.list("k");
    expect(harness.transport.seen).toHaveLength(0);
    for (let row = 0; row < 500; row += 1) await listing.next();
    expect(harness.transport.seen).toHaveLength(1);
    expect((await listing.next()).value).toMatchObject({ key: "k1500" });
    expect(await listing.next()).toEqual({ done: true, value: undefined });
    expect(harness.transport.seen).toHaveLength(2);
    expect(new Set(harness.transport.seen.map((one) => one.requestId)).size).toBe(2);
  });

  it("list throws a failure after the retry of SDK-2; view resolves with it", async () => {
    const harness = createHarness(["reset", "unavailable", "reset"]);
    await expect(harness.client.locks.list().next()).rejects.toMatchObject({ name: "UnavailableError" });
    expect((await harness.client.locks.view(KEY)).error).toBeNull();
    harness.transport.script = [{ status: 403 }];
    expect(await harness.client.locks.view(KEY)).toMatchObject({
      view: null,
      error: { name: "PermissionDeniedError" },
    });
  });

  const row = {
    key: "k",
    held: true,
    holder: null,
    acquired_at: "2026-01-01T00:00:00Z",
    renewed_at: "2026-01-01T00:00:00Z",
    expires_at: "2026-01-01T00:00:30Z",
    ttl_seconds: 30,
    fencing_token: 1,
    waiters: 0,
  };

  it("an empty page may be followed by another one, but not by itself", async () => {
    const harness = createHarness();
    const page = (next_cursor: string | null, ...items: object[]): { status: number; body: string } => ({
      status: 200,
      body: JSON.stringify({ items, next_cursor }),
    });
    harness.transport.script = [page("x"), page("y", row), page(null)];
    expect(await keys(harness.client.locks.list())).toEqual(["k"]);
    harness.transport.script = [page("x", row), page("x", row)];
    await expect(keys(harness.client.locks.list())).rejects.toThrow(VolcanoError);
  });
});
