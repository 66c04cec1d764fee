import { describe, expect, it, vi } from "vitest";
import { Hold } from "../../src/holding/hold.ts";
import { type Lease, LockOwnershipLostError } from "../../src/index.ts";
import { Log } from "../../src/log.ts";
import { createHarness, defined, granted, KEY, TTL } from "../harness.ts";

describe("a hold without its renewer", () => {
  async function made() {
    const { clock, client } = createHarness();
    const lease = granted(await client.locks.acquire(KEY, { ttl: TTL }));
    const renewed = defined((await client.locks.renew(KEY, lease)).lease);
    const confirmed = (one: Lease, seconds: number) => {
      const { expiresAt, fencingToken } = one;
      const grant = { expiresAt, fencingToken, deadline: clock.now() + seconds, hasAmpleQuota: true };
      return { lease: one, grant };
    };
    const start = { clock, log: new Log(undefined), timeoutSeconds: 10, jitter: 0.5 };
    const hold = new Hold({ ...confirmed(lease, TTL), ...start });
    return { clock, lease, renewed: (seconds: number) => confirmed(renewed, seconds), hold };
  }

  it("case 8: a renewal confirmed after the block was left changes nothing", async () => {
    const { clock, hold, lease, renewed } = await made();
    hold.leave();
    hold.renewed(renewed(60));
    expect(hold.lease).toBe(lease);
    expect(hold.nextAction()).toEqual({ kind: "left" });
    expect(clock.waiting).toBe(0);
  });

  it("case 12: only the first loss counts, and none after the block was left", async () => {
    const [first, second] = [new LockOwnershipLostError("first"), new LockOwnershipLostError("second")];
    const { hold } = await made();
    hold.lose(first);
    hold.lose(second);
    expect([hold.loss(), hold.signal.reason]).toEqual([first, first]);
    const left = (await made()).hold;
    left.leave();
    left.lose(first);
    expect([left.loss(), left.signal.aborted, left.notHeldReason()]).toEqual([
      null,
      false,
      expect.any(LockOwnershipLostError),
    ]);
  });

  it("case 6: the deadline has its own timer, which moves with it", async () => {
    const { clock, hold, renewed } = await made();
    const aborted = vi.fn();
    hold.signal.addEventListener("abort", aborted);
    clock.jump(20);
    hold.renewed(renewed(TTL));
    clock.jump(29);
    expect(aborted).not.toHaveBeenCalled();
    clock.jump(1);
    expect(aborted).toHaveBeenCalledTimes(1);
    expect(clock.waiting).toBe(0);
  });
});
