import { describe, expect, it } from "vitest";
import { Lease, type LeaseRecord } from "../../src/index.ts";
import { createHarness, defined, KEY, sentMethods, TOKEN, TTL } from "../harness.ts";

function record(): LeaseRecord {
  return { key: KEY, token: TOKEN, ttl_seconds: TTL, expires_at: "2026-07-20T14:00:10Z", fencing_token: 5 };
}

describe("records", () => {
  it("SDK-8: a lease can be stored on purpose, and released by another client", async () => {
    const { client, rival } = createHarness();
    const lease = defined((await client.locks.acquire(KEY, { ttl: TTL })).lease);
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

describe("await using", () => {
  it("releases at the end of the scope and never hides the error of the scope", async () => {
    const { client, transport } = createHarness();
    const scope = async (): Promise<void> => {
      await using lease = defined((await client.locks.acquire(KEY, { ttl: TTL })).lease);
      transport.otherwise = "drop_before_send";
      throw new Error(`mine, at ${lease.key}`);
    };
    await expect(scope()).rejects.toThrow("mine");
    transport.otherwise = "pass";
    {
      await using _none = (await client.locks.acquire(KEY, { ttl: TTL })).lease;
    }
    expect(sentMethods(transport)).toBe("POST DELETE DELETE POST");
  });

  it("frees the lock", async () => {
    const { client } = createHarness();
    {
      await using _lease = (await client.locks.acquire(KEY, { ttl: TTL })).lease;
      expect((await client.locks.get(KEY)).state?.held).toBe(true);
    }
    expect((await client.locks.get(KEY)).state?.held).toBe(false);
  });
});
