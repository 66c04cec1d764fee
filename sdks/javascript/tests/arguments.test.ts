import { inspect } from "node:util";
import { afterEach, describe, expect, it, vi } from "vitest";
import packageJson from "../package.json" with { type: "json" };
import { defaultHolder, inBrowser, type RuntimeGlobals } from "../src/config.ts";
import { Client, Lease, type LeaseRecord, VERSION, VolcanoError } from "../src/index.ts";
import { parseDate } from "../src/protocol/messages.ts";
import { granted, KEY, SERVICE_KEY, stage, TOKEN, TTL, there } from "./stage.ts";

afterEach(() => {
  vi.unstubAllEnvs();
  vi.unstubAllGlobals();
});

describe("mistakes in arguments are thrown before anything is sent", () => {
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
    const { client, network } = stage();
    const { acquire, withLock } = client.locks as unknown as Record<string, (...args: unknown[]) => Promise<unknown>>;
    for (const verb of [acquire, withLock]) {
      const asking = there(verb).apply(client.locks, [...args, ...(args.length < 2 ? [undefined] : []), () => {}]);
      await expect(asking).rejects.toThrow(kind);
      await expect(asking).rejects.toThrow(name);
      await expect(asking).rejects.not.toThrow("secret");
    }
    expect(network.seen).toEqual([]);
  });

  it("of the other verbs", async () => {
    const { client, network } = stage();
    const lease = Lease.fromRecord(record());
    await expect(client.locks.get("")).rejects.toThrow(RangeError);
    await expect(client.locks.forceRelease(".x")).rejects.toThrow(RangeError);
    await expect(client.locks.renew(KEY, lease, { ttl: 1 })).rejects.toThrow(RangeError);
    await expect(client.locks.withLock(KEY, { ttl: TTL }, null as unknown as () => void)).rejects.toThrow(TypeError);
    expect(network.seen).toEqual([]);
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

  it.each(wrong)("%s is a TypeError that says what came, before anything is sent", async (_, args, message) => {
    const { client, network } = stage();
    const { renew, release } = client.locks as unknown as Record<string, (...args: unknown[]) => Promise<unknown>>;
    for (const verb of [renew, release]) {
      const asking = there(verb).apply(client.locks, args);
      await expect(asking).rejects.toThrow(TypeError);
      await expect(asking).rejects.toThrow(message);
      await expect(asking).rejects.not.toThrow(TOKEN);
    }
    expect(network.seen).toEqual([]);
  });
});

describe("SDK-22: what a client returns is a value", () => {
  it("a lease, a state, a view and a change cannot be changed, and two of the same content are equal", async () => {
    const { client } = stage();
    const lease = granted(await client.locks.acquire(KEY, { ttl: TTL, token: TOKEN }));
    const changes = client.locks.watch(KEY);
    const values = async (): Promise<unknown[]> => [
      Lease.fromRecord(lease.toRecord()),
      there((await client.locks.get(KEY)).state),
      there((await client.locks.view(KEY)).view),
      there((await client.locks.watch(KEY).next()).value),
    ];
    const [first, second] = [await values(), await values()];
    expect(first).toEqual(second);
    for (const value of first) {
      expect(Object.isFrozen(value)).toBe(true);
      expect(JSON.stringify(value) + inspect(value) + String(value)).not.toContain(TOKEN);
    }
    await changes.return?.();
  });
});

describe("configuration", () => {
  const fetch = (): Promise<Response> => Promise.resolve(Response.json({ held: false }));

  it("comes from arguments first, then from the environment", async () => {
    vi.stubEnv("VOLCANO_API_URL", "http://from.env");
    vi.stubEnv("VOLCANO_SERVICE_KEY", "sk-env");
    const seen: string[] = [];
    const spy = (url: string, init: RequestInit): Promise<Response> => {
      seen.push(`${url} ${new Headers(init.headers).get("Authorization")}`);
      return fetch();
    };
    await new Client({ fetch: spy }).locks.get(KEY);
    await new Client({ fetch: spy, apiUrl: "https://given.test/a/", serviceKey: "sk-given" }).locks.get(KEY);
    expect(seen).toEqual([
      `http://from.env/locks/${KEY} Bearer sk-env`,
      `https://given.test/a/locks/${KEY} Bearer sk-given`,
    ]);
  });

  it.each([
    [{}, "apiUrl is missing"],
    [{ apiUrl: "http://x.test" }, "serviceKey is missing"],
    [{ apiUrl: "locks.test", serviceKey: "sk" }, "apiUrl must be like"],
    [{ apiUrl: "ftp://locks.test", serviceKey: "sk" }, "apiUrl must be like"],
    [{ apiUrl: "http://me:pass@x.test", serviceKey: "sk" }, "user name or password"],
    [{ apiUrl: "http://x.test/?a=1", serviceKey: "sk" }, "no query"],
    [{ apiUrl: "http://x.test", serviceKey: "sk\n" }, "serviceKey must be visible"],
    [{ apiUrl: "http://x.test", serviceKey: "sk", timeoutSeconds: 0 }, "timeoutSeconds must be above 0"],
    [{ apiUrl: "http://x.test", serviceKey: "sk", timeoutSeconds: "1" }, "timeoutSeconds must be a number"],
    [{ apiUrl: "http://x.test", serviceKey: "sk", holder: "a b" }, "holder must be"],
    [{ apiUrl: "http://x.test", serviceKey: "sk", fetch: 1 }, "fetch must be a function"],
    ["http://x.test", "options must be an object, got string"],
    [null, "options must be an object, got null"],
  ])("%j is refused", (options, message) => {
    vi.stubEnv("VOLCANO_API_URL", undefined);
    vi.stubEnv("VOLCANO_SERVICE_KEY", undefined);
    expect(() => new Client(options as object)).toThrow(message);
  });

  it.each(["apiURL", "service_key", "timeout", "toString", "__proto__x"])(
    "SDK-9: the unknown option %s is refused",
    (name) => {
      const options = { apiUrl: "http://x.test", serviceKey: SERVICE_KEY, [name]: SERVICE_KEY };
      const make = (): Client => new Client(options as object);
      expect(make).toThrow(TypeError);
      expect(make).toThrow(
        `unknown option "${name}": a client takes apiUrl, serviceKey, timeoutSeconds, holder, fetch, clock`,
      );
      expect(make).not.toThrow(SERVICE_KEY);
    },
  );

  it("the holder's label is host/pid in visible characters, or as given", async () => {
    const { client, network } = stage();
    await client.locks.get(KEY);
    expect(network.seen[0]?.headers.get("X-Volcano-Lock-Holder")).toMatch(new RegExp(`^[!-~]+/${process.pid}$`));
    const host = { pid: 7, getBuiltinModule: () => ({ hostname: () => `bü ro${"x".repeat(200)}` }) };
    expect(defaultHolder({ process: host })).toMatch(/^b--ro.*\/7$/);
    expect(defaultHolder({ process: host }).length).toBe(128);
    expect(defaultHolder({})).toBe("unknown/0");
  });

  it("the version is the package's", () => {
    expect(VERSION).toBe(packageJson.version);
  });
});

describe("SDK-8: secrets", () => {
  const node = { versions: { node: "20.0.0" } };
  const page = { window: {}, document: {}, navigator: { userAgent: "Mozilla/5.0 Firefox" } };
  const scopes: ReadonlyArray<[string, RuntimeGlobals, boolean]> = [
    ["a page", page, true],
    ["a page with a bundler's process", { ...page, process: { browser: true, versions: {}, env: {} } }, true],
    ["a browser's worker", { navigator: page.navigator }, true],
    ["a window of Electron", { ...page, process: { ...node, type: "renderer" } }, true],
    ["Node", { process: node }, false],
    ["Node with a drawn page (jsdom)", { ...page, process: node }, false],
    ["Node 21", { process: node, navigator: { userAgent: "Node.js/21" } }, false],
    ["Deno, also with a window", { Deno: {}, ...page }, false],
    ["Bun", { Bun: {}, navigator: { userAgent: "Bun/1.2" } }, false],
    ["a Cloudflare worker", { navigator: { userAgent: "Cloudflare-Workers" } }, false],
    ["an edge function", {}, false],
  ];

  it.each(scopes)("%s is or is not a browser", (_, scope, expected) => {
    expect(inBrowser(scope)).toBe(expected);
  });

  it("the client refuses to start in a browser", () => {
    const { process } = globalThis;
    vi.stubGlobal("window", {});
    vi.stubGlobal("document", {});
    vi.stubGlobal("process", { ...process, versions: {} });
    expect(() => new Client({ apiUrl: "http://x.test", serviceKey: "sk" })).toThrow(VolcanoError);
  });

  it("are shown neither by JSON, nor by inspection, nor by a copy", async () => {
    const { client } = stage();
    const lease = there((await client.locks.acquire(KEY, { ttl: TTL, token: TOKEN })).lease);
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

  it("are not repeated from what a proxy or fetch says", async () => {
    const told400 = `${SERVICE_KEY} ${TOKEN} ${TOKEN.toUpperCase()}`;
    const { client } = stage([{ status: 400, body: JSON.stringify({ error: told400 }) }], {});
    const { error } = await client.locks.acquire(KEY, { ttl: TTL, token: TOKEN });
    expect(error?.message).toBe("[hidden] [hidden] [hidden]");
    const thrown = new TypeError(`bad header ${SERVICE_KEY}`, { cause: new Error(TOKEN) });
    const failing = stage([], { fetch: () => Promise.reject(thrown) }).client;
    const told = inspect((await failing.locks.acquire(KEY, { ttl: TTL, token: TOKEN })).error, { depth: 9 });
    expect(told).toContain("[hidden]");
    expect(told).not.toContain(SERVICE_KEY);
    expect(told).not.toContain(TOKEN);
  });

  it("a lease can be stored on purpose, and released by another client", async () => {
    const { client, rival } = stage();
    const lease = there((await client.locks.acquire(KEY, { ttl: TTL })).lease);
    const stored = JSON.stringify(lease.toRecord());
    expect(stored).toContain(lease.token);
    const loaded = Lease.fromRecord(JSON.parse(stored) as LeaseRecord);
    expect(loaded.toRecord()).toEqual(lease.toRecord());
    await expect(loaded[Symbol.asyncDispose]()).rejects.toThrow(TypeError);
    expect((await rival.locks.renew(KEY, loaded)).error).toBeNull();
    expect(await rival.locks.release(KEY, loaded)).toEqual({ error: null });
  });

  it.each([
    [{ token: undefined }, "lacks token"],
    [{ expires_at: null }, "expires_at"],
    [{ fencing_token: null }, "fencing_token"],
    [{ fencing_token: 2 ** 53 }, "fencing_token"],
    [{ ttl_seconds: 1 }, "ttl"],
    [{ expires_at: 5 }, "expires_at"],
    [{ expires_at: "soon" }, "date"],
    [{ key: "/" }, "key"],
    [{ token: "x" }, "token"],
  ])("a record with %j is refused", (change, message) => {
    expect(() => Lease.fromRecord({ ...record(), ...change } as LeaseRecord)).toThrow(message);
  });
});

describe("SDK-7: numbers and dates", () => {
  it.each([
    ["2026-07-20T14:00:10Z", ".000"],
    ["2026-07-20t14:00:10z", ".000"],
    ["2026-07-20 14:00:10.1Z", ".100"],
    ["2026-07-20T14:00:10.123Z", ".123"],
    ["2026-07-20T14:00:10.123456Z", ".123"],
    ["2026-07-20T14:00:10.123456789Z", ".123"],
    ["2026-07-20T14:00:10+00:00", ".000"],
    ["2026-07-20T16:30:10.5+02:30", ".500"],
    ["2026-07-20T06:00:10.999999-0800", ".999"],
  ])("case 35: %s parses", (text, fraction) => {
    expect(parseDate(text).toISOString()).toBe(`2026-07-20T14:00:10${fraction}Z`);
  });

  it.each([
    "",
    "2026-07-20",
    "2026-07-20T14:00:10",
    "2026-02-30T00:00:00Z",
    "2026-13-01T00:00:00Z",
    "2026-07-20T24:00:00Z",
    "2026-07-20T14:00:60Z",
    "2026-07-20T14:00:10.1234567890Z",
    "2026-07-20T14:00:10+24:00",
    "2026-07-20T14:00:10Z\n",
    "２026-07-20T14:00:10Z",
  ])("case 35: %j does not", (text) => {
    expect(() => parseDate(text)).toThrow(RangeError);
  });

  const answered = (token: string, more = ""): string =>
    `{${more}"held":true,"expires_at":"2026-07-20T14:00:10Z","fencing_token":${token}}`;

  it.each(["1", "1784684410123", "9007199254740991"])("case 34: fencing token %s is taken as it is", async (token) => {
    const { client } = stage([{ status: 200, body: answered(token) }]);
    expect((await client.locks.get(KEY)).state?.fencingToken).toBe(Number(token));
  });

  it.each([
    "9007199254740992",
    "9007199254740993",
    "9007199254740990.6",
    "18446744073709551615",
    "0",
    "-1",
    "17.0",
    "1e3",
    "true",
    '"17"',
    "null",
  ])("case 34: fencing token %s is refused", async (token) => {
    const { client } = stage([{ status: 200, body: answered(token) }]);
    expect((await client.locks.get(KEY)).error).toMatchObject({ name: "ServerError" });
  });

  it("case 34: only the field itself is looked at, whatever else the answer holds", async () => {
    const more = String.raw`"note":"\"fencing_token\":1.5","more":{"fencing_token":99999999999999999999},`;
    const { client } = stage([{ status: 200, body: answered("7", more) }]);
    expect((await client.locks.get(KEY)).state?.fencingToken).toBe(7);
  });
});

function record(): LeaseRecord {
  return { key: KEY, token: TOKEN, ttl_seconds: TTL, expires_at: "2026-07-20T14:00:10Z", fencing_token: 5 };
}
