import { AsyncLocalStorage } from "node:async_hooks";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { describe, expect, it, vi } from "vitest";
import { OpenBlocks } from "../../src/holding/reentrancy.ts";
import { LockHeldError } from "../../src/index.ts";
import { createHarness, deferred, KEY, sentMethods, TTL } from "../harness.ts";

const FOREVER = Number.POSITIVE_INFINITY;
const NESTED = `the lock ${KEY} is held by an outer block of this async context: blocks are not re-entrant`;

describe("SDK-26 case 82: a block inside a block on the same key", () => {
  it("is a LockHeldError at once, also with wait, and the outer block goes on", async () => {
    const harness = createHarness();
    const { locks } = harness.client;
    const body = vi.fn();
    const outer = await locks.withLock(KEY, { ttl: TTL }, async () => {
      await harness.clock.advance(1);
      const withLock = await locks.withLock(KEY, { ttl: TTL, wait: FOREVER }, body);
      const lead = await locks.lead(KEY, { ttl: TTL }, body);
      const thrown = await locks
        .throwOnError()
        .withLock(KEY, { ttl: TTL }, body)
        .catch((error: unknown) => error);
      const exclusive = (onHeld: "wait" | "raise" | "skip") => locks.exclusive(KEY, { ttl: TTL, onHeld }, body)();
      const wrapped = await exclusive("wait").catch((error: unknown) => error);
      for (const error of [withLock.error, lead.error, thrown, wrapped]) {
        expect(error).toBeInstanceOf(LockHeldError);
        expect(error).toMatchObject({ message: NESTED, code: "lock_held", key: KEY });
      }
      expect(withLock).toMatchObject({ acquired: false, data: null });
      expect(await exclusive("skip")).toBeUndefined();
      return "outer";
    });
    expect(outer).toEqual({ acquired: true, data: "outer", error: null });
    expect(body).not.toHaveBeenCalled();
    expect(sentMethods(harness.transport)).toBe("POST DELETE");
  });

  it("is found through blocks of other locks in between", async () => {
    const { locks } = createHarness().client;
    const { data } = await locks.withLock(KEY, { ttl: TTL }, () =>
      locks.withLock("between", { ttl: TTL }, () => locks.withLock(KEY, { ttl: TTL, wait: FOREVER }, () => {})),
    );
    expect(data?.data?.error?.message).toBe(NESTED);
  });

  it("other async contexts and other clients wait as ever", async () => {
    const { client, clock, rival } = createHarness();
    const end = deferred();
    const first = client.locks.withLock(KEY, { ttl: TTL }, () => end.promise);
    await clock.settle();
    const others = [client, rival].map(({ locks }) => locks.withLock(KEY, { ttl: TTL, wait: FOREVER }, () => "waited"));
    await clock.settle();
    end.resolve();
    await first;
    for (const other of others) expect(await other).toMatchObject({ data: "waited", error: null });
    const inside = await client.locks.withLock(KEY, { ttl: TTL }, () =>
      rival.locks.withLock(KEY, { ttl: TTL }, () => {}),
    );
    expect(inside.data).toMatchObject({ acquired: false, error: null, reason: "lock_held" });
  });

  it("code that a block started may take the lock again after the block", async () => {
    const { client } = createHarness();
    const left = deferred();
    let later: Promise<unknown> | undefined;
    await client.locks.withLock(KEY, { ttl: TTL }, () => {
      later = left.promise.then(() => client.locks.withLock(KEY, { ttl: TTL }, () => "later"));
    });
    left.resolve();
    expect(await later).toMatchObject({ data: "later", error: null });
  });

  it("any number of clients use one AsyncLocalStorage, since Node never forgets one", async () => {
    const run = vi.spyOn(AsyncLocalStorage.prototype, "run");
    const { client, rival } = createHarness();
    for (const { locks } of [client, rival]) await locks.withLock(KEY, { ttl: TTL }, () => {});
    expect([run.mock.contexts.length, new Set(run.mock.contexts).size]).toEqual([2, 1]);
    run.mockRestore();
  });

  it("a body that schedules the next block keeps none of the blocks before it", async () => {
    setFlagsFromString("--expose-gc");
    const collect = runInNewContext("gc") as () => void;
    const seen: Array<WeakRef<OpenBlocks>> = [];
    const kept = await new Promise<unknown[]>((resolve) => {
      const next = (): void => {
        const blocks = new OpenBlocks();
        seen.push(new WeakRef(blocks));
        void blocks.run(KEY, () => void setTimeout(seen.length < 4 ? next : last));
      };
      const last = (): void => {
        collect();
        resolve(seen.slice(0, 2).map((one) => one.deref()));
      };
      next();
    });
    expect(kept).toEqual([undefined, undefined]);
  });
});
