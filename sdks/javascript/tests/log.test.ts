import { describe, expect, it, vi } from "vitest";
import type { Logger } from "../src/index.ts";
import { createHarness, granted, type Harness, KEY, SERVICE_KEY, TOKEN, TTL } from "./harness.ts";

/** A harness whose client logs to `lines`. */
function logged(logger: Partial<Logger> = {}): Harness & { lines: string[] } {
  const lines: string[] = [];
  const write = (level: string) => (message: string) => void lines.push(`${level} ${message}`);
  const harness = createHarness([], { logger: { debug: write("debug"), warn: write("warn"), ...logger } });
  return { ...harness, lines };
}

describe("SDK-25: logging", () => {
  it("logs acquires, waits, renewals and releases at debug", async () => {
    const { client, clock, lines } = logged();
    const lease = granted(await client.locks.acquire(KEY, { ttl: TTL }));
    await client.locks.acquire(KEY, { ttl: TTL });
    const waited = client.locks.acquire(KEY, { ttl: TTL, wait: 60 });
    await clock.settle();
    await client.locks.renew(KEY, lease);
    await client.locks.release(KEY, lease);
    await waited;
    const held = expect.stringMatching(`^debug volcano-locks: acquire ${KEY}: the lock ${KEY} is held by `);
    const ended = [lines.pop(), lines.pop()].sort();
    expect(ended).toEqual(
      [`release ${KEY}: done`, `wait for ${KEY}: done`].map((line) => `debug volcano-locks: ${line}`),
    );
    expect(lines).toEqual([
      `debug volcano-locks: acquire ${KEY}: done`,
      held,
      `debug volcano-locks: wait for ${KEY}`,
      `debug volcano-locks: renew ${KEY}: done`,
    ]);
  });

  it("logs a failed renewal and a loss at warning, and neither for a block that ends well", async () => {
    const { client, clock, lines, transport } = logged();
    await client.locks.withLock(KEY, { ttl: TTL }, async () => {
      transport.script = [{ delaySeconds: 5 }];
      await clock.advance(11.5);
    });
    expect(lines.filter((line) => line.startsWith("warn"))).toEqual([]);
    await client.locks.withLock(KEY, { ttl: TTL }, async () => {
      transport.script = [{ status: 500 }];
      await clock.advance(11.5);
      clock.jump(TTL);
    });
    expect(lines.filter((line) => line.startsWith("warn"))).toEqual([
      `warn volcano-locks: renew ${KEY}: HTTP 500 without an error message`,
      `warn volcano-locks: the lock ${KEY} is lost: the lease of ${KEY} is lost: not renewed within its ${TTL} seconds`,
    ]);
  });

  it("a logger that throws or rejects decides no outcome", async () => {
    const rejections = vi.fn();
    process.on("unhandledRejection", rejections);
    const fail = (): never => {
      throw new Error("disk full");
    };
    for (const debug of [fail, async () => fail()]) {
      const { client } = logged({ debug, warn: debug });
      expect(await client.locks.withLock(KEY, { ttl: TTL }, () => "done")).toMatchObject({ data: "done", error: null });
    }
    await new Promise((resolve) => setImmediate(resolve));
    process.off("unhandledRejection", rejections);
    expect(rejections).not.toHaveBeenCalled();
  });

  it("SDK-8: shows no token and no service key", async () => {
    const { client, lines, transport } = logged();
    transport.otherwise = { status: 400, body: JSON.stringify({ error: `${SERVICE_KEY} ${TOKEN}` }) };
    await client.locks.acquire(KEY, { ttl: TTL, token: TOKEN });
    expect(lines).toEqual([`debug volcano-locks: acquire ${KEY}: [hidden] [hidden]`]);
  });

  it("writes nothing without a logger", async () => {
    const writes = [vi.spyOn(process.stdout, "write"), vi.spyOn(process.stderr, "write")];
    const { client, clock } = createHarness();
    await client.locks.withLock(KEY, { ttl: TTL }, () => clock.jump(TTL));
    for (const write of writes) expect(write).not.toHaveBeenCalled();
    vi.restoreAllMocks();
  });
});
