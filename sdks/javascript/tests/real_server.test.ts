/** What only real time and many real connections show. The conformance scenarios cover the verbs on a real server. */

import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { AuthenticationError, Client, TransportError } from "../src/index.ts";
import { type Address, type RealServer, START_MS_MAX, startedServer } from "./real_server.ts";

/** The address of a closed port. */
async function silentUrl(): Promise<string> {
  const listener = createServer().listen(0, "127.0.0.1");
  await once(listener, "listening");
  const { port } = listener.address() as AddressInfo;
  listener.close();
  await once(listener, "close");
  return `http://127.0.0.1:${port}`;
}

describe("the real server", () => {
  let server: RealServer;
  let at: Address;

  beforeAll(async () => {
    server = await startedServer();
    at = server.at;
  }, START_MS_MAX);

  afterAll(() => server.stop(), START_MS_MAX);

  it("grants one of many at a time", async () => {
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

  it("SDK-11 SDK-13: grants many waiters one after the other, and leaders take turns", async () => {
    const { locks } = new Client(at);
    let running = 0;
    const run = async (): Promise<number> => {
      running += 1;
      expect(running).toBe(1);
      await locks.get("queue");
      running -= 1;
      return running;
    };
    const blocks = Array.from({ length: 20 }, () => locks.withLock("queue", { ttl: 30, wait: 60 }, run));
    const terms = Array.from({ length: 5 }, () => locks.lead("queue", { ttl: 30 }, run));
    expect(await Promise.all(blocks)).toEqual(Array(20).fill({ acquired: true, data: 0, error: null }));
    expect(await Promise.all(terms)).toEqual(Array(5).fill({ data: 0, error: null }));
  });

  it("a wrong key and a closed port are different errors", async () => {
    const wrong = await new Client({ ...at, serviceKey: "sk-wrong" }).locks.acquire("a:b", { ttl: 5 });
    expect(wrong.error).toBeInstanceOf(AuthenticationError);
    expect(wrong.error).toMatchObject({ status: 401, code: "invalid_credentials", requestId: expect.any(String) });
    expect(wrong.error?.message).toContain(`(${at.apiUrl}/locks/a:b/lease)`);
    const elsewhere = await new Client({ ...at, apiUrl: `${at.apiUrl}/elsewhere` }).locks.get("a:b");
    expect(elsewhere.error).toMatchObject({ status: 404, name: "NotFoundError" });
    expect(elsewhere.error?.message).toContain(`(${at.apiUrl}/elsewhere/locks/a:b)`);
    const silent = new Client({ ...at, apiUrl: await silentUrl() });
    const { error } = await silent.locks.acquire("a:b", { ttl: 5 });
    expect(error).toBeInstanceOf(TransportError);
    expect(error).toMatchObject({ requestSent: false });
  });
});
