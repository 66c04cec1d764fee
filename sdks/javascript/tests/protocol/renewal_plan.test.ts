import { describe, expect, it } from "vitest";
import { ACQUISITION_SECONDS_MAX, RenewalPlan } from "../../src/protocol/renewal_plan.ts";

function heartbeat(ttlSeconds: number, jitter = 0.5, timeoutSeconds = 10): RenewalPlan {
  return new RenewalPlan({
    ttlSeconds,
    acquiredAt: 0,
    deadline: ttlSeconds,
    timeoutSeconds,
    jitter,
    hasAmpleQuota: true,
  });
}

describe("the renewal plan", () => {
  it.each([
    [0, 9],
    [0.5, 10],
    [1, 11],
  ])("SDK-3: with jitter %d, a lease of 30 seconds is first renewed after %d seconds", (jitter, due) => {
    expect(heartbeat(30, jitter).nextAction(0)).toEqual({ kind: "wait", until: expect.closeTo(due) });
    expect(heartbeat(30, jitter).nextAction(due + 0.001).kind).toBe("renew");
  });

  it("SDK-3: failed attempts are retried with growing back-off, and never in the last second", () => {
    const plan = heartbeat(60);
    const tries: number[] = [];
    for (let now = 0; ; ) {
      const step = plan.nextAction(now);
      if (step.kind === "lost") break;
      if (step.kind === "wait") {
        now = step.until;
        continue;
      }
      tries.push(now);
      plan.failed(now, null);
    }
    expect(tries[0]).toBe(20);
    expect(tries.slice(1, 5).map((at, index) => at - (tries[index] ?? 0))).toEqual([
      expect.closeTo(0.2),
      expect.closeTo(0.4),
      expect.closeTo(0.8),
      expect.closeTo(1.6),
    ]);
    expect(tries.length).toBeGreaterThan(10);
    expect(Math.max(...tries)).toBeLessThan(59);
  });

  it("case 4: a Retry-After of an hour leaves another attempt within the lease", () => {
    const plan = heartbeat(30);
    plan.failed(10, 3_600);
    expect(plan.nextAction(10)).toEqual({ kind: "wait", until: 19.5 });
  });

  it("case 6: the time-out of an attempt is half of the remaining time", () => {
    expect(heartbeat(30).nextAction(10)).toEqual({ kind: "renew", timeoutSeconds: 10 });
    expect(heartbeat(30, 0.5, 60).nextAction(20)).toEqual({ kind: "renew", timeoutSeconds: 5 });
    expect(heartbeat(30).nextAction(28.5)).toEqual({ kind: "renew", timeoutSeconds: 1 });
    expect(heartbeat(30).nextAction(29)).toEqual({ kind: "wait", until: 30 });
  });

  it("case 3: only a confirmed renewal moves the deadline", () => {
    const plan = heartbeat(30);
    plan.nextAction(10);
    plan.failed(10, null);
    expect(plan.deadline).toBe(30);
    expect(plan.renewed(40, 11, true)).toBe(true);
    expect(plan.deadline).toBe(40);
    expect(plan.nextAction(11)).toEqual({ kind: "wait", until: 20 });
  });

  it("a renewal confirmed after the deadline changes nothing", () => {
    const plan = heartbeat(30);
    expect(plan.renewed(59, 30, true)).toBe(false);
    expect(plan.nextAction(30)).toEqual({ kind: "lost" });
  });

  it("no renewal moves the deadline past the absolute end of an acquisition", () => {
    const plan = heartbeat(3_000_000);
    for (const sentAt of [2_000_000, 4_000_000, 6_000_000]) {
      expect(plan.renewed(sentAt + 3_000_000, sentAt, true)).toBe(true);
    }
    expect(plan.deadline).toBe(ACQUISITION_SECONDS_MAX);
    expect(plan.nextAction(ACQUISITION_SECONDS_MAX - 1)).toEqual({ kind: "wait", until: ACQUISITION_SECONDS_MAX });
    expect(plan.nextAction(ACQUISITION_SECONDS_MAX)).toEqual({ kind: "lost" });
  });

  it.each([201, 86_400, ACQUISITION_SECONDS_MAX])(
    "SDK-3 case 51: a lease of %d seconds is renewed within a minute; jitter only shortens it",
    (ttl) => {
      expect(heartbeat(ttl, 0).nextAction(0)).toEqual({ kind: "wait", until: 60 });
      const plan = heartbeat(ttl);
      expect(plan.nextAction(0)).toEqual({ kind: "wait", until: 57 });
      expect(plan.renewed(57 + ttl, 57, true)).toBe(true);
      expect(plan.nextAction(57)).toEqual({ kind: "wait", until: 114 });
      expect(plan.renewed(114 + ttl, 114, false)).toBe(true);
      expect(plan.nextAction(114)).toEqual({
        kind: "wait",
        until: Math.min(114 + ttl / 3, ACQUISITION_SECONDS_MAX - 1),
      });
    },
  );

  it("SDK-3: renewEvery replaces third and minute, whatever the quota; jitter only shortens it", () => {
    for (const hasAmpleQuota of [true, false]) {
      const until = [0, 0.5].map((jitter) => {
        const start = { ttlSeconds: 3_600, acquiredAt: 0, deadline: 3_600, timeoutSeconds: 10, jitter };
        return new RenewalPlan({ ...start, renewEvery: 1_000, hasAmpleQuota }).nextAction(0);
      });
      expect(until).toEqual([1_000, 950].map((at) => ({ kind: "wait", until: at })));
    }
  });
});
