/**
 * Case 75: the client in a realm of its own, as in Jest, vitest's vmThreads or `node:vm`. Its errors and those of Node are then
 * instances of different classes. The test loads the built package; `npm test` builds it first.
 */

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";
import { createContext, runInContext } from "node:vm";
import { describe, expect, it } from "vitest";
import type { Client, ClientOptions } from "../src/index.ts";
import type { FakeClient } from "../src/testing/index.ts";
import { KEY, TTL } from "./harness.ts";

const requireBuiltin = createRequire(import.meta.url);

/** Loads the CommonJS build for Node into a new realm, which has Node's globals but its own `Error` and `Array`. */
function loadInRealm(): { Client: new (options: ClientOptions) => Client; FakeClient: new () => FakeClient } {
  const { AbortController, AbortSignal, Headers, Response, URL, URLSearchParams, ReadableStream } = globalThis;
  const { TextDecoder, TextEncoder, Buffer, crypto, performance, process, fetch, setImmediate } = globalThis;
  const web = { AbortController, AbortSignal, Headers, Response, URL, URLSearchParams, ReadableStream };
  const more = { TextDecoder, TextEncoder, Buffer, crypto, performance, process, fetch, setImmediate };
  const realm = createContext({ ...web, ...more, setTimeout, clearTimeout, queueMicrotask });
  const load = (name: string): Record<string, unknown> => {
    if (name.startsWith("node:")) return requireBuiltin(name);
    const module = { exports: {} };
    const text = readFileSync(new URL(`../dist/node/${name}`, import.meta.url), "utf8");
    runInContext(`(function (module, exports, require) {${text}\n})`, realm)(module, module.exports, load);
    return module.exports;
  };
  return { ...load("index.cjs"), ...load("testing.cjs") } as ReturnType<typeof loadInRealm>;
}

describe("case 75: errors and signals of another realm", () => {
  it("a lead whose run ends with Node's AbortError of its loss campaigns again", async () => {
    const client = new (loadInRealm().FakeClient)();
    let runs = 0;
    const campaign = client.locks.lead(KEY, { ttl: TTL }, async ({ signal }) => {
      runs += 1;
      if (runs === 2) return "second term";
      await sleep(1e9, null, { signal, ref: false });
      return "never";
    });
    await client.clock.settle();
    client.clock.jump(TTL);
    await client.clock.advance(5);
    expect(await campaign).toEqual({ data: "second term", error: null });
  });

  it.each([
    ["node:http", {}],
    ["fetch", { fetch: (url: string, init: RequestInit) => fetch(url, init) }],
  ])("a refused connection over %s is known never to have left", async (_, options) => {
    const { Client } = loadInRealm();
    const { locks } = new Client({ apiUrl: "http://127.0.0.1:2", serviceKey: "sk", ...options });
    const { error } = await locks.acquire(KEY, { ttl: TTL });
    expect(error).toMatchObject({
      requestSent: false,
      message: expect.stringContaining("no connection to 127.0.0.1:2"),
    });
  });

  it("a body's error of another realm stays the error, with what happened beside it attached", async () => {
    const client = new (loadInRealm().FakeClient)();
    for (const mine of [new Error("mine"), new DOMException("mine", "DataError")]) {
      const { error } = await client.locks.withLock(KEY, { ttl: TTL }, () => {
        client.clock.jump(TTL);
        throw mine;
      });
      expect(error).toBe(mine);
      expect(mine).toMatchObject({ suppressed: [{ name: "LockOwnershipLostError" }] });
      client.clock.jump(1);
    }
  });
});
