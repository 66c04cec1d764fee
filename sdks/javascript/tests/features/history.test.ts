import { describe, expect, it } from "vitest";
import type { HistoryOptions } from "../../src/options.ts";
import { FakeLocks, ManualClock } from "../../src/testing/index.ts";
import { defined, KEY } from "../harness.ts";

/** A released, a forced, an expired and a current hold of KEY, and when the first one began. */
async function fourHolds() {
  const clock = new ManualClock();
  const server = new FakeLocks(clock);
  const client = server.client({ holder: "ann" });
  const began = clock.utcNow().getTime();
  const first = defined((await client.locks.acquire(KEY, { ttl: 30 })).lease);
  await clock.advance(1);
  await client.locks.renew(KEY, first);
  await client.locks.release(KEY, first);
  await clock.advance(1);
  await client.locks.acquire(KEY, { ttl: 30 });
  await clock.advance(1);
  await client.locks.forceRelease(KEY, { reason: "stuck" });
  await clock.advance(1);
  await client.locks.acquire(KEY, { ttl: 5 });
  await clock.advance(8);
  await client.locks.acquire(KEY, { ttl: 30 });
  await clock.advance(2);
  const ends = async (options: HistoryOptions = {}) => {
    const found: (string | null)[] = [];
    for await (const hold of client.locks.history(KEY, options)) found.push(hold.ended);
    return found;
  };
  return { client, ends, at: (seconds: number) => new Date(began + seconds * 1_000) };
}

describe("SDK-28: history", () => {
  it("iterates over the holds from the latest to the first", async () => {
    const { client } = await fourHolds();
    const found = [];
    for await (const hold of client.locks.throwOnError().history(KEY)) {
      found.push([hold.holder, hold.began, hold.ended, hold.reason, hold.renewals, hold.heldSeconds]);
    }
    expect(found).toEqual([
      ["ann", "taken_over", null, null, 0, 2],
      ["ann", "free", "expired", null, 0, 6],
      ["ann", "free", "forced", "stuck", 0, 1],
      ["ann", "free", "released", null, 1, 1],
    ]);
  });

  it("selects the holds of an instant and of a period", async () => {
    const { ends, at } = await fourHolds();
    expect(await ends({ at: at(2.5) })).toEqual(["forced"]);
    expect(await ends({ since: at(2.5), before: at(5) })).toEqual(["expired", "forced"]);
  });

  it("refuses what is no instant", async () => {
    const { client } = await fourHolds();
    expect(() => client.locks.history(KEY, { at: "03:12" as never })).toThrow(TypeError);
    expect(() => client.locks.history(KEY, { at: new Date(Number.NaN) })).toThrow(RangeError);
  });

  it("refuses a page with a malformed entry", async () => {
    const { client } = await fourHolds();
    const fetch = async () => Response.json({ items: [{ key: KEY }], next_cursor: null });
    const broken = new FakeLocks().client({ fetch });
    await expect(broken.locks.history(KEY).next()).rejects.toThrow("fencing_token is missing or invalid");
    expect(client).toBeDefined();
  });
});
