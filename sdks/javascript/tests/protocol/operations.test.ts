import { inspect } from "node:util";
import { describe, expect, it } from "vitest";
import {
  type Clock,
  ConflictError,
  type Fetch,
  Lease,
  type LeaseRecord,
  RateLimitedError,
  ServerError,
  TransportError,
  type UncertainLeaseRecord,
} from "../../src/index.ts";
import { ManualClock } from "../../src/testing/index.ts";
import { createHarness, defined, granted, KEY, sentMethods, TOKEN, TTL } from "../harness.ts";

describe("identity, retry and clean-up", () => {
  it("SDK-1 SDK-2 case 13: after a lost response the retry has the same ids and gets the same lease", async () => {
    const { client, transport } = createHarness(["drop_after_send"]);
    expect(await client.locks.acquire(KEY, { ttl: TTL })).toMatchObject({ acquired: true });
    expect(sentMethods(transport)).toBe("POST POST");
    const [first, second] = transport.seen;
    expect(second?.token).toBe(first?.token);
    expect(second?.requestId).toBe(first?.requestId);
  });

  it("SDK-9: a token or request id of null counts as not given", async () => {
    const { client, transport } = createHarness();
    const lease = granted(await client.locks.acquire(KEY, { ttl: TTL, token: null, requestId: null }));
    await client.locks.renew(KEY, lease, { requestId: null });
    await client.locks.release(KEY, lease, { requestId: null });
    await client.locks.withLock(KEY, { ttl: TTL, token: null, requestId: null }, () => {});
    const ids = transport.seen.map((one) => one.requestId);
    expect(new Set(ids).size).toBe(5);
    for (const id of ids) expect(id).toMatch(/^[0-9a-f]{8}-/);
  });

  it("case 19: a release whose response was lost succeeds although another client acquired the lock meanwhile", async () => {
    const { client, rival, transport } = createHarness();
    const lease = defined((await client.locks.acquire(KEY, { ttl: TTL })).lease);
    transport.script = ["drop_after_send", { takesSeconds: 0 }];
    const { fetch } = transport;
    let first = true;
    Object.assign(transport, {
      fetch: async (...args: Parameters<typeof fetch>) => {
        if (!first) await rival.locks.acquire(KEY, { ttl: TTL });
        first = false;
        return fetch(...args);
      },
    });
    expect(await client.locks.release(KEY, lease)).toEqual({ error: null });
    expect((await rival.locks.get(KEY)).state?.held).toBe(true);
  });

  it("SDK-2: a 503 is retried once, after the Retry-After of the service", async () => {
    const { client, transport, clock } = createHarness(["unavailable"]);
    const before = clock.now();
    expect(await client.locks.acquire(KEY, { ttl: TTL })).toMatchObject({ acquired: true });
    expect(clock.now() - before).toBe(1);
    expect(sentMethods(transport)).toBe("POST POST");
  });

  it("SDK-2: a failed clean-up release is attached to the error", async () => {
    const { client, transport } = createHarness(["drop_after_send", "drop_after_send", "unavailable"]);
    const { error } = await client.locks.acquire(KEY, { ttl: TTL });
    expect(error).toMatchObject({ name: "TransportError", suppressed: [{ name: "UnavailableError" }] });
    expect(sentMethods(transport)).toBe("POST POST DELETE");
  });

  it.each([
    [{ status: 429, headers: { "Retry-After": "17" } }, RateLimitedError, 17],
    [{ status: 500 }, ServerError, null],
  ] as const)("SDK-2: %j is not retried", async (fault, kind, retryAfter) => {
    const { client, transport } = createHarness([fault]);
    const { error } = await client.locks.acquire(KEY, { ttl: TTL });
    expect(error).toBeInstanceOf(kind);
    expect(error).toMatchObject({ status: fault.status, retryAfter });
    expect(sentMethods(transport)).toBe(fault.status === 500 ? "POST DELETE" : "POST");
  });

  it("SDK-2: cancelling an acquire in flight releases it; the error has the caller's reason", async () => {
    const { client, transport, clock } = createHarness(["hang_after"]);
    const caller = new AbortController();
    const pending = client.locks.acquire(KEY, { ttl: TTL, signal: caller.signal });
    await clock.settle();
    caller.abort(new Error("enough"));
    const { error } = await pending;
    expect(error).toBeInstanceOf(TransportError);
    expect(error?.cause).toBe(caller.signal.reason);
    expect(sentMethods(transport)).toBe("POST DELETE");
    expect((await client.locks.get(KEY)).state?.held).toBe(false);
    expect(clock.waiting).toBe(0);
  });

  it("case 14: a grant whose lease expired before the response arrived is a failure, even before the timer fires", async () => {
    let seconds = 0;
    const starved: Clock = { now: () => seconds, at: () => () => {}, pause: () => Promise.resolve() };
    const { server } = createHarness();
    const sent: string[] = [];
    const fetch: Fetch = (url, init) => {
      sent.push(init.method ?? "");
      seconds += 5;
      return server.fetch(url, init);
    };
    const client = server.client({ clock: starved, fetch });
    const { error } = await client.locks.acquire(KEY, { ttl: 5 });
    expect(error).toMatchObject({ name: "TransportError" });
    expect(error?.message).toContain("expired before the response");
    expect(sent).toEqual(["POST", "DELETE"]);
    expect((await server.client().locks.get(KEY)).state?.held).toBe(false);
  });

  it("case 32: a connection that closes while the request is sent has no effect on the result", async () => {
    const { client } = createHarness(["reset", "duplicate", "reset", "pass", "reset"]);
    const lease = defined((await client.locks.acquire(KEY, { ttl: TTL })).lease);
    expect((await client.locks.renew(KEY, lease)).error).toBeNull();
    expect((await client.locks.renew(KEY, lease)).error).toBeNull();
  });

  it("SDK-2: an acquire that twice found no server sends no release", async () => {
    const { client, transport } = createHarness(["drop_before_send", "drop_before_send"]);
    expect((await client.locks.acquire(KEY, { ttl: TTL })).error).toBeInstanceOf(TransportError);
    expect(sentMethods(transport)).toBe("POST POST");
  });

  it("a force release that may have been served is not retried, since it could evict the next holder", async () => {
    const { client, transport } = createHarness(["drop_after_send", "drop_before_send"]);
    expect((await client.locks.forceRelease(KEY)).error).toBeInstanceOf(TransportError);
    expect(sentMethods(transport)).toBe("DELETE");
    expect((await client.locks.forceRelease(KEY)).error).toBeNull();
    expect(sentMethods(transport)).toBe("DELETE DELETE DELETE");
  });

  it("SDK-27: a force release of one lease is retried, since it can evict no other holder", async () => {
    const { client, transport } = createHarness(["pass", "drop_after_send"]);
    const lease = granted(await client.locks.acquire(KEY, { ttl: TTL }));
    expect((await client.locks.forceRelease(KEY, { fencingToken: lease.fencingToken })).error).toBeNull();
    expect(sentMethods(transport)).toBe("POST DELETE DELETE");
    const changed = (await client.locks.forceRelease(KEY, { fencingToken: lease.fencingToken + 1 })).error;
    expect(changed).toBeInstanceOf(ConflictError);
    expect(changed?.code).toBe("lock_changed");
  });

  it("SDK-4: for a lease of another client, with another clock, only the service decides about a renewal", async () => {
    const { server, client } = createHarness();
    const lease = defined((await client.locks.acquire(KEY, { ttl: TTL })).lease);
    const clock = new ManualClock();
    clock.jump(TTL - 0.001);
    const other = server.client({ clock });
    expect((await other.locks.renew(KEY, lease)).error).toBeNull();
  });
});

describe("SDK-18: recovery of an acquire with an unknown outcome", () => {
  const ids = { token: TOKEN, requestId: "139241af-f4e8-4bdb-8494-dc0804c380a7" };

  it("case 50: the uncertain lease can be stored, renewed and released, and hides its token", async () => {
    const { client, rival, transport } = createHarness(["drop_after_send", "drop_after_send"]);
    const lease = defined((await client.locks.acquire(KEY, { ttl: TTL, ...ids })).lease);
    expect(lease).toBeInstanceOf(Lease);
    expect(inspect(lease)).toBe(`Lease(${KEY}, outcome unknown)`);
    const record = lease.toRecord();
    expect(record).toEqual({ key: KEY, token: TOKEN, ttl_seconds: TTL, expires_at: null, fencing_token: null });
    const loaded = Lease.fromRecord(JSON.parse(JSON.stringify(record)) as LeaseRecord | UncertainLeaseRecord);
    expect(loaded).toEqual(lease);
    expect(JSON.stringify(lease)).not.toContain(TOKEN);
    expect((await client.locks.renew(KEY, lease)).lease).toMatchObject({
      ttlSeconds: TTL,
      fencingToken: expect.any(Number),
    });
    expect((await rival.locks.renew(KEY, loaded, { ttl: 60 })).lease).toMatchObject({ ttlSeconds: 60 });
    expect(await client.locks.release(KEY, lease)).toEqual({ error: null });
    transport.script = ["drop_after_send", "drop_after_send"];
    {
      await using _scope = (await client.locks.acquire("scoped", { ttl: TTL, token: TOKEN })).lease;
      expect((await client.locks.get("scoped")).state?.held).toBe(true);
    }
    expect((await client.locks.get("scoped")).state?.held).toBe(false);
  });

  it("cancelling releases, even with the caller's token, and returns no lease", async () => {
    const caller = new AbortController();
    const { client, transport, clock } = createHarness(["hang_after"]);
    const pending = client.locks.acquire(KEY, { ttl: TTL, signal: caller.signal, ...ids });
    await clock.settle();
    caller.abort();
    const { acquired, lease, error } = await pending;
    expect([acquired, lease]).toEqual([false, null]);
    expect(error).toBeInstanceOf(TransportError);
    expect(sentMethods(transport)).toBe("POST DELETE");
    expect((await client.locks.get(KEY)).state?.held).toBe(false);
  });

  it("cancelling during the pause before the retry releases too", async () => {
    const caller = new AbortController();
    class CancellingClock extends ManualClock {
      override async pause(): Promise<void> {
        caller.abort();
      }
    }
    const { client, transport } = createHarness(["unavailable"], { clock: new CancellingClock() });
    const { lease, error } = await client.locks.acquire(KEY, { ttl: TTL, signal: caller.signal, ...ids });
    expect(lease).toBeNull();
    expect(error?.cause).toBe(caller.signal.reason);
    expect(sentMethods(transport)).toBe("POST DELETE");
  });

  it("a failure with a known outcome returns no lease", async () => {
    for (const fault of [{ status: 400 }, { status: 429 }, { status: 500 }]) {
      const { client } = createHarness([fault]);
      expect(await client.locks.acquire(KEY, { ttl: TTL, ...ids })).toMatchObject({ acquired: false, lease: null });
    }
  });
});
