import { inspect } from "node:util";
import { describe, expect, it, vi } from "vitest";
import {
  AuthenticationError,
  type Clock,
  type Fetch,
  Lease,
  type LeaseRecord,
  LockOwnershipLostError,
  RateLimitedError,
  ServerError,
  TransportError,
  UnavailableError,
  type UncertainLeaseRecord,
  VolcanoError,
} from "../src/index.ts";
import { type Fault, ManualClock } from "../src/testing/index.ts";
import { granted, KEY, methods, stage, TOKEN, TTL, there } from "./stage.ts";

describe("the envelopes", () => {
  it("acquire, renew, get and release give exactly what the contract names", async () => {
    const { client } = stage();
    const acquired = await client.locks.acquire(KEY, { ttl: TTL });
    expect(Object.keys(acquired)).toEqual(["acquired", "lease", "error"]);
    expect(acquired).toMatchObject({ acquired: true, error: null });
    const lease = there(acquired.lease);
    expect(lease).toMatchObject({ key: KEY, ttlSeconds: TTL, expiresAt: new Date("2026-01-01T00:00:30Z") });
    const held = { held: true, expiresAt: lease.expiresAt, fencingToken: lease.fencingToken };
    expect(await client.locks.get(KEY)).toEqual({ state: held, error: null });
    const renewed = await client.locks.renew(KEY, lease, { ttl: 60 });
    expect(Object.keys(renewed)).toEqual(["lease", "error"]);
    expect(renewed.lease).toMatchObject({ ttlSeconds: 60, fencingToken: lease.fencingToken });
    expect(await client.locks.release(KEY, there(renewed.lease))).toEqual({ error: null });
    const free = { held: false, expiresAt: null, fencingToken: null };
    expect(await client.locks.get(KEY)).toEqual({ state: free, error: null });
  });

  it("contention is neither a lease nor an error, and is not asked again", async () => {
    const { client, rival, network } = stage();
    await rival.locks.acquire(KEY, { ttl: TTL });
    expect(await client.locks.acquire(KEY, { ttl: TTL })).toEqual({
      acquired: false,
      lease: null,
      error: null,
      reason: "lock_held",
    });
    expect(methods(network)).toBe("POST");
  });

  it("SDK-21: the token of a lease that has ended is contention with its own reason, also for withLock", async () => {
    const { client } = stage();
    const { lease } = await client.locks.acquire(KEY, { ttl: TTL, token: TOKEN });
    await client.locks.release(KEY, there(lease));
    const again = await client.locks.acquire(KEY, { ttl: TTL, token: TOKEN });
    const contention = { acquired: false, error: null, reason: "lock_ownership_lost" };
    expect(again).toEqual({ ...contention, lease: null });
    const body = vi.fn();
    expect(await client.locks.withLock(KEY, { ttl: TTL, token: TOKEN }, body)).toEqual({ ...contention, data: null });
    expect(body).not.toHaveBeenCalled();
  });

  it("SDK-21: a 409 of any other code is contention as well, and is not asked again", async () => {
    const { client, network } = stage([{ status: 409, body: '{"error": "no", "code": "new_kind"}' }]);
    expect(await client.locks.acquire(KEY, { ttl: TTL })).toEqual({
      acquired: false,
      lease: null,
      error: null,
      reason: "lock_held",
    });
    expect(methods(network)).toBe("POST");
  });

  it("a displaced holder's renew and release tell of the loss", async () => {
    const { client, rival } = stage();
    const lease = there((await client.locks.acquire(KEY, { ttl: TTL })).lease);
    expect(await rival.locks.forceRelease(KEY)).toEqual({ error: null });
    await rival.locks.acquire(KEY, { ttl: TTL });
    expect((await client.locks.renew(KEY, lease)).error).toBeInstanceOf(LockOwnershipLostError);
    const { error } = await client.locks.release(KEY, lease);
    expect(error).toMatchObject({ name: "LockOwnershipLostError", status: 409, code: "lock_ownership_lost" });
  });

  it("case 22: an older lease object still releases", async () => {
    const { client } = stage();
    const first = there((await client.locks.acquire(KEY, { ttl: TTL })).lease);
    await client.locks.renew(KEY, first);
    expect(await client.locks.release(KEY, first)).toEqual({ error: null });
  });
});

describe("identity and retry", () => {
  it("SDK-1 SDK-2 case 13: after a lost answer the same ids are sent again, and the lease is the same", async () => {
    const { client, network } = stage(["drop_after_send"]);
    expect(await client.locks.acquire(KEY, { ttl: TTL })).toMatchObject({ acquired: true });
    expect(methods(network)).toBe("POST POST");
    const [first, second] = network.seen;
    expect(second?.token).toBe(first?.token);
    expect(second?.requestId).toBe(first?.requestId);
  });

  it("SDK-1: the caller may give both ids", async () => {
    const { client, network } = stage();
    const requestId = "139241AF-F4E8-4BDB-8494-DC0804C380A7";
    const { lease } = await client.locks.acquire(KEY, { ttl: TTL, token: TOKEN.toUpperCase(), requestId });
    expect(lease?.token).toBe(TOKEN.toUpperCase());
    expect(network.seen[0]).toMatchObject({ token: TOKEN.toUpperCase(), requestId });
  });

  it("SDK-9: a token or request id of null is one that was not given", async () => {
    const { client, network } = stage();
    const lease = granted(await client.locks.acquire(KEY, { ttl: TTL, token: null, requestId: null }));
    await client.locks.renew(KEY, lease, { requestId: null });
    await client.locks.release(KEY, lease, { requestId: null });
    await client.locks.withLock(KEY, { ttl: TTL, token: null, requestId: null }, () => {});
    const ids = network.seen.map((one) => one.requestId);
    expect(new Set(ids).size).toBe(5);
    for (const id of ids) expect(id).toMatch(/^[0-9a-f]{8}-/);
  });

  it("case 19: each acquisition has a token of its own", async () => {
    const { client } = stage();
    const first = there((await client.locks.acquire(KEY, { ttl: TTL })).lease);
    await client.locks.release(KEY, first);
    const second = there((await client.locks.acquire(KEY, { ttl: TTL })).lease);
    expect(second.token).not.toBe(first.token);
    expect((await client.locks.release(KEY, first)).error).toBeInstanceOf(LockOwnershipLostError);
    expect((await client.locks.get(KEY)).state?.held).toBe(true);
  });

  it("case 19: a release whose answer got lost succeeds, though somebody else took the lock meanwhile", async () => {
    const { client, rival, network } = stage();
    const lease = there((await client.locks.acquire(KEY, { ttl: TTL })).lease);
    network.script = ["drop_after_send", { takesSeconds: 0 }];
    const { fetch } = network;
    let first = true;
    Object.assign(network, {
      fetch: async (...args: Parameters<typeof fetch>) => {
        if (!first) await rival.locks.acquire(KEY, { ttl: TTL });
        first = false;
        return fetch(...args);
      },
    });
    expect(await client.locks.release(KEY, lease)).toEqual({ error: null });
    expect((await rival.locks.get(KEY)).state?.held).toBe(true);
  });

  it("SDK-2: a 503 is tried once more, after the time the service asks for", async () => {
    const { client, network, clock } = stage(["unavailable"]);
    const before = clock.now();
    expect(await client.locks.acquire(KEY, { ttl: TTL })).toMatchObject({ acquired: true });
    expect(clock.now() - before).toBe(1);
    expect(methods(network)).toBe("POST POST");
  });

  it("SDK-2: two failures are told, and the token is given back", async () => {
    const { client, network } = stage(["unavailable", "drop_after_send"]);
    const { acquired, lease, error } = await client.locks.acquire(KEY, { ttl: TTL });
    expect([acquired, lease]).toEqual([false, null]);
    expect(error).toBeInstanceOf(TransportError);
    expect(methods(network)).toBe("POST POST DELETE");
    expect(new Set(network.seen.map((one) => one.token)).size).toBe(1);
    expect((await client.locks.get(KEY)).state?.held).toBe(false);
  });

  it("SDK-2: that it could not be given back is attached to the failure", async () => {
    const { client, network } = stage(["drop_after_send", "drop_after_send", "unavailable"]);
    const { error } = await client.locks.acquire(KEY, { ttl: TTL });
    expect(error).toMatchObject({ name: "TransportError", suppressed: [{ name: "UnavailableError" }] });
    expect(methods(network)).toBe("POST POST DELETE");
  });

  it("SDK-2: nothing is given back that certainly never left", async () => {
    const { client, network } = stage(["drop_before_send", "drop_before_send"]);
    expect((await client.locks.acquire(KEY, { ttl: TTL })).error).toMatchObject({ requestSent: false });
    expect(methods(network)).toBe("POST POST");
  });

  it.each([
    [{ status: 429, headers: { "Retry-After": "17" } }, RateLimitedError, 17],
    [{ status: 500 }, ServerError, null],
  ] as const)("SDK-2: %j is not tried again", async (fault, kind, retryAfter) => {
    const { client, network } = stage([fault]);
    const { error } = await client.locks.acquire(KEY, { ttl: TTL });
    expect(error).toBeInstanceOf(kind);
    expect(error).toMatchObject({ status: fault.status, retryAfter });
    expect(methods(network)).toBe(fault.status === 500 ? "POST DELETE" : "POST");
  });

  it("SDK-2: an acquire that is timed out is asked again and then given back, late as it may be served", async () => {
    const { client, network, clock } = stage(["hang_after", "hang_before"]);
    const asking = client.locks.acquire(KEY, { ttl: TTL });
    await clock.advance(20);
    const { error } = await asking;
    expect(error).toBeInstanceOf(TransportError);
    expect(error?.message).toContain("no response within 10 seconds");
    expect(methods(network)).toBe("POST POST DELETE");
    expect((await client.locks.get(KEY)).state?.held).toBe(false);
  });

  it("SDK-2: cancelling an acquire under way gives it back, and tells who cancelled", async () => {
    const { client, network, clock } = stage(["hang_after"]);
    const caller = new AbortController();
    const asking = client.locks.acquire(KEY, { ttl: TTL, signal: caller.signal });
    await clock.settle();
    caller.abort(new Error("enough"));
    const { error } = await asking;
    expect(error).toBeInstanceOf(TransportError);
    expect(error?.cause).toBe(caller.signal.reason);
    expect(methods(network)).toBe("POST DELETE");
    expect((await client.locks.get(KEY)).state?.held).toBe(false);
    expect(clock.waiting).toBe(0);
  });

  it("a signal that has aborted sends nothing", async () => {
    const { client, network } = stage();
    const { error } = await client.locks.acquire(KEY, { ttl: TTL, signal: AbortSignal.abort() });
    expect(error).toMatchObject({ name: "TransportError", requestSent: false });
    expect(network.seen).toEqual([]);
  });

  it("case 14: an acquire that took longer than its lease is given back and told as a failure", async () => {
    const { client, network } = stage([{ takesSeconds: 5 }], { timeoutSeconds: 60 });
    const { acquired, lease, error } = await client.locks.acquire(KEY, { ttl: 5 });
    expect([acquired, lease]).toEqual([false, null]);
    expect(error).toBeInstanceOf(TransportError);
    expect(methods(network)).toBe("POST DELETE");
    expect((await client.locks.get(KEY)).state?.held).toBe(false);
  });

  it("case 14: also when the answer is looked at before the timer that was due", async () => {
    let seconds = 0;
    const starved: Clock = { now: () => seconds, at: () => () => {}, pause: () => Promise.resolve() };
    const { server } = stage();
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

  it("case 32: a connection that closes as the request goes out costs nobody anything", async () => {
    const { client } = stage(["reset", "duplicate", "reset", "pass", "reset"]);
    const lease = there((await client.locks.acquire(KEY, { ttl: TTL })).lease);
    expect((await client.locks.renew(KEY, lease)).error).toBeNull();
    expect((await client.locks.renew(KEY, lease)).error).toBeNull();
  });

  it("a force release that may have been served is not sent again: it could evict the next holder", async () => {
    const { client, network } = stage(["drop_after_send", "drop_before_send"]);
    expect((await client.locks.forceRelease(KEY)).error).toBeInstanceOf(TransportError);
    expect(methods(network)).toBe("DELETE");
    expect((await client.locks.forceRelease(KEY)).error).toBeNull();
    expect(methods(network)).toBe("DELETE DELETE DELETE");
  });

  it("SDK-4: a renewal is not waited for past the end of its lease", async () => {
    const { client, network, clock } = stage([], { timeoutSeconds: 60 });
    const lease = there((await client.locks.acquire(KEY, { ttl: 10 })).lease);
    network.otherwise = "hang_before";
    const asking = client.locks.renew(KEY, lease);
    await clock.advance(10);
    expect((await asking).error).toBeInstanceOf(TransportError);
    expect(clock.waiting).toBe(0);
  });

  it("SDK-4: a lease of another client, with another clock, is renewed by what the service says alone", async () => {
    const { server, client } = stage();
    const lease = there((await client.locks.acquire(KEY, { ttl: TTL })).lease);
    const clock = new ManualClock();
    clock.jump(TTL - 0.001);
    const other = server.client({ clock });
    expect((await other.locks.renew(KEY, lease)).error).toBeNull();
  });

  it("SDK-4: an acquire is not waited for longer than it asks for", async () => {
    const { client, network, clock } = stage(["hang_before"]);
    const asking = client.locks.acquire(KEY, { ttl: 5 });
    await clock.advance(4.9);
    expect(methods(network)).toBe("POST");
    await clock.advance(0.1);
    expect(methods(network)).toBe("POST POST");
    expect((await asking).acquired).toBe(true);
  });

  it("an answer that came in time is taken, though the event loop was too busy to look at it until later", async () => {
    const { client, network } = stage();
    await client.locks.acquire(KEY, { ttl: 60 });
    network.script = [{ takesSeconds: 11 }];
    expect((await client.locks.get(KEY)).error).toBeNull();
  });

  it("ends on time though fetch does not listen to its signal", async () => {
    const { client, clock } = stage([], { fetch: () => new Promise(() => {}), timeoutSeconds: 3 });
    const asking = client.locks.get(KEY);
    await clock.advance(6);
    expect((await asking).error).toBeInstanceOf(TransportError);
  });
});

describe("SDK-18: recovery of an acquire whose outcome is unknown", () => {
  const ids = { token: TOKEN, requestId: "139241af-f4e8-4bdb-8494-dc0804c380a7" };

  it.each<[string, Fault]>([
    ["a lost response", "drop_after_send"],
    ["a connection that breaks", "reset"],
    ["no connection", "drop_before_send"],
    ["a 503", "unavailable"],
    ["a 503 without a body", { status: 503 }],
  ])("case 50: %s leaves a lease without expiry and fencing token, and the same ids recover it", async (_, fault) => {
    const { client, network } = stage([fault, fault]);
    const { acquired, lease, error } = await client.locks.acquire(KEY, { ttl: TTL, ...ids });
    expect([acquired, error?.requestId]).toEqual([false, ids.requestId]);
    expect(lease).toMatchObject({ key: KEY, token: TOKEN, ttlSeconds: TTL, expiresAt: null, fencingToken: null });
    expect(methods(network)).toBe("POST POST");
    const recovered = granted(await client.locks.acquire(KEY, { ttl: TTL, ...ids }));
    expect(await client.locks.release(KEY, recovered)).toEqual({ error: null });
  });

  it("its lease is stored, shown without the token, released, and renewed for its own TTL or the one given", async () => {
    const { client, rival, network } = stage(["drop_after_send", "drop_after_send"]);
    const lease = there((await client.locks.acquire(KEY, { ttl: TTL, ...ids })).lease);
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
    network.script = ["drop_after_send", "drop_after_send"];
    {
      await using _scope = (await client.locks.acquire("scoped", { ttl: TTL, token: TOKEN })).lease;
      expect((await client.locks.get("scoped")).state?.held).toBe(true);
    }
    expect((await client.locks.get("scoped")).state?.held).toBe(false);
  });

  it("cancelling releases, whoever made the token, and leaves no lease", async () => {
    const caller = new AbortController();
    const { client, network, clock } = stage(["hang_after"]);
    const asking = client.locks.acquire(KEY, { ttl: TTL, signal: caller.signal, ...ids });
    await clock.settle();
    caller.abort();
    const { acquired, lease, error } = await asking;
    expect([acquired, lease]).toEqual([false, null]);
    expect(error).toBeInstanceOf(TransportError);
    expect(methods(network)).toBe("POST DELETE");
    expect((await client.locks.get(KEY)).state?.held).toBe(false);
  });

  it("so does cancelling in the pause before the second try", async () => {
    const caller = new AbortController();
    class CancellingClock extends ManualClock {
      override async pause(): Promise<void> {
        caller.abort();
      }
    }
    const { client, network } = stage(["unavailable"], { clock: new CancellingClock() });
    const { lease, error } = await client.locks.acquire(KEY, { ttl: TTL, signal: caller.signal, ...ids });
    expect(lease).toBeNull();
    expect(error?.cause).toBe(caller.signal.reason);
    expect(methods(network)).toBe("POST DELETE");
  });

  it("a failure with a known outcome leaves no lease", async () => {
    for (const fault of [{ status: 400 }, { status: 429 }, { status: 500 }]) {
      const { client } = stage([fault]);
      expect(await client.locks.acquire(KEY, { ttl: TTL, ...ids })).toMatchObject({ acquired: false, lease: null });
    }
  });
});

describe("answers that are none", () => {
  const page = { status: 200, body: "<html>", headers: { "Content-Type": "text/html" } };

  it.each([
    ["a page", page],
    ["a list", { status: 200, body: "[]" }],
    ["no date", { status: 200, body: '{"held":true,"expires_at":"soon","fencing_token":1}' }],
    ["neither", { status: 200, body: '{"held":"yes"}' }],
    ["a redirect", { status: 302, headers: { Location: "http://evil.test/" } }],
    ["another 2xx", { status: 204 }],
  ])("%s is a ServerError, never a state", async (_, fault) => {
    const { client } = stage([fault]);
    const { state, error } = await client.locks.get(KEY);
    expect(state).toBeNull();
    expect(error).toBeInstanceOf(ServerError);
  });

  it("an acquire answered by a page is given back", async () => {
    const { client, network } = stage([{ ...page, status: 201 }]);
    expect((await client.locks.acquire(KEY, { ttl: TTL })).error).toMatchObject({ status: 201, code: null });
    expect(methods(network)).toBe("POST DELETE");
  });

  it("one that names another request is none, and its connection is ended", async () => {
    const ended: unknown[] = [];
    const fetch: Fetch = async () => {
      const body = new ReadableStream({ cancel: (reason) => void ended.push(reason) });
      return new Response(body, { headers: { "X-Volcano-Request-Id": "5f0c8a1e-0000-4000-8000-00000000000b" } });
    };
    const { client } = stage([], { fetch });
    expect((await client.locks.get(KEY)).error).toMatchObject({
      name: "TransportError",
      message: expect.stringMatching(/another request/),
      requestSent: true,
    });
    expect(ended).toHaveLength(2);
  });

  it("an answer without end is cut off", async () => {
    const { client } = stage(Array(2).fill({ status: 200, body: "x".repeat(70_000) }));
    expect((await client.locks.get(KEY)).error?.message).toMatch(/longer than 65536 bytes/);
  });
});

describe("SDK-9: errors", () => {
  it.each([
    [400, "invalid_ttl", "ValidationError"],
    [401, "invalid_credentials", "AuthenticationError"],
    [403, "missing_permission", "PermissionDeniedError"],
    [404, "not_found", "NotFoundError"],
    [409, "name_taken", "ConflictError"],
    [413, "request_too_large", "ValidationError"],
    [418, null, "VolcanoError"],
    [429, "lock_rate_limited", "RateLimitedError"],
    [500, "internal", "ServerError"],
    [502, null, "ServerError"],
  ])("%i %s is a %s with its facts", async (status, code, name) => {
    const body = code === null ? "" : JSON.stringify({ error: "because", code });
    const { client, network } = stage([{ status, body }]);
    const { error } = await client.locks.renew(
      KEY,
      there((await stage().client.locks.acquire(KEY, { ttl: TTL })).lease),
    );
    expect(error).toBeInstanceOf(VolcanoError);
    expect(error).toMatchObject({ name, status, code, retryAfter: null, requestId: network.seen[0]?.requestId });
  });

  it("403 is an AuthenticationError too", async () => {
    const { client } = stage([{ status: 403 }]);
    expect((await client.locks.get(KEY)).error).toBeInstanceOf(AuthenticationError);
  });

  it("instanceof knows a class of this package from a program's own subclass of it", () => {
    class Mine extends TransportError {}
    const [mine, theirs] = [new Mine("mine"), new TransportError("theirs")];
    expect([mine instanceof Mine, mine instanceof TransportError, mine instanceof VolcanoError]).toEqual([
      true,
      true,
      true,
    ]);
    expect([theirs instanceof Mine, theirs instanceof ServerError, theirs instanceof Error]).toEqual([
      false,
      false,
      true,
    ]);
    for (const other of [null, undefined, "text", {}, new Error("x")]) {
      expect((other as unknown) instanceof VolcanoError).toBe(false);
    }
  });

  it("503 is an UnavailableError, which is a ServerError", async () => {
    const { client } = stage(["unavailable", "unavailable"]);
    const { error } = await client.locks.get(KEY);
    expect(error).toBeInstanceOf(UnavailableError);
    expect(error).toBeInstanceOf(ServerError);
    expect(error).toMatchObject({ status: 503, code: "lock_service_unavailable", retryAfter: 1 });
  });

  it("a reason is shown short and without what a terminal would obey", async () => {
    const { client } = stage([{ status: 400, body: JSON.stringify({ error: `\u001b[2J${"x".repeat(1_000)}` }) }]);
    const message = (await client.locks.get(KEY)).error?.message ?? "";
    expect(message.startsWith("?[2J")).toBe(true);
    expect(message.length).toBe(300);
  });
});

describe("await using", () => {
  it("releases at the end of the scope, and never hides the error of the scope", async () => {
    const { client, network } = stage();
    const scope = async (): Promise<void> => {
      await using lease = there((await client.locks.acquire(KEY, { ttl: TTL })).lease);
      network.otherwise = "drop_before_send";
      throw new Error(`mine, at ${lease.key}`);
    };
    await expect(scope()).rejects.toThrow("mine");
    network.otherwise = "pass";
    {
      await using _none = (await client.locks.acquire(KEY, { ttl: TTL })).lease;
    }
    expect(methods(network)).toBe("POST DELETE DELETE POST");
  });

  it("frees the lock", async () => {
    const { client } = stage();
    {
      await using _lease = (await client.locks.acquire(KEY, { ttl: TTL })).lease;
      expect((await client.locks.get(KEY)).state?.held).toBe(true);
    }
    expect((await client.locks.get(KEY)).state?.held).toBe(false);
  });
});
