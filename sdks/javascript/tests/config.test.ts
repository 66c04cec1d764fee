import { afterEach, describe, expect, it, vi } from "vitest";
import packageJson from "../package.json" with { type: "json" };
import { defaultHolder, inBrowser, type RuntimeGlobals } from "../src/config.ts";
import { Client, VERSION, VolcanoError } from "../src/index.ts";
import { createHarness, KEY, SERVICE_KEY } from "./harness.ts";

afterEach(() => {
  vi.unstubAllEnvs();
  vi.unstubAllGlobals();
});

describe("settings of a client", () => {
  const fetch = (): Promise<Response> => Promise.resolve(Response.json({ held: false }));

  it("come from options first, then from the environment", async () => {
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

  it("SDK-25: the address defaults to a server on this machine", () => {
    for (const value of [undefined, ""]) {
      vi.stubEnv("VOLCANO_API_URL", value);
      expect(new Client({ serviceKey: "sk" }).toJSON()).toEqual({ apiUrl: "http://127.0.0.1:7420" });
    }
  });

  it.each([
    [{}, "serviceKey is missing"],
    [{ apiUrl: 7, serviceKey: "sk" }, "apiUrl must be a string"],
    [{ apiUrl: "http://x.test", serviceKey: "sk", logger: {} }, "logger must have the functions debug and warn"],
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

  it.each([
    ["7", true],
    [undefined, false],
  ])("CLI-6 case 64: inside run (%j) the error says why the service key is missing: %j", (fencingToken, inside) => {
    vi.stubEnv("VOLCANO_SERVICE_KEY", undefined);
    vi.stubEnv("VOLCANO_LOCK_FENCING_TOKEN", fencingToken);
    const message = /serviceKey is missing.*`volcano-locks run` .*--pass-service-key/;
    const make = (): Client => new Client();
    expect(make).toThrow("serviceKey is missing");
    if (inside) expect(make).toThrow(message);
    else expect(make).not.toThrow(message);
  });

  it.each(["apiURL", "service_key", "timeout", "toString", "__proto__x"])(
    "SDK-9: the unknown option %s throws a TypeError",
    (name) => {
      const options = { apiUrl: "http://x.test", serviceKey: SERVICE_KEY, [name]: SERVICE_KEY };
      const make = (): Client => new Client(options as object);
      expect(make).toThrow(TypeError);
      expect(make).toThrow(
        `unknown option "${name}": a client takes apiUrl, serviceKey, timeoutSeconds, holder, fetch, logger, clock`,
      );
      expect(make).not.toThrow(SERVICE_KEY);
    },
  );

  it("the holder's label defaults to host/pid in visible characters", async () => {
    const { client, transport } = createHarness();
    await client.locks.get(KEY);
    expect(transport.seen[0]?.headers.get("X-Volcano-Lock-Holder")).toMatch(new RegExp(`^[!-~]+/${process.pid}$`));
    const host = { pid: 7, getBuiltinModule: () => ({ hostname: () => `bü ro${"x".repeat(200)}` }) };
    expect(defaultHolder({ process: host })).toMatch(/^b--ro.*\/7$/);
    expect(defaultHolder({ process: host }).length).toBe(128);
    expect(defaultHolder({})).toBe("unknown/0");
  });

  it("the version is the package's", () => {
    expect(VERSION).toBe(packageJson.version);
  });
});

describe("SDK-8: a client does not start in a browser", () => {
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
    ["Deno, even with a window", { Deno: {}, ...page }, false],
    ["Bun", { Bun: {}, navigator: { userAgent: "Bun/1.2" } }, false],
    ["a Cloudflare worker", { navigator: { userAgent: "Cloudflare-Workers" } }, false],
    ["an edge function", {}, false],
  ];

  it.each(scopes)("%s is recognised", (_, scope, expected) => {
    expect(inBrowser(scope)).toBe(expected);
  });

  it("the client refuses to start in a browser", () => {
    const { process } = globalThis;
    vi.stubGlobal("window", {});
    vi.stubGlobal("document", {});
    vi.stubGlobal("process", { ...process, versions: {} });
    expect(() => new Client({ apiUrl: "http://x.test", serviceKey: "sk" })).toThrow(VolcanoError);
  });
});
