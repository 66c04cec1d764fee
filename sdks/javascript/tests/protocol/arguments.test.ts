import { describe, expect, it } from "vitest";
import { Lease, type LeaseRecord } from "../../src/index.ts";
import { createHarness, defined, KEY, TOKEN, TTL } from "../harness.ts";

function record(): LeaseRecord {
  return { key: KEY, token: TOKEN, ttl_seconds: TTL, expires_at: "2026-07-20T14:00:10Z", fencing_token: 5 };
}

describe("invalid arguments are thrown before anything is sent", () => {
  const wrong: ReadonlyArray<[string, unknown[], new (message: string) => Error]> = [
    ["key", [3, { ttl: TTL }], TypeError],
    ["key", ["", { ttl: TTL }], RangeError],
    ["key", ["a/b", { ttl: TTL }], RangeError],
    ["key", ["a\n", { ttl: TTL }], RangeError],
    ["key", ["x".repeat(129), { ttl: TTL }], RangeError],
    ["options", [KEY], TypeError],
    ["options", [KEY, null], TypeError],
    ["ttl", [KEY, {}], TypeError],
    ["ttl", [KEY, { ttl: "30" }], TypeError],
    ["ttl", [KEY, { ttl: true }], TypeError],
    ["ttl", [KEY, { ttl: 4 }], RangeError],
    ["ttl", [KEY, { ttl: 30.5 }], RangeError],
    ["ttl", [KEY, { ttl: Number.NaN }], RangeError],
    ["ttl", [KEY, { ttl: 7_776_001 }], RangeError],
    ["token", [KEY, { ttl: TTL, token: 1 }], TypeError],
    ["token", [KEY, { ttl: TTL, token: "secret" }], RangeError],
    ["requestId", [KEY, { ttl: TTL, requestId: "x" }], RangeError],
    ["signal", [KEY, { ttl: TTL, signal: "stop" }], TypeError],
  ];

  it.each(wrong)("%s of acquire and withLock: %j", async (name, args, kind) => {
    const { client, transport } = createHarness();
    const { acquire, withLock } = client.locks as unknown as Record<string, (...args: unknown[]) => Promise<unknown>>;
    for (const verb of [acquire, withLock]) {
      const pending = defined(verb).apply(client.locks, [...args, ...(args.length < 2 ? [undefined] : []), () => {}]);
      await expect(pending).rejects.toThrow(kind);
      await expect(pending).rejects.toThrow(name);
      await expect(pending).rejects.not.toThrow("secret");
    }
    expect(transport.seen).toEqual([]);
  });

  it("arguments of the other verbs", async () => {
    const { client, transport } = createHarness();
    const lease = Lease.fromRecord(record());
    await expect(client.locks.get("")).rejects.toThrow(RangeError);
    await expect(client.locks.forceRelease(".x")).rejects.toThrow(RangeError);
    await expect(client.locks.renew(KEY, lease, { ttl: 1 })).rejects.toThrow(RangeError);
    await expect(client.locks.withLock(KEY, { ttl: TTL }, null as unknown as () => void)).rejects.toThrow(TypeError);
    expect(transport.seen).toEqual([]);
  });
});

describe("SDK-9: unknown options", () => {
  const lease = Lease.fromRecord(record());
  const block = [() => {}];
  const verbs: ReadonlyArray<[string, unknown[], object, unknown[], string]> = [
    ["acquire", [KEY], { ttl: TTL }, [], "acquire takes ttl, token, wait, requestId, signal"],
    ["renew", [KEY, lease], {}, [], "renew takes ttl, requestId, signal"],
    ["release", [KEY, lease], {}, [], "release takes requestId, signal"],
    ["get", [KEY], {}, [], "get takes requestId, signal"],
    ["view", [KEY], {}, [], "view takes requestId, signal"],
    ["forceRelease", [KEY], {}, [], "forceRelease takes fencingToken, reason, requestId, signal"],
    [
      "withLock",
      [KEY],
      { ttl: TTL },
      block,
      "withLock takes ttl, token, wait, requestId, signal, holdAtLeast, renewEvery",
    ],
    ["lead", [KEY], { ttl: TTL }, block, "lead takes ttl, signal, renewEvery"],
    ["exclusive", [KEY], { ttl: TTL }, block, "exclusive takes ttl, onHeld, holdAtLeast, renewEvery, passGuard"],
    ["watch", [KEY], {}, [], "watch takes signal"],
    ["list", [""], {}, [], "list takes state, requestId, signal"],
  ];

  it.each(verbs)("%s throws a TypeError that names the known ones", async (verb, before, options, after, takes) => {
    const { client, transport } = createHarness();
    for (const locks of [client.locks, client.locks.throwOnError()]) {
      const functions = locks as unknown as Record<string, (...args: unknown[]) => unknown>;
      const call = async (): Promise<unknown> =>
        defined(functions[verb]).apply(locks, [...before, { ...options, waitSeconds: 5 }, ...after]);
      await expect(call()).rejects.toThrow(TypeError);
      await expect(call()).rejects.toThrow(`unknown option "waitSeconds": ${takes}`);
    }
    expect(transport.seen).toEqual([]);
  });
});

describe("SDK-27: the arguments of a force release", () => {
  it.each([0, -1, 1.5, 2 ** 53, Number.NaN, "7", 7n, true])("refuses the fencing token %s", async (fencingToken) => {
    const { client, transport } = createHarness();
    const call = client.locks.forceRelease(KEY, { fencingToken: fencingToken as number });
    await expect(call).rejects.toThrow(typeof fencingToken === "number" ? RangeError : TypeError);
    expect(transport.seen).toEqual([]);
  });

  const INVISIBLE = [
    "a\nb",
    "a\u001b[2J",
    "a\u0085",
    "a\u202eb",
    "a\u2028b",
    "a\ud800b",
    "a\u200bb",
    "a\u00ad",
    "\ufeffa",
    "a\u{e0041}",
  ];
  it.each(["r".repeat(201), "🔒".repeat(201), ...INVISIBLE, 7])("refuses the reason %j", async (reason) => {
    const { client, transport } = createHarness();
    const call = client.locks.forceRelease(KEY, { reason: reason as string });
    await expect(call).rejects.toThrow(typeof reason === "string" ? RangeError : TypeError);
    expect(transport.seen).toEqual([]);
  });

  it.each([null, undefined, ""])("takes %j as no reason, and null as no fencing token", async (reason) => {
    const { client } = createHarness();
    expect((await client.locks.forceRelease(KEY, { reason, fencingToken: null })).error).toBeNull();
  });
});

describe("SDK-3: renewEvery", () => {
  it.each([
    ["10", TypeError],
    [0.9, RangeError],
    [TTL / 3 + 0.1, RangeError],
    [Number.NaN, RangeError],
  ])("%j is a mistake for a ttl of 30", async (renewEvery, kind) => {
    const { client, transport } = createHarness();
    const options = { ttl: TTL, renewEvery: renewEvery as number };
    await expect(client.locks.withLock(KEY, options, () => {})).rejects.toThrow(kind);
    await expect(client.locks.lead(KEY, options, () => {})).rejects.toThrow("renewEvery");
    expect(() => client.locks.exclusive(KEY, options, () => {})).toThrow("renewEvery");
    expect(transport.seen).toEqual([]);
  });
});

describe("SDK-17: renew and release take the key first, then its lease", () => {
  const lease = Lease.fromRecord(record());

  const wrong: ReadonlyArray<[string, unknown[], string]> = [
    ["the options in place of the lease", [KEY, { ttl: TTL }], "lease must be a Lease, got an object with ttl"],
    ["nothing", [KEY], "lease must be a Lease, got undefined"],
    ["null", [KEY, null, { ttl: "30" }], "lease must be a Lease, got null"],
    ["a key", [KEY, KEY], "lease must be a Lease, got string"],
    ["an empty object", [KEY, {}], "lease must be a Lease, got an object:"],
    ["a copy", [KEY, { ...lease }], "got an object with key, ttlSeconds, expiresAt, fencingToken"],
    ["a record", [KEY, record()], "got an object with key, token, ttl_seconds, expires_at, fencing_token"],
    ["a lease alone", [lease], "key must be a string, got a Lease: pass the lock's key first"],
    ["a lease of another key", ["other", lease], `lease must be of the lock other, got a lease of ${KEY}`],
  ];

  it.each(wrong)(
    "%s is a TypeError that names the received type, before anything is sent",
    async (_, args, message) => {
      const { client, transport } = createHarness();
      const { renew, release } = client.locks as unknown as Record<string, (...args: unknown[]) => Promise<unknown>>;
      for (const verb of [renew, release]) {
        const pending = defined(verb).apply(client.locks, args);
        await expect(pending).rejects.toThrow(TypeError);
        await expect(pending).rejects.toThrow(message);
        await expect(pending).rejects.not.toThrow(TOKEN);
      }
      expect(transport.seen).toEqual([]);
    },
  );
});

describe("SDK-11: wait", () => {
  it.each([
    [{ wait: "5" }, TypeError],
    [{ wait: true }, TypeError],
    [{ wait: null }, TypeError],
    [{ wait: -1 }, RangeError],
    [{ wait: Number.NaN }, RangeError],
  ])("%j is a mistake", async (options, kind) => {
    const { client, transport } = createHarness();
    await expect(client.locks.acquire(KEY, { ttl: TTL, ...(options as object) })).rejects.toThrow(kind);
    await expect(client.locks.withLock(KEY, { ttl: TTL, ...(options as object) }, () => {})).rejects.toThrow("wait");
    expect(transport.seen).toEqual([]);
  });
});

describe("SDK-12: holdAtLeast", () => {
  it.each([
    [{ holdAtLeast: "60" }, TypeError],
    [{ holdAtLeast: -1 }, RangeError],
    [{ holdAtLeast: Number.POSITIVE_INFINITY }, RangeError],
  ])("%j is a mistake", async (options, kind) => {
    const { client, transport } = createHarness();
    await expect(client.locks.withLock(KEY, { ttl: TTL, ...(options as object) }, () => {})).rejects.toThrow(kind);
    expect(transport.seen).toEqual([]);
  });
});

describe("SDK-13: lead", () => {
  it.each([
    [[3, { ttl: TTL }, () => {}], TypeError],
    [[KEY, { ttl: 1 }, () => {}], RangeError],
    [[KEY, { ttl: TTL }, null], TypeError],
    [[KEY, undefined, () => {}], TypeError],
    [[KEY, { ttl: TTL, signal: 1 }, () => {}], TypeError],
  ])("%j rejects", async (args, kind) => {
    const { client, transport } = createHarness();
    const lead = client.locks.lead as unknown as (...args: unknown[]) => Promise<unknown>;
    await expect(lead.apply(client.locks, args)).rejects.toThrow(kind);
    expect(transport.seen).toEqual([]);
  });
});

describe("SDK-16: exclusive", () => {
  it.each([
    ["key", ["{day}", { ttl: TTL }, () => {}], RangeError],
    ["key", [undefined, { ttl: TTL }, () => {}], TypeError],
    ["options", [KEY, undefined, () => {}], TypeError],
    ["ttl", [KEY, { ttl: 1 }, () => {}], RangeError],
    ["onHeld", [KEY, { ttl: TTL, onHeld: "ignore" }, () => {}], RangeError],
    ["onHeld", [KEY, { ttl: TTL, onHeld: 1 }, () => {}], TypeError],
    ["holdAtLeast", [KEY, { ttl: TTL, holdAtLeast: -1 }, () => {}], RangeError],
    ["run", [KEY, { ttl: TTL }, "run"], TypeError],
  ])("an invalid %s is thrown when the function is wrapped", (name, args, kind) => {
    const exclusive = createHarness().client.locks.exclusive as unknown as (...args: unknown[]) => unknown;
    expect(() => exclusive(...args)).toThrow(kind);
    expect(() => exclusive(...args)).toThrow(name);
  });

  it("an invalid key from the call's arguments rejects the call before anything is sent", async () => {
    const { client, transport } = createHarness();
    const job = client.locks.exclusive(
      (name: string) => name,
      { ttl: TTL },
      () => 1,
    );
    await expect(job("a b")).rejects.toThrow(RangeError);
    expect(transport.seen).toEqual([]);
  });
});

describe("SDK-14 SDK-15: watch and list", () => {
  it("invalid arguments throw at the call", () => {
    const { locks } = createHarness().client;
    expect(() => locks.watch("")).toThrow(RangeError);
    expect(() => locks.watch(KEY, { signal: 1 as unknown as AbortSignal })).toThrow(TypeError);
    expect(() => locks.list(".")).toThrow(RangeError);
    expect(() => locks.list(1 as unknown as string)).toThrow(TypeError);
    expect(() => locks.list("", { state: "some" as "all" })).toThrow("held, free");
    expect(() => locks.list("", null as unknown as object)).toThrow(TypeError);
  });
});
