import { inspect } from "node:util";
import { describe, expect, it } from "vitest";
import { type Fetch, TransportError } from "../../src/index.ts";
import { createHarness, KEY, SERVICE_KEY, TOKEN, TTL } from "../harness.ts";

describe("requests", () => {
  it("a signal that has already aborted sends nothing", async () => {
    const { client, transport } = createHarness();
    const { error } = await client.locks.acquire(KEY, { ttl: TTL, signal: AbortSignal.abort() });
    expect(error).toMatchObject({ name: "TransportError", requestSent: false });
    expect(transport.seen).toEqual([]);
  });

  it("a response that arrived in time is used although the event loop was blocked until later", async () => {
    const { client, transport } = createHarness();
    await client.locks.acquire(KEY, { ttl: 60 });
    transport.script = [{ takesSeconds: 11 }];
    expect((await client.locks.get(KEY)).error).toBeNull();
  });

  it("a request times out although fetch ignores its signal", async () => {
    const { client, clock } = createHarness([], { fetch: () => new Promise(() => {}), timeoutSeconds: 3 });
    const pending = client.locks.get(KEY);
    await clock.advance(6);
    expect((await pending).error).toBeInstanceOf(TransportError);
  });

  it("a response that names another request is rejected, and its connection is closed", async () => {
    const ended: unknown[] = [];
    const fetch: Fetch = async () => {
      const body = new ReadableStream({ cancel: (reason) => void ended.push(reason) });
      return new Response(body, { headers: { "X-Volcano-Request-Id": "5f0c8a1e-0000-4000-8000-00000000000b" } });
    };
    const { client } = createHarness([], { fetch });
    expect((await client.locks.get(KEY)).error).toMatchObject({
      name: "TransportError",
      message: expect.stringMatching(/another request/),
      requestSent: true,
    });
    expect(ended).toHaveLength(2);
  });

  it("a response that is too long is rejected", async () => {
    const { client } = createHarness(Array(2).fill({ status: 200, body: "x".repeat(70_000) }));
    expect((await client.locks.get(KEY)).error?.message).toMatch(/longer than 65536 bytes/);
  });
});

describe("SDK-8: secrets", () => {
  it("are redacted from the messages of a proxy or of fetch", async () => {
    const told400 = `${SERVICE_KEY} ${TOKEN} ${TOKEN.toUpperCase()}`;
    const { client } = createHarness([{ status: 400, body: JSON.stringify({ error: told400 }) }], {});
    const { error } = await client.locks.acquire(KEY, { ttl: TTL, token: TOKEN });
    expect(error?.message).toBe("[hidden] [hidden] [hidden]");
    const thrown = new TypeError(`bad header ${SERVICE_KEY}`, { cause: new Error(TOKEN) });
    const failing = createHarness([], { fetch: () => Promise.reject(thrown) }).client;
    const text = inspect((await failing.locks.acquire(KEY, { ttl: TTL, token: TOKEN })).error, { depth: 9 });
    expect(text).toContain("[hidden]");
    expect(text).not.toContain(SERVICE_KEY);
    expect(text).not.toContain(TOKEN);
  });
});
